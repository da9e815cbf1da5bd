"""Find bad links, and nodes that explain them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from statistics import median

from torchtune_sys.model.numbers import counted
from torchtune_sys.preflight.isolation.usual_times import Way, believable, usual
from torchtune_sys.preflight.joint.gathered import Gathered, LinkTest
from torchtune_sys.preflight.joint.judge import losses
from torchtune_sys.preflight.joint.judge.finding import JointFinding

LOSS, HEAVY_LOSS = 0.01, 0.1
"""A healthy network of a cluster loses fewer than one packet in a thousand; of 200 datagrams 1 % is two. From 10 % on TCP waits for seconds now and then."""
DELAY_TIMES, DELAY_S = 5.0, 0.001
"""How far the least time of 20 lies above the median of all, at least."""
NARROW, NARROW_WHERE_NOISY = 0.6, 0.35
"""Of the usual rate: on a quiet network, and where two runs in a row differ much, as on hosts whose CPUs are busy."""
_NOISES = 4.0
_DAMAGED = "silent-data-corruption"
_OF_LOSS = ("port-dropped", "mtu-black-hole", "link-delay", "narrow-link")
"""What the way back of one that loses much may look like."""
_WORDS = {
    "port-refused": "connections to a listening port are refused",
    "port-dropped": "connections are neither made nor refused",
    "link-one-way-drop": "nothing arrives in this direction; the other direction works",
    "mtu-black-hole": "small packets arrive, messages larger than the MTU do not",
}
_CUT = {
    "reset": ("port-refused", "an open connection is reset in the middle of a transfer, as a firewall does"),
    "silent": ("port-dropped", "an open connection goes silent in the middle of a transfer: nothing more arrives"),
}
_RESENT = 3
"""Small packets of one connection, of 20: a busy host may be late by a time-out of 200 ms once."""
_LEAST_SEGMENT = 500
"""Bytes: what every host takes is 536 (RFC 9293, 3.7.1), less the options of TCP."""
_FLOWS_LOST = 2
"""Connections of those at the same time that fail while the others are made: one may be lost, at a busy host, too."""


def causes(gathered: Gathered) -> dict[Way, tuple[str, str]]:
    """Return what is wrong with each way, as every test of it shows, or as a single one that was damaged; and what was seen."""
    tests = {way: found for way, found in gathered.links.items() if found}
    usual_s = usual({way: test.small_s for way, test in _first_tests(gathered).items() if test.small_s})
    narrower_than = least_rate(gathered)
    found: dict[Way, tuple[str, str]] = {}
    for way, each in tests.items():
        told = [_cause(test, _last(tests, (way[1], way[0])), usual_s, narrower_than) for test in each]
        if damaged := sum(test.damaged for test in each):
            found[way] = (
                _DAMAGED,
                f"in {damaged} of {sum(len(test.rates) for test in each)} transfers the data that arrived is not what was sent",
            )
        elif all(told):
            agreed = told[-1]
            assert agreed is not None
            found[way] = agreed
    heavy = {way for way, (cause, _seen) in found.items() if cause == "packet-loss" and all(map(loses_much, tests[way]))}
    return _without_echoes(found, heavy)


def _first_tests(gathered: Gathered) -> dict[Way, LinkTest]:
    """Each way has one, beside the same others: so these tell what is usual. Where nodes share CPUs a healthy way is several times as fast while less
    runs beside it, and all that were not asked again would look narrow."""
    return {way: found[0] for way, found in gathered.links.items() if found}


def _first_rates(gathered: Gathered) -> dict[Way, float]:
    """Return the best of each way, in bytes per second."""
    return {way: max(test.rates) for way, test in _first_tests(gathered).items() if test.rates}


def least_rate(gathered: Gathered) -> float:
    """Return the bytes per second from which on a way is not narrow."""
    return usual(_first_rates(gathered), more_is_better=True) * _narrow(gathered)


def noisy_links(gathered: Gathered) -> list[Way]:
    """Return the ways whose rate is worth measuring again once the CPUs are free: all that look well, where two runs in a row or different ways differ much."""
    if not _first_rates(gathered) or _narrow(gathered) >= NARROW:
        return []
    suspected = causes(gathered)
    return [way for way, tests in gathered.links.items() if tests and tests[0].rates and way not in suspected]


def _last(tests: Mapping[Way, list[LinkTest]], way: Way) -> LinkTest | None:
    return tests[way][-1] if way in tests else None


def _cause(test: LinkTest, back: LinkTest | None, usual_s: float, least_rate: float) -> tuple[str, str] | None:
    loss = test.loss
    cause = _unconnected(test, back) if test.connect != "ok" and not loses_much(test) else None
    if cause:
        return cause, _some_connect(test) or f"{_WORDS[cause]} ({test.connect})"
    if loss is not None and loss >= LOSS and test.arrived:
        return "packet-loss", f"{test.sent - test.arrived} of {test.sent} datagrams were lost"
    if words := _some_connect(test):
        return "port-dropped", words
    if test.cut in _CUT:
        return _CUT[test.cut]
    resent = max(test.resent, back.resent if back is not None else 0)
    if test.connect == "ok" and resent >= _RESENT and test.loss == 0 and (back is None or back.loss == 0):
        return (
            "packet-loss",
            f"{resent} small packets of a connection had to be sent again, while all datagrams arrived: what TCP marks or sets is dropped (ECN, net.ipv4.tcp_ecn; TCP options)",
        )
    if test.connect == "ok" and not test.is_short and (test.beyond is False or test.small_s is None):
        return "mtu-black-hole", _WORDS["mtu-black-hole"]
    if test.small_s is not None and test.small_s > max(DELAY_TIMES * usual_s, usual_s + DELAY_S):
        return "link-delay", f"{test.small_s * 1e3:.2f} ms round trip; others have {usual_s * 1e3:.2f} ms"
    if 0 < test.segment < _LEAST_SEGMENT:
        return (
            "narrow-link",
            f"a TCP segment has {test.segment} bytes, so that most of what is sent are headers (MTU or advmss of a route, clamping of the MSS)",
        )
    if test.control_rate:  # CPUs may be busier now than when the others were measured
        least_rate = min(least_rate, NARROW * test.control_rate)
    if test.rates and max(test.rates) < least_rate:
        return "narrow-link", f"{max(test.rates) / 1e6:.1f} MB/s; its peers have more than {least_rate / 1e6:.0f} MB/s"
    return None


def _some_connect(test: LinkTest) -> str:
    """Return what was seen where some of the connections are made and others, from other ports, are not; "" where that is not so."""
    tried, made = test.flows or (0, 0)
    if made + (test.connect == "ok") and tried - made >= _FLOWS_LOST:
        return f"{tried - made} of {tried} simultaneous connections fail: one of several paths to it is dead, or the number of connections is limited"
    return ""


def loses_much(test: LinkTest) -> bool:
    """Return whether so many packets get lost that connections fail now and then."""
    return bool(test.arrived) and test.connect != "refused" and (test.loss or 0.0) >= HEAVY_LOSS


def _narrow(gathered: Gathered) -> float:
    """Which part of the usual rate is too little, by how much two runs in a row differ, and how much connections do."""
    pairs = [test.rates[-2:] for test in _first_tests(gathered).values() if len(test.rates) > 1]
    noise = median([(max(rates) - min(rates)) / max(rates) for rates in pairs] or [1.0])
    best = believable(_first_rates(gathered), more_is_better=True)
    upper = sorted(best)[len(best) // 2 :]
    spread = median([abs(rate - median(upper)) / median(upper) for rate in upper] or [1.0])
    return min(NARROW, max(NARROW_WHERE_NOISY, 1 - _NOISES * max(noise, spread)))


def _unconnected(test: LinkTest, back: LinkTest | None) -> str:
    if test.connect == "refused":
        return "port-refused"
    arrives = None if test.arrived is None else test.arrived > 0
    comes_back = None if back is None or back.arrived is None else back.arrived > 0
    is_two_way = back is not None and back.connect == "ok"  # a connection needs both ways: then it is its ports
    if arrives is False and comes_back and not is_two_way:
        return "link-one-way-drop"
    return "port-dropped"


def _without_echoes(found: Mapping[Way, tuple[str, str]], heavy: Set[Way]) -> dict[Way, tuple[str, str]]:
    """TCP fails or is slow in both directions where one is cut, or loses much: only that one is named."""
    cut = {way for way, (cause, _seen) in found.items() if cause == "link-one-way-drop"}
    echoes = {way[::-1]: ("port-dropped", "packet-loss") for way in cut} | {way[::-1]: _OF_LOSS for way in heavy}
    return {way: told for way, told in found.items() if way in cut or told[0] not in echoes.get(way, ())}


_UNCONNECTED = ("link-one-way-drop", "port-dropped", "port-refused")
_PASSING = ("packet-loss", "link-delay", "narrow-link")
"""What a burst of other traffic or a busy CPU may look like for a moment."""
_SHARED = ("link-delay", "narrow-link")
"""What other tests at the same time may look like."""
_AGAIN_AT_MOST = 3
_ALONE_OF_A_NODE, _ALONE_OF_A_WAY, _ALONE_AT_MOST = 2, 3, 32
_ALIKE = 4.0
"""Times as fast as the slowest run of a narrow link is the fastest, at most."""


def doubtful_links(gathered: Gathered, *, and_shared: bool) -> list[Way]:
    """Return the ways that a single test speaks against, and that are worth another: a few of each node, and not what three nodes saw alike. ``and_shared``: those, too,
    against which speaks what other tests at the same time, or busy CPUs, may look like."""
    told = causes(gathered)
    counts: Counter[int] = Counter()
    alike_at: Counter[tuple[int, str]] = Counter((end, cause) for way, (cause, _seen) in told.items() for end in way)
    found = []
    for way, (cause, _seen) in [
        *told.items(),
        *((way, ("packet-loss", "")) for way in losses.that_lost_some(gathered.links) if way not in told),
    ]:
        if len(gathered.links[way]) > 1 or (cause in _SHARED and not and_shared):
            continue
        if cause not in _PASSING:
            found += [way] if max(alike_at[end, cause] for end in way) <= 2 else []
        elif max(counts[end] for end in way) < _AGAIN_AT_MOST:
            found.append(way)
            counts.update(way)
    return found


def accused_links(gathered: Gathered) -> list[Way]:
    """Return the ways that a verdict would rest on, and that were not tested yet while no other was: transfers at the same time share switches and CPUs."""
    told = causes(gathered)
    nodes, links = _blamed(told, gathered.links)
    ways = [way for _node, cause, ways in nodes if cause in _SHARED for way in ways[:_ALONE_OF_A_NODE]]
    ways += [way for way in links if told[way][0] in _PASSING]
    alone = {way: each for way, tests in gathered.links.items() if (each := [test for test in tests if test.is_alone])}
    open_ = [way for way in ways if way not in alone or _differs(alone[way])]
    return open_[: max(0, _ALONE_AT_MOST - sum(map(len, alone.values())))]


def control_of(gathered: Gathered, way: Way) -> Way | None:
    """Return a way that looks well, best with the same sender, else with the same receiver: what slows both is not the link."""
    told = causes(gathered)
    well = [other for other, rate in _first_rates(gathered).items() if other not in told and rate and other != way]
    return min(well, key=lambda other: (other[0] != way[0], other[1] != way[1], other), default=None)


def _differs(alone: Sequence[LinkTest]) -> bool:
    """Whether the rate may yet turn out: a narrow link gives each run the same, processes that wait for a CPU do not."""
    rates = alone[-1].rates[1:]
    return len(alone) < _ALONE_OF_A_WAY and len(rates) > 1 and max(rates) > _ALIKE * min(rates)


def behind_bad_links(gathered: Gathered) -> set[int]:
    """Return the nodes whose way to others is so bad that what they say may not come."""
    return {finding.node for finding in findings(gathered, ()) if finding.node is not None}


def findings(gathered: Gathered, explained: Iterable[int]) -> list[JointFinding]:
    """Return the findings, nodes first, then the links that no node explains. What may pass must show twice, and what other tests may look like alone."""
    gone = {*explained}
    tested = {way: tests for way, tests in gathered.links.items() if not gone & {*way}}
    told = {way: what for way, what in causes(gathered).items() if way in tested}
    if everywhere := _everywhere(gathered, told, tested):
        return [everywhere]
    nodes, links = _blamed(told, tested)
    for node, ways in _damaging(told, links):
        nodes.append((node, _DAMAGED, ways))
        links = [way for way in links if way not in ways]
    blamed = {node for node, _cause, _ways in nodes}
    losing = {node: seen for node, seen in losses.losing_nodes(tested).items() if node not in blamed}
    found = [JointFinding(part="connections", cause="packet-loss", node=node, seen=seen) for node, seen in losing.items()]
    links = [way for way in links if not (told[way][0] in (*_PASSING, "port-dropped") and losing.keys() & {*way})]
    for node, cause, ways in nodes:
        seen = "; ".join(f"{gathered.name(a)} -> {gathered.name(b)}: {told[a, b][1]}" for a, b in ways[:2])
        more = f"; {counted(len(ways) - 2, 'more link')}" if len(ways) > 2 else ""
        found.append(JointFinding(part="connections", cause=cause, node=node, seen=seen + more))
    for way in links:
        cause, seen = told[way]
        tests = gathered.links[way]
        if any(test.is_alone for test in tests) if cause in _SHARED else cause not in _PASSING or len(tests) > 1:
            found.append(JointFinding(part="connections", cause=cause, link=way, seen=seen))
    return found


def _damaging(told: Mapping[Way, tuple[str, str]], links: Iterable[Way]) -> Iterator[tuple[int, list[Way]]]:
    """Yield the nodes that damage what they send, or what comes to them, on two ways or more, the worst first: damage that is rare misses some of their ways."""
    left = [way for way in links if told[way][0] == _DAMAGED]
    while left:
        (node, _side), count = Counter((way[side], side) for way in left for side in (0, 1)).most_common(1)[0]
        if count < 2:
            return
        yield node, [way for way in left if node in way]
        left = [way for way in left if node not in way]


_LEAST_WAYS = 6
"""Of three nodes."""


def _everywhere(
    gathered: Gathered, told: Mapping[Way, tuple[str, str]], tested: Mapping[Way, Sequence[LinkTest]]
) -> JointFinding | None:
    """Return what is wrong with every way alike, as with a firewall that each node has: no node is to blame, and without some no other is better off."""
    if len(told) < max(len([way for way, tests in tested.items() if tests]), _LEAST_WAYS):
        return None
    way, (cause, seen) = next(iter(told.items()))
    if any(each != cause for each, _seen in told.values()) or cause in _SHARED:
        return None
    between = f"{gathered.name(way[0])} -> {gathered.name(way[1])}"
    return JointFinding(
        part="connections",
        cause=cause,
        seen=f"the same between all nodes: {seen} ({between} and all other links){_NEEDED.get(cause, '')}",
    )


_NEEDED = dict.fromkeys(
    ("port-dropped", "port-refused"),
    "; gloo and NCCL listen on ports that the kernel chooses: opening MASTER_PORT alone is not enough",
)


def _blamed(
    told: Mapping[Way, tuple[str, str]], links: Mapping[Way, list[LinkTest]]
) -> tuple[list[tuple[int, str, list[Way]]], list[Way]]:
    """Nodes that explain bad ways, and the ways that none explains."""
    tested = [
        way for way, tests in links.items() if way in told or not all(test.is_short or test.arrived is None for test in tests)
    ]
    nodes = [*localised(told, tested, {*links} - {*tested})]
    blamed = {node for node, _cause, _ways in nodes}
    return nodes, [way for way in told if not blamed & {*way}]


def localised(
    told: Mapping[Way, tuple[str, str]], tested: Iterable[Way], connected: Iterable[Way]
) -> Iterator[tuple[int, str, list[Way]]]:
    """Yield the nodes that explain bad ways: everything that comes in, or everything that goes out, is bad, with at least two others. ``connected``: ways
    of which no more was tried than a connection, which came about: no node explains that two others do not.

    The one that explains most goes first, and what it explains counts for nobody else.
    """
    sides: dict[tuple[int, int], set[Way]] = {}
    """Ways by a node, and by whether it sends (0) or receives (1)."""
    for way in tested:
        for side in (0, 1):
            sides.setdefault((way[side], side), set()).add(way)
    left = {*told}
    dead = {way for way, (cause, _seen) in told.items() if cause in _UNCONNECTED}
    reached = {(way[side], side) for way in connected for side in (0, 1)}
    for end in reached:
        if sides.get(end, set()) <= dead:
            sides.pop(end, None)
    while left:
        explained = {node: _explained(node, sides, left) for node in {end for way in left for end in way}}
        node = max(sorted(explained), key=lambda node: len(explained[node]))
        mine = explained[node]
        if not mine:
            return
        names = [told[way][0] for way in mine]
        yield node, max(sorted({*names}, key=names.index), key=names.count), mine
        gone = sides.pop((node, 0), set()) | sides.pop((node, 1), set())
        for ways in sides.values():
            ways -= gone
        left -= gone


def _explained(node: int, sides: Mapping[tuple[int, int], set[Way]], left: set[Way]) -> list[Way]:
    """Bad ways that the node explains."""
    mine: list[Way] = []
    for side in (0, 1):
        ways = sides.get((node, side), set())
        if len(ways) >= 2 and ways <= left:
            mine += sorted(ways)
    return mine
