"""Facts out of files that hold what commands printed on one host. What a file tells of is known by what it holds, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from torchtune_sys.evidence import filled, merged_gpus
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.facts.pci import PciFacts
from torchtune_sys.model.facts.storage import StorageFacts
from torchtune_sys.model.snapshot import FAMILIES, Snapshot, gpus_told
from torchtune_sys.model.values import Missing

_OF_CONTAINERS = "docker inspect"
_LOG = "report (kernel log)"
_NAMED = 4


class SameHost:
    """Tells, one file after the other, which of them tell of a host, and of none but the one that the first ones tell of.

    A kernel's log counts once (``dmesg`` and ``dmesg -T`` are the same one). What ``docker inspect`` tells is a container's.
    """

    def __init__(self, read: Callable[[str], Snapshot | None]) -> None:
        self._read = read
        self._known: dict[str, object] = {}

    def tells(self, text: str) -> bool:
        seen = self._read(text)
        if (
            seen is None
            or _OF_CONTAINERS in seen.origin
            or all(isinstance(getattr(seen, family), Missing) for family in FAMILIES)
        ):
            return False
        own = _identity(seen)
        if any(self._known.get(what, value) != value for what, value in own.items()):
            return False
        self._known.update(own)
        return True


def _identity(seen: Snapshot) -> dict[str, object]:
    """Return what no two files of one host and day tell otherwise."""
    gpus = gpus_told(seen)
    found: dict[str, Fact[object]] = {
        "kernel": seen.system if isinstance(seen.system, Missing) else seen.system.kernel,
        "driver": seen.gpu if isinstance(seen.gpu, Missing) else seen.gpu.driver_version,
        "GPU 0": gpus[0].uuid if gpus and gpus[0].index == 0 else "",
    }
    told = {what: value for what, value in found.items() if not isinstance(value, Missing) and value}
    return {**told, "log": seen} if seen.origin == _LOG else told


def read(texts: Iterable[str], reader: Callable[[str], Snapshot | None]) -> Snapshot | None:
    """Return what the texts tell together. What a program says of a failure is left to diagnose, which knows logs from documents."""
    seen = reader("\n\n".join(text.strip("\n") for text in texts))
    return None if seen is None else replace(seen, said={}, failures=())


def completed(seen: Snapshot, told: Snapshot, families: Iterable[str] = FAMILIES) -> Snapshot:
    """Return the facts of a host's files, filled with those that commands told of it."""
    return replace(seen, **{family: _both(getattr(seen, family), getattr(told, family)) for family in families})


def _both(facts: object, other: object) -> object:
    if isinstance(facts, Missing) or isinstance(other, Missing):
        return facts if isinstance(other, Missing) else other
    if isinstance(facts, GpuFacts) and isinstance(other, GpuFacts) and not isinstance(facts.devices, Missing):
        return merged_gpus(facts, other)
    if isinstance(facts, PciFacts) and isinstance(other, PciFacts):
        facts = _of_each_device(facts, other)
    if isinstance(facts, StorageFacts) and isinstance(
        other, StorageFacts
    ):  # a tree has no working directory, and no room in what it names
        told = {(place.path, place.role): place for place in other.places}
        known = tuple(filled(place, told.pop((place.path, place.role), None)) for place in facts.places)
        facts = replace(facts, places=(*known, *told.values()))
    return filled(facts, other)


def _of_each_device(facts: PciFacts, other: PciFacts) -> PciFacts:
    """Return what the bus's files tell, and of each device, and of a bridge above that they lack, what lspci tells beyond them."""
    if isinstance(facts.devices, Missing) or isinstance(other.devices, Missing):
        return facts
    told = {device.address: device for device in other.devices}
    above = dict.fromkeys(device.parent for device in facts.devices).keys() - {device.address for device in facts.devices}
    bridges = (told[address] for address in sorted(above) if address in told)
    return replace(facts, devices=(*bridges, *(filled(device, told.get(device.address)) for device in facts.devices)))


def named(origin: str, read_count: int, unread: Sequence[str]) -> str:
    """Return where the facts are from, and what told none.

    >>> named("tree x", 9, ("a", "b"))
    'tree x, and outputs of commands in 9 files (2 files were not read: a, b)'
    >>> named("tree x", 0, ())
    'tree x'
    """
    files = f"{read_count:,} file{'s' * (read_count != 1)}"
    shown = f"{origin}, and outputs of commands in {files}" if read_count else origin
    if not unread:
        return shown
    rest = f", and {len(unread) - _NAMED:,} more" if len(unread) > _NAMED else ""
    words = "1 file was not read" if len(unread) == 1 else f"{len(unread):,} files were not read"
    return f"{shown} ({words}: {', '.join(unread[:_NAMED])}{rest})"
