"""Which kind of build torch is, what importing it told, and which releases are old; each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, result, verdict
from torch_packages_hosts import host, item, torch
from torch_tools_hosts import UNTOLD, with_torch

from conftest import RULES, judge, load, recording
from torchtune_sys import engine
from torchtune_sys.model.actions import Install, text
from torchtune_sys.model.facts.python import Distribution, LiveTorch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.torch.loaded import soname


def asked(**facts: Any) -> LiveTorch:
    """What torch itself says; nothing but ``facts``."""
    told: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(LiveTorch) if field.required), UNTOLD)
    return LiveTorch(**{**told, "version": "2.11.0+cu130", **facts})


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "xpu", "expected"),
    [
        ("2.11.0+cu130", "13.0", NOTHING, NOTHING, PASS),
        ("2.11.0+rocm7.1", NOTHING, "7.1", NOTHING, PASS),  # another rule's affair
        ("2.11.0+xpu", NOTHING, NOTHING, "2025.3", PASS),
        ("2.11.0+cpu", NOTHING, NOTHING, NOTHING, FAIL),
        ("2.5.1", NOTHING, NOTHING, NOTHING, FAIL),  # aarch64 wheels on PyPI
        ("2.11.0", UNTOLD, UNTOLD, UNTOLD, PASS),
        ("2.11.0+cpu", UNTOLD, UNTOLD, UNTOLD, FAIL),
        ("2.11.0+own", UNTOLD, UNTOLD, UNTOLD, UNKNOWN),
    ],
)
def test_a_build_without_gpu_code(healthy: Snapshot, version: str, cuda: Any, hip: Any, xpu: Any, expected: Verdict) -> None:
    seen = with_torch(healthy, version=version, cuda=cuda, hip=hip, xpu=xpu)
    assert lines(seen, "cpu-only-build") == ([] if expected is UNKNOWN else [(f"torch {version}", expected)])
    assert verdict(seen, "cpu-only-build") is expected


@pytest.mark.parametrize(
    "plugin",
    [
        "torch-npu",
        "torch-xla",
        "habana-torch-plugin",
        "intel-extension-for-pytorch",
        "torch-mlu",
        "torch-musa",
        "torch-neuronx",
    ],
)
def test_under_another_accelerators_plug_in_torch_is_a_cpu_build(healthy: Snapshot, plugin: str) -> None:
    items = tuple(Distribution(name=name, version="2.11.0", location="/venv") for name in ("numpy", plugin))
    seen = with_torch(altered(healthy, python__distributions=items), version="2.11.0+cpu", cuda=NOTHING)
    assert verdict(seen, "cpu-only-build") is NA


def test_condas_own_torch_is_replaced_by_conda(healthy: Snapshot) -> None:
    """pip would write over conda's files behind its back; a torch that pip brought into conda's Python is pip's to replace."""
    own = host(healthy, torch("2.7.1"), item("torch", "2.7.1"), item("pytorch", "2.7.1", build="cpu_mkl_py312_100"))
    pips = host(healthy, torch("2.7.1+cpu"), item("torch", "2.7.1+cpu"), item("numpy", "2.1.3", build="py312_0"))
    fixes = [result(seen, "cpu-only-build").evidence[0].fix[0] for seen in (own, pips)]
    assert [("pytorch-gpu" in text(fix), "--index-url" in text(fix)) for fix in fixes] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("gpu", "amd", "nvidia", "expected"),
    [
        ("amd", NOTHING, NOTHING, FAIL),
        ("nvidia", ("0000:03:00.0",), (), FAIL),
        ("nvidia", ("0000:03:00.0",), NOTHING, FAIL),
        ("nvidia", ("0000:03:00.0",), ("0000:01:00.0",), NA),
        ("nvidia", ("0000:03:00.0",), DENIED, UNKNOWN),
        ("nvidia", NOTHING, (), NA),
        ("nvidia", (), (), NA),
        ("nvidia", DENIED, (), UNKNOWN),
    ],
)
def test_a_host_with_amd_gpus_alone(healthy: Snapshot, gpu: str, amd: Any, nvidia: Any, expected: Verdict) -> None:
    seen = altered(healthy, gpu__vendor=gpu, driver__amd_devices=amd, driver__nvidia_devices=nvidia)
    assert verdict(seen, "cuda-build-on-amd-host") is expected
    if gpu != "amd":
        assert verdict(altered(seen, gpu=UNTOLD), "cuda-build-on-amd-host") is expected


