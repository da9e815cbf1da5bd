"""Boundaries of the rules on the driver: one fault gives one finding, and success overrides tables."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys import engine
from torchtune_sys.model.rule import Rule, Verdict
from torchtune_sys.rules import driver, gpu

RULES: dict[str, Rule] = {rule.id: rule for rule in (*driver.RULES, *gpu.RULES)}
UEVENT = "/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0/uevent"
NO_MODULE = (
    "no-nvidia-driver",
    "nouveau-loaded",
    "nvidia-module-not-built-for-kernel",
    "secure-boot-blocks-module",
    "nvidia-driver-not-loaded",
)


def verdicts(base: str = "base-single-gpu", **overlay: Any) -> dict[str, Verdict]:
    return {result.rule.id: result.verdict for result in engine.judge(load(base, **overlay), RULES.values())}


def failed(base: str = "base-single-gpu", **overlay: Any) -> set[str]:
    return {name for name, verdict in verdicts(base, **overlay).items() if verdict is Verdict.FAIL}


def uevent(device: str, bound: str = "nvidia") -> dict[str, str]:
    return {UEVENT: f"DRIVER={bound}\nPCI_CLASS=30200\nPCI_ID=10DE:{device}\n"}


def kernel_side(version: str, flavour: str = "open") -> dict[str, str]:
    words = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    return {"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX {words}  {version}  Release Build\n"}


def nvml(*addresses: str, version: str = "580.95.05") -> dict[str, Any]:
    listed = [{"index": i, "name": "x", "pci_address": address} for i, address in enumerate(addresses)]
    return {"nvml": {"driver_version": version, "devices": listed}}


@pytest.mark.parametrize("name", NO_MODULE)
def test_one_reason_for_one_missing_module(name: str) -> None:
    assert set(failed(f"{name}.fail")) & set(NO_MODULE) == {name}


def test_a_gpu_for_a_virtual_machine_needs_no_driver_here() -> None:
    assert not failed("base-no-module", files=uevent("2330", "vfio-pci"))


def test_a_module_that_is_kept_out_was_not_refused_by_secure_boot() -> None:
    """prime-select and hands write such files; with Secure Boot on, the module's key may be enrolled."""
    kept = {"/etc/modprobe.d/blacklist-nvidia.conf": "blacklist nvidia\nalias nvidia off\n"}
    assert failed("secure-boot-blocks-module.fail", files=kept) & set(NO_MODULE) == {"nvidia-driver-not-loaded"}


_OF_CONTAINER = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
IN_CONTAINER = {
    "links": {f"{_OF_CONTAINER}.1": "libnvidia-ml.so.580.95.05"},
    "stats": {f"{_OF_CONTAINER}.580.95.05": {"mode": 0o100755, "uid": 0, "gid": 0, "size": 9}},
}


def test_a_driver_in_a_container_is_not_missed_on_its_node() -> None:
    """NVIDIA's GPU operator: the node's own loader finds no library, pods do; nothing should be installed on the node."""
    name = "driver-tools-fail.fail.no-libraries"
    assert judge(load(name))["driver-tools-fail"].verdict is Verdict.FAIL
    assert judge(load(name, **IN_CONTAINER))["driver-tools-fail"].verdict is Verdict.NA


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ({}, Verdict.FAIL),
        ({"files": {"/run/systemd/container": "lxc\n"}}, Verdict.UNKNOWN),
        (IN_CONTAINER, Verdict.UNKNOWN),
    ],
)
def test_a_fabric_manager_that_may_run_elsewhere(overlay: dict[str, Any], expected: Verdict) -> None:
    """An A100, which does not tell of its fabric: in a container with a systemd of its own, and where the GPU operator installs the driver."""
    found = judge(load("fabric-manager-not-running.fail.a100", **overlay))
    assert found["fabric-manager-not-running"].verdict is expected


def test_in_a_container_the_missing_modules_directory_tells_nothing() -> None:
    found = failed("base-no-module", files={"/lib/modules/6.8.0-45-generic/modules.dep": None})
    assert found == {"nvidia-driver-not-loaded"}


