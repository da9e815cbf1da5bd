"""What the ranks of the joint pre-flight exchange: every kind of exchange that trainings use, each with one right result."""

from __future__ import annotations

import time
from itertools import chain, product
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple

from torchtune_sys.preflight.joint.worker.patterns import differing, of_all_patterns, pattern, roots, sources, sum_of_patterns
from torchtune_sys.smoke.worker.exchange_names import GATHERS, SCATTERS, backend_has, named_now
from torchtune_sys.smoke.worker.measures import has_bfloat16, run_delay_of_all, waits_for_all

LARGE = 1 << 19
REPEATS = 3
_SMALL_SUMS = 1, 257
_BUCKET = (1 << 21) + 5
"""Elements of a sum as large as those of gradients, for which libraries take other ways than for small ones; a bucket of DistributedDataParallel has
25 MiB (bucket_cap_mb)."""
_PART = 257
_WIDE = (1 << 40) + 1
"""What whole numbers are multiplied with, so that 32 bits do not hold them."""
_ALL_TO_ALL_RANKS = 64
"""Of more ranks not each exchanges with each or with one: NCCL makes a connection for every two then; experts are spread over so many at most."""
_EXACT_IN_BFLOAT16 = 256
"""The next whole number it does not hold, and bytes hold none above 255."""
_FEW = 1 << 16
"""Elements whose exchange takes no longer for their number."""
EXCHANGED = 1 << 17
EXCHANGED_BYTES = 4 * EXCHANGED
SWEEPS = 3
SWEEPS_S = 1.5
WAYS_TOLD = 256
"""Up to so many others the time of each way is told; of more, the slowest."""
SLOWEST_TOLD = 16
Fields = Dict[str, Any]
Exchange = Tuple[str, Callable[[], object], Any, Any]
"""What it is, what does it, where its result is then, and what that must be."""


class TimedExchange(NamedTuple):
    """An exchange, how long it and the copy of its result took here (0 for one of many numbers), and how long this rank's threads waited for a CPU in it and
    before it; where nobody tells, longer than anything takes."""

    what: str
    exchange: Callable[[], object]
    result: Any
    taken_s: float
    waited_s: float


_UNKNOWN_S = 3600.0


_ALL_GATHER, _BROADCAST, _SUM = "all_gather", "broadcast of ", "all_reduce of %d elements"


def is_basic(what: str) -> bool:
    """Return whether even a group that is tested in haste does this exchange."""
    return what == _ALL_GATHER or what.startswith(_BROADCAST) or what in [_SUM % size for size in _SMALL_SUMS]


class GroupRanks(NamedTuple):
    """The ranks that exchange: of ``group``, or of all where it is None."""

    torch: Any
    rank: int
    world: int
    device: Any
    group: Any = None

    def at(self, rank: int) -> int:
        """Return the number among all ranks of a rank of the group."""
        return rank if self.group is None else int(self.torch.distributed.get_global_rank(self.group, rank))

    def later(self, exchange: Callable[..., Any], *given: Any, **named: Any) -> Callable[[], object]:
        """Return what does it in the group; a closure over a loop's variable would do the last one."""
        return lambda: exchange(*given, group=self.group, **named)


def each_exchanged(task: Fields, told: Callable[[Fields], None], backend: str, device: Any, store: Any) -> Fields:
    """Do each exchange that trainings use, and look at what comes of it, to the bit. ``store`` is the group's. Returns seconds, and under ``wrong`` what is wrong."""
    import torch
    import torch.distributed as dist

    rank, world = int(task["rank"]), int(task["world"])
    peers = GroupRanks(torch, rank, world, device)
    exchanges = basic(peers) if task.get("short") else chain(collectives(peers), _handed_on(peers))
    found = {"backend": backend, **each_of(peers, exchanges, told, backend, float(task.get("late_s", _UNKNOWN_S)))}
    told({"stage": "barrier"})
    if not waits_for_all(store, "%s: all are at the barrier" % task["prefix"], rank == world - 1, dist.barrier):
        found["wrong"] = "barrier: it let this rank go on before rank %d of the group had come" % (world - 1)
    if task.get("timed"):
        found["ways"] = exchanged(torch, device, rank, task["timed"], told)
    found["ok"] = "wrong" not in found
    return found


