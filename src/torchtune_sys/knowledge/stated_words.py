"""Classes of words that the rows of ``stated_causes.csv`` share."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"\{(\w*[a-zA-Z]\w*)\}")


def filled(words: str, classes: Mapping[str, str]) -> str:
    """Return a pattern with the words of each class that it names.

    >>> filled("{broken}|stuck", {"broken": "bad|faulty"})
    'bad|faulty|stuck'
    """
    return _NAME.sub(lambda name: classes[name[1]], words)
