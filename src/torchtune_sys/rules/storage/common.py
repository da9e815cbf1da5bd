"""Code shared by the storage rules: the places that a rule judges, and their names."""

from __future__ import annotations

from torchtune_sys.model.facts.storage import StoragePath
from torchtune_sys.model.rule import Evidence, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, known, need

DATA = ("data", "working directory")
"""The working directory stands for the data where none was named."""
SAVES = ("checkpoints", "working directory")
USED = ("data", "checkpoints", "working directory")

GIB = 1 << 30


def places(s: Snapshot, roles: tuple[str, ...]) -> tuple[StoragePath, ...]:
    """Return the places of these roles. Raises NotApplicable where the person named none."""
    found = tuple(place for place in need(s.storage).places if place.role in roles)
    if not found:
        raise NotApplicable(f"no path was named for: {', '.join(roles)}")
    return found


def read_only(place: StoragePath) -> bool:
    return "ro" in known(place.options, ())


def subject(place: StoragePath) -> str:
    return f"{place.role} {place.path}".rstrip()


def passed(place: StoragePath, seen: str, source: str = "/proc/self/mountinfo") -> Evidence:
    """Return evidence that a place was judged and found good."""
    return Evidence(subject=subject(place), seen=seen, verdict=Verdict.PASS, source=source)


def not_applicable(place: StoragePath, why: str) -> Evidence:
    """Return evidence that there is nothing to judge at this place."""
    return Evidence(subject=subject(place), seen=why, verdict=Verdict.NA, source="/proc/self/mountinfo")


def value_of(options: tuple[str, ...], name: str) -> str | None:
    """Return the value of a mount option; None where it is not among them."""
    return next((option.partition("=")[2] for option in options if option.partition("=")[0] == name), None)
