"""Exchanges within a host that are late or crawl, each or now and then, though nobody who takes part waits for a CPU; and who is late."""

from __future__ import annotations

import functools
import json
import os
import re
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault, tell_all, word_of
from torchtune_sys.smoke.worker.cgroups import times_throttled
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.exchanges.senders import own_group
from torchtune_sys.smoke.worker.interfaces import lost_on_the_way
from torchtune_sys.smoke.worker.measures import is_traced, patience, processes_a_cpu, run_delay_of_all, stolen_s

_EXCHANGES, _ROUNDS_LATE, _APART_S = 40, 3, 0.4
"""What is late in a tenth of the exchanges in each of the rounds, some time apart, and by the same rank each time, is no accident."""
_TOO_LATE_S, _LATE_SHARE = 0.004, 0.1
"""Between ranks of one host an exchange of 4 kB takes 0.1 to 0.3 ms; less what threads waited for a CPU, at most 1.2 ms were seen at a load of 40 on two cores."""
_STOLEN_SHARE = 0.05
_MANY_PROCESSES = 1.5
"""Processes for each CPU from which on messages wait for ksoftirqd: at 4 to 5, half of the exchanges of healthy ranks were seen to take 4 ms."""
_STANDS_OUT = 3
"""How many times as often as any other a rank must be late to be named."""
_LATE_ELEMENTS = 1000
_MOST_RANKS_TIMED = 8
_SLOW_S = 0.05
"""Of the quickest, where each rank has a CPU: at a load of 20 on two CPUs 0.3 ms were seen."""
_TRIES = 10
_LATE_ALONE_S = 0.02
"""Of the quickest of a few, less what threads waited for a CPU: nothing is sent, and nothing computed."""
_CRAWLING_S, _CRAWLING_TRIES, _DROPPED_BY_A_SHAPER = 0.5, 3, 0.01
"""For a MiB: what is this slow would take longer for all exchanges than a stage may. A queue of 8 Mbit/s dropped 0.003 of the segments."""
_TELLING_S, _FEWEST_ASKED = 20.0, 5
"""What it may take to find out who is late, and how many exchanges between two must fit into it."""
_Moment = Tuple[float, float]


def always_late(here: RankContext) -> List[Fault]:
    """Return what makes each exchange of a few bytes between ranks of this host late, and the rank where it can be told. The same on all ranks."""
    if not here.on_one_host:
        return []
    held, quickest = torch.ones(_LATE_ELEMENTS, device=here.device), float("inf")
    for _ in range(_TRIES):
        dist.barrier()
        quickest = min(quickest, timed_once(here, lambda: dist.all_reduce(held.fill_(1.0))))
    slow_s = _SLOW_S * patience() * max(1.0, here.local_world / (os.cpu_count() or 1))
    longest = slowest(here, quickest if quickest > slow_s else 0.0)
    if not longest:
        return _late_by_itself(here)
    seen = "the quickest of %d all_reduces of 4 kB within this host takes %.0f ms: something in it sleeps" % (
        _TRIES,
        1e3 * longest,
    )
    times = min(_EXCHANGES, int(_TELLING_S / (longest * here.world**2)))
    who = _who_is_late(here, times) if times >= _FEWEST_ASKED and _can_be_timed(here) else ""
    return [("collective-slow", "%s; %s" % (seen, who) if who else seen)]


def _late_by_itself(here: RankContext) -> List[Fault]:
    """Return which rank is late to exchanges of a MiB, of which each rank tries some with itself alone: there is nobody whom it could await. The same on all ranks."""
    group = own_group(here) if _can_be_timed(here) else None
    if group is None:
        return []
    held, quickest = torch.ones(1 << 18), float("inf")
    for _ in range(_FEWEST_ASKED):
        waited = run_delay_of_all()
        took = timed_once(here, functools.partial(dist.all_reduce, held, group=group))
        quickest = min(quickest, took - (run_delay_of_all() - waited))
    told = [float(said) for said in tell_all(here, repr(quickest))]
    late = ["rank %d (%.0f ms)" % (rank, 1e3 * seconds) for rank, seconds in enumerate(told) if seconds > _LATE_ALONE_S]
    seen = "the quickest of %d all_reduces of 1 MiB of a rank with itself alone is late: %s: something in it sleeps"
    return [("collective-slow", seen % (_FEWEST_ASKED, ", ".join(late)))] if late else []


