"""What this tool wrote itself, given to diagnose: the same causes as check names, and never words of our own taken for a program's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driven import HOSTS, run

RECORDED = {
    "azure-nd-h100.fabric-manager-not-running": "fabric-manager-not-running",
    "dgx-h100.nvml-driver-library-mismatch": "nvml-driver-library-mismatch",
}
FORMS = {
    "snapshot": ("snapshot", "--format", "json"),
    "report": ("check", "--format", "json"),
    "brief report": ("check", "--format", "json", "--brief"),
    "recording": ("record",),
    "text": ("check",),
}


def diagnosed(path: Path | str, data: str | None = None) -> tuple[int, dict[str, Any]]:
    done = run("diagnose", "--format", "json", str(path), data=data)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("host", RECORDED)
def test_each_document_of_a_host_names_its_cause(host: str, form: str, tmp_path: Path) -> None:
    document = tmp_path / "document.json"
    document.write_text(run(*FORMS[form], "--from", str(HOSTS / "typical" / f"{host}.json")).stdout)
    status, found = diagnosed(document)
    assert (status, [cause["cause"] for cause in found["causes"]]) == (1, [RECORDED[host]])
    assert found["causes"][0]["confidence"] == "certain" and found["unread"] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_of_a_good_host_nothing_is_wrong(form: str, tmp_path: Path) -> None:
    document = tmp_path / "document.json"
    document.write_text(run(*FORMS[form], "--from", str(HOSTS / "typical" / "dgx-h100.json")).stdout)
    assert diagnosed(document) == (0, diagnosed(document)[1])
    assert diagnosed(document)[1]["causes"] == []


@pytest.mark.parametrize("form", ["report", "brief report", "text"])
def test_the_warnings_of_a_report_are_told(form: str, tmp_path: Path) -> None:
    host = str(HOSTS / "cuda-launch-blocking.fail.json")
    report = json.loads(run(*FORMS["report"], "--from", host).stdout)
    warned = {each["rule"] for each in report["results"] if each["verdict"] == "fail" and each["severity"] == "warning"}
    document = tmp_path / "document.json"
    document.write_text(run(*FORMS[form], "--from", host).stdout)
    status, found = diagnosed(document)
    assert warned and status == 1
    assert {each["confidence"] for each in found["causes"]} == {"possible"} and "cuda-launch-blocking" in str(found["causes"])


def test_causes_of_a_smoke_test_and_a_preflight_are_theirs() -> None:
    stage = {
        "stage": "ddp",
        "verdict": "fail",
        "cause": "straggler-compute",
        "confidence": "likely",
        "seen": "rank 3 is slow",
        "ranks": [3],
    }
    smoke = {"schema": "torchtune-sys/smoke/1", "stages": [stage, {"stage": "amp", "verdict": "pass", "cause": ""}]}
    status, found = diagnosed("-", json.dumps(smoke))
    (cause,) = found["causes"]
    assert (status, cause["cause"], cause["confidence"], cause["ranks"]) == (1, "straggler-compute", "likely", [3])
    bad = {"cause": "dev-shm-too-small", "rule": "dev-shm-too-small", "weight": "fatal", "seen": "16 MiB"}
    warned = {**bad, "cause": "swappiness-high", "weight": "warning"}
    preflight = {"schema": "torchtune-sys/preflight/1", "nodes": [{"node": "node-7", "causes": [bad, warned]}]}
    status, found = diagnosed("-", json.dumps(preflight))
    assert (status, [(cause["cause"], cause["hosts"]) for cause in found["causes"]]) == (1, [("dev-shm-too-small", ["node-7"])])
    status, found = diagnosed("-", json.dumps({**preflight, "nodes": [], "absent": ["node-9"]}))
    assert (status, [(cause["cause"], cause["hosts"]) for cause in found["causes"]]) == (1, [("node-never-came", ["node-9"])])


SMOKE = """\
vm: training does not work: stragglers: straggler-held-back, 81 s
torch 2.13.0, 2 ranks, gloo, level default, /home/u/.venv/bin/python

pass    train                3.1 s   transformer steps 26.7 1/s
fail    stragglers           0.1 s   rank 1 (the CPU of vm) may have 0.15 CPUs
                                     by the quota of its cgroup
                                     cause: straggler-held-back (likely)
"""
PREFLIGHT = """\
NO-GO  node-7: dev-shm-too-small; 2 of 2 nodes, 4 ranks (slurm, level fast, 3.1 s)
  fatal    node-7  [node] dev-shm-too-small: 16 MiB, should be at least 1 GiB
           (dev-shm-too-small)
  warning  node-8  [node] swappiness-high: 60 (swappiness-high)
"""
REASON = "   Reason=torchtune-sys: [hardware] gpu-fallen-off-bus: GPU 3: Xid 79 [root@2026-01-02T03:04:05]\n"


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        (SMOKE, [("straggler-held-back", "likely", [], [1])]),
        (PREFLIGHT, [("dev-shm-too-small", "certain", ["node-7"], [])]),
        (REASON, [("gpu-fallen-off-bus", "certain", [], [])]),
        (SMOKE.replace("fail ", "pass "), []),
    ],
)
def test_causes_of_what_a_smoke_test_and_a_preflight_print_are_theirs(text: str, causes: list[object]) -> None:
    found = diagnosed("-", text)[1]["causes"]
    assert [(each["cause"], each["confidence"], each["hosts"], each["ranks"]) for each in found] == causes


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schema": "torchtune-sys/plan/1", "changes": []}, "describes no fault"),
        ({"schema": "torchtune-sys/report/1", "results": 7}, "is not as torchtune-sys/report/1 has it"),
        ({"schema": "torchtune-sys/smoke/1"}, "is not as torchtune-sys/smoke/1 has it"),
        ({"schema": "torchtune-sys/snapshot/1", "facts": []}, "has no facts"),
        ({"files": {}, "extends": "/etc/hostname"}, "may extend no file"),
    ],
)
def test_what_tells_nothing_or_is_damaged_is_not_read(document: dict[str, Any], words: str) -> None:
    status, found = diagnosed("-", json.dumps(document))
    assert (status, found["causes"]) == (3, [])
    assert words in found["unread"][0]["why"]


def test_a_file_called_as_standard_input_is_is_not_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "standard input").write_text("{}")
    (tmp_path / "base.json").write_text(json.dumps({"schema": "torchtune-sys/recording/1", "files": {}}))
    recording = json.dumps({"schema": "torchtune-sys/recording/1", "extends": "base.json"})
    done = run("diagnose", "--format", "json", "-", data=recording)
    (unread,) = json.loads(done.stdout)["unread"]
    assert "may extend no file" in unread["why"]


def test_a_recording_on_one_long_line_is_one(tmp_path: Path) -> None:
    recording = json.loads((HOSTS / "typical" / "dgx-h100.nvml-driver-library-mismatch.json").read_text())
    recording.setdefault("files", {})["/etc/motd"] = "x" * 100_000
    (tmp_path / "host.json").write_text(json.dumps(recording))
    for base in [recording["extends"]] if isinstance(recording.get("extends"), str) else recording.get("extends", []):
        (tmp_path / base).write_bytes((HOSTS / "typical" / base).read_bytes())
    status, found = diagnosed(tmp_path / "host.json")
    assert (status, found["causes"][0]["cause"]) == (1, "nvml-driver-library-mismatch")
