"""Nodes that lose a small part of what comes to them, or of what they send: too little to show in the test of one way, not in those of all ways together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.preflight.isolation.usual_times import Way
from torchtune_sys.preflight.joint.gathered import LinkTest

_LEAST_LOST, _LEAST_LOSS = 5, 0.005
"""Datagrams of all ways together. A healthy network of a cluster loses fewer than one in a thousand."""
_LEAST_WAYS, _LEAST_AGAIN = 2, 2
"""Ways that lose some; and tests, in which what lost some before lost some again."""
_TIMES = 5.0
"""How many times as much as ways between others lose."""


def _lost(tests: Sequence[LinkTest]) -> list[tuple[int, int]]:
    """Return how many datagrams of each test were lost, and how many were sent, where that can be told and some arrived."""
    return [(test.sent - test.arrived, test.sent) for test in tests if test.arrived and test.loss is not None]


def _share(lost: Sequence[tuple[int, int]]) -> float:
    sent = sum(each[1] for each in lost)
    return sum(each[0] for each in lost) / sent if sent else 0.0


def that_lost_some(links: Mapping[Way, Sequence[LinkTest]]) -> Iterator[Way]:
    """Yield ways whose only test so far lost a datagram: a second one tells whether that was chance."""
    for way, tests in links.items():
        if len(tests) == 1 and _share(_lost(tests)) > 0:
            yield way


def losing_nodes(links: Mapping[Way, Sequence[LinkTest]]) -> dict[int, str]:
    """Return nodes of whose datagrams more than of all others' are lost, in one direction, and what was seen."""
    counted = {way: lost for way, tests in links.items() if (lost := _lost(tests))}
    found: dict[int, str] = {}
    for node in sorted({end for way in counted for end in way}):
        elsewhere = _share([each for way, lost in counted.items() if node not in way for each in lost])
        for side, word in ((1, "that were sent to it"), (0, "that it sent")):
            ways = [lost for way, lost in counted.items() if way[side] == node]
            if words := _seen(ways, elsewhere):
                found.setdefault(node, f"{words} {word} were lost, on {len(ways)} links")
    return found


def _seen(ways: Sequence[Sequence[tuple[int, int]]], elsewhere: float) -> str:
    """Return how many datagrams of these ways were lost, where that is more than chance; "" where it is not."""
    every = [each for lost in ways for each in lost]
    lost = sum(each[0] for each in every)
    losing = [each for each in ways if _share(each) > 0]
    again = sum(bool(each[0]) for lost_of in losing for each in lost_of[1:])
    if len(losing) < max(_LEAST_WAYS, len(ways) / 2) or again < _LEAST_AGAIN or lost < _LEAST_LOST:
        return ""
    if _share(every) < max(_LEAST_LOSS, _TIMES * elsewhere):
        return ""
    return f"{lost} of {sum(each[1] for each in every)} datagrams"
