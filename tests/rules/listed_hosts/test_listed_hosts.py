"""Hosts that were written down before anybody tried them: what is wrong is named, and nothing of an odd but healthy one.

``hosts.csv`` has each with what was said of it at first and last; those of the column *sealed* were tried once, after the others'
mends. ``wanted``: the rules that name the fault, one of which is enough; where there is none, ``label`` says it in words.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hosts_table import HOSTS

from conftest import judge, judge_one
from machines import Recording
from machines_libraries import with_libraries
from torchtune_sys import engine, evidence
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot

ROWS = list(csv.DictReader(Path(__file__).with_name("hosts.csv").read_text().splitlines()))
for _module in Path(__file__).parent.glob("hosts_*.py"):
    importlib.import_module(_module.stem)
NAMED = [int(row["n"]) for row in ROWS if row["kind"] == "fault" and row["last"] == "named"]
SILENT = [int(row["n"]) for row in ROWS if row["kind"] == "healthy" and row["last"] == "silent"]


def _seen(build: Callable[[], Recording]) -> Snapshot:
    host = build()
    if "paste" in host:
        pasted = evidence.read(host["paste"], "a report", Workload())
        assert pasted is not None
        return pasted
    if any(name.startswith("interpreter:") and "executable" in answer for name, answer in host["answers"].items()):
        host = with_libraries(host)
    asked = {name: tuple(value) if isinstance(value, list) else value for name, value in host.get("intent", {}).items()}
    return engine.snapshot(RecordedHost(host, "a listed host"), Workload(**asked), timeout_s=20)


@cache
def _warned(build: Callable[[], Recording]) -> frozenset[str]:
    """Errors and warnings."""
    found = judge(_seen(build))
    return frozenset(
        rule_id
        for rule_id, result in found.items()
        if result.verdict is Verdict.CRASHED or (result.verdict is Verdict.FAIL and result.rule.severity is not Severity.ADVICE)
    )


def test_each_host_of_the_list_has_a_builder() -> None:
    assert [int(row["n"]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert sorted(HOSTS) == [int(row["n"]) for row in ROWS if row["first"]]
    assert all(row["wanted"] for row in ROWS if int(row["n"]) in NAMED)


@pytest.mark.sampled(12, 24)
@pytest.mark.parametrize("number", NAMED)
def test_what_is_wrong_is_named(number: int) -> None:
    wanted = ROWS[number - 1]["wanted"].split()
    host, like = map(_seen, HOSTS[number])
    named = [rule_id for rule_id in wanted if judge_one(host, rule_id).verdict is Verdict.FAIL]
    assert named, [(rule_id, judge_one(host, rule_id)) for rule_id in wanted]
    assert any(judge_one(like, rule_id).verdict is not Verdict.FAIL for rule_id in named)


def test_what_is_barred_already_need_not_be_barred() -> None:
    """Host 2: nouveau is in a file of modprobe.d since a minute, and loaded still."""
    (found,) = (item for item in judge_one(_seen(HOSTS[2][0]), "nouveau-loaded").evidence if item.verdict is Verdict.FAIL)
    assert "barred already" in str(found.fix) and "modprobe.blacklist" not in str(found.fix)


@pytest.mark.sampled(6, 12)
@pytest.mark.parametrize("number", SILENT)
def test_nothing_is_wrong_with_an_odd_host(number: int) -> None:
    host, like = HOSTS[number]
    assert not _warned(host) - _warned(like)
