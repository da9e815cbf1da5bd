"""What collectives of the joint pre-flight add up, gather and broadcast, and what must come of it."""

from __future__ import annotations

from typing import Any, Callable, Tuple

PERIOD = 101


def pattern(torch: Any, size: int, rank: int, turn: int) -> Any:
    """Return whole numbers that differ by rank, place and turn; the sum of those of 160,000 ranks is exact in float32."""
    return ((torch.arange(size) + 7 * rank + 31 * turn) % PERIOD).to(torch.float32)


def sum_of_patterns(torch: Any, size: int, world: int, turn: int) -> Any:
    """Return what all ranks have together."""
    return of_all_patterns(torch, size, world, turn, lambda each: each.sum(1))


def of_all_patterns(torch: Any, size: int, world: int, turn: int, together: Callable[[Any], Any]) -> Any:
    """Return what ``together`` makes of the patterns of all ranks (a row for each place, a column for each rank): the same again after each PERIOD."""
    each = (torch.arange(PERIOD)[:, None] + 7 * torch.arange(world) + 31 * turn) % PERIOD
    return together(each).to(torch.float32)[torch.arange(size) % PERIOD]


def sources(world: int) -> Tuple[int, ...]:
    """Return who broadcasts, each more than once: a broadcast that leaves a rank what it had may do so now and then."""
    return 0, 0, world - 1, world - 1


def roots(world: int) -> Tuple[int, ...]:
    """Return who collects and deals out: each of few ranks."""
    return tuple(range(world)) if world <= 8 else (0, world // 2, world - 1)


def differing(value: Any, right: Any) -> str:
    off = int((value != right).sum())
    return "%d of %d elements are wrong" % (off, value.numel()) if off else ""
