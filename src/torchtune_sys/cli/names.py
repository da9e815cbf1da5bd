"""Parse lists of rule ids in options, separated by commas; find rules by words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtune_sys.errors import UnknownName, nearest

if TYPE_CHECKING:
    from torchtune_sys.model.rule import Rule


def rule_names(given: Iterable[str]) -> frozenset[str]:
    """Return the ids of the rules that were given. Raises UnknownName, with the nearest rule."""
    from torchtune_sys.rules import by_id

    known = by_id()
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UnknownName(f"no rule is called {name!r}", nearest(name, known, "torchtune-sys rules lists them"))
    return frozenset(names)


def speaks_of(rule: Rule, words: str) -> bool:
    """Whether each of the words stands in the name, title or explanation of the rule, whatever its case."""
    told = f"{rule.id} {rule.title} {rule.doc}".casefold()
    return all(word in told for word in words.casefold().split())


def search_for(words: str) -> str:
    """Return how the rules that speak of the words are listed; where none does, how all are.

    >>> search_for("shared memory"), search_for("zebra")
    ("torchtune-sys rules --search 'shared memory' lists those that speak of it", 'torchtune-sys rules lists the rules')
    """
    from shlex import quote

    from torchtune_sys.rules import CATALOGUE

    if words.strip() and words.isprintable() and any(speaks_of(rule, words) for rule in CATALOGUE):
        return f"torchtune-sys rules --search {quote(words)} lists those that speak of it"
    return "torchtune-sys rules lists the rules"
