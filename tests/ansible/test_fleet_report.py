"""The report about all hosts, from what the tool says of recorded ones."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from driven import run

PLUGINS = Path(__file__).resolve().parents[2] / "ansible/plugins"
HOSTS = Path(__file__).resolve().parents[1] / "hosts"


def module(place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(place).stem, PLUGINS / place)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def answer(host: str) -> dict[str, Any]:
    """What ``torchtune_check`` returns for a recorded host."""
    done = run("check", "--from", str(HOSTS / host), "--format", "json", "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    brief = module("module_utils/report.py")
    found = brief.brief(json.loads(done.stdout))
    return {
        **found,
        "counts": brief.count(found["findings"]),
        "headline": brief.headline(found, True),
        "judged": True,
        "status": 0,
    }


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    fleet = module("plugin_utils/fleet.py")
    hosts = [
        fleet.host(name, answer(path), "") for name, path in (("bare", "base-system.json"), ("gpus", "typical/dgx-h100.json"))
    ]
    made: dict[str, Any] = fleet.fleet([*hosts, fleet.host("away", {"unreachable": True, "msg": "no route"}, "")], "now")
    return made


def test_a_host_that_cannot_train_is_not_told_as_good(document: dict[str, Any]) -> None:
    fleet = module("plugin_utils/fleet.py")
    assert [one.get("can_train") for one in document["hosts"]] == ["no", "gpu", None]
    assert fleet.headline(document).endswith("; training does not work on 1")
    rows = [line for line in fleet.markdown(document).splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[2] for row in rows[:3]] == ["trains on", "nothing", "GPUs"]
    assert len({row.count("|") for row in rows}) == 1
    assert "training does not work here" in answer("base-system.json")["headline"]


def test_what_failed_before_the_changes_were_begun_is_a_failure() -> None:
    """Nothing was registered of them then: a variable of the wrong type, a drain that did not end."""
    fleet = module("plugin_utils/fleet.py")
    one = fleet.host("one", answer("typical/dgx-h100.json"), "", None, "Validating arguments: 'maybe' is not a valid boolean")
    assert one["state"] == "failed"
    assert fleet.reasons([one]) == {"one": "failed: the changes: Validating arguments: 'maybe' is not a valid boolean"}


def test_the_report_says_what_differs_as_compare_does(tmp_path: Path) -> None:
    differences, fleet = module("plugin_utils/differences.py"), module("plugin_utils/fleet.py")
    facts = {}
    for name in ("one", "two", "three"):
        place = tmp_path / f"{name}.json"
        done = run("check", "--from", str(HOSTS / "typical/dgx-h100.json"), "--facts", str(place), "--fail-on", "never", "-q")
        assert done.returncode == 0, done.stderr
        facts[name] = json.loads(place.read_text())
    facts["three"]["facts"]["python"]["torch"]["version"] = "2.1.0+cu121"
    said = differences.between(facts, [sys.executable, "-m", "torchtune_sys"])
    odd = said["document"]["odd"]
    assert [(one["host"], one["fact"], one["value"], one["weight"]) for one in odd] == [
        ("three", "python.torch.version", "2.1.0+cu121", "error")
    ], odd
    hosts = [fleet.host(name, None, "", None, "", {"verdict": "go"}) for name in facts]
    document = fleet.fleet(hosts, "now", said["document"])
    page = fleet.markdown(document, said["markdown"])
    assert "## What differs between hosts" in page and "2.1.0+cu121" in page and page.count("\n# ") == 0
    assert any("2.1.0+cu121" in line for line in fleet.text(document, said["text"]))


def test_where_the_tool_does_not_run_on_the_controller_the_report_says_so(tmp_path: Path) -> None:
    differences, fleet = module("plugin_utils/differences.py"), module("plugin_utils/fleet.py")
    broken = tmp_path / "torchtune-sys"
    broken.write_text("echo hello\n")
    with pytest.raises(differences.Unsaid, match="no JSON"):
        differences.between({"a": {}, "b": {}}, differences.tool(str(broken)))
    document = fleet.fleet([], "now", {"why": "there is no torchtune-sys on the controller"})
    assert "Not asked: there is no torchtune-sys" in fleet.markdown(document)
    assert "there is no torchtune-sys on the controller" in fleet.text(document)[-1]


@pytest.mark.parametrize(("verdict", "state"), [("go", "go"), ("no-go", "no-go"), ("unknown", "not-judged")])
def test_what_a_joint_preflight_says_of_a_host(verdict: str, state: str) -> None:
    fleet = module("plugin_utils/fleet.py")
    cause = {"cause": "hung-mount", "seen": "/scratch does not answer", "weight": "fatal", "blame": "network"}
    told = {
        "verdict": verdict,
        "causes": [] if verdict == "go" else [cause],
        "headline": "h",
        "job": "no-go",
        "bad": [],
        "absent": [],
    }
    found = fleet.host("a", None, "", None, "", told)
    assert found["state"] == state and (verdict == "go" or found["reason"] == "hung-mount: /scratch does not answer")
    judged = fleet.host("a", {**answer("typical/dgx-h100.json")}, "", None, "", told)
    assert judged["state"] == ("findings" if verdict == "go" else state), "the check's own state stays where a job may start"


def test_only_our_files_of_hosts_that_are_gone_are_outdated(tmp_path: Path) -> None:
    outdated = module("plugin_utils/outdated.py")
    facts, state = json.dumps({"schema": "torchtune-sys/facts/1", "facts": {}}), json.dumps({"host": "x", "state": "good"})
    files = {"facts/here.json": facts, "facts/gone.json": facts, "hosts/here.json": state, "hosts/gone.json": state}
    others = {
        "facts/notes.txt": "",
        "facts/theirs.json": "{}",
        "hosts/broken.json": "{",
        "hosts/list.json": "[]",
        "gone.json": facts,
    }
    for name, text in {**files, **others}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "facts/link.json").symlink_to(tmp_path / "gone.json")
    found = outdated.outdated(str(tmp_path), {"facts/here.json", "hosts/here.json"})
    assert found == [str(tmp_path / "facts/gone.json"), str(tmp_path / "hosts/gone.json")]
    assert outdated.outdated(str(tmp_path / "nothing"), set()) == []