def crawling(here: RankContext) -> List[Fault]:
    """Return what holds up the ranks of one host so much that exchanges of some MiB would not end in time. The same on all ranks."""
    if not here.on_one_host or here.world == 1:
        return []
    held, seconds = torch.zeros(1 << 18, device=here.device), 0.0
    for _ in range(_CRAWLING_TRIES):
        took = timed_once(here, functools.partial(dist.all_reduce, held))
        seconds = slowest(here, took if took > _CRAWLING_S * patience() else 0.0)
        if not seconds:
            return []
    lost, sent = lost_on_the_way()
    if any(tell_all(here, "lost" if lost > _DROPPED_BY_A_SHAPER * sent else "")):
        return []  # that is told when more were sent
    return held_up(1 << 20, seconds)


def held_up(size: int, seconds: float) -> List[Fault]:
    """Return the fault of an exchange of so many bytes that took so long."""
    seen = "ranks of one host exchange %d MiB in %.1f s: something between them (a traffic shaper, a sandbox) holds it up"
    return [("collective-slow", seen % (size >> 20, seconds))]


def slowest(here: RankContext, seconds: float) -> float:
    """Return the most of all ranks: they must agree on what comes next, so no rank's own clock has a say."""
    return max(float(said) for said in tell_all(here, repr(seconds)))


def timed_once(here: RankContext, work: Callable[[], object]) -> float:
    """Return the seconds that a work takes on this rank."""
    here.synchronize()
    started = time.perf_counter()
    work()
    here.synchronize()
    return time.perf_counter() - started


def _can_be_timed(here: RankContext) -> bool:
    """Say whether who waits for a CPU can be told from who is late: not below a kernel without these counts (CONFIG_SCHED_INFO), in a sandbox, or where a
    tracer follows a rank, which then waits for the tracer's turn: beside ten busy processes up to 5 of 40 exchanges with itself alone were late below
    strace, without it 1 of 12,560. The same on all ranks."""
    if here.gpus or not 1 < here.world <= _MOST_RANKS_TIMED:
        return False
    return not any(tell_all(here, "" if run_delay_of_all() and not is_traced() else "not told"))


def late_now_and_then(here: RankContext) -> List[Fault]:
    """Return what makes exchanges between ranks of this host late in between, and the rank where it can be told. The same on all ranks."""
    if not here.on_one_host or not _can_be_timed(here):
        return []
    before, began, stolen = times_throttled(), time.monotonic(), stolen_s()
    held, named, late = torch.ones(_LATE_ELEMENTS), "", 0
    for turn in range(_ROUNDS_LATE):
        time.sleep(turn * _APART_S)  # what holds up a host, or one of its CPUs, for a moment passes
        late = _count_late(here, _all_together(here, lambda: dist.all_reduce(held.fill_(1.0))))
        if late < _LATE_SHARE * _EXCHANGES:
            return []
        who = _who_is_late(here, _EXCHANGES) if named or not turn else ""
        named = _the_same(named, who) if turn else who
        crowded = any(tell_all(here, "crowded" if processes_a_cpu() > _MANY_PROCESSES else ""))
        if crowded and not named:
            return []  # the kernel's own threads, which carry what ranks send, may have waited for a CPU
    held_back = times_throttled() != before or stolen_s() - stolen > _STOLEN_SHARE * (time.monotonic() - began)
    if any(tell_all(here, "held back" if held_back else "")):
        return []  # by a quota, of which stragglers tells, or by other guests of the machine
    words = "%d of %d all_reduces of 4 kB within this host take %.0f ms and more, though no rank waits for a CPU"
    seen = words % (late, _EXCHANGES, 1e3 * _TOO_LATE_S)
    return [("collective-slow", "%s; %s" % (seen, named or "no single rank is seen to be late"))]


def _the_same(named: str, who: str) -> str:
    """Return what was said of a rank, if the same rank is late once more.

    >>> _the_same("rank 1 is late also with itself alone", "what rank 1 sends comes late")
    'rank 1 is late also with itself alone'
    >>> _the_same("rank 1 is late also with itself alone", "rank 0 is late also with itself alone")
    ''
    """
    return named if re.findall(r"rank \d+", named) == re.findall(r"rank \d+", who) else ""


