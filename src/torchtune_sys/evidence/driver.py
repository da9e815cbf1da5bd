"""What single lines of a report say of the driver: its module's version, DKMS's failure to build it, the fabric manager's log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtune_sys.evidence.partial import missing
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, known

if TYPE_CHECKING:
    from torchtune_sys.model.facts import Fact
    from torchtune_sys.model.facts.driver import DriverFacts
    from torchtune_sys.model.facts.gpu import GpuFacts
    from torchtune_sys.model.facts.pci import PciFacts


def driver_facts(gpu: GpuFacts | None, module: str, text: str, pci: Fact[PciFacts] | None = None) -> DriverFacts | None:
    """Return the facts on the driver; None where the text says nothing of the driver. ``pci`` is what lspci lists."""
    from torchtune_sys.evidence.nvidia import bug_report
    from torchtune_sys.model.facts.driver import DriverFacts

    if gpu is not None and gpu.vendor == "amd":
        from torchtune_sys.evidence.rocm_smi import counted

        return DriverFacts(nvidia_devices=(), **counted(text))
    facts: dict[str, Any] = {
        **device_nodes(text),
        **bug_report.modules(text),
        **fabric_manager(text),
        **daemons(text),
        **_held_by_nouveau(pci),
    }
    kernel = not_built_for(text)
    if kernel:
        facts["build_failure"] = kernel
    if module:
        facts.update(module_loaded=True, module_version=module)
    return DriverFacts(**facts) if facts else None


_NODE = pattern(
    r"^c(?P<mode>[rwxsStT-]{9})(?P<more>[.+@]?) +\d+ (?P<owner>\w+) +(?P<group>\w+) +(?P<major>\d{1,4}), +(?P<minor>\d{1,7}) .{4,30} "
    r"(?P<path>/dev/nvidia(?:\d{1,3}|ctl|-uvm|-uvm-tools|-modeset))$",
    re.MULTILINE,
)
_EVERY_NODE = pattern(r"\bls\b[^\n|]{0,80} /dev/nvidia\*")
_NO_NODE = pattern(r"ls: cannot access '?/dev/nvidia\*'?: No such file")
_OPEN = 0o006


def device_nodes(text: str) -> dict[str, Any]:
    """Return the nodes that ``ls -l /dev/nvidia*`` lists: all of them, or nothing; owners other than root are told by name alone.

    Numbers of GPUs' nodes are fixed (Linux Documentation/admin-guide/devices.txt, 195); that of nvidia-uvm is not.
    """
    if "/dev/nvidia" not in text:
        return {}
    from torchtune_sys.model.facts.driver import DeviceNode

    if _NO_NODE.search(text):
        return {"device_nodes": ()}
    found = {row["path"]: row for row in _NODE.finditer(text)}
    whole = "/dev/nvidiactl" in found or _EVERY_NODE.search(text)
    owners = {name: 0 if name == "root" else natural(name) for row in found.values() for name in (row["owner"], row["group"])}
    if not found or not whole or None in owners.values():
        return {}
    return {
        "device_nodes": tuple(
            DeviceNode(
                path=path,
                mode=(mode := _mode(row["mode"])),
                uid=owners[row["owner"]] or 0,
                gid=owners[row["group"]] or 0,
                accessible=True if mode & _OPEN == _OPEN and row["more"] != "+" else missing("depends on who the user is"),
                device=f"{row['major']}:{row['minor']}",
                driver_device=_registered(path),
            )
            for path, row in sorted(found.items())
        )
    }


def _mode(letters: str) -> int:
    """Return the permission bits.

    >>> oct(_mode("rw-rw-rw-")), oct(_mode("rw-rw----"))
    ('0o666', '0o660')
    """
    return sum(1 << 8 - at for at, letter in enumerate(letters) if letter not in "-ST")


def _registered(path: str) -> str:
    number = path.removeprefix("/dev/nvidia")
    minor = {"ctl": "255", "-modeset": "254"}.get(number, number)
    return f"195:{minor}" if minor.isdigit() else ""


def _held_by_nouveau(pci: Fact[PciFacts] | None) -> dict[str, Any]:
    """Return the NVIDIA GPUs where lspci -k says of one that nouveau drives it."""
    listed = () if pci is None or isinstance(pci, Missing) else known(pci.devices, ())
    gpus = [one for one in listed if known(one.vendor, "") == "0x10de" and known(one.class_, "").startswith("0x03")]
    if not any(known(gpu.driver, "") in ("nouveau", "nova_core", "NovaCore") for gpu in gpus):
        return {}
    return {"nouveau_loaded": True, "nvidia_devices": tuple(gpu.address for gpu in gpus)}


def module_version(text: str) -> str:
    """Return the kernel module's version in a pasted /proc/driver/nvidia/version.

    >>> module_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024")
    '550.90.07'
    """
    found = re.search(r"NVRM version: NVIDIA UNIX [\w ]{0,80}Kernel Module[\w ]{0,40}?  ?(\d+\.\d+(?:\.\d+)?)", text)
    return found[1] if found else ""


_BUILD_FAILED = pattern(r"^.{0,40}Error! +Bad return status for module build on kernel: (\S{3,80})", re.MULTILINE)
_KIND = r"nvidia(?:-(?:current|open|server|srv|legacy|tesla|\d{3})[\w.-]{0,20})?"
_CONSULT = pattern(r"Consult /var/lib/dkms/([\w.+-]{1,60})/")
_OF_NVIDIA = pattern(
    rf"dkms (?:install|build|add|autoinstall) (?:-m )?{_KIND}(?:[/ ]|$)|nvidia-dkms-|(?:new|module:?) {_KIND}[-/ ]\d{{3}}\.|NV_EXCLUDE_BUILD_MODULES",
    re.MULTILINE,
)
_BUILT = pattern(
    r"^.{0,20}(?:DKMS: install completed|nvidia(?:-current|-srv)?[/,] ?\d{3}\.[\d.]{2,9}, \S{3,80}, \w{3,10}: installed)",
    re.MULTILINE,
)


def not_built_for(text: str) -> str:
    """Return the kernel for which DKMS said last that it could not build NVIDIA's module; ``""`` if it did not, or a later build went well.

    >>> not_built_for("dkms install -m nvidia -v 470.86\\nError! Bad return status for module build on kernel: 5.13.18-x (x86_64)")
    '5.13.18-x'
    """
    found = max(_BUILD_FAILED.finditer(text), key=re.Match.start, default=None)
    if found is None or _BUILT.search(text, found.end()):
        return ""
    named = _CONSULT.search(text, found.end(), found.end() + 400)
    if named is not None:
        return found[1] if re.fullmatch(_KIND, named[1]) else ""
    return found[1] if _OF_NVIDIA.search(text, max(found.start() - 2000, 0), found.end()) else ""


_DAEMONS = {"nvidia-persistenced": "persistenced", "nvidia-fabricmanager": "fabric_manager", "nvidia-imex": "imex"}
_STATE = pattern(
    r"(?m)^\W{0,4}(nvidia-[a-z]{4,14})\.service(?: - .{0,100})?\n(?:[ \t].{0,300}\n){0,3}[ \t]{1,20}Active: (active \(running\)|inactive \(|failed \()"
    r"|^Unit (nvidia-[a-z]{4,14})\.service could not be found"
    r"|^\W{0,4}(nvidia-[a-z]{4,14})\.service +(?:loaded|not-found|masked) +(active|inactive|failed|activating) +[a-z-]{4,20} +\S"
    r"|\bsystemctl is-active (nvidia-[a-z]{4,14})(?:\.service)?[ \t]*\n(active|inactive|failed|unknown)[ \t]*$"
)


def daemons(text: str) -> dict[str, bool]:
    """Return whether the driver's daemons run, by fact, as systemctl said last of each.

    >>> daemons("○ nvidia-imex.service - NVIDIA IMEX service\\n     Loaded: loaded (/usr/lib)\\n     Active: inactive (dead)\\n")
    {'imex': False}
    >>> daemons("● nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager service\\n")
    {'fabric_manager': False}
    >>> daemons("$ systemctl is-active nvidia-persistenced\\nactive\\n"), daemons("     Active: active (running)\\n")
    ({'persistenced': True}, {})
    """
    if "nvidia-" not in text:
        return {}
    found = {}
    for unit, state, lost, row, listed, asked, answer in _STATE.findall(text):
        if fact := _DAEMONS.get(unit or lost or row or asked):
            found[fact] = (state or listed or answer).startswith("active")
    return found


def fabric_manager(text: str) -> dict[str, Any]:
    """Return the facts by name, of the fabric manager's log or of its journal; empty if the text has none."""
    if "abric" not in text and "] [tid " not in text:
        return {}
    from torchtune_sys.formats import fabric_manager_log as log

    found: dict[str, Any] = {}
    ours, drivers = log.versions_apart(text)
    version = ours or log.parse_fabric_manager_log(text)
    if version:
        found["fabric_manager_version"] = version
    if drivers:
        found.update(module_loaded=True, module_version=drivers)
    if log.runs(text):
        found["fabric_manager_failure"] = ""
    failed = log.failure(text) or ("no NVSwitch" if log.no_switch_found(text) else "")
    if failed:
        found["fabric_manager_failure"] = failed
    return found
