"""Where the torch rules turn: driver floors, code that runs, pins, partners. Expected values come from the vendors' tables, not from ours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import altered
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge, load
from torchtune_sys.formats.requirements import holds, parse, satisfies
from torchtune_sys.knowledge import torch as known
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import NOT_READ, CudaLibrary, Distribution, LoaderChoice, PythonFacts, Torch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.model.version import version

HEALTHY = load("healthy")
SITE = "/data/train/.venv/lib/python3.12/site-packages"
NO = Missing(Why.ABSENT, "test", "none")


def torch(version_: str, cuda: str | None) -> Torch:
    return Torch(
        version=version_,
        location=f"{SITE}/torch",
        cuda=cuda or NO,
        hip=NO,
        debug=False,
        arch_list=NO,
        nccl=NO,
        cudnn=NO,
    )


def host(
    build: Torch | None = None,
    *,
    driver: str = "",
    max_cuda: str = "",
    cc: tuple[int, int] | None = None,
    distributions: dict[str, str] | None = None,
    **python: Any,
) -> Snapshot:
    """The healthy host with another torch, driver or GPU."""
    facts, gpu, drv = HEALTHY.python, HEALTHY.gpu, HEALTHY.driver
    assert isinstance(facts, PythonFacts) and not isinstance(gpu, Missing) and not isinstance(drv, Missing)
    if build is not None:
        python["torch"] = build
    if distributions is not None:
        python["distributions"] = tuple(Distribution(name=n, version=v, location=SITE) for n, v in distributions.items())
    if driver:
        gpu = msgspec.structs.replace(gpu, driver_version=driver, cuda_driver_version=max_cuda or NO)
        drv = msgspec.structs.replace(drv, module_version=driver)
    if cc:
        gpu = msgspec.structs.replace(gpu, devices=(Gpu(index=0, name="a GPU", compute_capability=cc),))
    return msgspec.structs.replace(HEALTHY, python=msgspec.structs.replace(facts, **python), gpu=gpu, driver=drv)


def verdict(seen: Snapshot, rule_id: str) -> Verdict:
    return judge(seen)[rule_id].verdict


@pytest.mark.parametrize(
    ("build", "cuda", "driver", "wanted"),
    [
        ("2.11.0+cu130", "13.0", "580.65.06", Verdict.PASS),
        ("2.11.0+cu130", "13.0", "580.65.05", Verdict.FAIL),
        ("2.11.0+cu130", "13.0", "575.57.08", Verdict.FAIL),
        ("2.15.0+cu132", "13.2", "580.65.06", Verdict.PASS),
        ("2.10.0+cu128", "12.8", "525.60.13", Verdict.PASS),
        ("2.10.0+cu128", "12.8", "525.60.11", Verdict.FAIL),
        ("2.10.0+cu128", "12.8", "470.256.02", Verdict.FAIL),
        ("2.10.0+cu128", "12.8", "615.10.01", Verdict.PASS),
        ("2.0.1+cu118", "11.8", "450.80.02", Verdict.PASS),
        ("2.0.1+cu118", "11.8", "450.51.06", Verdict.FAIL),
        ("1.10.0+cu102", "10.2", "440.33", Verdict.PASS),
        ("1.10.0+cu102", "10.2", "418.87", Verdict.FAIL),
    ],
)
def test_the_series_floor_decides_not_the_toolkits_own_driver(build: str, cuda: str, driver: str, wanted: Verdict) -> None:
    assert verdict(host(torch(build, cuda), driver=driver), "driver-too-old") is wanted


def test_a_compat_package_that_the_driver_reports_is_enough() -> None:
    assert verdict(host(torch("2.11.0+cu130", "13.0"), driver="535.104.05", max_cuda="13.0"), "driver-too-old") is Verdict.PASS


@pytest.mark.parametrize(
    ("build", "driver", "words"),
    [
        ("2.11.0+cu130", "550.54.15", "torch 2.11.0 from the cu128 index"),
        ("2.15.0+cu132", "550.54.15", "torch 2.14.1 (the last with builds for CUDA 12)"),
        ("2.15.0+cu132", "470.82.01", "torch 2.6.0 (the last with builds for CUDA 11)"),
    ],
)
def test_the_other_way_out_is_a_build_that_exists(build: str, driver: str, words: str) -> None:
    result = judge(host(torch(build, "13.0"), driver=driver))["driver-too-old"]
    found = result.evidence[0].wanted
    if "CUDA 11" in words:
        assert "the last with builds for CUDA 11" in found
    else:
        assert words in found


@pytest.mark.parametrize(
    ("build", "cuda", "cc", "wanted"),
    [
        ("2.11.0+cu130", "13.0", (7, 5), Verdict.PASS),
        ("2.11.0+cu130", "13.0", (7, 0), Verdict.FAIL),
        ("2.11.0+cu128", "12.8", (7, 0), Verdict.FAIL),
        ("2.10.0+cu128", "12.8", (7, 0), Verdict.PASS),
        ("2.11.0+cu126", "12.6", (6, 1), Verdict.PASS),
        ("2.11.0+cu130", "13.0", (8, 9), Verdict.PASS),
        ("2.11.0+cu130", "13.0", (10, 3), Verdict.PASS),
        ("2.11.0+cu130", "13.0", (12, 1), Verdict.PASS),
        ("2.6.0+cu124", "12.4", (12, 0), Verdict.FAIL),
        ("2.7.0+cu128", "12.8", (12, 0), Verdict.PASS),
        ("2.6.0+cu126", "12.6", (10, 0), Verdict.FAIL),
        ("2.6.0.dev20241112+cu121", "12.1", (12, 0), Verdict.FAIL),
        ("2.5.0a0+872d972e41.nv24.08", "12.6", (9, 0), Verdict.PASS),
        ("1.7.1", "10.2", (8, 6), Verdict.FAIL),
        ("1.7.1", "10.2", (7, 5), Verdict.PASS),
    ],
)
def test_code_runs_within_its_major_version(build: str, cuda: str, cc: tuple[int, int], wanted: Verdict) -> None:
    assert verdict(host(torch(build, cuda), cc=cc), "gpu-arch-not-in-wheel") is wanted


@pytest.mark.parametrize(
    ("gib", "visible", "ranks", "wanted"),
    [
        (2, None, None, Verdict.UNKNOWN),  # a GT 1030 for the display beside an RTX 4090
        (2, None, 2, Verdict.FAIL),  # asked to train on both
        (16, None, None, Verdict.FAIL),
        (16, "0", None, Verdict.UNKNOWN),
        (16, "1,0", None, Verdict.FAIL),
        (16, "1", None, Verdict.FAIL),  # the slower one alone
        (16, "GPU-a1", None, Verdict.FAIL),
        (16, "GPU-a0", None, Verdict.UNKNOWN),
    ],
)
def test_a_card_that_may_only_drive_a_display(gib: int, visible: str | None, ranks: int | None, wanted: Verdict) -> None:
    seen = host(torch("2.11.0+cu130", "13.0"))
    sizes = (24 << 30, gib << 30)
    cards = (
        Gpu(index=index, uuid=f"GPU-a{index}", name=name, compute_capability=cc, memory_total_bytes=size)
        for index, (name, cc, size) in enumerate(zip(("RTX 4090", "GT 1030"), ((8, 9), (6, 1)), sizes, strict=True))
    )
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    seen = altered(seen, gpu__devices=tuple(cards), session__env=env, intent__ranks=ranks)
    found = judge(seen)["gpu-arch-not-in-wheel"].evidence
    assert [(item.subject, item.verdict) for item in found] == [("GPU 0", Verdict.PASS), ("GPU 1", wanted)]
    formats = judge(seen)["fp16-without-speed"].evidence
    trained_on = wanted is Verdict.FAIL
    assert [item.verdict for item in formats] == [Verdict.PASS, Verdict.FAIL if trained_on else Verdict.NA]


@pytest.mark.parametrize("row", rows("cubin_compat"), ids=lambda row: str(row["code_sm"]))
def test_the_cubin_rule_agrees_with_its_table(row: dict[str, str]) -> None:
    """Each row's plain statement, checked device by device where the table names one."""
    named = {
        "75": [(7, 5)],
        "80": [(8, 0), (8, 6), (8, 9)],
        "86": [(8, 6), (8, 9)],
        "89": [(8, 9)],
        "90": [(9, 0)],
        "100": [(10, 0), (10, 3)],
    }
    named |= {"103": [(10, 3)], "120": [(12, 0), (12, 1)], "121": [(12, 1)]}
    for cc in named.get(row["code_sm"], []):
        assert known.runs(f"sm_{row['code_sm']}", cc, (12, 8))
    if row["code_sm"] in named:
        assert not known.runs(f"sm_{row['code_sm']}", (5, 0), (12, 8))
        assert not known.runs(f"sm_{row['code_sm']}", (13, 0), (12, 8))


