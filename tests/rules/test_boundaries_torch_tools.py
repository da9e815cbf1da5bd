"""Which libraries the loader takes beside torch's own, and what Triton and extensions are built with; each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, asked, lines, verdict, with_env

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import CudaLibrary, Distribution, LiveTorch, LoaderChoice
from torchtune_sys.model.facts.software import BuildTools, CompileCache
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.torch_tools import _bundled

UNTOLD = Missing(Why.NOT_RECORDED, "test")
SITE = "/data/train/.venv/lib/python3.12/site-packages"
CUDNN = "cudnn-shadowed-by-ld-library-path"
LIVE: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(LiveTorch) if field.required), UNTOLD)


def with_torch(seen: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(seen.python, Missing)
    return altered(seen, python__torch=msgspec.structs.replace(seen.python.torch, **facts))


def with_items(seen: Snapshot, **versions: str) -> Snapshot:
    """The same host with these packages alone (``nvidia_nccl_cu13="2.28.9"``)."""
    items = (Distribution(name=name.replace("_", "-"), version=number, location=SITE) for name, number in versions.items())
    return altered(seen, python__distributions=tuple(items))


def with_gpus(seen: Snapshot, *capabilities: Any, names: tuple[Any, ...] = ()) -> Snapshot:
    told = names or tuple("a GPU" for _ in capabilities)
    found = zip(capabilities, told, strict=True)
    return altered(seen, gpu__devices=tuple(Gpu(index=i, name=n, compute_capability=cc) for i, (cc, n) in enumerate(found)))


def taken(name: str, path: Any, version: str = "") -> LoaderChoice:
    return LoaderChoice(name=name, path=path, found_by="LD_LIBRARY_PATH", version=version)


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
    for version, expected in ((old, FAIL), (own, PASS), ("99.0", PASS), ("", PASS), (abi, PASS)):
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


NO_NVCC = "CUDA_HOME does not exist, unable to compile CUDA op(s)"


@pytest.mark.parametrize(
    ("said", "rule_id"),
    [
        (f"deepspeed.ops.op_builder.builder.MissingCUDAException: {NO_NVCC}", "cuda-toolkit-missing"),
        ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "cuda-toolkit-missing"),
        ("UserWarning: fused_dense was requested, but nvcc was not found.", "cuda-toolkit-missing"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "libcuda-not-linkable"),
        ("/usr/bin/ld: cannot find -l:libcuda.so.1: No such file or directory", "libcuda-not-linkable"),
        ("AssertionError: libcuda.so cannot found!", "libcuda-not-linkable"),
    ],
)
def test_what_a_build_said(healthy: Snapshot, said: str, rule_id: str) -> None:
    """torch/utils/cpp_extension.py, DeepSpeed's and flash-attn's builds; the linker, and Triton's libcuda_dirs."""
    assert verdict(healthy, rule_id) is not FAIL
    assert verdict(altered(healthy, python__complaints=("another line", said)), rule_id) is FAIL


@pytest.mark.parametrize(
    ("torch", "expected"), [({}, FAIL), ({"version": "2.11.0+rocm7.1"}, NA), (NOTHING, FAIL), (DENIED, FAIL)]
)
def test_a_build_said_that_there_is_no_nvcc(healthy: Snapshot, torch: Any, expected: Verdict) -> None:
    seen = altered(healthy, python__complaints=("another line", NO_NVCC))
    seen = with_torch(seen, **torch) if isinstance(torch, dict) else altered(seen, python__torch=torch)
    assert verdict(seen, "cuda-toolkit-missing") is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, [("deepspeed 0.15.4", FAIL)]),
        ({"nvcc_path": "/usr/local/cuda/bin/nvcc"}, [("deepspeed 0.15.4", PASS)]),
        ({"nvcc_path": DENIED}, UNKNOWN),
        ({"deepspeed_operators": True}, NA),
        ({"deepspeed_operators": DENIED}, UNKNOWN),
    ],
)
def test_deepspeed_without_operators(healthy: Snapshot, facts: dict[str, Any], expected: Any) -> None:
    seen = altered(with_items(healthy, deepspeed="0.15.4"), python__deepspeed_operators=False)
    seen = altered(seen, **{f"python__{name}": fact for name, fact in facts.items()})
    for env in ({}, {"CUDA_HOME": "/opt/cuda"}, DENIED):
        told = altered(seen, session__env=env)
        if isinstance(expected, Verdict):
            assert verdict(told, "cuda-toolkit-missing") is expected
        else:
            assert lines(told, "cuda-toolkit-missing") == expected
    assert verdict(with_items(seen, numpy="2.1.3"), "cuda-toolkit-missing") is NA
    assert verdict(altered(seen, python=UNTOLD), "cuda-toolkit-missing") is UNKNOWN


