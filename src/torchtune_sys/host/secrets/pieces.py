"""Secrets that stand in no line, since a program wrote them in pieces: key by key in a terminal's recording, in columns of a dump, over the rows of a table's cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise

from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model import codec
from torchtune_sys.model.patterns import pattern

_EVENT = pattern(r"""([ \t>]{0,20}\[ ?\d{1,9}(?:\.\d{1,20})?, ?"([io])", ?)("(?:[^"\\]|\\.)*") ?\]""")
"""Of asciinema's format, version 2 and 3 (docs.asciinema.org/manual/asciicast/v2): what was shown, or typed."""
_DUMP = pattern(
    r"([0-9a-f]{6,8}:? {1,4})((?:[0-9a-f]{4}|[0-9a-f]{2})(?: {1,2}(?:[0-9a-f]{4}|[0-9a-f]{2})){0,15})(?: .{0,40})?\r?"
)
"""Lines of xxd, of hexdump with and without -C, of od -x and od -t x1."""
_OFFSET = pattern(r"(?m)^[ \t>]{0,20}00000")
_SIGNS = pattern(r"([0-7]{7})((?: {3}[^\s\\]| {2}\\[0abfnrtv]| [0-7]{3}| {4}){1,16})\r?")
"""Lines of od -c."""
_BYTES = 16
_HEAD, _ROWS, _NUMBER = 200, 8, pattern(r"\d{1,40}")
_BORDERS = str.maketrans("│┃║", "|||")


def without_pieces(text: str, scrub: Callable[[str], str]) -> str:
    """Return a text of several lines without them, with as many lines. ``scrub`` is what knows a secret in one line.

    >>> without_pieces('[0.1, "i", "a"]\\nb', str)
    '[0.1, "i", "hidden-by-torchtune-sys"]\\nb'
    """
    if '"o", ' in text or '"i", ' in text or '"o","' in text or '"i","' in text:
        text = _without(text, _shown, _hidden_event, scrub)
    if "00000" in text and _OFFSET.search(text):
        text = _without(text, _dumped, _hidden_dump, scrub)
    return "\n".join(_rows(text.split("\n"), scrub)) if "|" in text or "│" in text or "┃" in text else text


def _without(text: str, read: Callable[[str], str | None], hide: Callable[[str], str], scrub: Callable[[str], str]) -> str:
    found: list[str] = []
    for is_piece, run in groupby(((line, read(line)) for line in text.split("\n")), key=lambda each: each[1] is not None):
        both = [*run]
        lines = [line for line, _ in both]
        found += _put_together(lines, [piece or "" for _, piece in both], hide, scrub) if is_piece else lines
    return "\n".join(found)


def _put_together(
    lines: Sequence[str], pieces: Sequence[str], hide: Callable[[str], str], scrub: Callable[[str], str]
) -> Iterator[str]:
    """Yield the lines of a run; those that hold a part of a line with a secret are hidden."""
    whole = "".join(pieces).replace("\r", "\n")
    plain = whole.split("\n")
    begins = [0, *accumulate(len(line) + 1 for line in plain)]
    bad = [span for span, line in zip(pairwise(begins), plain, strict=True) if scrub(line) != line]
    ends = [*accumulate(map(len, pieces))]
    at = 0
    for line, piece, end in zip(lines, pieces, ends, strict=True):
        while at < len(bad) and bad[at][1] <= end - len(piece):
            at += 1
        is_typed = (event := _EVENT.fullmatch(line)) is not None and event[2] == "i"
        yield hide(line) if is_typed or (at < len(bad) and bad[at][0] < end) else line


def _shown(line: str) -> str | None:
    found = _EVENT.fullmatch(line) if "[" in line[:21] else None
    if found is None:
        return None
    try:
        piece = codec.loads(found[3])
    except ValueError:
        return None
    return piece if found[2] == "o" else ""


def _hidden_event(line: str) -> str:
    found = _EVENT.fullmatch(line)
    return f'{found[1]}"{HIDDEN}"]' if found else line


def _dumped(line: str) -> str | None:
    line = line[len(_margin(line)) :]
    if not line[:6].isalnum():
        return None
    found = _SIGNS.fullmatch(line)
    if found is not None:
        cells = [found[2][place : place + 4].lstrip(" ") or " " for place in range(0, len(found[2]), 4)]
        return "".join("\n" if cell == "\\n" else cell if len(cell) == 1 else "?" for cell in cells)
    found = _DUMP.fullmatch(line)
    if found is None:
        return None
    words = found[2].split()
    is_swapped = ":" not in found[1]  # words of a number each, of a machine whose lowest byte stands first
    data = b"".join(bytes.fromhex(word)[:: -1 if is_swapped else 1] for word in words)[:_BYTES]
    return data.decode("latin-1")


def _hidden_dump(line: str) -> str:
    margin = _margin(line)
    return f"{margin}{re.split('[: ]', line[len(margin) :], maxsplit=1)[0]}: {HIDDEN}"


def _margin(line: str) -> str:
    """Return what Markdown and mail put before a line that is quoted."""
    return line[: len(line) - len(line.lstrip(" \t>"))]


def _rows(lines: list[str], scrub: Callable[[str], str]) -> list[str]:
    """Return the rows without secrets that go on in the next: without a border there, or below cells that are empty. Before each row the same may stand."""
    for at, line in enumerate(lines):
        begin = line.translate(_BORDERS).find("|")
        if not 0 <= begin <= _HEAD:
            continue
        row, last = line.translate(_BORDERS)[begin:].rstrip(), at
        for below in lines[at + 1 : at + _ROWS]:
            joined = _joined(row, _behind(line[:begin], below.translate(_BORDERS).rstrip()))
            if joined is None:
                break
            row, last = joined, last + 1
            if line.rstrip()[-1:] not in "|│┃" and row.endswith("|"):
                break
        if last == at or not row.endswith("|"):
            continue
        row = row.replace("|", " | ").strip()
        if (known := scrub(row)) != row:
            lines[at : last + 1] = [line[:begin] + known, *[f"{line[:begin]}| {HIDDEN} |"] * (last - at)]
    return lines


def _joined(row: str, below: str) -> str | None:
    """Return both rows as one; None where the second is no part of the first."""
    if not row.endswith("|"):
        return row + below.lstrip("| ")  # behind a border that stands before each line (docker compose)
    if row.count("|") != below.count("|") or below[:1] != "|" or len(below.replace("|", " ").split()) != 1:
        return None
    return "|".join(cell.strip() + more.strip() for cell, more in zip(row.split("|"), below.split("|"), strict=True))


def _behind(head: str, line: str) -> str:
    """Return the line without what stands before the row above; a time or a number may be another one.

    >>> _behind("[1.5] n1: ", "[11.5] n1: | x |"), _behind("  ", "  x |"), _behind("n1: ", "x |")
    ('| x |', 'x |', 'x |')
    """
    if line.startswith(head):
        return line[len(head) :].lstrip()
    shape = r"\d{1,40}".join(map(re.escape, _NUMBER.split(head)))
    found = re.match(shape, line)
    return line[found.end() :].lstrip() if found else line.lstrip()
