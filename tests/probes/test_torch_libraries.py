"""What importing torch would load, against a real process that does the same with small libraries, and against a real torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_loader_path import Yard

from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.facts.python import LoaderChoice, PythonFacts, Torch
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.python import probe
from torchtune_sys.probes.python.loader_path import CUDA
from torchtune_sys.probes.python.torch_libraries import parse_preloads, predict

WHEELS = "$ORIGIN/../../nvidia/cudart/lib:$ORIGIN/../../nvidia/cusparse/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN"
NONE = Missing(Why.ABSENT, "torch", "")
SAFE = """
def _preload_cuda_deps(lib_folder, lib_name): ...
def _load_global_deps():
    try:
        load()
        _maps = open("/proc/self/maps").read()
        if "nvidia/cudart/lib/libcudart.so" not in _maps:
            return
        _preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")
    except OSError as err:
        cuda_libs = {"cudart": "libcudart.so.*[0-9]", "nvjitlink": "libnvJitLink.so.*[0-9]"}
USE_RTLD_GLOBAL_WITH_LIBTORCH = False
"""
OLD = """
def _preload_cuda_deps(lib_folder, lib_name): ...
def _load_global_deps():
    try:
        load()
    except OSError as err:
        cuda_libs = {"cudart": "libcudart.so.*[0-9]", "cusparse": "libcusparse.so.*[0-9]"}
"""


def build(root: Path, *, rpath: str = WHEELS, init: str = OLD) -> Yard:
    """A torch of five libraries and its wheels: libcusparse finds nvJitLink by DT_RUNPATH, as NVIDIA's does."""
    yard = Yard(root)
    yard.lib("site/nvidia/cudart/lib/libcudart.so.12")
    yard.lib("site/nvidia/nvjitlink/lib/libnvJitLink.so.12")
    yard.lib("other/libnvJitLink.so.12")
    yard.lib("other/libcudart.so.12")
    yard.lib(
        "site/nvidia/cusparse/lib/libcusparse.so.12",
        needs=("site/nvidia/nvjitlink/lib/libnvJitLink.so.12",),
        runpath="$ORIGIN/../../nvjitlink/lib",
    )
    cudart, cusparse = "site/nvidia/cudart/lib/libcudart.so.12", "site/nvidia/cusparse/lib/libcusparse.so.12"
    yard.lib("site/torch/lib/libtorch_global_deps.so", needs=(cudart,), rpath=rpath)
    yard.lib("site/torch/lib/libtorch_cuda.so", needs=(cudart, cusparse), rpath=rpath)
    yard.lib("site/torch/_C.cpython-312-x86_64-linux-gnu.so", needs=("site/torch/lib/libtorch_cuda.so",), rpath="$ORIGIN/lib")
    (root / "site/torch/__init__.py").write_text(init)
    return yard


def versions(root: Path, main: str, library_path: str) -> dict[str, str]:
    return {item.name: item.version for item in choices(root, main, {"LD_LIBRARY_PATH": library_path})}


def predicted(root: Path, main: str, env: dict[str, str]) -> dict[str, str]:
    found = choices(root, main, env)
    return {
        item.name: os.path.realpath(item.path) for item in found if isinstance(item.path, str) and "libcuda.so" not in item.name
    }


def choices(root: Path, main: str, env: dict[str, str]) -> tuple[LoaderChoice, ...]:
    site = str(root / "site")
    torch = Torch(
        version="2.4.1", location=f"{site}/torch", cuda="12.1", hip=NONE, debug=False, arch_list=NONE, nccl=NONE, cudnn=NONE
    )
    facts = PythonFacts(executable=main, sys_path=(site,), glibc="2.39", torch=torch)
    found = predict(LiveHost(), facts, env)
    assert not isinstance(found, Missing), found
    return found


needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")


@needs_gcc
@pytest.mark.parametrize("init", [OLD, SAFE], ids=["old", "loads nvJitLink first"])
@pytest.mark.parametrize("shadowed", [False, True])
def test_the_same_files_as_a_process_that_does_what_torch_does(init: str, shadowed: bool, tmp_path: Path) -> None:
    yard = build(tmp_path, init=init)
    main, site = yard.main(), tmp_path / "site"
    env = {"LD_LIBRARY_PATH": f"{tmp_path}/other"} if shadowed else {}
    first = str(site / "nvidia/nvjitlink/lib/libnvJitLink.so.12")
    opened = [str(site / "torch/lib/libtorch_global_deps.so"), *([first] if init is SAFE else [])]
    opened.append(str(site / "torch/_C.cpython-312-x86_64-linux-gnu.so"))
    truth = yard.truth(main, tuple(opened), env, str(tmp_path))
    assert sorted(predicted(tmp_path, main, env).values()) == [path for path in truth if path.rpartition("/")[2].startswith(CUDA)]
    shadow = str(tmp_path / "other/libnvJitLink.so.12")
    assert (shadow in truth) is (shadowed and init is OLD)


