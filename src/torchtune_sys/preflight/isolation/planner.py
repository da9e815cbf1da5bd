"""Conduct an isolation: request rounds one after the other, and return the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from torchtune_sys.preflight.isolation.all_pairs import every_pair
from torchtune_sys.preflight.isolation.links import find_links
from torchtune_sys.preflight.isolation.nodes import find_cleared, find_nodes
from torchtune_sys.preflight.isolation.progress import Progress, Steps
from torchtune_sys.preflight.isolation.shared_parts import across, cut_off, cuts, find_rails
from torchtune_sys.preflight.isolation.values import (
    ALL_PAIRS,
    Domain,
    Group,
    IsolationVerdict,
    Outcome,
    Round,
    RoundEvidence,
    Settings,
    Vote,
)


class Isolation:
    """Of ``units`` units on so many ``rails``. ``next_round`` says what to test, ``take`` is told which groups failed, until ``next_round`` gives None.

    >>> isolation = Isolation(20)
    >>> while (now := isolation.next_round()) is not None:
    ...     isolation.take([7 in group for group in now.groups])
    >>> isolation.verdict().nodes, len(isolation.verdict().rounds)
    ((7,), 5)
    """

    def __init__(self, units: int, domains: Sequence[Domain] = (), settings: Settings | None = None, rails: int = 1) -> None:
        self._settings = settings or Settings()
        self._known = Progress(units, domains, self._settings.seed)
        self._steps = _steps(self._known, self._settings.passes if self._settings.repeats > 1 else 1, rails)
        self._evidence: list[RoundEvidence] = []
        self._waiting: Round | None = None
        self._asked: list[Group] = []
        self._failures: list[int] = []
        self._turns = 0
        self._why = ""
        self._ended = False
        self._verdict_well = False
        self._advance(None)

    def next_round(self) -> Round | None:
        """Return what is tested next; None when all is said. The same until it is answered."""
        return self._waiting

    def take(self, failed: Sequence[bool]) -> None:
        """Return which groups of the round failed, in their order."""
        now = self._waiting
        if now is None or len(failed) != len(now.groups):
            raise ValueError("an answer for each group of the round that was asked for")
        bad = tuple(group for group, is_bad in zip(now.groups, failed, strict=True) if is_bad)
        units = sum(map(len, now.groups))
        self._evidence.append(
            RoundEvidence(number=now.number, purpose=now.purpose, groups=len(now.groups), units=units, failed=bad)
        )
        self._failures = [count + is_bad for count, is_bad in zip(self._failures, failed, strict=True)]
        self._turns += 1
        if self._is_decided():
            need = 1 if self._settings.vote is Vote.ANY else self._settings.repeats // 2 + 1
            verdicts = [count >= need for count in self._failures]
            self._known.saw(self._asked, verdicts)
            self._advance(verdicts)
        else:
            self._ask(now.purpose)

    def stop(self, why: str) -> None:
        """End it here: no time is left, or nobody can test any more."""
        self._waiting = None
        self._ended = False
        self._why = why

    def _is_decided(self) -> bool:
        left = self._settings.repeats - self._turns
        if self._settings.vote is Vote.ANY:
            return not left or all(self._failures)
        need = self._settings.repeats // 2 + 1
        return not left or all(count >= need or count + left < need for count in self._failures)

    def _advance(self, verdicts: list[bool] | None) -> None:
        try:
            purpose, groups = next(self._steps) if verdicts is None else self._steps.send(verdicts)
        except StopIteration as end:
            self._waiting, self._ended, self._verdict_well = None, True, bool(end.value)
            return
        self._asked, self._failures, self._turns = groups, [0] * len(groups), 0
        self._ask(purpose)

    def _ask(self, purpose: str) -> None:
        if len(self._evidence) >= self._settings.rounds:
            self.stop(f"not finished within {self._settings.rounds} rounds")
        else:
            known, groups = self._known, tuple(self._asked)
            each = tuple((rail,) for rail in range(len(groups))) if known.is_by_rail else (known.on,) * len(groups)
            rails = each if known.is_by_rail or known.on else ()
            self._waiting = Round(number=len(self._evidence) + 1, purpose=purpose, groups=groups, rails=rails)

    def verdict(self) -> IsolationVerdict:
        """Return what is said by now."""
        known = self._known
        outcome, why, suspects = self._outcome()
        if outcome is Outcome.ONLY_AT_SCALE:
            return IsolationVerdict(outcome=outcome, why=why, rounds=tuple(self._evidence))
        found = cuts(known, known.bad_pairs)
        off = cut_off(known, found)
        explained = {way for cut in found for way in across(known, cut)}
        nodes = known.bad_nodes | {unit for part in off for unit in known.domains[part].units}
        between = tuple((known.domains[one], known.domains[other]) for one, other in found if not {one, other} & {*off})
        return IsolationVerdict(
            outcome=outcome,
            nodes=tuple(sorted(nodes)),
            pairs=tuple(sorted(known.bad_pairs - explained)),
            domains=tuple(domain for domain in known.domains if domain.units and nodes.issuperset(domain.units)),
            between=between,
            rails=tuple(known.bad_rails),
            on=known.on,
            suspects=tuple(sorted(suspects)),
            why=why,
            rounds=tuple(self._evidence),
        )

    def _outcome(self) -> tuple[Outcome, str, set[int]]:
        known = self._known
        if known.is_only_at_scale and not known.bad_nodes and not known.bad_pairs:
            return Outcome.ONLY_AT_SCALE, f"every group of up to {known.largest_pass} units passes", set()
        if not self._ended:
            return Outcome.SUSPECTS, self._why or "not finished", known.suspects or self._last_failing()
        if known.is_only_at_scale or known.is_unexplained or not self._verdict_well:
            why = "failures that no single part explains"
            return Outcome.SUSPECTS, why, known.suspects or self._last_failing()
        return (Outcome.NAMED if known.bad_nodes or known.bad_pairs or known.bad_rails else Outcome.WELL), "", set()

    def _last_failing(self) -> set[int]:
        for evidence in reversed(self._evidence):
            if evidence.failed:
                return {unit for group in evidence.failed for unit in group} - self._known.bad_nodes
        return set()


def _steps(known: Progress, passes: int, rails: int) -> Steps[bool]:
    """Return the whole isolation; whether everything that failed is explained."""
    everybody = tuple(known.left())
    if len(everybody) < 2 or not (yield "all together", [everybody])[0]:
        return True
    if rails > 1 and (yield from find_rails(known, rails)):
        return True
    if len(everybody) == 2:  # nobody says which of them it is
        known.suspects |= {*everybody}
        return False
    if len(everybody) <= ALL_PAIRS:
        return (yield from every_pair(known))
    is_explained = yield from _nodes_and_links(known, passes)
    if is_explained and (yield from find_cleared(known)):
        is_explained = yield from find_links(known, None)
    return is_explained


def _nodes_and_links(known: Progress, passes: int) -> Steps[bool]:
    for _ in range(passes):
        found = yield from find_nodes(known)
        rest = tuple(known.left())
        if known.suspects or len(rest) < 2:
            return False
        if not found:
            break
        if known.bad_pairs:
            return (yield from find_links(known, None))
        if not (yield "everybody else", [rest])[0]:
            return True
    return (yield from find_links(known, tuple(known.left())))
