"""The libraries that torch asks for, what hides what, and what was compiled against torch; each mark from both sides (torch_partners)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import FAIL, NA, NOTHING, PASS, altered, lines, result, verdict
from torch_packages_hosts import BUILD, UNTOLD, host, item, torch

from torchtune_sys.model.actions import text
from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot


@pytest.mark.parametrize(
    ("numpy", "build", "expected"),
    [
        ((item("numpy", "2.0.0"),), "2.2.2", FAIL),
        ((item("numpy", "2.0.0"),), "2.3.0", PASS),
        ((item("numpy", "1.26.4"),), "2.2.2", PASS),
        ((item("numpy", "2"),), "2.2", FAIL),
        ((item("numpy", "2"),), "2.3", PASS),
        ((item("numpy", "2.1.3", build="py312_0"),), "2.2.2", FAIL),  # conda's alone
        ((item("numpy", "2.1.3", "conda"),), "2.2.2", FAIL),
        ((item("numpy", "2.1.3", build="py312_0"), item("numpy", "1.26.4")), "2.2.2", PASS),  # pip's goes before conda's
        ((), "2.2.2", NA),
    ],
)
def test_numpy(healthy: Snapshot, numpy: tuple[Distribution, ...], build: str, expected: Verdict) -> None:
    seen = host(healthy, torch(build, "12.1"), item("pillow", "12.0"), *numpy)
    assert verdict(seen, "numpy2-with-old-torch") is expected


def test_numpy_is_not_to_blame_for_a_torch_in_front(healthy: Snapshot) -> None:
    """PYTHONPATH holds an old torch: the environment's own goes with its NumPy."""
    items = (
        item("torch", "2.2.2", "/old"),
        item("torch", "2.12.0", "/env/site-packages"),
        item("numpy", "2.1.3", "/env/site-packages"),
    )
    seen = host(healthy, torch("2.2.2", "12.1"), *items)
    evidence = result(seen, "numpy2-with-old-torch").evidence[0]
    assert "in front of 2.12.0" in evidence.seen and "/env/site-packages" in text(evidence.fix[0])
    assert result(host(healthy, torch("2.2.2", "12.1"), *items[::2]), "numpy2-with-old-torch").evidence[0].fix == ()