def _all_together(here: RankContext, exchange: Callable[[], object]) -> List[List[_Moment]]:
    """Return for each rank when it entered each exchange and when it left, less what its threads waited for a CPU meanwhile (all ranks of a host have one clock)."""
    moments: List[_Moment] = []
    for _ in range(_EXCHANGES):
        waited, entered = run_delay_of_all(), time.monotonic()
        exchange()
        left = time.monotonic()
        moments.append((entered, left - (run_delay_of_all() - waited)))
    return [json.loads(said) for said in tell_all(here, json.dumps(moments))]


def _count_late(here: RankContext, told: List[List[_Moment]]) -> int:
    """Count those that the first rank that leaves has left late, after the last had come: what a rank waits for a CPU is its own delay, and the others'."""
    late = 0
    for turns in zip(*told):
        late += min(left for _, left in turns) - max(entered for entered, _ in turns) > _TOO_LATE_S
    return max(int(said) for said in tell_all(here, str(late)))


def _who_is_late(here: RankContext, times: int) -> str:
    """Return whose exchanges are late: of so many with itself alone, else of so many with each other rank."""
    held, alone, group = torch.ones(_LATE_ELEMENTS), 0, own_group(here)
    for _ in range(times if group is not None else 0):
        waited, entered = run_delay_of_all(), time.monotonic()
        dist.all_reduce(held, group=group)
        alone += time.monotonic() - entered - (run_delay_of_all() - waited) > _TOO_LATE_S
    slow = _often([int(said) for said in tell_all(here, str(alone))], times)
    if len(slow) == 1:
        return "rank %d is late also with itself alone" % slow[0]
    own, senders = _late_between_two(here, times)
    if len(own) == 1:
        return "rank %d is late to give what it sends, or awaits, to the network" % own[0]
    return "what rank %d sends comes late" % senders[0] if len(senders) == 1 else ""


def _late_between_two(here: RankContext, times: int) -> Tuple[List[int], List[int]]:
    """Each rank sends to each other, which answers: one way is timed, and what either does before it waits, in which the other has no part. (To
    receive is to send, too: gloo says that it is ready.) Return who is late in that, and whose messages are late."""
    late: Dict[int, int] = {}
    held, own = torch.ones(_LATE_ELEMENTS), 0

    def passed(begin: Callable[..., Any], other: int) -> bool:
        waited, began = run_delay_of_all(), time.monotonic()
        work = begin(held, other)
        took = time.monotonic() - began - (run_delay_of_all() - waited)
        work.wait()
        return took > _TOO_LATE_S

    for sender in range(here.world):
        for receiver in range(here.world):
            if sender == receiver or here.rank not in (sender, receiver):
                continue
            moments: List[float] = []
            waits: List[float] = []
            for _ in range(times):
                waited = run_delay_of_all()
                if here.rank == sender:
                    moments.append(time.monotonic())
                    own += passed(dist.isend, receiver)
                    own += passed(dist.irecv, receiver)
                else:
                    own += passed(dist.irecv, sender)
                    moments.append(time.monotonic())
                    own += passed(dist.isend, sender)
                waits.append(run_delay_of_all() - waited)
            key = "sent from %d to %d" % (sender, receiver)
            if here.rank == sender:
                here.store.set(key, json.dumps([moments, waits]))
            else:
                sent, waited_there = json.loads(word_of(here, key, sender, here.patience_s))
                took = [b - a - u - v for a, b, u, v in zip(sent, moments, waited_there, waits)]
                late[sender] = late.get(sender, 0) + sum(one > _TOO_LATE_S for one in took)
    told = [json.loads(said) for said in tell_all(here, json.dumps([own, late]))]
    counts = [sum(int(one.get(str(rank), 0)) for _, one in told) for rank in range(here.world)]
    return _often([count for count, _ in told], times), _often(counts, times)


def _often(counts: List[int], times: int) -> List[int]:
    """Return the one rank that is often late, and far more often than the others; no rank where several are."""
    most = max(counts)
    others = sorted(counts)[:-1]
    stands_out = most >= _LATE_SHARE * times and all(most >= _STANDS_OUT * count for count in others)
    return [counts.index(most)] if stands_out else []
