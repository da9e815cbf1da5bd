"""What several modules of this family share."""

from __future__ import annotations

from torchtune_sys.model.rule import Evidence
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need


def environment(s: Snapshot) -> dict[str, str]:
    return need(need(s.session).env)


def seen(name: str, value: str, wanted: str = "unset", why: str = "") -> Evidence:
    return Evidence(subject=name, seen=f"{name}={value}{f': {why}' if why else ''}", wanted=wanted, source="environment")


def number(text: str) -> int:
    """Parse a number as strtol does: leading digits, else 0."""
    digits = text.strip()
    end = len(digits) - len(digits.lstrip("+-0123456789"))
    try:
        return int(digits[:end])
    except ValueError:
        return 0
