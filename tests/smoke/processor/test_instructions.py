"""What the processor's instructions, and settings of the libraries that choose among them, may change: nothing of it is a fault of the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smoke.faults.bench import torch_python
from smoke.faults.forked import said

DISPATCHED = (
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "ONEDNN_MAX_CPU_ISA=AVX2_VNNI",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX",
    "ATEN_CPU_CAPABILITY=avx512",
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "MKL_CBWR=COMPATIBLE",
)
"""What oneDNN's, torch's and MKL's dispatchers are told to take; a processor without it takes what it has."""


@pytest.mark.parametrize(
    "setting", ["ONEDNN_MAX_CPU_ISA=AVX512_CORE", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in DISPATCHED)]
)
def test_kernels_for_each_set_of_instructions_that_this_processor_has_are_right(setting: str, tmp_path: Path) -> None:
    """oneDNN's gelu for AVX-512 is 1.2e-6 off, its products of int8 are cut off at 16 bits without VNNI, and neither is a fault of a host."""
    name, _, value = setting.partition("=")
    command = [
        sys.executable,
        "-m",
        "torchtune_sys",
        "smoke",
        "--stages",
        "layers",
        "--python",
        torch_python(),
        "--no-proof",
        "--format",
        "json",
    ]
    done = subprocess.run(command, env={**os.environ, name: value}, stdout=subprocess.PIPE, text=True, timeout=300)
    (layers,) = (stage for stage in json.loads(done.stdout)["stages"] if stage["stage"] == "layers")
    assert (layers["verdict"], layers["cause"]) == ("pass", ""), layers["seen"]


def test_fewer_bits_by_a_variable_of_onednn_are_told() -> None:
    """On processors with AMX its convolutions of float32 are off by 0.02 then, which no hardware is to blame for."""
    trial = "print(_what_lowers_onednn())\nos.environ['ONEDNN_DEFAULT_FPMATH_MODE'] = 'BF16'\nprint(_what_lowers_onednn())\n"
    assert said(trial).splitlines() == ["", "oneDNN's, by ONEDNN_DEFAULT_FPMATH_MODE=BF16"]


LOWERED = """
here = RankContext(level="quick", scratch=".", device="cpu", backend="gloo", expected={})
def cause(named, seen):
    def fails(here):
        raise StageFailed(named, seen)
    return outcome(here, Stage("layers", fails))["cause"]
for setting in ("", "BF16"):
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = setting
    print(cause("convolution-wrong", "conv2d of float32 is off"), cause("convolution-wrong", "conv2d of float64 is off"), cause("sampler-shards-overlap", "two"))
"""


def test_what_is_computed_wrongly_by_a_setting_is_no_fault_of_the_device() -> None:
    """A pre-flight drains a host whose convolutions are wrong."""
    assert said(LOWERED).splitlines() == [
        "convolution-wrong convolution-wrong sampler-shards-overlap",
        "torch-setting-changed convolution-wrong sampler-shards-overlap",
    ]
