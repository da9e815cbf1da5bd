"""A fact that cannot be looked at never makes a fault look healthy, never raises an alarm, and never makes a rule stumble.

Each fact that a rule may read is hidden in turn (permission denied): on the hosts that the rule fails, and on the healthy one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from conftest import HOSTS, load
from torchtune_sys import engine
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE, by_id

RULES = by_id()
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
ALLOWED: dict[str, set[str]] = {
    # by the versions alone this driver is new enough; torch's own word outdoes them
    "driver-too-old.fail.live": {"python.live"},
    # torch names a GPU that the driver does not show; by its files it serves all eight that are shown
    "gpu-arch-not-in-wheel.fail.live": {"python.live"},
    # reports never tell it, and for every Python that has such builds there are wheels of both kinds
    "no-wheel-for-python.fail.free-threaded": {"python.free_threaded"},
    # the versions of module and library are equal in the files of this host; NVML's own word outdoes them
    "nvml-driver-library-mismatch.fail": {"gpu"},
    # the version comes from running the interpreter: not being allowed to run it is the fault
    "interpreter-does-not-start": {"python.version"},
}
"""Host (or rule) → facts that may stay hidden without the verdict becoming unknown; each with the reason why."""

HIDDEN = Missing(Why.DENIED, "/hidden", "hidden by the test")


@cache
def words(module: str) -> frozenset[str]:
    """The attributes that a module of rules names, those of the modules that it imports included."""
    namespace = vars(sys.modules[module])
    found = set(re.findall(r"\.([a-z_0-9]+)", Path(namespace["__file__"]).read_text()))
    for value in namespace.values():
        other = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        if isinstance(other, str) and other.startswith("torchtune_sys.rules.") and other != module:
            found |= words(other)
    return frozenset(found)


@cache
def fields(struct: type[msgspec.Struct]) -> dict[str, bool]:
    """Names of fields, and whether each may be missing."""
    return {field.name: Missing in get_args(field.type) for field in msgspec.structs.fields(struct)}


def hide(value: Any, names: frozenset[str], path: str) -> Iterator[tuple[str, Any]]:
    """``value`` with one fact below it hidden, for each fact that is called one of ``names``; of a tuple in the first and the last."""
    if isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
        for name, may_miss in fields(type(value)).items():
            if name in names:
                for where, changed in hide_one(getattr(value, name), may_miss, names, f"{path}.{name}"):
                    yield where, msgspec.structs.replace(value, **{name: changed})
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        for number in sorted({0, len(value) - 1}):
            for where, changed in hide(value[number], names, f"{path}[{number}]"):
                yield where, (*value[:number], changed, *value[number + 1 :])
    elif isinstance(value, dict):
        for key, inner in value.items():
            for where, changed in hide_one(inner, path.endswith((".limits", ".preloads")), names, f"{path}[{key}]"):
                yield where, {**value, key: changed}


def hide_one(value: Any, may_miss: bool, names: frozenset[str], path: str) -> Iterator[tuple[str, Any]]:
    if may_miss and not isinstance(value, Missing):
        yield path, HIDDEN
    yield from hide(value, names, path)


def judged(host: Snapshot, rule: Rule) -> Iterator[tuple[str, Result]]:
    """The rule's result for each fact that it may read, that fact being hidden."""
    names = words(rule.judge.__module__)
    for family in FAMILIES:
        if family in names:
            for where, changed in hide_one(getattr(host, family), True, names, family):
                (result,) = engine.judge(msgspec.structs.replace(host, **{family: changed}), [rule])
                yield where, result


def allowed(name: str) -> set[str]:
    return ALLOWED.get(name, set())


def stumbles(result: Result) -> bool:
    return result.verdict is Verdict.CRASHED or not all(isinstance(item.verdict, Verdict) for item in result.evidence)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", FAILING)
def test_a_fault_is_never_called_healthy(name: str) -> None:
    found = judged(load(name), RULES[name.split(".")[0]])
    assert not {where for where, result in found if stumbles(result) or result.verdict is Verdict.PASS} - allowed(name)


@pytest.mark.sampled(80)
@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_health_is_never_called_a_fault(rule: Rule) -> None:
    found = judged(load("healthy"), rule)
    assert not {where for where, result in found if stumbles(result) or result.verdict is Verdict.FAIL} - allowed(rule.id)


INTEGERS, FLOATS = (0, -1, 2**127, -(2**127)), (0.0, -1.0, float("inf"), 1e308, -1e308)


def _with_other_numbers(value: Any, names: frozenset[str], path: str) -> Iterator[tuple[str, Any]]:
    """``value`` with one number below it changed, for each number below fields that are called one of ``names``; of a tuple in the first and the last."""
    parts: list[tuple[Any, Any, Callable[[Any], Any]]] = []
    if type(value) in (int, float):
        yield from ((f"{path} = {number}", number) for number in (INTEGERS if isinstance(value, int) else FLOATS))
    elif isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
        for name in names.intersection(value.__struct_fields__):
            parts.append((name, getattr(value, name), lambda new, name=name: replace(value, **{name: new})))
    elif isinstance(value, tuple):
        for at in sorted({0, len(value) - 1} if value else ()):
            parts.append((at, value[at], lambda new, at=at: (*value[:at], new, *value[at + 1 :])))
    elif isinstance(value, dict):
        for key in list(value)[:2]:
            parts.append((key, value[key], lambda new, key=key: {**value, key: new}))
    for name, part, whole in parts:
        yield from ((where, whole(new)) for where, new in _with_other_numbers(part, names, f"{path}.{name}"))


@pytest.mark.sampled(4, 24)
@pytest.mark.parametrize("name", FAILING)
def test_no_number_that_a_snapshot_may_hold_crashes_a_rule(name: str) -> None:
    """Of 57,000 three did: floor division of what has no bound is no number, and a shift by less than nothing."""
    rule, host = RULES[name.split(".")[0]], load(name)
    names = words(rule.judge.__module__)
    for family in names.intersection(FAMILIES):
        for where, facts in _with_other_numbers(getattr(host, family), names, family):
            found = engine.judge(replace(host, **{family: facts}), [rule])[0]
            assert found.verdict is not Verdict.CRASHED, (where, found)
