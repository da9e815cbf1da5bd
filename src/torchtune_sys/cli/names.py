"""Parse lists of rule ids in options, separated by commas."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.errors import UnknownName, nearest


def rule_names(given: Iterable[str]) -> frozenset[str]:
    """Return the ids of the rules that were given. Raises UnknownName, with the nearest rule."""
    from torchtune_sys.rules import by_id

    known = by_id()
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UnknownName(f"there is no rule {name!r}", nearest(name, known, "torchtune-sys rules lists them"))
    return frozenset(names)
