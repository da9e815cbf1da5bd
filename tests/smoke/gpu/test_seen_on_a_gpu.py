"""What an H100 did on 26 November 2026 (docs/verified.md), played where there is no GPU: refusals in NCCL's words, kernels that round on their way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke.faults.bench import torch_python
from torchtune_sys.smoke.script import source

pytestmark = pytest.mark.long

_ASKED = """
import json, os
import torch
import smoke_under_test as smoke

here = smoke.RankContext(level="default", scratch=".", device="cpu", backend="", expected={})
found = {}

def refused(kind, words):
    def exchange():
        raise kind(words)
    try:
        return smoke.backend_has(here.backend, exchange)
    except kind:
        return "raised"
found["exchanges"] = [
    refused(ValueError, "Cannot use ReduceOp.BAND with NCCL"),
    refused(RuntimeError, "Cannot use ReduceOp.BAND with NCCL"),
    refused(ValueError, "invalid group"),
]

names = ("hardswish", "hardsigmoid", "nn.Hardswish")
rows = [row for rows in (smoke.operators_of_numbers(), smoke.functions_of_models()) for row in rows if row.name in names]
found["rows"] = sorted({row.name for row in rows if row.by_sixths})
row = next(row for row in rows if row.name == "hardswish")
def bound(kind, dtype):
    here.kind = kind
    return smoke._bound_of(row, here, dtype)
sixth = torch.tensor(1 / 6, dtype=torch.float32).double()
given = row.inputs[0]
exact, rounded = given * (given + 3).clamp(0, 6) / 6, given * (given + 3).clamp(0, 6) * sixth
off = float((exact - rounded).abs().max()) / max(1.0, float(exact.abs().max()))
found["bounds"] = [off, bound("cuda", torch.float64), bound("cpu", torch.float64), bound("cuda", torch.float16) == bound("cpu", torch.float16)]

def tried(level):
    called = []
    here.level = level
    one = smoke.Operator("lgamma", "", (given,), lambda values: values, way=lambda values: called.append(1) or values, slope=False, low=False)
    smoke.table_is_right(here, iter([one]), "cause")
    return bool(called)
here.kind, here.device = "cuda", torch.device("cpu")
found["compiled when called"] = [tried("quick"), tried("default")]

os.environ["CC"] = "/nonexistent/cc"
def missing(text):
    try:
        smoke._compiler_is_there(RuntimeError(text))
    except smoke.StageFailed as failed:
        return failed.cause
    return ""
found["compiler"] = [missing("FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/cc'"), missing("another error")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("seen")
    (folder / "smoke_under_test.py").write_text(source())
    (folder / "asked.py").write_text(_ASKED)
    done = subprocess.run([torch_python(), "asked.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_what_nccl_refuses_is_passed_over_and_other_errors_are_not(found: dict[str, Any]) -> None:
    assert found["exchanges"] == [False, False, "raised"]


def test_a_sixth_in_single_precision_is_no_fault_of_the_gpu(found: dict[str, Any]) -> None:
    assert found["rows"] == ["hardsigmoid", "hardswish", "nn.Hardswish"]
    off, on_gpu, on_cpu, alike = found["bounds"]
    assert on_cpu < off < on_gpu < 2 * 2**-24 and alike


def test_quick_waits_for_no_runtime_compilation(found: dict[str, Any]) -> None:
    assert found["compiled when called"] == [False, True]


def test_a_compiler_that_cc_names_and_that_is_not_there(found: dict[str, Any]) -> None:
    assert found["compiler"] == ["build-tool-missing", ""]
