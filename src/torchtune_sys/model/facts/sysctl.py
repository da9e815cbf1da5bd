"""Kernel settings, and where each value comes from."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a file that sets a key."""

    value: str
    source: str
    """``/etc/sysctl.d/10-x.conf:3``, ``tuned profile hpc-compute``, ``kernel command line``."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    running: Fact[str]
    """What the kernel uses now (whitespace normalised to single blanks)."""
    assignments: tuple[Assignment, ...]
    """Every configured value, in the order in which systemd-sysctl applies them: the last one wins at boot."""
    systemd: Fact[Assignment]
    """What systemd-sysctl would set at boot; ABSENT if no file names the key."""
    procps: Fact[Assignment]
    """What procps' ``sysctl --system`` would set (it reads /etc/sysctl.conf last)."""
    tuned: Fact[Assignment]
    """What the active tuned profile sets; ABSENT if none does."""
    cmdline: Fact[Assignment]
    """A ``sysctl.<key>=`` boot argument."""


class SysctlFacts(msgspec.Struct, frozen=True, kw_only=True):
    settings: dict[str, Setting]
    """By key, e.g. ``vm.swappiness``."""
    tuned_profile: Fact[str]
    """The active tuned profile; ABSENT where tuned is not active."""
