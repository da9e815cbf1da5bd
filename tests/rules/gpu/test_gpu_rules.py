"""Boundaries of the rules on GPUs: what must not be called a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import load
from elsewhere import each_recorded_elsewhere
from torchtune_sys import engine
from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Severity, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import driver, gpu, pci
from torchtune_sys.rules.gpu.clocks import reasons

RULES: dict[str, Rule] = {rule.id: rule for rule in (*driver.RULES, *gpu.RULES, *pci.RULES)}
H100 = "NVIDIA H100 80GB HBM3"


def verdict(rule: str, *devices: dict[str, Any], **overlay: Any) -> Result:
    """The rule's result on a host whose NVML shows these GPUs."""
    listed = [
        {"index": i, "name": H100, "pci_address": f"0000:{bus}:00.0", **d}
        for i, (bus, d) in enumerate(zip(BUSES, devices, strict=False))
    ]
    answers = {"nvml": {"driver_version": "580.95.05", "devices": listed}} if devices else {}
    seen = load("base-single-gpu", **{"answers": answers, **overlay})
    return engine.judge(seen, [RULES[rule]])[0]


BUSES = ("1b", "43", "52")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0x0, "pass"),
        (0x1, "pass"),
        (0x4, "pass"),
        (0x2 | 0x10 | 0x100, "pass"),
        (0x8, "fail"),
        (0x20, "fail"),
        (0x40, "fail"),
        (0x80, "fail"),
    ],
)
def test_a_power_cap_is_no_throttling(mask: int, expected: str) -> None:
    assert verdict("gpu-thermal-throttle", {"clock_event_reasons": mask}).verdict.value == expected


def test_bits_have_names() -> None:
    assert reasons(0x4 | 0x80) == ["SwPowerCap", "HwPowerBrakeSlowdown"]


@pytest.mark.parametrize(("limit", "expected"), [(700_000, "pass"), (695_000, "pass"), (690_000, "fail"), (800_000, "pass")])
def test_power_limit(limit: int, expected: str) -> None:
    gpu = {"power_limit_mw": limit, "power_default_mw": 700_000}
    result = verdict("gpu-power-limit-lowered", gpu)
    assert result.verdict.value == expected
    assert {evidence.wanted for evidence in result.evidence} == {"700 W, the card's default"}


def test_unsupported_readings_are_not_judged() -> None:
    none = {"$missing": "not-supported", "source": "x"}
    assert verdict("gpu-ecc-uncorrectable", {"ecc_uncorrected_volatile": none}).verdict is Verdict.NA
    mixed = verdict("gpu-ecc-uncorrectable", {"ecc_uncorrected_volatile": none}, {"ecc_uncorrected_volatile": 1})
    assert mixed.verdict is Verdict.FAIL and len(mixed.evidence) == 1


def test_a_refused_reading_is_unknown_and_never_healthy() -> None:
    denied = {"$missing": "denied", "source": "x", "remedy": "run as root"}
    assert verdict("gpu-ecc-uncorrectable", {"ecc_uncorrected_volatile": denied}).verdict is Verdict.UNKNOWN
    assert verdict("gpu-reset-pending", {"rows_remap_pending": denied}).verdict is Verdict.UNKNOWN


def test_ecc_off_is_only_advised_on_where_the_model_is_a_servers() -> None:
    assert verdict("gpu-ecc-off", {"ecc": False}).verdict is Verdict.FAIL
    assert verdict("gpu-ecc-off", {"ecc": False, "name": "NVIDIA RTX A6000"}).verdict is Verdict.PASS
    assert verdict("gpu-ecc-off", {"ecc": False, "name": "NVIDIA Something New"}).verdict is Verdict.PASS


def process(user: object, mib: object) -> dict[str, Any]:
    return {"pid": 7, "user": user, "name": "python3", "used_bytes": mib if not isinstance(mib, int) else mib << 20}


@pytest.mark.parametrize(
    ("used_mib", "owners", "expected"),
    [
        (600, [], "pass"),  # what driver and display reserve
        (2047, [], "pass"),
        (2048, [], "fail"),  # a process that this session cannot see
        (70_000, [("ubuntu", 69_000)], "pass"),  # the own job is running
        (70_000, [("ubuntu", {"$missing": "not-supported", "source": "NVML"})], "pass"),
        (70_000, [("ubuntu", 30_000), ("mallory", 39_000)], "fail"),
    ],
)
def test_memory_of_others(used_mib: int, owners: list[tuple[str, Any]], expected: str) -> None:
    gpu = {"memory_used_bytes": used_mib << 20, "processes": [process(*owner) for owner in owners]}
    assert verdict("gpu-memory-in-use", gpu).verdict.value == expected


