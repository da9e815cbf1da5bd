"""Fleets as operators have them, made of recorded hosts of several kinds: which host ``compare`` must name, with which facts, and which it must not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from made_hosts import READERS, Change, noisy

from torchtune_sys import engine
from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import document
from torchtune_sys.fleet.reading import read
from torchtune_sys.fleet.store import Store
from torchtune_sys.model.comparison import Comparison, DifferenceWeight
from torchtune_sys.model.rule import Severity, Verdict
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.rules import CATALOGUE

Raw = dict[str, Any]
"""Sections of the recording that are others: what is changed before anything is read."""


class Fleet(NamedTuple):
    hosts: tuple[tuple[str, int], ...]
    """Recorded host, and how many are made of it."""
    changes: Mapping[Iterable[int], tuple[Change | Raw, ...]] = {}
    """By the numbers of the hosts."""
    odd: Mapping[int, tuple[str, ...]] = {}
    """Host → parts of facts that must be told of it; no other host may be odd."""
    groups: tuple[int, ...] = ()
    """Sizes of the groups that must be told; () where none may."""
    apart: tuple[int, ...] = ()
    """Hosts that must be told as not compared."""
    found: Mapping[str, tuple[int, ...]] = {}
    """Rule → hosts of which check found it, where findings are written at all."""
    light: bool = False
    """Whether differences that no rule reads may be told of any host."""
    names: Mapping[int, str] = {}
    ages_days: Mapping[int, float] = {}


def line(recorded: str, number: int, changes: Iterable[Change | Raw], fleet: Fleet) -> bytes:
    """The facts file of one host."""
    raw = [change for change in changes if isinstance(change, dict)]
    overlay: dict[str, Any] = {
        section: {key: value for one in raw for key, value in one.get(section, {}).items()} for one in raw for section in one
    }
    snapshot = noisy(number, name=recorded, **overlay)
    for change in changes:
        if not isinstance(change, dict):
            change(snapshot["facts"])
    seen = from_json(snapshot)
    found: dict[str, list[str]] = {}
    for result in engine.judge(seen, CATALOGUE) if fleet.found else ():
        if result.verdict is Verdict.FAIL and result.rule.severity is Severity.ERROR:
            found.setdefault(result.rule.severity.value, []).append(result.rule.id)
    volatile = {
        "host": fleet.names.get(number, f"node-{number:05d}"),
        "epoch_s": 1.8e9 - 86400.0 * fleet.ages_days.get(number, 0),
        "findings": found,
    }
    return document(seen, version="0", volatile=volatile).encode()


def lines(fleet: Fleet) -> list[bytes]:
    kinds = [recorded for recorded, count in fleet.hosts for _ in range(count)]
    return [
        line(recorded, number, [change for hosts, made in fleet.changes.items() if number in hosts for change in made], fleet)
        for number, recorded in enumerate(kinds)
    ]


def compared(fleet: Fleet) -> Comparison:
    """What compare says of a folder with a file for each host."""
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(lines(fleet)):
            (Path(folder) / f"{number:05d}.json").write_bytes(each)
        made = Store()
        unread = read([folder], made)
        return Comparing(made, READERS).among_themselves(unread)


def _plain(host: str) -> str:
    """The name without the file that is told beside one that is there twice."""
    return host.partition(" (")[0]


def wrong(fleet: Fleet, found: Comparison | None = None) -> list[str]:
    """What compare says that it must not, or does not say that it must."""
    found = found or compared(fleet)
    names = {number: fleet.names.get(number, f"node-{number:05d}") for number in range(sum(count for _, count in fleet.hosts))}
    told = [(_plain(item.host), item.fact) for item in found.odd if not (fleet.light and item.weight is DifferenceWeight.NOISE)]
    wrong = [
        f"node {number}: nothing of {part}: {sorted(fact for host, fact in told if host == names[number])[:6]}"
        for number, parts in fleet.odd.items()
        for part in parts
        if not any(host == names[number] and part in fact for host, fact in told)
    ]
    accused = sorted(
        {(host, fact) for host, fact in told} - {pair for pair in told if pair[0] in {names[number] for number in fleet.odd}}
    )
    wrong += [f"accused: {host}: {fact}" for host, fact in accused[:5]]
    sizes = sorted(
        {tuple(len(group.hosts) for group in found.groups if group.division == number) for number in _divisions(found)}
    )
    if sizes != ([fleet.groups] if fleet.groups else []) and not fleet.light:
        wrong.append(f"groups {sizes}, not {fleet.groups}: {[fact.fact for group in found.groups for fact in group.facts][:8]}")
    wrong += [f"various: {item.fact}" for item in found.various if not (fleet.light and item.weight is DifferenceWeight.NOISE)][
        :3
    ]
    apart = {item.host for item in found.incomparable}
    if apart != {names[number] for number in fleet.apart}:
        wrong.append(f"not compared: {sorted(apart)}, not {fleet.apart}")
    for rule, hosts in fleet.found.items():
        said = {host for item in found.findings if item.rule == rule for host in item.hosts}
        if said != {names[number] for number in hosts}:
            wrong.append(f"check found {rule} on {sorted(said)}")
    return wrong


def _divisions(found: Comparison) -> set[int]:
    return {group.division for group in found.groups}
