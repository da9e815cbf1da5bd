"""Find, in what Lightning says as its processes start, ranks that came twice and ranks that did not come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine

_CAME = re.compile(
    r"nitializing (?:ddp|distributed|ddp_spawn|fsdp|deepspeed): GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<world>\d{1,6})\b"
)
_ALL_CAME = re.compile(
    r"All (?:distributed|DDP) processes registered|Sanity Checking|Epoch \d+[:/ ]|\b\d+(?:\.\d+)?(?:it/s|s/it)\b|`?Trainer\.\w+`? stopped"
)
"""The program went on: its processes found each other."""
_STANDS = re.compile(
    r"(?i)\b(?:hangs?|hanging|hung|stuck|freez(?:es?|ing)|frozen?|deadlocks?|nothing happens|no progress|timed? ?out)\b"
)
_LONGEST = 400
_MOST = 1 << 16


class _Start(msgspec.Struct, kw_only=True):
    source: str
    line: LogLine
    world: int
    came: Counter[int]


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the start after which nothing went on. Of several sources each has its own ranks, so only one that has rank 0 is judged."""
    for source, part in lines.items():
        start = _last_start(source, part)
        if start is None:
            continue
        twice = sorted(rank for rank, times in start.came.items() if times > 1)
        absent = [rank for rank in range(start.world) if rank not in start.came]
        if twice and (len(start.came) > 1 or absent):
            how = f"GLOBAL_RANK {', '.join(map(str, twice[:8]))} started more than once"
            yield _symptom(start, how, (("job-launch-nested-wrongly", LIKELY),))
        elif absent and 0 in start.came and len(lines) == 1 and any(_STANDS.search(line.text[:_LONGEST]) for line in part):
            how = f"{len(absent)} of {start.world} ranks did not start"
            yield _symptom(
                start, how, (("job-launch-nested-wrongly", POSSIBLE), ("ranks-missing", POSSIBLE), ("node-never-came", POSSIBLE))
            )


def _last_start(source: str, lines: Sequence[LogLine]) -> _Start | None:
    """None where the program went on after it."""
    start = None
    for line in lines:
        words = line.text[:_LONGEST]
        if "nitializing" in words and (found := _CAME.search(words)):
            world = int(found["world"])
            if start is None or start.world != world:
                start = _Start(source=source, line=line, world=world, came=Counter())
            start.came[int(found["rank"])] += 1
        elif start is not None and _ALL_CAME.search(words):
            start = None
    return start if start is not None and start.world <= _MOST else None


def _symptom(start: _Start, how: str, causes: Sequence[tuple[str, int]]) -> Symptom:
    return Symptom(
        source=start.source,
        line=replace(start.line, text=f"{start.line.text[:_LONGEST]} ({how})", rank=None),
        candidates=tuple(Candidate(cause=cause, weight=weight) for cause, weight in causes),
        program="Lightning",
        words="Lightning fabric/utilities/distributed.py: each process says its rank once, and rank 0 that all are there",
    )
