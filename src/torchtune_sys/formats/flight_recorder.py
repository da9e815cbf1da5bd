"""Dumps of torch's flight recorder, one a rank: who came to which collective, and who did not.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp (pickle and JSON hold the same; JSON has no frames before torch 2.6).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_RANK_IN_NAME = re.compile(r"(\d{1,6})(?:\.(?:json|pickle|pkl|pt))?$")
_OPS_LIMIT = _RANKS_LIMIT = 1 << 20
_PAIRS_LIMIT = 1 << 20
"""Of a process group that no dump describes, and a rank: each of such groups concerns all ranks."""
_WORD_LIMIT = 16 << 20
"""Characters: the ranks of a group are one word."""
_FRAME_LIMIT = 200
"""Characters of a file's and a function's name: a pickle may name one text at each of its entries."""


class RecordedCollective(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    name: str
    state: str
    """``scheduled``, ``started`` or ``completed``; gloo's stay ``scheduled``."""
    is_retired: bool = False
    """The recorder looks at it no more, so what its state says may be old."""
    sizes: str = ""
    """Of a collective for which all ranks need the same ones."""
    frame: str = ""
    """Where it was called, outside of torch if it tells."""


class RankDump(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    rank: int | None
    members: Mapping[str, tuple[int, ...]]
    """Ranks of each process group that is described."""
    collectives: Mapping[str, tuple[RecordedCollective, ...]]
    """By process group, in order."""


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that did not come to a collective that others are in."""

    group: str
    sequence: int
    name: str
    frame: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Those that left a dump, and were not there."""
    silent: tuple[int, ...]
    """Those of the group that left none."""
    source: str
    differs: str = ""
    """What the missing ranks called at the same place, where it is another collective."""


def dump_of(value: Any, source: str) -> RankDump | None:
    """Return the dump; None where it is not a dump of the flight recorder.

    >>> dump_of({"version": "2.9", "rank": 3, "entries": []}, "x").rank
    3
    """
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list) or "version" not in value:
        return None
    named = _RANK_IN_NAME.search(source)
    rank = _number(value.get("rank"))
    groups: dict[str, list[RecordedCollective]] = {}
    words: dict[str, str] = {}
    for entry in value["entries"][:_OPS_LIMIT]:
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            groups.setdefault(_group(entry), []).append(_collective(entry, words))
    return RankDump(
        source=source,
        rank=rank if rank is not None else int(named[1]) if named else None,
        members=_members(value.get("pg_config")),
        collectives={group: tuple(sorted(each, key=lambda one: one.sequence)) for group, each in groups.items()},
    )


def _group(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group") or entry.get("pg_id") or "0"
    return _word(group[0] if isinstance(group, (list, tuple)) and group else group)


def _collective(entry: Mapping[str, Any], words: dict[str, str]) -> RecordedCollective:
    """``words``: those of the dump, each once in memory."""
    frames = entry.get("frames")
    known = [each for each in frames[:_FRAMES] if isinstance(each, dict)] if isinstance(frames, list) else []
    first = next((each for each in known if "/torch/" not in _word(each.get("filename"))), known[0] if known else {})
    file, row, function = (_word(first.get(part))[:_FRAME_LIMIT] for part in ("filename", "line", "name"))
    place = f"{file}:{row} in {function}" if first else ""
    name = _word(entry.get("profiling_name"))[: 2 * _FRAME_LIMIT].rpartition(":")[2]
    state = _word(entry.get("state"))[:_FRAME_LIMIT]
    sizes = _sizes(entry.get("input_sizes")) if name.strip("_") in _SAME_SIZES else ""
    return RecordedCollective(
        sequence=_number(entry.get("collective_seq_id", entry.get("seq_id", 0))) or 0,
        name=words.setdefault(name, name),
        state=words.setdefault(state, state),
        is_retired=entry.get("retired") is True,
        sizes=words.setdefault(sizes, sizes),
        frame=words.setdefault(place, place),
    )


_SAME_SIZES = frozenset(("all_reduce", "allreduce", "broadcast", "reduce"))


def _sizes(value: Any) -> str:
    shapes = value[:_SHAPES] if isinstance(value, list) else []
    return "; ".join(",".join(_word(each) for each in shape[:_SHAPES]) for shape in shapes if isinstance(shape, list))[
        :_FRAME_LIMIT
    ]


_SHAPES = 8
_FRAMES = 16


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, (list, tuple)):
            ranks = ",".join(map(_word, ranks[:_RANKS_LIMIT]))
        numbers = re.findall(r"\b\d{1,7}\b", _word(ranks))[:_RANKS_LIMIT]
        found[_word(name)] = tuple(sorted({int(number) for number in numbers}))
    return found


