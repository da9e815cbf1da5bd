"""Sets of CPU or node numbers in the kernel's list format (``0-3,8``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set


class CpuSet(Set[int]):
    """An immutable set of logical CPU (or NUMA node) numbers.

    >>> str(CpuSet.parse("0-3,8"))
    '0-3,8'
    >>> len(CpuSet.parse(""))
    0
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = frozenset(numbers)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def __hash__(self) -> int:
        return hash(self._numbers)

    @classmethod
    def parse(cls, text: str, most: int = 1 << 22) -> CpuSet:
        """Parse the kernel's list format, or lscpu's. Raises ValueError on anything else, and for more than ``most`` numbers.

        Source: Documentation/admin-guide/cputopology.rst, ``bitmap_parselist``; util-linux, lib/cpuset.c.

        >>> str(CpuSet.parse("0-7:1/4")), str(CpuSet.parse("0-7:4"))
        ('0,4', '0,4')
        """
        numbers: set[int] = set()
        for part in text.strip().split(","):
            if not part:
                continue
            span, _, stride = part.partition(":")
            low, dash, high = span.partition("-")
            first, last = int(low), int(high) if dash else int(low)
            if first < 0 or last < first or last > 1 << 20:
                raise ValueError(f"not a CPU list: {text!r}")
            most -= last - first + 1
            if most < 0:
                raise ValueError("a CPU list of too many numbers")
            if stride:
                used, slash, group = stride.partition("/")
                width, step = (int(used), int(group)) if slash else (1, int(used))  # lscpu writes 0-62:2
                if step < 1:
                    raise ValueError(f"not a CPU list: {text!r}")
                numbers.update(n for n in range(first, last + 1) if (n - first) % step < width)
            else:
                numbers.update(range(first, last + 1))
        return cls(numbers)

    def __str__(self) -> str:
        return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in self._runs())

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"

    def _runs(self) -> Iterator[tuple[int, int]]:
        start: int | None = None
        previous = -2
        for number in self:
            if number != previous + 1:
                if start is not None:
                    yield start, previous
                start = number
            previous = number
        if start is not None:
            yield start, previous
