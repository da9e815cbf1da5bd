"""Quote errors that nothing explains, with the program and the place."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torchtune_sys.diagnosis.frames import frame_of, is_own, place_of
from torchtune_sys.diagnosis.ranks import peers
from torchtune_sys.diagnosis.stated_forms import CODE
from torchtune_sys.diagnosis.symptoms import Symptom, is_no_output
from torchtune_sys.diagnosis.text.failures import DEATHS, RAISED, TRACEBACK
from torchtune_sys.diagnosis.text.lines import LogLine, is_raised
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.knowledge.quoted_errors import is_mentioned
from torchtune_sys.model.diagnosis import Unexplained

_MOST, _TEXT, _HEAD = 3, 900, 300
_PASTE, _MORE = 12, 12
"""Lines up to which a text is what somebody cut out of a failure: the error's own line is enough there, without the frames above it. In longer
texts people also speak of errors."""
_ANY_NAME = re.compile(r"^(?P<name>[\w.<>]{1,200})")
_MISTAKES = frozenset(
    ("KeyError", "IndexError", "NameError", "UnboundLocalError", "ZeroDivisionError", "SyntaxError", "IndentationError")
)
_WHERE = "the line that the traceback ends with is the program's own: print what it uses there, on this rank and with this data"
_ROOT_HEAD, _ROOT, _LAUNCHER = "Root Cause (first observed failure)", re.compile(r"^\s*exitcode {1,8}: -?[1-9]"), "torchrun"
"""torch/distributed/elastic/multiprocessing/errors/__init__.py: all that is left where only torchrun's summary is given."""
_WARNED = re.compile(r"\b[A-Z]\w{1,40}Warning: |\bNCCL INFO ")
"""CPython Lib/warnings.py, NCCL src/debug.cc: the program goes on behind it."""


def unexplained_of(lines: Mapping[str, Sequence[LogLine]], symptoms: Sequence[Symptom]) -> tuple[Unexplained, ...]:
    """Return the first errors of each text that no cause explains; where all follow from others, and nothing is named, the first of these."""
    following = {(symptom.source, symptom.line.number) for symptom in symptoms if symptom.consequence}
    known = {(symptom.source, symptom.line.number): symptom for symptom in symptoms if not symptom.candidates}
    named = {(symptom.source, symptom.line.number) for symptom in symptoms if symptom.candidates}
    first: list[Unexplained] = []
    after: list[Unexplained] = []
    roots: list[Unexplained] = []
    for source, part in lines.items():
        for error in _errors(part, source, known):
            line = error.line
            said = (known[source, number] for number in range(line.number, error.last + 1) if (source, number) in known)
            remedy = next((symptom.remedy for symptom in said if symptom.remedy), "")
            found = Unexplained(
                source=source,
                line=line.number,
                text=scrubbed(error.words),
                program=error.program,
                place=error.place,
                fix=remedy or (_WHERE if error.is_own_mistake else ""),
                hosts=(line.host,) if line.host else (),
                ranks=(line.rank,) if line.rank is not None else (),
            )
            if (source, line.number) in named:
                continue
            follows = (source, line.number) in following or peers.tells_of_peer(line.text)
            (roots if error.program == _LAUNCHER else after if follows else first).append(found)
    return tuple(_distinct(first or ([] if named else (roots or after)[:1])))[:_MOST]


def alone(lines: Mapping[str, Sequence[LogLine]]) -> tuple[Unexplained, ...]:
    """Return the first error that stands without the traceback or the program it is of: in a line of its own, or in the title that somebody gave it.

    Where there is none, the first that a sentence names; else where a traceback that lost its end stops.
    """
    for find in (_named, _told, _cut_short):
        found = [
            Unexplained(source=source, line=line.number, text=scrubbed(_cut(words)), program=program, place=place, fix=fix)
            for source, part in lines.items()
            for line, words, program, place, fix in find(part)
        ]
        if found:
            return tuple(_distinct(found))[:1]
    return ()


_Alone = tuple[LogLine, str, str, str, str]
"""A line, what it says, of which program, at which place, and what to look for."""


