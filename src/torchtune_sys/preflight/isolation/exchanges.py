"""Find slow exchanges between two units, against the usual time and the noise of the same measurements.

A way is slow where the best of its sweeps is beyond the limit. What is usual is the lower quartile of the best times of all ways, so that one unit
among four, all of whose ways are slow, does not make slow usual; nor does one of three that tells times of its own make all others slow. The noise is how far apart the sweeps of *one* way lie, which a way that is
slow by itself does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from torchtune_sys.preflight.isolation.usual_times import Way, usual

LEAST_FACTOR = 1.5
"""Nobody is called slow for less than half as much again."""
_UNKNOWN_NOISE = 3.0
"""The factor where nothing was measured twice."""
_LONGEST_S = 3600.0


class Exchanges:
    """What the rounds of an isolation measured.

    >>> known = Exchanges()
    >>> known.take({(a, b): [1.0, 1.1, 1.1] if 0 in (a, b) else [0.01, 0.011, 0.012] for a in range(4) for b in range(4) if a != b})
    >>> known.usual_s, round(known.limit_s, 4), known.slow({(0, 1): [1.0], (1, 2): [0.012]})
    (0.01, 0.015, {(0, 1)})
    """

    def __init__(self) -> None:
        self.best: dict[Way, float] = {}
        """The least time of each way in all rounds."""
        self._spreads: list[float] = []

    def take(self, times: Mapping[Way, Sequence[float]]) -> None:
        """Take what one round measured: the seconds of each sweep, by way."""
        for way, sweeps in times.items():
            sound = sorted(value for value in sweeps if 0 < value < _LONGEST_S)
            if not sound:
                continue
            self.best[way] = min(sound[0], self.best.get(way, sound[0]))
            if len(sound) > 1:
                self._spreads.append(median(sound) / sound[0])

    @property
    def usual_s(self) -> float:
        """Return the usual time of a way in seconds; 0 where nothing was measured."""
        return usual(self.best)

    @property
    def factor(self) -> float:
        """Return how many times the usual is still noise."""
        if not self._spreads:
            return _UNKNOWN_NOISE
        ordered = sorted(self._spreads)
        return max(LEAST_FACTOR, float(ordered[len(ordered) * 9 // 10] ** 2))

    @property
    def limit_s(self) -> float:
        return self.usual_s * self.factor

    def slow(self, times: Mapping[Way, Sequence[float]]) -> set[Way]:
        """Return, of one round's ways, those whose best time is beyond the limit."""
        limit_s = self.limit_s
        return {way for way, sweeps in times.items() if limit_s and min(sweeps, default=0.0) > limit_s}
