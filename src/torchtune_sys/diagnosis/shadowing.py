"""Find files that shadow a module, by the frames of a traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from torchtune_sys.diagnosis.symptoms import CERTAIN, LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_FRAME = pattern(r'^\s*File "(?P<path>[^"\n]{1,400})", line \d{1,7}, in (?P<name>\S{1,200})\s*$')
_ERROR = pattern(r"^\s*(?:[A-Za-z_]\w*\.)*(?:AttributeError|ImportError|ModuleNotFoundError|TypeError|NameError)\b")
_INSTALLED = pattern(r"(?:^|[/\\])(?:lib\w{0,10}[/\\](?:python|pypy)[\d.]*|(?:site|dist)-packages|Lib)[/\\]|^<")
"""Where Python's own modules and installed packages lie; ``<frozen importlib._bootstrap>`` too."""
_STEM = pattern(r"([A-Za-z_]\w*)(?:\.py|[/\\]__init__\.py)$")
_SCRIPTS = frozenset(("code", "main", "run", "setup", "site", "test", "this", "train"))
"""Names that people give their scripts, and that nothing imports."""
_MOST = 200
_RANKS = 8


class _Frame(msgspec.Struct, frozen=True):
    line: LogLine
    path: str
    name: str
    code: str

    @property
    def module(self) -> str:
        """The name by which the file would be imported."""
        found = _STEM.search(self.path)
        return found[1] if found is not None else ""

    @property
    def installed(self) -> bool:
        return _INSTALLED.search(self.path) is not None


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    for source, part in lines.items():
        found = _of_part(source, part) or next((each for own in _by_rank(part) if (each := _of_part(source, own))), None)
        if found is not None:
            yield found


def _of_part(source: str, lines: Sequence[LogLine]) -> Symptom | None:
    tracebacks = (
        _of_torch(source, frames, error) or _of_library(source, frames, error) or _of_package(source, frames, error)
        for frames, error in _tracebacks(lines)
    )
    return next((found for found in tracebacks if found is not None), None)


def _by_rank(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    """Yield the lines of each rank, whose tracebacks came through each other."""
    ranks: dict[int, list[LogLine]] = {}
    for line in lines:
        if line.rank is not None:
            ranks.setdefault(line.rank, []).append(line)
    yield from list(ranks.values())[:_RANKS] if len(ranks) > 1 else ()


def _tracebacks(lines: Sequence[LogLine]) -> Iterator[tuple[list[_Frame], LogLine]]:
    """Yield the frames of each traceback, the outermost first, and the line of its error."""
    frames: list[_Frame] = []
    for at, line in enumerate(lines):
        found = _FRAME.match(line.text) if 'File "' in line.text else None
        if found is not None and len(frames) < _MOST:
            code = lines[at + 1].text.strip() if at + 1 < len(lines) else ""
            frames.append(_Frame(line, found["path"], found["name"], code))
        elif frames and _ERROR.match(line.text):
            yield frames, line
            frames = []
        elif line.text.startswith("Traceback "):
            frames = []


def _of_torch(source: str, frames: Sequence[_Frame], error: LogLine) -> Symptom | None:
    """Return the symptom that a file ``torch.py``, or a folder ``torch`` that is not the installed one, was imported."""
    for frame in frames:
        if frame.module != "torch" or frame.installed or frame.name != "<module>":
            continue
        if frame.path.endswith("torch.py") or "_C" in error.text:
            return _symptom("torch-shadowed", CERTAIN, source, frame.line)
    return None


def _of_library(source: str, frames: Sequence[_Frame], error: LogLine) -> Symptom | None:
    """Return the symptom of a file with a name that Python's own library imports: the frame before it says ``import NAME``; or the script has such a name, and
    what it imports fails deep within."""
    for before, frame in pairwise(frames):
        if (
            _ours(frame)
            and before.installed
            and re.search(rf"\bimport\b.{{0,80}}\b{frame.module}\b|\bfrom {frame.module}\b", before.code)
        ):
            return _symptom("stdlib-hidden", CERTAIN, source, frame.line)
    script = frames[0] if frames[0].path[0] != "<" else frames[min(1, len(frames) - 1)]
    deep = frames[-1].installed and "import" in script.code and "has no attribute" in error.text
    if _ours(script) and script.module not in _SCRIPTS and deep:
        return _symptom("stdlib-hidden", LIKELY, source, script.line)
    return None


_COMPILED = pattern(
    r"No module named ['\"](?P<package>[A-Za-z]\w{1,60})(?:\.\w{1,60}){0,3}\.(?:_C\w{0,20}|_ext|_?\w{1,30}_(?:cuda|cpp|ext|kernels?))['\"]"
    r"|cannot import name ['\"](?:_C\w{0,20}|_ext)['\"] from (?:partially initialized module )?['\"](?P<own>[A-Za-z]\w{1,60})"
)
_OUTSIDE = (
    "run it from another directory than the package's sources, or build them in place (pip install -e . with its compiled parts)"
)


def _of_package(source: str, frames: Sequence[_Frame], error: LogLine) -> Symptom | None:
    """Return the symptom that a package was imported from its sources, which have no compiled module."""
    found = _COMPILED.search(error.text)
    package = found["package"] or found["own"] if found is not None else None
    for frame in frames if package else ():
        if not frame.installed and re.search(rf"[/\\]{package}[/\\]", frame.path):
            return _symptom("torch-shadowed", POSSIBLE, source, frame.line, _OUTSIDE)
    return None


def _ours(frame: _Frame) -> bool:
    """Whether a person's file has the name of a module of the standard library."""
    return frame.name == "<module>" and frame.module in sys.stdlib_module_names and not frame.installed


def _symptom(cause: str, weight: int, source: str, line: LogLine, fix: str = "") -> Symptom:
    return Symptom(
        source=source,
        line=line,
        candidates=(Candidate(cause=cause, weight=weight, fix=fix),),
        program="python",
        words="CPython sys.path: the script's directory comes before the library",
    )
