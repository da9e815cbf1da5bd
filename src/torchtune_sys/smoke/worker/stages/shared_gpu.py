"""One GPU for several ranks."""

from __future__ import annotations

import os
from typing import Any, List

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import Fault, judge
from torchtune_sys.smoke.worker.context import THOROUGH, RankContext, Skipped, same_bits, small_integers
from torchtune_sys.smoke.worker.stages.rendezvous import MULTI_RANK_VARIABLE

_SHARED_COUNT = 1 << 20
_FIRST_WITH_MANY_RANKS = (2, 30, 3)


def ranks_share_a_gpu(here: RankContext) -> None:
    """Check that ranks that share a GPU compute correctly at the same time over Gloo, and that NCCL works for one of them."""
    if here.kind == "cpu":
        raise Skipped("no GPU to share")
    if not here.shared:
        raise Skipped("each rank has a GPU of its own")
    faults = _compute_at_once(here) + _summed(here, "gloo", None, list(range(here.world)))
    if dist.is_nccl_available():
        os.environ.setdefault(MULTI_RANK_VARIABLE, "1")  # read once, when NCCL makes its first communicator
        faults += _over_nccl(here, [0])
        # Without MPS two NCCL kernels that wait for each other take turns on the GPU, which no training relies on: thorough alone.
        # RCCL numbers its versions as NCCL does, but is not known to have the variable.
        if (
            here.level == THOROUGH
            and torch.version.hip is None
            and torch.cuda.nccl.version() >= _FIRST_WITH_MANY_RANKS
            and os.environ[MULTI_RANK_VARIABLE] == "1"
        ):
            faults += _over_nccl(here, list(range(here.world)))
    judge(here, faults)


def _compute_at_once(here: RankContext) -> List[Fault]:
    left, right = small_integers((512, 512), here.rank), small_integers((512, 512), 1000 + here.rank)
    on_device = left.to(here.device), right.to(here.device)
    dist.barrier()
    differing = 0
    for _ in range(20):
        differing += same_bits(on_device[0] @ on_device[1], left.double() @ right.double())
    return [("gemm-wrong", "beside other ranks on this GPU %d elements are wrong" % differing)] if differing else []


def _over_nccl(here: RankContext, ranks: List[int]) -> List[Fault]:
    """All ranks must take part in making a group, whether they belong to it or not."""
    group = dist.new_group(ranks, backend="nccl")
    return _summed(here, "nccl, %d rank(s)" % len(ranks), group, ranks) if here.rank in ranks else []


def _summed(here: RankContext, name: str, group: Any, ranks: List[int]) -> List[Fault]:
    held = small_integers((_SHARED_COUNT,), here.rank).to(here.device)
    dist.all_reduce(held, group=group)
    here.synchronize()
    wanted = sum((small_integers((_SHARED_COUNT,), rank) for rank in ranks), torch.zeros(_SHARED_COUNT))
    differing = same_bits(held, wanted)
    return [("collective-wrong", "all_reduce (%s): %d elements are wrong" % (name, differing))] if differing else []
