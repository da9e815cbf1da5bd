"""What counts as the same library twice, and which OpenMP runtimes do not go together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import HOSTS, judge, load
from torchtune_sys.model.rule import Verdict

LIVE = json.loads((HOSTS / "cuda-library-loaded-twice.pass.json").read_text())["answers"]
(KEY,) = LIVE


def verdict(rule: str, libraries: tuple[str, ...], **env: str) -> Verdict:
    answers: dict[str, Any] = {KEY: {**LIVE[KEY], "libraries": libraries}}
    return judge(load("healthy", intent={"live": True}, answers=answers, env=env))[rule].verdict


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (("/a/libcublas.so.12", "/a/libcublasLt.so.12"), Verdict.PASS),
        (("/a/libcudart.so.12", "/b/libcudart.so.11.0"), Verdict.PASS),  # two ABIs are two libraries
        (("/a/libcudart-d0da41ae.so.12.4", "/b/libcudart.so.12"), Verdict.FAIL),  # auditwheel's mark is no other name
        (("/a/libnvrtc.so.12", "/a/libnvrtc-builtins.so.12"), Verdict.PASS),
        (("/a/libnvJitLink.so.12", "/usr/lib/libnvJitLink.so.12.1.105"), Verdict.FAIL),
        (("/a/libgomp.so.1", "/b/libgomp.so.1"), Verdict.PASS),  # OpenMP has its own rule
        (("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/libcuda.so.1.1"), Verdict.PASS),  # any WSL2
        (("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54"), Verdict.PASS),  # two numbers
        (("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"), Verdict.FAIL),
        ((), Verdict.PASS),
    ],
)
def test_the_same_library_twice(libraries: tuple[str, ...], expected: Verdict) -> None:
    assert verdict("cuda-library-loaded-twice", libraries) is expected


@pytest.mark.parametrize(
    ("names", "layer", "expected"),
    [
        (("libgomp-24e2ab19.so.1",), "", Verdict.PASS),
        (("libgomp.so.1", "libiomp5.so"), "", Verdict.PASS),
        (("libomp.so.5", "libiomp5.so"), "", Verdict.FAIL),
        (("libgomp.so.1", "libmkl_rt.so.2"), "", Verdict.PASS),
        (("libgomp.so.1", "libmkl_rt.so.2"), "intel", Verdict.FAIL),
        (("libiomp5.so", "libmkl_rt.so.2"), "INTEL", Verdict.PASS),
        (("libgomp.so.1",), "INTEL", Verdict.PASS),
        ((), "", Verdict.PASS),
    ],
)
def test_openmp_runtimes(names: tuple[str, ...], layer: str, expected: Verdict) -> None:
    libraries = tuple(f"/lib/{name}" for name in names)
    assert verdict("openmp-runtime-conflict", libraries, MKL_THREADING_LAYER=layer) is expected


@pytest.mark.parametrize(("found", "expected"), [("2020.4", Verdict.FAIL), ("2021.1", Verdict.PASS), ("2024.2", Verdict.PASS)])
def test_mkl_counts_years(found: str, expected: Verdict) -> None:
    answers: dict[str, Any] = {KEY: {**LIVE[KEY], "mkl": found}}
    assert judge(load("healthy", intent={"live": True}, answers=answers))["mkl-old"].verdict is expected
