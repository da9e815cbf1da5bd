"""Findings and report of the isolation by group tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torchtune_sys.model.numbers import counted
from torchtune_sys.model.preflight import Heat, IsolationReport, IsolationRound, Weight
from torchtune_sys.preflight.isolation.values import Domain, IsolationVerdict, Outcome
from torchtune_sys.preflight.joint.gathered import Gathered, GroupTests
from torchtune_sys.preflight.joint.judge import connections
from torchtune_sys.preflight.joint.judge.finding import JointFinding
from torchtune_sys.render.node_set import is_host_name, node_set

_CAUSE = "straggler-network"
_ROWS_AT_MOST = 64
_GROUPS_TOLD = 32
_TEXT_AT_MOST = 240


def findings(gathered: Gathered, cause: str, errors: str) -> Iterator[JointFinding]:
    """Yield the findings. ``cause`` and ``errors``: of the collective of all, where it failed."""
    found, tests = gathered.isolated, gathered.tests or GroupTests()
    if found is None:
        return
    rounds = counted(len(found.rounds), "round")
    behind = {unit: domain for domain in found.domains for unit in domain.units}
    rails = f" on rail {', '.join(map(str, found.on))}" if found.on else ""
    for node in found.nodes:
        where = f", as do those of all nodes behind {behind[node].kind} {behind[node].name}" if node in behind else ""
        seen = f"collectives that include it{rails} {_words(tests, errors, node)}{where}; the others do not ({rounds})"
        yield JointFinding(part="collectives", cause=cause, node=node, seen=seen)
    for one, other in found.pairs:
        way = _direction(tests, one, other)
        said = _words(tests, errors, one, other)
        seen = f"collectives between these two{rails} {said}; with other nodes both are fine ({rounds})"
        yield JointFinding(part="collectives", cause=cause, link=way, seen=seen)
    for one_part, other_part in found.between:
        seen = f"no collective between {_called(one_part)} and {_called(other_part)} passes; with the rest both pass ({rounds})"
        yield JointFinding(part="collectives", cause=_CAUSE, seen=seen)
    for rail in found.rails:
        seen = (
            f"rail {rail} (local rank {rail} of each node): no pair of nodes passes on it; on the other rails all pass ({rounds})"
        )
        yield JointFinding(part="collectives", cause=_CAUSE, seen=seen)
    yield from _unnamed(gathered, found, tests, errors)


def _unnamed(gathered: Gathered, found: IsolationVerdict, tests: GroupTests, errors: str) -> Iterator[JointFinding]:
    """Yield what accuses nobody: what fails at scale alone is a reason against the job, and nobody's fault; what is only slow then, or could not be named, is told."""
    if found.outcome not in (Outcome.ONLY_AT_SCALE, Outcome.SUSPECTS):
        return
    among = [gathered.name(node) for node in found.suspects]
    words = f"; suspects: {', '.join(among[:8])}{f' and {len(among) - 8} more' if len(among) > 8 else ''}" if among else ""
    is_slow = bool(found.rounds) and _is_only_slow(found, tests)
    said = "is slow" if is_slow else "fails"
    why = (
        f"the collective over all nodes {said}; {found.why} ({len(found.rounds)} rounds){words}{f': {errors}' if errors else ''}"
    )
    if found.outcome is Outcome.SUSPECTS and not any(each.failed for each in found.rounds):
        why = f"not all groups of nodes were tested: {found.why} ({len(found.rounds)} rounds)"
        yield JointFinding(part="collectives", cause="checker-fault", seen=why, weight=Weight.UNKNOWN)
    elif is_slow:
        yield JointFinding(part="collectives", cause=_CAUSE, seen=why, weight=Weight.WARNING)
    elif found.outcome is Outcome.ONLY_AT_SCALE:
        yield JointFinding(part="collectives", cause="fails-only-at-scale", seen=why)
    else:
        yield JointFinding(part="collectives", cause=_CAUSE, seen=why, weight=Weight.UNKNOWN)


def _is_only_slow(found: IsolationVerdict, tests: GroupTests) -> bool:
    """Whether no group failed but for being slow."""
    return all({*each.failed} <= {*run.slow} for each, run in zip(found.rounds, tests.rounds, strict=False)) and bool(
        tests.rounds
    )


def _words(tests: GroupTests, errors: str, *nodes: int) -> str:
    """Return what was seen of one node's ways, or of those between two."""
    told = next((error for pair, error in tests.errors.items() if {*nodes} <= {*pair}), "")
    ways = [seconds for way, seconds in tests.times.items() if way in tests.slow and {*nodes} <= {*way}]
    if tests.late and not told and not ways:
        return f"take {tests.late.seconds * 1e3:.0f} ms for {tests.late.what}"
    if told or not ways:
        return f"fail ({(told or errors)[:160]})"
    return f"take up to {max(ways) * 1e3:.3g} ms (usual {tests.usual_s * 1e3:.3g} ms, slow above {tests.limit_s * 1e3:.3g} ms)"


def _direction(tests: GroupTests, one: int, other: int) -> tuple[int, int]:
    """From the sender, where one direction alone is slow."""
    if (one, other) in tests.failed or (other, one) in tests.failed:
        return one, other
    return (other, one) if (other, one) in tests.slow and (one, other) not in tests.slow else (one, other)


def _called(domain: Domain) -> str:
    return f"{domain.kind} {domain.name}"


