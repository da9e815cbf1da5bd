"""Packages, kernels and container runtimes of a host on which the NVIDIA driver runs."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.host import questions
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import NextKernel, Package, SoftwareFacts
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import software_build, software_session

_APT = "/etc/apt/apt.conf.d"
_PINS = "/etc/apt/preferences"
_CDI = ("/etc/cdi", "/run/cdi")
_MOST_FILES = 100


def read(host: Host, port: Fact[tuple[int, ...]]) -> SoftwareFacts:
    packages = _pinned(host, _packages(host))
    apt = _apt(host)
    docker = host.exists("/usr/bin/dockerd")
    return SoftwareFacts(
        packages=packages,
        automatic_upgrades=apt if isinstance(apt, Missing) else parse_automatic(apt),
        upgrade_exclusions=() if isinstance(apt, Missing) else parse_exclusions(apt),
        runfile_installed=host.exists("/usr/bin/nvidia-uninstall"),
        reboot_required=_reboot(host),
        next_kernel=_next_kernel(host),
        docker=docker,
        cgroup_driver=_cgroup_driver(host) if docker is True else Missing(Why.ABSENT, "docker", "not installed"),
        device_links=_device_links(host),
        runtime_mode=_runtime_mode(host),
        cdi_drivers=_cdi(host),
        build_tools=software_build.tools(host),
        compile_caches=software_build.caches(host),
        mps=software_session.mps(host),
        port_listeners=port,
    )


def _packages(host: Host) -> Fact[tuple[Package, ...]]:
    found = host.ask(questions.PACKAGES)
    if isinstance(found, Missing):
        return found
    try:
        return msgspec.convert(found, tuple[Package, ...])
    except msgspec.ValidationError as error:
        return Missing(Why.UNPARSED, questions.PACKAGES, str(error))


def _pinned(host: Host, packages: Fact[tuple[Package, ...]]) -> Fact[tuple[Package, ...]]:
    """The packages, those held too that a pin of apt keeps at their version."""
    if isinstance(packages, Missing):
        return packages
    names = host.names(f"{_PINS}.d")
    files = [f"{_PINS}.d/{name}" for name in (() if isinstance(names, Missing) else names)[:_MOST_FILES] if _is_pin_file(name)]
    pins = [pin for path in (_PINS, *files) if not isinstance(text := host.text(path), Missing) for pin in parse_pins(text)]
    if not pins:
        return packages
    return tuple(
        msgspec.structs.replace(package, held=package.held or any(_fits(pin, package.name) for pin in pins))
        for package in packages
    )


def _is_pin_file(name: str) -> bool:
    return "." not in name or name.endswith(".pref")


def _fits(pattern: str, name: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def parse_pins(text: str) -> tuple[str, ...]:
    r"""Names (with ``*`` and ``?``) that apt_preferences(5) keeps from being upgraded: pinned to one version, or below 0 whoever
    offers them. A version with ``*`` lets upgrades through, and so does a pin of one origin among several.

    >>> parse_pins("Package: nvidia-driver-* libnvidia-*\nPin: version 580.95.05-0ubuntu1\nPin-Priority: 1001\n")
    ('nvidia-driver-*', 'libnvidia-*')
    >>> parse_pins("Package: *nvidia*\nPin: release *\nPin-Priority: -1\n\nPackage: nvidia-*\nPin: version 580.*\nPin-Priority: 900\n")
    ('*nvidia*',)
    """
    found: list[str] = []
    for record in re.split(r"\n[ \t]*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in record.split("\n"))}
        priority = re.fullmatch(r"([+-]?)\d{1,6}", fields.get("pin-priority", ""))
        kind, _, what = fields.get("pin", "").partition(" ")
        exact = kind == "version" and what and "*" not in what and not what.startswith("/")
        never = what.strip() in ("*", "o=*", "a=*") or (kind == "origin" and what.strip() in ("*", '"*"'))
        if priority and ((priority[1] == "-" and never) or (priority[1] != "-" and exact)):
            found += [name for name in fields.get("package", "").split() if not name.startswith("/")][:200]
    return tuple(found)


def _apt(host: Host) -> Fact[str]:
    """All of apt's configuration, in the order in which apt reads it."""
    names = host.names(_APT)
    if isinstance(names, Missing):
        return names
    parts = []
    for name in names[:_MOST_FILES]:
        if "." not in name or name.endswith(".conf"):  # apt.conf(5): other extensions are skipped
            text = host.text(f"{_APT}/{name}")
            if isinstance(text, Missing):
                return text
            parts.append(text)
    return "\n".join(parts)


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("//", "#")))


def parse_automatic(text: str) -> bool:
    r"""Whether apt's configuration switches unattended upgrades on; the last word counts.

    >>> parse_automatic('APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n')
    True
    >>> parse_automatic('//APT::Periodic::Unattended-Upgrade "1";\n')
    False
    """
    values = re.findall(r'Unattended-Upgrade\s{1,9}"([^"]{0,20})"', _uncommented(text))
    return bool(values) and values[-1] not in ("0", "", "false", "no")


