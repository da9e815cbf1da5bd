"""What differs between hosts: against what is usual among them, a golden one, or what each was before.

The work grows with what differs, not with hosts times facts: a fact of a family is looked at only where some host's family differs
from the first one's, and hosts with the same family are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from torchtune_sys.fleet.divisions import Divided, divide
from torchtune_sys.fleet.kinds import kinds
from torchtune_sys.fleet.leaves import KNOWN
from torchtune_sys.fleet.left_out import ASKED_FOR
from torchtune_sys.fleet.spread import BROKEN, CLOSED, NOT_THERE, UNSEEN, Spread, are_alike, spread
from torchtune_sys.fleet.store import Family, HostFacts, Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.host.environment import secret_name
from torchtune_sys.host.secrets.filter import scrubbed, scrubbed_arguments, scrubbed_data
from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model.comparison import (
    GONE,
    Comparison,
    DifferenceWeight,
    Group,
    GroupFact,
    HostFinding,
    Incomparable,
    Kind,
    Odd,
    Unread,
    Various,
)

_RULES_SHOWN = _FAMILIES_SHOWN = _CLOSED_SHOWN = 3
_FEW_TELL = 8
"""Where most hosts do not tell a fact, so many must for one of them to be odd."""
_VARIABLE = "session.env["
"""A variable that a release did not look for may have been set: where it is none, one of the same release must have told it."""
_RULES = "check.rules"
"""Of a report: which rules there are is the tool's, and which are judged is said by --select."""
_SEEN_AS = {"clock.offset_s": "hardware.clock_synchronised"}
"""A fact that is seen from outside → the host's own fact of the same thing, which the rules read."""


