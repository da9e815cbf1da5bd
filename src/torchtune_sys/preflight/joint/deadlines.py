"""Deadlines for torch's import and for group tests: long at first, later a multiple of what healthy groups took.

A pair that failed within the long deadline is asked again under the short one, and so is, with anybody, a node that failed within the long one with two others: the
hang of a link is waited for once, that of a node twice. So the end of a bad link that is late with others, but ends, is not taken for one that hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

LONG_S = 8.0
_PER_NODE_S, _EXCHANGES_AT_MOST_S = 0.25, 60.0
"""More time for the exchanges of each node with the others."""
_LEAST_S, _TIMES = 2.0, 10.0
"""The short deadline, at least, and by how much it exceeds the slowest healthy group of this size or more."""
READY_S = 45.0
"""So long everybody may take at least until facts and torch are there."""
_READY_PART, _READY_TIMES = 0.5, 3.0
"""Of the time that is left, at most; and how many times as long as half of the nodes the others may take."""
Nodes = frozenset[int]


def ready_s(left_s: float, half_took_s: float | None = None) -> float:
    """Return how long all are waited for, as fast as this machine is: import of torch, most of which is reading files, took more than 45 s at a load of 40 on two
    cores. ``half_took_s``: after so long half of the nodes were there; None while they are not.

    >>> ready_s(50.0), ready_s(350.0), ready_s(350.0, 5.0), ready_s(350.0, 40.0), ready_s(350.0, 90.0)
    (45.0, 175.0, 45.0, 120.0, 175.0)
    """
    longest_s = max(READY_S, _READY_PART * left_s)
    return longest_s if half_took_s is None else min(longest_s, max(READY_S, _READY_TIMES * half_took_s))


class Deadlines:
    """Of the groups of one isolation. ``timed``: pairs exchange something, too. ``all_took_s``: so long all took together, where nothing failed, but something was late.

    >>> known = Deadlines(timed=True)
    >>> known.of([1, 2])
    8.5
    >>> known.saw([3, 4], 8.5, ended_s=0.3), known.saw([1, 2], 8.5, ended_s=None)
    (None, None)
    >>> known.of([1, 2]), known.of([1, 5]), known.of([5, 6]), known.of([1, 2, 5])
    (3.0, 8.5, 8.5, 8.75)
    >>> known.saw([1, 5], 8.5, ended_s=None)
    >>> known.of([1, 3]), known.of([2, 3])
    (3.0, 8.5)
    >>> Deadlines(timed=False, all_took_s=15.0).of([1, 2])
    15.0
    """

    def __init__(self, *, timed: bool, all_took_s: float = 0.0) -> None:
        self._timed, self._all_took_s = timed, all_took_s
        self._doubted: set[Nodes] = set()
        """Pairs that failed within the short deadline alone."""
        self._hung: dict[int, set[int]] = {}
        """By node, with whom it failed within the long one."""
        self._healthy: list[tuple[int, float]] = []

    def of(self, nodes: Collection[int]) -> float:
        """Return the seconds for a group of these nodes."""
        long_s = self.long_s(len(nodes))
        known = [seconds for size, seconds in self._healthy if size >= len(nodes)]
        if len(nodes) != 2 or not known or not self._is_proven(frozenset(nodes)):
            return long_s
        return min(long_s, max(_LEAST_S, _TIMES * max(known)))

    def _is_proven(self, pair: Nodes) -> bool:
        """Whether it failed within the long deadline, or one of it did with two others."""
        one, other = pair
        failed_itself = other in self._hung.get(one, ())
        return failed_itself or (pair not in self._doubted and any(self._has_hung_twice(node) for node in pair))

    def _has_hung_twice(self, node: int) -> bool:
        return len(self._hung.get(node, ())) > 1

    def long_s(self, nodes: int) -> float:
        """Return the seconds for the collectives of so many nodes, of which nothing is known."""
        exchanges_s = min(_PER_NODE_S * nodes, _EXCHANGES_AT_MOST_S) if self._timed else 0.0
        return max(LONG_S, self._all_took_s) + exchanges_s

    def saw(self, nodes: Iterable[int], within_s: float, ended_s: float | None) -> None:
        """Take how a group ended that was given so long: after how many seconds, None where it failed."""
        group = frozenset(nodes)
        if ended_s is not None:
            self._healthy.append((len(group), ended_s))
        elif len(group) == 2:
            one, other = group
            if within_s >= self.long_s(2):
                self._hung.setdefault(one, set()).add(other)
                self._hung.setdefault(other, set()).add(one)
            elif not all(self._has_hung_twice(node) for node in group):
                self._doubted.add(group)