def test_a_report_that_names_an_amd_gpu_and_no_bus(healthy: Snapshot) -> None:
    seen = altered(healthy, gpu__vendor="amd", driver=UNTOLD)
    assert verdict(seen, "cuda-build-on-amd-host") is FAIL
    assert verdict(altered(seen, gpu__vendor="nvidia"), "cuda-build-on-amd-host") is UNKNOWN


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "expected"),
    [
        ("2.11.0+cu130", "13.0", NOTHING, FAIL),
        ("2.11.0", UNTOLD, UNTOLD, FAIL),
        ("2.11.0a0+own", UNTOLD, UNTOLD, UNKNOWN),
        ("2.11.0a0+own", NOTHING, "7.1", PASS),
        ("2.11.0+rocm7.1", UNTOLD, UNTOLD, PASS),
        ("2.11.0+cpu", NOTHING, NOTHING, NA),
        ("2.5.1", NOTHING, NOTHING, NA),
    ],
)
def test_what_an_amd_host_needs(healthy: Snapshot, version: str, cuda: Any, hip: Any, expected: Verdict) -> None:
    seen = with_torch(altered(healthy, gpu__vendor="amd"), version=version, cuda=cuda, hip=hip)
    assert verdict(seen, "cuda-build-on-amd-host") is expected


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("3.12.3", "pip install torch==2.13.0+rocm7.2 --index-url https://download.pytorch.org/whl/rocm7.2"),
        ("3.9.2", "+rocm6."),  # a release that has a wheel for it
        ("3.17.0", ""),
        (UNTOLD, ""),
    ],
)
def test_the_rocm_build_that_an_amd_host_needs(python: Any, expected: str) -> None:
    seen = load("cuda-build-on-amd-host.fail")
    [result] = engine.judge(altered(seen, python__version=python), [RULES["cuda-build-on-amd-host"]])
    fix = [action.text for item in result.evidence for action in item.fix if isinstance(action, Install)]
    assert expected in fix[0] if expected else not fix


@pytest.mark.parametrize(
    ("version", "debug", "expected"),
    [
        ("1.7.0", True, NA),  # says so of every build
        ("1.7.0+cu110", True, NA),
        ("1.7.1", True, FAIL),
        ("1.7.1", False, PASS),
        ("2.11.0a0+own", True, FAIL),
        ("2.11.0", DENIED, UNKNOWN),
    ],
)
def test_a_debug_build(healthy: Snapshot, version: str, debug: Any, expected: Verdict) -> None:
    assert verdict(with_torch(healthy, version=version, debug=debug), "torch-debug-build") is expected


FAILED = Missing(Why.FAILED, "import torch", "OSError: libtorch_cuda.so: cannot open shared object file")


@pytest.mark.parametrize(
    ("torch", "live", "expected"),
    [
        (Missing(Why.FAILED, "/venv/torch", "pip lists torch, and the package is gone"), NOTHING, [("torch", FAIL)]),
        (Missing(Why.DENIED, "/venv/torch"), NOTHING, NA),
        (Missing(Why.FAILED, "/venv/torch/version.py"), NOTHING, NA),
        (None, NOTHING, NA),
        (None, asked(), [("import torch", PASS)]),
        (None, FAILED, [("import torch", FAIL)]),
        (None, Missing(Why.TIMEOUT, "the child"), UNKNOWN),
        (NOTHING, FAILED, NA),
        (DENIED, FAILED, UNKNOWN),
    ],
)
def test_importing_torch(healthy: Snapshot, torch: Any, live: Any, expected: Any) -> None:
    seen = altered(healthy, python__live=live)
    seen = seen if torch is None else altered(seen, python__torch=torch)
    if isinstance(expected, Verdict):
        assert verdict(seen, "torch-import-fails") is expected
    else:
        assert lines(seen, "torch-import-fails") == expected


NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
WARNED = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system. Please check"


