"""Kernel settings, and where each value comes from."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One line that sets a key."""

    value: str
    """As written; tuned's ``>2048`` (only ever raise to) keeps its sign."""
    source: str
    """``/etc/sysctl.d/10-x.conf:3``, ``tuned profile hpc-compute (/usr/lib/tuned/…/tuned.conf:9)``, ``kernel command line``."""
    is_pattern: bool = False
    """Whether the line names the key by a pattern: one that names the key itself wins over it, wherever it stands."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    running: Fact[str]
    """What the kernel uses now (whitespace normalised to single blanks)."""
    assignments: tuple[Assignment, ...]
    """Every line of sysctl.d that names the key, patterns included, in the order in which systemd-sysctl reads them."""
    systemd: Fact[Assignment]
    """What systemd-sysctl would set at boot; ABSENT if no file names the key."""
    procps: Fact[Assignment]
    """What procps' ``sysctl --system`` would set (it reads /etc/sysctl.conf last)."""
    tuned: Fact[Assignment]
    """What the active tuned profile sets; ABSENT if none does."""
    cmdline: Fact[Assignment]
    """A ``sysctl.<key>=`` boot argument (kernel 5.8 and later)."""
    boot: Fact[Assignment]
    """Which of them holds once the host is up: boot argument, then systemd-sysctl, then tuned, which by default lets the files
    of /run/sysctl.d, /etc/sysctl.d and /etc/sysctl.conf have the last word (``reapply_sysctl``). ABSENT: the kernel's default stays.
    """


class SysctlFacts(msgspec.Struct, frozen=True, kw_only=True):
    settings: dict[str, Setting]
    """By key, e.g. ``vm.swappiness``; interface names with dots are written as sysctl(8) does: ``net.ipv4.conf.eth0/7.rp_filter``."""
    tuned_profile: Fact[str]
    """The active tuned profile; ABSENT where tuned is not active."""
