"""NUMA: where memory, CPUs and GPUs lie, and what the session may use of them."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.numa import locality

RULES = rules_of(locality)