def each_of(
    peers: GroupRanks, exchanges: Iterable[Exchange], told: Callable[[Fields], None], backend: str, limit_s: float
) -> Fields:
    """Do them; those of a few numbers that took longer than ``limit_s`` again. Returns which was the latest, and under ``wrong`` what is wrong."""
    found: Fields = {}
    done, waited_s = [], run_delay_of_all()
    for what, exchange, result, wanted in exchanges:
        told({"stage": what})
        began = time.perf_counter()
        if not backend_has(backend, exchange):
            continue
        came = result.cpu()
        taken_s, before_s, waited_s = time.perf_counter() - began, waited_s, run_delay_of_all()
        if result.numel() > _FEW:  # at this rank: all ranks are to have as many to compare
            taken_s = 0.0
        done.append(TimedExchange(what, exchange, result, taken_s, _since(before_s, waited_s)))
        words = differing(came, wanted)
        if words:
            found["wrong"] = "%s: %s" % (what, words)
    found["latest"] = _latest(peers, done, limit_s)
    return found


def _latest(peers: GroupRanks, done: List[TimedExchange], limit_s: float) -> Tuple[str, float]:
    """Return the first exchange that is late however often it is done, and its seconds, at best, beyond what the ranks waited for a CPU meanwhile; else the
    latest. What connects first, as NCCL's first exchanges do, is late once."""
    late_s = _beyond_waiting(peers, done)  # the same at all ranks
    for at in [at for at, seconds in enumerate(late_s.tolist()) if seconds > limit_s]:
        for _again in range(REPEATS - 1):
            if late_s[at] > limit_s:
                late_s[at] = min(late_s[at], _beyond_waiting(peers, [_timed_again(done[at])])[0])
        if late_s[at] > limit_s:
            return done[at].what, float(late_s[at])
    at = int(late_s.argmax())
    return done[at].what, float(late_s[at])


def _timed_again(done: TimedExchange) -> TimedExchange:
    before_s, began = run_delay_of_all(), time.perf_counter()
    done.exchange()
    done.result.cpu()
    taken_s = time.perf_counter() - began
    return done._replace(taken_s=taken_s, waited_s=_since(before_s, run_delay_of_all()))


def _since(before_s: float, waited_s: float) -> float:
    """Return how long the threads waited for a CPU between two looks; a thread that has ended takes its time with it."""
    return max(waited_s - before_s, 0.0) if before_s else _UNKNOWN_S


def _beyond_waiting(peers: GroupRanks, done: List[TimedExchange]) -> Any:
    """Return the longest that any rank took for each, less what all of them together waited."""
    torch, told = peers.torch, [(each.taken_s, each.waited_s) for each in done]
    own = torch.tensor(told, dtype=torch.float64).to(peers.device)
    of_all = own.new_zeros(peers.world, *own.shape)
    torch.distributed.all_gather([*of_all], own, group=peers.group)
    taken_s, waited_s = of_all.unbind(2)
    return taken_s.amax(0) - waited_s.sum(0)