@pytest.mark.parametrize(
    ("triton", "there", "expected"),
    [
        ("2.0.0", ("libcuda.so",), NA),
        ("2.1", ("libcuda.so.1",), FAIL),
        ("2.1.0", ("libcuda.so.1",), FAIL),
        ("2.1.0", ("libcuda.so.1", "libcuda.so"), PASS),
        ("3.5.1", ("libcuda.so.1",), FAIL),
        ("3.6", ("libcuda.so.1",), PASS),
        ("3.6.0", ("libcuda.so.1",), PASS),
        ("3.6.0", ("libcuda.so",), FAIL),
        ("3.6.0", (), FAIL),
        ("2.1.0", (), FAIL),
    ],
)
def test_the_file_that_triton_links_with(healthy: Snapshot, triton: str, there: tuple[str, ...], expected: Verdict) -> None:
    seen = altered(with_items(healthy, triton=triton), python__linkable=tuple(f"/usr/lib64/{name}" for name in there))
    assert verdict(seen, "libcuda-not-linkable") is expected


@pytest.mark.parametrize(("store", "expected"), [("/nix/store", NA), ("/gnu/store", NA), ("/opt/store", FAIL)])
def test_distributions_that_tell_triton_of_the_drivers_directory(healthy: Snapshot, store: str, expected: Verdict) -> None:
    own = Distribution(name="triton", version="3.6.0", location=f"{store}/x-triton/lib/python3.12/site-packages")
    seen = altered(healthy, python__distributions=(own,), python__linkable=())
    assert verdict(seen, "libcuda-not-linkable") is expected


def with_cudnn(seen: Snapshot, *loader: LoaderChoice, own: str = "9.19.0.56") -> Snapshot:
    return altered(with_items(seen, numpy="2.1.3", nvidia_cudnn_cu13=own), python__loader=loader)


OFF_PATH = "cudnn-not-on-loader-path"


@pytest.mark.parametrize(
    ("said", "own", "expected"),
    [
        ("libcudnn.so.9: cannot open shared object file", "9.19.0.56", FAIL),
        ("Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9, libcudnn_ops.so}", "9.19.0.56", FAIL),
        ("Could not load library libcudnn_cnn_infer", "9.19.0.56", FAIL),
        ("Could not load library libcudnn_ops_infer.so.8. Error: libfoo.so.9: no such file", "9.19.0.56", PASS),
        ("Could not load library libcudnn_graph.so.9. Error: libfoo.so.8: no such file", "9.19.0.56", FAIL),
        ("libcudnn.so.8: cannot open shared object file", "9.19.0.56", PASS),  # a package for another cuDNN
        ("libcudnn.so.1: cannot open shared object file", "10.1.0", PASS),
        ("libcudnn.so.10: cannot open shared object file", "10.1.0", FAIL),
        ("libcudnn.so.9: cannot open shared object file", "unknown", PASS),
        ("libcudnn.so.9: undefined symbol: cudnnGetVersion", "9.19.0.56", PASS),
        ("libcublas.so.9: cannot open shared object file", "9.19.0.56", PASS),
    ],
)
def test_who_does_not_find_cudnn(healthy: Snapshot, said: str, own: str, expected: Verdict) -> None:
    seen = altered(with_cudnn(healthy, own=own), python__complaints=("another line", said))
    assert verdict(seen, OFF_PATH) is expected
    assert verdict(with_items(seen, numpy="2.1.3"), OFF_PATH) is NA


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        ((taken("libcudnn.so.9", "/a"), taken("libcudnn_ops.so.9", "/b")), [("libcudnn.so.9", PASS)]),
        ((taken("libcudnn.so.9", NOTHING),), [("libcudnn.so.9", FAIL)]),
        ((taken("libcudnn.so.8", NOTHING),), []),  # the environment's is for something else
        (
            (taken("libcudnn.so.9", "/a"), taken("libcudnn_ops.so.9", NOTHING)),
            [("libcudnn.so.9", PASS), ("libcudnn_ops.so.9", FAIL)],
        ),
        (
            (taken("libcudnn_ops.so.9", DENIED), taken("libcudnn.so.9", NOTHING)),
            [("libcudnn_ops.so.9", UNKNOWN), ("libcudnn.so.9", FAIL)],
        ),
        ((taken("libnccl.so.2", "/a"), taken("libcudnn.so.9", "/a")), [("libcudnn.so.9", PASS)]),
        ((taken("libnccl.so.2", NOTHING),), []),
        ((taken("libnvrtc.so.9", NOTHING), taken("libcudnn.so.9", NOTHING)), [("libcudnn.so.9", FAIL)]),
    ],
)
def test_where_torch_finds_cudnn(healthy: Snapshot, loader: tuple[LoaderChoice, ...], expected: Any) -> None:
    assert lines(with_cudnn(healthy, *loader), OFF_PATH) == expected


