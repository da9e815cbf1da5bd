"""Find slowness in tables of steps, of copies between GPUs, in what ranks report of their times, and in the paths of NCCL's rings, where no line reports an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_VALUE = r"(?:[ _-]?(?:time|cost|wait|t|s|ms))?[ =:]{0,4}(?P<value>\d{1,6}\.\d{1,6})(?!\.?\d|/| ?%| ?[GM]i?B)(?:[^(|,;]{0,24}\((?P<mean>\d{1,6}\.\d{1,6}))?"
"""What a meter shows: a value, and often its mean in brackets behind it."""
_DATA = pattern(
    rf"(?i)(?<![a-z])(?:(?:avg|train|mean|get|total)[_ .-])?(?:data(?:[_ -]?load(?:ing|er)?)?|d(?=_time)|(?:data )?loading|load[_ -](?:data|batch)|reader|fetch(?:ing)?|batch[_-]generator){_VALUE}"
)
_STEP = pattern(
    rf"(?i)(?<![a-z_])(?<!data )(?<!eta )(?<!load )(?:(?:avg|train|total)[_ ])?(?:(?:batch|iter(?:ation)?|step|b)[_ ](?=time|cost)|(?=time\b)){_VALUE}"
)
"""The whole step, with the wait for data in it."""
_WORK = pattern(
    rf"(?i)(?<![a-z_])(?P<what>(?:train|model)[_ ](?:step|fwd|forward)|net(?:work)?|forward|backward|fwd|bwd|optim\w{{0,6}}|compute|gpu|f(?=_time)){_VALUE}"
)
"""What a step does beside that."""
_FIRST = pattern(r"(?i)[\[(]\s{0,6}0/|\b(?:iter\w{0,6}|step|batch)[ :=]{1,3}0\b")
"""The first step starts the workers, and waits for them."""
_STEPS, _SHARE, _LONG = 3, 0.6, 400
_PATH = pattern(
    r"(?P<pair>\d{1,6}\[\w{1,12}\] -> \d{1,6}\[\w{1,12}\]) \[(?P<way>send|receive)\] via NET/IB/\d{1,3}(?P<direct>/GDRDMA)?"
)


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    for source, part in lines.items():
        yield from _data(source, part)
        yield from _profiled(source, part)
        yield from _one_sided(source, part)
        yield from _slow_copies(source, part)
    yield from _one_slow_rank(lines)


_TIMED = pattern(
    r"(?i)\b(?P<what>[a-z][a-z_]{0,24}?)(?:[ _-](?:time|took|in|s|ms))?[ =:]{1,4}(?P<value>\d{1,5}\.\d{1,6})(?P<unit> ?(?:s|ms|sec|secs|seconds))\b"
)
"""A word, a number and a unit of time."""
_WAITS = pattern(r"(?i)comm|sync|reduce|gather|nccl|wait|barrier")
_LOADS = pattern(r"(?i)data|load|fetch|read|input|batch")
_RANKS, _VALUES, _LINES, _FACTOR, _STEADY = 3, 4, 256, 2.0, 0.75


def _one_slow_rank(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the one rank that steadily takes a multiple of the others' time for the same thing, or for which alone nobody has to be waited."""
    told: dict[tuple[str, str], dict[int, list[tuple[float, str, LogLine]]]] = {}
    read: Counter[int] = Counter()
    for source, part in lines.items():
        for line in part:
            if line.rank is None or read[line.rank] >= _LINES:
                continue
            read[line.rank] += 1
            for found in _TIMED.finditer(line.text[:400]):
                of_rank = told.setdefault((found["what"].lower(), found["unit"]), {}).setdefault(line.rank, [])
                of_rank.append((float(found["value"]), source, line))
    for (what, _), by_rank in told.items():
        series = {rank: [value for value, *_ in each] for rank, each in by_rank.items() if len(each) >= _VALUES}
        if len(series) < _RANKS:
            continue
        import statistics  # and what it loads: few texts have such lines

        middles = {rank: statistics.median(values) for rank, values in series.items()}
        waits = _WAITS.search(what) is not None
        odd = (min if waits else max)(middles, key=lambda rank: middles[rank])
        others = [middle for rank, middle in middles.items() if rank != odd]
        if min(others) * _FACTOR < max(others) or not _apart(series[odd], min(others) if waits else max(others), waits):
            continue
        _, source, line = by_rank[odd][-1]
        causes = ("slow-data-storage", "straggler-compute") if _LOADS.search(what) else ("straggler-compute", "slow-data-storage")
        yield Symptom(
            source=source,
            line=line,
            candidates=tuple(Candidate(cause=cause, weight=LIKELY if at == 0 else POSSIBLE) for at, cause in enumerate(causes)),
            program="the program",
            ranks=(odd,),
            words="the ranks' own times",
        )
        return


