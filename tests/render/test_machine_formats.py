"""Formats for machines: what a strict reader of each accepts, with hostile text in every field."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import DENIED, EVERYTHING, GPUS, LATE, crashed, failed, not_applicable, passed, report, unknown

from torchtune_sys.cli.commands import check
from torchtune_sys.model.rule import Evidence, Severity
from torchtune_sys.render import as_json, github, junit, machine, markdown, nagios, prometheus

FORMATS = [name for name in check.FORMATS if name not in ("text", "nagios")]
ANY = st.text(st.characters(codec=None), max_size=30)
HOSTILE = Evidence(subject='a|b"\\\n<x>&,:%', seen="]]>\x00\x1b\ud800", wanted="::error::x\r\n", source="`@joe`")


def test_json_holds_the_keys_of_the_contract_with_their_meaning() -> None:
    found = json.loads(as_json.render(report(*EVERYTHING)))
    assert set(found) >= {"schema", "tool", "time", "host", "summary", "results"}
    assert found["schema"] == "torchtune-sys/report/1"
    assert found["tool"] == {"version": "1.2.3"}
    assert found["summary"] == {
        "findings": {"error": 1, "warning": 1, "advice": 1},
        "pass": 1,
        "unknown": 2,
        "na": 1,
        "crashed": 1,
        "can_train": "unknown",
    }
    by_rule = {item["rule"]: item for item in found["results"]}
    assert by_rule["driver-too-old"]["fix"][0] == {
        "action": "install",
        "text": "install driver 580.65.06 or newer",
        "safety": "unsafe",
        "needs": "reboot",
    }
    assert by_rule["driver-too-old"]["evidence"][0] == {
        "subject": "GPU 0",
        "verdict": "fail",
        "seen": "535.104.05",
        "wanted": "580.65.06 or newer",
        "source": "NVML",
        "why_unknown": None,
    }
    assert by_rule["secret-kept"]["why_unknown"] == {
        "$missing": "denied",
        "source": "/proc/secret",
        "detail": "permission denied",
        "remedy": "run as root",
    }
    assert by_rule["all-well"]["why_unknown"] is None
    assert found["host"]["name"] == {"$missing": "not-recorded", "source": "nowhere", "detail": "made by hand"}


def test_json_keeps_the_order_of_the_catalogue() -> None:
    found = json.loads(as_json.render(report(*EVERYTHING)))
    assert [item["rule"] for item in found["results"]] == [result.rule.id for result in EVERYTHING]


def test_a_format_that_the_standard_library_has_a_module_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """as_csv.py was not: "No module named torchtune_sys.render.csv"."""
    found = SimpleNamespace(render=lambda value: f"{value.version},csv")
    monkeypatch.setitem(sys.modules, "torchtune_sys.render.as_csv", found)  # type: ignore[arg-type]
    assert machine("csv", report(*EVERYTHING)) == "1.2.3,csv"


@pytest.mark.parametrize("name", FORMATS)
@given(subject=ANY, seen=ANY)
def test_no_format_breaks_on_any_text(name: str, subject: str, seen: str) -> None:
    result = failed("any-text", Evidence(subject=subject, seen=seen, wanted=seen, source=subject), title=seen)
    machine(name, report(result)).encode()


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_steers_a_terminal_that_it_is_printed_on(name: str) -> None:
    signs = "\x1b\x07\x7f\x85\x9b\u2028\u202e\u2066"
    result = failed("any-text", Evidence(subject="it" + signs, seen=signs, wanted=signs, source=signs))
    text = machine(name, report(result))
    assert not set(signs) & set(text), "what a host says goes through clean() of render/layout.py"
    if name == "json":
        assert json.loads(text)["results"][0]["evidence"][0]["seen"] == signs


# JUnit: the elements and attributes of Jenkins' junit-10.xsd and of Ant's JUnit.xsd that both allow.
_SUITE = {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}


def test_junit_has_a_suite_per_family_and_adds_up() -> None:
    root = ET.fromstring(junit.render(report(*EVERYTHING, failed("evil-host", HOSTILE))))
    assert root.tag == "testsuites" and not root.attrib
    assert [suite.get("name") for suite in root] == ["torchtune-sys.driver", "torchtune-sys.pci", "torchtune-sys.sysctl"]
    for suite in root:
        assert set(suite.attrib) == _SUITE
        cases = suite.findall("testcase")
        assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        assert int(suite.get("tests", "")) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    cases = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert cases["driver-too-old"] == ["failure"] and cases["gone-wrong"] == ["error"] and cases["all-well"] == []
    assert cases["secret-kept"] == ["skipped"] == cases["no-such-thing"]


def test_no_word_of_a_host_attaches_a_file_to_a_report() -> None:
    """Jenkins and GitLab attach what is named so."""
    text = junit.render(report(failed("evil-host", msgspec.structs.replace(HOSTILE, subject="[[ATTACHMENT|/etc/passwd]]"))))
    assert "/etc/passwd" in text and "[[ATTACHMENT|" not in text


def test_junit_says_why_a_case_was_skipped() -> None:
    root = ET.fromstring(junit.render(report(unknown("a-b", DENIED), not_applicable())))
    messages = [item.get("message") for item in root.iter("skipped")]
    assert messages == ["unknown: /proc/secret: permission denied", "not applicable: no GPU on this host"]


def test_github_commands_are_what_the_runner_reads_back() -> None:
    rows = github.render(report(failed("evil-host", HOSTILE, severity=Severity.WARNING, title="50%: a, b"))).splitlines()
    commands = [row for row in rows if row.startswith("::")]
    assert len(commands) == 1
    found = re.fullmatch(r"::(\w+) title=([^:,]*)::(.*)", commands[0])
    assert found is not None
    level, title, message = found.groups()
    assert level == "warning"
    undone = title.replace("%2C", ",").replace("%3A", ":").replace("%25", "%")
    assert undone == "evil-host: 50%: a, b"
    assert "\n" not in message and "%25" in message


def test_github_names_levels_and_what_could_not_be_looked_at() -> None:
    rows = github.render(report(*EVERYTHING)).splitlines()
    assert [row.split(" ")[0] for row in rows if row.startswith("::")] == [
        "::error",
        "::warning",
        "::notice",
        "::warning",
        "::error",
    ]
    assert "smi-hangs could not be checked" in rows[3]
    assert not rows[-1].startswith("::")


_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.e+]+)')


def samples(text: str) -> dict[str, float]:
    """The series of an exposition, read by the grammar of the text format 0.0.4."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    assert text.endswith("\n")
    for row in text.splitlines():
        if row.startswith("# TYPE "):
            assert row.split()[2] not in typed, "a metric's type is told once"
            typed.add(row.split()[2])
        elif not row.startswith("# HELP "):
            match = _SAMPLE.fullmatch(row)
            assert match, row
            assert match.group(1) in typed
            series = row.rpartition(" ")[0]
            assert series not in found, f"twice: {series}"
            found[series] = float(match.group(3))
    return found


