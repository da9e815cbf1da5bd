"""What a verdict on a fault of network.py or hosts.py must say, and what is wrong with one that says something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from preflight.joint.cluster import Cluster, Run
from preflight.joint.faults import named
from preflight.joint.faults.computing import Plant

Way = tuple[str, str]
Verdict = dict[str, Any]


class Expected(NamedTuple):
    causes: tuple[str, ...] = ()
    """Any of these is right; of a fault without, whatever is said."""
    must: tuple[str, ...] = ()
    """Nodes that are named, as bad or absent."""
    may: tuple[str, ...] = ()
    """Nodes that may be named besides."""
    links: frozenset[Way] = frozenset()
    """Ways that may be named; where no node must be, one of them is."""
    verdicts: tuple[str, ...] = ("no-go",)
    words: tuple[str, ...] = ()
    """Each is said, small or capital, somewhere where a named node is told of."""
    bad: tuple[int, ...] = ()
    """Hosts whose own verdict does not count."""
    also: Callable[[Verdict], list[str]] = lambda _verdict: []
    """What else is wrong with a verdict."""


class Fault(NamedTuple):
    plant: Plant
    expected: Callable[[Cluster, int], Expected]
    place: int = 1
    held: bool = False
    """Planted once, when all else was mended."""


def problems(expected: Expected, found: Run) -> list[str]:
    """Empty where every node that counts says what it must."""
    wrong = [f"left running: {each}" for each in found.left]
    for (number, _local), told in sorted(found.told.items()):
        if number in expected.bad:
            continue
        if not told.verdict:
            wrong.append(f"n{number} gave no verdict: {told.text[-200:]} {told.errors[-300:]}")
        else:
            wrong += [f"by n{number}: {words}" for words in _wrong(expected, told.verdict)]
    if not any(number not in expected.bad for number, _local in found.told):
        wrong.append("nobody ended in time")
    return wrong


def _wrong(expected: Expected, verdict: Verdict) -> list[str]:
    wrong = []
    blamed = {_short(name): causes for name, causes in named(verdict).items()}
    links = {(_short(link["from"]), _short(link["to"])): link["cause"] for link in verdict["links"]}
    if verdict["verdict"] == "unknown":  # then those are named that could not be judged
        blamed = {_short(node["node"]): set() for node in verdict["nodes"] if node["verdict"] == "unknown"}
    if verdict["verdict"] not in expected.verdicts:
        wrong.append(f"verdict {verdict['verdict']}")
    if verdict["verdict"] == "go":
        return wrong + expected.also(verdict)
    lacking, more = {*expected.must} - {*blamed}, {*blamed} - {*expected.must, *expected.may}
    if lacking and not (expected.links and {*links} and {*links} <= expected.links):
        wrong.append(f"not named: {sorted(lacking)}")
    if more:
        wrong.append(f"named: { {name: sorted(blamed[name]) for name in sorted(more)} }")
    if {*links} - expected.links or (
        expected.links and not expected.must and not (links or blamed or verdict["causes"]) and "go" not in expected.verdicts
    ):
        wrong.append(f"links {links}")
    causes = [*blamed.items(), *((way, {cause}) for way, cause in links.items())]
    wrong += [f"{where}: {sorted(told)}" for where, told in causes if expected.causes and told and not told & {*expected.causes}]
    said = " ".join(cause["seen"].lower() for node in verdict["nodes"] for cause in node["causes"])
    wrong += [f"does not say {word}" for word in expected.words if word.lower() not in said]
    return wrong + expected.also(verdict)


def _short(name: str) -> str:
    return name.partition(".")[0]
