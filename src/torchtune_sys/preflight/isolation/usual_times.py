"""Estimate the usual time of links from what each sender reports, so that one lying sender does not decide it."""

from __future__ import annotations

from collections.abc import Mapping

Way = tuple[int, int]
"""From, to."""
_SENDERS_TO_COMPARE = 3


def believable(values: Mapping[Way, float], *, more_is_better: bool = False) -> list[float]:
    """Return what the ways have, the best first. No sender's ways count as better than the best that another one tells: of three nodes, one has two ways of
    six, a quarter of which would be usual. Of two senders nobody says which is right.

    >>> believable({(0, 1): 1e-6, (0, 2): 1e-6, (1, 0): 0.01, (1, 2): 0.011, (2, 0): 0.012, (2, 1): 0.01})
    [0.01, 0.01, 0.01, 0.01, 0.011, 0.012]
    >>> believable({(0, 1): 2.0, (1, 0): 1.0}, more_is_better=True)
    [2.0, 1.0]
    """
    best, worse = (max, min) if more_is_better else (min, max)
    own: dict[int, float] = {}
    for (sender, _to), value in values.items():
        own[sender] = best(value, own.get(sender, value))
    if len(own) < _SENDERS_TO_COMPARE:
        return sorted(values.values(), reverse=more_is_better)
    second = sorted(own.values(), reverse=more_is_better)[1]
    return sorted((worse(value, second) for value in values.values()), reverse=more_is_better)


def usual(values: Mapping[Way, float], *, more_is_better: bool = False) -> float:
    """Return the quarter from the best side, which one bad node does not move: of three nodes, it has part in four ways of six. 0 where nothing was measured."""
    ordered = believable(values, more_is_better=more_is_better)
    return ordered[len(ordered) // 4] if ordered else 0.0
