"""How quick products are, moment by moment, by the processor's time: a CPU that is throttled or shared now and then."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import with_threads
from torchtune_sys.smoke.worker.measures import MOMENT_S, cpu_share, cpus_are_even, run_delay

_LOOK_PRODUCTS, _LOOK_SIDE = 20, 160
_TIMES_SLOWER, SLOW_LOOKS, SLOW_ROUNDS = 2.2, 3, 2
"""By a processor's time and on one thread: of 240 such looks at a load of 20 on two cores the slowest took 1.6 times as long as the quickest. Each follows work, as a clock that
was slowed for want of it takes its time to rise."""
_SPELLS, _SPELL_WAITED = 2, 0.05
"""Parts of each moment in which a rank computes products, and how much of one it may wait for a CPU: beside others each core of two threads is slowed by what its other thread does."""
_SPELL_SLOWER, SPELLS_SLOW, SPELLS_SUSPECT, SPELLS_SEEN = 1.2, 6, 2, 16
"""Of 190 spells of healthy ranks that had both threads of one core to themselves, one had no product within 1.2 times the quickest (1.15 times: 19); of 41 of a rank whose
products took a quarter longer in half of the time, 14."""
_SPELLS_OF_OTHERS = 3
"""Times as many as the others have."""


class Spells:
    """How quick products are, eighth of a second by eighth of a second."""

    def __init__(self) -> None:
        self._given = torch.full((_LOOK_SIDE, _LOOK_SIDE), 0.5)
        self._alone: List[float] = []
        """The quickest of each spell in which this thread hardly waited for a CPU."""
        self._best = float("inf")
        self._is_judged = cpus_are_even()

    def held_back(self) -> float:
        """Compute for a moment, on one thread; return the part of it in which this process neither ran nor waited for a CPU."""
        length = 0.95 * MOMENT_S / _SPELLS
        began, waited, best = time.monotonic(), run_delay(), float("inf")

        def work() -> None:
            nonlocal began, waited, best
            started = time.thread_time()
            torch.mm(self._given, self._given)
            best = min(best, time.thread_time() - started)
            wall = time.monotonic() - began
            if wall >= length:
                now = run_delay()
                self._best = min(self._best, best)
                if waited is not None and now is not None and now - waited < _SPELL_WAITED * wall:
                    self._alone.append(best)
                began, waited, best = time.monotonic(), now, float("inf")

        with with_threads(1):
            return cpu_share(work)[1]

    def told(self) -> Tuple[int, int, float]:
        """Return how many spells were slow, of how many, and how many times as long as the quickest product those took (0 for none). None is told where a healthy rank, too, would be
        slow at times, for what its CPU's kind or a neighbour's machine does."""
        if not self._is_judged:
            return 0, 0, 0.0
        slow = [one / self._best for one in self._alone if one > _SPELL_SLOWER * self._best]
        return len(slow), len(self._alone), lower_median(slow) if slow else 0.0


def is_slow_at_times(own: Dict[str, Any], told: List[Dict[str, Any]], least: int, seen: int) -> bool:
    """Return whether a rank has many slow spells (``least``), where it and its peers were seen so often (``seen``) and those had few."""
    slow, count = own["spells"][:2]
    others = [peer["spells"] for peer in told if peer["class"] == own["class"] and peer is not own]
    if not others or slow < least or min(count, *(each[1] for each in others)) < seen:
        return False
    return slow >= _SPELLS_OF_OTHERS * max(each[0] for each in others)


def cpu_time_of_product() -> float:
    """Return the processor's seconds of the quickest of a few small products on one thread."""
    given, best = torch.full((_LOOK_SIDE, _LOOK_SIDE), 0.5), float("inf")
    with with_threads(1):
        for _ in range(_LOOK_PRODUCTS):
            began = time.thread_time()
            torch.mm(given, given)
            best = min(best, time.thread_time() - began)
    return best


def slow_looks(rounds: List[List[float]]) -> Tuple[int, int, float]:
    """Return how many looks took much longer than the quickest, in how many rounds, and how many times as long the slowest took.

    >>> slow_looks([[1.0, 1.5], [1.1, 3.0], [2.9, 3.1]]), slow_looks([[1.0, 1.6]])
    ((3, 2, 3.1), (0, 0, 1.6))
    """
    best = min(min(looks) for looks in rounds)
    slow = [sum(one > _TIMES_SLOWER * best for one in looks) for looks in rounds]
    return sum(slow), sum(map(bool, slow)), max(max(looks) for looks in rounds) / best


def lower_median(values: List[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
