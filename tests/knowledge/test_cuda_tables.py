"""The tables of drivers, CUDA versions and GPUs: complete, ordered, and true where the world is known."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.knowledge import cuda, gpus, torch
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import version


@pytest.mark.parametrize(
    ("build", "driver"),
    [
        ((13, 0), "580.65.06"),
        ((13, 9), "580.65.06"),
        ((12, 1), "525.60.13"),
        ((11, 7), "450.80.02"),
        ((10, 1), "418.39"),
        ((9, 0), "384.81"),
    ],
)
def test_the_series_floor_decides(build: tuple[int, int], driver: str) -> None:
    floor = cuda.floor_for(build)
    assert floor is not None and floor.driver == driver and floor.version == version(driver)


def test_the_toolkits_own_driver_is_another_floor() -> None:
    floor = cuda.toolkit_floor((12, 4))
    assert floor is not None and floor.driver == "550.54.14"  # of its releases the first


@pytest.mark.parametrize(
    ("driver", "highest"),
    [
        ("450.51.06", (11, 0)),
        ("470.256.02", (11, 4)),
        ("525.147.05", (12, 0)),
        ("570.86.10", (12, 8)),
        ("580.95.05", (13, 0)),
        ("610.43.02", (13, 3)),
        ("620.70.06", (13, 5)),
    ],
)
def test_highest_cuda_of_a_driver(driver: str, highest: tuple[int, int]) -> None:
    assert cuda.max_cuda(version(driver)) == highest


@pytest.mark.parametrize("driver", [(), (699, 1), (9999,)])
def test_no_claim_about_unknown_drivers(driver: tuple[int, ...]) -> None:
    assert cuda.max_cuda(driver) is None


def test_no_newer_branch_supports_less() -> None:
    highest = [version(row["max_cuda_reported"]) for row in rows("driver_branch_cuda") if version(row["max_cuda_reported"])]
    assert highest == sorted(highest)


@pytest.mark.parametrize(
    "name",
    ["cuda_minor_compat", "cuda_toolkit_driver", "driver_branch_cuda", "gpus", "gpu_ids", "gpu_architectures", "gpu_names"],
)
def test_every_row_has_a_source(name: str) -> None:
    assert [row for row in rows(name) if not row["source"]] == []


def test_names_and_device_ids_agree_on_every_model() -> None:
    for row in rows("gpus"):
        for name in row["nvml_name_examples"].split("|"):
            if name == "?":
                continue
            assert gpus.compute_capability(name) == version(row["cc"]), f"{name}: not what gpus.csv says"
            pattern_only = gpus.compute_capability(f"{name} ")  # not the exact name: by pattern
            assert pattern_only == version(row["cc"]), f"{name}: no row of gpu_names.csv, in order, gives {row['cc']}"
        for device in row["pci_device_ids"].split():
            if len(device) == 4:
                found = gpus.architecture_by_device(device)
                assert found is not None, (
                    f"{device} ({row['name']}): no range of gpu_device_ids.csv, or no row of gpu_architectures.csv"
                )
                assert found.name == row["arch"].split()[0], f"{device}: gpus.csv and gpu_device_ids.csv differ"
                assert found.first_cc <= version(row["cc"]) <= found.last_cc, (
                    f"{device}: outside what gpu_architectures.csv gives"
                )


def test_a_card_of_name_and_id_alone_is_known_by_both() -> None:
    for row in rows("gpu_ids"):
        arch, cc = gpus.architecture_by_device(row["pci_device_id"]), gpus.compute_capability(row["name"])
        assert arch is not None, f"{row['pci_device_id']} ({row['name']}): no range of gpu_device_ids.csv holds it"
        assert cc is not None, f"{row['name']}: no row of gpu_names.csv fits"
        assert arch.first_cc <= cc <= arch.last_cc, f"{row['name']}: its name says {cc}, its id {arch.name}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H20", (9, 0)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA RTX 4000 Ada Generation", (8, 9)),
        ("NVIDIA RTX A4000", (8, 6)),
        ("NVIDIA GeForce RTX 2050", (8, 6)),
        ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", (12, 0)),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", (8, 0)),
        ("Quadro RTX 6000", (7, 5)),
        ("Tesla K80", (3, 7)),
        ("NVIDIA GeForce ...", None),
        ("AMD Instinct MI300X", None),
        ("llvmpipe", None),
        ("", None),
    ],
)
def test_compute_capability_by_name(name: str, expected: tuple[int, int] | None) -> None:
    assert gpus.compute_capability(name) == expected


def test_device_id_ranges_do_not_overlap() -> None:
    ranges = sorted((int(row["first"], 16), int(row["last"], 16)) for row in rows("gpu_device_ids"))
    assert all(first <= last for first, last in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


@given(st.text())
def test_any_name_is_survived(text: str) -> None:
    gpus.compute_capability(text)
    gpus.architecture_by_device(text)
    cuda.floor_for(version(text))
    cuda.max_cuda(version(text))


@pytest.mark.parametrize("release", torch.releases(), ids=lambda release: release.torch)
def test_the_code_of_every_offered_build_is_known(release: torch.Release) -> None:
    """Each build for x86_64 has a row, and each row names code that its CUDA can make."""
    for variant in release.variants:
        number = torch.local_cuda(f"{release.torch}+{variant}")
        found = torch.compiled_for(release.torch, number, "x86_64")
        assert found is not None, f"torch_arch_list.csv has no row of torch {release.torch} for {variant}"
        for made in filter(None, (found, torch.compiled_for(release.torch, number, "aarch64"))):
            oldest, newest = torch.sm_range(version(number)) or (0, 0)
            assert all(oldest <= int(name.partition("_")[2].rstrip("a")) <= newest for name in made.arches), (
                variant,
                made.arches,
            )


@pytest.mark.parametrize(
    ("build", "number", "machine", "fits"),
    [
        ("2.7.1+cu128", "12.8", "aarch64", {(9, 0), (10, 0), (12, 1)}),  # an A100 beside an Arm processor: only from 2.8 on
        ("2.8.0+cu129", "12.9", "aarch64", {(8, 0), (9, 0), (10, 0), (12, 1)}),
        ("2.10.0+cu130", "13.0", "aarch64", {(8, 0), (9, 0), (10, 0), (11, 0), (12, 1)}),
        ("2.10.0+cu128", "12.8", "x86_64", {(7, 0), (8, 0), (9, 0), (10, 0), (12, 1)}),
        ("2.11.0+cu128", "12.8", "x86_64", {(8, 0), (9, 0), (10, 0), (12, 1)}),
        ("1.13.1+cu117", "11.7", "x86_64", {(7, 0), (8, 0)}),
    ],
)
def test_which_gpus_a_build_serves(build: str, number: str, machine: str, fits: set[tuple[int, int]]) -> None:
    made = torch.compiled_for(build, number, machine)
    assert made is not None
    asked = {(7, 0), (8, 0), (9, 0), (10, 0), (11, 0), (12, 1)}
    assert {gpu for gpu in asked if any(torch.runs(name, gpu, version(number)) for name in made.arches)} == fits
