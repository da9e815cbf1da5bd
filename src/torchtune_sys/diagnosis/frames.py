"""Find the line of the training program's own files in a traceback, and in the stack that a crashed process printed (faulthandler)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_FRAME = pattern(r'^\s*File "(?P<file>[^"\n]{1,300})", line (?P<line>\d{1,7})(?:,? in (?P<function>[^\n]{1,120}))?')
"""CPython Lib/traceback.py, and Python/traceback.c, which writes no comma before ``in``."""
_OF_OTHERS = pattern(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]Python\d+[/\\][Ll]ib[/\\]|^<frozen |[/\\]torch[/\\]csrc[/\\]"
)
"""Files that are not the training program's own."""
_CRASH = "Fatal Python error: "
_STACK = pattern(r"^\s*(?:Current thread 0x[0-9a-f]{1,16} .{0,40}|Stack )\(most recent call first\):")
"""Of the thread that crashed; the others' have no ``Current`` (CPython Python/traceback.c)."""
_MOST_FRAMES = 100


def frame_of(line: LogLine) -> re.Match[str] | None:
    """Return the frame that a line of a traceback or stack tells."""
    return _FRAME.match(line.text)


def is_own(frame: re.Match[str]) -> bool:
    """Return whether a frame is in a file of the training program's."""
    return not _OF_OTHERS.search(frame["file"])


def place_of(frames: Sequence[re.Match[str]]) -> str:
    """Return the innermost line of the program's own files, and what it called where the error is raised in a library. ``frames``: the innermost last."""
    own = next((frame for frame in reversed(frames) if is_own(frame)), None)
    if own is None or own is frames[-1]:
        return _written(frames[-1]) if frames else ""
    return f"{_written(own)}; raised at {_written(frames[-1])}"


def _written(frame: re.Match[str]) -> str:
    return f"{frame['file']}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")


def with_places(symptoms: Iterable[Symptom], lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield the symptoms, those of a crash with the place in the process's stack that stands below it."""
    for symptom in symptoms:
        place = _below(lines, symptom.line) if symptom.line.text.startswith(_CRASH) else ""
        yield replace(symptom, line=replace(symptom.line, text=f"{symptom.line.text}, at {place}")) if place else symptom


def _below(lines: Sequence[LogLine], crash: LogLine) -> str:
    stack: list[re.Match[str]] = []
    is_stack = False
    for line in lines:
        if line.number <= crash.number or line.rank != crash.rank:
            continue
        frame = frame_of(line) if is_stack else None
        if frame is not None and len(stack) < _MOST_FRAMES:
            stack.append(frame)
        elif is_stack:
            break
        is_stack = is_stack or _STACK.match(line.text) is not None
    return place_of(stack[::-1])
