"""The words of the tables' patterns, found beforehand: finding them at each run took an eighth of a short diagnosis.

``data/pattern_words.csv`` is generated (``gen.words``). A pattern that it lacks is looked through as before, so a table that was changed is never read with the words of another.
"""

from __future__ import annotations

import functools
from hashlib import blake2b

from torchtune_sys.knowledge import tables
from torchtune_sys.model import patterns

BETWEEN = "\t"
"""What parts the words of a pattern; none holds one."""


def key(text: str, least: int) -> str:
    """Return what stands for a pattern, and for the least letters of its words, in the table."""
    return blake2b(f"{least} {text}".encode(), digest_size=8).hexdigest()


@functools.cache
def _known() -> dict[str, str]:
    return {row["pattern"]: row["words"] for row in tables.rows("pattern_words")}


def words_of(text: str, least: int = patterns.LEAST) -> tuple[str, ...]:
    """Return what ``patterns.words_of`` does.

    >>> words_of(r"cuda \\d+ failed|lost at"), words_of("(?i)failed")
    ((' failed', 'lost at'), ())
    """
    known = _known().get(key(text, least))
    if known is None:
        return patterns.words_of(text, least)
    return tuple(known.split(BETWEEN)) if known else ()


def phrase(text: str) -> patterns.Phrase:
    return patterns.Phrase(text, words_of(patterns.folded(text), patterns.SHORT))


def words_in_any_case(text: str) -> tuple[str, ...]:
    """Return words of which a text has one, once it is ``folded``, wherever the pattern matches; none where that is unknown."""
    return words_of(patterns.in_any_case(text))
