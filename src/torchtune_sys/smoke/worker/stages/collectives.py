"""What ranks exchange: right to the last bit, and how fast."""

from __future__ import annotations

import functools
import time
from typing import Callable, List, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault, few, judge
from torchtune_sys.smoke.worker.context import (
    QUICK,
    THOROUGH,
    RankContext,
    StageFailed,
    differing_elements,
    seldom_used_is_right,
    small_integers,
)
from torchtune_sys.smoke.worker.exchange_names import backend_has
from torchtune_sys.smoke.worker.exchanges.collective_table import (
    barriers_hold,
    each_is_right,
    holds_all,
    objects_arrive,
)
from torchtune_sys.smoke.worker.exchanges.punctuality import (
    always_late,
    crawling,
    held_up,
    late_now_and_then,
    slowest,
    timed_once,
)
from torchtune_sys.smoke.worker.exchanges.senders import repeated_exchanges, senders_named
from torchtune_sys.smoke.worker.interfaces import lost_on_the_way, unanswered
from torchtune_sys.smoke.worker.measures import patience

_COUNTS = (1, 3, 1000, 65537, (1 << 20) + 5)
"""Elements: odd ones leave remainders in rings, the large ones take the paths in chunks."""
_DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
_ASYNCHRONOUS = 1000
"""Elements of those that are waited for in a second step, as overlapping frameworks do."""
_WIDE = {torch.float64: (1 << 40) + 1, torch.int64: (1 << 53) + 1}
"""Factors that leave float32 no room, and of whole numbers float64 none: what is exchanged in 64 bits must not go through less."""
_LARGE_COUNT = 1 << 18
_LARGE_S = 20.0
"""TCP has sent anew what is lost six times by then."""
_TIMING_S, _TIMED_ONCE_S = 2.0, 5.0
"""What a round of timing may take, and one exchange, of which five are made: the stage's deadline leaves room for them."""
_LOST_WITHIN, _LOST_BETWEEN = (10, 0.003), (50, 0.02)
"""Segments, and their share of all, that TCP sent anew: between ranks of a host none were seen to be lost, and 2.5 % where 3 % of the packets
were dropped. Between hosts a switch drops some when many send at once."""
_LEAST_WITHIN = 1e7
"""Bytes in a second between ranks of a host; at a load of 40 on two cores 1e8 were seen."""
_EXACT_IN_BFLOAT16 = 256
"""Integers up to it have a bfloat16 of their own (8 bits); float16 has them up to 2048."""


def exchanges_are_right(here: RankContext) -> None:
    """Check that reductions, gathers and broadcasts are bit-exact on every rank, and measure their speed."""
    large_packets_arrive(here)
    judge(here, (), always_late(here) or crawling(here))
    faults: List[Fault] = []
    for name in _DTYPES:
        dtype = getattr(torch, name)
        for count in _COUNTS if name == "float32" else _COUNTS[:3]:
            faults += _reduced(here, dtype, count)
    for exchange in (
        _ordered,
        _grouped,
        _swapped,
        _largest_size,
        _sums_of_nothing,
        _by_table,
    ):
        faults += exchange(here)
    judge(here, senders_named(here, faults))  # before objects: of what arrives wrong none can be made
    judge(here, [*objects_arrive(here), *barriers_hold(here), *repeated_exchanges(here)])
    slow = _bandwidths(here) or late_now_and_then(here)
    judge(here, _lost(here), slow)
    if here.world == 1:
        here.remark = "only one rank: it exchanged data only with itself"


