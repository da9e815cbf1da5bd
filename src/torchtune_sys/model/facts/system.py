"""Operating system, kernel and what kind of machine this is."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


class Os(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """``ID`` of os-release: ``ubuntu``, ``debian``, ``rhel`` …"""
    id_like: tuple[str, ...]
    version: str
    """``VERSION_ID``; empty for rolling releases."""
    pretty_name: str
    codename: str


class SystemFacts(msgspec.Struct, frozen=True, kw_only=True):
    os: Fact[Os]
    kernel: Fact[str]
    """``uname -r``, e.g. ``6.8.0-45-generic``."""
    machine: Fact[str]
    """``x86_64``, ``aarch64`` …"""
    hostname: Fact[str]
    cmdline: Fact[tuple[str, ...]]
    """The kernel's boot arguments, in order."""
    glibc: Fact[str]
    """Version of the C library that this host's programs use; Missing(ABSENT) on musl."""
    container: Fact[str]
    """``""`` on no container, else ``docker``, ``podman``, ``kubernetes``, ``apptainer``, ``lxc``, ``nspawn`` or ``other``."""
    hypervisor: Fact[str]
    """``""`` on bare metal, else ``kvm``, ``xen``, ``microsoft``, ``vmware``, ``amazon``, ``google``, ``virtualbox``,
    ``wsl1``, ``wsl2`` or ``other``."""
    uptime_s: Fact[float]
    init: Fact[str]
    """Name of process 1 (``systemd``, ``bash`` in a container …)."""
    today: Fact[str]
    """Date of the look by the host's own clock, ISO 8601; what rules with a calendar judge by."""
    image_tool: Fact[str] = Missing(Why.NOT_RECORDED, "system", "not read")
    """``rpm-ostree`` or ``transactional-update``: what makes the next boot's image, where the running system's packages are read-only;
    ABSENT where packages are installed into the running system."""
