"""Packages, kernels and container runtimes of a host on which the NVIDIA driver runs."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import MANAGERS, Package, SoftwareFacts
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.drop_ins import first_text
from torchtune_sys.probes.software import apt as software_apt
from torchtune_sys.probes.software import build, compile_caches, next_boot
from torchtune_sys.probes.software import session as software_session

_CDI = ("/etc/cdi", "/run/cdi")
_MOST_FILES = 100
_RUNTIME_CONFIGURATIONS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""The package's, and what the GPU operator's toolkit container puts on its host (NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk-installer)."""


def read(host: Host, port: Fact[tuple[int, ...]]) -> SoftwareFacts:
    docker = host.exists("/usr/bin/dockerd")
    manager = _manager(host)
    found = SoftwareFacts(
        manager=manager,
        packages=_held(codec.as_fact(host.ask(queries.PACKAGES), tuple[Package, ...], queries.PACKAGES), _locks(host, manager)),
        runfile_installed=host.exists("/usr/bin/nvidia-uninstall"),
        reboot_required=_reboot(host),
        next_kernel=next_boot.next_kernel(host),
        docker=docker,
        cgroup_driver=_cgroup_driver(host) if docker is True else Missing(Why.ABSENT, "docker", "not installed"),
        device_links=_device_links(host),
        runtime_mode=_runtime_mode(host),
        cdi_drivers=_cdi(host),
        build_tools=build.tools(host),
        compile_caches=compile_caches.caches(host),
        mps=software_session.mps(host),
        port_listeners=port,
    )
    return _with_upgrades(host, found)


def _with_upgrades(host: Host, found: SoftwareFacts) -> SoftwareFacts:
    if isinstance(found.manager, Missing):
        return msgspec.structs.replace(found, automatic_upgrades=found.manager)
    if found.manager == "dpkg":
        apt = software_apt.configuration(host)
        return msgspec.structs.replace(
            found,
            automatic_upgrades=apt if isinstance(apt, Missing) else software_apt.parse_automatic(apt),
            upgrade_exclusions=() if isinstance(apt, Missing) else software_apt.parse_exclusions(apt),
        )
    from torchtune_sys.probes.software import rpm as software_rpm

    upgrader = (
        software_rpm.upgrader(host)
        if found.manager == "rpm"
        else Missing(Why.ABSENT, found.manager, "upgrades nothing by itself")
    )
    if isinstance(upgrader, Missing):
        return msgspec.structs.replace(found, automatic_upgrades=upgrader, upgrader="automatic upgrades")
    return msgspec.structs.replace(found, automatic_upgrades=True, upgrader=upgrader)


def _manager(host: Host) -> Fact[str]:
    """Return the one whose records are there; the order is that of the answer to the question for packages."""
    for place, name in MANAGERS:
        there = host.exists(place)
        if there is True:
            return name
        if isinstance(there, Missing):
            return there
    return Missing(Why.ABSENT, "package manager", "neither dpkg, rpm nor pacman keeps records here")


def _locks(host: Host, manager: Fact[str]) -> tuple[str, ...]:
    if isinstance(manager, Missing):
        return ()
    if manager == "dpkg":
        return software_apt.pins(host)
    from torchtune_sys.probes.software import rpm as software_rpm

    return {"rpm": software_rpm.locks, "pacman": software_rpm.ignored}[manager](host)


def _held(packages: Fact[tuple[Package, ...]], locks: tuple[str, ...]) -> Fact[tuple[Package, ...]]:
    if isinstance(packages, Missing) or not locks:
        return packages
    from fnmatch import fnmatchcase

    exact = frozenset(locks)
    patterns = tuple(dict.fromkeys(lock for lock in locks if any(sign in lock for sign in "*?[")))
    return tuple(
        msgspec.structs.replace(
            package,
            held=package.held or package.name in exact or any(fnmatchcase(package.name, lock) for lock in patterns[:_LOCKS]),
        )
        for package in packages
    )


