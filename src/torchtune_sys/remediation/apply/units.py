"""systemd units: their state, and changing it."""

from __future__ import annotations

import msgspec

from torchtune_sys.host.children.process import run
from torchtune_sys.model.values import Missing

TIMEOUT_S = 120.0
BOOT_TIMEOUT_S = 900.0
"""Timeout for rebuilding boot loader entries: update-grub may search every disk for other systems, rpm-ostree deploys a whole tree."""
_OF_BOOT = ("update-grub", "grub-mkconfig", "grubby", "rpm-ostree")


class Failed(OSError):
    """A command did not do what it was started for."""


class UnitState(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    active: bool


def command(argv: tuple[str, ...]) -> None:
    """Run a command to its end. Raises Failed with what it said."""
    found = run(argv, timeout_s=BOOT_TIMEOUT_S if argv[0] in _OF_BOOT else TIMEOUT_S)
    if isinstance(found, Missing):
        raise Failed(f"{' '.join(argv)}: {found.detail or found.why.value}")
    if found.rc:
        lines = (found.stderr.strip() or found.stdout.strip()).splitlines()
        raise Failed(f"{' '.join(argv)}: {' '.join(lines[-2:]) or f'ended with status {found.rc}'}")


def state(unit: str) -> UnitState:
    """Raise Failed where systemd cannot be asked, or does not know the unit."""
    enabled, active = _asked("is-enabled", unit), _asked("is-active", unit)
    if enabled in ("", "not-found"):
        raise Failed(f"{unit}: there is no such unit")
    if not active:
        raise Failed(f"{unit}: systemd does not tell whether it runs")
    return UnitState(enabled=enabled.startswith("enabled"), active=active in ("active", "activating", "reloading"))


def _asked(question: str, unit: str) -> str:
    found = run(("systemctl", question, unit), timeout_s=TIMEOUT_S)
    if isinstance(found, Missing):
        raise Failed(f"systemctl {question} {unit}: {found.detail or found.why.value}")
    return found.stdout.strip()


def set_to(unit: str, wanted: UnitState) -> None:
    """Enable or disable, start or stop, only what differs. Raises Failed."""
    present = state(unit)
    if present.enabled != wanted.enabled:
        command(("systemctl", "enable" if wanted.enabled else "disable", unit))
    if present.active != wanted.active:
        command(("systemctl", "start" if wanted.active else "stop", unit))
