"""PCI functions from trees of every quality."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.pci import probe as pci

PORT = "/sys/devices/pci0000:17/0000:17:01.0"
GPU = f"{PORT}/0000:18:00.0"
TREE: dict[str, Any] = {
    "files": {
        f"{PORT}/uevent": "PCI_CLASS=60400\nPCI_ID=8086:352A\n",
        f"{GPU}/uevent": "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\n",
        f"{GPU}/numa_node": "1\n",
        f"{GPU}/current_link_speed": "16.0 GT/s PCIe\n",
        f"{GPU}/max_link_speed": "32.0 GT/s PCIe\n",
        f"{GPU}/current_link_width": "8\n",
        f"{GPU}/max_link_width": "16\n",
        f"{PORT}/max_link_width": "16\n",
    },
    "links": {
        "/sys/bus/pci/devices/0000:17:01.0": "../../../devices/pci0000:17/0000:17:01.0",
        "/sys/bus/pci/devices/0000:18:00.0": "../../../devices/pci0000:17/0000:17:01.0/0000:18:00.0",
        f"{GPU}/iommu_group": "../../../../kernel/iommu_groups/31",
    },
}


def devices(**changes: Any) -> dict[str, PciDevice]:
    tree = {section: {**TREE.get(section, {}), **changes.get(section, {})} for section in ("files", "links", "dirs")}
    found = pci.probe(RecordedHost(tree, "test"), Workload()).devices
    assert not isinstance(found, Missing)
    return {device.address: device for device in found}


def test_a_gpu_below_its_port() -> None:
    found = devices()
    gpu, port = found["0000:18:00.0"], found["0000:17:01.0"]
    assert (gpu.class_, gpu.vendor, gpu.device, gpu.numa_node) == ("0x030200", "0x10de", "0x2330", 1)
    assert (gpu.driver, gpu.parent, gpu.iommu_group, gpu.subsystem_device) == ("nvidia", "0000:17:01.0", "31", "0x16c1")
    assert (gpu.link.current_gts, gpu.link.max_gts, gpu.link.current_width, gpu.link.max_width) == (16.0, 32.0, 8, 16)
    assert port.parent == "" and port.link.max_width == 16  # the bridge above a GPU matters too
    assert isinstance(port.driver, Missing) and port.driver.why is Why.ABSENT


def test_a_device_that_no_rule_looks_at_has_its_place_too() -> None:
    audio = f"{PORT}/0000:18:00.1"
    found = devices(
        files={f"{audio}/uevent": "PCI_CLASS=40300\nPCI_ID=8086:A1F0\n", f"{audio}/numa_node": "1\n"},
        links={"/sys/bus/pci/devices/0000:18:00.1": "../../../devices/pci0000:17/0000:17:01.0/0000:18:00.1"},
    )["0000:18:00.1"]
    assert (found.numa_node, found.parent) == (1, "0000:17:01.0")


def test_old_kernels_without_uevent_fields_are_read_file_by_file() -> None:
    gpu = devices(
        files={
            f"{GPU}/uevent": {"error": "absent"},
            f"{GPU}/class": "0x030200",
            f"{GPU}/vendor": "0x10de",
            f"{GPU}/device": "0x1db1",
        }
    )["0000:18:00.0"]
    assert (gpu.class_, gpu.vendor, gpu.device) == ("0x030200", "0x10de", "0x1db1")


def test_domains_of_more_than_16_bits_come_last() -> None:
    found = devices(links={"/sys/bus/pci/devices/10000:00:04.0": "../../../devices/vmd/10000:00:04.0"})
    assert list(found)[-1] == "10000:00:04.0"


@pytest.mark.parametrize(
    ("files", "node"),
    [
        ({"local_cpus": "0000,000000f0\n"}, 8),
        ({"local_cpulist": "4-5\n"}, 8),
        ({"local_cpulist": "0-3\n", "numa_node": "8\n"}, 8),
        ({"local_cpulist": "0-3\n", "numa_node": "-1\n"}, -1),
        ({"local_cpulist": "0-7\n"}, None),  # the whole machine's
        ({"local_cpulist": "\n"}, None),
        ({"local_cpus": "x\n"}, None),
        ({}, None),
    ],
)
def test_the_node_of_a_recording_that_has_but_the_local_cpus(files: dict[str, str], node: int | None) -> None:
    """hwloc's older recordings."""
    place, nodes = "/sys/bus/pci/devices/0004:05:00.0", "/sys/devices/system/node"
    recording: dict[str, Any] = {"complete": False, "dirs": {pci.DEVICES: ["0004:05:00.0"], nodes: ["node0", "node8", "online"]}}
    recording["files"] = {f"{nodes}/node0/cpulist": "0-3\n", f"{nodes}/node8/cpumap": "000000f0\n"}
    recording["files"] |= {f"{place}/{name}": text for name, text in files.items()}
    devices = pci.probe(RecordedHost(recording, "test"), Workload()).devices
    assert not isinstance(devices, Missing)
    found = devices[0].numa_node
    assert found == node if not isinstance(found, Missing) else node is None


def test_no_pci_is_absent() -> None:
    found = pci.probe(RecordedHost({}, "test"), Workload()).devices
    assert isinstance(found, Missing) and found.why is Why.ABSENT


@pytest.mark.parametrize("text", ["0", "255", "63"])
def test_widths_of_functions_without_a_link(text: str) -> None:
    width = devices(files={f"{GPU}/current_link_width": text})["0000:18:00.0"].link.current_width
    assert isinstance(width, Missing) and width.why is Why.NOT_SUPPORTED


@pytest.mark.parametrize(
    "bad",
    ["", "\0\0", "-1", "99999999999999999999", "x" * 5000, {"error": "denied"}, {"error": "failed"}, "nan GT/s", "inf GT/s"],
)
@pytest.mark.parametrize(
    "name",
    [
        "uevent",
        "numa_node",
        "current_link_speed",
        "max_link_width",
        "class",
        "aer_dev_correctable",
        "resource",
        "power/runtime_status",
    ],
)
def test_hostile_files_are_missing_facts(bad: Any, name: str) -> None:
    gpu = devices(files={f"{GPU}/{name}": bad})["0000:18:00.0"]
    assert isinstance(gpu.link.current_gts, Missing) or gpu.link.current_gts in (16.0,)


def test_links_in_a_circle_and_names_that_are_none() -> None:
    found = devices(
        links={
            "/sys/bus/pci/devices/0000:18:00.0": "/sys/bus/pci/devices/0000:17:01.0",
            "/sys/bus/pci/devices/0000:17:01.0": "/sys/bus/pci/devices/0000:18:00.0",
            "/sys/bus/pci/devices/rubbish": "nowhere",
        }
    )
    assert set(found) == {"0000:18:00.0", "0000:17:01.0"}


@given(st.text())
def test_parsers_survive_any_text(text: str) -> None:
    pci.parse_uevent(text)
    pci.parse_parent(text)
    pci.address_key(text)
    speed = pci.parse_speed(text)
    assert isinstance(speed, Missing) or 1 < speed < 1000
