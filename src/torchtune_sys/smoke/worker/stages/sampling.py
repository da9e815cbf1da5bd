"""Which rank gets which sample."""

from __future__ import annotations

import json
from typing import Dict, List

from torch.utils.data import DataLoader, DistributedSampler

from torchtune_sys.smoke.worker.agreement import tell_all
from torchtune_sys.smoke.worker.context import RankContext, StageFailed

_EPOCHS = (0, 1, 9, 0)
Shares = List[List[int]]
"""The samples of each rank, in its order."""


def samples_are_shared_out(here: RankContext) -> None:
    """Check that each sample goes to one rank (a few to two if their number is not divisible), in a new order each epoch."""
    count = 12 * here.world + max(1, here.world // 2)
    own: Dict[str, List[List[int]]] = {}
    for name, dropping in (("padded", False), ("dropped", True)):
        sampler: DistributedSampler[int] = DistributedSampler(range(count), shuffle=True, seed=5, drop_last=dropping)
        loader = DataLoader(range(count), batch_size=4, sampler=sampler)
        own[name] = []
        for epoch in _EPOCHS:
            sampler.set_epoch(epoch)
            own[name].append([int(sample) for batch in loader for sample in batch])
    everyone = [json.loads(said) for said in tell_all(here, json.dumps(own))]
    _each_reshuffles([each["padded"] for each in everyone])
    for turn in range(len(_EPOCHS)):
        _complete(count, [each["padded"][turn] for each in everyone])
        _disjoint(count, [each["dropped"][turn] for each in everyone])
    for name in own:
        first, *_, again = ([each[name][turn] for each in everyone] for turn in range(len(_EPOCHS)))
        _shuffled(first, again)


def _each_reshuffles(orders: List[Shares]) -> None:
    """Check each rank's own order before all shares together: of ranks in different epochs some samples go to none, and some to two, whoever stayed behind."""
    staying = [rank for rank, (first, second, *_) in enumerate(orders) if first == second]
    if staying:
        who = "rank %s" % ", ".join(map(str, staying)) if len(staying) < len(orders) else "all ranks"
        raise StageFailed("sampler-not-reshuffled", "set_epoch(1) gives the order of epoch 0 (%s)" % who)
    forgetful = [rank for rank, (first, *_, again) in enumerate(orders) if first != again]
    if forgetful and len(forgetful) < len(orders):
        seen = "the same epoch, set again, gives another order (rank %s)" % ", ".join(map(str, forgetful))
        raise StageFailed("sampler-not-repeatable", seen)


def _complete(count: int, shares: Shares) -> None:
    each = -(-count // len(shares))
    _equal_shares(shares, each)
    missing = sorted(set(range(count)) - {sample for share in shares for sample in share})
    if missing:
        raise StageFailed(
            "sampler-misses-samples", "%d of %d samples go to no rank, such as %s" % (len(missing), count, missing[:5])
        )


def _disjoint(count: int, shares: Shares) -> None:
    each = count // len(shares)
    _equal_shares(shares, each)
    different = len({sample for share in shares for sample in share})
    if different != each * len(shares):
        twice = each * len(shares) - different
        raise StageFailed("sampler-shards-overlap", "%d of %d samples go to more than one rank" % (twice, each * len(shares)))


def _equal_shares(shares: Shares, each: int) -> None:
    """Ranks with a sample more than others wait for those at the end; the few that are given twice go to two ranks."""
    sizes = [len(share) for share in shares]
    if sizes != [each] * len(shares):
        cause = "sampler-shards-overlap" if min(sizes) > each else "sampler-shards-unequal"
        raise StageFailed(cause, "the ranks get %s samples, where each should get %d" % (sizes, each))
    for rank, share in enumerate(shares):
        again = sorted({sample for sample in share if share.count(sample) > 1})
        if again:
            seen = "rank %d gets %d of its samples more than once, such as %s, in place of others" % (rank, len(again), again[:5])
            raise StageFailed("sampler-misses-samples", seen)


def _shuffled(first: Shares, again: Shares) -> None:
    if first != again:
        raise StageFailed("sampler-not-repeatable", "the same epoch, set again, gives another order")
    if [sample for turn in zip(*first) for sample in turn] == sorted(sample for share in first for sample in share):
        raise StageFailed("sampler-not-reshuffled", "shuffle=True gives the samples in their own order")