def exchanged(torch: Any, device: Any, rank: int, peers: List[int], told: Callable[[Fields], None]) -> Dict[str, List[int]]:
    """Return the microseconds from here to each of ``peers`` and back with a word, pair by pair, in each sweep over all pairs: a moment that disturbs one
    sweep does not disturb them all. One pair at a time, so that a slow way shows whatever the ways beside it carry."""
    import torch.distributed as dist

    count, at = len(peers) + len(peers) % 2, peers.index(rank)
    load, word = torch.zeros(EXCHANGED, device=device), torch.zeros(1, device=device)
    found: Dict[str, List[int]] = {}
    began = time.monotonic()
    for sweep in range(SWEEPS):
        for step in range(count - 1):
            other = partner(step, at, count)
            if other < len(peers):
                told({"stage": "an exchange with rank %d of the group" % peers[other]})
                taken = exchange(torch, load, word, peers[other], at < other)
                found.setdefault(str(other), []).append(taken)
        spent = torch.tensor([time.monotonic() - began], device=device)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        if float(spent) * (sweep + 2) / (sweep + 1) > SWEEPS_S:
            break
    if len(found) > WAYS_TOLD:
        slowest = sorted(found, key=lambda other: min(found[other]), reverse=True)
        found = {other: found[other] for other in [*slowest[:SLOWEST_TOLD], *slowest[:: max(len(slowest) // SLOWEST_TOLD, 1)]]}
    return found


def partner(step: int, at: int, count: int) -> int:
    """Return with whom the one at this place exchanges; an even number of places meet pair by pair, each pair once."""
    last = count - 1
    if at == last:
        return step * (count // 2) % last
    other = (step - at) % last
    return last if other == at else other


def exchange(torch: Any, load: Any, word: Any, peer: int, is_first: bool) -> int:
    """Send there, then back. Each direction begins when the receiver is ready, so that nobody is charged for a partner that was late."""
    import torch.distributed as dist

    taken = 0
    for sends in (is_first, not is_first):
        if not sends:
            dist.send(word, peer)
            dist.recv(load, peer)
            dist.send(word, peer)
            continue
        dist.recv(word, peer)
        began = time.perf_counter()
        dist.send(load, peer)
        dist.recv(word, peer)
        if load.device.type == "cuda":
            torch.cuda.synchronize(load.device)
        taken = int((time.perf_counter() - began) * 1e6)
    return taken


def basic(peers: GroupRanks) -> Iterator[Exchange]:
    """Yield what even a group of two that is tested in haste does."""
    torch, dist, rank, world = peers.torch, peers.torch.distributed, peers.rank, peers.world
    yield from _sums(peers, product(_SMALL_SUMS, [0]))
    gathered = torch.zeros(64 * world, device=peers.device)
    own = pattern(torch, 64, rank, 9).to(peers.device)
    wanted = torch.cat([pattern(torch, 64, each, 9) for each in range(world)])
    yield _ALL_GATHER, peers.later(dist.all_gather, list(gathered.chunk(world)), own), gathered, wanted
    for turn, (source, dtype) in enumerate(product(sources(world), (torch.float32, torch.uint8))):  # as weights, and as objects
        sent = pattern(torch, _PART, source, turn).to(dtype)
        held = (sent.clone() if rank == source else torch.zeros_like(sent)).to(peers.device)
        told = _BROADCAST + "%s by rank %d of the group" % (str(dtype).partition(".")[2], source)
        yield told, peers.later(dist.broadcast, held, peers.at(source)), held, sent


def collectives(peers: GroupRanks) -> Iterator[Exchange]:
    """Yield what a group does without connections of each with each."""
    yield from basic(peers)
    yield from _reduced(peers)
    yield from _at_one_rank(peers)


def _sums(peers: GroupRanks, sizes: Iterable[Tuple[int, int]]) -> Iterator[Exchange]:
    """Yield sums of so many numbers each, of the turn's pattern."""
    torch, dist = peers.torch, peers.torch.distributed
    for size, turn in sizes:
        value = pattern(torch, size, peers.rank, turn).to(peers.device)
        yield _SUM % size, peers.later(dist.all_reduce, value), value, sum_of_patterns(torch, size, peers.world, turn)


def _reduced(peers: GroupRanks) -> Iterator[Exchange]:
    torch, dist, rank, world, device = peers.torch, peers.torch.distributed, peers.rank, peers.world, peers.device
    yield from _sums(peers, [*product(_SMALL_SUMS, [1, 2]), *product([LARGE], [0, 1, 2]), (_BUCKET, 3)])
    for name, together in (("MAX", lambda each: each.amax(1)), ("MIN", lambda each: each.amin(1))):
        extreme, wanted = pattern(torch, _PART, rank, 4).to(device), of_all_patterns(torch, _PART, world, 4, together)
        yield "all_reduce (%s)" % name, peers.later(dist.all_reduce, extreme, op=getattr(dist.ReduceOp, name)), extreme, wanted
    signs = (1 - 2 * (pattern(torch, _PART, rank, 4) % 2)).to(device)
    wanted = of_all_patterns(torch, _PART, world, 4, lambda each: 1 - 2 * ((each % 2).sum(1) % 2))
    yield "all_reduce (PRODUCT)", peers.later(dist.all_reduce, signs, op=dist.ReduceOp.PRODUCT), signs, wanted
    whole = pattern(torch, _PART, rank, 5).to(torch.int64).to(device) * _WIDE
    wanted = sum_of_patterns(torch, _PART, world, 5).to(torch.int64) * _WIDE
    yield "all_reduce of int64", peers.later(dist.all_reduce, whole), whole, wanted
    small = [torch.uint8, torch.float16] + [torch.bfloat16] * has_bfloat16(torch, device)
    wanted = of_all_patterns(torch, _PART, world, 6, lambda each: (each % 2).sum(1))
    for dtype in [torch.int32, torch.float64] + small * (world < _EXACT_IN_BFLOAT16):
        bits = (pattern(torch, _PART, rank, 6) % 2).to(dtype).to(device)
        yield "all_reduce of %s" % str(dtype).partition(".")[2], peers.later(dist.all_reduce, bits), bits, wanted
    for gather in named_now(GATHERS)[:1]:
        parts, own = torch.zeros(_PART * world, device=device), pattern(torch, _PART, rank, 8).to(device)
        wanted = torch.cat([pattern(torch, _PART, each, 8) for each in range(world)])
        yield gather.__name__, peers.later(gather, parts, own), parts, wanted
    for scatter in named_now(SCATTERS)[:1]:
        taken, given = torch.zeros(_PART, device=device), pattern(torch, _PART * world, rank, 7).to(device)
        wanted = sum_of_patterns(torch, _PART * world, world, 7)[rank * _PART : (rank + 1) * _PART]
        yield scatter.__name__, peers.later(scatter, taken, given), taken, wanted


def _at_one_rank(peers: GroupRanks) -> Iterator[Exchange]:
    """Yield what one rank collects or deals out, as figures and parts of checkpoints are."""
    torch, dist, rank, world, device = peers.torch, peers.torch.distributed, peers.rank, peers.world, peers.device
    for root in roots(world):
        place, is_root = peers.at(root), rank == root
        looked_at = slice(_PART if is_root else 0)
        given, total = pattern(torch, _PART, rank, root).to(device), sum_of_patterns(torch, _PART, world, root)
        reduce = peers.later(dist.reduce, given, place)
        yield "reduce to rank %d of the group" % root, reduce, given[looked_at], total[looked_at]
        if device.type != "cpu" and world > _ALL_TO_ALL_RANKS:
            continue
        own, came = pattern(torch, 64, rank, root + 1).to(device), torch.zeros(world if is_root else 0, 64, device=device)
        wanted = torch.stack([pattern(torch, 64, each, root + 1) for each in range(world)]) if is_root else came.cpu()
        yield "gather to rank %d of the group" % root, peers.later(dist.gather, own, list(came) or None, place), came, wanted
        dealt = [pattern(torch, _PART, to, root + 2).to(device) for to in range(world)] if is_root else None
        taken, wanted = torch.zeros(_PART, device=device), pattern(torch, _PART, rank, root + 2)
        yield "scatter by rank %d of the group" % root, peers.later(dist.scatter, taken, dealt, place), taken, wanted


def _handed_on(peers: GroupRanks) -> Iterator[Exchange]:
    torch, dist, rank, world, device = peers.torch, peers.torch.distributed, peers.rank, peers.world, peers.device
    nothing = torch.zeros(0)
    yield "barrier", peers.later(dist.barrier), nothing, nothing
    if world <= _ALL_TO_ALL_RANKS:
        given = torch.cat([pattern(torch, 31, rank, to) for to in range(world)]).to(device)
        taken = torch.zeros_like(given)
        wanted = torch.cat([pattern(torch, 31, each, rank) for each in range(world)])
        yield "all_to_all_single", peers.later(dist.all_to_all_single, taken, given), taken, wanted
    if world > 1:
        before, after = (rank - 1) % world, (rank + 1) % world
        sent, came = pattern(torch, _PART, rank, 8).to(device), torch.zeros(_PART, device=device)

        def handed_on() -> None:
            steps = [peers.later(dist.send, sent, peers.at(after)), peers.later(dist.recv, came, peers.at(before))]
            for step in steps if rank % 2 == 0 else steps[::-1]:
                step()

        yield "what rank %d of the group sends (send, recv)" % before, handed_on, came, pattern(torch, _PART, before, 8)
