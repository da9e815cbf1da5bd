"""Exchanges that have a gradient, that give a new tensor, of complex numbers and of several tensors at once, and how ranks are counted in groups: rows as in collective_table.py."""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
from typing import Any, Callable, Iterator, List, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import QUICK, RankContext, seldom_used_is_right, small_integers
from torchtune_sys.smoke.worker.measures import CROWD, patience, processes_a_cpu

Exchanged = Tuple[str, Callable[[], object], Callable[[], torch.Tensor], torch.Tensor]
_OF_EACH, _MOST_GROUPS = 6, 8
_GIVEN_UP_S, _WORD_COMES_S = 0.2, 6.0


def _part_of(rank: int, which: int) -> torch.Tensor:
    return small_integers((_OF_EACH,), 431 + 17 * which + rank, -1, 2)


def seldom_exchanges(here: RankContext) -> Iterator[Exchanged]:
    """Yield what is exchanged, how, what came of it and what is right; nothing of releases that were never tried."""
    if not seldom_used_is_right():
        return
    every, total = [_part_of(rank, 0) for rank in range(here.world)], sum(_part_of(rank, 0) for rank in range(here.world))
    turned = torch.complex(every[here.rank].float(), every[here.rank].float() * 2).to(here.device)
    yield (
        "all_reduce of complex numbers",
        lambda: dist.all_reduce(turned),
        lambda: torch.view_as_real(turned),
        torch.stack([total, total * 2], 1),
    )
    single = torch.tensor([float(here.rank + 1)], device=here.device)
    yield (
        "all_reduce of one number",
        lambda: dist.all_reduce(single),
        lambda: single,
        torch.tensor([here.world * (here.world + 1) / 2]),
    )
    group = dist.group.WORLD
    places = [
        dist.get_rank(),
        dist.get_world_size(),
        *dist.get_process_group_ranks(group),
        dist.get_global_rank(group, here.rank),
        dist.get_group_rank(group, here.rank),
    ]
    yield (
        "the numbers of ranks",
        int,
        lambda: torch.tensor(places),
        torch.tensor([here.rank, here.world, *range(here.world), here.rank, here.rank]),
    )
    yield from _kept_at_the_store(here)
    if here.level == QUICK or (here.kind == "cuda" and here.backend == "gloo"):
        return
    yield from _seldom_ways(here, every, total)
    several = [every[here.rank].to(here.device, copy=True), every[here.rank].to(here.device) * 3]
    if hasattr(dist, "all_reduce_coalesced"):
        yield (
            "all_reduce_coalesced",
            lambda: dist.all_reduce_coalesced(several),
            lambda: torch.cat(several),
            torch.cat([total, total * 3]),
        )
    yield from _new_tensors(here, every, total)
    yield from _with_gradients_of(here, every, total)


def _seldom_ways(here: RankContext, every: List[torch.Tensor], total: torch.Tensor) -> Iterator[Exchanged]:
    """Yield sums of what is not contiguous and of two under way at once, and groups that are made all at once."""
    own = every[here.rank].to(here.device, copy=True)
    if here.backend == "gloo":  # NCCL refuses it
        turned = own.view(2, 3).clone().t()
        yield "all_reduce of a transposed tensor", lambda: dist.all_reduce(turned), lambda: turned, total.view(2, 3).t()
    pair = [own.clone(), own * 3]

    def at_once() -> None:
        for work in [dist.all_reduce(one, async_op=True) for one in pair]:
            work.wait()

    yield "two all_reduces under way at once", at_once, lambda: torch.cat(pair), torch.cat([total, total * 3])
    if here.world > _MOST_GROUPS:
        return
    told: List[int] = []

    def grouped() -> None:
        mine, groups = dist.new_subgroups(1)
        told.extend([*dist.get_process_group_ranks(mine), len(groups)])
        dist.destroy_process_group(mine)

    yield (
        "new_subgroups: the ranks of one's own group",
        grouped,
        lambda: torch.tensor(told),
        torch.tensor([here.rank, here.world]),
    )


def _kept_at_the_store(here: RankContext) -> Iterator[Exchanged]:
    store = dist.PrefixStore("own/%d/%d" % (here.exchanges, here.rank), here.store)
    told: List[float] = []

    def asked() -> None:
        store.set("word", "first")
        told.extend([store.add("count", 2), store.add("count", 3), store.get("word") == b"first"])
        with contextlib.suppress(RuntimeError, NotImplementedError):
            told[3:] = [
                store.compare_set("word", "other", "second") == b"first",
                store.compare_set("word", "first", "third") == b"third",
                store.get("word") == b"third",
            ]

    yield (
        "what the store of ranks keeps (set, add, get, compare_set)",
        asked,
        lambda: torch.tensor([float(one) for one in told]),
        torch.tensor([2.0, 5, 1, 1, 1, 1])[: max(len(told), 3) if told else None],
    )


