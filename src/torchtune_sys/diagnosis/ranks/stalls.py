"""Find the ranks that submit no tensor while Horovod's others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_LIST = pattern(r"\[(?P<how>ready|missing) ranks: ?(?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,4096})")
_ROW = pattern(r"^(\d{1,6})!?: \[")
"""Horovod common/stall_inspector.cc and, before 0.16, operations.cc: who submitted a tensor, or who did not, in a list or in rows."""
_PROCESSES = pattern(r"(?:\s-(?:n|np|-num-proc) |--num-proc=)(\d{1,6})\b")
_LONGEST, _WIDEST, _MOST, _SHOWN = 4000, 1 << 16, 1 << 17, 16


class _Stall(msgspec.Struct, kw_only=True):
    source: str = ""
    line: LogLine | None = None
    ready: set[int] = set()
    late: set[int] = set()
    world: int = 0

    def take(self, source: str, line: LogLine, ranks: set[int], *, ready: bool = False) -> None:
        self.source, self.line = (self.source, self.line) if self.line is not None else (source, line)
        (self.ready if ready else self.late).update(ranks)


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the ranks that are waited for; none where each rank lacks in some tensor."""
    stall = _stall(lines)
    if stall.line is None:
        return
    known = range(max([stall.world, *(rank + 1 for rank in stall.ready | stall.late)]))
    late = sorted(stall.late | (set(known) - stall.ready if stall.ready else set()))
    if late and len(late) * 2 <= len(known) <= _MOST:
        who = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late[:_SHOWN]))}{' …' if len(late) > _SHOWN else ''}"
        yield Symptom(
            source=stall.source,
            line=replace(stall.line, text=f"{stall.line.text[:300]} ({who} did not submit it)", rank=None, host=""),
            candidates=(Candidate(cause="rank-hung", weight=LIKELY),),
            program="Horovod",
            ranks=tuple(late),
            words="Horovod common/stall_inspector.cc",
        )


def _stall(lines: Mapping[str, Sequence[LogLine]]) -> _Stall:
    stall = _Stall()
    for source, part in lines.items():
        in_rows = False
        for line in part:
            stall.world = max([stall.world, *(int(size) for size in _PROCESSES.findall(line.text[:_LONGEST]))])
            row = _ROW.match(line.printed) if in_rows else None
            if row is not None:
                stall.take(source, line, {int(row[1])})
            in_rows = row is not None or line.text.endswith(("Stalled ranks:", "Missing ranks:"))
            for found in _LIST.finditer(line.text[:_WIDEST]) if " ranks: " in line.text else ():
                stall.take(source, line, {int(rank) for rank in found["ranks"].split(",")}, ready=found["how"] == "ready")
    return stall