def test_a_container_does_not_tell_whose_memory_it_is() -> None:
    listed = [{"index": 0, "name": H100, "pci_address": "0000:1b:00.0", "memory_used_bytes": 70_000 << 20, "processes": []}]
    seen = load("base-gpu-container", answers={"nvml": {"driver_version": "580.95.05", "devices": listed}})
    assert engine.judge(seen, [RULES["gpu-memory-in-use"]])[0].verdict is Verdict.UNKNOWN


def test_mig_matters_only_to_several_ranks() -> None:
    assert verdict("mig-mode-limits", {"mig": True}).verdict is Verdict.NA
    assert verdict("mig-mode-limits", {"mig": True}, intent={"ranks": 2}).verdict is Verdict.FAIL
    nobody_said = {"ranks": None, "nodes": None, "workers": None}
    assert verdict("mig-mode-limits", {"mig": True}, intent=nobody_said).verdict is Verdict.NA
    assert verdict("mig-mode-limits", {"mig": True}, {"mig": False}, intent=nobody_said).verdict is Verdict.FAIL
    assert verdict("mig-mode-limits", {"mig": True}, {"mig": True}, intent=nobody_said).verdict is Verdict.NA


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("0,1", "pass"),
        ("GPU-aa,GPU-bb", "pass"),
        ("0,2", "fail"),
        ("GPU-aa,GPU-cc", "fail"),
        ("MIG-1,0", "fail"),
        ("", "na"),  # hides every GPU, which another rule tells
        ("2", "na"),
    ],
)
def test_a_partitioned_gpu_that_the_session_leaves_out_limits_nobody(named: str, expected: str) -> None:
    cards = [
        {"index": n, "name": H100, "pci_address": f"0000:{n}b:00.0", "uuid": f"GPU-{c * 8}", "mig": c == "c"}
        for n, c in enumerate("abc")
    ]
    nvml = {"driver_version": "580.95.05", "devices": cards}
    seen = load("base-single-gpu", answers={"nvml": nvml}, env={"CUDA_VISIBLE_DEVICES": named}, intent={"ranks": None})
    assert engine.judge(seen, [RULES["mig-mode-limits"]])[0].verdict.value == expected


@pytest.mark.parametrize(
    ("rule", "fault"),
    [("mig-without-instances", {"mig": True, "mig_instances": 0}), ("compute-mode-prohibited", {"compute_mode": "prohibited"})],
)
def test_a_gpu_that_the_session_leaves_out_may_be_kept_for_something_else(rule: str, fault: dict[str, Any]) -> None:
    card = {"name": H100, "mig": False, "compute_mode": "default"}
    cards = [card | {"index": 0, "pci_address": "0000:1b:00.0"}, card | fault | {"index": 1, "pci_address": "0000:2b:00.0"}]
    for named, expected in (("0", Verdict.PASS), ("0,1", Verdict.FAIL)):
        nvml = {"driver_version": "580.95.05", "devices": cards}
        seen = load("base-single-gpu", answers={"nvml": nvml}, env={"CUDA_VISIBLE_DEVICES": named})
        assert engine.judge(seen, [RULES[rule]])[0].verdict is expected


def test_a_gpu_in_mig_mode_without_an_instance_is_none_that_cuda_sees() -> None:
    rule, unread = "mig-without-instances", {"$missing": "no-permission", "source": "NVML"}
    assert verdict(rule, {"mig": True, "mig_instances": 0}).verdict is Verdict.FAIL
    assert verdict(rule, {"mig": True, "mig_instances": 2}).verdict is Verdict.PASS
    assert verdict(rule, {"mig": True, "mig_instances": unread}).verdict is Verdict.UNKNOWN
    assert verdict(rule, {"mig": unread}).verdict is Verdict.UNKNOWN
    assert verdict(rule, {"mig": False}).verdict is Verdict.NA
    assert verdict(rule, {"mig": {"$missing": "not-supported", "source": "NVML"}}).verdict is Verdict.NA
    mixed = verdict(rule, {"mig": False}, {"mig": True, "mig_instances": 0})
    assert [one.seen for one in mixed.evidence if one.verdict is Verdict.FAIL] == ["MIG on, no instance"]