@pytest.mark.parametrize(
    ("device", "version", "flavour", "expected"),
    [
        ("1DB1", "580.95.05", "proprietary", set()),  # Volta, last branch
        ("1DB1", "590.44.01", "proprietary", {"driver-does-not-support-gpu"}),
        ("1EB8", "595.58.03", "open", {"gpu-missing-from-driver"}),  # Turing is served, so this one is broken
        ("102D", "470.256.02", "proprietary", {"gpu-missing-from-driver"}),  # Kepler
        ("102D", "535.54.03", "proprietary", {"driver-does-not-support-gpu"}),
        ("2B85", "565.57.01", "open", {"driver-does-not-support-gpu"}),
        ("2B85", "570.124.06", "proprietary", {"proprietary-module-on-blackwell-gpu"}),
        ("15F8", "580.95.05", "open", {"open-module-on-pre-turing-gpu"}),
        ("FFFF", "610.43.02", "open", {"gpu-missing-from-driver"}),  # no table knows it: no claim
    ],
)
def test_branch_and_flavour_against_generation(device: str, version: str, flavour: str, expected: set[str]) -> None:
    files = {**uevent(device), **kernel_side(version, flavour)}
    found = failed(files=files, answers=nvml(version=version))
    assert found == expected | ({"gpu-missing-from-driver"} if (device, version) == ("1DB1", "580.95.05") else set())


@pytest.mark.parametrize(("device", "others", "fails"), [("1287", True, False), ("1287", False, True), ("1DB1", True, True)])
def test_a_card_for_a_display_beside_gpus_that_train(device: str, others: bool, fails: bool) -> None:
    """GeForce GT 730 (Kepler), which a driver of 590 leaves alone; a Tesla V100 is missed."""
    files = {**uevent(device), **kernel_side("590.44.01", "proprietary")}
    answers = nvml(*(["0000:43:00.0"] if others else []), version="590.44.01")
    assert ("driver-does-not-support-gpu" in failed(files=files, answers=answers)) is fails


@pytest.mark.parametrize(
    ("bound", "newer", "expected"),
    [
        ("nouveau", "2684", set()),
        ("nouveau", "2B85", set()),
        ("", "2B85", set()),  # no module serves both
        ("", "2684", {"open-module-on-pre-turing-gpu", "gpu-needs-proprietary-module"}),  # the proprietary one would
    ],
)
def test_a_display_card_that_this_module_cannot_serve_beside_gpus_that_it_does(
    bound: str, newer: str, expected: set[str]
) -> None:
    """GeForce GT 1030 (Pascal) for the monitors, a GeForce RTX 4090 or 5090 under the open module."""
    log = [
        "The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:1d01)",
        "installed in this system is not supported by open",
        "nvidia.ko because it does not",
    ]
    place = "/sys/devices/pci0000:17/0000:17:02.0/0000:05:00.0"
    display = "".join(f"DRIVER={driver}\n" for driver in [bound] if driver) + "PCI_CLASS=30000\nPCI_ID=10DE:1D01\n"
    files = {**uevent(newer), f"{place}/uevent": display}
    links = {"/sys/bus/pci/devices/0000:05:00.0": place}
    kernel = {"source": "/dev/kmsg", "lines": [f"[9.000000] NVRM: {line}" for line in log]}
    found = judge(load("base-single-gpu", files=files, links=links, answers={**nvml("0000:1b:00.0"), "kernel-log": kernel}))
    asked = (
        "nouveau-loaded",
        "open-module-on-pre-turing-gpu",
        "driver-does-not-support-gpu",
        "gpu-needs-proprietary-module",
        "gpu-held-by-other-driver",
    )
    assert {name for name in asked if found[name].verdict is Verdict.FAIL} == expected


@pytest.mark.parametrize("device", ["06FD", "0A65", "10C3", "0DF8", "1040"])
@pytest.mark.parametrize("driver", ["nouveau", ""])
def test_a_display_card_that_no_torch_was_built_for_is_no_gpu_to_train_on(device: str, driver: str) -> None:
    """NVS 295, GeForce 210, GeForce 8400 GS, Quadro 600, GeForce GTX 580: servers and old workstations have them."""
    found = verdicts("base-no-module", files=uevent(device, driver))
    assert {name for name in NO_MODULE if found[name] is not Verdict.NA} == set()
    assert failed("base-no-module", files=uevent("0FF3", "nouveau")) & set(NO_MODULE) == {
        "nouveau-loaded"
    }  # Kepler: torch 1 served it


def test_a_gpu_that_works_is_served_whatever_the_tables_say() -> None:
    files = {**uevent("1DB1"), **kernel_side("610.43.02")}
    assert not failed(files=files, answers=nvml("0000:1b:00.0", version="610.43.02"))


def test_versions_of_files_do_not_matter_where_nvml_works() -> None:
    files = kernel_side("580.82.07")
    assert verdicts(files=files)["nvml-driver-library-mismatch"] is Verdict.PASS


def test_a_libcuda_of_another_release_beside_the_drivers_own_nvml() -> None:
    place = "/usr/lib/x86_64-linux-gnu"
    older = {"mode": 0o100644, "uid": 0, "gid": 0, "size": 9}
    files = {"links": {f"{place}/libcuda.so.1": "libcuda.so.535.183.01"}, "stats": {f"{place}/libcuda.so.535.183.01": older}}
    assert verdicts(**files)["nvml-driver-library-mismatch"] is Verdict.FAIL