@pytest.mark.parametrize(
    ("vision", "build", "cuda", "expected"),
    [
        (item("torchvision", "0.20.1"), "2.5.1", "12.4", [PASS]),
        (item("torchvision", "0.20.0"), "2.5.1", "12.4", [FAIL]),
        (item("torchvision", "0.20.0+cu118"), "2.5.1+cu124", "12.4", [FAIL, FAIL]),
        (item("torchvision", "0.20.1+cu118"), "2.5.1+cu124", "12.4", [FAIL]),
        (item("torchvision", "0.20.1", requires=("numpy", "torch==2.5.1")), "2.5.1", "12.4", [PASS]),
        (item("torchvision", "0.20.1", requires=("numpy==1.26", "torch==2.5.0")), "2.5.1", "12.4", [FAIL]),
        (
            item("torchvision", "0.99.0", requires=("numpy==1.26", "torch==9.9.1")),
            "9.9.1",
            "13.0",
            [PASS],
        ),  # its own word is newer
        (item("torchvision", "0.99.0", requires=("torch==9.9.0",)), "9.9.1", "13.0", [FAIL]),
        (item("torchvision", "0.99.0", requires=("numpy==1.26",)), "9.9.1", "13.0", [PASS]),  # no table knows it
        (item("torchvision", "0.16.2+cu121"), "2.1.2", "12.3", [PASS]),
        (item("torchvision", "0.16.2+cu121"), "2.1.2", "11.8", [FAIL]),
        (item("torchvision", "0.15.2+cu117"), "2.0.1", "11.8", [FAIL]),
        (item("torchvision", "0.15.2+cu117"), "2.0.1", "11.7.1", [PASS]),  # a build that names the patch level too
        (item("torchvision", "0.20.1+cpu"), "2.5.1+cpu", NOTHING, [PASS]),
        (item("torchvision", "0.20.1+cu124"), "2.5.1+cpu", NOTHING, [FAIL]),
        (item("torchvision", "0.20.1+cpu"), "2.5.1", "12.4", [FAIL]),
        (item("torchvision", "0.20.1"), "2.5.1+cpu", NOTHING, [FAIL]),  # the package index's, for CUDA: no operator nms
        (item("torchvision", "0.20.1"), "2.5.1+rocm6.2", NOTHING, [FAIL]),
        (item("torchvision", "0.20.1+rocm6.2"), "2.5.1+rocm6.2", NOTHING, [PASS]),
        (item("torchvision", "0.20.1+rocm6.2"), "2.5.1+cu124", "12.4", [FAIL]),
        (item("torchvision", "0.20.1"), "2.5.1+cu118", "11.8", [FAIL]),
        (item("torchvision", "0.20.1"), "2.5.1+cu121", "12.1", [PASS]),
        (item("torchvision", "0.26.0"), "2.11.0+cu126", "12.6", [FAIL]),
        (item("torchvision", "0.26.0"), "2.11.0+cu130", "13.0", [PASS]),
        (item("torchvision", "0.20.1+cu124"), "2.5.1", NOTHING, [PASS]),  # a build from source
        (item("torchvision", "0.20.1+fdea156"), "2.5.1", "12.4", []),
        (item("torchvision", "0.20.1"), "2.5.1+gitabc", "12.4", []),
        (item("pillow", "12.0"), "2.5.1", "12.4", []),
    ],
)
def test_torchvision(healthy: Snapshot, vision: Distribution, build: str, cuda: Any, expected: list[Verdict]) -> None:
    seen = host(healthy, torch(build, cuda), item("torch", build), vision)
    assert [mark for _, mark in lines(seen, "torch-torchvision-mismatch")] == expected
    assert expected or verdict(seen, "torch-torchvision-mismatch") is NA


@pytest.mark.parametrize(("torchvision", "expected"), [("0.15+cu117", FAIL), ("0.16+cu117", PASS)])
def test_torchvision_compares_the_major_version_from_0_16_on(healthy: Snapshot, torchvision: str, expected: Verdict) -> None:
    vision = item("torchvision", torchvision, requires=("torch==2.1.0",))
    assert verdict(host(healthy, torch("2.1.0+cu118", "11.8"), vision), "torch-torchvision-mismatch") is expected


@pytest.mark.parametrize("facts", [{"python__machine": "aarch64"}, {}])
def test_wheels_of_the_index_are_for_cuda_on_x86_alone_and_condas_own(healthy: Snapshot, facts: dict[str, Any]) -> None:
    """On Arm they were for CPUs up to 2.10; conda builds both."""
    items = (item("torchvision", "0.20.1"), *(() if facts else (item("torchvision", "0.20.1", build="py312_0"),)))
    seen = altered(host(healthy, torch("2.5.1+cpu"), *items), **facts)
    assert verdict(seen, "torch-torchvision-mismatch") is PASS


@pytest.mark.parametrize(
    ("audio", "build", "cuda", "expected"),
    [
        ("2.11.0+cu128", "2.13.0+cu130", "13.0", FAIL),  # Colab's, beside a torch that vLLM brought
        ("2.11.0+cu130", "2.13.0+cu130", "13.0", PASS),
        ("2.11.0", "2.13.0+cu130", "13.0", PASS),
        ("2.11.0", "2.14.0+cu132", "13.2", FAIL),
        ("2.8.0", "2.8.0+cu126", "12.6", FAIL),
        ("2.8.0", "2.8.0+cu128", "12.8", PASS),
        ("2.11.0", "2.13.0+cpu", NOTHING, FAIL),  # tried: Could not load this library
        ("2.11.0+cpu", "2.13.0+cpu", NOTHING, PASS),
        ("2.11.0+cpu", "2.13.0+cu130", "13.0", PASS),
        ("0.13.1+cu116", "1.13.1+cu117", "11.7", PASS),  # compares since 2.0
    ],
)
def test_torchaudio_takes_its_own_cuda_alone(healthy: Snapshot, audio: str, build: str, cuda: Any, expected: Verdict) -> None:
    assert verdict(host(healthy, torch(build, cuda), item("torchaudio", audio)), "torch-torchaudio-mismatch") is expected