def explained(gathered: Gathered, finding: JointFinding) -> bool:
    """Return whether a bad link is one of those of a leaf switch that is cut off, or between two of them."""
    found = gathered.isolated
    if found is None or finding.link is None:
        return False
    one, other = finding.link
    off = [{*domain.units} for domain in found.domains]
    cuts = [({*first.units}, {*second.units}) for first, second in found.between]
    is_off = any((one in units) != (other in units) for units in off)
    return is_off or any(
        {one in first, other in first} == {True, False} and {one, other} <= first | second for first, second in cuts
    )


def refuted(gathered: Gathered, finding: JointFinding) -> bool:
    """Return whether an exchange shows that the tests which call a way delayed or narrow met a busy moment. Without an isolation that was asked for
    nothing does."""
    tests = gathered.tests
    if finding.link is None or tests is None:
        return False
    told = gathered.links.get(finding.link, [])
    if finding.cause == "link-delay":  # a whole exchange went there and back in less time than their best packet
        measured = [tests.times[way] for way in (finding.link, finding.link[::-1]) if way in tests.times]
        packets = [each.small_s for each in told if each.small_s is not None]
        return bool(measured and packets) and min(measured) < min(packets)
    rates, taken_s = [rate for each in told for rate in each.rates], tests.times.get(finding.link, 0.0)
    if finding.cause != "narrow-link" or not rates or not taken_s:
        return False
    # It carried more in a second than the way is said to carry at most, and as much as others do.
    return tests.sent / taken_s > max(rates) and taken_s * connections.NARROW < tests.usual_s


def report(gathered: Gathered) -> IsolationReport | None:
    """Return the isolation as the verdict has it; None where no groups were tested."""
    found, tests = gathered.isolated, gathered.tests
    if found is None or tests is None:
        return None
    seconds = sum(run.seconds for run in tests.rounds)
    parts = [_called(domain) for domain in found.domains]
    parts += [f"between {_called(one)} and {_called(other)}" for one, other in found.between]
    parts += [f"rail {rail}" for rail in found.rails]
    left_out = [gathered.name(node) for node in left_out_of(found)]
    return IsolationReport(
        outcome=found.outcome.value,
        nodes=tuple(gathered.name(node) for node in found.nodes),
        links=tuple((gathered.name(one), gathered.name(other)) for one, other in found.pairs),
        parts=tuple(parts),
        suspects=tuple(gathered.name(node) for node in found.suspects),
        why=found.why,
        rounds=tuple(_rounds(gathered, found, tests)),
        seconds=round(seconds, 2),
        node_seconds=round(seconds * len(gathered.members), 1),
        exclude=tuple(filter(is_host_name, left_out)),
        heat=_heat(gathered, tests),
    )


def _rounds(gathered: Gathered, found: IsolationVerdict, tests: GroupTests) -> Iterator[IsolationRound]:
    for each, run in zip(found.rounds, tests.rounds, strict=False):
        yield IsolationRound(
            number=each.number,
            purpose=each.purpose,
            groups=each.groups,
            nodes=each.units,
            seconds=round(run.seconds, 2),
            failed=tuple(_listed(gathered, group) for group in each.failed[:_GROUPS_TOLD]),
            slow=tuple(_listed(gathered, group) for group in run.slow[:_GROUPS_TOLD]),
        )


def _listed(gathered: Gathered, nodes: Iterable[int]) -> str:
    """Return names as a node list where all are host names, cut to what a report has room for."""
    names = [gathered.name(node) for node in nodes]
    listed = node_set(names) if all(map(is_host_name, names)) else ", ".join(names)
    return listed if len(listed) <= _TEXT_AT_MOST else f"{listed[: _TEXT_AT_MOST - 3]}..."


def left_out_of(found: IsolationVerdict) -> list[int]:
    """Return the nodes to leave out: bad nodes, of two leaves the smaller, and as few ends of bad links as are found simply.

    >>> left_out_of(IsolationVerdict(outcome=Outcome.NAMED, nodes=(7,), pairs=((0, 1), (0, 2), (3, 4))))
    [0, 4, 7]
    """
    out = {*found.nodes}
    for one, other in found.between:
        out |= {*min(one.units, other.units, key=lambda units: len({*units} - out))}
    open_ = [link for link in found.pairs if not out & {*link}]
    while open_:
        ends = Counter(end for link in open_ for end in link)
        worst = max(ends, key=lambda end: (ends[end], end))
        out.add(worst)
        open_ = [link for link in open_ if worst not in link]
    return sorted(out)


def _heat(gathered: Gathered, tests: GroupTests) -> Heat | None:
    nodes = sorted(gathered.members)
    if not tests.times and not tests.failed:
        return None
    size = -(-len(nodes) // _ROWS_AT_MOST)
    bins = [nodes[first : first + size] for first in range(0, len(nodes), size)]
    row = {node: place for place, each in enumerate(bins) for node in each}
    ms: list[list[float | None]] = [[None] * len(bins) for _ in bins]
    for (sender, receiver), seconds in tests.times.items():
        if sender in row and receiver in row:
            before = ms[row[sender]][row[receiver]] or 0.0
            ms[row[sender]][row[receiver]] = max(before, round(seconds * 1e3, 3))
    failed = {(row[one], row[other]) for link in tests.failed for one, other in (link, link[::-1]) if {one, other} <= {*row}}
    return Heat(
        labels=tuple(_listed(gathered, each) for each in bins),
        ms=tuple(map(tuple, ms)),
        failed=tuple(sorted(failed)),
        usual_ms=round(tests.usual_s * 1e3, 3),
        limit_ms=round(tests.limit_s * 1e3, 3),
    )
