"""What a driver says of itself, and which GPUs its branch and its flavour serve."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, result, verdict

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

FIRST = "0000:1b:00.0"
VOLTA = "1db1"
"""Device id of the V100 SXM2, the last generation that branch 580 serves and none that the open module does."""


def with_volta(seen: Snapshot, **facts: Any) -> Snapshot:
    """The first GPU is a V100."""
    assert not isinstance(seen.pci, Missing)
    assert not isinstance(seen.pci.devices, Missing)
    devices = tuple(
        msgspec.structs.replace(device, device=VOLTA) if device.address == FIRST else device for device in seen.pci.devices
    )
    return altered(seen, pci__devices=devices, **facts)


def of_first(seen: Snapshot, rule_id: str) -> Verdict:
    return next(item.verdict for item in result(seen, rule_id).evidence if item.subject.startswith(f"GPU {FIRST}"))


@pytest.mark.parametrize(
    ("number", "served", "expected"),
    [
        ("580.95.05", False, PASS),  # the last branch for Volta still has it
        ("590.44.01", False, FAIL),
        ("590.44.01", True, PASS),  # what NVML shows is served, whatever a table says
    ],
)
def test_the_last_branch_that_serves_volta(healthy: Snapshot, number: str, served: bool, expected: Verdict) -> None:
    seen = with_volta(healthy, driver__module_version=number, gpu__driver_version=number)
    seen = seen if served else altered(seen, gpu__devices=())
    assert of_first(seen, "driver-does-not-support-gpu") is expected


@pytest.mark.parametrize(
    ("flavour", "served", "expected"),
    [("open", False, FAIL), ("open", True, PASS), ("proprietary", False, PASS), ("proprietary", True, PASS)],
)
def test_the_open_module_does_not_serve_volta(healthy: Snapshot, flavour: str, served: bool, expected: Verdict) -> None:
    seen = with_volta(healthy, driver__module_flavour=flavour)
    seen = seen if served else altered(seen, gpu__devices=())
    assert of_first(seen, "open-module-on-pre-turing-gpu") is expected


def sources(seen: Snapshot, rule_id: str) -> list[str]:
    return [item.source for item in result(seen, rule_id).evidence if item.verdict is FAIL]


def test_a_report_in_which_nvidia_smi_reaches_no_driver(healthy: Snapshot) -> None:
    """A report tells no more of the kernel than that."""
    rule_id = "nvidia-driver-not-loaded"
    seen = altered(healthy, gpu__error="DRIVER_NOT_LOADED", gpu__source="report", gpu__devices=NOTHING)
    assert sources(seen, rule_id) == ["nvidia-smi"]
    # On the host itself the kernel is asked, and here it has the module.
    assert verdict(altered(seen, gpu__source="NVML"), rule_id) is PASS
    assert verdict(altered(seen, gpu__error="UNKNOWN"), rule_id) is PASS
    assert verdict(altered(seen, gpu__error=""), rule_id) is PASS


def test_the_file_that_keeps_the_module_out_is_named(healthy: Snapshot) -> None:
    seen = altered(healthy, driver__module_loaded=False, driver__modules_for_kernel=True, driver__secure_boot=False)
    kept = altered(seen, driver__module_barred_by="/etc/modprobe.d/blacklist-nvidia.conf")
    (item,) = result(kept, "nvidia-driver-not-loaded").evidence
    assert "/etc/modprobe.d/blacklist-nvidia.conf keeps its module from loading" in item.seen
    for none in (NOTHING, DENIED):
        (item,) = result(altered(seen, driver__module_barred_by=none), "nvidia-driver-not-loaded").evidence
        assert item.verdict is FAIL and "its module is not loaded" in item.seen


@pytest.mark.parametrize(("error", "found"), [("NO_PERMISSION", ["NVML"]), ("UNKNOWN", []), ("", [])])
def test_nvml_that_may_not_look(healthy: Snapshot, error: str, found: list[str]) -> None:
    seen = altered(healthy, gpu__error=error)
    assert [item.subject for item in result(seen, "gpu-device-permission").evidence if item.verdict is FAIL] == found


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (Why.TIMEOUT, UNKNOWN),
        (Why.FAILED, UNKNOWN),
        (Why.UNPARSED, UNKNOWN),
        (Why.CRASHED, Verdict.CRASHED),
        (Why.ABSENT, NA),
        (Why.NO_TOOL, NA),
    ],
)
def test_a_driver_that_does_not_answer_where_no_bus_shows_a_gpu(healthy: Snapshot, why: Why, expected: Verdict) -> None:
    looked = Missing(why, "nvidia-smi", "no answer within 5 s")
    seen = altered(healthy, driver__nvidia_devices=NOTHING, gpu__devices=looked)
    found = result(seen, "gpu-device-permission")
    assert found.verdict is expected
    if expected is not NA:
        assert found.why_unknown == looked  # the reader is told what did not answer
    assert verdict(altered(seen, driver__nvidia_devices=DENIED), "gpu-device-permission") is UNKNOWN