def test_a_wheel_that_names_cudnns_place(healthy: Snapshot) -> None:
    seen = altered(with_cudnn(healthy), python__loader=UNTOLD)
    assert lines(seen, OFF_PATH) == [("torch 2.11.0+cu130", PASS)]
    assert verdict(with_torch(seen, version="2.11.0a0+own"), OFF_PATH) is UNKNOWN
    assert verdict(altered(seen, python__loader=DENIED), OFF_PATH) is UNKNOWN


@pytest.mark.parametrize(
    ("triton", "older", "blackwell"),
    [
        ((2, 0, 0), (), ()),
        ((2, 1), (12, 1), (12, 1)),
        ((2, 1, 0), (12, 1), (12, 1)),
        ((2, 2), (12, 3), (12, 3)),
        ((2, 3, 1), (12, 3), (12, 3)),
        ((3, 0), (12, 4), (12, 4)),
        ((3, 3, 1), (12, 4), (12, 4)),
        ((3, 4), (12, 8), (12, 8)),
        ((3, 5, 1), (12, 8), (12, 8)),
        ((3, 6), (12, 8), (12, 9)),
        ((3, 7), (12, 8), (13, 1)),
        ((3, 8), (12, 9), (13, 3)),
        ((3, 9), (12, 9), (13, 4)),
    ],
)
def test_the_assembler_of_each_wheel(triton: tuple[int, ...], older: tuple[int, ...], blackwell: tuple[int, ...]) -> None:
    """ptxas --version of the wheels on PyPI; triton-lang/triton issue 10331 lists some of them too."""
    assert (_bundled(triton, False), _bundled(triton, True)) == (older, blackwell)


PTXAS = "triton-ptxas-newer-than-driver"
OWN = "Triton's own ptxas"


def with_driver(seen: Snapshot, driver: str, cuda: str, triton: str, *capabilities: Any) -> Snapshot:
    seen = altered(seen, driver__module_version=driver, python__loader=(), python__toolkits=NOTHING)
    seen = with_items(with_torch(seen, version="2.6.0a0+own", cuda=cuda), triton=triton)
    return with_gpus(seen, *(capabilities or ((8, 0),)))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (((9, 0),), [PASS]),
        (((10, 0),), [FAIL]),
        (((12, 0),), [FAIL]),
        ((DENIED,), [PASS]),
        (((12, 0), (9, 0), (10, 3), DENIED), [PASS, FAIL]),  # one for each of the two assemblers
    ],
)
def test_blackwell_has_an_assembler_of_its_own(healthy: Snapshot, capabilities: tuple[Any, ...], expected: Any) -> None:
    seen = with_driver(healthy, "575.57.08", "12.8", "3.7.0", *capabilities)  # this driver is CUDA 12's
    assert [mark for _, mark in lines(seen, PTXAS)] == expected


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        ("11.8", "470.82.01", FAIL),  # 11.4
        ("11.8", "525.60.13", PASS),
        ("12.8", "525.60.13", PASS),  # 12.0: another minor version only
        ("13.0", "525.60.13", NA),
        ("11.8", "999.1", NA),  # no table knows it
    ],
)
def test_the_drivers_cuda(healthy: Snapshot, cuda: str, driver: str, expected: Verdict) -> None:
    assert verdict(with_driver(healthy, driver, cuda, "3.2.0"), PTXAS) is expected