def _apart(values: Sequence[float], others: float, waits: bool) -> bool:
    steady = [value for value in values if (value * _FACTOR <= others if waits else value >= others * _FACTOR > 0)]
    return len(steady) >= _STEADY * len(values)


def _data(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield steps that wait for data most of their time."""
    steps = [(line, *times) for line in lines if (times := _times(line.printed[:_LONG])) is not None]
    waits, whole = sum(wait for _, wait, _ in steps), sum(took for _, _, took in steps)
    if len(steps) >= _STEPS and waits > _SHARE * whole:
        slowest, *_ = max(steps, key=lambda step: step[1])
        yield _likely(
            "slow-data-storage",
            source,
            slowest,
            "torch",
            "meters of training loops: pytorch/examples imagenet/main.py, timm, detectron2, mmengine, PaddlePaddle",
        )


_PROFILED = pattern(
    r"(?:train_dataloader_next|get_train_batch|fetch_next\S{0,24}|_DataFetcher\S{0,40}__next__)\s*\|.{0,160}?\|\s*(?P<share>\d{1,3}(?:\.\d{1,4})?)(?: ?%)?\s*\|?\s*$"
)
"""A row of Lightning's SimpleProfiler: the last column is the share of all time."""


def _profiled(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield the profile of a run that waits for data most of its time."""
    for line in lines:
        found = _PROFILED.search(line.printed[:_LONG])
        if found is not None and 100 * _SHARE <= float(found["share"]) <= 100:
            yield _likely("slow-data-storage", source, line, "lightning", "Lightning pytorch/profilers/simple.py")
            return


def _times(text: str) -> tuple[float, float] | None:
    """Return how long a step waited for data, and how long it took, of a line that says both."""
    data = _DATA.search(text)
    if data is None or _FIRST.search(text):
        return None
    step, work = _STEP.search(text), {each["what"].lower(): each for each in _WORK.finditer(text)}
    partners = [step] if step is not None else list(work.values())
    if not partners:
        return None
    shown = "mean" if all(each["mean"] for each in (data, *partners)) else "value"
    waits, others = float(data[shown]), sum(float(each[shown]) for each in partners)
    return waits, others if step is not None and others >= waits else waits + others


def _one_sided(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield a connection of which one half runs with GPUDirect RDMA, and the other without."""
    halves: dict[str, dict[str, tuple[bool, LogLine]]] = {}
    for line in lines:
        found = _PATH.search(line.text[:400]) if "via NET/IB" in line.text else None
        if found is not None:
            halves.setdefault(found["pair"], {}).setdefault(found["way"], (found["direct"] is not None, line))
    for both in halves.values():
        if len(both) == 2 and len({direct for direct, _ in both.values()}) == 2:
            without = next(line for direct, line in both.values() if not direct)
            yield _likely("gpudirect-rdma-disabled", source, without, "NCCL", "NCCL src/transport/net.cc")
            return


_MATRIX = pattern(r"^\s*Unidirectional P2P=(?P<state>Disabled|Enabled) Bandwidth.{0,20} Matrix \(GB/s\)")
_ROW = pattern(r"^\s*\d{1,3}((?:\s+\d{1,6}\.\d{1,3}){2,64})\s*$")
_SLOWER = 0.5


def _slow_copies(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield copies between GPUs that are slower directly than through the host's memory (CUDA's sample p2pBandwidthLatencyTest)."""
    tables: dict[str, list[list[float]]] = {}
    headings: dict[str, LogLine] = {}
    state = ""
    for line in lines:
        heading, row = _MATRIX.match(line.text), _ROW.match(line.text)
        if heading is not None:
            state = heading["state"]
            headings.setdefault(state, line)
        elif state and row is not None:
            tables.setdefault(state, []).append([float(value) for value in row[1].split()])
        elif state in tables:
            state = ""
    pairs = [
        (through, direct)
        for at, rows in enumerate(zip(tables.get("Disabled", []), tables.get("Enabled", []), strict=False))
        for to, (through, direct) in enumerate(zip(*rows, strict=False))
        if at != to
    ]
    if pairs and any(direct < _SLOWER * through for through, direct in pairs):
        causes = ("p2p-blocked-by-iommu-acs", "iommu-not-passthrough", "geforce-p2p-broken")
        yield Symptom(
            source=source,
            line=headings["Enabled"],
            candidates=tuple(Candidate(cause=cause, weight=LIKELY if at == 0 else POSSIBLE) for at, cause in enumerate(causes)),
            program="CUDA",
            words="CUDA samples p2pBandwidthLatencyTest",
        )


def _likely(cause: str, source: str, line: LogLine, program: str, words: str) -> Symptom:
    return Symptom(source=source, line=line, candidates=(Candidate(cause=cause, weight=LIKELY),), program=program, words=words)
