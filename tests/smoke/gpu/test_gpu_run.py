"""``./run gpu``: what it does where there is no GPU, and how steps are run, kept and told. No result of a GPU is made up here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def gpu_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_run", ROOT / "scripts" / "gpu_run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_run"] = module
    sys.path.insert(0, str(ROOT / "scripts"))
    spec.loader.exec_module(module)
    return module


def test_every_step_ends_within_ten_minutes_and_has_a_name_of_its_own(gpu_run: ModuleType) -> None:
    assert all(step.limit_s < 600 for step in gpu_run.STEPS)
    assert len({step.name for step in gpu_run.STEPS}) == len(gpu_run.STEPS)


def test_without_a_gpu_nothing_is_run_and_nothing_made_up(tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "gpu_run.py"), "-o", str(tmp_path / "result.json")]
    done = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "nothing was run" in done.stderr
    assert not (tmp_path / "result.json").exists()


def test_a_step_that_takes_too_long_is_ended_and_one_that_ran_is_not_run_again(gpu_run: ModuleType, tmp_path: Path) -> None:
    slow = gpu_run.Step("slow", "", ("{python}", "-c", "import time; time.sleep(60)"), 1.0)
    result = gpu_run.run_step(slow, {"python": sys.executable}, "key")
    assert "not through after 1 s" in gpu_run.verdict(slow, result)
    kept = tmp_path / "slow.json"
    kept.write_text(json.dumps(result))
    assert gpu_run.done_already(kept, "key")
    assert not gpu_run.done_already(kept, "another machine or release")
    assert not gpu_run.done_already(tmp_path / "none.json", "key")


def test_the_tool_is_found_however_it_isolates_itself(
    gpu_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's run takes no PYTHONPATH, and a GPU machine's Python need not have the tool's packages in it."""
    monkeypatch.setattr(gpu_run, "PLACE", tmp_path)
    tool = gpu_run.tool_of(sys.executable)
    done = subprocess.run(
        [tool, "-I", "-m", "torchtune_sys", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "torchtune-sys" in done.stdout, done.stderr
    assert gpu_run.tool_of(sys.executable) == tool


def test_a_hook_reaches_each_process_and_what_runs_beside_it_ends_with_it(gpu_run: ModuleType) -> None:
    step = gpu_run.Step(
        "hooked",
        "",
        ("{python}", "-c", "import sys; print(sys.hooked)"),
        30.0,
        **sys.modules["gpu_steps"].hooked("import sys; sys.hooked = 17"),
        beside="print(1, flush=True); import time; time.sleep(60)",
    )
    result = gpu_run.run_step(step, {"python": sys.executable}, "key")
    assert result["report"] == 17 and result["seconds"] < 30


def test_a_fault_that_nothing_noticed_and_an_alarm_are_told(gpu_run: ModuleType) -> None:
    passing = {"ended": "ended", "status": 0, "report": {"stages": [{"stage": "gemm", "cause": "", "verdict": "pass"}]}}
    failing = {"ended": "ended", "status": 1, "report": {"stages": [{"stage": "gemm", "cause": "gemm-wrong", "verdict": "fail"}]}}
    healthy, fault = gpu_run.Step("a", "", ()), gpu_run.Step("b", "", (), healthy=False)
    told = [gpu_run.verdict(step, result) for step in (healthy, fault) for result in (passing, failing)]
    assert told == ["passed", "FALSE ALARM? gemm: gemm-wrong", "NOT NOTICED", "named gemm: gemm-wrong"]


def test_names_do_not_leave_the_machine(gpu_run: ModuleType) -> None:
    text = "box9 10.20.30.40 GPU-8f1c2a3b-0000-1111-2222-333344445555 /home/ada/x 00:11:22:33:44:55 127.0.0.1 driver 580.95.05"
    hidden = gpu_run.pseudonymised(text, ["box9", "ada"])
    assert hidden == "machine address-1 GPU-1 /home/user/x mac-1 127.0.0.1 driver 580.95.05"
