"""Nodes that lose a small part of what comes to them, or of what they send: too little to show in the test of one way, not in those of all ways together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.preflight.isolation.usual_times import Way
from torchtune_sys.preflight.joint.gathered import LinkTest

_LEAST_LOST, _LEAST_LOSS, _LEAST_UNANSWERED = 5, 0.005, 0.05
"""Datagrams, or requests for a connection, of all ways together; and the least part of datagrams (a healthy network of a cluster loses fewer than one in a thousand) and of requests."""
_LEAST_WAYS, _LEAST_AGAIN = 2, 2
"""Ways that lose some; and tests, in which what lost some before lost some again."""
_TIMES = 5.0
"""How many times as much as ways between others lose."""
_Counts = Sequence[tuple[int, int]]
"""Of each test: how many were lost, and how many were sent."""


def _lost(tests: Sequence[LinkTest]) -> _Counts:
    """Return how many datagrams of each test were lost, where that can be told and some arrived."""
    return [(test.sent - test.arrived, test.sent) for test in tests if test.arrived and test.loss is not None]


def _unanswered(tests: Sequence[LinkTest]) -> _Counts:
    """Return how many requests for a connection were not answered at first, of tests in which some connections were made."""
    told = [(test.repeated, test.flows) for test in tests if test.flows is not None]
    return [(repeated + tried - made, tried) for repeated, (tried, made) in told if made]


def _share(counts: _Counts) -> float:
    sent = sum(each[1] for each in counts)
    return sum(each[0] for each in counts) / sent if sent else 0.0


def that_lost_some(links: Mapping[Way, Sequence[LinkTest]]) -> Iterator[Way]:
    """Yield ways whose only test so far lost something: a second one tells whether that was chance."""
    for way, tests in links.items():
        if len(tests) == 1 and (_share(_lost(tests)) > 0 or _share(_unanswered(tests)) > 0):
            yield way


def losing_nodes(links: Mapping[Way, Sequence[LinkTest]]) -> dict[int, str]:
    """Return nodes of whose datagrams, or requests for connections, more than of all others' are lost, in one direction, and what was seen."""
    found: dict[int, str] = {}
    for counted, least, what in ((_lost, _LEAST_LOSS, "datagrams"), (_unanswered, _LEAST_UNANSWERED, "connection requests")):
        counts = {way: each for way, tests in links.items() if (each := counted(tests))}
        for node in sorted({end for way in counts for end in way}):
            elsewhere = _share([each for way, counts_of in counts.items() if node not in way for each in counts_of])
            for side, word in ((1, "that were sent to it"), (0, "that it sent")):
                ways = [counts_of for way, counts_of in counts.items() if way[side] == node]
                if seen := _seen(ways, max(least, _TIMES * elsewhere)):
                    found.setdefault(node, f"{seen[0]} of {seen[1]} {what} {word} were lost, on {len(ways)} links")
    return found


def _seen(ways: Sequence[_Counts], least: float) -> tuple[int, int] | None:
    """Return how many were lost on these ways, and sent, where that is more than chance. ``least``: the least part that is."""
    every = [each for counts in ways for each in counts]
    lost = sum(each[0] for each in every)
    losing = [each for each in ways if _share(each) > 0]
    again = sum(bool(each[0]) for counts in losing for each in counts[1:])
    if len(losing) < max(_LEAST_WAYS, len(ways) / 2) or again < _LEAST_AGAIN or lost < _LEAST_LOST or _share(every) < least:
        return None
    return lost, sum(each[1] for each in every)
