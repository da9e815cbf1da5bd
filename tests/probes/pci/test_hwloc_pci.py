"""On recorded machines the PCI devices are those that hwloc and the kernel's own raw files name.

hwloc's console output lists the functions that its default filter finds important; its XML files list all of them. Compared: address,
class, and vendor:device where the tree holds them (hwloc prints 0000:0000 where it does not).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from elsewhere import all_recorded_elsewhere, each_recorded_elsewhere, recorded_elsewhere
from torchtune_sys.host.base import Host
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.pci import probe as pci

PATTERNS = ("hwloc/*.tar.*", "ghw/*.tar.*")

_CONSOLE = re.compile(r"PCI L#\d+ \(busid=([0-9a-f]+:[0-9a-f:.]+) id=([0-9a-f]{4}):([0-9a-f]{4}) class=([0-9a-f]{4})")
_XML = re.compile(r'pci_busid="([^"]+)" pci_type="([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]')


@functools.cache
def machine(path: Path) -> Host:
    return open_host(str(path))


def found(path: Path) -> dict[str, PciDevice]:
    devices = pci.probe(machine(path), Workload()).devices
    return {} if isinstance(devices, Missing) else {device.address: device for device in devices}


def expected(path: Path) -> dict[str, tuple[str, str, str]]:
    """Address → class, vendor, device."""
    stem = str(path).partition(".tar")[0]
    if Path(f"{stem}.xml").exists():
        return {row[0]: (row[1], row[2], row[3]) for row in _XML.findall(Path(f"{stem}.xml").read_text())}
    if Path(f"{stem}.console").exists():
        return {row[0]: (row[3], row[1], row[2]) for row in _CONSOLE.findall(Path(f"{stem}.console").read_text())}
    return {}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", each_recorded_elsewhere(*PATTERNS), ids=lambda path: path.name.partition(".tar")[0])
def test_every_function_that_hwloc_lists_is_there(path: Path) -> None:
    devices = found(path)
    for busid, (class_, vendor, device) in expected(path).items():
        assert devices[busid].class_ == f"0x{class_}00" or str(devices[busid].class_)[2:6] == class_
        if (vendor, device) != ("0000", "0000"):
            assert (devices[busid].vendor, devices[busid].device) == (f"0x{vendor}", f"0x{device}")
    if Path(str(path).partition(".tar")[0] + ".xml").exists():
        rest = [device for busid, device in devices.items() if busid not in expected(path)]
        assert all(str(device.class_).startswith("0x0604") for device in rest)  # bridges with nothing below may be left out


@pytest.mark.parametrize("path", each_recorded_elsewhere(*PATTERNS), ids=lambda path: path.name.partition(".tar")[0])
def test_every_function_of_the_tree_is_there_once_and_in_order(path: Path) -> None:
    names = machine(path).names("/sys/bus/pci/devices")
    listed = [] if isinstance(names, Missing) else list(names)
    devices = found(path)
    assert sorted(listed) == sorted(devices)
    assert list(devices) == sorted(devices, key=pci.address_key)


def test_something_was_compared() -> None:
    recorded_elsewhere("hwloc")
    compared = {path.name: len(expected(path)) for path in all_recorded_elsewhere(*PATTERNS) if expected(path)}
    assert sum(compared.values()) >= 10, compared


def test_an_accelerator_is_seen_with_its_parents_and_link() -> None:
    path = recorded_elsewhere("ghw/linux-amd64-accel-nvidia.tar.gz")
    gpus = [device for device in found(path).values() if device.vendor == "0x10de"]
    assert [device.class_[:6] for device in gpus] == ["0x0302"]