def _named(part: Sequence[LogLine]) -> Iterator[_Alone]:
    for line in part:
        words = _TITLED.sub("", line.text[:_TEXT])
        raised = _NAMED.match(words)
        if raised is not None and not is_no_output(words):
            yield line, words, _program(raised["name"]), "", ""


def _told(part: Sequence[LogLine]) -> Iterator[_Alone]:
    for line in part:
        text = line.text[:_TEXT]
        raised = _IN_SENTENCE.search(text) if "rror: " in text or "ception: " in text else None
        if (
            raised is None
            or is_no_output(text)
            or is_mentioned(text)
            or CODE.search(_PINS.sub("", text))
            or _HANDLED.search(text)
        ):
            continue
        yield line, raised["error"], _program(raised["name"]), "", ""


def _cut_short(part: Sequence[LogLine]) -> Iterator[_Alone]:
    """Yield the last frame of a traceback below which no line names an error."""
    frames: list[tuple[LogLine, re.Match[str]]] = []
    is_open = False
    for line in part:
        if TRACEBACK in line.text:
            frames, is_open = [], True
        elif is_open and (frame := frame_of(line)) is not None:
            frames.append((line, frame))
        elif RAISED.match(line.text.strip()):
            is_open = False
    if is_open and frames:
        yield frames[-1][0], frames[-1][1].string.strip(), "python", place_of([frame for _, frame in frames]), _END_LOST


_END_LOST = "the traceback lost its end: the line below its last frame names the error"
_PINS = re.compile(r"(?<=\w)==(?=\d)")
"""Before the release of a package, as pip is told."""
_HANDLED = re.compile(
    r"\b(?:[Rr]aises?|[Cc]atch(?:es)?|[Ee]xcept|[Hh]andles?|[Ss]uppress\w*|[Ss]hould|[Ww]ould|[Mm]ust|[Ii]nstead of)\b"
)
"""Of what a program does about errors, or is to do."""
_TITLED = re.compile(
    r"^# (?:\[[^\]]{1,30}\]:? ?|(?:[A-Z][a-z]{1,12}\.? )?[Bb]ug: ?){0,3}|^E {3,8}(?=[\w.]{1,80}:)|^(?:- )?`(?=[\w.]{1,80}: .{1,300}`$)"
)
"""The head of an issue, pytest's margin, and what Markdown marks as code."""
_NAMED = re.compile(
    r"(?P<name>(?:[A-Za-z_<][\w<>]{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception)|error)(?:\(\w{1,60}\))?: (?=\S)"
)
_IN_SENTENCE = re.compile(
    r"(?:[`*\"]|\b(?i:gets?|got|getting|with|following|fix(?:ing)?|solv(?:e|ing)|says?|sees?|error|message|line)\b[^.`\"]{0,24}?[\s:(])"
    r"(?P<error>(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z]\w{1,60}(?:Error|Exception)): [^\s`'\"*][^`*\"]{2,300})"
)
"""An error's name within marks, or behind words with which people introduce one."""


def _program(name: str) -> str:
    return name.partition(".")[0] if "." in name else "" if name == "error" else "python"


class Asked:
    """The errors of these texts that nothing explains, which are asked for several times with the same symptoms."""

    def __init__(self, lines: dict[str, Sequence[LogLine]]) -> None:
        self._lines = lines
        self._answers: list[tuple[tuple[Symptom, ...], tuple[Unexplained, ...]]] = []

    def but_for(self, symptoms: Sequence[Symptom]) -> tuple[Unexplained, ...]:
        """Return ``unexplained_of`` the texts and these symptoms."""
        for before, answer in self._answers:
            if len(before) == len(symptoms) and all(map(operator.is_, before, symptoms)):
                return answer
        self._answers.append((tuple(symptoms), unexplained_of(self._lines, symptoms)))
        return self._answers[-1][1]


def interrupted(lines: Mapping[str, Sequence[LogLine]]) -> tuple[Unexplained, ...]:
    """Return where somebody interrupted the program, that is no error of its own: the frames tell what it did just then."""
    for source, part in lines.items():
        frames: list[re.Match[str]] = []
        for line in part:
            frame = frame_of(line)
            if frame is not None:
                frames.append(frame)
            elif line.text.startswith(_INTERRUPT) and frames:
                place, ranks = place_of(frames), (line.rank,) if line.rank is not None else ()
                return (
                    Unexplained(
                        source=source, line=line.number, text=_INTERRUPT, program="python", place=place, ask=_ASK, ranks=ranks
                    ),
                )
    return ()


