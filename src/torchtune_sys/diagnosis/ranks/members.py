"""Find ranks that came twice and ranks that did not come: in what Lightning says as its processes start, and in how machines are told their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_CAME = pattern(
    r"nitializing (?:ddp|distributed|ddp_spawn|fsdp|deepspeed): GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<world>\d{1,6})\b"
)
_ALL_CAME = pattern(
    r"All (?:distributed|DDP) processes registered|Sanity Checking|Epoch \d+[:/ ]|\b\d+(?:\.\d+)?(?:it/s|s/it)\b|`?Trainer\.\w+`? stopped"
)
"""The program went on: its processes found each other."""
_STANDS = pattern(
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


_PLACE = pattern(
    r"\b(?P<what>machine_rank|node[_-]rank|num_machines|nnodes|main_process_ip|master[_-]addr)\b[\"']?(?:\s{0,4}[:=]\s{0,4}| )[\"']?(?P<value>[\w.:-]{1,120})"
)
"""accelerate's configuration; options of accelerate launch and torchrun."""
_IN_VAIN = pattern(r"clients joined|(?i:timed? ?out|still waiting|hangs?\b|\bhung\b|\bstuck\b)")


def places_taken_twice(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield where each machine of a job that waits in vain has the place of another one, and itself as the master."""
    told = [
        (source, line, found["what"].replace("-", "_"), found["value"])
        for source, part in lines.items()
        for line in part
        for found in _PLACE.finditer(line.text[:_LONGEST])
    ]
    ranks = [(source, line, value) for source, line, what, value in told if what in ("machine_rank", "node_rank")]
    counts = {value for _, _, what, value in told if what in ("num_machines", "nnodes")}
    masters = {value for _, _, what, value in told if what in ("main_process_ip", "master_addr")}
    if len(masters) == 1 or {str(len(ranks))} != counts or len({value for *_, value in ranks}) > 1 or len(masters) != len(ranks):
        return
    if not any(_IN_VAIN.search(line.text[:_LONGEST]) for part in lines.values() for line in part):
        return
    source, line, value = ranks[-1]
    fix = f"give the machines the places 0 to {len(ranks) - 1}, each another one, and all of them the address of machine 0: each is {value} and waits at its own address"
    yield Symptom(
        source=source,
        line=line,
        candidates=(Candidate(cause="ranks-missing", weight=LIKELY, fix=fix),),
        program="accelerate",
        words="accelerate/commands/launch.py; torch/distributed/run.py: one machine has rank 0, at whose address all others join",
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
