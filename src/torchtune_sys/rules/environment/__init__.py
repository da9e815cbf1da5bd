"""The session: who runs, and what the environment variables say to CUDA, PyTorch and NCCL."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.environment import debug, handed_down, ineffective, nccl, printing, refused, session

RULES = rules_of(session, debug, printing, ineffective, refused, handed_down, nccl)
