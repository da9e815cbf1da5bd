"""Which hosts may be compared with each other: same machine, same GPUs, same role."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from torchtune_sys.fleet.leaves import Leaves
from torchtune_sys.fleet.store import Family, HostFacts, Store

_VENDORS = {'"0x10de"': "NVIDIA", '"0x1002"': "AMD"}
_GPU_CLASSES = ('"0x0300', '"0x0302', '"0x0380', '"0x1200')
_UNTOLD, _NO_GPU = "?", "no GPU"
_TELLING = (".name", ".class", ".vendor", ".device", "]", "devices")
"""Ends of the facts that say which GPUs and networks there are."""


class _Seen(msgspec.Struct, frozen=True):
    """What one host shows of what it is; ``?`` where it shows nothing."""

    machine: str
    devices: tuple[str, ...] | None
    """PCI ids of its GPUs; () where the PCI list has none, None where there is no such list."""
    names: tuple[str, ...]
    """Names of its GPUs, as the driver prints them."""
    board: tuple[object, ...] | None
    """What else is on its board, its processor and networks; None where it does not say."""


def kinds(store: Store) -> dict[str, list[int]]:
    """Return the hosts by kind, the most frequent kind first."""
    seen = _Look(store).all()
    named = {one.devices: one.names for one in seen if one.devices and one.names}
    labels = [_label(one, named) + crowd for one, crowd in zip(seen, _crowds(store.hosts), strict=True)]
    labels = _with_those_whose_gpus_are_gone(seen, labels)
    known = Counter(label for label in labels if _UNTOLD not in label).most_common()
    found: dict[str, list[int]] = {}
    for host, label in enumerate(labels):
        found.setdefault(_likely(label, [name for name, _ in known]) if _UNTOLD in label else label, []).append(host)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _with_those_whose_gpus_are_gone(seen: Sequence[_Seen], labels: list[str]) -> list[str]:
    """Return the labels; hosts without GPUs have that of more with GPUs whose board is the same: they lost theirs, and are no other kind."""
    boards: dict[tuple[object, ...], Counter[str]] = {}
    for one, label in zip(seen, labels, strict=True):
        if one.board is not None:
            boards.setdefault(one.board, Counter())[label] += 1
    found = []
    for one, label in zip(seen, labels, strict=True):
        others = boards[one.board] if one.board is not None and _NO_GPU in label else Counter[str]()
        same = max(others, key=lambda other: others[other], default=label)
        found.append(same if _NO_GPU not in same and others[label] < others[same] else label)
    return found


def _crowds(hosts: Sequence[HostFacts]) -> list[str]:
    """Return for each host what else its kind says: where most files or hosts tell of one host, those of which one tells together stand apart. Forty that it makes up would
    be what is usual, and all true ones odd."""
    times = Counter(host.teller for host in hosts)
    crowds = {teller for teller, count in times.items() if teller and count > 1}
    if 2 * len(crowds) >= len(times):
        return [""] * len(hosts)
    told = {teller: f" ({times[teller]} told by {os.path.basename(teller)})" for teller in crowds}
    return [told.get(host.teller, "") for host in hosts]


def _label(one: _Seen, named: dict[tuple[str, ...], tuple[str, ...]]) -> str:
    if one.devices is None and not one.names:
        gpus = _UNTOLD
    elif not one.devices and not one.names:
        gpus = _NO_GPU
    else:
        gpus = " + ".join(named.get(one.devices or (), one.names) or one.names or one.devices or ())
    return f"{one.machine}, {gpus}"


def _likely(label: str, known: Sequence[str]) -> str:
    """Return the most frequent kind that it may be, for a host that does not say all (a report, an older file)."""
    parts = label.split(", ", 1)
    for name in known:
        if all(part in (_UNTOLD, other) for part, other in zip(parts, name.split(", ", 1), strict=True)):
            return name
    return label


class _Look:
    """Each variant of a family is looked at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], tuple[str, ...]] = {}

    def all(self) -> list[_Seen]:
        return [
            _Seen(
                self._machine(host),
                self._entries(host, "pci", "pci.devices", _devices),
                self._entries(host, "gpu", "gpu", _names) or (),
                self._board(host),
            )
            for host in range(len(self._store.hosts))
        ]

    def _machine(self, host: int) -> str:
        found = self._store.get(host, "system.machine")
        return found.decode().strip('"') if found is not None and found[:1] == b'"' else _UNTOLD

    def _board(self, host: int) -> tuple[object, ...] | None:
        processor = tuple(self._store.get(host, fact) for fact in ("cpu.model", "cpu.present"))
        networks = self._entries(host, "network", "network", _networks)
        return (*processor, networks) if None not in processor and networks else None

    def _entries(self, host: int, family: str, holder: str, of: Callable[[Leaves], tuple[str, ...]]) -> tuple[str, ...] | None:
        """None where the file does not tell."""
        variant = self._store.hosts[host].variants.get(family)
        if variant is None or self._store.families[family].get(variant, holder) is None:
            return None
        if (family, variant) not in self._known:
            self._known[family, variant] = self._look(self._store.families[family], variant, of)
        return self._known[family, variant]

    def _look(self, family: Family, variant: int, of: Callable[[Leaves], tuple[str, ...]]) -> tuple[str, ...]:
        same = variant and not any(fact.endswith(_TELLING) for fact in family.deltas[variant])
        if same and (family.name, 0) in self._known:
            return self._known[family.name, 0]
        return of(family.whole(variant))


def _names(facts: Leaves) -> tuple[str, ...]:
    found = (value.decode() for fact, value in facts.items() if fact.startswith("gpu.devices[") and fact.endswith("].name"))
    return tuple(sorted({name.strip('"') for name in found if name[:1] == '"'}))


def _networks(facts: Leaves) -> tuple[str, ...]:
    """Return the interfaces and adapters, by name."""
    return tuple(sorted(fact for fact in facts if fact.startswith("network.") and fact.endswith("]") and fact.count("[") == 1))


def _devices(facts: Leaves) -> tuple[str, ...]:
    found = set()
    for fact, value in facts.items():
        if fact.endswith("].class") and value.decode().startswith(_GPU_CLASSES):
            row = fact.removesuffix(".class")
            vendor = facts.get(f"{row}.vendor", b"").decode()
            if vendor in _VENDORS:
                device = facts.get(f"{row}.device", b'"?"').decode().strip('"')
                found.add(f"{_VENDORS[vendor]} {device}")
    return tuple(sorted(found))