class Comparing:
    """The hosts of a store, and what their differences weigh."""

    def __init__(self, store: Store, readers: Readers) -> None:
        self._store = store
        self._readers = readers
        self._odd: list[Odd] = []
        self._incomparable: list[Incomparable] = []
        self._closed: dict[int, list[str]] = {}

    def among_themselves(self, unread: tuple[Unread, ...] = ()) -> Comparison:
        """Compare each kind of hosts by itself, against what is usual there."""
        found = kinds(self._store)
        groups: list[Group] = []
        various: list[Various] = []
        shown: list[Kind] = []
        for name, hosts in found.items():
            if len(hosts) == 1 and len(self._store.hosts) > 1:
                self._alone(hosts[0], name, found)
                continue
            told = Counter(family for host in hosts for family in self._store.hosts[host].told)
            alone = {host for host in hosts if len(hosts) > 1 and all(told[name] < 2 for name in self._store.hosts[host].told)}
            self._incomparable += [
                Incomparable(host=self._name(host), why=f"tells nothing that another host does ({self._held(host)})")
                for host in alone
            ]
            hosts = [host for host in hosts if host not in alone]
            if hosts:
                shown.append(Kind(name=name, hosts=len(hosts)))
                self._of_kind(hosts, groups, various)
        return self._whole("majority", unread, tuple(shown), groups, various)

    def against(self, golden: int, unread: tuple[Unread, ...] = ()) -> Comparison:
        """Compare all hosts with one."""
        found = kinds(self._store)
        own = next(name for name, hosts in found.items() if golden in hosts)
        for name, hosts in found.items():
            for host in hosts if name != own else ():
                self._incomparable.append(Incomparable(host=self._name(host), why=f"{name}; the golden one is {own}"))
        compared = [host for host in found[own] if host != golden and self._pair(host, golden)]
        return self._whole("golden", unread, (Kind(name=own, hosts=len(compared)),), [], [], left_out=1)

    def before(self, count: int, unread: tuple[Unread, ...] = ()) -> Comparison:
        """Compare each host with the one of the same name among the first ``count``, which are how hosts were before."""
        earlier = {self._store.hosts[host].name: host for host in range(count)}
        later = range(count, len(self._store.hosts))
        compared = 0
        for host in later:
            was = earlier.pop(self._store.hosts[host].name, None)
            if was is None:
                self._incomparable.append(Incomparable(host=self._name(host), why="was not there before"))
                continue
            compared += self._pair(host, was)
        self._incomparable += [Incomparable(host=name, why=GONE) for name in earlier]
        return self._whole("before", unread, (Kind(name="hosts that were there before", hosts=compared),), [], [], left_out=count)

    def _whole(
        self,
        against: str,
        unread: tuple[Unread, ...],
        shown: tuple[Kind, ...],
        groups: Sequence[Group],
        various: Sequence[Various],
        left_out: int = 0,
    ) -> Comparison:
        hosts = self._store.hosts[left_out:] if against == "before" else self._store.hosts
        return Comparison(
            hosts=len(self._store.hosts) - left_out,
            against=against,
            kinds=shown,
            odd=tuple(sorted(self._odd, key=lambda item: (item.weight.rank, item.fact, item.host))),
            groups=tuple(groups),
            various=tuple(sorted(various, key=lambda item: (item.weight.rank, item.fact))),
            incomparable=tuple(sorted(self._incomparable, key=lambda item: item.host)),
            unread=(
                *unread,
                *(Unread(name=self._name(host), why=_closed(facts), partly=True) for host, facts in self._closed.items()),
            ),
            findings=findings(hosts),
        )

    def _alone(self, host: int, kind: str, found: dict[str, list[int]]) -> None:
        others = ", ".join(f"{len(hosts)} × {name}" for name, hosts in list(found.items())[:3] if name != kind)
        self._incomparable.append(Incomparable(host=self._name(host), why=f"the only one of its kind ({kind}); others: {others}"))

    def _held(self, host: int) -> str:
        families = sorted(self._store.hosts[host].told)
        return ", ".join(families[:_FAMILIES_SHOWN]) + (" …" if len(families) > _FAMILIES_SHOWN else "")

    def _name(self, host: int) -> str:
        return self._store.hosts[host].name

    # Against what is usual

    def _of_kind(self, hosts: list[int], groups: list[Group], various: list[Various]) -> None:
        divided: dict[str, tuple[Spread, dict[int, bytes]]] = {}
        for family in self._store.families.values():
            for fact, values in _different(family, self._store.hosts, hosts):
                known = {host: value for host, value in values.items() if value not in UNSEEN}
                half = 2 * len(known) == len(hosts) and not BROKEN.isdisjoint(values.values())
                if 2 * len(known) <= len(hosts) and not half:
                    if len(known) < _FEW_TELL or len(set(known.values())) < 2:
                        continue
                    values = known  # most hosts do not tell, as who looked might not: those that do are compared
                found = spread(fact, _counts(known))
                if found.groups:
                    divided[fact] = (found, values)
                elif found.usual is None:
                    various.append(Various(fact=fact, values=found.various, hosts=len(known), weight=self._weight(fact, hosts)))
                else:
                    self._note(fact, values, found.usual, found.alike)
        first = max((group.division for group in groups), default=0)
        for number, one in enumerate(divide(divided, len(hosts)), first + 1):
            self._note_division(one, divided)
            groups += [self._group(number, one, place) for place in range(len(one.groups))]

    def _note(self, fact: str, values: dict[int, bytes], usual: bytes, alike: dict[bytes, bytes]) -> None:
        for host, value in values.items():
            if alike.get(value, value) != usual:
                self._note_one(host, fact, value, usual)

    def _note_one(self, host: int, fact: str, value: bytes, usual: bytes) -> None:
        """Note that a host is odd; facts at which who looked might not are told together: that is no property of the host."""
        if value in CLOSED and "." in fact:
            self._closed.setdefault(host, []).append(fact)
        else:
            self._odd.append(self._one(host, fact, value, usual))

    def _note_division(self, one: Divided, divided: dict[str, tuple[Spread, dict[int, bytes]]]) -> None:
        """Note a division: a host that has another value than its own group is odd."""
        for fact in one.facts:
            found, values = divided[fact]
            for host, value in values.items():
                usual = one.values[one.member[host]][fact]
                if found.alike.get(value, value) != usual:
                    self._note_one(host, fact, value, usual)

    def _group(self, number: int, one: Divided, place: int) -> Group:
        facts = [
            GroupFact(fact=fact, value=msgspec.json.decode(value), weight=self._weight(fact, one.groups[place]))
            for fact, value in one.values[place].items()
        ]
        return Group(
            division=number,
            hosts=tuple(self._name(host) for host in one.groups[place]),
            facts=tuple(sorted(facts, key=lambda item: (item.weight.rank, item.fact))),
        )

    # Against another host

    def _pair(self, host: int, other: int) -> bool:
        """Compare two hosts; False where nothing is told of both."""
        one, two = self._store.hosts[host], self._store.hosts[other]
        if one.told.isdisjoint(two.told):
            why = f"tells nothing that the other one does ({self._held(host)}; the other one: {self._held(other)})"
            self._incomparable.append(Incomparable(host=self._name(host), why=why))
            return False
        for name, family in self._store.families.items():
            now, then = one.variants.get(name), two.variants.get(name)
            if now is None or then is None or now == then:
                continue
            delta, was = family.deltas[now], family.deltas[then]
            for fact in {**delta, **was}:
                value, usual = value_seen(family, now, fact), value_seen(family, then, fact)
                if value is None or usual is None or usual in UNSEEN or are_alike(fact, value, usual):
                    continue
                if fact.startswith(_VARIABLE) and NOT_THERE in (value, usual) and one.variables != two.variables:
                    continue
                self._note_one(host, fact, value, usual)
        return True

    # What a difference weighs

    def _one(self, host: int, fact: str, value: bytes, usual: bytes) -> Odd:
        rules = self._readers.of(_SEEN_AS.get(fact, fact))
        return Odd(
            host=self._name(host),
            fact=fact,
            value=msgspec.json.decode(value),
            usual=msgspec.json.decode(usual),
            weight=self._weight(fact, (host,)),
            rules=tuple(rule.id for rule in rules[:_RULES_SHOWN]),
        )

    def _weight(self, fact: str, hosts: Iterable[int]) -> DifferenceWeight:
        for host in hosts:
            weight = self._store.hosts[host].weights.get(fact)
            if weight is not None:
                return DifferenceWeight(weight) if weight in {item.value for item in DifferenceWeight} else DifferenceWeight.NOISE
        return self._readers.weight(_SEEN_AS.get(fact, fact))


