"""Which driver and which GPU a build of torch asks for, and what counts where somebody has told already; each mark from both sides (torch)."""

from __future__ import annotations

from typing import Any

import pytest
from torch_hosts import (
    DENIED,
    FAIL,
    NA,
    NOTHING,
    PASS,
    UNKNOWN,
    UNTOLD,
    asked,
    build,
    changed,
    result,
    verdict,
    verdicts,
    with_gpus,
    without,
    without_gpu,
)

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
REFUSED = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4"
NO_CODE = "with CUDA capability sm_120 is not compatible with the current PyTorch installation."
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
PTX = "CUDA error: the provided PTX was compiled with an unsupported toolchain."


def with_torch(seen: Snapshot, version: str, cuda: Any = NOTHING, **facts: Any) -> Snapshot:
    return changed(seen, "python", torch=build(seen, version=version, cuda=cuda, **facts))


def with_driver(seen: Snapshot, version: Any, reported: Any = UNTOLD) -> Snapshot:
    seen = changed(seen, "driver", module_version=version, library_version=version)
    return changed(seen, "gpu", driver_version=version, cuda_driver_version=reported)


@pytest.mark.parametrize(
    ("made_for", "reported", "expected"),
    [
        ("13.0", "13.0", PASS),  # a cuda-compat package in front of an old kernel module
        ("13.0", "13.2", PASS),
        ("13.2", "13.0", PASS),  # minor-version compatibility
        ("13.0", "12.9", FAIL),
        ("12.8", "12.0", PASS),
        ("12.8", "11.8", FAIL),
        ("11.8", "11.4", PASS),
        ("10.2", "10.2", PASS),
        ("10.2", "10.1", FAIL),  # before CUDA 11 each minor version needs its own driver
        ("13.0", UNTOLD, FAIL),
        ("99.0", UNTOLD, NA),  # no table knows it
    ],
)
def test_the_cuda_that_the_driver_reports(healthy: Snapshot, made_for: str, reported: Any, expected: Verdict) -> None:
    seen = with_driver(with_torch(healthy, "2.11.0a0+own", made_for), "418.67", reported)
    assert verdict(seen, "driver-too-old") is expected


@pytest.mark.parametrize(
    ("made_for", "reported", "expected"),
    [
        ("13.0", "12.4", FAIL),
        ("13.0", "13.0", PASS),
        ("11.8", "12.4", PASS),  # a driver serves all older major versions
        ("10.2", "12.4", PASS),
        ("13.0", UNTOLD, UNKNOWN),
        ("13.0", "N/A", UNKNOWN),
    ],
)
def test_a_report_that_names_the_cuda_of_the_driver_alone(
    healthy: Snapshot, made_for: str, reported: Any, expected: Verdict
) -> None:
    seen = with_driver(with_torch(healthy, "2.11.0a0+own", made_for), UNTOLD, reported)
    assert verdict(seen, "driver-too-old") is expected


def test_a_driver_that_is_known_decides_before_the_cuda_it_reports(healthy: Snapshot) -> None:
    """580 runs CUDA 13, whatever an older library in front of it reports."""
    assert verdict(with_driver(healthy, "580.95.05", "12.4"), "driver-too-old") is PASS


@pytest.mark.parametrize(
    ("available", "expected"), [(True, PASS), (False, FAIL), (UNTOLD, FAIL)], ids=["available", "not available", "not told"]
)
def test_torchs_own_word_outdoes_the_versions(healthy: Snapshot, available: Any, expected: Verdict) -> None:
    seen = changed(with_driver(healthy, "535.104.05"), "python", live=asked(cuda_available=available))
    assert verdicts(seen, "driver-too-old")[0][1] is verdict(seen, "driver-too-old") is expected


@pytest.mark.parametrize("said", [TOO_OLD, REFUSED])
@pytest.mark.parametrize("torch", [None, NOTHING, DENIED], ids=["torch", "no torch", "torch unseen"])
def test_what_torch_or_the_container_toolkit_said_of_the_driver(healthy: Snapshot, said: str, torch: Any) -> None:
    seen = without_gpu(changed(healthy, "python", complaints=("another line", said)))
    if torch is not None:
        seen = changed(seen, "python", torch=torch)
    assert verdict(seen, "driver-too-old") is FAIL


@pytest.mark.parametrize(
    ("found", "cuda", "wanted"),
    [
        (
            "found version 11040)",
            NOTHING,
            "a newer driver (CUDA 13: >= 580.65.06, CUDA 12: >= 525.60.13), or torch 2.7.1 from the cu118 index",
        ),
        ("found version 12040)", NOTHING, "a newer driver (CUDA 13: >= 580.65.06), or torch 2.14.1 from the cu126 index"),
        (
            "found version 9010)",
            NOTHING,
            "a newer driver (CUDA 13: >= 580.65.06, CUDA 12: >= 525.60.13)",
        ),  # no table has one so old
        ("found version 13000)", NOTHING, "a newer driver, or a build of torch for an older CUDA"),
        ("found version 11040)", "12.8", "driver >= 525.60.13"),
        ("found another version)", NOTHING, "a newer driver, or a build of torch for an older CUDA"),
    ],
)
def test_what_to_take_instead(healthy: Snapshot, found: str, cuda: Any, wanted: str) -> None:
    said = f"RuntimeError: The NVIDIA driver on your system is too old ({found}. Please update your GPU driver"
    seen = with_torch(changed(healthy, "python", complaints=(said,)), "2.8.0", cuda)
    (evidence,) = result(seen, "driver-too-old").evidence
    assert (evidence.seen, evidence.wanted) == (said.partition(". Please")[0], wanted)


