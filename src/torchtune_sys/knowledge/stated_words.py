"""Classes of words that the rows of ``stated_causes.csv`` share."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from torchtune_sys.knowledge import tables

_NAME = re.compile(r"\{(\w*[a-zA-Z]\w*)\}")


@functools.cache
def classes() -> Mapping[str, str]:
    """Return the words of each class by its name, of ``data/stated_words.csv``."""
    return {row["name"]: row["words"] for row in tables.rows("stated_words")}


def filled(words: str, named: Mapping[str, str] | None = None) -> str:
    """Return a pattern with the words of each class that it names (of ``classes``, or of those given).

    >>> filled("{broken}|stuck", {"broken": "bad|faulty"})
    'bad|faulty|stuck'
    """
    if "{" not in words:
        return words
    known = classes() if named is None else named
    return _NAME.sub(lambda name: known[name[1]], words)
