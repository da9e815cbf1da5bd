"""What the tables are made of: numbers that functions are tried with, and formulas that take them number by number or row by row."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, List, Tuple, Union

import torch

Formula = Callable[..., Any]
"""Of tensors of float64 (and of whole numbers, truth values and options as they are); returns a tensor, or numbers in the order of its elements."""
FEW, DOZEN, MANY, LONG = 5, 12, 263, 2311
"""60 numbers that bfloat16 holds, too; and rows of more numbers than one block of a kernel takes."""


def distinct(*shape: int, seed: int = 37, wide: float = 2.0) -> torch.Tensor:
    """Return numbers around 0, none of them 0 and none twice, in no order. Up to 128 of them are exact in bfloat16 for a ``wide`` that is a power of two times their number."""
    return _mixed(math.prod(shape), seed, wide).view(shape).clone()  # one that is changed spoils no other


@functools.lru_cache(maxsize=4096)
def _mixed(count: int, seed: int, wide: float) -> torch.Tensor:
    halves = 1 << max(count - 1, 1).bit_length()
    places = torch.arange(count, dtype=torch.int64) * seed % count
    return (places.double() - count // 2 + 0.5) * (2 * wide / halves)


def positive(*shape: int) -> torch.Tensor:
    return distinct(*shape, seed=41).abs() + 0.25


def normalised(values: torch.Tensor, over: Union[int, Tuple[int, ...]]) -> torch.Tensor:
    """Return values less their mean, by their deviation, as nn's norms do with the epsilon that they have by default."""
    off = values - values.mean(over, keepdim=True)
    return off / ((off * off).mean(over, keepdim=True) + 1e-5) ** 0.5


class Rowwise:
    """A formula that takes each row of its first tensor as a list of numbers, and returns a number or a list for it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work

    def __call__(self, rows: torch.Tensor, *others: Any, **options: Any) -> List[Any]:
        found = [self.work(row, *others, **options) for row in rows.tolist()]
        return [value for each in found for value in (each if isinstance(each, list) else [each])]


class Elementwise:
    """A formula of numbers; of two tensors, one of which may be a row for all."""

    def __init__(self, work: Callable[..., float]) -> None:
        self.work = work

    def __call__(self, *given: Any, **options: Any) -> torch.Tensor:
        tensors = torch.broadcast_tensors(*(one for one in given if isinstance(one, torch.Tensor)))
        numbers = [one for one in given if not isinstance(one, torch.Tensor)]
        values = [self.work(*each, *numbers) for each in zip(*(one.flatten().tolist() for one in tensors))]
        return torch.tensor(values, dtype=torch.float64).view(tensors[0].shape)