def _word(value: Any) -> str:
    """Of a pickle's values only these are printed: a list may hold itself, or the same list twice, and that one another twice.

    >>> _word("nccl:all_reduce"), _word(3), _word([[1]]), _word(None)
    ('nccl:all_reduce', '3', '', '')
    """
    if isinstance(value, str):
        return value if len(value) <= _WORD_LIMIT else value[:_WORD_LIMIT]
    return str(value) if _number(value) is not None else ""


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and -1 <= value < 1 << 63 else None


def absences(dumps: Sequence[RankDump]) -> list[Absence]:
    """Return by process group where the ranks part: those that are furthest wait for those that are not there."""
    by_rank = {dump.rank: dump for dump in dumps if dump.rank is not None}
    members: dict[str, set[int]] = {}
    for dump in dumps:
        for group, ranks in dump.members.items() if dump.rank is not None else ():
            members.setdefault(group, set()).update(ranks)
    groups = dict.fromkeys(group for dump in dumps if dump.rank is not None for group in dump.collectives)
    undescribed = [group for group in groups if not members.get(group)]
    left_out = frozenset(undescribed[max(_PAIRS_LIMIT // max(len(by_rank), 1), 1) :])
    found = [_absence(group, members.get(group, set()), by_rank) for group in groups if group not in left_out]
    return sorted((absence for absence in found if absence is not None), key=lambda one: (not one.missing, one.sequence))


def _absence(group: str, members: set[int], by_rank: Mapping[int, RankDump]) -> Absence | None:
    """``members`` of the group; where no dump describes it all ranks are taken to be."""
    ranks = [rank for rank in members if rank in by_rank] if members else by_rank
    reached = {rank: _unfinished(by_rank[rank].collectives.get(group, ())) for rank in ranks}
    waiting = {rank: last for rank, last in reached.items() if last is not None and last.state != "completed"}
    if not waiting:
        return None
    lowest = min(last.sequence for last in waiting.values())
    called = Counter((last.name, last.sizes) for last in waiting.values() if last.sequence == lowest)
    usual = called.most_common(1)[0][0]
    first = next(last for last in waiting.values() if last.sequence == lowest and (last.name, last.sizes) == usual)
    there = tuple(sorted(rank for rank, last in waiting.items() if last.sequence == lowest and (last.name, last.sizes) == usual))
    others = tuple(sorted(rank for rank, last in reached.items() if last is None or _is_behind(last, first)))
    silent = tuple(sorted(members - set(reached)))
    if not others and not silent:
        return None
    behind = set(others)
    differing = next((last for rank, last in waiting.items() if rank in behind and last.sequence == lowest), None)
    return Absence(
        group=group,
        sequence=first.sequence,
        name=first.name,
        frame=first.frame,
        waiting=there,
        missing=others,
        silent=silent,
        source=by_rank[there[0]].source,
        differs=""
        if differing is None
        else differing.name
        if differing.name != first.name
        else f"{first.name} of {differing.sizes}, not {first.sizes},",
    )


def _is_behind(last: RecordedCollective, first: RecordedCollective) -> bool:
    """Whether it did not come to ``first``, or came to another collective in its place."""
    other = (last.name, last.sizes) != (first.name, first.sizes)
    return last.sequence < first.sequence or (last.sequence == first.sequence and other)


def _unfinished(collectives: Sequence[RecordedCollective]) -> RecordedCollective | None:
    """Return the first that did not complete, else the last."""
    open_ = (one for one in collectives if one.state != "completed" and not one.is_retired)
    return next(open_, collectives[-1] if collectives else None)