def test_what_torch_said_under_live(healthy: Snapshot) -> None:
    seen = changed(healthy, "python", live=asked(cuda_available=False, error=TOO_OLD))
    assert verdict(seen, "driver-too-old") is FAIL
    other = changed(healthy, "python", live=asked(cuda_available=False, error="CUDA unknown error"))
    assert verdict(other, "driver-too-old") is PASS


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"vendor": "nvidia", "driver_version": "535.104.05", "cuda_driver_version": UNTOLD}, FAIL),
        ({"vendor": "nvidia", "driver_version": UNTOLD, "cuda_driver_version": "12.2"}, FAIL),
        ({"vendor": "nvidia", "driver_version": UNTOLD, "cuda_driver_version": UNTOLD}, UNKNOWN),
        ({"vendor": "amd", "driver_version": "6.12.12", "cuda_driver_version": UNTOLD}, UNKNOWN),
    ],
)
def test_a_report_that_names_a_driver_has_a_gpu(healthy: Snapshot, gpu: dict[str, Any], expected: Verdict) -> None:
    seen = without(changed(healthy, "gpu", devices=UNTOLD, **gpu), "driver")
    assert verdict(seen, "driver-too-old") is expected


def test_without_a_gpu_no_driver_is_too_old(healthy: Snapshot) -> None:
    bare = without_gpu(with_driver(healthy, UNTOLD))
    assert verdict(bare, "driver-too-old") is NA
    assert verdict(without(bare, "gpu"), "driver-too-old") is NA
    assert verdict(changed(without_gpu(with_driver(healthy, "6.12.12")), "gpu", vendor="amd"), "driver-too-old") is NA
    assert verdict(without(healthy, "gpu"), "driver-too-old") is PASS  # by the kernel module


@pytest.mark.parametrize("rule_id", ["driver-too-old", "gpu-arch-not-in-wheel", "ptx-newer-than-driver"])
def test_an_interpreter_that_was_not_seen(healthy: Snapshot, rule_id: str) -> None:
    assert verdict(without(healthy, "python"), rule_id) is UNKNOWN


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.11.0+cpu", UNTOLD, NA),
        ("2.11.0+rocm6.4", UNTOLD, NA),
        ("2.11.0+xpu", UNTOLD, NA),
        ("2.11.0+cu130", UNTOLD, FAIL),
        ("2.11.0+cu126", UNTOLD, PASS),
        ("2.11.0", UNTOLD, FAIL),  # PyPI's is for CUDA 13.0
        ("2.10.0", UNTOLD, PASS),  # and was for 12.8
        ("2.11.0+own", UNTOLD, UNKNOWN),
        ("2.11.0.dev20260101", UNTOLD, UNKNOWN),
        ("2.11.0", "12.6", PASS),  # built from source
        ("2.11.0+cu130", "12.6", PASS),
        ("2.11.0", NOTHING, NA),
    ],
)
def test_the_cuda_of_a_build(healthy: Snapshot, version: str, cuda: Any, expected: Verdict) -> None:
    assert verdict(with_driver(with_torch(healthy, version, cuda), "535.104.05"), "driver-too-old") is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((NO_CODE,), [("GPU", FAIL)]),
        ((NO_KERNEL,), [("GPU 0", PASS)]),  # torch has the code: another package lacks it
        (("no kernel was found",), [("GPU 0", PASS)]),
    ],
)
def test_what_torch_said_of_its_code(healthy: Snapshot, said: tuple[str, ...], expected: list[tuple[str, Verdict]]) -> None:
    seen = changed(with_gpus(healthy, (9, 0)), "python", complaints=said)
    assert verdicts(seen, "gpu-arch-not-in-wheel") == expected