@given(st.text(max_size=12), st.tuples(st.integers(0, 20), st.integers(0, 9)))
def test_any_architecture_name_is_survived(arch: str, cc: tuple[int, int]) -> None:
    known.runs(arch, cc, (12, 8))
    known.runs(f"sm_{arch}", cc, ())


def test_every_release_can_be_looked_up() -> None:
    assert len(known.releases()) >= 30
    for item in known.releases():
        assert known.release(f"{item.torch}+cu999") is item
        assert version(item.cuda) and item.variants and item.abis


@pytest.mark.parametrize(
    ("numpy", "build", "wanted"),
    [
        ("2.0.0", "2.2.2", Verdict.FAIL),
        ("2.0.0", "2.3.0", Verdict.PASS),
        ("1.26.4", "2.2.2", Verdict.PASS),
        ("2.1.0", "1.13.1", Verdict.FAIL),
    ],
)
def test_numpy(numpy: str, build: str, wanted: Verdict) -> None:
    seen = host(torch(build, "12.1"), distributions={"torch": build, "numpy": numpy})
    assert verdict(seen, "numpy2-with-old-torch") is wanted


@pytest.mark.parametrize(
    ("vision", "build", "wanted"),
    [
        ("0.20.1", "2.5.1", Verdict.PASS),
        ("0.20.1+cu124", "2.5.1+cu124", Verdict.PASS),
        ("0.20.0", "2.5.1", Verdict.FAIL),
        ("0.20.1+cu118", "2.5.1+cu124", Verdict.FAIL),
        ("0.20.1+cu121", "2.5.1+cu124", Verdict.PASS),
        ("0.14.1+cu116", "1.13.1+cu117", Verdict.FAIL),
        ("0.20.1+cpu", "2.5.1+cu124", Verdict.FAIL),
        ("0.29.2", "2.15.0", Verdict.PASS),
        ("0.29.1", "2.14.1", Verdict.PASS),
        ("0.28.0", "2.14.1", Verdict.FAIL),
        ("0.16.1+fdea156", "2.4.1+rocm6.1", Verdict.NA),
        ("0.20.0a0", "2.5.1", Verdict.NA),
    ],
)
def test_torchvision(vision: str, build: str, wanted: Verdict) -> None:
    cuda = known.local_cuda(build) or {"2.15.0": "13.2", "2.14.1": "13.0"}.get(build, "12.4")
    seen = host(torch(build, cuda), distributions={"torch": build, "torchvision": vision})
    assert verdict(seen, "torch-torchvision-mismatch") is wanted