def _new_tensors(here: RankContext, every: List[torch.Tensor], total: torch.Tensor) -> Iterator[Exchanged]:
    """Yield what compiled models and tensors that are spread over ranks exchange by."""
    try:
        from torch.distributed import _functional_collectives as by
    except ImportError:
        return
    group, world, own = dist.group.WORLD, here.world, here.rank
    mine, found = every[own].to(here.device), {}
    wide = torch.cat([every[own].roll(rank) for rank in range(world)]).to(here.device)
    rows = (
        ("all_reduce", lambda: by.all_reduce(mine, "sum", group), total),
        ("all_gather_tensor", lambda: by.all_gather_tensor(mine.view(2, 3), 1, group), torch.cat([one.view(2, 3) for one in every], 1)),
        ("reduce_scatter_tensor", lambda: by.reduce_scatter_tensor(wide, "sum", 0, group), sum(one.roll(own) for one in every)),
        ("broadcast", lambda: by.broadcast(mine, world - 1, group), every[-1]),
        ("all_to_all_single", lambda: by.all_to_all_single(wide, None, None, group), torch.cat([one.roll(own) for one in every])),
    )  # fmt: skip
    for name, exchange, wanted in rows:
        if hasattr(by, name) and not (name == "all_to_all_single" and world == 1):

            def made(name: str = name, exchange: Callable[[], Any] = exchange) -> None:
                found[name] = by.wait_tensor(exchange()) + 0

            yield "a new tensor by %s" % name, made, functools.partial(found.__getitem__, name), wanted


def _with_gradients_of(here: RankContext, every: List[torch.Tensor], total: torch.Tensor) -> Iterator[Exchanged]:
    """Yield exchanges whose gradient is exchanged, too: losses over all ranks' samples (contrastive ones) and layers that are cut over ranks are made of it."""
    try:
        from torch.distributed.nn import functional as by
    except (ImportError, AttributeError):
        return
    world, own, found = here.world, here.rank, {}
    asked = [torch.cat([_part_of(rank, 1 + part) for part in range(world)]).to(here.device) for rank in range(world)]
    one, wide = slice(0, _OF_EACH), slice(own * _OF_EACH, (own + 1) * _OF_EACH)
    together = sum(asked)
    rows: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor], ...] = (
        ("all_reduce", lambda held: by.all_reduce(held), total, together[one]),
        ("broadcast", lambda held: by.broadcast(held, world - 1), every[-1], together[one] * (own == world - 1)),
        ("all_gather", lambda held: torch.cat(by.all_gather(held)), torch.cat(every), together[wide]),
        ("reduce_scatter", lambda held: by.reduce_scatter(torch.zeros_like(held), [held * (rank + 1) for rank in range(world)]), total * (own + 1), sum(asked[rank][one] * (rank + 1) for rank in range(world))),
    )  # fmt: skip
    for name, exchange, wanted, slope in rows:

        def gone_back(name: str = name, exchange: Callable[[torch.Tensor], torch.Tensor] = exchange) -> None:
            held = every[own].to(here.device, copy=True).requires_grad_()
            result = exchange(held)
            (result * asked[own][: len(result)]).sum().backward()
            found[name] = torch.cat([result.detach(), torch.zeros_like(held) if held.grad is None else held.grad])

        yield (
            "%s and its gradient (torch.distributed.nn.functional)" % name,
            gone_back,
            functools.partial(found.__getitem__, name),
            torch.cat([wanted, slope.cpu()]),
        )


def waits_no_longer(here: RankContext) -> List[Fault]:
    """Let rank 0 wait, in a group of its own, for a word that comes once it has given up, as it must: a rank that is lost holds the others up until their time is up. Its
    connections are of no use afterwards, and go with the group."""
    if here.world == 1 or not seldom_used_is_right():
        return []
    busy = torch.tensor([float(processes_a_cpu() > CROWD)])
    dist.all_reduce(busy, dist.ReduceOp.MAX)
    if float(busy):
        return []
    members = [0, here.world - 1]
    try:
        group = dist.new_group(members, timeout=datetime.timedelta(seconds=_GIVEN_UP_S))
    except RuntimeError:  # the limit holds while the group is made, too, and a rank was late
        return []
    if here.rank not in members:
        return []
    key, word, gave_up = "rank 0 has given up", torch.zeros(1), 0
    if here.rank == 0:
        try:
            dist.recv(word, members[1], group=group)
        except RuntimeError:
            gave_up = 1
        here.store.add(key, gave_up)
    else:
        until = time.monotonic() + _WORD_COMES_S * patience()
        while not here.store.add(key, 0) and time.monotonic() < until:
            time.sleep(_GIVEN_UP_S / 4)
        if not here.store.add(key, 0):
            dist.send(word, 0, group=group)
    dist.destroy_process_group(group)
    if gave_up or here.rank:
        return []
    words = "a group that was made with a time limit of %g s (new_group, timeout) lets its ranks wait %g s and longer"
    return [("collective-wrong", words % (_GIVEN_UP_S, _WORD_COMES_S))]
