"""The report about all hosts, from what the tool says of recorded ones."""

from __future__ import annotations

import importlib.util
import json
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
