"""On a Jetson a CPU-only torch comes from the wrong index, and the right wheels are those of its JetPack."""

from __future__ import annotations

import platforms_troubled
from conftest import judge, load
from rules.test_platforms import judged
from torchtune_sys.model.actions import text
from torchtune_sys.model.rule import Verdict


def test_a_jetson_is_told_of_its_own_wheels() -> None:
    found = judged(platforms_troubled.jetson_pypi_wheel())["cpu-only-build"]
    assert found.verdict is Verdict.FAIL
    words = " ".join(text(action) for action in found.evidence[0].fix)
    assert "JetPack" in words and "-igpu" in words


def test_another_host_is_not() -> None:
    found = judge(load("cpu-only-build.fail"))["cpu-only-build"]
    assert found.verdict is Verdict.FAIL
    (build,) = found.evidence[0].fix
    assert text(build).startswith(
        "/data/train/.venv/bin/python3 -m pip install torch==2.11.0+cu130 "
    )  # the installed release, with a CUDA that this driver runs
