"""The session: who runs, and what the environment variables say to CUDA, PyTorch and NCCL."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.environment import debug, handed_down, ineffective, nccl, printing, refused, session

RULES: tuple[Rule, ...] = (
    *session.RULES,
    *debug.RULES,
    *printing.RULES,
    *ineffective.RULES,
    *refused.RULES,
    *handed_down.RULES,
    *nccl.RULES,
)