@pytest.mark.parametrize(
    ("audio", "build", "expected"),
    [
        ("2.10.0", "2.10.0", PASS),
        ("2.9.1", "2.10.0", FAIL),
        ("2.11.0", "2.10.0", FAIL),
        ("2.10.0", "2.11.0", FAIL),
        ("2.11.0", "2.11.0", PASS),
        ("2.11.1", "2.11.0", PASS),
        ("2.11", "2.12.0", PASS),
        ("2.11.0", "2.15.0", PASS),
        ("2.10.0", "2.15.0", FAIL),
        ("2.9.1+cu128", "2.10.0+cu128", FAIL),
        ("2.9.0a0+abc", "2.10.0", NA),
        ("2.9.1", "2.10.0+gitabc", NA),
        ("2.9.1", "9.9.9", NA),
        (None, "2.10.0", NA),
    ],
)
def test_torchaudio(healthy: Snapshot, audio: str | None, build: str, expected: Verdict) -> None:
    items = () if audio is None else (item("torchaudio", audio),)
    assert verdict(host(healthy, torch(build, "12.8"), *items), "torch-torchaudio-mismatch") is expected


@pytest.mark.parametrize(
    ("package", "requires", "expected"),
    [
        ("vllm", ("torch==2.10.0",), FAIL),
        ("vllm", ("torch==2.11.0",), PASS),
        ("vllm", ("numpy==1.26.4", "torch==2.11.0"), PASS),
        ("vllm", ("torch>=2.12",), PASS),  # pip would have said so; nothing compiled is tied to it
        ("vllm", ('torch==2.10.0; extra == "old"',), PASS),
        ("vllm", ("torch==2.10.0", 'torch==2.11.0; platform_machine == "x86_64"'), FAIL),
        ("vllm", (), PASS),
        ("torchvision", ("torch==2.10.0",), PASS),  # has a rule of its own
        ("torchaudio", ("torch==2.10.0",), PASS),
    ],
)
def test_a_package_compiled_for_one_torch(healthy: Snapshot, package: str, requires: tuple[str, ...], expected: Verdict) -> None:
    seen = host(healthy, BUILD, item("numpy", "2.1.3"), item(package, "0.12", requires=requires))
    assert verdict(seen, "extension-torch-abi-mismatch") is expected


def test_a_table_of_wheels_says_nothing_of_what_conda_built(healthy: Snapshot) -> None:
    old = item("torchcodec", "0.2.1")
    assert verdict(host(healthy, BUILD, old), "extension-torch-abi-mismatch") is FAIL
    built = msgspec.structs.replace(old, location="/opt/conda/conda-meta", build="cpu_py312_h1")
    assert verdict(host(healthy, BUILD, old, built), "extension-torch-abi-mismatch") is PASS


LACKING = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"ImportError: libcudart.so.12: {LACKING}", FAIL),
        (f"ImportError: libcudart.so.11.0: {LACKING}", FAIL),
        (f"ImportError: libcudart.so.13: {LACKING}", PASS),  # the one that torch brings
        (f"ImportError: libcudart.so.12: {LACKING}; libcudart.so.13 is in /opt/cuda/lib64", FAIL),
        (f"ImportError: libcudart.so: {LACKING}", PASS),
        (f"ImportError: libavcodec.so.58: {LACKING}", PASS),
        ("libcudart.so.12: version `libcudart.so.12' not defined", PASS),
    ],
)
def test_the_cuda_runtime_that_a_package_looks_for(healthy: Snapshot, line: str, expected: Verdict) -> None:
    assert verdict(altered(healthy, python__complaints=("another line", line)), "extension-cuda-mismatch") is expected