def test_prometheus_gives_each_series_once() -> None:
    twice = failed("same-twice", *GPUS, *GPUS)
    found = samples(prometheus.render(report(*EVERYTHING, twice, failed("evil-host", HOSTILE))))
    assert found["torchtune_sys_check_timestamp_seconds"] == 1770091506
    assert found['torchtune_sys_findings{severity="error"}'] == 3
    assert found['torchtune_sys_rules{verdict="unknown"}'] == 2
    assert found['torchtune_sys_finding{rule="driver-too-old",family="driver",severity="error",subject="GPU 5"}'] == 1
    assert found['torchtune_sys_rule_verdict{rule="secret-kept",family="driver",severity="error",verdict="unknown"}'] == 1


@pytest.mark.parametrize(
    ("results", "state", "word"),
    [
        ([passed()], 0, "OK"),
        ([passed(), failed("a-b", severity=Severity.ADVICE)], 0, "OK"),
        ([failed("a-b", severity=Severity.WARNING)], 1, "WARNING"),
        ([failed("a-b", severity=Severity.WARNING), failed("c-d")], 2, "CRITICAL"),
        ([passed(), unknown("a-b", LATE)], 3, "UNKNOWN"),
        ([passed(), unknown("a-b", DENIED)], 0, "OK"),
        ([passed(), crashed()], 3, "UNKNOWN"),
        ([failed("c-d"), crashed()], 2, "CRITICAL"),
    ],
)
def test_nagios_state(results: list[object], state: int, word: str) -> None:
    made = report(*results)  # type: ignore[arg-type]
    assert nagios.exit_code(made) == state
    assert nagios.render(made).startswith(f"TORCHTUNE-SYS {word} - ")


def test_nagios_is_one_line_with_performance_data_after_the_only_bar() -> None:
    found = nagios.render(report(failed("a-b", title="a | b\nc"), failed("warn-b", severity=Severity.WARNING)))
    assert found.count("\n") == 1 and found.count("|") == 1
    said, _, data = found.partition("|")
    assert len(said) < 1024
    for item in data.split():
        assert re.fullmatch(r"\w+=\d+(;\d*){0,4}", item), item
    assert "errors=1;" in data


def test_nagios_strict_takes_any_unknown_for_unknown() -> None:
    assert nagios.exit_code(report(unknown("a-b", DENIED)), strict=True) == 3


def test_markdown_tables_keep_their_columns_whatever_the_host_says() -> None:
    found = markdown.render(report(*EVERYTHING, failed("evil-host", HOSTILE, title="<img src=x> [a](b)")))
    tables = re.findall(r"(?:^\|.*\n)+", found, re.M)
    assert len(tables) == 3
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(columns) == 1, table
    assert "<img" not in found.replace("\\<img", "") and "\\@joe" in found


def test_markdown_says_everything_that_the_text_says() -> None:
    found = markdown.render(report(*EVERYTHING))
    for words in ("driver-too-old", "580.65.06", "run as root", "gone-wrong", "1 passed, 3 failed, 2 could not be checked"):
        assert words in found
