"""Which libraries the loader takes beside torch's own, and what Triton and extensions are built with; each mark from both sides (torch_tools)."""

from __future__ import annotations

from typing import Any

import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, result, verdict, with_env
from torch_tools_hosts import UNTOLD, taken, with_gpus, with_items, with_torch

from torchtune_sys.model.actions import EnvironmentVariable
from torchtune_sys.model.facts.python import Distribution, LoaderChoice
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules.torch.ptxas import _bundled

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
    ("toolkits", "named", "expected"),
    [
        (("/usr/local/cuda-12.4 (12.4.131)", "/usr/local/cuda-12.9 (12.9.1)"), None, "/usr/local/cuda-12.9/bin/ptxas"),
        (
            ("/usr/local/cuda-12.4 (12.4.131)", "/usr/local/cuda-13.0 (13.0.2)"),
            None,
            "none",
        ),  # older than the GPU, newer than the driver
        ((), None, "none"),
        ((), "/usr/local/cuda-14.0/bin/ptxas", "none"),  # Triton's own is too new as well
    ],
)
def test_another_assembler_is_one_that_is_there_and_helps(
    healthy: Snapshot, toolkits: tuple[str, ...], named: str | None, expected: str
) -> None:
    name = "TRITON_PTXAS_BLACKWELL_PATH"
    there = tuple(item.partition(" (")[0] for item in toolkits)
    seen = altered(with_driver(healthy, "575.57.08", "12.8", "3.7.0", (12, 0)), python__toolkits=toolkits, python__ptxas=there)
    found = result(altered(seen, session__env={name: named} if named else {}), PTXAS).evidence
    assert [item.verdict for item in found] == [FAIL]
    set_to = [action.value for action in found[0].fix if isinstance(action, EnvironmentVariable) and action.name == name]
    assert set_to == ([] if expected == "none" else [expected])
    partial = altered(seen, session__env={name: named} if named else {}, python__ptxas=())  # cuda-nvcc is a package of its own
    assert not [
        action for action in result(partial, PTXAS).evidence[0].fix if isinstance(action, EnvironmentVariable) and action.value
    ]


def test_a_named_assembler_is_unset_where_tritons_own_fits(healthy: Snapshot) -> None:
    seen = with_driver(healthy, "575.57.08", "12.8", "3.2.0", (9, 0))
    named = altered(seen, session__env={"TRITON_PTXAS_PATH": "/usr/local/cuda-13.0/bin/ptxas"})
    (found,) = result(named, PTXAS).evidence
    assert found.verdict is FAIL
    assert EnvironmentVariable(name="TRITON_PTXAS_PATH", value=None) in found.fix


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
