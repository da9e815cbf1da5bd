"""Who is slow, whose CPU is taken away, and who computes something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.gathered import Gathered, Rank
from torchtune_sys.preflight.joint.judge.finding import Finding

LEAST_SLOWER = 0.06
"""Nobody is called slow for less."""
_FEW, _LEAST_SLOWER_OF_FEW = 16, 0.15
"""Among so few the spread between healthy ranks is not known well enough."""
_SPREADS, _NOISES = 5.0, 3.0
QUOTA_GAP = 0.25
"""The part of the time in which a rank that only computes neither ran nor waited for a CPU: somebody held it back."""
_TURNS = 2


def limit_of(best: Sequence[float], noises: Sequence[float]) -> float:
    """The time above which a rank is slow: the median of all, and above it what the spread between ranks and the noise of each of them allow.

    >>> round(limit_of([1.0] * 100, [0.0] * 100), 3), round(limit_of([1.0, 1.0, 1.3, 1.0], [0.01] * 4), 3)
    (1.06, 1.15)
    """
    middle = median(best)
    spread = 1.4826 * median(abs(value - middle) for value in best) / middle
    least = LEAST_SLOWER if len(best) >= _FEW else _LEAST_SLOWER_OF_FEW
    return middle * (1 + max(least, _SPREADS * spread, _NOISES * median(noises or [0.0])))


def slow(gathered: Gathered) -> dict[Rank, tuple[float, float]]:
    """Ranks that are slow in every turn: how much slower than the median, and how much was allowed."""
    times = _by_class(gathered, "kernel_s")
    found: dict[Rank, tuple[float, float]] = {}
    for ranks in times.values():
        if len(ranks) < 3:
            continue
        turns = min(len(each) for each in ranks.values())
        judged_slow: list[dict[Rank, tuple[float, float]]] = []
        for turn in range(turns):
            best = {rank: min(each[turn]) for rank, each in ranks.items()}
            noises = [(max(each[turn]) - min(each[turn])) / min(each[turn]) for each in ranks.values()]
            limit, middle = limit_of([*best.values()], noises), median(best.values())
            judged_slow.append({rank: (value / middle - 1, limit / middle - 1) for rank, value in best.items() if value > limit})
        for rank, told in judged_slow[-1].items():
            if all(rank in each for each in judged_slow):
                found[rank] = told
    return found


def _by_class(gathered: Gathered, key: str) -> dict[str, dict[Rank, list[list[float]]]]:
    """Times by what ranks run on: only equals are compared. Of each turn a list of best times, spread over the turn."""
    classes: dict[str, dict[Rank, list[list[float]]]] = {}
    for rank, turns in gathered.computes.items():
        values = [
            [float(value) for value in turn[key] if isinstance(value, (int, float)) and value > 0]
            for turn in turns
            if isinstance(turn.get(key), list)
        ]
        values = [each for each in values if each]
        if values:
            classes.setdefault(str(turns[0].get("hardware", "")), {})[rank] = values
    return classes


def throttled(gathered: Gathered) -> dict[Rank, str]:
    """Ranks that were held back in every turn."""
    found: dict[Rank, str] = {}
    shares = {rank: [_number(turn, "share") for turn in turns] for rank, turns in gathered.computes.items()}
    usual = median([max(each) for each in shares.values() if each] or [1.0])
    for rank, turns in gathered.computes.items():
        gaps = [_number(turn, "gap") for turn in turns]
        if gaps and min(gaps) > QUOTA_GAP:
            found[rank] = f"for {min(gaps):.0%} of the time it neither ran nor waited for a CPU"
        elif shares[rank] and len(shares) > 2 and max(shares[rank]) < 0.4 * usual:
            found[rank] = f"it gets {max(shares[rank]):.0%} of a CPU, others {usual:.0%}"
    return found


def _number(turn: Mapping[str, Any], key: str) -> float:
    value = turn.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def doubtful_compute(gathered: Gathered) -> bool:
    """Whether somebody looks odd after one turn: noise must come twice to be believed."""
    turns = min((len(each) for each in gathered.computes.values()), default=0)
    return 0 < turns < _TURNS and bool(slow(gathered) or throttled(gathered) or fingerprints(gathered))


def fingerprints(gathered: Gathered) -> list[Finding]:
    """Ranks whose training step gave other bits than it must, or than most of their class."""
    found: list[Finding] = []
    classes: dict[str, dict[Rank, str]] = {}
    for rank, turns in gathered.computes.items():
        wrong = next((str(turn["wrong"]) for turn in turns if turn.get("wrong")), "")
        if wrong:
            found.append(_finding(gathered, rank, "silent-data-corruption", wrong))
        elif turns and turns[-1].get("weights"):
            marks = {str(turn.get("weights")) for turn in turns}
            if len(marks) > 1:
                seen = "the same training step gave different weights when it was repeated"
                found.append(_finding(gathered, rank, "silent-data-corruption", seen))
            classes.setdefault(str(turns[0].get("class", "")), {})[rank] = str(turns[-1]["weights"])
    named = {finding.node for finding in found}
    for ranks in classes.values():
        counts = [*ranks.values()]
        usual = max({*counts}, key=counts.count)
        odd = [rank for rank, mark in ranks.items() if mark != usual and rank[0] not in named]
        if odd and counts.count(usual) * 2 <= len(counts):
            odd = []  # no majority: cannot be compared
        for rank in odd:
            seen = (
                f"the weights after an exact training step are {ranks[rank][:12]}, of {counts.count(usual)} others {usual[:12]}"
            )
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
        failed = next((str(turn["error"]) for turn in turns if turn.get("error")), "")
        if failed and turns[-1].get("error"):
            found.append(Finding(part="compute", cause="checker-fault", node=rank[0], seen=failed[:300], weight=Weight.UNKNOWN))
    return found
