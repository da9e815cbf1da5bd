"""The hosts and looks of pasted texts, compared by the engine of ``compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from torchtune_sys.diagnosis.facts import ReportedHost
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.fleet.comparing import Comparing, without_secrets
from torchtune_sys.fleet.difference_causes import cause_of, must_be_alike
from torchtune_sys.fleet.facts_file import MISSING, facts
from torchtune_sys.fleet.kinds import kinds
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.model.comparison import Comparison
from torchtune_sys.model.diagnosis import FactDifference, FactValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_AT_MOST = 24
_NO_READERS = Readers(())
"""What a difference weighs is said by what it stands for; asking the code of all rules takes as long as reading the text."""
_HOSTS = 64


def compared(reported: Sequence[ReportedHost], alone: bool) -> tuple[list[FactDifference], list[Symptom]]:
    """Return in what the hosts differ, and a host before and after; ``alone``: no program names a cause, so that the difference may be one."""
    nodes = list({each.host: each for each in reported if each.is_node and not each.is_past}.values())[:_HOSTS]
    between = _among(nodes) if len(nodes) > 1 else []
    changes = [change for was, now in _pairs(reported) for change in _pair(was, now)]
    found = sorted([*between, *changes], key=lambda each: not must_be_alike(each.fact))
    return found[:_AT_MOST], _symptoms(nodes, between) if alone else []


def _pairs(reported: Sequence[ReportedHost]) -> list[tuple[ReportedHost, ReportedHost]]:
    """Each look at a host with the next one: of one host, and of one that nobody names."""
    pairs = []
    for at, now in enumerate(reported):
        earlier = [was for was in reported[:at] if was.look and now.look and was.host == now.host and was.source == now.source]
        if earlier:
            pairs.append((earlier[-1], now) if not now.is_past or earlier[-1].is_past else (now, earlier[-1]))
    return pairs


def _among(nodes: Sequence[ReportedHost]) -> list[FactDifference]:
    store = _store(nodes, [each.host for each in nodes])
    by_kind = kinds(store)
    if len(by_kind) > 1:
        named = {store.hosts[host].name: kind for kind, hosts in by_kind.items() for host in hosts}
        return [FactDifference(fact="kind", values=tuple(FactValue(where=name, value=kind) for name, kind in named.items()))]
    found = _comparison(store)
    differing: dict[str, dict[str, Any]] = {}
    usual: dict[str, Any] = {}
    for odd in found.odd:
        differing.setdefault(odd.fact, {})[odd.host] = odd.value
        usual[odd.fact] = odd.usual
    for group in found.groups:
        for fact in group.facts:
            differing.setdefault(fact.fact, {}).update(dict.fromkeys(group.hosts, fact.value))
    return [
        FactDifference(fact=fact, values=shown)
        for fact, values in differing.items()
        if len(shown := _of_nodes(nodes, values, usual.get(fact))) > 1 and _is_in_all(fact, [each.value for each in shown])
    ]


def _of_nodes(nodes: Sequence[ReportedHost], values: Mapping[str, Any], usual: Any) -> tuple[FactValue, ...]:
    reported = ((node.host, values.get(node.host, usual)) for node in nodes)
    return tuple(FactValue(where=host, value=value) for host, value in reported if value is not None)


def _pair(was: ReportedHost, now: ReportedHost) -> list[FactDifference]:
    found = _comparison(_store([was, now], ["1", "2"]))
    return [
        FactDifference(
            fact=odd.fact, values=(FactValue(where=was.look, value=odd.usual), FactValue(where=now.look, value=odd.value))
        )
        for odd in found.odd
        if _is_in_all(odd.fact, [odd.usual, odd.value])
    ]


def _is_in_all(fact: str, values: Sequence[Any]) -> bool:
    """Whether each text tells it: what one of them lacks may only not have been pasted."""
    return cause_of(fact) is not None and not any(
        value is None or (isinstance(value, dict) and MISSING in value) for value in values
    )


def _store(reported: Sequence[ReportedHost], names: Sequence[str]) -> Store:
    store = Store()
    for each, name in zip(reported, names, strict=True):
        store.add(name, "", {family: _encode(value) for family, value in facts(each.snapshot).items()})
    return store


def _comparison(store: Store) -> Comparison:
    """Of two the first is the usual one."""
    comparing = Comparing(store, _NO_READERS)
    return without_secrets(comparing.against(0) if len(store.hosts) == 2 else comparing.among_themselves())


def _symptoms(nodes: Sequence[ReportedHost], found: Sequence[FactDifference]) -> list[Symptom]:
    by_cause: dict[str, list[FactDifference]] = {}
    for difference in found:
        by_cause.setdefault(cause_of(difference.fact) or "", []).append(difference)
    return [_symptom(nodes[0].source, cause, differences) for cause, differences in by_cause.items() if cause]


def _symptom(source: str, cause: str, found: Sequence[FactDifference]) -> Symptom:
    words = [f"{each.fact}: " + ", ".join(f"{one.value} on {one.where}" for one in each.values) for each in found]
    text = "; ".join(words)
    weight = LIKELY if any(must_be_alike(each.fact) for each in found) else POSSIBLE
    return Symptom(
        source=source,
        line=LogLine(number=0, text=text, printed=text),
        candidates=(Candidate(cause=cause, weight=weight),),
        program="torchtune-sys compare",
        words="torchtune-sys compare",
    )