def test_a_missing_kernel_is_torchs_where_nothing_else_can_be_judged(healthy: Snapshot) -> None:
    said = changed(healthy, "python", complaints=(NO_KERNEL,))
    assert verdict(said, "gpu-arch-not-in-wheel") is PASS
    assert verdict(without(said, "gpu"), "gpu-arch-not-in-wheel") is FAIL
    assert verdict(changed(said, "python", torch=UNTOLD), "gpu-arch-not-in-wheel") is FAIL


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, FAIL),  # by the table: builds for CUDA 13 begin with Turing
        ({"arch_list": ("sm_70", "sm_90")}, PASS),
        ({"arch_list": ("sm_90",)}, FAIL),
        ({"arch_list": UNTOLD, "live": ("sm_70",)}, PASS),
        ({"arch_list": UNTOLD, "live": ("sm_90",)}, FAIL),
        ({"arch_list": UNTOLD, "live": UNTOLD}, FAIL),
        ({"arch_list": ("sm_70",), "live": ("sm_90",)}, PASS),
        ({"arch_list": ("sm_90",), "live": ("sm_70",)}, FAIL),
    ],
)
def test_what_torch_tells_of_its_code_goes_before_the_table(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    seen = with_gpus(healthy, (7, 0))
    told = build(seen, arch_list=facts.get("arch_list", UNTOLD))
    live = asked(arch_list=facts["live"]) if "live" in facts else NOTHING
    assert verdict(changed(seen, "python", torch=told, live=live), "gpu-arch-not-in-wheel") is expected


@pytest.mark.parametrize(
    ("cuda", "cc", "expected"),
    [
        ("12.1", (5, 0), PASS),
        ("12.1", (3, 7), FAIL),
        ("12.1", (8, 0), PASS),
        ("12.1", (9, 0), PASS),
        ("12.1", (10, 0), FAIL),
        ("11.3", (8, 6), PASS),
        ("11.3", (8, 9), PASS),  # Ada runs code for Ampere
        ("11.3", (9, 0), FAIL),
        ("11.3", (3, 7), PASS),
        ("11.3", (3, 5), PASS),
        ("11.3", (3, 2), FAIL),
        ("11.3", (3, 0), FAIL),
        ("99.0", (9, 0), None),
    ],
)
def test_a_nightly_has_at_most_what_its_toolkit_compiles(
    healthy: Snapshot, cuda: str, cc: tuple[int, int], expected: Verdict | None
) -> None:
    seen = with_gpus(with_torch(healthy, "2.6.0.dev20241112", cuda), cc)
    assert verdicts(seen, "gpu-arch-not-in-wheel") == ([] if expected is None else [("GPU 0", expected)])


@pytest.mark.parametrize(
    ("machine", "made", "cuda", "cc", "expected"),
    [
        ("x86_64", "2.12.0+cu130", "13.0", (7, 5), PASS),
        ("aarch64", "2.12.0+cu130", "13.0", (7, 5), FAIL),  # builds for Arm servers begin with Ampere
        ("aarch64", "2.12.0+cu130", "13.0", (9, 0), PASS),
        (UNTOLD, "2.8.0+cu128", "12.8", (6, 1), FAIL),  # who tells no machine has the usual one: from Volta on in this build
        (UNTOLD, "2.8.0+cu128", "12.8", (7, 0), PASS),
    ],
)
def test_the_code_of_a_wheel_differs_by_machine(
    healthy: Snapshot, machine: Any, made: str, cuda: str, cc: tuple[int, int], expected: Verdict
) -> None:
    seen = changed(changed(healthy, "system", machine=UNTOLD), "python", machine=machine)
    seen = with_gpus(with_torch(seen, made, cuda), cc)
    assert verdict(seen, "gpu-arch-not-in-wheel") is expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (UNTOLD, PASS),  # NVIDIA's and others' wheels for Jetson have it; which this is, files do not tell
        (("sm_87",), PASS),
        (("sm_80", "sm_90"), FAIL),
        (("sm_80", "sm_87", "sm_90"), PASS),
    ],
)
def test_gpus_on_a_chip_take_wheels_of_their_own(healthy: Snapshot, told: Any, expected: Verdict) -> None:
    seen = with_gpus(with_torch(healthy, "2.8.0", "12.6", arch_list=told), (8, 7))
    assert verdicts(seen, "gpu-arch-not-in-wheel") == [("GPU 0", expected)]


def test_code_of_cuda_13_2_serves_the_chips_too(healthy: Snapshot) -> None:
    for cuda, expected in (("12.6", FAIL), ("13.2", PASS)):
        seen = with_gpus(with_torch(healthy, "2.15.0", cuda, arch_list=("sm_80", "sm_90")), (8, 7))
        assert verdict(seen, "gpu-arch-not-in-wheel") is expected


def test_each_gpu_is_judged_by_itself(healthy: Snapshot) -> None:
    seen = with_gpus(healthy, (7, 0), DENIED, (9, 0), (6, 1))
    expected = [("GPU 0", FAIL), ("GPU 1", UNKNOWN), ("GPU 2", PASS), ("GPU 3", FAIL)]
    assert verdicts(seen, "gpu-arch-not-in-wheel") == expected


def test_ptx(healthy: Snapshot) -> None:
    assert verdict(changed(healthy, "python", complaints=(PTX,)), "ptx-newer-than-driver") is FAIL
    assert verdict(without_gpu(changed(healthy, "python", live=asked(error=PTX))), "ptx-newer-than-driver") is FAIL
    live = changed(healthy, "python", live=asked(error=""))
    assert verdicts(live, "ptx-newer-than-driver") == [("a kernel", PASS)]
    assert verdict(without_gpu(live), "ptx-newer-than-driver") is NA
    assert verdict(changed(live, "python", torch=build(live, cuda=NOTHING)), "ptx-newer-than-driver") is NA
    assert verdict(changed(healthy, "python", live=DENIED), "ptx-newer-than-driver") is UNKNOWN
    assert verdict(healthy, "ptx-newer-than-driver") is NA
