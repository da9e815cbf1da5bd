"""What a plan could not be made from: the rules with a fix for it that did not see what they judge by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchtune_sys.cli.main import UNJUDGED
from torchtune_sys.cli.selection import unjudged
from torchtune_sys.cli.terminal import tell
from torchtune_sys.model import actions
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.render.report import look_failed

_NAMED = 3
"""Rules that are named beside one reason; a paste lacks what most of them need."""


def _lines(undecided: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each reason, whichever file it is said of.

    >>> list(_lines([("a", "x: denied"), ("b", "r: not in the report"), ("c", "r: not in the report"), ("d", "y: not in the report"), ("e", "y: not in the report")]))
    ['a: x: denied', 'b, c, d and 1 more: not in the report']
    """
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for rule, why in undecided:
        by_reason.setdefault(why.rpartition(": ")[2], []).append((rule, why))
    for reason, found in by_reason.items():
        if len(found) <= _NAMED:
            yield from (f"{rule}: {why}" for rule, why in found)
        else:
            yield f"{', '.join(rule for rule, _ in found[:_NAMED])} and {len(found) - _NAMED} more: {reason}"


def tell_undecided(results: Iterable[Result]) -> bool:
    """Tell which rules could have asked for a change and could not judge, and why; return whether there are any."""
    found = [
        (result.rule.id, unjudged(result))
        for result in results
        if result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED) and any(map(actions.doable, result.rule.fix))
    ]
    for line in _lines(found):
        tell(f"not judged: {line}")
    return bool(found)


def status_of_looks(results: Iterable[Result]) -> int:
    """Return 3, and tell of what, where the look failed (a time-out, a crash) at what a plan is made from: "nothing to change" would be no
    answer then. A lack of privilege or of a record does not count. Else 0."""
    return UNJUDGED if tell_undecided(result for result in results if look_failed(result)) else 0