def test_nvlinks_are_judged_on_nvswitch_boards_only() -> None:
    pair = {"nvlinks": 4, "nvlinks_down": [2, 3], "fabric_state": {"$missing": "not-supported", "source": "x"}}
    assert verdict("nvlink-inactive", pair).verdict is Verdict.NA
    assert verdict("nvlink-inactive", {**pair, "fabric_state": "completed"}).verdict is Verdict.FAIL
    assert verdict("nvlink-inactive", {**pair, "fabric_state": "completed", "mig": True}).verdict is Verdict.PASS


def test_fabric_state_of_the_gpus_counts_over_a_daemon_that_is_not_seen() -> None:
    gone = {"/proc/1/comm": "bash\n", "/run/nvidia-fabricmanager/nv-fabricmanager.pid": None}
    assert verdict("fabric-manager-not-running", {"fabric_state": "completed"}, files=gone).verdict is Verdict.PASS
    assert verdict("fabric-manager-not-running", {"fabric_state": "not-started"}).verdict is Verdict.FAIL
    assert verdict("fabric-manager-not-running", {"fabric_state": "not-started", "mig": True}).verdict is Verdict.NA


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("exclusive-compute-mode", "default", "pass"),
        ("exclusive-compute-mode", "exclusive-thread", "fail"),
        ("exclusive-compute-mode", "prohibited", "pass"),
        ("compute-mode-prohibited", "exclusive-process", "pass"),
    ],
)
def test_compute_modes(name: str, mode: str, expected: str) -> None:
    assert verdict(name, {"compute_mode": mode}).verdict.value == expected


def report(text: str) -> Snapshot:
    """As the reader of pasted text makes it: GPUs, and nothing else recorded."""
    nothing = Missing(Why.NOT_RECORDED, "report")
    facts: GpuFacts | Missing = parse_nvidia_smi(text) or nothing
    return Snapshot(**{**dict.fromkeys(FAMILIES, nothing), "gpu": facts}, intent=Workload(), origin="report (nvidia-smi)")


@pytest.mark.parametrize("path", each_recorded_elsewhere("nvidia-smi/*.[xt][mx][lt]"), ids=lambda path: path.stem)
def test_no_error_on_real_healthy_gpus(path: Path) -> None:
    results = engine.judge(report(path.read_text()), RULES.values())
    assert not [result.rule.id for result in results if result.verdict is Verdict.CRASHED]
    bad = [
        (result.rule.id, [item.seen for item in result.evidence if item.verdict is Verdict.FAIL])
        for result in results
        if result.verdict is Verdict.FAIL and result.rule.severity is not Severity.ADVICE
    ]
    assert not bad


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n",
            "nvml-driver-library-mismatch",
        ),
        ("Failed to initialize NVML: Insufficient Permissions\n", "gpu-device-permission"),
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
            "gpu-fallen-off-bus",
        ),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU requires reset\n", "gpu-requires-reset"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n",
            "nvidia-driver-not-loaded",
        ),
    ],
)
def test_complaints_of_nvidia_smi(said: str, rule: str) -> None:
    results = {result.rule.id: result for result in engine.judge(report(said), RULES.values())}
    assert results[rule].verdict is Verdict.FAIL
    assert [name for name, result in results.items() if result.verdict is Verdict.FAIL] == [rule]


def test_one_gpu_of_a_board_in_a_virtual_machine_has_no_nvlinks() -> None:
    part = {"mig": False, "fabric_state": "completed", "nvlinks": 4, "nvlinks_down": [0, 1, 2, 3]}
    assert verdict("nvlink-inactive", part).verdict is Verdict.FAIL
    guest = {"/sys/hypervisor/type": "xen"}
    assert verdict("nvlink-inactive", part, files=guest).verdict is Verdict.NA
    assert verdict("nvlink-inactive", {**part, "nvlinks_down": [1]}, files=guest).verdict is Verdict.FAIL


def test_a_batch_system_may_want_one_process_for_each_gpu() -> None:
    alone = {"compute_mode": "exclusive process"}
    assert verdict("exclusive-compute-mode", alone).verdict is Verdict.FAIL
    assert verdict("exclusive-compute-mode", alone, env={"SLURM_JOB_ID": "4711"}).verdict is Verdict.PASS