def parse_exclusions(text: str) -> tuple[str, ...]:
    r"""
    >>> parse_exclusions('Unattended-Upgrade::Package-Blacklist {\n  // "linux-";\n  "nvidia-";\n};\n')
    ('nvidia-',)
    """
    plain = _uncommented(text)
    start = plain.find("Package-Blacklist")
    block = plain[start:].partition("{")[2].partition("}")[0] if start >= 0 else ""
    return tuple(re.findall(r'"([^"]{1,200})"', block)[:200])


def _reboot(host: Host) -> Fact[tuple[str, ...]]:
    asked = host.exists("/run/reboot-required")
    if isinstance(asked, Missing):
        return asked
    if not asked:
        return Missing(Why.ABSENT, "/run/reboot-required", "no package asked for a reboot")
    names = host.text("/run/reboot-required.pkgs")
    return () if isinstance(names, Missing) else tuple(dict.fromkeys(names.split()))[:50]


def release_key(release: str) -> tuple[tuple[int, ...], str]:
    """Order of kernels by their numbers.

    >>> release_key("6.8.0-100-generic") > release_key("6.8.0-45-generic")
    True
    """
    return tuple(int(number[:9]) for number in re.findall(r"\d+", release)[:12]), release


def _next_kernel(host: Host) -> Fact[NextKernel]:
    running = host.word("/proc/sys/kernel/osrelease")
    boot = host.names("/boot")
    if isinstance(running, Missing):
        return running
    if isinstance(boot, Missing):
        return boot
    kernels = [name.removeprefix("vmlinuz-") for name in boot if name.startswith("vmlinuz-") and name[8:9].isdigit()]
    flavour = running.rpartition("-")[2]
    kernels = [name for name in kernels if name.rpartition("-")[2] == flavour] or kernels
    if running not in kernels:
        return Missing(Why.ABSENT, "/boot", "the running kernel is not there, so that which one boots next is not seen")
    newest = max(kernels, key=release_key)
    tree = f"/lib/modules/{newest}"
    built = True if newest == running else _has_driver(host, newest)
    if built is False and _has_driver(host, running) is False:
        return Missing(Why.ABSENT, "modules.dep", "the driver comes from elsewhere (a container builds and loads it)")
    return NextKernel(
        release=newest,
        running=newest == running,
        nvidia=built,
        headers=host.exists(f"{tree}/build/Makefile"),
    )


def _has_driver(host: Host, release: str) -> Fact[bool]:
    modules = host.text(f"/lib/modules/{release}/modules.dep")
    if isinstance(modules, Missing):
        return modules
    return any(f"/nvidia.ko{end}:" in modules for end in ("", ".zst", ".xz", ".gz"))


def _cgroup_driver(host: Host) -> Fact[str]:
    """dockerd's default is systemd where cgroups are v2 and systemd runs, cgroupfs otherwise (dockerd(8), native.cgroupdriver)."""
    text = host.text("/etc/docker/daemon.json")
    if isinstance(text, Missing) and text.why is not Why.ABSENT:
        return text
    told = "" if isinstance(text, Missing) else parse_cgroup_driver(text)
    if told:
        return told
    unified = host.exists("/sys/fs/cgroup/cgroup.controllers")
    if isinstance(unified, Missing):
        return unified
    return "systemd" if unified and host.word("/proc/1/comm") == "systemd" else "cgroupfs"


def parse_cgroup_driver(text: str) -> str:
    """
    >>> parse_cgroup_driver('{"exec-opts": ["native.cgroupdriver=cgroupfs"]}'), parse_cgroup_driver('{"runtimes": {}}')
    ('cgroupfs', '')
    """
    found = re.search(r'"native\.cgroupdriver=(systemd|cgroupfs)"', text)
    return found[1] if found else ""


def _device_links(host: Host) -> Fact[bool]:
    """195:255 is /dev/nvidiactl (Documentation/admin-guide/devices.txt, major 195)."""
    found = host.link("/dev/char/195:255")
    return found.why is not Why.ABSENT and found if isinstance(found, Missing) else True


def _runtime_mode(host: Host) -> Fact[str]:
    text = host.text("/etc/nvidia-container-runtime/config.toml")
    if isinstance(text, Missing):
        return "auto" if text.why is Why.ABSENT else text
    return parse_mode(text)


def parse_mode(text: str) -> str:
    r"""
    >>> parse_mode('[nvidia-container-runtime]\n#debug = "x"\nmode = "cdi"\n'), parse_mode("")
    ('cdi', 'auto')
    """
    found = re.search(r'^\s{0,20}mode\s{0,9}=\s{0,9}"([\w-]{1,20})"', text, re.M)
    return found[1] if found else "auto"


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
                text = host.text(f"{folder}/{name}")
                if isinstance(text, Missing):
                    return text
                driver = parse_cdi(text)
                if driver:
                    found[f"{folder}/{name}"] = driver
    return found


def parse_cdi(text: str) -> str:
    """The driver whose libraries a CDI specification mounts; ``""`` where it names none.

    >>> parse_cdi("  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05")
    '580.95.05'
    """
    found = re.search(r"libcuda\.so\.(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)", text)
    return found[1] if found else ""
