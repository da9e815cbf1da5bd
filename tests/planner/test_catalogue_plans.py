"""For every failing host of the catalogue: what the plan changes cures the rule, and a second plan changes nothing."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema
import msgspec
import pytest
from simulate import BY_SUBJECT, Seen, after, recording

from conftest import HOSTS, exhaustive
from torchtune_sys.model import actions
from torchtune_sys.model.actions import Needs
from torchtune_sys.model.plan import FileLine, Plan, Value
from torchtune_sys.model.rule import Verdict
from torchtune_sys.remediation.plan import change_requests
from torchtune_sys.render import as_json, report, schemas
from torchtune_sys.rules import by_id

RULES = by_id()
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
DOABLE = sorted(
    path.stem
    for path in HOSTS.glob("*.fail*.json")
    if (rule := RULES.get(path.stem.split(".")[0])) is not None
    and (any(actions.doable(action) for action in rule.fix) or path.stem in BY_SUBJECT)
)


@cache
def seen(name: str) -> Seen:
    return Seen(recording(name), [RULES[name.split(".")[0]]])


def test_there_is_something_to_test() -> None:
    changes = [change.key for name in DOABLE for change in seen(name).plan.changes]
    print(f"{len(DOABLE)} hosts, {len(changes)} changes, {len(set(changes))} different ones")
    assert len(changes) >= len(DOABLE) * 0.7 and len(set(changes)) > 25


@pytest.mark.parametrize("name", BY_SUBJECT)
def test_what_only_the_evidence_names_is_changed(name: str) -> None:
    assert name in DOABLE and seen(name).plan.changes


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", DOABLE)
def test_every_wish_is_planned_or_refused(name: str) -> None:
    plan = seen(name).plan
    told = {change.key for change in plan.changes} | {refusal.key for refusal in plan.refused}
    assert told == {change_requests.key(wish.action) for wish in change_requests.asked(seen(name).results)}
    assert all(refusal.reason and refusal.way for refusal in plan.refused)


def at_once(name: str) -> bool:
    return any(change.needs is Needs.NOTHING and isinstance(change.steps[0], Value) for change in seen(name).plan.changes)


def waiting(name: str) -> set[str]:
    """Keys of the changes that are lines of files alone, and take effect later."""
    changes = seen(name).plan.changes
    return {c.key for c in changes if c.needs is not Needs.NOTHING and all(isinstance(step, FileLine) for step in c.steps)}


# Which hosts have such a change is known once each is planned; in a table of tests each worker would plan them all to collect it.
def test_the_change_cures() -> None:
    names = list(filter(at_once, DOABLE))
    assert len(names) > 10
    for name in names:
        done = Seen(after(seen(name)), [RULES[name.split(".")[0]]])
        assert done.results[0].verdict in (Verdict.PASS, Verdict.NA), (name, done.results[0].evidence)
        assert done.plan.changes == (), name


def test_what_waits_is_not_made_twice() -> None:
    names = list(filter(waiting, DOABLE))
    assert len(names) > 10
    for name in names:
        done = Seen(after(seen(name)), [RULES[name.split(".")[0]]])
        assert not waiting(name) & {change.key for change in done.plan.changes}, name
        if done.results[0].verdict is Verdict.FAIL:  # a limit of the session that looks; a file that the rule reads has cured it
            assert waiting(name) <= {change.key for change in done.plan.waiting}, name


@pytest.mark.parametrize("part", [0, *exhaustive(1, 2, 3)])
def test_the_json_of_every_failing_host_follows_the_schema_and_reads_back(part: int) -> None:
    """In four parts, each of every fourth host, so that each has hosts of every family."""
    schema = json.loads(Path(schemas.DATA, "plan.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    counts = dict.fromkeys(("changes", "files", "refused", "by_hand"), 0)
    for name in FAILING[part::4]:
        plan = seen(name).plan
        said = json.loads(as_json.plan(plan))
        validator.validate(said)
        assert msgspec.convert(said["plan"], Plan, strict=False) == plan, name
        counts = {key: count + len(getattr(plan, key)) for key, count in counts.items()}
    print(f"{len(FAILING[part::4])} hosts: {counts}")
    assert len(FAILING) > 400 and counts["changes"] > 2 and counts["by_hand"] > 50


def test_what_is_left_to_a_person_is_told_worst_first_as_the_check_tells_it() -> None:
    results = tuple(result for name in FAILING[:60] for result in seen(name).results)[::-1]
    told = [RULES[item.rule] for item in change_requests.by_hand(results)]
    assert len({rule.severity for rule in told}) == 3
    assert [rule.severity.rank for rule in told] == sorted(rule.severity.rank for rule in told)
    shown = [result.rule.id for result in report.findings(results)]
    assert [rule.id for rule in told] == [name for name in shown if name in {rule.id for rule in told}]