def large_packets_arrive(here: RankContext) -> None:
    """Check that large packets arrive: a network may take small packets and lose large ones (an MTU that is too large on the way): then nothing is said, and all wait."""
    held = torch.full((_LARGE_COUNT,), float(here.rank), device=here.device)
    work = dist.all_reduce(held, async_op=True)
    if work is None:
        raise StageFailed("collective-wrong", "all_reduce with async_op=True returns no work to wait for: it was not begun")
    until = time.monotonic() + _LARGE_S
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.002)
    if not work.is_completed():
        stuck = unanswered()
        if stuck:
            here.broken = True  # what is still under way lets no barrier pass
            seen = "small messages arrived, but of %d MiB nothing does: %s" % (4 * _LARGE_COUNT >> 20, "; ".join(stuck))
            remedy = (
                "set the same MTU on all hosts and switches, or a smaller one here (ping -M do -s 1472 shows what gets through)"
            )
            raise StageFailed("mtu-black-hole", seen, remedy)
    work.wait()


def _integers_of(here: RankContext, rank: int, count: int) -> torch.Tensor:
    """Return a rank's own integers, so small that any order of adding those of all ranks is exact in bfloat16 too."""
    high = max(1, min(4, _EXACT_IN_BFLOAT16 // here.world))
    return small_integers((count,), 7919 * count + rank, -high, high + 1)


def _compared(what: str, found: torch.Tensor, wanted: torch.Tensor) -> List[Fault]:
    whole = not (found.is_floating_point() or wanted.is_floating_point())
    held, right = (
        found.detach().to("cpu", copy=True),
        wanted.detach().to("cpu"),
    )  # one that ended too early may still write into it
    held, right = (one.to(torch.int64 if whole else torch.float64).flatten() for one in (held, right))
    differing = differing_elements(held, right)
    if not differing:
        return []
    place = int((held != right).nonzero()[0])
    words = "element %d is %d, not %d" if whole else "element %d is %g, not %g"
    figures = words % (place, held[place].item(), right[place].item())
    return [("collective-wrong", "%s: %d of %d elements are wrong; %s" % (what, differing, wanted.numel(), figures))]


def _reduced(here: RankContext, dtype: torch.dtype, count: int) -> List[Fault]:
    if dtype == torch.bfloat16 and here.world > _EXACT_IN_BFLOAT16:
        return []
    factor = _WIDE.get(dtype, 1)
    held = _integers_of(here, here.rank, count).to(here.device, dtype) * factor
    if not backend_has(here.backend, lambda: _all_reduce(held)):
        return []
    wanted = sum((_integers_of(here, rank, count).long() for rank in range(here.world)), torch.zeros(count).long()) * factor
    return _compared("all_reduce of %d %s" % (count, str(dtype)[6:]), held, wanted)


def _all_reduce(held: torch.Tensor) -> None:
    work = dist.all_reduce(held, async_op=held.numel() == _ASYNCHRONOUS)
    if work is not None:
        work.wait()


def _ordered(here: RankContext) -> List[Fault]:
    """As gradient scaling asks whether any rank met an inf."""
    faults: List[Fault] = []
    rows = torch.tensor([[float("inf") if rank == here.world - 1 else 0.0, rank + 1.0] for rank in range(here.world)])
    for op, wanted in (("MAX", rows.amax(0)), ("MIN", rows.amin(0))):
        held = rows[here.rank].clone().to(here.device)
        dist.all_reduce(held, op=getattr(dist.ReduceOp, op))
        faults += _compared("all_reduce (%s)" % op, held, wanted)
    whole = torch.tensor([[_WIDE[torch.int64] + rank, -rank] for rank in range(here.world)])
    for op, wanted in (("MAX", whole.amax(0)), ("MIN", whole.amin(0))):
        kept = whole[here.rank].clone().to(here.device)
        dist.all_reduce(kept, op=getattr(dist.ReduceOp, op))
        faults += _compared("all_reduce (%s) of int64" % op, kept, wanted)
    marks = torch.tensor([[1 + rank % 100, 200 - rank % 100] for rank in range(here.world)], dtype=torch.uint8)
    for op, wanted in (("MAX", marks.amax(0)), ("MIN", marks.amin(0))):  # masks, and the bytes of what is sent as text
        held = marks[here.rank].clone().to(here.device)
        if backend_has(here.backend, functools.partial(dist.all_reduce, held, op=getattr(dist.ReduceOp, op))):
            faults += _compared("all_reduce (%s) of uint8" % op, held, wanted)
    return faults


def _grouped(here: RankContext) -> List[Fault]:
    """Try groups of some ranks (tensor, pipeline and data parallel training have them): what one does stays within it."""
    faults: List[Fault] = []
    halves = [[rank for rank in range(here.world) if rank % 2 == odd] for odd in (0, 1)]
    for number, members in enumerate(filter(None, [*halves, sorted({0, here.world - 1})])):
        group = dist.new_group(members)  # all ranks take part in making it
        if here.rank not in members:
            continue
        what = "the group of ranks %s" % few(members)
        if dist.get_world_size(group) != len(members) or dist.get_rank(group) != members.index(here.rank):
            numbers = (what, dist.get_rank(group), dist.get_world_size(group), here.rank)
            faults.append(("collective-wrong", "%s: rank %d of %d is what rank %d is told that it is there" % numbers))
            continue  # in a group of others each would wait for somebody else
        held = _integers_of(here, here.rank, 257).to(here.device)
        dist.all_reduce(held, group=group)
        wanted = torch.stack([_integers_of(here, rank, 257) for rank in members]).sum(0)
        faults += _compared("all_reduce in %s" % what, held, wanted)
        sent = _integers_of(here, here.rank, 255).to(here.device)
        dist.broadcast(sent, members[-1], group=group)
        faults += _compared("broadcast in %s" % what, sent, _integers_of(here, members[-1], 255))
        if len(members) > 1:
            faults += holds_all(here, "barrier %d, of %s" % (number, what), functools.partial(dist.barrier, group), members[-1])
    return faults


def _sums_of_nothing(here: RankContext) -> List[Fault]:
    """Try what a rank has whose last batch is empty: a sum and a broadcast of no elements come back."""
    if seldom_used_is_right():
        held = torch.empty(0, 3, device=here.device)
        dist.all_reduce(held)
        dist.broadcast(held, 0)
        here.synchronize()
    return []


def _swapped(here: RankContext) -> List[Fault]:
    """Between pairs of ranks: each has a part for every other (mixtures of experts), and hands on to the next one (pipelines)."""
    if here.world == 1 or (here.kind == "cuda" and here.backend == "gloo"):  # gloo does these on the CPU only
        return []
    every = [_integers_of(here, rank, here.world * 101) for rank in range(here.world)]
    given = every[here.rank].to(here.device)
    taken = torch.empty_like(given)
    faults = _unequal_parts(here)
    before, after = (here.rank - 1) % here.world, (here.rank + 1) % here.world
    second = torch.empty_like(given)
    sent = [dist.P2POp(dist.isend, one, after) for one in (given, given * 2 + 1)]
    for work in dist.batch_isend_irecv([*sent, *(dist.P2POp(dist.irecv, one, before) for one in (taken, second))]):
        work.wait()
    faults += _compared("what rank %d sent (batch_isend_irecv)" % before, taken, every[before])
    return faults + _compared("what rank %d sent second (batch_isend_irecv)" % before, second, every[before] * 2 + 1)


def _unequal_parts(here: RankContext) -> List[Fault]:
    """As experts get words: each rank another number from each other."""
    sizes = [[1 + (3 * sender + 5 * receiver) % 7 for receiver in range(here.world)] for sender in range(here.world)]
    every = [_integers_of(here, rank, 7 * here.world)[: sum(sizes[rank])] for rank in range(here.world)]
    mine = [sizes[rank][here.rank] for rank in range(here.world)]
    taken = torch.zeros(sum(mine), device=here.device)
    given = every[here.rank].to(here.device)
    if not backend_has(here.backend, lambda: dist.all_to_all_single(taken, given, mine, sizes[here.rank])):
        return []
    parts = [every[rank].split(sizes[rank])[here.rank] for rank in range(here.world)]
    return _compared("all_to_all_single of unequal parts", taken, torch.cat(parts))


def _largest_size(here: RankContext) -> List[Fault]:
    """Rings and trees go other ways with it than with less. Made and judged on the device: on the CPU it would take seconds."""
    count = _sizes(here)[-1][0] // 4
    held = torch.arange(count, dtype=torch.int32, device=here.device).remainder_(1021).float()
    wanted = held * here.world + here.world * (here.world - 1) // 2
    held += here.rank
    dist.all_reduce(held)
    differing = differing_elements(held, wanted)
    return [("collective-wrong", "all_reduce of %d float32: %d of them wrong" % (count, differing))] if differing else []


def _by_table(here: RankContext) -> List[Fault]:
    return each_is_right(here, functools.partial(backend_has, here.backend), _compared)


def _sizes(here: RankContext) -> List[Tuple[int, int]]:
    """Bytes, and how many times: all ranks must agree, so no clock has a say."""
    if here.backend == "gloo":  # through the host's memory and TCP, also between ranks on a GPU
        return [(16 << 20, 1)] if here.level == QUICK else [(1 << 20, 10), (16 << 20, 3)]
    large = [(1 << 20, 50), (16 << 20, 20), (256 << 20, 10)][2 * (here.level == QUICK) :]
    return large + [(1 << 30, 5)] * (here.level == THOROUGH)


def _lost(here: RankContext) -> List[Fault]:
    """Return what TCP hides: it sends anew what is lost, a fifth of a second later or more."""
    lost, sent = lost_on_the_way()
    least, share = _LOST_WITHIN if here.on_one_host else _LOST_BETWEEN
    if lost < least or lost < share * sent:
        return []
    where = "within this host" if here.on_one_host else "between hosts"
    seen = "packets are lost on the way to other ranks %s: %d of %d segments had to be sent again"
    return [("packet-loss", seen % (where, lost, sent))]


def _bandwidths(here: RankContext) -> List[Fault]:
    """Bus bandwidth as nccl-tests defines it: what each link must carry, 2(n-1)/n of the bytes, whatever the number of ranks."""
    slow: List[Fault] = []
    single = torch.ones(1, device=here.device)
    latency = slowest(here, _timed(here, lambda: dist.all_reduce(single), 50))
    if here.world > 1:
        here.measure("latency", latency * 1e6, "us")
    for size, calls in _sizes(here):
        held = torch.zeros(size // 4, device=here.device)
        work = functools.partial(dist.all_reduce, held)
        calls = fitting(calls, slowest(here, timed_once(here, work)))
        if not calls:
            here.remark = "the network is too slow to time %d MiB within this stage" % (size >> 20)
            return [("collective-slow", here.remark + ", though all ranks are on one host")] if here.on_one_host else []
        seconds = slowest(here, _timed(here, work, calls))
        del held
        if here.world > 1:
            moved = 2 * (here.world - 1) / here.world * size
            here.measure("bus bandwidth of %d MiB" % (size >> 20), moved / seconds / 1e9, "GB/s")
            if here.on_one_host and moved / seconds < _LEAST_WITHIN / patience():
                slow = held_up(size, seconds)
    return slow


def fitting(calls: int, seconds: float) -> int:
    """Return how many times an exchange that takes so long is timed: as often as asked, or what fits into a few seconds; 0 where not even
    once does, as with 256 MiB over Ethernet of 1 Gbit/s.

    >>> fitting(10, 0.01), fitting(10, 0.5), fitting(10, 4.0), fitting(5, 17.0)
    (10, 4, 1, 0)
    """
    return min(calls, int(_TIMING_S / seconds) or (1 if seconds < _TIMED_ONCE_S else 0))


def _timed(here: RankContext, work: Callable[[], object], calls: int) -> float:
    """Seconds of one call on this rank, after one that is not counted: the best of three rounds that begin together."""
    work()
    best = float("inf")
    for _ in range(3):
        dist.barrier()
        here.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        here.synchronize()
        best = min(best, (time.perf_counter() - started) / calls)
    return best
