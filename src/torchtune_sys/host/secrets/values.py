"""Decide whether a value must be hidden, and what replaces it."""

from __future__ import annotations

import itertools
import re

from torchtune_sys.model.patterns import pattern

HIDDEN = "hidden-by-torchtune-sys"
"""What stands in the place of a secret: one word in every file format, that no filter takes for another."""


def hide_value(found: re.Match[str]) -> str:
    """Return the name with its value hidden, in the quotes that it had; what is not a value but a reference stays."""
    name, value = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
    quote = _OPENING.match(value)[0]  # type: ignore[index]
    bare = value[len(quote) :].strip("\"'\\")
    if bare.lower() in _NO_VALUES or bare.startswith(HIDDEN) or _is_path(bare):
        return found[0]
    return f"{name}{quote}{HIDDEN}{quote.lstrip(_PREFIXES)}"


_PREFIXES = "bBrRuUfF"
_OPENING = pattern(rf"(?:[{_PREFIXES}]?(?=\\{{0,3}}[\"']))?[\"'\\]*")
"""Quotes, behind what Python may have before them."""


_NO_VALUES = frozenset(("", "true", "false", "yes", "no", "none", "null", "on", "off", "0", "1", "{", "[", "|", ">", "<<<"))


def _is_path(value: str) -> bool:
    """``PWD=/home/joe``, ``password_file=/etc/x``: where something lies. A secret in base 64 may begin so, too."""
    return _PATH.fullmatch(value) is not None and not any(looks_random(word) for word in re.split(r"[/.]", value))


_PATH = pattern(r"(?:/|~/|\./)[\w.@+-]{1,64}(?:/[\w.@+-]{0,64}){0,20}")


def looks_random(word: str) -> bool:
    """Return whether letters of both cases and digits follow each other as in a random word; hexadecimal, which names are not, does not.

    >>> looks_random("zX9kQ2mB7vL4pT8wR3nY6c"), looks_random("4f1e8f8f8a1e8f8b4f1e8f8f8a1e8f8b"), looks_random("SamsungMZQL21T9HCJR00A07")
    (True, False, False)
    """
    kinds = "".join("d" if sign.isdigit() else "u" if sign.isupper() else "l" if sign.islower() else "x" for sign in word)
    if kinds.count("d") < 2 or kinds.count("u") < 3 or kinds.count("l") < 3:
        return False
    changes = sum(one != other for one, other in itertools.pairwise(kinds))
    return changes >= _OFTEN * (len(word) - 1)


_OFTEN = 0.45
"""Of neighbours in a random word of base 62, 62 % are of different kinds; in names that are made of words a quarter."""


def is_issued(text: str, start: int, end: int) -> bool:
    """Return whether the long word between two places is what issuers write behind a short word and ``_`` or ``-``: ``bkua_4f1e8f…``, ``CCIPAT_…_4f1e8f…``.

    Names of files and parts of paths are none, nor what ``-`` joins to hexadecimal digits, as the names of containers and volumes do.

    >>> [is_issued(text, text.index("4f1e"), len(text)) for text in ("bkua_4f1e8f8f8a1e8f8b4f1e8f8f8a1e8f8b", "docker-4f1e8f8f8a1e8f8b4f1e8f8f8a1e8f8b")]
    [True, False]
    """
    word = text[start:end]
    before = _PREFIX.search(text, max(0, start - _PREFIX_AT_MOST), start)
    if len(word) < _ISSUED_AT_LEAST or before is None or text[end : end + 1] in (".", "/"):
        return False
    if not (word.isupper() or word.islower()):
        return False
    if _HEXADECIMAL.fullmatch(word):
        return before[1] == "_" and not word.isalpha()
    kinds = [sign.isalpha() for sign in word]
    return sum(one != other for one, other in itertools.pairwise(kinds)) >= _OFTEN_IN_ONE_CASE * (len(word) - 1)


_ISSUED_AT_LEAST = 32
_PREFIX_AT_MOST = 36
_PREFIX = pattern(r"(?<![A-Za-z0-9_./-])(?:[A-Za-z][A-Za-z0-9]{1,7}_)?[A-Za-z0-9]{2,24}([_-])\Z")
_HEXADECIMAL = pattern(r"[0-9a-f]+|[0-9A-F]+")
_OFTEN_IN_ONE_CASE = 0.2
"""Of neighbours in a random word of base 36, 40 % are a digit and a letter, with 40 letters in all but one of a thousand words more than this."""