@pytest.mark.parametrize(
    ("gpu", "said", "expected"),
    [
        ({}, (NO_DRIVER,), FAIL),
        ({}, ("another line", NO_DRIVER), FAIL),
        ({}, (WARNED,), NA),  # comes wherever there is no GPU
        ({}, (WARNED, NO_DRIVER), FAIL),
        ({}, ("another line",), NA),
        ({"vendor": "amd"}, (NO_DRIVER,), NA),
        ({"error": "driver-not-loaded"}, (NO_DRIVER,), NA),  # has rules of its own
        (None, (NO_DRIVER,), FAIL),
    ],
)
def test_torch_found_no_driver(healthy: Snapshot, gpu: Any, said: tuple[str, ...], expected: Verdict) -> None:
    seen = altered(healthy, gpu__devices=(), gpu__vendor="", driver__nvidia_devices=(), python__complaints=said)
    seen = altered(seen, gpu=UNTOLD) if gpu is None else altered(seen, **{f"gpu__{name}": fact for name, fact in gpu.items()})
    assert verdict(seen, "cuda-not-available-to-torch") is expected


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (asked(cuda_available=True), PASS),
        (asked(cuda_available=False, error="CUDA unknown error"), FAIL),
        (asked(cuda_available=False), FAIL),
        (asked(cuda_available=UNTOLD), UNKNOWN),
        (FAILED, UNKNOWN),
        (NOTHING, NA),
    ],
)
def test_what_torch_says_of_the_gpus(healthy: Snapshot, live: Any, expected: Verdict) -> None:
    seen = altered(healthy, python__live=live)
    assert verdict(seen, "cuda-not-available-to-torch") is expected
    assert verdict(with_torch(seen, version="2.11.0+cpu"), "cuda-not-available-to-torch") is NA
    assert verdict(altered(seen, python=UNTOLD), "cuda-not-available-to-torch") is UNKNOWN


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libcudart.so.12.4.127", "libcudart.so.12"),
        ("libcudart.so.12", "libcudart.so.12"),
        ("libcudart.so", "libcudart.so"),
        ("libcudart-d0da41ae.so.11.0", "libcudart.so.11"),  # auditwheel's mark
        ("libnvrtc-builtins-6c5639ce.so.12.4", "libnvrtc-builtins.so.12"),
        ("libnvrtc-builtins.so.12.4", "libnvrtc-builtins.so.12"),
        ("libfoo-d0da41a.so.1", "libfoo-d0da41a.so.1"),  # seven digits are no mark
        ("libfoo-builtins.so.1", "libfoo-builtins.so.1"),  # eight letters are none either
        ("libfoo-XXXXXXXX.so.1", "libfoo-XXXXXXXX.so.1"),
        ("d0da41ae.so.1", "d0da41ae.so.1"),
    ],
)
def test_what_the_loader_calls_a_file(file: str, name: str) -> None:
    assert soname(f"/opt/x-y.so.d/{file}") == name


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (("/a/libcudnn.so.9", "/a/libnccl.so.2"), [("libraries", PASS)]),
        (("/a/libcudnn.so.9", "/b/libcudnn.so.9"), [("libcudnn.so.9", FAIL)]),
        (
            ("/a/libcudnn.so.9", "/b/libnccl.so.2", "/b/libcudnn.so.9", "/c/libnccl.so.2"),
            [("libcudnn.so.9", FAIL), ("libnccl.so.2", FAIL)],
        ),
        (("/a/libmkl_rt.so.2", "/b/libmkl_rt.so.2"), [("libraries", PASS)]),  # no CUDA library
        (("/a/libomp.so.5", "/b/libomp.so.5", "/a/libiomp5.so", "/b/libiomp5.so"), [("libraries", PASS)]),
    ],
)
def test_libraries_that_are_mapped_twice(healthy: Snapshot, libraries: tuple[str, ...], expected: Any) -> None:
    assert lines(altered(healthy, python__live=asked(libraries=libraries)), "cuda-library-loaded-twice") == expected