@pytest.mark.parametrize(("nodes", "torch_cuda", "expected"), [(True, True, "pass"), (False, True, "fail")])
def test_container_without_devices(nodes: bool, torch_cuda: bool, expected: str) -> None:
    names = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    stats = {} if nodes else {f"/dev/{name}": None for name in names}
    assert verdicts("base-gpu-container", stats=stats)["container-without-gpu-devices"].value == expected


def test_a_stub_behind_the_drivers_library_is_harmless() -> None:
    found = verdicts(
        files={"/etc/ld.so.conf.d/zz-cuda.conf": "/usr/local/cuda/lib64/stubs\n"},
        links={"/usr/local/cuda/lib64/stubs/libcuda.so.1": "libcuda.so"},
        env={"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu"},
    )
    assert found["cuda-stub-library-loaded"] is Verdict.PASS


@pytest.mark.parametrize(
    ("kernel", "flavour", "peermem", "expected"),
    [
        ("6.8.0-45-generic", "open", False, "pass"),  # DMA-BUF
        ("5.12.0", "open", False, "pass"),
        ("5.11.22", "open", False, "fail"),
        ("6.8.0-45-generic", "proprietary", False, "fail"),
        ("5.4.0-100-generic", "proprietary", True, "pass"),
    ],
)
def test_ways_to_gpudirect_rdma(kernel: str, flavour: str, peermem: bool, expected: str) -> None:
    modules = ["nvidia 1 0 - Live 0x0", *(["nvidia_peermem 1 0 - Live 0x0"] if peermem else [])]
    found = verdicts(
        files={**kernel_side("580.95.05", flavour), "/proc/modules": modules},
        answers={"uname": {"release": kernel, "machine": "x86_64", "nodename": "trainer-01"}},
        intent={"nodes": 2},
    )
    assert found["gpudirect-rdma-disabled"].value == expected


def test_rocm_hosts_get_no_nvidia_findings() -> None:
    found = verdicts("base-no-module", files={UEVENT: "DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:74A1\n"})
    assert {name for name, verdict in found.items() if verdict is not Verdict.NA} == {"amdgpu-not-loaded"}
    assert found["amdgpu-not-loaded"] is Verdict.PASS


@pytest.mark.parametrize("why", ["timeout", "failed"])
def test_a_driver_that_does_not_answer_is_unknown_even_where_no_gpu_is_seen(why: str) -> None:
    found = verdicts(
        files={UEVENT: None, "/proc/1/comm": "bash\n"},
        links={"/sys/bus/pci/devices/0000:1b:00.0": None},
        answers={"nvml": {"error": why, "detail": "no answer within 20 s"}},
    )
    assert found["gpu-fallen-off-bus"] is Verdict.UNKNOWN
    assert found["no-nvidia-driver"] is Verdict.NA


def test_a_driver_that_a_container_loads_is_not_missed_in_the_next_kernel() -> None:
    newer = {"/boot/vmlinuz-6.8.0-100-generic": "", "/lib/modules/6.8.0-100-generic/modules.dep": "kernel/fs/xfs/xfs.ko.zst:\n"}
    own = {"/lib/modules/6.8.0-45-generic/modules.dep": "kernel/fs/xfs/xfs.ko.zst:\n"}
    assert judge(load("healthy", files=newer))["driver-not-built-for-next-boot"].verdict is Verdict.FAIL
    assert judge(load("healthy", files=newer | own))["driver-not-built-for-next-boot"].verdict is Verdict.NA


def test_a_gpu_in_the_fabric_counts_over_an_old_log_of_the_fabric_manager() -> None:
    name = "fabric-manager-version-mismatch"
    gpus = [{"index": 0, "pci_address": "0000:1b:00.0", "fabric_state": "completed"}]
    answers = {"nvml": {"driver_version": "580.95.05", "devices": gpus}}
    assert verdicts(f"{name}.fail")[name] is Verdict.FAIL
    assert verdicts(f"{name}.fail", answers=answers)[name] is Verdict.PASS


def test_a_node_of_roots_group_is_not_mended_by_joining_it() -> None:
    node = {"mode": 0o20660, "uid": 0, "gid": 0, "size": 0, "special": "195:0"}
    answers = {
        "uid": {"uid": 1000, "gid": 1000, "groups": [1000], "user": "u", "home": "/home/u"},
        "access:/dev/nvidia0": {"read": False, "write": False},
    }
    found = judge(load("base-single-gpu", stats={"/dev/nvidia0": node}, answers=answers))["gpu-device-permission"]
    (refused,) = (item for item in found.evidence if item.verdict is Verdict.FAIL)
    assert "NVreg_DeviceFileGID" in refused.fix[0].text
