"""Find the ranks that torch's store-based barrier waits for: it counts those that came, and who waits says so every ten seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, joined
from torchtune_sys.model.patterns import pattern

_WAITING = pattern(
    r"(?:Waiting in store based ?barrier to initialize process ?group for (?:[\d.]{1,24} seconds,? ?)?|(?P<over>Timed out) initializing process group in store based ?barrier on )"
    r"rank:? (?P<rank>\d{1,6}), (?:for )?key: (?P<key>[\w:./-]{1,80}) "
    r"\(world_size=(?P<world>\d{1,6}), (?:worker_count|num_workers_joined)=(?P<count>\d{1,6}),"
)
_CLIENTS = pattern(r"Timed out after \d{1,9} seconds waiting for clients\. (?P<count>\d{1,6})/(?P<world>\d{1,6}) clients joined")
"""torch/csrc/distributed/c10d/TCPStore.cpp: what rank 0 says; the others wait for it, and say so."""
_TIMED_OUT, _ABSENT = "timed out", "node-never-came"
_CAME = pattern(r"[Cc]ompleted store-based barrier for key:? ?(?P<key>[\w:./-]{1,80}) with \d{1,6} nodes")
_LOOKS = 2
"""Times that one rank must have said it: once is what a slow start looks like."""
_SHOWN = 16
_LONGEST = 400


class _Barrier(msgspec.Struct, kw_only=True):
    source: str
    line: LogLine
    world: int
    count: int
    waited: dict[int, int] = {}


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the barrier that nobody left, with the ranks that are absent, where all that came say that they wait."""
    barriers: dict[str, _Barrier] = {}
    left: set[str] = set()
    for source, part in lines.items():
        for line, words in _pieces(part):
            if clients := _CLIENTS.search(words):
                here = {each.rank: _LOOKS for every in lines.values() for each in every if each.rank is not None}
                if len(here) == int(clients["count"]):
                    barriers["clients"] = _Barrier(
                        source=source, line=line, world=int(clients["world"]), count=len(here), waited=here
                    )
            elif came := _CAME.search(words):
                left.add(came["key"])
            elif found := _WAITING.search(words):
                _take(barriers, source, line, found)
    for key, barrier in barriers.items():
        if key not in left and barrier.count < barrier.world and max(barrier.waited.values()) >= _LOOKS:
            yield _symptom(barrier)


def of_reached_port(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> list[Symptom]:
    """Return the symptoms; where other ranks reached rank 0's port, who runs into a time-out there is first of all a node that did not arrive: its address, its port or its way may be wrong."""
    counts = (_CLIENTS.search(line.text[:_LONGEST]) for part in lines.values() for line in part if "clients joined" in line.text)
    if not any(found is not None and int(found["count"]) > 1 for found in counts):
        return list(symptoms)
    return [
        replace(each, candidates=tuple(sorted(each.candidates, key=lambda candidate: candidate.cause != _ABSENT)))
        if len(each.candidates) > 1 and _TIMED_OUT in each.line.text
        else each
        for each in symptoms
    ]


def _pieces(lines: Sequence[LogLine]) -> Iterator[tuple[LogLine, str]]:
    """Yield each line that speaks of the barrier, and those that were broken at a width, whole."""
    if not any(_speaks(line.text) for line in lines):
        return
    for line in lines:
        if _speaks(line.text):
            yield line, line.text[:_LONGEST]
    for broken, words in joined(lines):
        if _speaks(words) and not any(_WAITING.search(piece.text[:_LONGEST]) for piece in broken):
            yield broken[0], words[:_LONGEST]


def _speaks(words: str) -> bool:
    return "barrier" in words or "clients joined" in words


def _take(barriers: dict[str, _Barrier], source: str, line: LogLine, found: re.Match[str]) -> None:
    world, count, rank = int(found["world"]), int(found["count"]), int(found["rank"])
    barrier = barriers.setdefault(found["key"], _Barrier(source=source, line=line, world=world, count=count))
    barrier.count = max(barrier.count, count)
    barrier.waited[rank] = barrier.waited.get(rank, 0) + (_LOOKS if found["over"] else 1)


def _symptom(barrier: _Barrier) -> Symptom:
    absent = barrier.world - barrier.count
    ranks = [rank for rank in range(barrier.world) if rank not in barrier.waited] if len(barrier.waited) == barrier.count else []
    who = (
        f"rank{'s' if absent > 1 else ''} {', '.join(map(str, ranks[:_SHOWN]))}"
        if ranks
        else f"{absent} of {barrier.world} ranks"
    )
    text = f"{barrier.line.text[:_LONGEST]} ({who} did not arrive)"
    return Symptom(
        source=barrier.source,
        line=replace(barrier.line, text=text, rank=None, host=""),
        candidates=(
            Candidate(cause="ranks-missing", weight=LIKELY),
            Candidate(cause="rank-killed", weight=POSSIBLE),
            Candidate(cause="node-never-came", weight=POSSIBLE),
        ),
        program="torch",
        ranks=tuple(ranks),
        words="torch/distributed/distributed_c10d.py",
    )
