"""Store the facts of many hosts in little memory: each distinct family of facts once, similar ones as differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from torchtune_sys.fleet.facts_file import MISSING
from torchtune_sys.fleet.leaves import KNOWN, Leaves, leaves
from torchtune_sys.host.input.limits import FACT_COST, HOST_COST, HOSTS_BUDGET
from torchtune_sys.model import codec

_Delta = dict[str, bytes | None]
SEEN_FROM_OUTSIDE = ("clock", "document")
"""Families that are no host's own: they tell of its clock and of its document, as whoever collects sees them."""
_FAMILIES_AT_MOST = 1000
"""Of all hosts; of one there are some twenty."""
_families = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Family:
    """All variants of one family. The first is held whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cost = 0
        """Bytes of memory that its variants take."""
        self.base: Leaves = {}
        self.deltas: list[_Delta] = []
        self._parts: dict[str, bytes] = {}
        self._leaves: dict[str, Leaves] = {}
        self._variants: dict[bytes, int] = {}
        self._values: dict[bytes, bytes] = {}
        self._last: dict[str, tuple[bytes, Leaves]] = {}

    def add(self, raw: bytes) -> int:
        """Return the number of the variant. Raises ValueError."""
        known = self._variants.get(raw)
        if known is None:
            known = self._variants[raw] = self._new(raw)
            self.cost += len(raw) + FACT_COST * (1 + len(self.deltas[known] or self.base))
        return known

    def get(self, variant: int, fact: str) -> bytes | None:
        delta = self.deltas[variant]
        return delta[fact] if fact in delta else self.base.get(fact)

    def whole(self, variant: int) -> Leaves:
        merged = {**self.base, **self.deltas[variant]}
        return {fact: value for fact, value in merged.items() if value is not None}

    def _new(self, raw: bytes) -> int:
        try:
            parts = {name: bytes(part) for name, part in _families.decode(raw).items()}
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if not self.deltas:
            self._parts = parts
            self._leaves = {name: self._of_part(name, part) for name, part in parts.items()}
            self.base = {fact: value for found in self._leaves.values() for fact, value in found.items()}
            if MISSING not in parts or self.base.get(self.name) is None:
                self.base[self.name] = KNOWN
            self.deltas.append({})
        else:
            self.deltas.append(self._delta(parts))
        return len(self.deltas) - 1

    def _delta(self, parts: dict[str, bytes]) -> _Delta:
        before: Leaves = {}
        after: Leaves = {}
        for name in {*self._parts, *parts}:
            part = parts.get(name)
            if part != self._parts.get(name):
                before.update(self._leaves.get(name, {}))
                after.update(self._of_part(name, part) if part is not None else {})
        after.setdefault(self.name, KNOWN)
        before.setdefault(self.name, self.base[self.name])
        delta: _Delta = dict.fromkeys(before.keys() - after.keys())
        delta.update((fact, value) for fact, value in after.items() if before.get(fact) != value)
        return delta

    def _of_part(self, name: str, part: bytes) -> Leaves:
        last = self._last.get(name)
        if last is not None and last[0] == part:
            return last[1]
        found = leaves({name: codec.loads(part)}, self.name)
        if found.get(self.name) == KNOWN:
            del found[self.name]
        shared = self._values
        result = {fact: shared.setdefault(value, value) for fact, value in found.items()}
        self._last[name] = (part, result)
        return result


class HostFacts(msgspec.Struct, kw_only=True):
    """One host: which variant of each family it has."""

    name: str
    file: str
    variants: dict[str, int]
    findings: dict[str, tuple[str, ...]] = {}
    """What check found there: severity → rules."""
    variables: str = ""
    """Which variables were looked for there (:func:`looked_for`), where the file tells."""
    weights: dict[str, str] = {}
    """Of facts that no rule of ours reads, as the file tells them (a report's own severities)."""
    epoch_s: float | None = None
    """When its document was made, where that tells (Unix)."""
    teller: str = ""
    """The file, or the host that was asked, that tells of it."""

    @property
    def told(self) -> set[str]:
        """Return the families that the host itself tells of."""
        return {*self.variants} - {*SEEN_FROM_OUTSIDE}


class Store:
    """Hosts in the order in which they came."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}
        self.hosts: list[HostFacts] = []

    def add(self, name: str, file: str, facts: Mapping[str, bytes], **more: Any) -> None:
        """Add a document. Raises ValueError; nothing is added then."""
        if len(self.families) + len(facts) > _FAMILIES_AT_MOST and len(self.families.keys() | facts.keys()) > _FAMILIES_AT_MOST:
            raise ValueError(f"has more than {_FAMILIES_AT_MOST:,} families of facts")
        if HOST_COST * len(self.hosts) + sum(family.cost for family in self.families.values()) > HOSTS_BUDGET:
            raise ValueError(f"is left out: the hosts before it fill {HOSTS_BUDGET >> 20} MiB of memory")
        variants = {family: self._family(family).add(raw) for family, raw in facts.items()}
        self.hosts.append(HostFacts(name=name, file=file, variants=variants, **more))

    def note(self, host: HostFacts, family: str, raw: bytes) -> None:
        """Add facts that are not the host's own, but were seen from outside."""
        host.variants[family] = self._family(family).add(raw)

    def _family(self, name: str) -> Family:
        if name not in self.families:
            self.families[name] = Family(name)
        return self.families[name]

    def get(self, host: int, fact: str) -> bytes | None:
        """Return the value as JSON; None where the host has no such fact."""
        family = _family_of(fact)
        variant = self.hosts[host].variants.get(family)
        return None if variant is None else self.families[family].get(variant, fact)

    def facts(self, host: int) -> Iterator[tuple[str, bytes]]:
        for family, variant in self.hosts[host].variants.items():
            yield from self.families[family].whole(variant).items()


def _family_of(fact: str) -> str:
    return fact.partition(".")[0].partition("[")[0]
