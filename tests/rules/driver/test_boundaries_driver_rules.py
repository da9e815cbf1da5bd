"""What the rules on the driver say where the host is at one of their edges."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, result, verdict, with_env

from torchtune_sys.model.facts.driver import DeviceNode
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver import common as driver_state

UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
NOT_READ = Missing(Why.NOT_RECORDED, "test")
FIRST = "0000:1b:00.0"


def gpus(seen: Snapshot) -> tuple[Gpu, ...]:
    assert not isinstance(seen.gpu, Missing)
    assert not isinstance(seen.gpu.devices, Missing)
    return seen.gpu.devices


def with_gpus(seen: Snapshot, *changes: dict[str, Any]) -> Snapshot:
    """As many GPUs as there are changes."""
    devices = tuple(msgspec.structs.replace(gpu, **change) for gpu, change in zip(gpus(seen), changes, strict=False))
    return altered(seen, gpu__devices=devices)


def bound_to(seen: Snapshot, driver: Any) -> Snapshot:
    """Every PCI function under this kernel driver."""
    assert not isinstance(seen.pci, Missing)
    assert not isinstance(seen.pci.devices, Missing)
    return altered(seen, pci__devices=tuple(msgspec.structs.replace(device, driver=driver) for device in seen.pci.devices))


# --- whose GPUs they are


@pytest.mark.parametrize(("driver", "gone"), [("vfio-pci", True), ("nvidia", False), (NOTHING, False), (DENIED, False)])
def test_gpus_that_virtual_machines_have_are_not_counted(healthy: Snapshot, driver: Any, gone: bool) -> None:
    seen = altered(bound_to(healthy, driver), gpu__devices=())
    assert gates.handed_over(seen, (FIRST,)) is gone
    assert gates.gpu_count(seen) == (0 if gone else 8)
    with_radeon = altered(seen, driver__amd_devices=("0000:03:00.0",))
    assert gates.gpu_count(with_radeon) == (1 if gone else 8)  # for a display, beside GPUs that this torch trains on
    assert not isinstance(seen.python, Missing) and isinstance(seen.python.torch, Torch)
    rocm = msgspec.structs.replace(seen.python.torch, hip="6.4")
    assert gates.gpu_count(altered(with_radeon, python__torch=rocm)) == (1 if gone else 9)


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "_CONDOR_SLOT"])
def test_a_batch_system_started_this_session(healthy: Snapshot, variable: str) -> None:
    assert gates.scheduled(with_env(healthy, {variable: "17"}))
    assert not gates.scheduled(with_env(healthy, {}))
    assert not gates.scheduled(altered(healthy, session__env=DENIED))
    assert not gates.scheduled(altered(healthy, session=DENIED))


@pytest.mark.parametrize("unseen", [{"pci": DENIED}, {"pci__devices": DENIED}, {"pci__devices": ()}])
def test_gpus_on_a_bus_that_is_not_seen_are_this_hosts(healthy: Snapshot, unseen: dict[str, Any]) -> None:
    seen = altered(healthy, gpu__devices=(), **unseen)
    assert gates.gpu_count(seen) == 8
    gates.nvidia_hardware(seen)


def test_one_gpu_for_a_virtual_machine_leaves_the_others(healthy: Snapshot) -> None:
    assert not isinstance(healthy.pci, Missing)
    assert not isinstance(healthy.pci.devices, Missing)
    devices = tuple(
        msgspec.structs.replace(device, driver="vfio-pci") if device.address == FIRST else device
        for device in healthy.pci.devices
    )
    gates.nvidia_hardware(altered(healthy, gpu__devices=(), pci__devices=devices))
    with pytest.raises(NotApplicable):
        gates.nvidia_hardware(altered(bound_to(healthy, "vfio-pci"), gpu__devices=()))


def test_without_any_look_at_the_driver_its_version_is_unknown(healthy: Snapshot) -> None:
    found = driver_state.driver_version(altered(healthy, driver=DENIED, gpu=DENIED))
    assert isinstance(found, Missing)
    assert found.why is Why.NOT_RECORDED
    seen = altered(healthy, driver__module_version=NOTHING, driver__library_version=UNTOLD, gpu__driver_version=DENIED)
    assert driver_state.driver_version(seen) == NOTHING  # the kernel's word is the one that is missed


@pytest.mark.parametrize(
    ("number", "flavour", "served"),
    [
        ("515.43.04", "open", True),  # Hopper came with this branch
        ("514.1", "open", False),
        ("510.39.01", "open", False),
        (DENIED, "open", True),
        ("devel", "open", True),
        ("580.95.05", DENIED, True),
    ],
)
def test_from_which_branch_on_hopper_is_served(healthy: Snapshot, number: Any, flavour: Any, served: bool) -> None:
    seen = altered(healthy, driver__module_version=number, driver__module_flavour=flavour)
    assert (FIRST not in driver_state.not_served(seen)) is served


@pytest.mark.parametrize(
    ("number", "expected"),
    [("515.43.04", PASS), ("510.39.01", FAIL), ("1.0-9755", FAIL), ("devel", PASS), ("580.95.05", PASS)],
)
def test_a_driver_of_an_older_branch_than_the_gpu(healthy: Snapshot, number: str, expected: Verdict) -> None:
    facts = {"driver__module_version": number, "driver__library_version": number, "gpu__driver_version": number}
    seen = altered(healthy, gpu__devices=(), **facts)
    assert {line for _, line in lines(seen, "driver-does-not-support-gpu")} == {expected}


def test_of_a_gpu_that_is_not_in_the_list_of_devices_no_generation_is_known(healthy: Snapshot) -> None:
    assert len(driver_state.architectures(healthy)) == 8
    assert driver_state.architectures(altered(healthy, pci__devices=())) == {}
    assert verdict(altered(healthy, pci__devices=()), "driver-does-not-support-gpu") is NA


# --- why no module runs


@pytest.mark.parametrize(
    "rule_id", ["no-nvidia-driver", "nvidia-module-not-built-for-kernel", "secure-boot-blocks-module", "nvidia-driver-not-loaded"]
)
def test_a_module_that_runs_is_said_to_run(healthy: Snapshot, rule_id: str) -> None:
    assert lines(healthy, rule_id) == [("nvidia", PASS)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nouveau", FAIL), ("nova_core", FAIL), ("NovaCore", FAIL), ("nvidia", PASS), (NOTHING, PASS), ("vfio-pci", NA)],
)
def test_which_kernel_driver_keeps_nvidia_away(healthy: Snapshot, name: Any, expected: Verdict) -> None:
    seen = bound_to(healthy, name)
    assert verdict(seen, "nouveau-loaded") is expected
    (found, *_) = result(seen, "nouveau-loaded").evidence or (None,)
    if found is not None and found.verdict is FAIL:
        assert ("nova_core" in str(found.fix)) is (name != "nouveau")  # the module that must not be loaded is another one


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({}, PASS),  # GPUs are served: the build was for another kernel
        ({"gpu__devices": ()}, FAIL),
        ({"gpu__devices": DENIED}, FAIL),
        ({"gpu": DENIED}, FAIL),
    ],
)
def test_a_failed_build_is_told_where_no_gpu_works(healthy: Snapshot, gpu: dict[str, Any], expected: Verdict) -> None:
    seen = altered(healthy, driver__build_failure="6.8.0-50-generic", **gpu)
    assert verdict(seen, "nvidia-module-not-built-for-kernel") is expected


@pytest.mark.parametrize(
    ("devices", "on_the_bus", "expected"),
    [("all", NOTHING, PASS), ((), NOTHING, NA), ((), (FIRST,), PASS), ((), DENIED, UNKNOWN)],
)
def test_nvml_that_works_proves_that_versions_fit(healthy: Snapshot, devices: Any, on_the_bus: Any, expected: Verdict) -> None:
    seen = altered(healthy, driver__nvidia_devices=on_the_bus, gpu__devices=gpus(healthy) if devices == "all" else devices)
    assert verdict(seen, "nvml-driver-library-mismatch") is expected


# --- reaching the GPU


def node(accessible: Any, path: str = "/dev/kfd") -> DeviceNode:
    return DeviceNode(path=path, mode=0o660, uid=0, gid=44, accessible=accessible)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (NOTHING, NA),
        ((), NA),
        (DENIED, UNKNOWN),
        ((node(True), node(False)), FAIL),
        ((node(True), node(True)), PASS),
        ((node(True), node(DENIED)), UNKNOWN),
    ],
)
def test_nodes_of_the_nvidia_driver(healthy: Snapshot, nodes: Any, expected: Verdict) -> None:
    assert verdict(altered(healthy, driver__device_nodes=nodes), "gpu-device-permission") is expected


@pytest.mark.parametrize(
    ("devices", "found", "expected"),
    [
        (("0000:03:00.0",), node(False), FAIL),
        (("0000:03:00.0",), node(True), PASS),
        (("0000:03:00.0",), node(DENIED), UNKNOWN),
        (("0000:03:00.0",), NOTHING, NA),
        ((), node(False), NA),
        (NOTHING, node(False), NA),
        (DENIED, node(False), UNKNOWN),
    ],
)
def test_the_node_of_amd(healthy: Snapshot, devices: Any, found: Any, expected: Verdict) -> None:
    seen = altered(healthy, driver__nvidia_devices=(), driver__amd_devices=devices, driver__compute_node=found)
    assert verdict(seen, "rocm-device-permission") is expected


@pytest.mark.parametrize(
    ("error", "container", "before", "nodes", "expected"),
    [
        *((error, "docker", False, (node(True),), FAIL) for error in ("UNKNOWN", "OPERATING_SYSTEM")),
        *((error, DENIED, True, DENIED, FAIL) for error in ("UNKNOWN", "OPERATING_SYSTEM")),
        ("UNKNOWN", "docker", True, (), FAIL),  # as a report tells it
        ("UNKNOWN", "", True, DENIED, FAIL),
        ("UNKNOWN", "", False, (node(True),), NA),
        ("UNKNOWN", DENIED, False, (node(True),), UNKNOWN),
        ("UNKNOWN", "docker", False, (), NA),
        ("UNKNOWN", "docker", False, (node(True), node(False)), NA),
        ("UNKNOWN", "docker", False, DENIED, UNKNOWN),
        ("DRIVER_NOT_LOADED", "docker", False, (node(True),), UNKNOWN),
    ],
)
def test_a_permission_that_was_taken_away(
    healthy: Snapshot, error: str, container: Any, before: bool, nodes: Any, expected: Verdict
) -> None:
    nvml = {"gpu__error": error, "gpu__devices": Missing(Why.FAILED, "NVML"), "gpu__worked_before": before}
    seen = altered(healthy, system__container=container, driver__device_nodes=nodes, **nvml)
    assert verdict(seen, "container-lost-gpu-cgroup") is expected
    if expected is FAIL:
        named = "container (docker)" if container == "docker" else "container"
        assert lines(seen, "container-lost-gpu-cgroup") == [(named, FAIL)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (NOTHING, NA),
        ((), NA),
        (DENIED, UNKNOWN),
        (("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so.1"), PASS),
        (("/usr/local/cuda/lib64/stubs/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"), FAIL),
    ],
)
def test_the_loader_takes_the_first(healthy: Snapshot, found: Any, expected: Verdict) -> None:
    assert verdict(altered(healthy, driver__libcuda=found), "cuda-stub-library-loaded") is expected


@pytest.mark.parametrize(
    ("wsl", "named", "expected"),
    [(True, False, FAIL), (True, True, PASS), (True, NOTHING, NA), (True, DENIED, UNKNOWN), (False, False, NA)],
)
def test_the_library_that_windows_brings(healthy: Snapshot, wsl: bool, named: Any, expected: Verdict) -> None:
    seen = altered(healthy, driver__wsl=wsl, driver__wsl_libraries_on_path=named)
    assert verdict(seen, "wsl-libcuda-link-missing") is expected


# --- what must run beside the driver

BOARD, CARD, UNHEARD = ({"name": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB", "NVIDIA Z9"))
DONE, WAITING, SILENT = ({"fabric_state": state} for state in ("completed", "in-progress", UNTOLD))


@pytest.mark.parametrize(
    ("told", "changes", "expected"),
    [
        ("it could not be configured", (BOARD | WAITING,), [("nvidia-fabricmanager", FAIL)]),
        ("it could not be configured", (BOARD | SILENT, BOARD | SILENT), [("nvidia-fabricmanager", FAIL)]),
        ("it could not be configured", (CARD | SILENT, BOARD | SILENT), [("nvidia-fabricmanager", FAIL)]),
        ("it could not be configured", (BOARD | WAITING, BOARD | DONE), [("GPU 0", FAIL), ("GPU 1", PASS)]),
        ("it could not be configured", (CARD | DONE,), [("GPU 0", PASS)]),
        ("it could not be configured", (CARD | WAITING,), [("GPU 0", FAIL)]),
        ("it could not be configured", (UNHEARD | WAITING,), [("GPU 0", FAIL)]),
        ("it could not be configured", ({"name": DENIED} | WAITING,), [("nvidia-fabricmanager", FAIL)]),
        ("no NVSwitch", (BOARD | WAITING,), [("nvidia-fabricmanager", FAIL)]),
        ("no NVSwitch", ({"name": DENIED} | WAITING,), [("GPU 0", FAIL)]),
        ("no NVSwitch", (CARD | DONE,), [("GPU 0", PASS)]),
        ("", (BOARD | WAITING,), [("GPU 0", FAIL)]),
        (NOTHING, (BOARD | DONE,), [("GPU 0", PASS)]),
        (NOTHING, (BOARD | {"fabric_state": "not-started"}, BOARD | DONE), [("GPU 0", FAIL), ("GPU 1", PASS)]),
        (NOTHING, (BOARD | {"fabric_state": "not-supported"}, BOARD | DONE), [("GPU 1", PASS)]),
        (NOTHING, (BOARD | WAITING | {"mig": True}, BOARD | DONE), [("GPU 1", PASS)]),
    ],
)
def test_why_the_fabric_is_not_up(
    healthy: Snapshot, told: Any, changes: tuple[dict[str, Any], ...], expected: list[tuple[str, Verdict]]
) -> None:
    seen = altered(with_gpus(healthy, *changes), driver__fabric_manager_failure=told)
    assert lines(seen, "fabric-manager-not-running") == expected


@pytest.mark.parametrize("unseen", [{"gpu": DENIED}, {"gpu__devices": DENIED}, {"gpu__devices": ()}])
@pytest.mark.parametrize(
    ("told", "running", "expected"),
    [("it could not be configured", True, FAIL), ("no NVSwitch", True, PASS), ("", True, PASS), ("", False, FAIL)],
)
def test_the_fabric_managers_log_where_no_gpu_is_seen(
    healthy: Snapshot, unseen: dict[str, Any], told: str, running: bool, expected: Verdict
) -> None:
    seen = altered(healthy, driver__fabric_manager_failure=told, driver__fabric_manager=running, driver__nvswitches=4, **unseen)
    assert lines(seen, "fabric-manager-not-running") == [("nvidia-fabricmanager", expected)]


@pytest.mark.parametrize(
    ("switches", "logged", "expected"),
    [
        (4, "580.95.05", PASS),
        (4, "580.82.07", FAIL),
        (0, "580.82.07", NA),
        (NOTHING, "580.82.07", NA),
        (DENIED, "580.82.07", UNKNOWN),
        (4, NOTHING, NA),
        (4, Missing(Why.UNPARSED, "log"), NA),
        (4, DENIED, UNKNOWN),
    ],
)
def test_versions_of_fabric_manager_and_driver(healthy: Snapshot, switches: Any, logged: Any, expected: Verdict) -> None:
    seen = altered(healthy, driver__nvswitches=switches, driver__fabric_manager_version=logged)
    apart = altered(seen, gpu__devices=tuple(msgspec.structs.replace(gpu, fabric_state=NOTHING) for gpu in gpus(seen)))
    assert verdict(apart, "fabric-manager-version-mismatch") is expected
    assert verdict(seen, "fabric-manager-version-mismatch") is (PASS if expected is FAIL else expected)  # all are in the fabric
    waiting = altered(seen, gpu__devices=tuple(msgspec.structs.replace(gpu, fabric_state="in-progress") for gpu in gpus(seen)))
    logged_other = logged == "580.82.07"  # whatever the bus shows: the NVSwitches of B200 are no PCI devices
    assert verdict(waiting, "fabric-manager-version-mismatch") is (FAIL if logged_other else expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"persistence": UNTOLD}, []),
        ({"persistence": UNTOLD, "lost": True}, []),
        ({"persistence": NOT_READ, "lost": True}, []),
        ({"persistence": NOT_READ}, [("GPU 0", UNKNOWN)]),
        ({"persistence": True}, [("GPU 0", PASS)]),
        ({"persistence": False, "display": True}, [("GPU 0", PASS)]),
        ({"persistence": False, "display": False}, [("GPU 0", FAIL)]),
        ({"persistence": False, "display": DENIED}, [("GPU 0", FAIL)]),
    ],
)
def test_each_gpu_is_kept_awake_or_not(healthy: Snapshot, change: dict[str, Any], expected: list[tuple[str, Verdict]]) -> None:
    seen = with_gpus(healthy, change, {"persistence": False, "display": False})
    assert lines(seen, "gpu-persistence-mode-off") == [*expected, ("GPU 1", FAIL)]


@pytest.mark.parametrize(("runs", "word"), [(True, "--no-persistence-mode"), (False, ""), (DENIED, "")])
def test_a_daemon_that_runs_is_not_to_be_started_again(healthy: Snapshot, runs: Any, word: str) -> None:
    """Ubuntu's unit starts nvidia-persistenced with that option."""
    seen = altered(with_gpus(healthy, {"persistence": False, "display": False}), driver__persistenced=runs)
    fix = result(seen, "gpu-persistence-mode-off").evidence[0].fix
    assert (word in repr(fix), bool(fix)) == (True, bool(word))


@pytest.mark.parametrize(
    ("package", "word"),
    [("nvidia-compute-utils-580-server", "edit --full"), ("nvidia-persistenced", ""), ("nvidia-driver-cuda", "")],
)
def test_a_unit_that_cannot_be_enabled_is_told(healthy: Snapshot, package: str, word: str) -> None:
    """canonical/nvidia-graphics-drivers: no [Install], StopWhenUnneeded=true, --no-persistence-mode."""
    seen = altered(with_gpus(healthy, {"persistence": False, "display": False}), driver__persistenced=False)
    seen = altered(seen, software__packages=(Package(name=package, version="580.95.05-0ubuntu1"),))
    fix = result(seen, "gpu-persistence-mode-off").evidence[0].fix
    assert (word in repr(fix), bool(fix)) == (True, bool(word))
