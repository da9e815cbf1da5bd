"""Boundaries of the rules about what Triton, DeepSpeed and cuDNN's users look for."""

from __future__ import annotations

import msgspec
import pytest

from conftest import judge, load
from torchtune_sys import engine, evidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import need
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.torch.ptxas import _bundled

SITE = "/data/train/.venv/lib/python3.12/site-packages"
LINK = "/usr/lib/x86_64-linux-gnu/libcuda.so"


def with_triton(release: str) -> dict[str, str | None]:
    return {f"{SITE}/triton-3.6.0.dist-info/INSTALLER": None, f"{SITE}/triton-{release}.dist-info/INSTALLER": "pip"}


def verdict(name: str, **overlay: object) -> Verdict:
    return judge(load("healthy", **overlay))[name].verdict


@pytest.mark.parametrize(
    ("release", "wanted"),
    [("2.3.1", Verdict.FAIL), ("3.5.1", Verdict.FAIL), ("3.6.0", Verdict.PASS), ("3.9.0", Verdict.PASS), ("2.0.0", Verdict.NA)],
)
def test_only_triton_before_3_6_needs_the_link_of_the_development_package(release: str, wanted: Verdict) -> None:
    assert verdict("libcuda-not-linkable", links={LINK: None}, files=with_triton(release)) is wanted


def test_a_link_elsewhere_that_gcc_is_told_of_is_enough() -> None:
    overlay = {"links": {LINK: None}, "files": {**with_triton("3.2.0"), "/opt/stubs/libcuda.so": ""}}
    assert verdict("libcuda-not-linkable", **overlay) is Verdict.FAIL
    assert verdict("libcuda-not-linkable", env={"LIBRARY_PATH": "/opt/stubs"}, **overlay) is Verdict.PASS
    assert verdict("libcuda-not-linkable", env={"TRITON_LIBCUDA_PATH": "/opt/stubs"}, **overlay) is Verdict.PASS


def test_ld_library_path_counts_only_where_the_cache_has_no_libcuda() -> None:
    overlay = {"links": {LINK: None}, "files": {**with_triton("3.2.0"), "/opt/x/libcuda.so": "", "/opt/x/libcuda.so.1": ""}}
    env = {"LD_LIBRARY_PATH": "/opt/x"}
    assert verdict("libcuda-not-linkable", env=env, **overlay) is Verdict.FAIL
    assert verdict("libcuda-not-linkable", env=env, answers={"loader-cache": []}, **overlay) is Verdict.PASS


def test_without_any_driver_library_it_is_another_fault() -> None:
    links = {"/usr/lib/x86_64-linux-gnu/libcuda.so.1": None, LINK: None}
    assert verdict("libcuda-not-linkable", links=links, answers={"loader-cache": []}) is Verdict.NA


def test_without_a_cache_ldconfig_fails_and_triton_with_it() -> None:
    """ldconfig -p ends with status 1, so that LD_LIBRARY_PATH is never looked at; a named directory needs neither."""
    nothing = {"answers": {"loader-cache": {"error": "absent"}}}
    folder = "/usr/lib/x86_64-linux-gnu"
    assert verdict("libcuda-not-linkable", **nothing) is Verdict.FAIL
    assert verdict("libcuda-not-linkable", env={"LD_LIBRARY_PATH": folder}, **nothing) is Verdict.FAIL
    assert verdict("libcuda-not-linkable", env={"TRITON_LIBCUDA_PATH": folder}, **nothing) is Verdict.PASS


def test_triton_beside_a_torch_without_cuda_links_nothing() -> None:
    text = ["__version__ = '2.11.0+cpu'", "cuda = None", "hip = None"]
    overlay = {"files": {f"{SITE}/torch/version.py": text}, "answers": {"loader-cache": []}}
    assert verdict("libcuda-not-linkable", **overlay) is Verdict.NA


@pytest.mark.parametrize(
    "name", ["cudnn-shadowed-by-ld-library-path", "nccl-shadowed-by-system-library", "cudnn-not-on-loader-path"]
)
@pytest.mark.parametrize(
    ("version", "cuda", "env", "wanted"),
    [
        ("2.11.0+cu130", "13.0", {}, Verdict.PASS),
        ("2.11.0", "13.0", {}, Verdict.PASS),
        ("2.11.0", "13.1", {}, Verdict.UNKNOWN),  # JetPack's, a distribution's or one's own
        ("2.11.0a0+gitabc", "13.0", {}, Verdict.UNKNOWN),
        ("2.11.0+cu130", "13.0", {"LD_LIBRARY_PATH": "/opt/x"}, Verdict.UNKNOWN),
        ("2.11.0+cu130", "13.0", {"LD_PRELOAD": "/opt/x/libnccl.so.2"}, Verdict.UNKNOWN),
    ],
)
def test_a_release_build_needs_no_look_into_its_libraries(
    name: str, version: str, cuda: str, env: dict[str, str], wanted: Verdict
) -> None:
    """Recordings from before its libraries were read: the wheels' place is named in them, and only these variables go before."""
    text = [f"__version__ = '{version}'", f"cuda = '{cuda}'", "hip = None"]
    overlay = {
        "files": {f"{SITE}/torch/version.py": text},
        "answers": {f"dynamic:{SITE}/torch/lib/libtorch_global_deps.so": None},
    }
    if name == "cudnn-not-on-loader-path" and env:
        wanted = Verdict.PASS  # torch finds its own whatever else lies there
    assert verdict(name, env=env, **overlay) is wanted


