"""Find the rank whose calls, or whose model, are another than those of all others, by what ranks say of each other's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.text.lines import LogLine, unbroken
from torchtune_sys.model.diagnosis import Unexplained

_PARAMETERS = re.compile(
    r"expects same model across all ranks, but Rank (\d{1,6}) has (\d{1,9}) params, while rank (\d{1,6}) has inconsistent (\d{1,9}) params"
)
_CALLS = re.compile(
    r"mismatch between collectives on ranks?\. Rank (\d{1,6}) is running (collective: .{1,1500}?),? ?but Rank (\d{1,6}) is running (collective: .{1,1500}?)(?:(?<=\))\.|\.?\s?Collectives differ|\.?$)"
)
"""torch/csrc/distributed/c10d/reducer.cpp, ProcessGroupWrapper.cpp."""
_SEQUENCE = re.compile(r"SequenceNumber=\d{1,12}, ?")
_LONGEST = 4000
_MARKS = ("same model across", "between collectives")


def named(unknown: Sequence[Unexplained], lines: Mapping[str, Sequence[LogLine]]) -> tuple[Unexplained, ...]:
    """Return the errors, those that say that ranks differ with the one that does, where it is one of more than two."""
    if not any(mark in each.text for each in unknown for mark in _MARKS):
        return tuple(unknown)
    has: dict[int, str] = {}
    for part in lines.values():
        for line in unbroken(part):
            for rank, what in _told(line):
                has[int(rank)] = max(
                    has.get(int(rank), ""), _SEQUENCE.sub("", what), key=len
                )  # of others torch 2.0 tells the kind only
    most = Counter(has.values()).most_common(1)
    odd = tuple(rank for rank, what in has.items() if most and what != most[0][0])
    if len(odd) != 1 or most[0][1] <= 1:
        return tuple(unknown)
    return tuple(replace(each, ranks=odd) if any(mark in each.text for mark in _MARKS) else each for each in unknown)


def _told(line: LogLine) -> Iterator[tuple[str, str]]:
    words = line.text[:_LONGEST]
    for pattern in (_PARAMETERS, _CALLS) if any(mark in words for mark in _MARKS) else ():
        for found in pattern.finditer(words):
            yield found[1], found[2]
            yield found[3], found[4]