_LOCKS = 256
"""Patterns that are tried with each package; /etc has a few."""


@fact
def _reboot(host: Host) -> Fact[tuple[str, ...]]:
    if host.exists("/run/reboot-needed") is True:  # libzypp's
        return ()
    asked = need(host.exists("/run/reboot-required"))
    if not asked:
        return Missing(Why.ABSENT, "/run/reboot-required", "no package asked for a reboot")
    names = host.text("/run/reboot-required.pkgs")
    return () if isinstance(names, Missing) else tuple(dict.fromkeys(names.split()))[:50]


@fact
def _cgroup_driver(host: Host) -> Fact[str]:
    """dockerd's default is systemd where cgroups are v2 and systemd runs, cgroupfs otherwise (dockerd(8), native.cgroupdriver)."""
    text = host.text("/etc/docker/daemon.json")
    if isinstance(text, Missing) and text.why is not Why.ABSENT:
        return text
    configured = "" if isinstance(text, Missing) else parse_cgroup_driver(text)
    if configured:
        return configured
    unified = need(host.exists("/sys/fs/cgroup/cgroup.controllers"))
    return "systemd" if unified and host.word("/proc/1/comm") == "systemd" else "cgroupfs"


def parse_cgroup_driver(text: str) -> str:
    """Return the cgroup driver that Docker's daemon.json names; empty where it names none.

    >>> parse_cgroup_driver('{"exec-opts": ["native.cgroupdriver=cgroupfs"]}'), parse_cgroup_driver('{"runtimes": {}}')
    ('cgroupfs', '')
    """
    found = re.search(r'"native\.cgroupdriver=(systemd|cgroupfs)"', text)
    return found[1] if found else ""


def _device_links(host: Host) -> Fact[bool]:
    """195:255 is /dev/nvidiactl (Documentation/admin-guide/devices.txt, major 195)."""
    found = host.link("/dev/char/195:255")
    return found.why is not Why.ABSENT and found if isinstance(found, Missing) else True


@fact
def _runtime_mode(host: Host) -> Fact[str]:
    """Return the runtime's mode; ABSENT where neither a configuration of its own is here (NVIDIA's package, the GPU operator) nor Docker's names it."""
    text = first_text(host, _RUNTIME_CONFIGURATIONS)
    if not isinstance(text, Missing):
        return parse_mode(text)
    docker = need(host.text("/etc/docker/daemon.json") if text.why is Why.ABSENT else text)
    return "auto" if "nvidia-container-runtime" in docker else text


def parse_mode(text: str) -> str:
    r"""Return the mode in the NVIDIA container runtime's config.toml; ``auto`` where it sets none.

    >>> parse_mode('[nvidia-container-runtime]\n#debug = "x"\nmode = "cdi"\n'), parse_mode("")
    ('cdi', 'auto')
    """
    found = re.search(r'^\s{0,20}mode\s{0,9}=\s{0,9}"([\w-]{1,20})"', text, re.M)
    return found[1] if found else "auto"


@fact
def _cdi(host: Host) -> Fact[dict[str, str]]:
    found: dict[str, str] = {}
    for folder in _CDI:
        names = host.names(folder)
        if isinstance(names, Missing):
            if names.why is Why.ABSENT:
                continue
            return names
        for name in names[:_MOST_FILES]:
            if "nvidia" in name and name.endswith((".yaml", ".yml", ".json")):
                text = need(host.text(f"{folder}/{name}"))
                driver = parse_cdi(text)
                if driver:
                    found[f"{folder}/{name}"] = driver
    return found


def parse_cdi(text: str) -> str:
    """Return the driver whose libraries a CDI specification mounts; ``""`` where it names none.

    >>> parse_cdi("  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05")
    '580.95.05'
    """
    found = re.search(r"libcuda\.so\.(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)", text)
    return found[1] if found else ""
