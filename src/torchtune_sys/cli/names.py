"""Rule ids as options give them: several at once, separated by commas."""

from __future__ import annotations

from collections.abc import Iterable


def rule_names(given: Iterable[str]) -> frozenset[str]:
    """Raises UnknownName, with the nearest rule."""
    from torchtune_sys.errors import UnknownName
    from torchtune_sys.rules import by_id

    known = by_id()
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, n=1)
            raise UnknownName(
                f"there is no rule {name!r}", f"did you mean {close[0]}?" if close else "torchtune-sys rules lists them"
            )
    return frozenset(names)