_INTERRUPT = "KeyboardInterrupt"
_ASK = "nothing failed before somebody pressed Ctrl-C, or sent SIGINT; if it stood still: the place above on each rank (py-spy dump --pid PID), before it is interrupted"


def ended(unknown: Sequence[Unexplained]) -> bool:
    """Return whether one is an exception that nobody caught, in code that the traceback shows."""
    return any(each.place for each in unknown)


class _Error(NamedTuple):
    line: LogLine
    last: int
    """The number of the line with which its message ends."""
    words: str
    program: str
    place: str = ""
    is_own_mistake: bool = False


def _errors(lines: Sequence[LogLine], source: str, known: dict[tuple[str, int], Symptom]) -> Iterator[_Error]:
    frames_of: dict[int | None, list[re.Match[str]]] = {}
    is_root = False
    before: dict[int | None, LogLine] = {}
    for at, line in enumerate(lines):
        above = before.get(line.rank)
        before[line.rank] = line
        is_root |= line.text.startswith(_ROOT_HEAD)
        if is_root and _ROOT.match(line.text):
            is_root = False
            yield _Error(line, line.number, _cut(line.text), _LAUNCHER)
            continue
        frame, frames = frame_of(line), frames_of.setdefault(line.rank, [])
        if frame is not None:
            frames.append(frame)
            continue
        raised = RAISED.match(_dedented(line.text, frames)) or (
            _ANY_NAME.match(line.text) if frames and is_raised(line, above) else None
        )
        if raised is not None and raised["name"] == _INTERRUPT:
            return  # what follows is the end of a program that somebody ended
        if raised is not None and (frames or len(lines) <= _PASTE) and not is_no_output(line.text[:_TEXT]):
            name = raised["name"]
            is_own_mistake = name in _MISTAKES and bool(frames) and is_own(frames[-1])
            program = _program(name)
            yield _Error(line, *_message(lines, at), program, place_of(frames), is_own_mistake)
            del frames_of[line.rank]
            continue
        program = next((name for name, pattern in DEATHS if pattern.search(line.text[:_TEXT])), "")
        if program and is_no_output(line.text[:_TEXT]):
            continue
        message = known.get((source, line.number)) if program or not _WARNED.search(line.text[:_TEXT]) else None
        if program or (message is not None and not message.remedy and (message.program or not message.consequence)):
            yield _Error(line, line.number, _cut(line.text), program or (message.program if message is not None else ""))


def _dedented(text: str, frames: Sequence[re.Match[str]]) -> str:
    """Return what a traceback ends with without the indentation of the whole traceback, as pip shows that of a build."""
    indent = _indent(frames[-1].string) - _FRAMES_INDENT if frames else 0
    return text[indent:] if indent > 0 and not text[:indent].strip() else text


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


_FRAMES_INDENT = 2
"""CPython Lib/traceback.py."""


def _message(lines: Sequence[LogLine], at: int) -> tuple[int, str]:
    """Return the number of the line with which an exception's message ends, and its words, with the indented lines that go on with it."""
    words, last = [lines[at].text], lines[at].number
    for line in lines[at + 1 : at + 1 + _MORE]:
        if line.rank is not None and line.rank != lines[at].rank:
            continue
        if not line.text.startswith(("\t", "  ")) or frame_of(line) is not None or _indent(line.text) <= _indent(lines[at].text):
            break
        words.append(line.text.strip())
        last = line.number
    return last, _cut(" ".join(words))


def _cut(words: str) -> str:
    """Without its middle, where it is long: what names the thing often stands at the end."""
    words = words.strip()
    return words if len(words) <= _TEXT else f"{words[:_HEAD]} … {words[_HEAD - _TEXT :]}"


def _distinct(found: list[Unexplained]) -> list[Unexplained]:
    return list({re.sub(r"\d+", "0", item.text): item for item in reversed(found)}.values())[::-1]
