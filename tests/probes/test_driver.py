"""The driver's kernel side, its libraries and its device nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import HOSTS
from torchtune_sys.formats.fabric_manager_log import parse_fabric_manager_log
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, need
from torchtune_sys.probes.driver import files as driver_files
from torchtune_sys.probes.driver import probe as driver
from torchtune_sys.probes.gpu import probe as gpu

HEALTHY = load_recording(str(HOSTS / "healthy.json"))


def probe(**overlay: Any) -> DriverFacts:
    return driver.probe(RecordedHost(merged(HEALTHY, overlay), "test"), Workload())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  418.226.00  Wed Mar 16 2022", ("418.226.00", "proprietary")),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  535.104.05  Sat Aug 19", ("535.104.05", "proprietary")),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.133.20  Release Build", ("570.133.20", "open")),
        ("GCC version:  gcc version 12.3.0", None),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module", None),
        ("", None),
    ],
)
def test_version_and_flavour(text: str, expected: tuple[str, str] | None) -> None:
    assert driver.parse_version(text) == expected


def test_the_last_start_in_the_fabric_managers_log_counts() -> None:
    line = "[INFO] [tid 1] Fabric Manager version is : {} with build time: x\n"
    assert parse_fabric_manager_log(line.format("535.1.1") + "other\n" + line.format("550.163.01") + "more\n") == "550.163.01"


def test_a_machine_without_gpu_looks_no_further() -> None:
    host = RecordedHost({"dirs": {"/sys/bus/pci/devices": []}, "files": {"/proc/modules": "ext4 1 0 - Live 0x0\n"}}, "test")
    found = driver.probe(host, Workload())
    assert (found.nvidia_devices, found.module_loaded, found.nvswitches) == ((), False, 0)
    sign = gpu.find_sign(host)
    assert isinstance(sign, Missing) and sign.why is Why.ABSENT


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH"])
def test_a_search_path_that_this_session_may_not_read_hides_no_driver_from_it(name: str) -> None:
    denied = {f"/root/bin/{file}": {"error": "denied"} for file in ("nvidia-smi", "libnvidia-ml.so.1")}
    data = {"env": {name: "/root/bin:/usr/bin"}, "files": {"/proc/modules": ""}, "stats": denied}
    sign = gpu.find_sign(RecordedHost(data, "test"))
    assert isinstance(sign, Missing) and sign.why is Why.ABSENT
    hidden = {"files": {"/proc/modules": ""}, "stats": {"/dev/nvidiactl": {"error": "denied"}}}
    sign = gpu.find_sign(RecordedHost(hidden, "test"))
    assert isinstance(sign, Missing) and sign.why is Why.DENIED


def test_absence_in_a_partial_recording_is_not_absence() -> None:
    found = driver.probe(RecordedHost({"complete": False}, "test"), Workload())
    for fact in (found.nvidia_devices, found.module_loaded, found.nouveau_loaded):
        assert isinstance(fact, Missing) and fact.why is Why.NOT_RECORDED
    sign = gpu.find_sign(RecordedHost({"complete": False}, "test"))
    assert isinstance(sign, Missing) and sign.why is Why.NOT_RECORDED


@pytest.mark.parametrize(
    ("files", "why", "gpus"),
    [
        ({"class": "0x030200\n", "vendor": "0x10de\n"}, None, ("0004:04:00.0",)),
        ({"class": "0x030200\n", "vendor": "0x1a03\n"}, None, ()),  # the ASPEED of a board's management
        ({"class": "0x020000\n"}, None, ()),
        ({"class": "0x030200\n"}, Why.NOT_RECORDED, ()),
        ({"vendor": "0x10de\n"}, Why.NOT_RECORDED, ()),
        ({}, Why.NOT_RECORDED, ()),  # a link to a directory that was not recorded
        ({"class": {"error": "absent"}}, None, ()),  # pulled out in this moment
        ({"class": {"error": "denied"}}, Why.DENIED, ()),
    ],
)
def test_a_function_without_its_class_or_vendor_may_be_a_gpu(
    files: dict[str, Any], why: Why | None, gpus: tuple[str, ...]
) -> None:
    place = "/sys/bus/pci/devices"
    recording = {"complete": False, "dirs": {place: ["0004:04:00.0"]}}
    recording["files"] = {f"{place}/0004:04:00.0/{name}": text for name, text in files.items()}
    found = driver.probe(RecordedHost(recording, "test"), Workload())
    for fact, expected in ((found.nvidia_devices, gpus), (found.amd_devices, ())):
        assert fact.why is why if isinstance(fact, Missing) else (fact, why) == (expected, None)


def test_the_drivers_list_stands_for_a_vendor_that_was_not_recorded() -> None:
    files = {"/sys/bus/pci/devices/0004:04:00.0/class": "0x030200\n", "/proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "x"}
    host = RecordedHost({"complete": False, "dirs": {"/sys/bus/pci/devices": ["0004:04:00.0"]}, "files": files}, "test")
    assert driver.probe(host, Workload()).nvidia_devices == ("0004:04:00.0",)


def test_libraries_in_the_loaders_order() -> None:
    found = probe(
        env={"LD_LIBRARY_PATH": "relative:/opt/new::/opt/new"},
        links={"/opt/new/libcuda.so.1": "libcuda.so.590.48.01"},
        stats={"/opt/new/libcuda.so.590.48.01": {"mode": 0o100644, "uid": 0, "gid": 0, "size": 9}},
    )
    assert found.libcuda == ("/opt/new/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert (found.library_version, found.library_versions) == ("590.48.01", ("580.95.05", "590.48.01"))


def test_libraries_for_32_bit_programs_are_passed_over() -> None:
    place = "/usr/lib/i386-linux-gnu"
    found = probe(
        env={"LD_LIBRARY_PATH": place},
        links={f"{place}/libcuda.so.1": "libcuda.so.535.183.01"},
        stats={f"{place}/libcuda.so.535.183.01": {"mode": 0o100644, "uid": 0, "gid": 0, "size": 9}},
    )
    assert (found.library_version, found.library_versions) == ("580.95.05", ("580.95.05",))


def test_a_link_that_leads_nowhere_is_no_library() -> None:
    found = probe(
        env={"LD_LIBRARY_PATH": "/opt/new"},
        links={"/opt/new/libcuda.so.1": "libcuda.so.999.1"},
        dirs={"/opt/new": ["libcuda.so.1"]},
    )
    assert found.libcuda == ("/usr/lib/x86_64-linux-gnu/libcuda.so.1",)
    assert found.library_version == "580.95.05"


def test_debians_libraries_are_found_through_its_alternatives() -> None:
    place, store = "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current"
    found = probe(
        links={
            f"{place}/libcuda.so.1": "/etc/alternatives/glx--libcuda.so.1-x86_64-linux-gnu",
            "/etc/alternatives/glx--libcuda.so.1-x86_64-linux-gnu": f"{store}/libcuda.so.1",
            f"{store}/libcuda.so.1": "libcuda.so.550.163.01",
            f"{place}/libnvidia-ml.so.1": None,
        },
        stats={
            f"{place}/libcuda.so.580.95.05": None,
            f"{place}/libnvidia-ml.so.580.95.05": None,
            f"{store}/libcuda.so.550.163.01": {"mode": 0o100644, "uid": 0, "gid": 0, "size": 9},
        },
    )
    assert (found.library_version, found.library_versions) == ("550.163.01", ("550.163.01",))


def test_cuda_compat_is_no_second_driver() -> None:
    found = probe(
        env={"LD_LIBRARY_PATH": "/usr/local/cuda-13.1/compat"},
        links={"/usr/local/cuda-13.1/compat/libcuda.so.1": "libcuda.so.590.48.01"},
        stats={"/usr/local/cuda-13.1/compat/libcuda.so.590.48.01": {"mode": 0o100644, "uid": 0, "gid": 0, "size": 9}},
    )
    assert (found.library_version, found.library_versions) == ("580.95.05", ("580.95.05",))


@pytest.mark.parametrize(
    ("mode", "gid", "allowed"), [(0o20666, 0, True), (0o20660, 44, True), (0o20660, 4000, False), (0o20640, 44, False)]
)
def test_access_to_a_device_node(mode: int, gid: int, allowed: bool) -> None:
    nodes = probe(stats={"/dev/nvidia0": {"mode": mode, "uid": 0, "gid": gid, "size": 0}}).device_nodes
    assert not isinstance(nodes, Missing)
    assert next(node.accessible for node in nodes if node.path == "/dev/nvidia0") is allowed


def test_an_access_list_may_permit_what_the_bits_do_not() -> None:
    nodes = probe(
        stats={"/dev/nvidia0": {"mode": 0o20660, "uid": 0, "gid": 4000, "size": 0}},
        answers={"access:/dev/nvidia0": {"read": True, "write": True}},
    ).device_nodes
    assert not isinstance(nodes, Missing) and all(node.accessible for node in nodes)


def test_selinux_may_refuse_what_the_bits_permit() -> None:
    nodes = probe(
        stats={"/dev/nvidia0": {"mode": 0o20666, "uid": 0, "gid": 0, "size": 0}},
        answers={"access:/dev/nvidia0": {"read": False, "write": False}},
    ).device_nodes
    assert not isinstance(nodes, Missing)
    assert [node.accessible for node in nodes if node.path == "/dev/nvidia0"] == [False]


@pytest.mark.parametrize(
    ("files", "links", "barred"),
    [
        ({"/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_EnableGpuFirmware=0\n"}, {}, ""),
        ({}, {"/etc/modprobe.d/nvidia.conf": "/dev/null"}, ""),
        ({"/etc/modprobe.d/other.conf": ""}, {}, "/usr/lib/modprobe.d/nvidia.conf"),
        ({"/etc/modprobe.d/nvidia.conf": "alias nvidia off\n"}, {}, "/etc/modprobe.d/nvidia.conf"),
    ],
)
def test_a_file_of_modprobe_replaces_its_namesake(files: dict[str, str], links: dict[str, str], barred: str) -> None:
    """modprobe.d(5): that of /etc goes before that of /usr/lib, and a link to /dev/null masks it."""
    lower = {"/proc/driver/nvidia/version": None, "/proc/modules": "", "/usr/lib/modprobe.d/nvidia.conf": "blacklist nvidia\n"}
    found = probe(files={**lower, **files}, links=links).module_barred_by
    assert ("" if isinstance(found, Missing) and found.why is Why.ABSENT else found) == barred


def test_condas_forward_compatibility_is_no_driver_of_another_version() -> None:
    """conda-forge's cuda-compat lies in a folder of its own, and activation links it into the environment's lib."""
    place = "/opt/env/cuda-compat/libcuda.so"
    links = {f"{place}.1": "libcuda.so.610.43.02", "/opt/env/lib/libcuda.so.1": f"{place}.1"}
    links |= {"/opt/env/lib/libcuda.so.610.43.02": f"{place}.610.43.02"}
    stats = {f"{place}.610.43.02": {"mode": 0o100755, "uid": 0, "gid": 0, "size": 9}}
    for folder in ("/opt/env/cuda-compat", "/opt/env/lib"):
        found = probe(links=links, stats=stats, env={"LD_LIBRARY_PATH": folder})
        assert (found.library_version, found.library_versions) == ("580.95.05", ("580.95.05",))
        assert need(found.libcuda)[0] == f"{folder}/libcuda.so.1"


@pytest.mark.parametrize(
    ("lib64", "versions"),
    [
        ({"/usr/lib64/libc.so.6": ""}, ("580.95.05",)),  # Fedora, SUSE: what Steam needs, of 32 bits and left behind
        ({"/usr/lib64/ld-linux-x86-64.so.2": ""}, ("550.54.14", "580.95.05")),  # Debian
    ],
)
def test_libraries_of_32_bits_are_not_those_of_the_driver(lib64: dict[str, str], versions: tuple[str, ...]) -> None:
    old = "/usr/lib/libcuda.so.550.54.14"
    stats = {old: {"mode": 0o100755, "uid": 0, "gid": 0, "size": 9}}
    found = probe(files=lib64, links={"/usr/lib/libcuda.so.1": old.rpartition("/")[2]}, stats=stats)
    assert (found.library_version, found.library_versions) == ("580.95.05", versions)


def test_a_daemon_is_not_absent_because_a_container_does_not_show_it() -> None:
    gone = {"/run/nvidia-persistenced/nvidia-persistenced.pid": None}
    assert probe(files=gone).persistenced is False
    inside = probe(files={**gone, "/proc/1/comm": "bash\n"}).persistenced
    assert isinstance(inside, Missing) and inside.why is Why.NOT_SUPPORTED


def test_the_fabric_manager_that_a_driver_of_another_version_stopped() -> None:
    refused = "fabric manager NVIDIA GPU driver interface version 580.82.07 don't match with driver version 580.95.05."
    log = [*HEALTHY["files"]["/var/log/fabricmanager.log"], f"[Nov 21 2026 08:11:02] [ERROR] [tid 9] {refused}"]
    assert probe(files={"/var/log/fabricmanager.log": log}).fabric_manager_version == "580.82.07"


@pytest.mark.parametrize(
    "bad", ["", "\0", "x" * 70_000, "\ud800", {"error": "denied"}, {"error": "failed"}, {"error": "timeout"}]
)
@pytest.mark.parametrize(
    "path",
    [
        "/proc/driver/nvidia/version",
        "/proc/driver/nvidia/params",
        "/proc/modules",
        "/var/log/fabricmanager.log",
        "/etc/ld.so.conf.d/libc.conf",
        "/sys/module/nvidia/version",
        "/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0/uevent",
    ],
)
def test_hostile_files_do_not_raise(bad: Any, path: str) -> None:
    assert isinstance(probe(files={path: bad}), DriverFacts)


@pytest.mark.parametrize(
    "answer", [[], "x", 3, {"devices": 3}, {"devices": [{"index": "x"}]}, {"error": 5}, None, {"error": "timeout"}]
)
def test_hostile_nvml_answers_are_missing_facts(answer: Any) -> None:
    recording = {**HEALTHY, "answers": {**HEALTHY["answers"], "nvml": answer}}
    found = gpu.probe(RecordedHost(recording, "test"), Workload())
    assert isinstance(found.devices, Missing)
    assert found.devices.why in (Why.UNPARSED, Why.TIMEOUT)


@given(st.text())
def test_parsers_survive_any_text(text: str) -> None:
    driver.parse_version(text)
    driver.parse_params(text)
    parse_fabric_manager_log(text)
    driver_files.parse_ld_so_conf(text)
    driver_files.is_gpu_node(text)