@pytest.mark.parametrize(
    ("level", "expected"),
    [("DEFAULT", FAIL), ("NO AVX", FAIL), ("default", FAIL), ("AVX2", PASS), ("AVX512", PASS), (DENIED, UNKNOWN)],
)
def test_torchs_code_for_the_cpu(healthy: Snapshot, level: Any, expected: Verdict) -> None:
    seen = altered(healthy, python__live=asked(cpu_capability=level))
    assert verdict(seen, "torch-cpu-code-slow") is expected
    assert verdict(altered(seen, cpu__flags=frozenset({"avx"})), "torch-cpu-code-slow") is NA


@pytest.mark.parametrize(
    ("mkl", "expected"), [("2020.4", FAIL), ("2021", PASS), ("2021.1", PASS), (NOTHING, NA), (DENIED, UNKNOWN)]
)
def test_an_old_mkl(healthy: Snapshot, mkl: Any, expected: Verdict) -> None:
    assert verdict(altered(healthy, python__live=asked(mkl=mkl)), "mkl-old") is expected


@pytest.mark.parametrize(
    ("version", "cudnn", "expected"),
    [
        ("2.0.0", "8.5.0.96", [("torch", PASS)]),
        ("2", UNTOLD, [("torch", PASS)]),  # a list of packages that names no more
        ("1.13.1", "8.5.0.96", [("torch", FAIL)]),
        ("1.9.0", "8.1.1", [("torch", FAIL), ("cuDNN", FAIL)]),
        ("2.0.0", "8.2.0", [("torch", PASS)]),
        ("2.0.0", "8.2", [("torch", PASS)]),
        ("2.0.0", "8.1.1.33", [("torch", PASS), ("cuDNN", FAIL)]),
        ("2.0.0", "7.6.5", [("torch", PASS), ("cuDNN", FAIL)]),
    ],
)
def test_old_releases(healthy: Snapshot, version: str, cudnn: Any, expected: Any) -> None:
    assert lines(with_torch(healthy, version=version, cudnn=cudnn), "torch-release-old") == expected


@pytest.mark.parametrize(
    ("version", "today", "expected"),
    [
        ("3.9.21", "2025-10-30", PASS),
        ("3.9.21", "2025-10-31", PASS),  # the last day
        ("3.9.21", "2025-11-01", FAIL),
        ("3.9", "2025-11-01", FAIL),
        ("3.99.0", "2025-11-01", PASS),
        ("3.10.20", "2026-11-01", FAIL),
        ("3.9.21", DENIED, UNKNOWN),
    ],
)
def test_the_end_of_a_python(healthy: Snapshot, version: str, today: Any, expected: Verdict) -> None:
    seen = altered(healthy, python__version=version, system__today=today)
    assert verdict(seen, "python-end-of-life") is expected
    minor = ".".join(version.split(".")[:2])
    assert expected is UNKNOWN or lines(seen, "python-end-of-life") == [(f"Python {minor}", expected)]


def test_an_import_that_files_show_to_fail() -> None:
    """Without --live: a library that is cut, and a module that torch imports first."""
    rule_id, home = "torch-import-fails", "/data/train/.venv"
    folder = f"{home}/lib/python3.12/site-packages/torch/lib"
    cut = judge(load("healthy", answers={f"cut-libraries:{folder}": [["libtorch_python.so", 4096, 29_000_000]]}))[rule_id]
    assert [item.seen for item in cut.evidence] == ["lib/libtorch_python.so has 4,096 bytes of at least 29,000,000"]
    zeros = judge(load("healthy", answers={f"cut-libraries:{folder}": [["libc10.so", 9000, 1 << 62]]}))[rule_id]
    assert [item.seen for item in zeros.evidence] == ["lib/libc10.so has 9,000 bytes, all zero"]
    whole = judge(load("healthy", answers={f"cut-libraries:{folder}": []}))[rule_id]
    assert whole.verdict is Verdict.NA
    answer = {**recording("healthy")["answers"][f"interpreter:{home}/bin/python3"], "not_found": ["typing_extensions"]}
    lacking = judge(load("healthy", answers={f"interpreter:{home}/bin/python3": answer}))[rule_id]
    assert [item.fix[0].text for item in lacking.evidence] == [
        f"{home}/bin/python3 -m pip install typing-extensions (packages were installed with --no-deps, or removed)"
    ]
