"""The session: who runs, and what the environment variables say to CUDA, PyTorch and NCCL."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.environment import debug, handed_down, ineffective, nccl, refused
from torchtune_sys.rules.environment.session import (
    container_uid_without_passwd,
    cuda_allocator_setting_invalid,
    cuda_visible_devices_wrong,
    ld_preload_missing,
    session_under_sudo,
)

RULES: tuple[Rule, ...] = (
    container_uid_without_passwd,
    session_under_sudo,
    cuda_visible_devices_wrong,
    cuda_allocator_setting_invalid,
    ld_preload_missing,
    *debug.RULES,
    *ineffective.RULES,
    *refused.RULES,
    *handed_down.RULES,
    *nccl.RULES,
)
