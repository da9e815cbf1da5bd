"""When nvidia-smi's or NVML's own failure is a finding of its own, and when another rule tells why; and a Linux driver's library inside WSL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, result, verdict

from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.facts.python import LoaderChoice
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import PrintedMessage, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.driver import access

RULE = "driver-tools-fail"
SAID = Missing(Why.FAILED, "nvmlInit", "Unknown Error")


KEPT_OUT = ("gpu-legacy", "gpu-unsupported", "gpu-needs-open", "gpu-needs-proprietary", "gpu-bar", "gsp-firmware")


def failing(seen: Snapshot, error: str = "UNKNOWN", source: str = "nvml", devices: Any = SAID, **facts: Any) -> Snapshot:
    return altered(seen, gpu__error=error, gpu__source=source, gpu__devices=devices, **facts)


def log(*kinds: str) -> tuple[KernelEvent, ...]:
    return tuple(KernelEvent(kind=kind) for kind in kinds)


@pytest.mark.parametrize(
    ("error", "live", "pasted"),
    [
        ("UNKNOWN", FAIL, FAIL),
        ("LIBRARY_NOT_FOUND", NA, FAIL),  # of a live host its files and its bus tell more
        ("NO_DEVICES", NA, FAIL),
        ("LIB_RM_VERSION_MISMATCH", NA, NA),
        ("DRIVER_NOT_LOADED", NA, NA),
        ("NO_PERMISSION", NA, NA),
        ("GPU_IS_LOST", NA, NA),
        ("RESET_REQUIRED", NA, NA),
        ("NO_BINDING", NA, NA),
    ],
)
def test_errors_that_other_rules_explain(healthy: Snapshot, error: str, live: Verdict, pasted: Verdict) -> None:
    assert verdict(failing(healthy, error), RULE) is live
    assert verdict(failing(healthy, error, "report"), RULE) is pasted


def test_what_the_log_tells(healthy: Snapshot) -> None:
    assert verdict(failing(healthy, kernel__events=log("oom-kill")), RULE) is FAIL
    assert verdict(failing(healthy, kernel__events=DENIED), RULE) is FAIL
    assert verdict(failing(healthy, kernel=DENIED), RULE) is FAIL
    for kind in (*KEPT_OUT, "gpu-lost", "gpu-init"):
        assert verdict(failing(healthy, kernel__events=log("oom-kill", kind)), RULE) is NA
    for code in (48, 62, 74, 79, 119):
        assert verdict(failing(healthy, kernel__events=(KernelEvent(kind="xid", code=code),)), RULE) is NA
    for code in (13, 63):  # of a program, and of nothing
        assert verdict(failing(healthy, kernel__events=(KernelEvent(kind="xid", code=code),)), RULE) is FAIL


def test_a_gpu_that_worked_before_is_told_elsewhere(healthy: Snapshot) -> None:
    assert verdict(failing(healthy, gpu__worked_before=True), RULE) is NA


def test_in_a_container_the_host_is_asked(healthy: Snapshot) -> None:
    assert verdict(failing(healthy, system__container="docker"), RULE) is NA
    assert verdict(failing(healthy, system__container=NOTHING), RULE) is FAIL
    assert verdict(failing(healthy, system__container=DENIED), RULE) is FAIL
    assert verdict(failing(healthy, system=DENIED), RULE) is UNKNOWN
    assert verdict(failing(healthy, source="report", system__container="docker"), RULE) is FAIL
    assert verdict(failing(healthy, source="report", system=DENIED), RULE) is FAIL


@pytest.mark.parametrize(
    ("error", "devices", "seen"),
    [
        ("UNKNOWN", SAID, "Unknown Error"),
        ("UNKNOWN", Missing(Why.FAILED, "nvmlInit"), "UNKNOWN"),
        ("TIMEOUT", (), "TIMEOUT"),
    ],
)
def test_what_is_shown(healthy: Snapshot, error: str, devices: Any, seen: str) -> None:
    (evidence,) = result(failing(healthy, error, devices=devices), RULE).evidence
    assert (evidence.subject, evidence.seen, evidence.source) == ("NVML", seen, "nvml")
    assert not evidence.fix


def test_the_words_of_windows_are_for_windows(healthy: Snapshot) -> None:
    (pasted,) = result(failing(healthy, "OPERATING_SYSTEM", "report"), RULE).evidence
    assert pasted.fix == (access._OF_WINDOWS,)
    (live,) = result(failing(healthy, "OPERATING_SYSTEM"), RULE).evidence
    assert not live.fix
    (other,) = result(failing(healthy, "UNKNOWN", "report"), RULE).evidence
    assert not other.fix


def test_a_library_that_works(healthy: Snapshot) -> None:
    assert lines(healthy, RULE) == [("NVML", PASS)]
    assert verdict(altered(healthy, gpu__devices=(), driver__nvidia_devices=NOTHING), RULE) is NA
    assert verdict(altered(healthy, gpu=DENIED), RULE) is UNKNOWN


def test_a_driver_that_is_kept_away_is_told_by_the_log(healthy: Snapshot) -> None:
    pasted = failing(healthy, "DRIVER_NOT_LOADED", "report")
    assert lines(pasted, "nvidia-driver-not-loaded") == [("nvidia", FAIL)]
    assert verdict(altered(pasted, kernel__events=log("xid")), "nvidia-driver-not-loaded") is FAIL
    unseen = altered(pasted, driver=DENIED)
    for kind in (*KEPT_OUT, "module-refused"):
        assert verdict(altered(unseen, kernel__events=log(kind)), "nvidia-driver-not-loaded") is NA
    said = msgspec.structs.replace(unseen, said={"nouveau-loaded": PrintedMessage(line="nouveau 1")})
    assert verdict(said, "nvidia-driver-not-loaded") is NA


@pytest.mark.parametrize(
    ("version", "found", "inside", "expected"),
    [
        ("580.95.05", 2, "", FAIL),
        ("1.1", 2, "", PASS),  # Windows'
        ("1", 2, "", PASS),  # where its files are no links
        ("580.95.05", 1, "", PASS),
        ("580.95.05", 2, "docker", PASS),  # what the container toolkit mounts there
        (DENIED, 2, "", UNKNOWN),
        (NOTHING, 2, "", PASS),  # no torch
    ],
)
def test_a_linux_drivers_library_before_that_of_windows(
    healthy: Snapshot, version: Any, found: int, inside: str, expected: Verdict
) -> None:
    choice = LoaderChoice(name="libcuda.so.1", path="/usr/lib/x86_64-linux-gnu/libcuda.so.1", version=str(version))
    loader = version if isinstance(version, Missing) else (choice,)
    paths = ("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")[:found]
    seen = altered(healthy, driver__wsl=True, driver__wsl_libraries_on_path=True, driver__libcuda=paths)
    seen = altered(seen, python__loader=loader, system__container=inside)
    assert verdict(seen, "wsl-libcuda-link-missing") is expected
