"""What a plan could not be made from: the rules with a fix for it that did not see what they judge by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torchtune_sys.cli.main import UNJUDGED
from torchtune_sys.cli.selection import unjudged
from torchtune_sys.cli.terminal import tell
from torchtune_sys.model import actions
from torchtune_sys.model.actions import Action
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Why
from torchtune_sys.render.report import reasons

_PASSES = (Why.TIMEOUT, Why.CRASHED)
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


def without_verdict(results: Iterable[Result], asks: Callable[[Action], bool] = actions.doable) -> list[Result]:
    """Return those of rules that could have asked for an action of a kind (a change) and could not judge."""
    unknown = (result for result in results if result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED))
    return [result for result in unknown if any(map(asks, result.rule.fix))]


def looks_failed(results: Iterable[Result], asks: Callable[[Action], bool] = actions.doable) -> list[Result]:
    """Return those whose facts were not read in time, or whose look crashed: another run may read them. A lack of privilege or of a record does not
    count, nor what cannot be read on this host in any run: a host in a fleet would fail each time."""
    found = without_verdict(results, asks)
    return [one for one in found if one.verdict is Verdict.CRASHED or any(missing.why in _PASSES for missing in reasons(one))]


def tell_undecided(results: Iterable[Result]) -> bool:
    """Tell of which rules that is so, and why; return whether there are any."""
    found = [(result.rule.id, unjudged(result)) for result in results]
    for line in _lines(found):
        tell(f"not judged: {line}")
    return bool(found)


def status_of_looks(results: Iterable[Result], asks: Callable[[Action], bool] = actions.doable) -> int:
    """Return 3, and tell of what, where the look at what a plan is made from failed: "nothing to change" would be no answer then. Else 0."""
    return UNJUDGED if tell_undecided(looks_failed(results, asks)) else 0
