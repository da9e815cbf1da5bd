"""Complete lines that were cut at a column: their ends are the beginnings of known messages.

A terminal that does not wrap, a table's cell and many log viewers leave of each line what fits. The rest of a message is known where enough of it stands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.knowledge import tables

_ENOUGH, _SHARE, _WORDS, _MOST, _TRIED = 16, 0.4, 3, 40, 6
_HOLE = re.compile(r"\{[^{}]{0,40}\}")
_VARIABLE = re.compile(r"(?:\\[dDsSwW]|\.|\[[^\]\\]{1,40}\])(?:[*+]\??|\{\d*,?\d*\}\??)?")
_NOT_LITERAL = re.compile(r"(?<!\\)[()?*+|^$\[\]{}]|\\[bBAZ\w]")
_ESCAPE = re.compile(r"\\(\W)")
_FILLED = "x"


def cut_lines(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yield the lines that may be cut: those as long as the longest, where none is longer, and the last one."""
    longest = max((len(line.printed) for line in lines), default=0)
    at_column = [line for line in lines if len(line.printed) == longest]
    yield from at_column[:_MOST]
    if lines and len(lines[-1].printed) < longest:
        yield lines[-1]


def begun(line: str) -> Iterator[str]:
    """Yield the line with the rest of each message that it begins, and does not end.

    >>> next(begun("[Rank 0] Watchdog caught collective oper"))
    '[Rank 0] Watchdog caught collective operation timeout'
    >>> list(begun("[Rank 0] Watchdog caught a cold"))
    []
    """
    found = 0
    for word in dict.fromkeys(re.findall(r"[A-Za-z_]{3,}", line)):
        for parts in _by_first_word().get(word, ()):
            rest = _rest(parts, line)
            if rest:
                yield line + rest
                found += 1
                if found == _TRIED:
                    return


def _rest(parts: tuple[str, ...], line: str) -> str:
    """Return what of the parts stands behind the end of the line; empty where it does not begin them, or says too little."""
    at = line.find(parts[0][:_ENOUGH])
    said = 0
    for number, part in enumerate(parts):
        if number:
            at = line.find(part, at)
        if at >= 0 and line.startswith(part, at):
            said += len(part)
            at += len(part)
            continue
        start = at if not number else _overlap(part, line)
        cut = len(line) - start if start >= 0 else 0
        if cut <= 0 or not part.startswith(line[start:]):
            return ""
        said += cut
        whole = sum(map(len, parts))
        if said < max(_ENOUGH, _SHARE * whole) or len(line[max(len(line) - said, 0) :].split()) < _WORDS:
            return ""
        return part[cut:] + "".join(f"{_FILLED}{each}" for each in parts[number + 1 :])
    return ""


def _overlap(part: str, line: str) -> int:
    """Return where the end of the line is the beginning of the part; -1 for nowhere."""
    return next(
        (len(line) - length for length in range(min(len(part), len(line)) - 1, 2, -1) if line.endswith(part[:length])), -1
    )


@functools.cache
def _by_first_word() -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for parts in dict.fromkeys(_messages()):
        word = re.search(r"[A-Za-z_]{3,}", parts[0])
        if word is not None and sum(map(len, parts)) > _ENOUGH:
            found.setdefault(word[0], []).append(parts)
    return found


def _messages() -> Iterator[tuple[str, ...]]:
    """Yield the literal parts of each known message, in their order."""
    for row in tables.rows("message_families"):
        if row["severity"] == "error":
            yield tuple(part for part in _HOLE.split(row["pattern"]) if part)
    for row in tables.rows("sentences"):
        if not row["stage"] and row["role"] in ("cause", "hint", "consequence", "waited"):
            yield from filter(None, map(_literal, row["pattern"].split("|")))


def _literal(pattern: str) -> tuple[str, ...]:
    """Return the literal parts of a pattern; empty where it is more than literals and what varies between them."""
    parts = _VARIABLE.split(pattern)
    if any(map(_NOT_LITERAL.search, parts)):
        return ()
    return tuple(part for part in (_ESCAPE.sub(r"\1", each) for each in parts) if part)
