"""What is written follows the schemas that are shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from made import EVERYTHING, report

from conftest import HOSTS, exhaustive, judge, load
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.render import as_json, schemas
from torchtune_sys.render.report import Report

SHIPPED = ("report", "snapshot", "recording", "plan", "run", "install", "image", "smoke", "compare", "facts")


def schema(name: str) -> dict[str, Any]:
    found = json.loads(Path(schemas.DATA, f"{name}.schema.json").read_text())
    assert isinstance(found, dict)
    return found


def valid(name: str, text: str) -> None:
    jsonschema.Draft202012Validator(schema(name), format_checker=jsonschema.FormatChecker()).validate(json.loads(text))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def names() -> list[Any]:
    """The healthy host and every fiftieth overlay: enough shapes, in little time; each of them where there is more."""
    overlays = sorted(path.stem for path in HOSTS.glob("*.*.json"))
    return ["healthy", *overlays[::50], *exhaustive(*(name for at, name in enumerate(overlays) if at % 50))]


@pytest.mark.sampled(2, 8)
@pytest.mark.parametrize("name", names())
def test_reports_and_snapshots_of_recorded_hosts_are_valid(name: str) -> None:
    seen = load(name)
    results = tuple(judge(seen).values())
    made = Report(snapshot=seen, results=results, version="0", time="2026-02-03T04:05:06Z", epoch_s=0)
    valid("report", as_json.render(made))
    valid("snapshot", as_json.snapshot(seen, version="0", time="2026-02-03T04:05:06Z"))


def test_a_report_with_every_verdict_is_valid() -> None:
    valid("report", as_json.render(report(*EVERYTHING)))


def test_a_report_without_a_reason_for_an_unknown_is_not_valid() -> None:
    found = json.loads(as_json.render(report(*EVERYTHING)))
    for item in found["results"]:
        item["why_unknown"] = None
    with pytest.raises(jsonschema.ValidationError):
        valid("report", json.dumps(found))


@pytest.mark.parametrize("key", ["schema", "tool", "time", "host", "summary", "results"])
def test_no_key_of_the_contract_may_be_left_out(key: str) -> None:
    found = json.loads(as_json.render(report(*EVERYTHING)))
    del found[key]
    with pytest.raises(jsonschema.ValidationError):
        valid("report", json.dumps(found))


@pytest.mark.parametrize("path", sorted(HOSTS.rglob("*.json"))[::5], ids=lambda path: path.stem)
def test_recordings_are_valid(path: Path) -> None:
    valid("recording", path.read_text())


def test_the_healthy_recording_is_valid_as_a_whole() -> None:
    valid("recording", json.dumps(load_recording(str(HOSTS / "healthy.json"))))


def test_numbers_above_2_to_the_53_are_strings_and_infinity_is_null() -> None:
    seen = load("healthy")
    found = json.loads(as_json.snapshot(seen, version="0", time="2026-02-03T04:05:06Z"))
    assert found["facts"]["cpu"]["quota"] is None
    assert found["facts"]["numa"]["nodes"][0]["cpus"] == "0-15,32-47"