@pytest.mark.parametrize(
    ("audio", "build", "wanted"),
    [
        ("2.11.0", "2.15.0", Verdict.PASS),
        ("2.11.0", "2.11.0", Verdict.PASS),
        ("2.10.0", "2.10.0", Verdict.PASS),
        ("2.9.1", "2.10.0", Verdict.FAIL),
    ],
)
def test_torchaudio_ended_at_2_11(audio: str, build: str, wanted: Verdict) -> None:
    seen = host(torch(build, "13.0"), distributions={"torch": build, "torchaudio": audio})
    assert verdict(seen, "torch-torchaudio-mismatch") is wanted


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ({"nvidia-nccl-cu12": "2.29.3", "nvidia-nccl-cu13": "2.29.7"}, Verdict.FAIL),
        ({"nvidia-nccl-cu12": "2.29.7", "nvidia-nccl-cu13": "2.29.7"}, Verdict.PASS),
        ({"nvidia-cublas-cu12": "12.4.5.8", "nvidia-cublas": "13.1.0.3"}, Verdict.PASS),
    ],
)
def test_mixed_wheels(there: dict[str, str], wanted: Verdict) -> None:
    assert verdict(host(torch("2.12.0+cu130", "13.0"), distributions=there), "mixed-nvidia-cuda-wheels") is wanted


def test_nccl_for_cuda_11_and_12_side_by_side_is_no_finding() -> None:
    seen = host(torch("2.3.1+cu121", "12.1"), distributions={"nvidia-nccl-cu11": "2.14.3", "nvidia-nccl-cu12": "2.20.5"})
    assert verdict(seen, "mixed-nvidia-cuda-wheels") is Verdict.PASS


@pytest.mark.parametrize(
    ("abi", "found", "wanted"),
    [
        ("9", "9.10.2", Verdict.FAIL),
        ("9", "9.19.0", Verdict.PASS),
        ("9", "9.24.0", Verdict.PASS),
        ("8", "8.9.7", Verdict.UNKNOWN),
        ("9", "", Verdict.UNKNOWN),
    ],
)
def test_only_an_older_library_of_the_same_abi_is_a_finding(abi: str, found: str, wanted: Verdict) -> None:
    library = CudaLibrary(name="libcudnn", abi=abi, version=found, path=f"/opt/lib/libcudnn.so.{abi}")
    assert verdict(host(shadowing=(library,), loader=NOT_READ), "cudnn-shadowed-by-ld-library-path") is wanted


