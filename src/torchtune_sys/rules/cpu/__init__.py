"""CPUs: how many the job may use, how fast they may run, what they can do."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.cpu import available, frequency, power, taken

RULES = rules_of(available, frequency, power, taken)
