"""Run the rules on the facts after each fix, and attach what they would find then."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import msgspec

from torchtune_sys import engine
from torchtune_sys.consequences.actions_in_text import effects
from torchtune_sys.consequences.effects import Effect, after, impossible
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.actions import Action, Advice, Install, Safety
from torchtune_sys.model.rule import SEE, Evidence, Result, Rule, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot

MOST_LOOKS = 64
"""How many fixes of one host are judged: each is a judgement of all rules, and no host that was seen had more than 20."""


def with_consequences(
    seen: Snapshot, results: tuple[Result, ...], rules: Iterable[Rule], overrides: engine.Overrides | None = None
) -> tuple[Result, ...]:
    """Return the results, with what ``rules`` would say of each fix beside it."""
    return _ConsequenceJudge(seen, results, tuple(rules), overrides).results()


Faults = frozenset[tuple[str, str]]
"""Rule and subject of what is found."""


class _ConsequenceJudge:
    def __init__(
        self, seen: Snapshot, results: tuple[Result, ...], rules: tuple[Rule, ...], overrides: engine.Overrides | None
    ) -> None:
        self._seen = msgspec.structs.replace(seen, said={}, failures=())  # what a program said was said before the fix
        self._results, self._rules, self._overrides = results, rules, overrides
        self._by_id = {rule.id: rule for rule in rules}
        self._known: dict[tuple[Effect, ...], str] = {}
        self._before: Faults | None = None

    def results(self) -> tuple[Result, ...]:
        return tuple(self._weighed(result) if result.verdict is Verdict.FAIL else result for result in self._results)

    def _weighed(self, result: Result) -> Result:
        """With what each fix would bring about. Fixes that ``apply`` would make are made together; sentences are alternatives."""
        found = [item for item in result.evidence if item.verdict is Verdict.FAIL]
        made = tuple(
            dict.fromkeys(
                action for item in found for action in item.fix or result.rule.fix if not isinstance(action, Advice | Install)
            )
        )
        together = self._of(made)

        def mark(action: Action) -> Action:
            if not isinstance(action, Advice | Install):
                return _but(action, together)
            named = effects(action)
            return _but(action, self._of(named)) if named else action

        fix = tuple(mark(action) for action in result.rule.fix)
        evidence = tuple(_with_fix(item, tuple(mark(action) for action in item.fix)) for item in result.evidence)
        if fix == result.rule.fix and evidence == result.evidence:
            return result
        return msgspec.structs.replace(result, rule=msgspec.structs.replace(result.rule, fix=fix), evidence=evidence)

    def _of(self, done: tuple[Effect, ...]) -> str:
        """Return what the rules would find that they do not find now; empty where nothing."""
        if not done:
            return ""
        if done not in self._known:
            self._known[done] = self._look(done) if len(self._known) < MOST_LOOKS else ""
        return self._known[done]

    def _found_now(self) -> Faults:
        """Also by rules whose results nobody asked for."""
        if self._before is None:
            judged = {result.rule.id for result in self._results}
            others = [rule for rule in self._rules if rule.id not in judged]
            self._before = _faults(self._results) | _faults(engine.judge(self._seen, others, self._overrides))
        return self._before

    def _look(self, done: tuple[Effect, ...]) -> str:
        then = self._seen
        for effect in done:
            if reason := impossible(self._seen, effect):
                return reason
            then = after(then, effect)
        if then is self._seen:
            return ""
        results = engine.judge(then, self._asked(then), self._overrides)
        before = self._found_now()
        new = [
            (result.rule, item)
            for result in results
            if result.verdict is Verdict.FAIL
            for item in result.evidence
            if item.verdict is Verdict.FAIL and (result.rule.id, item.subject) not in before
        ]
        return "; ".join(f"{found.id}: {item.subject}: {item.seen}" for found, item in new[:2])

    def _asked(self, then: Snapshot) -> list[Rule]:
        """Return the rules that read a family that is another one, and those whose findings may stand in the place of theirs: no
        other can say something else than before."""
        changed = {family for family in FAMILIES if getattr(then, family) is not getattr(self._seen, family)}
        asked = {rule.id for rule in self._rules if not changed.isdisjoint(may_read(rule.id))}
        todo = [self._by_id[name] for name in asked]
        while todo:
            rule = todo.pop()
            tellers = {name for name in (*rule.superseded_by, *rule.explained_by) if name in self._by_id} - asked
            asked |= tellers
            todo += [self._by_id[name] for name in tellers]
        return [rule for rule in self._rules if rule.id in asked]


@cache
def _reads() -> dict[str, frozenset[str]]:
    return {row["rule"]: frozenset(row["families"].split()) for row in rows("rule_reads")}


def may_read(rule_id: str) -> frozenset[str]:
    """Return the families of facts that the rule's verdict may rest on; all, where the table does not have the rule.

    >>> "sysctl" in may_read("swappiness-high"), "sysctl" in may_read("dev-shm-small"), may_read("of a test") == frozenset(FAMILIES)
    (True, False, True)
    """
    return _reads().get(rule_id, _ALL)


_ALL = frozenset(FAMILIES)


def _faults(results: Iterable[Result]) -> Faults:
    """Return what is found now, also what another rule tells of."""
    return frozenset(
        (result.rule.id, item.subject)
        for result in results
        for item in result.evidence
        if item.verdict is Verdict.FAIL or item.wanted.startswith(SEE)
    )


def _but(action: Action, but: str) -> Action:
    """Return the action with an objection: what a rule would find fault with is never made without a person's decision."""
    if not but:
        return action
    safety = Safety.UNSAFE if action.safety is Safety.SAFE else action.safety
    return msgspec.structs.replace(action, but=but, safety=safety)


def _with_fix(item: Evidence, fix: tuple[Action, ...]) -> Evidence:
    return item if fix == item.fix else msgspec.structs.replace(item, fix=fix)
