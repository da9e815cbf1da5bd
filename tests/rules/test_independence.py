"""No rule's verdict depends on whether another one is asked, or on its parameters, unless it declares that."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged_hosts import ECC, seen_with_log
from sysctl_hosts import changed, made, with_keys

from conftest import HOSTS, load
from torchtune_sys import engine
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import CATALOGUE, by_id

NAMES = sorted(
    path.relative_to(HOSTS).as_posix().removesuffix(".json")
    for place in (HOSTS, HOSTS / "typical")
    for path in place.glob("*.json")
)
hosts = st.sampled_from(NAMES)


@cache
def whole(name: str) -> tuple[Snapshot, dict[str, Result]]:
    seen = load(name)
    return seen, results(seen, CATALOGUE)


def results(seen: Snapshot, rules: tuple[Rule, ...], overrides: engine.Overrides | None = None) -> dict[str, Result]:
    return {result.rule.id: result for result in engine.judge(seen, rules, overrides)}


@settings(max_examples=40)
@given(name=hosts, data=st.data())
def test_a_rule_that_does_not_fail_changes_no_other_verdict_by_being_left_out(name: str, data: st.DataObject) -> None:
    seen, before = whole(name)
    sound = [rule_id for rule_id, result in before.items() if result.verdict is not Verdict.FAIL]
    left_out = data.draw(st.sets(st.sampled_from(sound), min_size=1))
    after = results(seen, tuple(rule for rule in CATALOGUE if rule.id not in left_out))
    assert after == {rule_id: result for rule_id, result in before.items() if rule_id not in left_out}


@settings(max_examples=40)
@given(name=hosts, data=st.data())
def test_whatever_is_left_out_a_finding_is_shown_or_told_by_one_that_is(name: str, data: st.DataObject) -> None:
    seen, _ = whole(name)
    asked = tuple(sorted(data.draw(st.sets(st.sampled_from(CATALOGUE), min_size=1)), key=CATALOGUE.index))
    together = results(seen, asked)
    failed = {rule_id for rule_id, result in together.items() if result.verdict is Verdict.FAIL}
    for rule in asked:
        alone = results(seen, (rule,))[rule.id]
        if alone.verdict is Verdict.FAIL and rule.id not in failed:
            told = {item.wanted.removeprefix("see ") for item in together[rule.id].evidence if item.wanted.startswith("see ")}
            assert told and told <= failed


def depends_on(rule: Rule) -> tuple[str, ...]:
    return (*rule.superseded_by, *rule.explained_by, *(other.id for other in rule.asks))


def may_change(rule_id: str) -> set[str]:
    """The rule, those that ask it, and those that it may take a finding from, and theirs."""
    found = {rule_id}
    while True:
        more = {rule.id for rule in CATALOGUE if not found.isdisjoint(depends_on(rule))} - found
        if not more:
            return found
        found |= more


def other_values(default: float | str | bool) -> st.SearchStrategy[float | str | bool]:
    if isinstance(default, bool):
        return st.just(not default)
    if isinstance(default, str):
        return st.sampled_from(["1.0", "99.0"])
    return st.sampled_from([type(default)(value) for value in (0, 1, default * 2, default * 1000)])


@settings(max_examples=60)
@given(name=hosts, rule=st.sampled_from([rule for rule in CATALOGUE if rule.params]), data=st.data())
def test_a_parameter_changes_its_own_rule_and_those_that_ask_it(name: str, rule: Rule, data: st.DataObject) -> None:
    seen, before = whole(name)
    param = data.draw(st.sampled_from(rule.params))
    after = results(seen, CATALOGUE, {rule.id: {param.name: data.draw(other_values(param.default))}})
    assert {rule_id for rule_id, result in after.items() if result != before[rule_id]} <= may_change(rule.id)


def swapping(*, running: str, boot: str, other: str) -> Snapshot:
    """A host that swaps to a disk; ``boot`` is the file's line that holds, ``other`` one before it."""
    first, last = made(other, "/etc/sysctl.d/a.conf:1"), made(boot, "/etc/sysctl.d/z.conf:1")
    seen = changed(load("healthy"), "memory", swaps=(SwapDevice(path="/swap", kind="file", size_bytes=1 << 30, used_bytes=0),))
    at_boot = {"assignments": (first, last), "systemd": last, "procps": last, "boot": last}
    return with_keys(seen, {"vm.swappiness": running}, **at_boot)


@pytest.mark.parametrize(
    ("rule_id", "seen", "at_10", "at_100"),
    [
        ("swappiness-high", swapping(running="60", boot="60", other="60"), Verdict.FAIL, Verdict.PASS),
        ("sysctl-overridden", swapping(running="60", boot="60", other="10"), Verdict.FAIL, Verdict.PASS),
        ("sysctl-lost-at-reboot", swapping(running="10", boot="60", other="60"), Verdict.FAIL, Verdict.PASS),
        ("sysctl-not-applied", swapping(running="60", boot="10", other="10"), Verdict.FAIL, Verdict.PASS),
        ("sysctl-not-applied", swapping(running="150", boot="60", other="60"), Verdict.PASS, Verdict.FAIL),
    ],
)
def test_one_bound_holds_for_all_rules_that_judge_a_setting(
    rule_id: str, seen: Snapshot, at_10: Verdict, at_100: Verdict
) -> None:
    """Also where the rule whose parameter it is is not judged itself."""
    rules = (by_id()[rule_id],)
    assert results(seen, rules)[rule_id].verdict is at_10
    assert results(seen, rules, {"swappiness-high": {"max": 100}})[rule_id].verdict is at_100


def test_only_rules_of_the_catalogue_that_have_parameters_are_asked() -> None:
    asking = [rule for rule in CATALOGUE if rule.asks]
    assert asking
    for rule in asking:
        for other in rule.asks:
            assert other is by_id()[other.id] and other.params


@pytest.mark.parametrize("name", ["kernel", "gpu"])
def test_of_a_host_with_both_either_family_alone_finds_something(name: str) -> None:
    """The kernel's log and NVML tell the same fault: whoever asks for one of them is told it."""
    seen = seen_with_log(ECC, gpus={3: {"ecc_uncorrected_volatile": 2}})
    family = tuple(rule for rule in by_id().values() if rule.family == name)
    assert Verdict.FAIL in {result.verdict for result in engine.judge(seen, family)}
