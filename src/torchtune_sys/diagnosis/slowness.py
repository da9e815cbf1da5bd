"""What tables of steps and paths of NCCL's rings tell, though no line of them complains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.diagnosis.lines import LogLine
from torchtune_sys.diagnosis.symptoms import LIKELY, Candidate, Symptom

_METER = re.compile(
    r"\b[Tt]ime:? {1,4}(?P<time>[\d.]{1,12}) ?\((?P<mean>[\d.]{1,12})\).{0,40}?\b[Dd]ata(?:[ _][Tt]ime)?:? {1,4}(?P<data>[\d.]{1,12}) ?\((?P<data_mean>[\d.]{1,12})\)"
)
"""The meters of torch's ImageNet example, and of those that were made from it: the value, and the mean in brackets."""
_PAIRS = re.compile(r"(?<!data)[_ ]?\btime: (?P<mean>[\d.]{1,12}),? {1,4}data_time: (?P<data_mean>[\d.]{1,12})")
"""mmengine's log: seconds of an iteration, and of waiting for data in it."""
_STEPS, _SHARE = 4, 0.6
_PATH = re.compile(
    r"(?P<pair>\d{1,6}\[\w{1,12}\] -> \d{1,6}\[\w{1,12}\]) \[(?P<way>send|receive)\] via NET/IB/\d{1,3}(?P<direct>/GDRDMA)?"
)


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    for source, part in lines.items():
        yield from _data(source, part)
        yield from _one_sided(source, part)


def _data(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Steps that wait for data most of their time."""
    steps = [(line, found) for line in lines if (found := _METER.search(line.text[:400]) or _PAIRS.search(line.text[:400]))]
    shares = [share for _, found in steps if (share := _share(found)) is not None]
    if len(shares) < _STEPS or sum(share > _SHARE for share in shares) * 2 < len(shares):
        return
    slowest, _ = max(steps, key=lambda step: _share(step[1]) or 0.0)
    yield _likely("slow-data-storage", source, slowest, "torch", "pytorch/examples imagenet/main.py; mmengine")


def _share(found: re.Match[str]) -> float | None:
    try:
        mean, data = float(found["mean"]), float(found["data_mean"])
    except ValueError:
        return None
    return data / mean if mean > 0 else None


def _one_sided(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """A connection of which one half runs with GPUDirect RDMA, and the other without."""
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


def _likely(cause: str, source: str, line: LogLine, program: str, words: str) -> Symptom:
    return Symptom(source=source, line=line, candidates=(Candidate(cause=cause, weight=LIKELY),), program=program, words=words)
