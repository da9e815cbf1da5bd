"""A host that a person describes, because it does not exist yet or cannot be recorded. All other facts are missing."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys.host.recorded import RecordedHost

_ABSENT = {"error": "absent"}
_PCI = "/sys/bus/pci/devices"
_AMD = "1002:"
_LIKE = {
    **dict.fromkeys(("rhel",), "fedora"),
    **dict.fromkeys(("rocky", "almalinux", "centos"), "rhel centos fedora"),
    **dict.fromkeys(("ol", "amzn"), "fedora"),
    "ubuntu": "debian",
    **dict.fromkeys(("sles", "opensuse-leap"), "suse opensuse"),
}
"""``ID_LIKE`` as the distributions write it."""


DESCRIBED = "described"
"""How the origin of such a host begins."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    os_id: str
    """``ID`` of os-release."""
    os_version: str
    """``VERSION_ID``; ``""`` of a rolling release."""
    os_name: str
    codename: str
    """``""`` where it has none, or it is not known."""
    machine: str
    """``x86_64``, ``aarch64``"""
    devices: tuple[str, ...] = ()
    """PCI vendor and device id of each GPU: ``10de:2330``; the host has no other."""
    devices_name: str = ""
    driver: str = ""
    """Version of the driver that is installed; ``""`` for none."""
    kernel: str = ""
    """``uname -r``; ``""`` where nobody said."""

    @property
    def origin(self) -> str:
        cards = f"{len(self.devices)} x {self.devices_name}" if self.devices else "no GPU"
        lacks = ", no driver" if self.devices and not self.devices[0].startswith(_AMD) else ""
        driver = f", driver {self.driver}" if self.driver else lacks
        kernel = f", kernel {self.kernel}" if self.kernel else ""
        return f"{DESCRIBED}: {self.os_name} {self.machine}, {cards}{driver}{kernel}"


def described(said: Description) -> RecordedHost:
    """Return the host, as a recording that holds what was said: everything else was *not recorded*, and stays unknown.

    The places of the GPUs on the bus are numbered by us; no link, no NUMA node and no bridge is claimed of them.
    """
    release = {
        "ID": said.os_id,
        "ID_LIKE": _LIKE.get(said.os_id, ""),
        "VERSION_ID": said.os_version,
        "VERSION_CODENAME": said.codename,
        "PRETTY_NAME": said.os_name,
    }
    files: dict[str, Any] = {"/etc/os-release": [f'{name}="{value}"' for name, value in release.items() if value]}
    addresses = [f"{place + 1:04x}:01:00.0" for place in range(len(said.devices))]
    for address, device in zip(addresses, said.devices, strict=True):
        # amdgpu is part of the kernel.
        bound = "amdgpu" if device.startswith(_AMD) else "nvidia" if said.driver else ""
        event = [*([f"DRIVER={bound}"] if bound else []), "PCI_CLASS=30200", f"PCI_ID={device.upper()}"]
        files[f"{_PCI}/{address}/uevent"] = event
    files |= _module(said.driver)
    if said.kernel:
        files["/proc/sys/kernel/osrelease"] = said.kernel
    recording = {
        "complete": False,
        "files": files,
        "dirs": {_PCI: addresses},
        "answers": {"uname": {"machine": said.machine}},
    }
    return RecordedHost(recording, said.origin)


def _module(driver: str) -> dict[str, Any]:
    """Which of the two kernel modules it is nobody said."""
    if driver:
        return {"/sys/module/nvidia/version": driver}
    gone = ("/proc/driver/nvidia/version", "/sys/module/nvidia", "/sys/module/nvidia/version")
    return dict.fromkeys(gone, _ABSENT)