def torch_for(cuda: str) -> dict[str, object]:
    text = [f"__version__ = '2.6.0+cu{cuda.replace('.', '')}'", f"cuda = '{cuda}'", "hip = None"]
    return {f"{SITE}/torch/version.py": text}


@pytest.mark.parametrize(
    ("driver", "cuda", "release", "wanted"),
    [
        ("470.82.01", "11.8", "3.2.0", Verdict.FAIL),
        ("520.61.05", "11.8", "2.1.0", Verdict.FAIL),
        ("525.60.13", "11.8", "3.2.0", Verdict.PASS),
        ("525.60.13", "12.4", "3.6.0", Verdict.PASS),
        ("520.61.05", "12.4", "3.2.0", Verdict.NA),
        ("520.61.05", "11.8", "2.0.0", Verdict.NA),
    ],
)
def test_only_another_major_version_of_cuda_matters(driver: str, cuda: str, release: str, wanted: Verdict) -> None:
    files = {
        **torch_for(cuda),
        **with_triton(release),
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Fri\n",
        "/sys/module/nvidia/version": f"{driver}\n",
    }
    assert verdict("triton-ptxas-newer-than-driver", files=files) is wanted


def test_cuda_compat_brings_a_newer_cuda_than_the_kernel_module() -> None:
    compat = "/usr/local/cuda/compat"
    files = {
        **torch_for("11.8"),
        **with_triton("3.2.0"),
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Fri\n",
        "/sys/module/nvidia/version": "470.82.01\n",
        f"{compat}/libcuda.so.525.60.13": "",
    }
    answers = {f"dynamic:{compat}/libcuda.so.1": {"kind": "64:62", "soname": "libcuda.so.1"}}
    links = {f"{compat}/libcuda.so.1": "libcuda.so.525.60.13"}
    found = verdict("triton-ptxas-newer-than-driver", files=files, answers=answers, links=links, env={"LD_LIBRARY_PATH": compat})
    assert found is Verdict.PASS


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/usr/local/cuda-13.0/bin/ptxas", Verdict.PASS),
        ("/usr/local/cuda-14.1/bin/ptxas", Verdict.FAIL),
        ("/home/ubuntu/bin/ptxas", Verdict.NA),
    ],
)
def test_the_ptxas_that_is_named_counts(path: str, wanted: Verdict) -> None:
    assert verdict("triton-ptxas-newer-than-driver", env={"TRITON_PTXAS_PATH": path}) is wanted


def test_the_wheels_assemblers() -> None:
    assert _bundled((2, 1, 0), False) == (12, 1)
    assert _bundled((3, 3, 1), False) == _bundled((3, 0), True) == (12, 4)
    assert _bundled((3, 6, 0), True) == (12, 9)
    assert _bundled((3, 7, 1), True) == (13, 1)
    assert _bundled((4, 0), True) == (13, 4)
    assert _bundled((2, 0), False) == ()


def said(text: str) -> dict[str, Verdict]:
    seen = evidence.read(text, "report")
    assert seen is not None
    return {result.rule.id: result.verdict for result in engine.judge(seen, CATALOGUE)}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "libcuda-not-linkable"),
        ("AssertionError: libcuda.so cannot found!", "libcuda-not-linkable"),
        ("UserWarning: fused_dense was requested, but nvcc was not found.  Are you sure", "cuda-toolkit-missing"),
        ("MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)", "cuda-toolkit-missing"),
    ],
)
def test_what_a_build_said(line: str, rule: str) -> None:
    failed = {name for name, found in said(f"Traceback\n{line}\n").items() if found is Verdict.FAIL}
    assert failed == {rule}


REPORT = """Collecting environment information...
PyTorch version: 2.4.1+cu121
CUDA used to build PyTorch: 12.1
[pip3] torch==2.4.1
[pip3] nvidia-cudnn-cu12==9.1.0.70
"""


def test_another_packages_complaint_about_cudnn() -> None:
    name = "cudnn-not-on-loader-path"
    lacking = "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}"
    assert said(REPORT + lacking)[name] is Verdict.FAIL
    assert (
        said(REPORT + "Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8")[name] is not Verdict.FAIL
    )
    assert said(REPORT)[name] is not Verdict.FAIL


def test_nix_tells_its_own_triton_where_the_driver_is() -> None:
    seen = load("healthy", answers={"loader-cache": {"error": "absent"}})
    python = need(seen.python)
    store = "/nix/store/x-python3.12-triton-3.6.0/lib/python3.12/site-packages"
    packages = tuple(
        msgspec.structs.replace(item, location=store) if item.name == "triton" else item for item in need(python.distributions)
    )
    patched = msgspec.structs.replace(seen, python=msgspec.structs.replace(python, distributions=packages))
    assert judge(seen)["libcuda-not-linkable"].verdict is Verdict.FAIL
    assert judge(patched)["libcuda-not-linkable"].verdict is Verdict.NA
