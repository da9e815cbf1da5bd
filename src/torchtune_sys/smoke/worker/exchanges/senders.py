"""Whose data are wrong where an exchange is: all ranks see a wrong sum, whoever gave or sent the wrong part of it."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Set, Tuple

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault, bits_of, tell_all, unlike
from torchtune_sys.smoke.worker.context import RankContext, StageFailed, differing_elements, small_integers
from torchtune_sys.smoke.worker.exchange_names import GATHERS, SCATTERS, named_now
from torchtune_sys.smoke.worker.growth import keeps_nothing_of

_MOST_RANKS_ASKED = 16
_COUNTS_ALONE = (3, 1000, (1 << 20) + 5)
_COUNT_SENT = 65537
_EXCHANGES_A_PART, _STALE_OFF = 20, 1e-5


def senders_named(here: RankContext, faults: List[Fault]) -> List[Fault]:
    """Return the faults, with who gave or sent what is wrong if that can be told. All ranks must call it: they try more exchanges if any of them saw a fault."""
    saw = [rank for rank, word in enumerate(tell_all(here, "wrong" if faults else "")) if word]
    if not saw or not 1 < here.world <= _MOST_RANKS_ASKED:
        return faults
    words = _wrong_alone(here, saw) or _wrong_in_turns(here) or _wrong_on_the_way(here)
    return [(cause, "%s; %s" % (seen, words) if words else seen) for cause, seen in faults]


def own_group(here: RankContext) -> Any:
    """Return a group of this rank alone; None on all ranks if one that was made of a rank has others, who would await another exchange."""
    groups = [dist.new_group([rank]) for rank in range(here.world)]
    alone = dist.get_world_size(groups[here.rank]) == 1
    return None if any(tell_all(here, "" if alone else "others")) else groups[here.rank]


def _wrong_alone(here: RankContext, saw: List[int]) -> str:
    own, group = "", own_group(here)
    if group is None:
        return ""
    for count in _COUNTS_ALONE:
        given = small_integers((count,), 401 + here.rank, -4, 5).to(here.device)
        for name, exchange in _exchanges_alone(here, group, given).items():
            try:
                found = exchange()
            except Exception:  # the backend has none, or it fails with itself alone, too
                continue
            own = own or (name if not torch.equal(found, given) else "")
    told = tell_all(here, own)
    wrong = [rank for rank, name in enumerate(told) if name]
    if not wrong or len(wrong) == here.world or wrong == saw:  # of these it is said already
        return ""
    return "rank %d gives wrong values: its %s with itself alone is wrong, too" % (wrong[0], told[wrong[0]])


def _exchanges_alone(here: RankContext, group: Any, given: torch.Tensor) -> Dict[str, Callable[[], torch.Tensor]]:
    """Return what gives back what it is given, in a group of one."""
    scatter = named_now(SCATTERS)[0]
    gather = named_now(GATHERS)[0]

    def in_place(exchange: Callable[..., object], *more: Any) -> torch.Tensor:
        held = given.clone()
        exchange(held, *more, group=group)
        return held

    def into(exchange: Callable[..., object], listed: Tuple[bool, bool]) -> torch.Tensor:
        """Return what comes of it. ``listed``: whether the exchange takes a list to fill, and one that is given."""
        held, sent = torch.zeros_like(given), given.clone()
        exchange([held] if listed[0] else held, [sent] if listed[1] else sent, group=group)
        return held

    return {
        "all_reduce": functools.partial(in_place, dist.all_reduce),
        "reduce_scatter": functools.partial(into, scatter, (False, False)),
        "reduce_scatter of a list": functools.partial(into, dist.reduce_scatter, (False, True)),
        "all_gather": functools.partial(into, dist.all_gather, (True, False)),
        "all_gather into a tensor": functools.partial(into, gather, (False, False)),
        "broadcast": functools.partial(in_place, dist.broadcast, here.rank),
        "reduce": functools.partial(in_place, dist.reduce, here.rank),
        "all_to_all_single": functools.partial(into, dist.all_to_all_single, (False, False)),
    }


def _wrong_in_turns(here: RankContext) -> str:
    """One rank after the other gives values to a sum, all others give zeros."""
    wrong: List[str] = []
    for turn in range(here.world):
        wanted = small_integers((_COUNT_SENT,), 420 + turn, -4, 5).to(here.device)
        held = wanted.clone() if here.rank == turn else torch.zeros_like(wanted)
        dist.all_reduce(held)
        wrong += [str(turn)] if not torch.equal(held, wanted) else []
    turns = {turn for said in tell_all(here, " ".join(wrong)) for turn in said.split()}
    if len(turns) != 1:
        return ""
    return "what rank %s gives to a sum arrives wrong, what the others give is right" % turns.pop()


def _wrong_on_the_way(here: RankContext) -> str:
    """Each rank sends to each other, and no third is between them."""
    device = torch.device("cpu") if here.backend == "gloo" else here.device
    wrong: List[str] = []
    for sender in range(here.world):
        wanted = small_integers((_COUNT_SENT,), 440 + sender, -4, 5).to(device)
        for receiver in range(here.world):
            if here.rank == sender != receiver:
                dist.send(wanted, receiver)
            elif here.rank == receiver != sender:
                taken = torch.zeros_like(wanted)
                dist.recv(taken, sender)
                wrong += [str(sender)] if not torch.equal(taken, wanted) else []
    told = [said.split() for said in tell_all(here, " ".join(wrong))]
    pairs = [(int(sender), receiver) for receiver, senders in enumerate(told) for sender in senders]
    senders, receivers = ({pair[side] for pair in pairs} for side in (0, 1))
    if len(senders) == 1:
        return "what rank %d sends arrives wrong at rank%s %s" % (pairs[0][0], "s"[: len(receivers) > 1], _numbered(receivers))
    if len(receivers) == 1:
        return "what rank %d receives is wrong, from whomever" % pairs[0][1]
    return ""


def _numbered(ranks: Any) -> str:
    return ", ".join(map(str, sorted(ranks)))


def repeated_exchanges(here: RankContext) -> List[Fault]:
    """Repeat one exchange of random numbers, whose sum is rounded, with the other sign each time: return what each leaves behind, and where a sum differs from the first one, or has other bits than
    on rank 0; and who gave what it had given before. NVLink's switches add up in another order each time, and all ranks get the same (NCCL's issue 1497): on GPUs what one rounding may change is
    no fault."""
    count = 1 << (17 if here.kind == "cuda" else 15)  # what is kept of each is more than what is left to the allocators
    own = _drawn_for(here.rank, count).to(here.device)
    held = torch.empty_like(own)
    wrong: List[int] = []
    firsts: List[torch.Tensor] = []
    stale: Set[int] = set()
    rounded = (
        0.0 if here.kind == "cpu" else here.world**2 * torch.finfo(own.dtype).eps
    )  # so many additions, to sums up to so much

    def exchanged() -> None:
        sign = 1 - 2 * (len(wrong) % 2)
        dist.barrier()
        dist.all_reduce(held.copy_(own).mul_(sign))
        firsts[:] = firsts or [held.clone()]
        off = held.mul_(sign) - firsts[0]
        wrong.append(differing_elements(off.abs() <= rounded, True))
        if wrong[-1]:
            stale.update(rank for rank in range(here.world) if _is_twice(off.cpu(), _drawn_for(rank, count)))

    kept: List[Fault] = []
    try:
        keeps_nothing_of(here, "exchanges", exchanged, _EXCHANGES_A_PART)
    except StageFailed as found:
        kept = [(found.cause, found.seen)]
    if any(wrong):
        words = "%d of %d all_reduces of the same numbers, with the other sign each time, give another sum than the first, in up to %d elements%s"
        who = "; rank %s gives in these what it gave the time before" % _numbered(stale) if stale else ""
        kept.append(("collective-wrong", words % (sum(one > 0 for one in wrong), len(wrong), max(wrong), who)))
    what = "all_reduce of %d random float32: the sums' bits" % count
    return kept + unlike(here, "collective-wrong", what, {"": bits_of(firsts)})  # all ranks ask, whatever one of them saw


def _drawn_for(rank: int, count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(31 + rank))


def _is_twice(off: torch.Tensor, given: torch.Tensor) -> bool:
    """Tell whether a sum is off by what a rank gives with its other sign."""
    return float((off + 2 * given).abs().max()) < _STALE_OFF
