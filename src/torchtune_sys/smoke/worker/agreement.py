"""What ranks tell each other beside what is tested: over the store at which they met, never by a collective operation."""

from __future__ import annotations

import ctypes
import datetime
import hashlib
from typing import Dict, Iterable, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed

Fault = Tuple[str, str]
"""A cause and what was seen."""
ROOT_CAUSES = ("loss-not-finite", "gradient-not-finite")
"""What one rank makes and all ranks see the consequences of: whoever has it is named, not the lowest rank that sees something."""


def tell_all(here: RankContext, text: str) -> List[str]:
    """Return what each rank says, in the order of ranks. Raises RuntimeError that names the rank that says nothing."""
    if here.world == 1:
        return [text]
    here.exchanges += 1
    key = "%s/%d/%%d" % (here.stage, here.exchanges)
    here.store.set(key % here.rank, text)
    return [word_of(here, key % rank, rank, here.patience_s) for rank in range(here.world)]


def word_of(here: RankContext, key: str, rank: int, patience_s: float) -> str:
    try:
        here.store.wait([key], datetime.timedelta(seconds=patience_s))
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        raise RuntimeError("rank %d did not answer within %g s (%s)" % (rank, patience_s, first)) from error
    return str(here.store.get(key).decode())


def judge(here: RankContext, faults: Iterable[Fault] = (), known_to_all: Iterable[Fault] = ()) -> None:
    """Every rank learns what any of them saw, and all raise the same Wrong: that of the first rank that saw something. What all know
    (``unlike``) is said where no rank saw more."""
    own = next(iter(faults), ("", ""))
    all_seen = [tuple(said.split("\n", 1)) for said in tell_all(here, "%s\n%s" % own)]
    wrong = [rank for rank, fault in enumerate(all_seen) if fault != ("", "")]
    if not wrong:
        for cause, seen in known_to_all:
            raise StageFailed(cause, seen)
        return
    cause, seen = all_seen[min(wrong, key=lambda rank: (all_seen[rank][0] not in ROOT_CAUSES, rank))]
    wrong = [rank for rank in wrong if all_seen[rank][0] == cause]
    if here.world > 1:
        who = "all ranks" if len(wrong) == here.world else "rank%s %s" % ("s"[: len(wrong) > 1], ", ".join(map(str, wrong)))
        seen = "%s (%s)" % (seen, who)
    raise StageFailed(cause, seen)


def bits_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest of all bits; numpy may be missing, so the memory is read as it is."""
    digest = hashlib.sha256()
    for tensor in tensors:
        held = tensor.detach().to("cpu").contiguous()
        digest.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()) if held.numel() else b"")
    return digest.hexdigest()


def state_bits(model: torch.nn.Module) -> str:
    """Of parameters and buffers, in the order of their names."""
    return bits_of(tensor for _, tensor in sorted(model.state_dict().items()) if isinstance(tensor, torch.Tensor))


def unlike(here: RankContext, cause: str, what: str, mine: Dict[str, str]) -> List[Fault]:
    """Where the ranks should hold the same: which of them differ from rank 0, and in what. Every rank finds the same."""
    told = [
        dict(line.split("=", 1) for line in said.splitlines()) for said in tell_all(here, "\n".join(map("=".join, mine.items())))
    ]
    for name in mine:
        others = [rank for rank, values in enumerate(told) if values.get(name) != told[0].get(name)]
        if others:
            return [
                (cause, "%s: rank%s %s from rank 0%s" % (what, "s"[: len(others) > 1], _listed(others), name and " (%s)" % name))
            ]
    return []


def few(numbers: List[int]) -> str:
    """Return the first of some ranks or CPUs for people."""
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


def _listed(ranks: List[int]) -> str:
    return ", ".join(map(str, ranks)) + (" differ" if len(ranks) > 1 else " differs")
