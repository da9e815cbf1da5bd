"""Every exchange, for every kind of number and every way of reducing, with rows whose results have one right answer."""

from __future__ import annotations

import contextlib
import datetime
import functools
import warnings
from typing import Any, Callable, Iterator, List, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import RankContext, gloo_scatters_by_operation
from torchtune_sys.smoke.worker.exchange_names import GATHERS, SCATTERS, named_now
from torchtune_sys.smoke.worker.exchanges.seldom_exchanges import seldom_exchanges, waits_no_longer
from torchtune_sys.smoke.worker.measures import waits_for_all
from torchtune_sys.smoke.worker.rendezvous_store import refuse_strangers

_PLACES = 13
_LONG_ROW, _LARGE_PARTS = 4099, 140003
_MOST_RANKS = 256  # sums of so many ones are exact in bfloat16
_NUMBERS = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64")
_WIDE_NUMBERS = ("float32", "float64", "int32", "int64")
_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_TAGS = (5, 7)
_COMING_S = 30.0
_LONG_TEXT = 200000
Compared = Callable[[str, torch.Tensor, torch.Tensor], List[Fault]]
Tried = Callable[[Callable[[], object]], bool]


def each_is_right(here: RankContext, tried: Tried, compared: Compared) -> List[Fault]:
    """Return what is wrong. ``tried`` says whether the backend has an exchange, ``compared`` names what differs."""
    faults: List[Fault] = []
    ways = _Ways(dist.new_group([*range(here.world)]))
    parts: List[Callable[[RankContext], Iterator[_Row]]] = [
        functools.partial(_reductions, ways=ways),
        functools.partial(_movements, ways=ways),
    ]
    for part in parts + [_within_others, seldom_exchanges] * (here.world <= _MOST_RANKS):
        for what, exchange, found, wanted in part(here):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of names that are to go, as long as they are there
                done = tried(exchange)
            if done:
                faults += compared(what, found(), wanted)
    dist.destroy_process_group(ways.group)
    if here.world > 1 and not (here.kind == "cuda" and here.backend == "gloo"):  # gloo does these on the CPU only
        faults += _one_after_the_other(here, compared)
    return faults


_Row = Tuple[str, Callable[[], object], Callable[[], torch.Tensor], torch.Tensor]


class _Ways:
    """How exchanges are made, in turns: among all ranks or in a group of their own, waited for at once or in a second step. Each exchange meets all of these, with one operation or
    another and one kind of number or another."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.kinds = self.turn = 0

    def next_kind(self) -> None:
        """Begin with the way after that with which the last kind began."""
        self.kinds += 1
        self.turn = self.kinds

    def made(self, what: str, exchange: Callable[..., Any], *given: Any, **more: Any) -> Tuple[str, Callable[[], object]]:
        """Return what it is called then, and the exchange."""
        later, within = self.turn % 2 == 1, self.turn // 2 % 2 == 1
        self.turn += 1

        def done() -> None:
            work = exchange(*given, async_op=later, **more, **({"group": self.group} if within else {}))
            if later and work is not None:
                work.wait()

        return what + ", asynchronous" * later + ", in a group" * within, done


def _row_of(rank: int, op: str, count: int, first: int = 0) -> torch.Tensor:
    """Whole numbers whose sum, product or bits fit into a byte, whatever the number of ranks: so many from a place on."""
    places = torch.arange(first, first + count)
    if op == "PRODUCT":
        return torch.where((places + rank) % 8 == 0, 2, 1) if rank < 6 else torch.ones(count, dtype=torch.int64)
    if op.startswith("B"):
        return (places * 11 + rank * 37) % 128
    return ((places + rank) % 3 == 0).to(torch.int64) + (2 * (rank == 0 and op != "SUM"))


def _row_to_reduce(rank: int, op: str, count: int, dtype: torch.dtype, first: int = 0) -> torch.Tensor:
    """Return a rank's row. Where the least and the largest are asked for, some numbers are below 0, and the farthest from it: to go by their sizes, or by their bits, gives others."""
    row = _row_of(rank, op, count, first)
    if op in ("MIN", "MAX") and dtype.is_signed:
        row -= 3 * ((torch.arange(first, first + count) + rank) % 4 == 1)
    return row


