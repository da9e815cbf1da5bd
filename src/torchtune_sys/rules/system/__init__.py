"""Operating system, kernel, C library, kind of machine."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.system.platform import (
    boot_argument_withholds,
    clock_wrong,
    end_of_life,
    glibc_too_old,
    kernel_old,
    libc_is_musl,
    wsl1,
)

RULES: tuple[Rule, ...] = (end_of_life, glibc_too_old, libc_is_musl, kernel_old, wsl1, clock_wrong, boot_argument_withholds)
