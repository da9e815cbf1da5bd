"""Find ranks that are slower than their peers, despite noise that lasts for seconds.

A kernel that is disturbed takes longer and never shorter, so that the best of many times tells a rank's speed, and the lower side of the best times of all
tells how far healthy ranks differ. Who is above that may be slow, or may not have run undisturbed yet: it is timed again, until it reaches the others or until
a healthy rank would hardly have missed them in as many turns. How often a healthy one misses, and misses once more after it missed, its peers show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod, sqrt
from statistics import median
from typing import NamedTuple

from torchtune_sys.preflight.joint.gathered import Gathered, Rank

LEAST_SLOWER = 0.06
"""Nobody is called slow for less."""
_FEW, _LEAST_SLOWER_OF_FEW = 16, 0.15
"""Among so few the spread between healthy ranks is not known well enough."""
_SPREADS = 5.0
"""Standard deviations between healthy ranks. Of 10,000 normally distributed ones the slowest is at 3.9."""
MANY = 64
"""Among so many the lower side of the times tells the spread, and a twentieth of them are a group of their own, and no outliers."""
_LOW, _QUARTER = 0.05, 0.25
_DEVIATION_OF_LOW, _DEVIATION_OF_QUARTER = 1.645, 0.674
"""Where these parts of a normal distribution end, in standard deviations below its middle."""
_CHANCE = 1e-3
"""That any healthy rank is called slow because it never ran undisturbed, over all ranks."""
_PRIOR_MISSES, _PRIOR_HITS = 12, 8
"""Before peers have shown it, a disturbance is taken to last into the next turn as often as if so many of 20 had."""
_DEPTH = 3
"""Misses in a row that are told apart: after more of them a further one is as likely."""
_LATER = 3
"""Turns in which who missed may still show that it is healthy, before its misses count as those of a healthy rank."""
_TURNS = 2
TURNS_OF_ALL = 6
_TURNS_OF_A_GROUP = 12
"""After so many those who still look slow, more than a twentieth of all, are no disturbed ones."""
TURNS_AT_MOST = 40
"""Of those who look slow."""
_LONGEST_S = 1e6

_Turns = Mapping[Rank, Sequence[float]]


def limit_of(best: Sequence[float]) -> float:
    """Return the time above which a rank may be slow.

    Of few: the median, and above it what the spread between ranks allows. Of many: from the lower side alone, where no disturbance shows.

    >>> round(limit_of([1.0] * 100), 3), round(limit_of([1.0, 1.0, 1.3, 1.0]), 3)
    (1.06, 1.15)
    >>> round(limit_of([1.0] * 60 + [1.3] * 40), 3)
    1.06
    """
    if len(best) >= MANY:
        ordered = sorted(best)
        low, quarter = (ordered[int(part * (len(ordered) - 1))] for part in (_LOW, _QUARTER))
        deviation = (quarter - low) / (_DEVIATION_OF_LOW - _DEVIATION_OF_QUARTER)
        middle = quarter + _DEVIATION_OF_QUARTER * deviation
        spreads = _SPREADS * (1 + 4 / sqrt(len(best)))  # of fewer the deviation is known less well
        return max(middle * (1 + LEAST_SLOWER), middle + spreads * deviation)
    middle = median(best)
    spread = 1.4826 * median(abs(value - middle) for value in best) / middle
    return middle * (1 + max(_least(len(best)), _SPREADS * spread))


def _least(count: int) -> float:
    return LEAST_SLOWER if count >= _FEW else _LEAST_SLOWER_OF_FEW


def limit_beside_a_group(best: Sequence[float]) -> float:
    """Return the limit where more than a twentieth are above the limit: they are a group of its own, such as another delivery. The upper side counts, less a twentieth."""
    middle = median(best)
    spread = (sorted(best)[-1 - len(best) // 20] / middle - 1) / 1.645
    return max(limit_of(best), middle * (1 + _SPREADS * spread))


class Standing(NamedTuple):
    """How ranks stand to their peers."""

    slow: dict[Rank, tuple[float, float]]
    """Whose best time is beyond the limit after enough turns: how much slower than the median they are, and how much is allowed."""
    undecided: dict[Rank, tuple[float, float]]
    """The same of those beyond the limit of which a further turn may tell whether they are slow."""
    noisy: bool
    """Whether some of few differ by so much that the spread between the others hides who is slow: more turns of all make it smaller."""


def standing(gathered: Gathered) -> Standing:
    """Compare all ranks with those that run on the same hardware."""
    classes = _by_class(gathered).values()
    beyond = [row for turns in classes for row in _beyond(turns)]
    few = [best for turns in classes if 2 < len(best := [min(times) for times in turns.values()]) < MANY]
    return Standing(
        slow={rank: told for rank, told, sure in beyond if sure},
        undecided={rank: told for rank, told, sure in beyond if not sure},
        noisy=any(max(best) > median(best) * (1 + _least(len(best))) for best in few),
    )


def _beyond(turns: _Turns) -> Iterator[tuple[Rank, tuple[float, float], bool]]:
    """Ranks of one class beyond its limit: how much slower than the median and what is allowed, and whether they are slow for sure."""
    best = {rank: min(times) for rank, times in turns.items()}
    if len(best) < 3:
        return
    limit, middle = limit_of([*best.values()]), median(best.values())
    suspects = {rank for rank, value in best.items() if value > limit}
    decided = len(best) < MANY or len(suspects) <= len(best) // 20
    if not decided and max(map(len, turns.values())) >= _TURNS_OF_A_GROUP:
        limit, decided = limit_beside_a_group([*best.values()]), True
        suspects = {rank for rank in suspects if best[rank] > limit}
    for rank, known in _sure(turns, suspects, limit).items():
        yield rank, (best[rank] / middle - 1, limit / middle - 1), known and decided


def _sure(turns: _Turns, suspects: Set[Rank], limit: float) -> dict[Rank, bool]:
    """Whether a healthy rank would hardly have missed its peers in as many turns."""
    if not suspects:
        return {}
    misses = _Misses(turns, suspects, limit)
    return {
        rank: len(turns[rank]) >= _TURNS and misses.chance(len(turns[rank])) <= _CHANCE / len(turns) for rank in sorted(suspects)
    }


class _Misses:
    """How often a healthy rank's turn is above the limit: by itself, and after 1, 2, and more turns that were."""

    def __init__(self, turns: _Turns, suspects: Set[Rank], limit: float) -> None:
        tries, missed = [0] * (_DEPTH + 1), [0] * (_DEPTH + 1)
        latest = max(map(len, turns.values())) - _LATER
        for rank, times in turns.items():
            if rank in suspects:  # may be slow: one more disturbed rank, at most
                tries[0] += 1
                missed[0] += 1
                continue
            depth = 0
            for at, value in enumerate(times):
                if not depth or at < latest:  # of a later miss it is not known yet what follows
                    tries[depth] += 1
                    missed[depth] += value > limit
                depth = min(depth + 1, _DEPTH) if value > limit else 0
        others = missed[0] - 1 if suspects else missed[0]
        self._first = (others + 1) / (tries[0] + 1)
        self._again = [
            (again + _PRIOR_MISSES, of + _PRIOR_MISSES + _PRIOR_HITS) for again, of in zip(missed[1:], tries[1:], strict=True)
        ]

    def chance(self, turns: int) -> float:
        """Return the chance that a healthy rank is above the limit in so many turns, one after the other.

        The rule of succession: what few tries of few peers show may be luck, and counts the less the more turns are concluded from it.
        """
        chance, more = self._first, turns - 1
        for again, of in self._again[: max(more, 0)]:
            chance *= again / of
        again, of = self._again[-1]
        return chance * prod((again + at) / (of + at) for at in range(1, more - _DEPTH + 1))


def _by_class(gathered: Gathered) -> dict[str, dict[Rank, list[float]]]:
    """Return the best time of each turn, by what ranks run on: only equals are compared. Within a turn moments are alike, since what disturbs
    one disturbs the next."""
    classes: dict[str, dict[Rank, list[float]]] = {}
    for rank, turns in gathered.computes.items():
        values = [min(each) for turn in turns if (each := [value for value in turn.kernel_s if 0 < value < _LONGEST_S])]
        if values:
            classes.setdefault(turns[0].hardware, {})[rank] = values
    return classes
