"""The host as installation needs it: GPU vendor, driver, distribution and C library."""

from __future__ import annotations

from torchtune_sys import engine
from torchtune_sys.knowledge import containers
from torchtune_sys.knowledge.install_python import Python, glibc_of, has_musl, packaged
from torchtune_sys.model.appliances import appliance
from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent, known
from torchtune_sys.model.version import Version, version
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.driver import common as driver_state
from torchtune_sys.rules.torch.common import machine


def is_nvidia(s: Snapshot) -> bool:
    """Return whether an NVIDIA GPU is here, or a driver that speaks for one."""
    if cards(s):
        return True
    return not isinstance(s.gpu, Missing) and s.gpu.vendor == "nvidia" and not isinstance(s.gpu.driver_version, Missing)


def is_amd(s: Snapshot) -> bool:
    here = not isinstance(s.gpu, Missing) and s.gpu.vendor == "amd" and bool(known(s.gpu.devices, ()))
    return here or (not isinstance(s.driver, Missing) and bool(known(s.driver.amd_devices, ())))


def running_driver(s: Snapshot) -> str:
    """Return the version of the driver that is installed, ``""`` where there is none or none was seen."""
    return known(driver_state.driver_version(s), "")


def owner(s: Snapshot) -> tuple[str, str] | None:
    """Return who gives this system its driver and packages, and where to install them: None where it is this system itself."""
    if isinstance(s.system, Missing):
        return None
    container = known(s.system.container, "")
    if container:
        given = containers.ways(container).gpus
        way = (
            "install it on the container's host, with nvidia-container-toolkit there (run torchtune-sys on that host), and start this "
            f"container with its GPUs: {given}"
        )
        return f"this is a container ({container}): the driver belongs to its host", way
    if known(s.system.hypervisor, "") in ("wsl1", "wsl2"):
        way = "install NVIDIA's driver in Windows (https://docs.nvidia.com/cuda/wsl-user-guide/), never inside WSL"
        return "this is WSL: the driver is installed in Windows", way
    tool = known(s.system.image_tool, "")
    if tool:
        layer = "transactional-update pkg install" if tool == "transactional-update" else "rpm-ostree install"
        way = f"put driver and packages into the image, or layer them ({layer} NAME, then reboot); train in a container or a venv"
        return f"this system is an image ({tool}), whose packages no package manager changes while it runs", way
    os = os_of(s)
    found = None if os is None else appliance(os.id)
    return (
        None if found is None else (f"this is {found.name}, into which no package manager installs while it runs", found.driver)
    )


def glibc(s: Snapshot) -> Version | None:
    """Return the version of glibc as it was seen, else as the distribution release has it; ``()`` where neither tells, None where there is none (musl)."""
    looks = [
        s.python if isinstance(s.python, Missing) else s.python.glibc,
        s.system if isinstance(s.system, Missing) else s.system.glibc,
    ]
    found = next((version(look) for look in looks if isinstance(look, str)), ())
    os = os_of(s)
    if not found and (any(absent(look) for look in looks) or (os is not None and has_musl(os.id))):
        return None
    return found or (() if os is None else glibc_of(os.id, os.version))


def fails(s: Snapshot, *ids: str) -> bool:
    """Return whether one of these rules has something to say against the host."""
    asked = tuple(rule for rule in CATALOGUE if rule.id in ids)
    return any(result.verdict is Verdict.FAIL for result in engine.judge(s, asked))


def os_of(s: Snapshot) -> Os | None:
    return None if isinstance(s.system, Missing) or isinstance(s.system.os, Missing) else s.system.os


def packaged_pythons(s: Snapshot) -> tuple[Python, ...]:
    """Return what the host's own distribution packages, the one to take by default first."""
    os = os_of(s)
    return () if os is None else packaged(os.id, os.version)


def host_name(s: Snapshot) -> str:
    return "" if isinstance(s.system, Missing) else known(s.system.hostname, "")


def system_name(s: Snapshot) -> str:
    os = os_of(s)
    words = os.pretty_name if os is not None else "a system of a kind that could not be seen"
    return f"{words} ({machine_of(s) or 'machine not seen'})"


def machine_of(s: Snapshot) -> str:
    """Return the machine, ``x86_64``, ``aarch64`` …; ``""`` where it could not be seen."""
    return machine(s).partition(" ")[0]
