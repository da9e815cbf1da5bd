"""A program's own error in a report: it wins over what was inferred, and is quoted where nothing explains it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driven import run

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.model.rule import Verdict

COLLECT_ENV = """Collecting environment information...
PyTorch version: 2.6.0+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.4 LTS (x86_64)
Libc version: glibc-2.35

Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: True
CUDA runtime version: 12.4.131
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
Nvidia driver version: 550.90.07

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.6.0
[pip3] torchvision==0.21.0
"""
UNKNOWN = """
Traceback (most recent call last):
  File "/srv/train.py", line 10, in <module>
    step()
  File "/srv/train.py", line 7, in step
    raise made.FluxCapacitorError("the flux is gone")
made.FluxCapacitorError: the flux is gone
"""
NMS = """
Traceback (most recent call last):
  File "/srv/train.py", line 1, in <module>
    import torchvision
RuntimeError: operator torchvision::nms does not exist
"""


def test_a_failure_line_wins_over_an_inferred_pass() -> None:
    """The versions fit each other, and the operator was missing all the same."""
    without, with_ = evidence.read(COLLECT_ENV, "a"), evidence.read(COLLECT_ENV + NMS, "a")
    assert without is not None and with_ is not None
    assert judge(without)["torch-torchvision-mismatch"].verdict is Verdict.PASS
    found = judge(with_)["torch-torchvision-mismatch"]
    assert found.verdict is Verdict.FAIL
    assert "operator torchvision::nms does not exist" in found.evidence[0].seen
    assert [item.verdict for item in found.evidence[1:]] == [Verdict.PASS]  # what the facts say is kept beside it


def test_what_only_lists_things_does_not_win_over_facts() -> None:
    seen = evidence.read(COLLECT_ENV + "pytorch 2.6.0 py3.10_cpu_0 pytorch\ncudatoolkit\n", "a")
    assert seen is not None and not seen.said["cpu-only-build"].is_failure
    assert judge(seen)["cpu-only-build"].verdict is not Verdict.FAIL


@pytest.mark.parametrize("text", [COLLECT_ENV + UNKNOWN, UNKNOWN])
def test_no_problem_found_never_stands_over_a_traceback(text: str, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text(text)
    shown = run("check", "--from", str(report))
    words = " ".join(shown.stdout.split())
    assert "no problem found" not in words and "trains on" not in words
    assert "a program failed, and no check explains it: made.FluxCapacitorError: the flux is gone" in words
    assert "said by a program: made.Flux" in words and "to find out:" in words and shown.returncode == 3
    found = json.loads(run("check", "--from", str(report), "--format", "json").stdout)
    assert found["unexplained"] == ["made.FluxCapacitorError: the flux is gone"]
    assert "no problem found" not in run("check", "--from", str(report), "--format", "markdown").stdout


def test_an_explained_failure_is_not_quoted_twice(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text(COLLECT_ENV + NMS)
    shown = run("check", "--from", str(report))
    assert "torch-torchvision-mismatch" in shown.stdout and "no check explains" not in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault (core dumped)",
        "terminate called after throwing an instance of 'c10::Error'",
        "Fatal Python error: Aborted",
        "train: CUDA error: an illegal memory access was encountered",
    ],
)
def test_deaths_without_a_traceback_are_failures_too(line: str) -> None:
    seen = evidence.read(COLLECT_ENV + line + "\n", "a")
    assert seen is not None and len(seen.failures) == 1


@pytest.mark.parametrize(
    "text", ["", "\n0 errors, 0 warnings\n", "\nRuntimeError is a class of Python\n", "\nError handling: on\n"]
)
def test_a_report_without_a_failure_has_none(text: str) -> None:
    seen = evidence.read(COLLECT_ENV + text, "a")
    assert seen is not None and seen.failures == ()