@pytest.mark.parametrize(
    ("package", "judged"),
    [
        ("vllm", True),
        ("xformers", True),
        ("flash-attn", True),
        ("torchtext", True),
        ("torchao", True),
        ("sgl-kernel", True),
        ("numpy", False),
    ],
)
def test_the_cuda_that_a_package_was_built_for(healthy: Snapshot, package: str, judged: bool) -> None:
    for version, wrong in (("1.0+cu124", True), ("1.0+cu130", False), ("1.0+cu131", False), ("1.0", False)):
        seen = host(healthy, BUILD, item("torch", "2.11.0+cu130"), item(package, version))
        expected = [(f"{package} {version}", FAIL)] if judged and wrong else []
        assert lines(seen, "extension-cuda-mismatch") == expected


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        ("flash-attn", "2.8.3+cu12torch2.11cxx11abiTRUE", FAIL),
        ("flash-attn", "2.8.3+cu13torch2.11cxx11abiTRUE", PASS),
        ("torch-scatter", "2.1.2+pt211cu128", FAIL),
        ("torch-scatter", "2.1.2+pt211cu130", PASS),
        ("natten", "0.21.6+torch2110cu128", FAIL),
        ("natten", "0.21.6+torch2110cu130", PASS),
    ],
)
def test_the_cuda_that_a_version_names_beside_a_torch(healthy: Snapshot, package: str, version: str, expected: Verdict) -> None:
    seen = host(healthy, BUILD, item("torch", "2.11.0+cu130"), item(package, version))
    assert [mark for _, mark in lines(seen, "extension-cuda-mismatch")] == [FAIL] * (expected is FAIL)


@pytest.mark.parametrize(
    ("build", "items", "expected"),
    [
        (torch("2.11.0+rocm7.2", hip="7.2"), (item("flash-attn", "2.8.3+cu126"),), FAIL),
        (torch("2.11.0+rocm7.2", hip="7.2"), (item("torch-scatter", "2.1.2+pt211cu128"),), FAIL),
        (torch("2.11.0+rocm7.2", hip=UNTOLD), (item("xformers", "0.0.30+cu128"),), FAIL),
        (torch("2.11.0a0+git1", hip="7.2"), (item("vllm", "0.9.0+cu128"),), FAIL),  # built from source
        (torch("2.11.0+rocm7.2", hip="7.2"), (item("vllm", "0.9.0+rocm641"), item("flash-attn", "2.8.3")), PASS),
        (torch("2.11.0+rocm7.2", hip="7.2"), (item("numpy", "2.1.3+cu126"),), PASS),
        (torch("2.11.0+cu130", "13.0", hip=UNTOLD), (item("flash-attn", "2.8.3+cu126"),), NA),
    ],
)
def test_packages_for_cuda_beside_rocm(
    healthy: Snapshot, build: Torch, items: tuple[Distribution, ...], expected: Verdict
) -> None:
    seen = host(healthy, build, *items)
    assert verdict(seen, "extension-made-for-cuda") is expected
    wanted = [(f"{one.name} {one.version}", FAIL) for one in items[:1]] if expected is FAIL else []
    assert lines(seen, "extension-made-for-cuda") == wanted


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("UserWarning: flash_attn was requested, but nvcc was not found", True),
        ("OSError: CUDA_HOME environment variable is not set", True),
        ("UserWarning: something else", False),
    ],
)
def test_a_build_that_asks_for_nvcc(healthy: Snapshot, line: str, told: bool) -> None:
    seen = host(healthy, torch("2.11.0+rocm7.2", hip="7.2"), item("flash-attn", "2.8.3+cu126"))
    seen = altered(seen, python__complaints=("first", line))
    wanted = [("a build", FAIL)] if told else [("flash-attn 2.8.3+cu126", FAIL)]
    assert lines(seen, "extension-made-for-cuda") == wanted