def _folded_rows(op: str, rows: torch.Tensor) -> torch.Tensor:
    if op in ("MIN", "MAX"):
        return rows.amin(0) if op == "MIN" else rows.amax(0)
    if op == "AVG":
        return rows.double().sum(0) / len(rows)
    folds = {
        "SUM": torch.add,
        "PRODUCT": torch.mul,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    return functools.reduce(folds[op], rows)


def _reductions(here: RankContext, ways: _Ways) -> Iterator[_Row]:
    exact = here.world & (here.world - 1) == 0
    for kind in _NUMBERS if here.world <= _MOST_RANKS else _WIDE_NUMBERS:
        dtype = getattr(torch, kind)
        for op in _OPS:
            if not hasattr(dist.ReduceOp, op) or (dtype.is_floating_point and op.startswith("B")):
                continue
            if op == "AVG" and not (exact and dtype.is_floating_point):
                continue
            yield from _reduced_by_each(here, op, dtype, _PLACES, ways)
    for count in (_LONG_ROW, *_large_part(here)):
        yield from _reduced_by_each(here, "SUM", torch.float32, count, ways)


def _large_part(here: RankContext) -> List[int]:
    """Return how many elements a rank has its part in of what is large: backends take other ways with it, and together it stays the same whatever the number of ranks."""
    return [max(1003, _LARGE_PARTS // here.world)] if here.world <= _MOST_RANKS else []


def _reduced_by_each(here: RankContext, op: str, dtype: torch.dtype, count: int, ways: _Ways) -> Iterator[_Row]:
    ways.next_kind()
    root, how = ways.kinds % here.world, getattr(dist.ReduceOp, op)
    words = "%s (%s) of %d %s" % ("%s", op, count, str(dtype)[6:])
    rows = torch.stack([_row_to_reduce(rank, op, count, dtype) for rank in range(here.world)])
    wanted = _folded_rows(op, rows)
    held = rows[here.rank].to(here.device, dtype, copy=True)
    yield (*ways.made(words % "all_reduce", dist.all_reduce, held, op=how), lambda: held, wanted)
    sent = rows[here.rank].to(here.device, dtype, copy=True)
    yield (*ways.made(words % "reduce", dist.reduce, sent, root, op=how), lambda: sent if here.rank == root else wanted, wanted)
    if op != "SUM" and here.backend == "gloo" and not gloo_scatters_by_operation():
        return
    part = _folded_rows(
        op, torch.stack([_row_to_reduce(rank, op, count, dtype, here.rank * count) for rank in range(here.world)])
    )
    given = _row_to_reduce(here.rank, op, count * here.world, dtype).to(here.device, dtype, copy=True)
    for scatter in named_now(SCATTERS):
        taken = torch.zeros(count, device=here.device, dtype=dtype)
        yield (*ways.made(words % scatter.__name__, scatter, taken, given, op=how), functools.partial(_itself, taken), part)
    got = torch.zeros(count, device=here.device, dtype=dtype)
    yield (*ways.made(words % "reduce_scatter", dist.reduce_scatter, got, [*given.chunk(here.world)], op=how), lambda: got, part)


def _itself(found: torch.Tensor) -> torch.Tensor:
    return found


_MovedRow = Tuple[str, Callable[..., Any], Tuple[Any, ...], Callable[[], torch.Tensor], torch.Tensor]
"""A row whose exchange is yet to be given the way in which it is made."""


def _movements(here: RankContext, ways: _Ways) -> Iterator[_Row]:
    for kind in (*_NUMBERS, "bool"):
        for count in (_PLACES, _LONG_ROW, *_large_part(here)) if kind == "float32" else (_PLACES,):
            ways.next_kind()
            for what, exchange, given, found, wanted in _moved_alike(here, kind, count, ways.kinds % here.world):
                yield (*ways.made("%s of %d %s" % (what, count, kind), exchange, *given), found, wanted)


def _moved_alike(here: RankContext, kind: str, count: int, root: int) -> Iterator[_MovedRow]:
    world, own, dtype = here.world, here.rank, getattr(torch, kind)
    rows = [_row_of(rank, "BOR", count) + (rank == 0) for rank in range(world)]
    if kind == "bool":
        rows = [row % 2 for row in rows]
    every, mine = torch.cat(rows), rows[own].to(here.device, dtype, copy=True)
    held, at_root, pieces = mine.clone(), own == root, [torch.zeros_like(mine) for _ in range(world)]
    yield "broadcast", dist.broadcast, (held, root), functools.partial(_itself, held), rows[root]
    yield "all_gather", dist.all_gather, (pieces, mine), functools.partial(torch.cat, pieces), every
    for gather in named_now(GATHERS):
        joined = torch.zeros(world * count, device=here.device, dtype=dtype)
        yield gather.__name__, gather, (joined, mine), functools.partial(_itself, joined), every
    got, taken = [torch.zeros_like(mine) for _ in range(world)], torch.zeros_like(mine)
    yield (
        "gather",
        dist.gather,
        (mine, got if at_root else None, root),
        functools.partial(torch.cat, got if at_root else rows),
        every,
    )
    given = [row.to(here.device, dtype) for row in rows] if at_root else None
    yield "scatter", dist.scatter, (taken, given, root), functools.partial(_itself, taken), rows[own]
    if world == 1 or (here.kind == "cuda" and here.backend == "gloo"):
        return
    wide = torch.cat([rows[own].roll(rank) for rank in range(world)]).to(here.device, dtype, copy=True)
    swapped, wanted = torch.zeros_like(wide), torch.cat([row.roll(own) for row in rows])
    yield "all_to_all_single", dist.all_to_all_single, (swapped, wide), functools.partial(_itself, swapped), wanted
    parts = [torch.zeros_like(mine) for _ in range(world)]
    yield "all_to_all", dist.all_to_all, (parts, [*wide.chunk(world)]), functools.partial(torch.cat, parts), wanted


def _within_others(here: RankContext) -> Iterator[_Row]:
    """Yield exchanges of a piece of a larger tensor, as buckets and flat parameters are: what lies beside it stays."""
    world, own = here.world, here.rank
    gather, scatter = named_now(GATHERS)[0], named_now(SCATTERS)[0]
    for kind in ("float32", "bfloat16", "int64"):
        rows = [_row_of(rank, "SUM", _PLACES * world) for rank in range(world)]
        total, beside = sum(rows), torch.tensor([9, 9, 9])
        part = slice(own * _PLACES, (own + 1) * _PLACES)
        given = rows[own].to(here.device, getattr(torch, kind))
        for name, start, exchange, wanted in (
            ("all_reduce", given, lambda piece, _: dist.all_reduce(piece), total),
            ("broadcast", given, lambda piece, _: dist.broadcast(piece, world - 1), rows[-1]),
            (gather.__name__, given, lambda piece, mine: gather(piece, mine[own * _PLACES : (own + 1) * _PLACES].clone()), torch.cat([rows[rank][rank * _PLACES : (rank + 1) * _PLACES] for rank in range(world)])),
            (scatter.__name__, given[part], lambda piece, mine: scatter(piece, mine.clone()), total[part]),
        ):  # fmt: skip
            whole = torch.cat([beside.to(start), start, beside.to(start)])
            yield (
                "%s of %s in a piece of a tensor" % (name, kind),
                functools.partial(exchange, whole[3:-3], given),
                functools.partial(_itself, whole),
                torch.cat([beside, wanted, beside]),
            )


def _one_after_the_other(here: RankContext, compared: Compared) -> List[Fault]:
    """Try several messages on one way, each waited for, and with gloo by their tags in another order than they were sent."""
    before, after = (here.rank - 1) % here.world, (here.rank + 1) % here.world
    faults: List[Fault] = []
    for turn in range(3):
        sent, taken = (
            (_row_of(here.rank, "BOR", _PLACES) + turn).to(here.device),
            torch.zeros(_PLACES, dtype=torch.int64, device=here.device),
        )
        steps = [functools.partial(dist.send, sent, after), functools.partial(dist.recv, taken, before)]
        for step in steps if here.rank % 2 == 0 else steps[::-1]:
            step()
        faults += compared("message %d from rank %d (send, recv)" % (turn, before), taken, _row_of(before, "BOR", _PLACES) + turn)
    both = [(_row_of(here.rank, "BOR", _PLACES) + turn).to(here.device) for turn in (3, 4)]
    into = [torch.zeros_like(one) for one in both]
    ops = [dist.P2POp(dist.isend, one, peer) for one, peer in zip(both, (after, before))]
    for work in dist.batch_isend_irecv([*ops, *(dist.P2POp(dist.irecv, one, peer) for one, peer in zip(into, (before, after)))]):
        work.wait()
    for turn, taken, peer in zip((3, 4), into, (before, after)):
        faults += compared(
            "message %d from rank %d (batch_isend_irecv)" % (turn, peer), taken, _row_of(peer, "BOR", _PLACES) + turn
        )
    if here.backend != "gloo":
        return faults
    out = [(_row_of(here.rank, "BOR", _PLACES) + tag).to(here.device) for tag in _TAGS]
    works = [dist.isend(one, after, tag=tag) for one, tag in zip(out, _TAGS)]
    for tag in reversed(_TAGS):
        taken = torch.zeros(_PLACES, dtype=torch.int64, device=here.device)
        dist.irecv(taken, before, tag=tag).wait()
        faults += compared(
            "the message of tag %d from rank %d (isend, irecv)" % (tag, before), taken, _row_of(before, "BOR", _PLACES) + tag
        )
    for work in works:
        work.wait()
    work, taken = dist.isend(out[0], after, tag=_TAGS[0] + 1), torch.zeros_like(out[0])
    found = dist.recv(taken, tag=_TAGS[0] + 1)
    work.wait()
    if found != before:
        faults.append(("collective-wrong", "recv from anyone names rank %s as the sender, not rank %d" % (found, before)))
    return faults + compared(
        "the message of rank %d (recv from anyone)" % before, taken, _row_of(before, "BOR", _PLACES) + _TAGS[0]
    )


def objects_arrive(here: RankContext) -> List[Fault]:
    """Return what comes wrong of Python's objects, which metrics, file names and seeds travel as."""
    if here.world > _MOST_RANKS or not hasattr(dist.distributed_c10d, "_unpickler"):
        return []
    refuse_strangers(here)
    with plain_objects_only():
        return _objects_exchanged(here)


@contextlib.contextmanager
def plain_objects_only() -> Iterator[None]:
    """Let torch make nothing but numbers, strings, lists and dictionaries of what other ranks send: a pickle names no class and no function here."""
    c10d: Any = dist.distributed_c10d
    torchs_own = c10d._unpickler

    class Plain(torchs_own):  # type: ignore[misc,valid-type]
        def find_class(self, module_name: str, name: str) -> Any:
            raise ValueError("another rank sent %s.%s, which is no plain object" % (module_name, name))

    c10d._unpickler = Plain
    try:
        yield
    finally:
        c10d._unpickler = torchs_own


def _objects_exchanged(here: RankContext) -> List[Fault]:
    every = [
        {"rank": rank, "words": ["word %d" % rank] * (rank % 4), "long": [*range(2000 * (1 + rank % 4))]}
        for rank in range(here.world)
    ]
    root, own = here.world - 1, every[here.rank]
    gathered: List[Any] = [None] * here.world
    dist.all_gather_object(gathered, own)
    told: List[Any] = [own, here.rank, str(here.rank) * _LONG_TEXT]
    dist.broadcast_object_list(told, src=root)
    given: List[Any] = [None]
    dist.scatter_object_list(given, every if here.rank == root else None, src=root)
    found: List[Any] = [None] * here.world
    dist.gather_object(own, found if here.rank == root else None, dst=root)
    taken, before = _objects_handed_on(here) if here.backend == "gloo" and here.world > 1 else ([], 0)
    rows: Tuple[Tuple[str, List[Any], List[Any]], ...] = (
        ("recv_object_list from rank %d" % before, taken, [[before, "first"], [before, "second"]] if taken else []),
        ("all_gather_object", gathered, every),
        ("broadcast_object_list from rank %d" % root, told, [every[root], root, str(root) * _LONG_TEXT]),
        ("scatter_object_list from rank %d" % root, given, [own]),
        ("gather_object at rank %d" % root, found if here.rank == root else every, every),
    )
    return [
        ("collective-wrong", "%s: %d of %d objects are not those that were sent" % (name, off, len(right)))
        for name, seen, right in rows
        for off in [sum(one != other for one, other in zip(seen, right)) + abs(len(seen) - len(right))]
        if off
    ]


def _objects_handed_on(here: RankContext) -> Tuple[List[Any], int]:
    """Hand two lists to the next rank; return those of the rank before, and its number."""
    before, after, taken = (here.rank - 1) % here.world, (here.rank + 1) % here.world, []
    for word in ("first", "second"):
        held: List[Any] = [None, None]
        steps = [
            functools.partial(dist.send_object_list, [here.rank, word], dst=after),
            functools.partial(dist.recv_object_list, held, src=before),
        ]
        for step in steps if here.rank % 2 == 0 else steps[::-1]:
            step()
        taken.append(held)
    return taken, before


def _all_come(here: RankContext) -> None:
    """gloo's barrier that names who does not come."""
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=_COMING_S))


def barriers_hold(here: RankContext) -> List[Fault]:
    """Return the barriers that let a rank through before all have come."""
    faults = holds_all(here, "barrier", dist.barrier)
    if here.backend == "gloo":  # it is gloo's alone
        faults += holds_all(here, "monitored_barrier", functools.partial(_all_come, here))
        faults += waits_no_longer(here)
    return faults


def holds_all(here: RankContext, name: str, wait: Callable[[], object], last: int = -1) -> List[Fault]:
    """Nobody goes on before the last rank has come, which dawdles: ``last`` (-1: of all)."""

    def waited() -> None:
        wait()
        here.synchronize()

    last %= here.world
    if waits_for_all(here.store, "all are at %s" % name, here.rank == last, waited):
        return []
    return [("collective-wrong", "%s: a rank went on before rank %d had come" % (name, last))]
