"""``check --format json --brief``: what ten thousand nodes send."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from made import DENIED, EVERYTHING, failed, passed, report, unknown

from torchtune_sys.cli.main import run as command
from torchtune_sys.model.rule import Evidence
from torchtune_sys.render import as_json, prometheus, schemas

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
SCHEMA = json.loads(Path(schemas.DATA, "report-brief.schema.json").read_text())


def brief(*results: object) -> dict[str, object]:
    text = as_json.report_brief(report(*results))  # type: ignore[arg-type]
    assert len(text.encode()) <= as_json.BRIEF_BYTES and text.count("\n") == 1
    found = json.loads(text)
    jsonschema.validate(found, SCHEMA, format_checker=jsonschema.FormatChecker())
    assert isinstance(found, dict)
    return found


def test_findings_unknown_and_crashed_are_whole_and_the_rest_are_ids() -> None:
    found = brief(*EVERYTHING)
    whole = json.loads(as_json.render(report(*EVERYTHING)))
    by_verdict = {item["rule"]: item for item in whole["results"]}
    assert found["pass"] == [name for name, item in by_verdict.items() if item["verdict"] == "pass"]
    assert found["na"] == [name for name, item in by_verdict.items() if item["verdict"] == "na"]
    results = found["results"]
    assert isinstance(results, list) and found["cut"] is False and found["summary"] == whole["summary"]
    assert {item["rule"] for item in results} == {
        name for name, item in by_verdict.items() if item["verdict"] in ("fail", "unknown", "crashed")
    }
    told = next(item for item in results if item["rule"] == "driver-too-old")
    assert told["evidence"][0]["seen"] == "535.104.05" and told["fix"][0] == "install driver 580.65.06 or newer"


def test_it_keeps_within_its_size_whatever_is_found() -> None:
    many = tuple(Evidence(subject=f"disk {number}", seen="x" * 3000, wanted="y") for number in range(300))
    found = brief(*(msgspec.structs.replace(failed(f"rule-{n}"), evidence=many) for n in range(30)), passed())
    results = found["results"]
    assert found["cut"] is True and isinstance(results, list) and len(results) == 30
    found = brief(*(unknown(f"rule-{n}", DENIED) for n in range(250)))
    assert isinstance(found["results"], list) and len(found["results"]) == 250, "every rule that could not be checked is named"
    found = brief(failed("first"), *(unknown(f"a-rule-of-some-length-{n}", DENIED) for n in range(300)))
    assert [item["rule"] for item in found["results"]] == ["first"]  # type: ignore[attr-defined]
    assert found["unknown"] == [f"a-rule-of-some-length-{n}" for n in range(300)], "also where there are more of them"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("host", sorted(path.name for path in HOSTS.glob("*.json") if "." not in path.stem))
def test_of_every_recorded_host(host: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    command(["check", "--from", str(HOSTS / host), "--format", "json", "--brief"])
    out = capsysbinary.readouterr().out
    assert len(out) <= as_json.BRIEF_BYTES
    jsonschema.validate(json.loads(out), SCHEMA)


def test_brief_is_of_json() -> None:
    assert command(["check", "--brief"]) == 2


def test_prometheus_has_a_series_for_what_applies_alone() -> None:
    text = prometheus.render(report(*EVERYTHING))
    assert 'verdict="na"} 1' in text and 'rules{verdict="na"}' in text
    assert not [row for row in text.splitlines() if row.startswith("torchtune_sys_rule_verdict") and 'verdict="na"' in row]
