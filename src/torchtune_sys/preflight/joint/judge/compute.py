"""Who is slow, whose CPU is taken away, and who computes something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.gathered import Gathered, Rank
from torchtune_sys.preflight.joint.judge.finding import Finding

LEAST_SLOWER = 0.06
"""Nobody is called slow for less."""
_FEW, _LEAST_SLOWER_OF_FEW = 16, 0.15
"""Among so few the spread between healthy ranks is not known well enough."""
_SPREADS = 5.0
_MANY = 64
_CHANCE = 1e-3
"""That any healthy rank is called slow because it never ran undisturbed, over all ranks."""
QUOTA_GAP = 0.25
"""The part of the time in which a rank that only computes neither ran nor waited for a CPU: somebody held it back."""
LEAST_SHARE = 0.45
"""Of the usual share of a CPU. Four healthy nodes on two CPUs had from 0.47 to 0.90."""
_TURNS = 2
TURNS_AT_MOST = 6
_LONGEST_S = 1e6


def limit_of(best: Sequence[float]) -> float:
    """The time above which a rank is slow: the median of all, and above it what the spread between ranks allows.

    >>> round(limit_of([1.0] * 100), 3), round(limit_of([1.0, 1.0, 1.3, 1.0]), 3)
    (1.06, 1.15)
    """
    middle = median(best)
    spread = 1.4826 * median(abs(value - middle) for value in best) / middle
    if len(best) >= _MANY:  # noise is not even on both sides: the upper one counts, less a twentieth that may be slow
        spread = max(spread, (sorted(best)[-1 - len(best) // 20] / middle - 1) / 1.645)
    return middle * (1 + max(LEAST_SLOWER if len(best) >= _FEW else _LEAST_SLOWER_OF_FEW, _SPREADS * spread))


def slow(gathered: Gathered) -> dict[Rank, tuple[float, float]]:
    """Ranks whose best time is beyond the limit: how much slower than the median they are, and how much is allowed.

    On a busy host a kernel now and then runs undisturbed, and its best time tells its speed. How often that happens the peers show: a rank is
    called slow only where a healthy one would hardly have missed every such moment in as many turns.
    """
    found: dict[Rank, tuple[float, float]] = {}
    for ranks in _by_class(gathered).values():
        best = {rank: min(times) for rank, times in ranks.items()}
        if len(ranks) < 3:
            continue
        limit, middle = limit_of([*best.values()]), median(best.values())
        tries = sum(map(len, ranks.values()))
        near = sum(value <= limit for turns in ranks.values() for value in turns)
        for rank, value in best.items():
            own = len(ranks[rank])
            chance = (
                1 - (near + 1) / (tries - own + 2)
            ) ** own  # the rule of succession: a few tries of a few peers prove little
            if value > limit and chance <= _CHANCE / len(ranks):
                found[rank] = (value / middle - 1, limit / middle - 1)
    return found


def _seems_slow(gathered: Gathered) -> bool:
    classes = [[min(times) for times in ranks.values()] for ranks in _by_class(gathered).values()]
    return any(len(best) > 2 and max(best) > limit_of(best) for best in classes)


def _by_class(gathered: Gathered) -> dict[str, dict[Rank, list[float]]]:
    """The best time of each turn, by what ranks run on: only equals are compared. Within a turn moments are alike, since what disturbs
    one disturbs the next."""
    classes: dict[str, dict[Rank, list[float]]] = {}
    for rank, turns in gathered.computes.items():
        values = [min(each) for turn in turns if (each := [value for value in turn.kernel_s if 0 < value < _LONGEST_S])]
        if values:
            classes.setdefault(turns[0].hardware, {})[rank] = values
    return classes


def throttled(gathered: Gathered) -> dict[Rank, str]:
    """Ranks that were held back in every turn."""
    found: dict[Rank, str] = {}
    shares = {rank: [turn.share for turn in turns if turn.share is not None] for rank, turns in gathered.computes.items()}
    usual = median([max(each) for each in shares.values() if each] or [1.0])
    for rank, turns in gathered.computes.items():
        gaps = [turn.gap for turn in turns if turn.gap is not None]
        if gaps and min(gaps) > QUOTA_GAP:
            found[rank] = f"for {min(gaps):.0%} of the time it neither ran nor waited for a CPU"
        elif shares[rank] and len(shares) > 2 and max(shares[rank]) < LEAST_SHARE * usual:
            found[rank] = f"it gets {max(shares[rank]):.0%} of a CPU, others {usual:.0%}"
    return found


def doubtful_compute(gathered: Gathered) -> bool:
    """Whether somebody looks odd, and one more turn may tell: noise must come again and again to be believed."""
    turns = min((len(each) for each in gathered.computes.values()), default=0)
    if _seems_slow(gathered):
        return 0 < turns < (_TURNS if slow(gathered) else TURNS_AT_MOST)
    return 0 < turns < _TURNS and bool(throttled(gathered) or fingerprints(gathered))


def fingerprints(gathered: Gathered) -> list[Finding]:
    """Ranks whose training step gave other bits than it must, or than most of their class."""
    found: list[Finding] = []
    classes: dict[str, dict[Rank, str]] = {}
    for rank, turns in gathered.computes.items():
        wrong = next((turn.wrong for turn in turns if turn.wrong), "")
        if wrong:
            found.append(_finding(gathered, rank, "silent-data-corruption", wrong))
        elif turns and turns[-1].weights:
            marks = {turn.weights for turn in turns if turn.weights}
            if len(marks) > 1:
                seen = "the same training step gave different weights when it was repeated"
                found.append(_finding(gathered, rank, "silent-data-corruption", seen))
            classes.setdefault(turns[0].kind, {})[rank] = turns[-1].weights
    named = {finding.node for finding in found}
    for ranks in classes.values():
        counts = Counter(ranks.values())
        usual = max(counts, key=lambda mark: counts[mark])
        odd = [rank for rank, mark in ranks.items() if mark != usual and rank[0] not in named]
        if odd and counts[usual] * 2 <= len(ranks):
            odd = []  # no majority: cannot be compared
        for rank in odd:
            seen = f"the weights after an exact training step are {ranks[rank][:12]}, of {counts[usual]} others {usual[:12]}"
            found.append(_finding(gathered, rank, "silent-data-corruption", seen))
    return found


def _finding(gathered: Gathered, rank: Rank, cause: str, seen: str) -> Finding:
    node, local = rank
    where = f"local rank {local}: " if gathered.locals_ > 1 else ""
    part = "fingerprint" if cause == "silent-data-corruption" else "compute"
    return Finding(part=part, cause=cause, node=node, seen=where + seen)


def findings(gathered: Gathered, quotas: frozenset[int]) -> list[Finding]:
    """``quotas``: nodes whose facts tell of a quota."""
    found = fingerprints(gathered)
    held = throttled(gathered)
    for rank, seen in held.items():
        if rank[0] not in quotas:
            found.append(_finding(gathered, rank, "cpu-quota-on-one-node", seen))
    for rank, (slower, allowed) in slow(gathered).items():
        if rank not in held and rank[0] not in quotas:
            seen = f"{slower:.0%} slower than the median of its peers; {allowed:.0%} is their noise"
            found.append(_finding(gathered, rank, "straggler-compute", seen))
    for rank, turns in gathered.computes.items():
        failed = turns[-1].error if turns else ""
        if failed:
            found.append(Finding(part="compute", cause="checker-fault", node=rank[0], seen=failed[:300], weight=Weight.UNKNOWN))
    return found