@needs_gcc
def test_after_a_failure_the_wheels_are_loaded_by_their_full_path(tmp_path: Path) -> None:
    yard = build(tmp_path, rpath="$ORIGIN")
    found = predicted(tmp_path, yard.main(), {})
    assert found == {
        "libcudart.so.12": str(tmp_path / "site/nvidia/cudart/lib/libcudart.so.12"),
        "libcusparse.so.12": str(tmp_path / "site/nvidia/cusparse/lib/libcusparse.so.12"),
        "libnvJitLink.so.12": str(tmp_path / "site/nvidia/nvjitlink/lib/libnvJitLink.so.12"),
    }


@needs_gcc
def test_the_version_of_another_environments_wheel(tmp_path: Path) -> None:
    yard = build(tmp_path)
    yard.lib("env/nvidia/nvjitlink/lib/libnvJitLink.so.12")
    for wheel in ("nvidia_nvjitlink_cu12-12.1.105", "nvidia_nvjitlink_cu11-11.8.89", "nvidia_cudnn_cu12-12.0"):
        (tmp_path / "env" / f"{wheel}.dist-info").mkdir()
    yard.lib("link/libnvJitLink.so.12.4.99", flags=("-Wl,-soname,libnvJitLink.so.12",))
    (tmp_path / "link" / "libnvJitLink.so.12").symlink_to("libnvJitLink.so.12.4.99")
    assert versions(tmp_path, yard.main(), f"{tmp_path}/env/nvidia/nvjitlink/lib")["libnvJitLink.so.12"] == "12.1.105"
    assert versions(tmp_path, yard.main(), f"{tmp_path}/link")["libnvJitLink.so.12"] == "12.4.99"
    assert versions(tmp_path, yard.main(), "")["libnvJitLink.so.12"] == ""


def test_a_build_without_cuda_is_not_looked_at() -> None:
    torch = Torch(version="2.4.1", location="/x", cuda=NONE, hip=NONE, debug=False, arch_list=NONE, nccl=NONE, cudnn=NONE)
    assert predict(LiveHost(), PythonFacts(torch=torch), {}) is NONE


@pytest.mark.parametrize(("cuda", "always"), [("12.4", (("nvjitlink", "libnvJitLink.so."),)), ("12.1", ())])
def test_the_form_of_2_5_asks_for_cudas_version(cuda: str, always: tuple[tuple[str, str], ...]) -> None:
    text = SAFE.replace("_maps = open", 'if version.cuda in ["12.4", "12.6"]: pass\n        _maps = open')
    text = text.replace("not in _maps", "in _maps")
    found = parse_preloads(text, cuda)
    assert found.always == always and found.condition == "nvidia/cudart/lib/libcudart.so"


@given(st.text(max_size=300), st.booleans())
def test_any_text_is_survived(text: str, begun: bool) -> None:
    parse_preloads(("def _preload_cuda_deps" if begun else "") + text, "12.1")


@pytest.mark.skipif(
    not os.environ.get("TORCHTUNE_SYS_CUDA_PYTHON"), reason="TORCHTUNE_SYS_CUDA_PYTHON names no Python with a CUDA torch"
)
def test_a_real_torch_maps_what_was_predicted() -> None:
    python = os.environ["TORCHTUNE_SYS_CUDA_PYTHON"]
    found = probe.probe(LiveHost(), Workload(python=python)).loader
    assert not isinstance(found, Missing), found
    code = "import torch\nfor line in open('/proc/self/maps'): print(line.split()[-1])"
    maps = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    real = {path for path in maps if path.startswith("/") and path.rpartition("/")[2].startswith(CUDA)}
    files = {os.path.realpath(item.path): item for item in found if isinstance(item.path, str)}
    assert real <= set(files)
    later = {path for path in set(files) - real if not _opened_later(files[path])}
    assert not later


def _opened_later(item: LoaderChoice) -> bool:
    return item.name.startswith(("libcudnn_", "libcuda.so"))
