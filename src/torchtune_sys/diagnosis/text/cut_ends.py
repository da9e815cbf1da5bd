"""Complete words at the ends of a text that was copied from the middle of a word to the middle of a word, from the words of known messages."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

from torchtune_sys.knowledge import tables

_LOST = 3
"""Letters at each end."""
_TRIED = 12
_CLASS = re.compile(r"\\[bBdDsSwWAZ]|\(\?[a-z]+\)|\[[^\]]{0,80}\]")
_CAPITAL = re.compile(r"\[([A-Z])[a-z]\]")
_WORD = re.compile(r"(?<![A-Za-z_)])[A-Za-z_]{4,40}")
"""Whole words: one that follows a group may lack its beginning, as in ``(?:was u|U)nable``."""


def completed(line: str) -> Iterator[str]:
    """Yield the line with its first word, its last, or both as a known message may have had them; nothing where both are whole.

    >>> next(completed("nable to open /dev/kfd read-write: Permission den"))
    'Unable to open /dev/kfd read-write: Permission denied'
    >>> list(completed("Unable to open /dev/kfd"))
    []
    """
    starts, ends = _starts(line), _ends(line)
    for start in starts or [""]:
        for end in ends or [""]:
            if start or end:
                yield start + line + end


def _starts(line: str) -> list[str]:
    word = re.match(r"[A-Za-z_]{2,40}|[A-Z]\b", line)
    if word is None or word[0].lower() in _words():
        return []
    return [whole[: -len(word[0])] for whole in _by_end().get(word[0], ())][:_TRIED]


def _ends(line: str) -> list[str]:
    word = re.search(r"[A-Za-z_]{2,40}$", line[-41:])
    if word is None or word[0].lower() in _words():
        return []
    return [whole[len(word[0]) :] for whole in _by_start().get(word[0], ())][:_TRIED]


@functools.cache
def _known() -> tuple[str, ...]:
    texts = [row["pattern"] for row in tables.rows("message_families")]
    texts += [_CLASS.sub(" ", _CAPITAL.sub(r"\1", row["pattern"])) for row in tables.rows("sentences") if not row["stage"]]
    return tuple(dict.fromkeys(word for text in texts for word in _WORD.findall(text)))


@functools.cache
def _words() -> frozenset[str]:
    return frozenset(word.lower() for word in _known())


@functools.cache
def _by_end() -> dict[str, list[str]]:
    return _index(lambda word, lost: word[lost:])


@functools.cache
def _by_start() -> dict[str, list[str]]:
    return _index(lambda word, lost: word[:-lost])


def _index(piece: Callable[[str, int], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in _known():
        for lost in range(1, min(_LOST, len(word) - 1) + 1):
            found.setdefault(piece(word, lost), []).append(word)
    return found