@pytest.mark.parametrize(
    ("name", "found", "wanted"),
    [
        ("libcudnn.so.9", "9.10.2", Verdict.FAIL),
        ("libcudnn_graph.so.9", "9.10.2", Verdict.FAIL),
        ("libcudnn_graph.so.9", "9.19.0", Verdict.PASS),
        ("libcudnn_graph.so.9", "9.24.0", Verdict.PASS),
        ("libcudnn.so.9", "", Verdict.UNKNOWN),
        ("libcudnn.so.8", "8.9.7", Verdict.PASS),
    ],
)
def test_what_the_loader_would_take_counts_before_what_lies_in_ld_library_path(name: str, found: str, wanted: Verdict) -> None:
    lying = CudaLibrary(name="libcudnn", abi="9", version="9.1.0", path="/opt/old/libcudnn.so.9")
    taken = LoaderChoice(name=name, path=f"/opt/lib/{name}", found_by="LD_LIBRARY_PATH", version=found)
    assert verdict(host(shadowing=(lying,), loader=(taken,)), "cudnn-shadowed-by-ld-library-path") is wanted


def test_the_wheels_own_directory_on_the_path_is_no_finding() -> None:
    library = CudaLibrary(name="libcudnn", abi="9", version="9.1.0", path=f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9")
    assert verdict(host(shadowing=(library,), loader=NOT_READ), "cudnn-shadowed-by-ld-library-path") is Verdict.PASS
    taken = LoaderChoice(name="libcudnn.so.9", path=library.path, found_by="LD_LIBRARY_PATH", version="9.1.0")
    assert verdict(host(loader=(taken,)), "cudnn-shadowed-by-ld-library-path") is Verdict.PASS


@pytest.mark.parametrize(("found", "wanted"), [("2.28", Verdict.PASS), ("2.27", Verdict.FAIL), ("2.39", Verdict.PASS)])
def test_glibc(found: str, wanted: Verdict) -> None:
    assert verdict(host(glibc=found), "glibc-too-old") is wanted


@pytest.mark.parametrize(
    ("python", "wanted"),
    [
        ("3.15.0", Verdict.PASS),
        ("3.16.0", Verdict.FAIL),
        ("3.7.9", Verdict.PASS),
        ("3.6.15", Verdict.FAIL),
        ("2.7.18", Verdict.FAIL),
    ],
)
def test_python_without_torch(python: str, wanted: Verdict) -> None:
    assert verdict(host(torch=NO, version=python), "no-wheel-for-python") is wanted


@pytest.mark.parametrize(
    ("cc", "bf16", "fp16"),
    [
        ((8, 0), "pass", "pass"),
        ((7, 5), "fail", "pass"),
        ((6, 1), "na", "fail"),
        ((3, 7), "na", "fail"),
        ((6, 0), "fail", "pass"),
    ],
)
def test_number_formats(cc: tuple[int, int], bf16: str, fp16: str) -> None:
    found = judge(host(torch("2.10.0+cu126", "12.6"), cc=cc))
    assert (found["bf16-emulated"].verdict.value, found["fp16-without-speed"].verdict.value) == (bf16, fp16)


def test_no_nvidia_findings_without_torch_or_with_a_cpu_build() -> None:
    for build in (NO, torch("2.11.0+cpu", None)):
        found = judge(host(torch=build))
        names = (
            "driver-too-old",
            "gpu-arch-not-in-wheel",
            "wheel-libs-not-found",
            "cudnn-shadowed-by-ld-library-path",
            "bf16-emulated",
        )
        assert {found[name].verdict for name in names} == {Verdict.NA}


@given(st.text(max_size=60))
def test_any_requirement_is_survived(line: str) -> None:
    parse(line)
    holds(line, {"python_version": "3.12", "extra": ""})
    satisfies(line, line)


@pytest.mark.parametrize(
    ("marker", "wanted"),
    [
        ("", True),
        ('python_version < "3.10"', False),
        ('python_version >= "3.9" and platform_machine == "x86_64"', True),
        ('(sys_platform == "win32" or sys_platform == "linux") and extra == "x"', False),
        ('platform_python_implementation != "PyPy"', None),
        ("nonsense", None),
    ],
)
def test_markers(marker: str, wanted: bool | None) -> None:
    here = {"python_version": "3.12", "sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}
    assert holds(marker, here) is wanted


def test_the_other_way_out_serves_the_gpu_too() -> None:
    """A GTX 1080 Ti (sm_61): the builds for CUDA 12.8 have no code for it, those for 12.6 do (pytorch/pytorch RELEASE.md)."""
    seen = host(torch("2.11.0+cu130", "13.0"), driver="535.183.01", cc=(6, 1))
    assert "the cu126 index" in judge(seen)["driver-too-old"].evidence[0].wanted
