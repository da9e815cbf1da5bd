"""Lines of styled words, wrapped to the terminal's width.

Text of the host reaches the terminal only through here: control characters, bidirectional overrides and lone surrogates
are shown as escapes, so that a file name or a GPU's answer cannot steer the terminal, and no row reads as a command of a CI service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from torchtune_sys import PROGRAM
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.steering import disarmed, escaped, no_command

Span = tuple[str, str]
"""Words and the name of their style (``""`` for plain)."""


SUDO = "sudo"
"""How our texts begin a command that only root may run."""


class Style(msgspec.Struct, frozen=True, kw_only=True):
    width: int = 80
    """Columns."""
    color: bool = False
    program: str = PROGRAM
    """How a person starts this tool here: it stands where a text says what to run, so that the row can be pasted."""
    behind_sudo: str = PROGRAM
    """How root starts it by sudo."""
    before_root: str = SUDO
    """What a command begins with that only root may run, if it is for this host; "" for nothing."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One logical line: a label, then words that wrap below each other at ``hang``."""

    spans: tuple[Span, ...] = ()
    label: Span = ("", "")
    indent: int = 0
    """Columns before the label."""
    hang: int = 0
    """Columns before the words."""
    is_command: bool = False
    """Whether the words are for a shell: a row that goes on in the next one says so, by a backslash."""
    is_elsewhere: bool = False
    """Whether its commands are for another host, on which this tool is not where it is here."""


_AS_ROOT = pattern(rf"(?<![^\s(\"'`;|])(?<!by )(?<!with ){SUDO} (?=[a-z/.'])")
_COMMAND = pattern(rf"(?<![^\s(\"'`]){re.escape(PROGRAM)}(?= (?:--)?[a-z]+(?:[\s,;:.)\"'`-]|$))")
ROOM, _NARROW_HANG = 24, 4
"""Columns that words must have beside a label, and how far they are indented below a label that leaves them less."""
_BLANK = "\u00a0"
"""A blank at which no row ends, in the path of this tool: ``clean`` leaves none of a text's own."""
_CODES = {"bold": "1", "dim": "2", "error": "1;31", "warning": "33", "advice": "36", "good": "32", "heading": "1"}


def line(
    *parts: str | Span,
    label: str | Span = "",
    indent: int = 0,
    hang: int | None = None,
    is_command: bool = False,
    is_elsewhere: bool = False,
) -> Line:
    """Return a Line; parts without a style are plain."""
    spans = tuple((part, "") if isinstance(part, str) else part for part in parts)
    tag = (label, "") if isinstance(label, str) else label
    after = indent + len(tag[0]) if hang is None else hang
    return Line(spans=spans, label=tag, indent=indent, hang=after, is_command=is_command, is_elsewhere=is_elsewhere)


def render(lines: Iterable[Line], style: Style) -> str:
    """Return the text, ending in a newline."""
    return "".join(no_command(row) + "\n" for item in lines for row in _rows(item, style))


def clean(text: str) -> str:
    """Return ``text`` with everything that a terminal or a CI service would act upon disarmed, and line breaks as blanks.

    >>> clean("GPU\\x1b[2J\\r\\nok")
    'GPU\\\\x1b[2J ok'
    """
    text = disarmed(text)
    if text.isprintable():
        return text
    for blank in ("\r\n", "\n", "\r", "\t", "\u00a0"):
        text = text.replace(blank, " ")
    return "".join(sign if sign.isprintable() else escaped(sign) for sign in text)


def startable(text: str, program: str) -> str:
    """Return ``text`` with ``program`` where this tool's name begins a command, also one in brackets or quotes.

    >>> startable("see torchtune-sys's page (torchtune-sys generate install, torchtune-sys --debug …)", "./run")
    "see torchtune-sys's page (./run generate install, ./run --debug …)"
    """
    return text if program == PROGRAM or PROGRAM not in text else _COMMAND.sub(lambda _: program, text)


def row(text: str) -> str:
    """Return ``text`` as a line of its own, however long."""
    return no_command(clean(text)) + "\n"


def cut(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, with an ellipsis where something is gone."""
    flat = clean(text)
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _rows(item: Line, style: Style) -> list[str]:
    """Return the rows of a line: none is wider than asked, unless one word alone is, which stays whole so that it can be copied."""
    more, room = (" \\", style.width - 2) if item.is_command else ("", style.width)
    label, hang = clean(item.label[0]), item.hang
    used = item.indent + len(label)
    gap = max(hang - used, 0)
    if style.width - hang < ROOM:
        label, hang = label.rstrip(" "), min(hang, item.indent + _NARROW_HANG)
        used = item.indent + len(label)
        gap = 1 if used < style.width // 2 else room
    row = " " * item.indent + _paint(label, item.label[1], style)
    rows: list[str] = []
    program, before_root = (PROGRAM, SUDO) if item.is_elsewhere else (style.program, style.before_root)
    for word in _words(item.spans, program, before_root):
        length = sum(len(text) for text, _ in word)
        if used + gap + length > room:
            rows += [row + more] if used > item.indent else []
            row, used, gap = "", 0, max(min(hang, room - length), 0)
        row += " " * gap + "".join(_paint(text, name, style) for text, name in word)
        used += gap + length
        gap = 1
    return [found.rstrip(" ") for found in [*rows, row]]


def _words(spans: Iterable[Span], program: str, before_root: str) -> list[list[Span]]:
    """Words as lists of spans, since a style may change inside one; ``program`` is this tool where its name begins a command, ``before_root`` as in Style."""
    words: list[list[Span]] = []
    glue = False
    whole = program.replace(" ", _BLANK)
    for text, name in spans:
        text = clean(text) if before_root == SUDO else _AS_ROOT.sub(f"{before_root} ".lstrip(), clean(text))
        for place, piece in enumerate(startable(text, whole).split(" ")):
            if place:
                glue = False
            if not piece:
                continue
            piece = piece.replace(_BLANK, " ")
            if glue:
                words[-1].append((piece, name))
            else:
                words.append([(piece, name)])
            glue = True
    return words


def _paint(text: str, name: str, style: Style) -> str:
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if style.color and name and text else text
