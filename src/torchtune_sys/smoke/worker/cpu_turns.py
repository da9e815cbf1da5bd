"""Ranks of a host take turns on its CPUs while they are timed: a CPU that is slow for a while, as a neighbour's machine computes on the other thread of its core, is no slow rank's."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, Iterator, List, Optional

import torch

from torchtune_sys.smoke.worker.agreement import tell_all
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.interfaces import boot_identity
from torchtune_sys.smoke.worker.measures import cpus_are_even

_MOST_TURNS = 12
_SLOW_CPU = 1.3


class CpuTurns:
    """The CPU on which this rank is timed, round by round.

    Only ranks that may use the same CPUs take turns, each on one thread: who was bound to other CPUs than the rest has those in training, too.
    """

    def __init__(self, here: RankContext) -> None:
        cpus, threads = sorted(os.sched_getaffinity(0)), 0 if here.gpus else torch.get_num_threads()
        own = [boot_identity(), cpus, threads]
        told = [json.loads(text) for text in tell_all(here, json.dumps(own))]
        alike = [rank for rank, one in enumerate(told) if one == own]
        self._ring = places(cpus, len(alike)) if threads == 1 and 1 < len(alike) <= len(cpus) else []
        self._first, self._step = alike.index(here.rank), max(1, len(alike) // _MOST_TURNS)
        self.times: Dict[str, float] = {}
        """By CPU, the least seconds that the same work took there."""

    @contextlib.contextmanager
    def of_round(self, turn: int) -> Iterator[Optional[int]]:
        """Stay on one CPU, which each round is another; None where this thread stays free. Other threads, and those of other ranks, are left alone."""
        before, cpu = os.sched_getaffinity(0), None
        if self._ring:
            with contextlib.suppress(OSError):  # it was taken offline or from the cpuset, or a filter refuses the call
                wanted = self._ring[(self._first + turn * self._step) % len(self._ring)]
                os.sched_setaffinity(0, {wanted})
                cpu = wanted
        try:
            yield cpu
        finally:
            if cpu is not None:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, before)

    def took(self, cpu: Optional[int], seconds: float) -> None:
        """Note how long a round's work took on a CPU."""
        if cpu is not None:
            self.times[str(cpu)] = min(seconds, self.times.get(str(cpu), seconds))


def places(cpus: List[int], count: int, root: str = "/") -> List[int]:
    """Return so many of these CPUs, spread over them: on cores of their own, if there are enough."""
    firsts: Dict[str, int] = {}
    for cpu in cpus:
        place = os.path.join(root, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu)
        with contextlib.suppress(OSError), open(place) as file:
            firsts.setdefault(file.read().strip(), cpu)
    found = sorted(firsts.values()) if len(firsts) >= count else cpus
    return [found[place * len(found) // count] for place in range(count)]


def told_of_slow_cpus(told: List[Dict[str, Any]]) -> str:
    """Return which CPUs took longer for the same work than most, whichever rank was there; "" for none, and where CPUs of one host may differ (``cpus_are_even``)."""
    by_cpu: Dict[str, float] = {}
    for one in told:
        for cpu, seconds in one["cpus"].items():
            name = "%s of %s" % (cpu, one["place"].rpartition(" ")[2])
            by_cpu[name] = min(seconds, by_cpu.get(name, seconds))
    middle = sorted(by_cpu.values())[(len(by_cpu) - 1) // 2] if by_cpu else 0.0
    slow = ["CPU %s takes %.2f times as long" % (cpu, one / middle) for cpu, one in by_cpu.items() if one > _SLOW_CPU * middle]
    if not slow or not cpus_are_even():
        return ""
    return "%s for the same work as the others, whichever rank computes there" % ", ".join(slow)
