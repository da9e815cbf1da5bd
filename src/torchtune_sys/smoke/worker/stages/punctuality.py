"""Exchanges that come late now and then, though nobody who takes part waits for a CPU."""

from __future__ import annotations

import json
import time
from typing import Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault, tell_all, word_of
from torchtune_sys.smoke.worker.cgroups import times_throttled
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.measures import run_delay_of_all, stolen_s

_EXCHANGES, _ROUNDS_LATE = 40, 3
"""What is late in a tenth of an exchange in each of the rounds is no accident."""
_TOO_LATE_S, _LATE_SHARE = 0.004, 0.1
"""Between ranks of one host an exchange of 4 kB takes 0.1 to 0.3 ms; less what threads waited for a CPU, at most 1.2 ms were seen at a load of 40 on two cores."""
_STOLEN_SHARE = 0.05
_LATE_ELEMENTS = 1000
_MOST_RANKS_TIMED = 8
_Moment = Tuple[float, float]


def late_now_and_then(here: RankContext) -> List[Fault]:
    """Return what makes exchanges between ranks of this host late in between, and the rank where it can be told. The same on all ranks."""
    if not here.on_one_host or here.gpus or not 1 < here.world <= _MOST_RANKS_TIMED:
        return []
    if any(tell_all(here, "" if run_delay_of_all() else "not told")):
        return []  # a kernel without these counts (CONFIG_SCHED_INFO), a sandbox: whoever waits for a CPU would be late
    before, began, stolen, late = times_throttled(), time.monotonic(), stolen_s(), 0
    held = torch.ones(_LATE_ELEMENTS)
    for _ in range(_ROUNDS_LATE):
        late = _count_late(here, _all_together(here, lambda: dist.all_reduce(held.fill_(1.0))))
        if late < _LATE_SHARE * _EXCHANGES:
            return []
    held_back = times_throttled() != before or stolen_s() - stolen > _STOLEN_SHARE * (time.monotonic() - began)
    if any(tell_all(here, "held back" if held_back else "")):
        return []  # by a quota, of which stragglers tells, or by other guests of the machine
    words = "%d of %d all_reduces of 4 kB within this host take %.0f ms and more, though no rank waits for a CPU"
    seen = words % (late, _EXCHANGES, 1e3 * _TOO_LATE_S)
    return [("collective-slow", "%s; %s" % (seen, _who_is_late(here) or "no single rank is seen to be late"))]


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


def _who_is_late(here: RankContext) -> str:
    groups = [dist.new_group([rank]) for rank in range(here.world)]
    held, alone = torch.ones(_LATE_ELEMENTS), 0
    for _ in range(_EXCHANGES):
        waited, entered = run_delay_of_all(), time.monotonic()
        dist.all_reduce(held, group=groups[here.rank])
        alone += time.monotonic() - entered - (run_delay_of_all() - waited) > _TOO_LATE_S
    slow = [rank for rank, said in enumerate(tell_all(here, str(alone))) if int(said) >= _LATE_SHARE * _EXCHANGES]
    if len(slow) == 1:
        return "rank %d is late also with itself alone" % slow[0]
    senders = _late_senders(here)
    return "what rank %s sends comes late" % senders[0] if len(senders) == 1 else ""


def _late_senders(here: RankContext) -> List[int]:
    """Each rank sends to each other, which answers: one way is timed."""
    late: Dict[int, int] = {}
    held = torch.ones(_LATE_ELEMENTS)
    for sender in range(here.world):
        for receiver in range(here.world):
            if sender == receiver or here.rank not in (sender, receiver):
                continue
            moments: List[float] = []
            waits: List[float] = []
            for _ in range(_EXCHANGES):
                waited = run_delay_of_all()
                if here.rank == sender:
                    moments.append(time.monotonic())
                    dist.send(held, receiver)
                    dist.recv(held, receiver)
                else:
                    dist.recv(held, sender)
                    moments.append(time.monotonic())
                    dist.send(held, sender)
                waits.append(run_delay_of_all() - waited)
            key = "sent from %d to %d" % (sender, receiver)
            if here.rank == sender:
                here.store.set(key, json.dumps([moments, waits]))
            else:
                sent, waited_there = json.loads(word_of(here, key, sender, here.patience_s))
                took = [b - a - u - v for a, b, u, v in zip(sent, moments, waited_there, waits)]
                late[sender] = late.get(sender, 0) + sum(one > _TOO_LATE_S for one in took)
    told = [json.loads(said) for said in tell_all(here, json.dumps(late))]
    counts = {rank: sum(int(one.get(str(rank), 0)) for one in told) for rank in range(here.world)}
    return [rank for rank, count in counts.items() if count >= _LATE_SHARE * _EXCHANGES]