def _closed(facts: Sequence[str]) -> str:
    shown = ", ".join(facts[:_CLOSED_SHOWN]) + (" …" if len(facts) > _CLOSED_SHOWN else "")
    return f"{len(facts)} fact{'s' if len(facts) != 1 else ''} of others could not be read there without a privilege ({shown})"


def _different(family: Family, all_hosts: Sequence[HostFacts], hosts: Sequence[int]) -> Iterable[tuple[str, dict[int, bytes]]]:
    """Each fact that some host has otherwise, with its value on every host that has or might have it."""
    by_variant: dict[int, list[int]] = {}
    for host in hosts:
        variant = all_hosts[host].variants.get(family.name)
        if variant is not None:
            by_variant.setdefault(variant, []).append(host)
    if len(by_variant) < 2:
        return
    facts = dict.fromkeys(fact for variant in by_variant for fact in family.deltas[variant])
    for fact in facts:
        values: dict[int, bytes] = {}
        for variant, same in by_variant.items():
            value = value_seen(family, variant, fact)
            if value is not None:
                values.update(dict.fromkeys(same, value))
        if fact.startswith(_VARIABLE):
            told = {all_hosts[host].variables for host, value in values.items() if value != NOT_THERE}
            values = {host: value for host, value in values.items() if value != NOT_THERE or all_hosts[host].variables in told}
        if len(set(values.values())) > 1:
            yield fact, values


def value_seen(family: Family, variant: int, fact: str) -> bytes | None:
    """Return the value; ``null`` for an entry that is not in a list that is there; None where the file does not tell."""
    value = family.get(variant, fact)
    if value is not None or not fact.endswith("]"):
        return value
    held_by = _list_of(fact)
    return NOT_THERE if held_by not in (*ASKED_FOR, _RULES) and family.get(variant, held_by) == KNOWN else None


def _list_of(fact: str) -> str:
    """
    >>> _list_of("network.interfaces[eth0].addresses[inet #2]"), _list_of("session.env[A[0]]")
    ('network.interfaces[eth0].addresses', 'session.env')
    """
    depth = 0
    for place in range(len(fact) - 1, -1, -1):
        depth += (fact[place] == "]") - (fact[place] == "[")
        if depth == 0:
            return fact[:place]
    return fact


def _counts(known: dict[int, bytes]) -> dict[bytes, int]:
    return dict(Counter(known[host] for host in sorted(known)))


def heavy(found: Comparison, least: DifferenceWeight) -> Comparison:
    """Return the same without what is lighter."""
    if least is DifferenceWeight.NOISE:
        return found
    facts = [
        msgspec.structs.replace(group, facts=tuple(fact for fact in group.facts if fact.weight.rank <= least.rank))
        for group in found.groups
    ]
    return msgspec.structs.replace(
        found,
        odd=tuple(item for item in found.odd if item.weight.rank <= least.rank),
        groups=tuple(group for group in facts if group.facts),
        various=tuple(item for item in found.various if item.weight.rank <= least.rank),
        findings=tuple(item for item in found.findings if item.weight.rank <= least.rank),
    )


def without_secrets(found: Comparison) -> Comparison:
    """Return the same as it may be shown: facts files and snapshots may have been made by others than this tool, which hides what it reads."""

    def hidden(fact: str, value: Any) -> Any:
        name = fact.rpartition("[")[2].rstrip("]")
        if isinstance(value, str) and secret_name(name):
            return HIDDEN
        scrub = scrubbed_arguments if fact.startswith("system.cmdline") else scrubbed
        return scrubbed_data(value, lambda text: scrubbed(scrub(text)))

    replace = msgspec.structs.replace
    return replace(
        found,
        odd=tuple(replace(item, value=hidden(item.fact, item.value), usual=hidden(item.fact, item.usual)) for item in found.odd),
        groups=tuple(
            replace(group, facts=tuple(replace(each, value=hidden(each.fact, each.value)) for each in group.facts))
            for group in found.groups
        ),
        unread=tuple(replace(item, why=scrubbed(item.why)) for item in found.unread),
    )


def findings(hosts: Iterable[HostFacts]) -> tuple[HostFinding, ...]:
    """Return what check found, by rule, the heaviest first; a host counts once, however often it says so."""
    found: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        for severity, rules in host.findings.items():
            for rule in dict.fromkeys(rules):
                found.setdefault((rule, severity), []).append(host.name)
    known = {item.value for item in DifferenceWeight}
    made = [
        HostFinding(
            rule=rule, weight=DifferenceWeight(severity) if severity in known else DifferenceWeight.NOISE, hosts=tuple(names)
        )
        for (rule, severity), names in found.items()
    ]
    return tuple(sorted(made, key=lambda item: (item.weight.rank, -len(item.hosts), item.rule)))
