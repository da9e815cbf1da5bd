"""Complete words at the ends of a text that was copied from the middle of a word to the middle of a word, from the words of known messages."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchtune_sys.knowledge import tables

_LOST = 3
"""Letters at each end."""
_TRIED, _FEW = 12, 4
_CLASS = re.compile(r"\\[bBdDsSwWAZ]|\(\?[a-z]+\)|\[[^\]]{0,80}\]")
_CAPITAL = re.compile(r"\[([A-Z])[a-z]\]")
_WORD = re.compile(r"(?<![A-Za-z_)])(?:[A-Za-z_]{4,40}|[A-Z]{3})(?![A-Za-z_])")
"""Whole words: one that follows a group may lack its beginning, as in ``(?:was u|U)nable``."""
_PROSE_TABLES = ("told_states", "stated_causes")
_PLURAL = re.compile(r"(\w)\?")
_NAME = re.compile(r"(?<![a-z])[a-z]{3,40}(?![a-z?])")


def completed(line: str) -> Iterator[str]:
    """Yield the line with its first word, its last, or both as a known message may have had them; nothing where both are whole.

    >>> next(completed("nable to open /dev/kfd read-write: Permission den"))
    'Unable to open /dev/kfd read-write: Permission denied'
    >>> list(completed("Unable to open /dev/kfd"))
    []
    """
    starts, ends = _starts(line), _ends(line)
    for start in (*starts, ""):
        for end in (*ends, ""):
            if start or end:
                yield start + line + end


def completed_prose(line: str) -> Iterator[str]:
    """Yield the line with its first word, its last, or both as people may have written them: the words of the tables of what people tell.

    >>> next(completed_prose("PU has fallen off the bus"))
    'cPU has fallen off the bus'
    >>> list(completed_prose("Put it on the bus"))
    []
    """
    first = re.match(r"(?:[a-z]{2,40}|[A-Z]{2,10})(?![A-Za-z])", line)
    last = re.search(r"(?<![A-Za-z])[A-Za-z]{2,40}$", line[-41:])
    starts = [whole[: -len(first[0])] for whole in _unknown(first, _prose_by_end())] if first else []
    ends = [whole[len(last[0]) :] for whole in _unknown(last, _prose_by_start())] if last else []
    for start in (*starts, ""):
        for end in (*ends, ""):
            if start or end:
                yield start + line + end


def _unknown(word: re.Match[str], known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    fragment = word[0].lower()
    return () if fragment in _prose() else known.get(fragment, ())[:_FEW]


def _starts(line: str) -> list[str]:
    word = re.match(r"[A-Za-z_]{2,40}|[A-Z]\b", line)
    if word is None or word[0].lower() in _words():
        return []
    following = re.match(r"\W{1,3}(\w{1,40})", line[word.end() :])
    known = _likeliest(_by_end().get(word[0], ()), lambda whole: (whole, following[1] if following else ""))
    return [whole[: -len(word[0])] for whole in known]


def _ends(line: str) -> list[str]:
    word = re.search(r"[A-Za-z_]{2,40}$", line[-41:])
    if word is None or word[0].lower() in _words():
        return []
    before = re.search(r"(\w{1,40})\W{1,3}$", line[: -len(word[0])][-50:])
    known = _likeliest(_by_start().get(word[0], ()), lambda whole: (before[1] if before else "", whole))
    return [whole[len(word[0]) :] for whole in known]


def _likeliest(known: Sequence[str], pair: Callable[[str], tuple[str, str]]) -> list[str]:
    """Return some of the words, those first that stand beside the same word in a message."""
    return sorted(known, key=lambda whole: pair(whole) not in _pairs())[:_TRIED]


@functools.cache
def _texts() -> tuple[str, ...]:
    texts = [row["pattern"] for row in tables.rows("message_families")]
    return (
        *texts,
        *(_CLASS.sub(" ", _CAPITAL.sub(r"\1", row["pattern"])) for row in tables.rows("sentences") if not row["stage"]),
    )


@functools.cache
def _known() -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for text in _texts() for word in _WORD.findall(text)))


@functools.cache
def _pairs() -> frozenset[tuple[str, str]]:
    return frozenset(pair for text in _texts() for words in [re.findall(r"\w+", text)] for pair in itertools.pairwise(words))


@functools.cache
def _prose() -> frozenset[str]:
    """Return the words that people use of things and their states."""
    texts = [words for name in _PROSE_TABLES for row in tables.rows(name) for key, words in row.items() if key not in _NOT_WORDS]
    texts += [row["words"] for row in tables.rows("stated_words")]
    both = (
        each for text in texts for each in (_PLURAL.sub("", _CLASS.sub(" ", text)), _PLURAL.sub(r"\1", _CLASS.sub(" ", text)))
    )
    return frozenset(word for text in both for word in _NAME.findall(text.lower()))


_NOT_WORDS = ("cause", "fix", "source", "unless")


@functools.cache
def _words() -> frozenset[str]:
    return frozenset(word.lower() for word in _known())


@functools.cache
def _by_end() -> dict[str, list[str]]:
    return _index(_known(), lambda word, lost: word[lost:])


@functools.cache
def _by_start() -> dict[str, list[str]]:
    return _index(_known(), lambda word, lost: word[:-lost])


@functools.cache
def _prose_by_end() -> dict[str, list[str]]:
    return _index(sorted(_prose()), lambda word, lost: word[lost:])


@functools.cache
def _prose_by_start() -> dict[str, list[str]]:
    return _index(sorted(_prose()), lambda word, lost: word[:-lost])


def _index(words: Iterable[str], piece: Callable[[str, int], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        for lost in range(1, min(_LOST, len(word) - 1) + 1):
            found.setdefault(piece(word, lost), []).append(word)
    return found