@pytest.mark.parametrize(
    ("env", "triton", "cc", "expected"),
    [
        ({}, "3.2.0", (8, 0), [(OWN, FAIL)]),
        ({"TRITON_PTXAS_PATH": ""}, "3.2.0", (8, 0), [(OWN, FAIL)]),
        ({"TRITON_PTXAS_PATH": "/usr/local/cuda-11.8/bin/ptxas"}, "3.2.0", (8, 0), [("/usr/local/cuda-11.8/bin/ptxas", PASS)]),
        ({"TRITON_PTXAS_PATH": "/opt/cuda-12.1/bin/ptxas"}, "3.2.0", (8, 0), [("/opt/cuda-12.1/bin/ptxas", FAIL)]),
        ({"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}, "3.2.0", (8, 0), [("/usr/local/cuda/bin/ptxas", PASS)]),
        ({"TRITON_PTXAS_PATH": "/opt/cuda/bin/ptxas"}, "3.2.0", (8, 0), [("/opt/cuda/bin/ptxas", FAIL)]),
        ({"TRITON_PTXAS_PATH": "/opt/cuda-latest/12.4/ptxas"}, "3.2.0", (8, 0), []),  # its version is not in its name
        ({"TRITON_PTXAS_PATH": "/opt/cudatoolkit/bin/ptxas"}, "3.2.0", (8, 0), []),
        ({"TRITON_PTXAS_PATH": "tools-12.4/ptxas"}, "3.2.0", (8, 0), []),
        ({"TRITON_PTXAS_BLACKWELL_PATH": "/usr/local/cuda-11.8/bin/ptxas"}, "3.6.0", (8, 0), [(OWN, FAIL)]),
        (
            {"TRITON_PTXAS_BLACKWELL_PATH": "/usr/local/cuda-11.8/bin/ptxas"},
            "3.6",
            (10, 0),
            [("/usr/local/cuda-11.8/bin/ptxas", PASS)],
        ),
        ({"TRITON_PTXAS_BLACKWELL_PATH": "/usr/local/cuda-11.8/bin/ptxas"}, "3.5.0", (10, 0), [(OWN, FAIL)]),
        ({"TRITON_PTXAS_PATH": "/usr/local/cuda-11.8/bin/ptxas"}, "3.6.0", (10, 0), [(OWN, FAIL)]),
    ],
)
def test_the_assembler_that_is_named(
    healthy: Snapshot, env: dict[str, str], triton: str, cc: tuple[int, int], expected: Any
) -> None:
    seen = with_env(with_driver(healthy, "470.82.01", "11.8", triton, cc), env)
    seen = altered(seen, python__toolkits=("/usr/local/cuda (11.8.89)", "/opt/cuda (12.4.131)"))
    assert lines(seen, PTXAS) == expected
    assert expected or verdict(seen, PTXAS) is NA
    assert verdict(altered(seen, session__env=DENIED), PTXAS) is UNKNOWN


TOOLS: dict[str, Any] = {
    "libc_headers": True,
    "host_compiler": "/usr/bin/gcc",
    "host_compiler_gcc": 13,
    "nvcc_gcc_limit": 13,
    "ninja": "/usr/bin/ninja",
}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, PASS),
        ({"host_compiler_gcc": 14}, FAIL),
        ({"host_compiler_gcc": 12}, PASS),
        ({"host_compiler_gcc": 14, "limit_lifted": True}, NA),
        ({"nvcc_gcc_limit": NOTHING}, NA),
        ({"nvcc_gcc_limit": DENIED}, UNKNOWN),
        ({"host_compiler": NOTHING, "host_compiler_gcc": DENIED}, NA),
        ({"host_compiler": NOTHING, "host_compiler_gcc": NOTHING}, NA),
        ({"host_compiler_gcc": NOTHING}, NA),  # clang
        ({"host_compiler": DENIED}, UNKNOWN),
        ({"host_compiler_gcc": DENIED}, UNKNOWN),
    ],
)
def test_the_compiler_that_nvcc_takes(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    seen = altered(healthy, software__build_tools=BuildTools(**{**TOOLS, **facts}))
    assert verdict(seen, "host-compiler-too-new") is expected


@pytest.mark.parametrize(("there", "expected"), [(True, PASS), (False, FAIL), (NOTHING, NA), (DENIED, UNKNOWN)])
def test_the_headers_of_the_c_library(healthy: Snapshot, there: Any, expected: Verdict) -> None:
    seen = altered(healthy, software__build_tools=BuildTools(**{**TOOLS, "libc_headers": there}))
    assert verdict(seen, "c-library-headers-missing") is expected


@pytest.mark.parametrize(("there", "expected"), [("/usr/bin/ninja", PASS), (NOTHING, FAIL), (DENIED, UNKNOWN)])
def test_ninja(healthy: Snapshot, there: Any, expected: Verdict) -> None:
    seen = altered(with_items(healthy, ninja="1.13"), software__build_tools=BuildTools(**{**TOOLS, "ninja": there}))
    assert verdict(seen, "ninja-not-on-path") is expected
    assert verdict(with_items(seen, numpy="2.1.3"), "ninja-not-on-path") is NA


@pytest.mark.parametrize("rule_id", ["host-compiler-too-new", "c-library-headers-missing", "ninja-not-on-path"])
def test_nobody_looks_for_build_tools_where_no_driver_runs(healthy: Snapshot, rule_id: str) -> None:
    seen = altered(healthy, python__distributions=healthy_items(healthy, ninja="1.13"))
    assert verdict(altered(seen, software__build_tools=NOTHING), rule_id) is NA
    assert verdict(altered(seen, software__build_tools=DENIED), rule_id) is UNKNOWN


def healthy_items(seen: Snapshot, **more: str) -> tuple[Distribution, ...]:
    assert not isinstance(seen.python, Missing) and not isinstance(seen.python.distributions, Missing)
    added = (Distribution(name=name, version=number, location=SITE) for name, number in more.items())
    return (*seen.python.distributions, *added)


CACHES = {
    "compile-cache-not-writable": ("writable", False),
    "compile-cache-not-executable": ("noexec", True),
    "compile-cache-on-network": ("network", True),
}


def cache(purpose: str, **facts: Any) -> CompileCache:
    good = {"filesystem": "ext4", "mount_point": "/", "noexec": False, "network": False, "writable": True}
    return CompileCache(**{**good, "purpose": purpose, "variable": "X", "path": "/tmp/x", **facts})


@pytest.mark.parametrize("rule_id", CACHES)
def test_each_cache_is_judged_by_itself(healthy: Snapshot, rule_id: str) -> None:
    field, bad = CACHES[rule_id]
    marks = {DENIED: UNKNOWN, bad: FAIL, not bad: PASS}
    facts = [cache(str(number), **{field: fact}) for number, fact in enumerate(marks)]
    found = lines(altered(healthy, software__compile_caches=tuple(facts)), rule_id)
    assert found == [(f"{number} cache /tmp/x", mark) for number, mark in enumerate(marks.values())]
    assert verdict(altered(healthy, software__compile_caches=NOTHING), rule_id) is NA
    assert verdict(altered(healthy, software__compile_caches=DENIED), rule_id) is UNKNOWN


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [(1, None, NA), (1, 1, NA), (1, 2, FAIL), (2, None, FAIL), (2, 1, FAIL), (None, None, FAIL)],
)
def test_one_process_alone_may_keep_them_on_the_network(
    healthy: Snapshot, ranks: int | None, nodes: int | None, expected: Verdict
) -> None:
    seen = altered(healthy, software__compile_caches=(cache("Triton", network=True),))
    assert verdict(asked(seen, ranks=ranks, nodes=nodes), "compile-cache-on-network") is expected
