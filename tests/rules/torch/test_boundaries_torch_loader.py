"""Which libraries the loader takes beside torch's own, and what Triton and extensions are built with; each mark from both sides (torch_loader)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, verdict
from torch_tools_hosts import SITE, UNTOLD, taken, with_gpus, with_items, with_torch

from torchtune_sys.model.facts.python import CudaLibrary, LiveTorch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

CUDNN = "cudnn-shadowed-by-ld-library-path"
LIVE: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(LiveTorch) if field.required), UNTOLD)


def works(seen: Snapshot) -> Snapshot:
    return altered(seen, python__live=LiveTorch(**{**LIVE, "version": "2.11.0", "cuda_available": True}))


@pytest.mark.parametrize(
    ("rule_id", "cuda", "wheel", "own", "library", "old"),
    [
        (CUDNN, "13.0", "nvidia_cudnn_cu13", "9.19.0.56", "libcudnn.so.9", "9.10.2"),
        (CUDNN, "12.8", "nvidia_cudnn_cu12", "9.19.0.56", "libcudnn.so.9", "9.10.2"),
        ("nvjitlink-shadowed-by-ld-library-path", "13.0", "nvidia_nvjitlink", "13.0.88", "libnvJitLink.so.13", "13.0.39"),
        ("nvjitlink-shadowed-by-ld-library-path", "12.4", "nvidia_nvjitlink_cu12", "12.4.127", "libnvJitLink.so.12", "12.1.105"),
        ("cublas-shadowed-by-ld-library-path", "13.0", "nvidia_cublas", "13.1.0.3", "libcublasLt.so.13", "13.0.2"),
        ("cublas-shadowed-by-ld-library-path", "11.7", "nvidia_cublas_cu11", "11.10.3.66", "libcublasLt.so.11", "11.9.2"),
        ("nccl-shadowed-by-system-library", "12.8", "nvidia_nccl_cu12", "2.27.3", "libnccl.so.2", "2.18.3"),
        ("nccl-shadowed-by-system-library", "13.0", "nvidia_nccl", "2.27.3", "libnccl.so.2", "2.18.3"),
    ],
)
def test_each_library_and_the_wheels_that_bring_it(
    healthy: Snapshot, rule_id: str, cuda: str, wheel: str, own: str, library: str, old: str
) -> None:
    name, _, abi = library.partition(".so.")
    seen = with_items(with_torch(healthy, cuda=cuda), numpy="2.1.3", **{wheel: own})
    other = taken("libnvrtc.so.13", "/opt/lib/libnvrtc.so.13", "1.0")
    for version, expected in ((old, FAIL), (own, PASS), ("99.0", PASS), ("", UNKNOWN), (abi, UNKNOWN)):
        path = f"/opt/lib/{library}"
        by_loader = altered(seen, python__loader=(other, taken(library, path, version), taken(library, path, own)))
        assert lines(by_loader, rule_id) == [(path, expected)]
        lying = CudaLibrary(name=name, abi=abi, version=version, path=path)
        assert lines(altered(seen, python__loader=UNTOLD, python__shadowing=(lying,)), rule_id) == [(path, expected)]
    bundled = altered(seen, python__loader=(other, taken(library, f"{SITE}/nvidia/lib/{library}")))
    assert lines(bundled, rule_id) == [(name, PASS)]
    assert lines(altered(seen, python__loader=(other,)), rule_id) == []
    assert lines(altered(seen, python__loader=(taken(library, NOTHING),)), rule_id) == []
    assert verdict(altered(seen, python__loader=(taken(library, DENIED),)), rule_id) is UNKNOWN
    assert verdict(altered(seen, python__loader=(taken(f"{name}.so.1", "/opt/x", "0.9"),)), rule_id) is PASS
    assert verdict(works(by_loader), rule_id) is NA
    assert verdict(with_items(seen, numpy="2.1.3"), rule_id) is NA
    assert verdict(altered(seen, python=UNTOLD), rule_id) is UNKNOWN


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (("libcudnn.so.9", "libcudnn_graph.so.9"), [("libcudnn", PASS)]),
        (("libcudnn.so.9", "!libcudnn_graph.so.9"), [("/opt/libcudnn_graph.so.9", FAIL)]),
        (("!libcudnn.so.9", "!libcudnn_graph.so.9"), [("/opt/libcudnn.so.9", FAIL)]),
        (("libcudnn.so.9", "!libcudnn_ops_infer.so.8"), [("libcudnn", PASS)]),  # another version's, for something else
        (("libcudnn.so.9", "!libcudnnfrontend.so.9"), [("libcudnn", PASS)]),
    ],
)
def test_the_parts_of_cudnn(healthy: Snapshot, choices: tuple[str, ...], expected: Any) -> None:
    loader = tuple(
        taken(name[1:], f"/opt/{name[1:]}", "9.1.0") if name[0] == "!" else taken(name, f"{SITE}/nvidia/cudnn/lib/{name}")
        for name in choices
    )
    assert lines(altered(healthy, python__loader=loader), CUDNN) == expected


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0)", {CUDNN}),
        ("libcudnn_cnn.so.9: undefined symbol: x, version libcudnn_ops.so.9", {CUDNN}),
        ("libcudnn_cnn.so.9: cannot open shared object file, version libcudnn_ops.so.9 not found", set()),
        ("undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12", {"nvjitlink-shadowed-by-ld-library-path"}),
        ("undefined symbol: cublasLtHSHMatmulAlgoInit", {"cublas-shadowed-by-ld-library-path"}),
        ("libnccl.so.2: cannot open shared object file", set()),
    ],
)
def test_what_the_loader_says_of_two_versions(healthy: Snapshot, said: str, rules: set[str]) -> None:
    seen = altered(healthy, python__complaints=("another line", said))
    shadowing = ("nvjitlink-shadowed-by-ld-library-path", "cublas-shadowed-by-ld-library-path", "nccl-shadowed-by-system-library")
    found = {rule_id: verdict(seen, rule_id) for rule_id in (CUDNN, *shadowing)}
    assert found == {rule_id: FAIL if rule_id in rules else PASS for rule_id in found}


def test_a_recording_without_the_loaders_choice(healthy: Snapshot) -> None:
    seen = altered(healthy, python__loader=UNTOLD, python__shadowing=())
    assert lines(seen, CUDNN) == [("libcudnn", PASS)]
    other = CudaLibrary(name="libnccl", abi="2", version="2.18", path="/opt/libnccl.so.2")
    assert verdict(altered(seen, python__shadowing=(other,)), CUDNN) is UNKNOWN
    assert verdict(altered(healthy, python__loader=DENIED, python__shadowing=()), CUDNN) is UNKNOWN
    assert verdict(altered(seen, session__env=DENIED), CUDNN) is UNKNOWN


COMPAT = "/usr/local/cuda-13.0/compat/libcuda.so.1"


@pytest.mark.parametrize(
    ("version", "driver", "expected"),
    [
        ("580.95.05", "535.104.05", FAIL),
        ("535.104.05", "535.104.05", PASS),
        ("530.30.02", "535.104.05", PASS),
        ("", "535.104.05", FAIL),
        ("580.95.05", UNTOLD, UNKNOWN),
        ("", UNTOLD, UNKNOWN),
    ],
)
@pytest.mark.parametrize("path", [COMPAT, "/usr/local/cuda/compat/lib/libcuda.so.1"])
def test_a_newer_libcuda_on_a_gpu_for_players(healthy: Snapshot, version: str, driver: Any, path: str, expected: Verdict) -> None:
    library = CudaLibrary(name="libcuda", abi="1", version=version, path=path)
    seen = altered(healthy, python__shadowing=(library,), gpu__driver_version=driver)
    seen = altered(seen, driver__module_version=driver, driver__library_version=driver)
    seen = with_gpus(seen, (8, 6), names=("NVIDIA GeForce RTX 3090",))
    assert verdict(seen, "forward-compat-unsupported-gpu") is expected


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ({}, FAIL),
        ({"abi": ""}, PASS),  # nobody loads the bare name
        ({"name": "libcudnn"}, PASS),
        ({"name": "libcudnn", "abi": "9"}, PASS),
        ({"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, PASS),
        ({"path": "/usr/lib/libcuda-compat.so.1"}, PASS),
    ],
)
def test_which_library_is_forward_compatibilitys(healthy: Snapshot, library: dict[str, str], expected: Verdict) -> None:
    found = CudaLibrary(**{"name": "libcuda", "abi": "1", "version": "999.1", "path": COMPAT, **library})
    seen = with_gpus(altered(healthy, python__shadowing=(found,)), (8, 6), names=("NVIDIA GeForce RTX 3090",))
    assert verdict(seen, "forward-compat-unsupported-gpu") is expected


def test_which_gpus_bear_forward_compatibility(healthy: Snapshot) -> None:
    library = CudaLibrary(name="libcuda", abi="1", version="999.1", path=COMPAT)
    names = ("NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090", DENIED, "NVIDIA TITAN V", "NVIDIA RTX A6000", "Titan RTX")
    seen = with_gpus(altered(healthy, python__shadowing=(library,)), *[(8, 0)] * len(names), names=names)
    expected = [("GPU 1", FAIL), ("GPU 2", UNKNOWN), ("GPU 3", FAIL), ("GPU 5", FAIL)]
    assert lines(seen, "forward-compat-unsupported-gpu") == expected


@pytest.mark.parametrize(("error", "expected"), [("", FAIL), ("driver-library-mismatch", PASS), (None, FAIL)])
def test_error_804(healthy: Snapshot, error: str | None, expected: Verdict) -> None:
    """A driver that was upgraded without a reboot brings it about too: NVML says so then."""
    said = "Error 804: forward compatibility was attempted on non supported HW"
    seen = altered(healthy, python__complaints=("another line", said))
    seen = altered(seen, gpu=UNTOLD) if error is None else altered(seen, gpu__error=error)
    assert verdict(seen, "forward-compat-unsupported-gpu") is expected
    assert verdict(altered(seen, python__complaints=("another line",)), "forward-compat-unsupported-gpu") is PASS


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",), ["loader"]),
        (("/lib/libstdc++.so.6: version `CXXABI_1.3.15' not found",), ["loader"]),
        (("version `GLIBCXX_3.4.32' not found", "another line", "version `CXXABI_1.3.15' not found"), ["loader", "loader"]),
        (("/lib/libc.so.6: version `GLIBC_2.38' not found",), []),
        (("libfoo.so needs GLIBCXX_3.4.32",), []),
    ],
)
def test_the_loader_says_that_the_cpp_library_is_old(healthy: Snapshot, said: tuple[str, ...], expected: list[str]) -> None:
    seen = altered(healthy, python__complaints=said)
    assert lines(seen, "libstdcxx-too-old") == [(subject, FAIL) for subject in expected]
    live = altered(seen, python__live=LiveTorch(**{**LIVE, "version": "2.11.0"}))
    assert lines(live, "libstdcxx-too-old") == ([(subject, FAIL) for subject in expected] or [("import torch", PASS)])


@pytest.mark.parametrize(("number", "expected"), [("6.0.19", FAIL), ("6.0.21", FAIL), ("6.0.22", NA), ("6.0.25", NA)])
def test_the_oldest_libstdcxx_that_a_wheel_takes(healthy: Snapshot, number: str, expected: Verdict) -> None:
    """GLIBCXX_3.4.22 came with 6.0.22 (GCC 6); a host of which torch was not asked is not judged beyond that."""
    seen = altered(
        healthy,
        python__conda=False,
        python__shadowing=(CudaLibrary(name="libstdc++", abi="6", version=number, path="/opt/gcc/lib64/libstdc++.so.6"),),
    )
    assert verdict(seen, "libstdcxx-too-old") is expected
