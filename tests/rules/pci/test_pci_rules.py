"""Boundaries of the rules on PCIe links: idle GPUs, narrow slots, virtual machines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import pci

RULES: dict[str, Rule] = {rule.id: rule for rule in pci.RULES}
PORT = "/sys/devices/pci0000:17/0000:17:01.0"
GPU = f"{PORT}/0000:1b:00.0"
NVME = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"
NIC = "/sys/devices/pci0000:1a/0000:1a:00.0"
H100 = "NVIDIA H100 80GB HBM3"


def verdict(rule: str, **overlay: Any) -> Result:
    return engine.judge(load("base-single-gpu", **overlay), [RULES[rule]])[0]


def nvml(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"nvml": {"driver_version": "580.95.05", "devices": [{"index": i, "name": H100, **d} for i, d in enumerate(devices)]}}


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA GH200 480GB", "na"), ("NVIDIA GB200", "na"), (H100, "fail")])
def test_the_narrow_link_of_a_gpu_beside_a_grace_is_no_fault(name: str, expected: str) -> None:
    told = nvml({"name": name, "pci_address": "0000:1b:00.0", "pcie_width": 1, "pcie_width_max": 16})
    lanes = {f"{GPU}/current_link_width": "1"}
    assert verdict("gpu-pcie-link-degraded", files=lanes, answers=told).verdict.value == expected
    narrow = {f"{PORT}/max_link_width": "1", **lanes}
    assert verdict("gpu-slot-narrower-than-card", files=narrow, answers=told).verdict.value == expected


def test_an_idle_gpus_slow_link_is_no_fault() -> None:
    idle = nvml({"pci_address": "0000:1b:00.0", "utilization_pct": 0, "pcie_gen": 1})
    files = {f"{GPU}/current_link_speed": "2.5 GT/s PCIe"}
    assert verdict("gpu-pcie-link-degraded", files=files, answers=idle).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("utilization", "generation", "slot", "expected"),
    [
        (49, 1, "32.0 GT/s PCIe", "pass"),
        (50, 1, "32.0 GT/s PCIe", "fail"),
        (99, 5, "32.0 GT/s PCIe", "pass"),
        (99, 4, "16.0 GT/s PCIe", "pass"),
    ],
)
def test_a_busy_gpus_slow_link(utilization: int, generation: int, slot: str, expected: str) -> None:
    busy = nvml({"pci_address": "0000:1b:00.0", "utilization_pct": utilization, "pcie_gen": generation})
    result = verdict("gpu-pcie-link-degraded", files={f"{PORT}/max_link_speed": slot}, answers=busy)
    assert result.verdict.value == expected


@pytest.mark.parametrize(
    ("card", "slot", "now", "expected"),
    [("16", "16", "8", "fail"), ("16", "8", "8", "pass"), ("16", "8", "4", "fail"), ("8", "16", "8", "pass")],
)
def test_the_width_is_measured_by_the_narrower_of_card_and_slot(card: str, slot: str, now: str, expected: str) -> None:
    files = {f"{GPU}/max_link_width": card, f"{PORT}/max_link_width": slot, f"{GPU}/current_link_width": now}
    assert verdict("gpu-pcie-link-degraded", files=files).verdict.value == expected


def test_a_narrow_slot_is_advice_of_its_own() -> None:
    assert verdict("gpu-slot-narrower-than-card", files={f"{PORT}/max_link_width": "8"}).verdict is Verdict.FAIL
    assert verdict("gpu-slot-narrower-than-card", files={f"{GPU}/max_link_width": "8"}).verdict is Verdict.PASS


def virtual(rule: str, *devices: dict[str, Any]) -> Result:
    seen = load("base-single-gpu", answers=nvml(*devices))
    assert not isinstance(seen.system, Missing)
    guest = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, hypervisor="kvm"))
    return engine.judge(guest, [RULES[rule]])[0]


def test_in_a_virtual_machine_only_siblings_are_compared() -> None:
    half = {"pcie_width": 8, "pcie_width_max": 16}
    assert virtual("gpu-pcie-link-degraded", half, half).verdict is Verdict.PASS  # as in some clouds
    assert virtual("gpu-pcie-link-degraded", half, {"pcie_width": 16}).verdict is Verdict.FAIL
    assert virtual("gpu-slot-narrower-than-card", half).verdict is Verdict.NA
    assert virtual("pcie-link-degraded", half).verdict is Verdict.PASS  # the two drives are alike


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({f"{NVME}/current_link_speed": "8.0 GT/s PCIe"}, "fail"),
        (
            {
                f"{NVME}/current_link_speed": "8.0 GT/s PCIe",
                "/sys/devices/pci0000:80/0000:80:01.0/max_link_speed": "8.0 GT/s PCIe",
            },
            "pass",
        ),
        ({f"{NIC}/current_link_width": "8"}, "pass"),  # nothing is known of the slot above this one
        ({f"{NVME}/current_link_speed": "Unknown", f"{NVME}/current_link_width": "0"}, "pass"),
    ],
)
def test_other_cards(files: dict[str, str], expected: str) -> None:
    assert verdict("pcie-link-degraded", files=files).verdict.value == expected


def test_a_soldered_gpu_has_the_lanes_that_it_has() -> None:
    narrow = {f"{GPU}/current_link_width": "8"}
    for name, expected in ((H100, Verdict.FAIL), ("NVIDIA GeForce RTX 4070 Laptop GPU", Verdict.NA)):
        shown = nvml({"pci_address": "0000:1b:00.0", "name": name})
        assert verdict("gpu-pcie-link-degraded", files=narrow, answers=shown).verdict is expected


@pytest.mark.parametrize(("width", "busy", "expected"), [(4, 90, "fail"), (8, 90, "na"), (4, 0, "na"), (16, 90, "na")])
def test_very_few_lanes_on_bare_metal_below_a_slot_that_is_not_shown(width: int, busy: int, expected: str) -> None:
    """A sosreport's /sys may lack the port above; half the lanes may be all that the slot has, and an idle GPU gives up lanes."""
    gpu = {"pci_address": "0000:1b:00.0", "pcie_width": width, "pcie_width_max": 16, "utilization_pct": busy}
    files = {f"{GPU}/current_link_width": str(width), f"{PORT}/max_link_width": None}
    assert verdict("gpu-pcie-link-degraded", files=files, answers=nvml(gpu)).verdict.value == expected
