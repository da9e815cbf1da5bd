"""Machines as an inventory, out of tune: what is set wrongly on them, and what they hold."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssh_machines import Controller, Machine

ADMIN = "admin"
WRONG = {
    "/proc/sys/kernel/pid_max": "5000",
    "/proc/sys/kernel/threads-max": "5000",
    "/proc/sys/vm/max_map_count": "1000",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
}
"""Values that are each machine's own, and that one safe change each would cure."""
PASSING = (
    *("/dev", "/proc", "/sys", "/run", "/machine", "/tmp", "/var/log", "/var/cache", "/root/.cache", "/root/.ansible"),
    f"/home/{ADMIN}",
)
"""Beside what is no disk, what a look may write: logs, the self-contained file's unpacked parts, Ansible's own temporary files."""


def inventory(controller: Controller, machines: Mapping[str, Machine]) -> dict[str, dict[str, Any]]:
    return {name: {"ansible_host": one.address, **login(controller)} for name, one in machines.items()}


def login(controller: Controller, user: str = "root") -> dict[str, Any]:
    return {"ansible_user": user, "ansible_ssh_private_key_file": str(controller.key)}


def admin(machine: Machine, sudo: str = "NOPASSWD: ") -> None:
    """A user who may become root, and has the controller's key."""
    machine.sh(
        f"useradd -m -s /bin/bash {ADMIN} && install -d -m 700 -o {ADMIN} /home/{ADMIN}/.ssh"
        f" && install -m 600 -o {ADMIN} /root/.ssh/authorized_keys /home/{ADMIN}/.ssh/authorized_keys"
        f" && echo '{ADMIN} ALL=(ALL) {sudo}ALL' >/etc/sudoers.d/{ADMIN}"
    )


def detune(machine: Machine, wrong: Mapping[str, str] = WRONG) -> None:
    """By a process of its own: below /proc/sys/net everybody sees, and would set, the values of their own network."""
    machine.sh("; ".join(f"echo '{value}' >{path}" for path, value in wrong.items()))


def values(machine: Machine) -> dict[str, str]:
    """All values that are the machine's own, by path."""
    found = {}
    for line in machine.sh("cd /proc/sys/net && grep -rs . ipv4 core; true").splitlines():
        name, _, value = line.partition(":")
        found[f"/proc/sys/net/{name}"] = value
    for part in ("proc/sys/vm", "proc/sys/kernel", "proc/sys/fs", "sys/kernel/mm"):
        for place, _, names in os.walk(machine.root / part):
            for name in names:
                path = Path(place, name)
                try:
                    found[f"/{path.relative_to(machine.root)}"] = path.read_bytes().decode(errors="replace")
                except OSError:
                    continue
    moving = ("random", "stat", "nr", "pty", "state", "hung_task_detect_count", "route/flush")
    return {path: text for path, text in found.items() if not any(word in path for word in moving)}


def sys_values(machine: Machine) -> dict[str, str]:
    """All below /sys that was ever written on the machine, by path, as the kernel would have it: of what offers a choice the word that is chosen.

    Its /sys is an overlay, so that a written file holds the written word alone.
    """
    upper = machine.work / "machine/sys/upper"
    paths = [Path(place, name) for place, _, names in os.walk(upper) for name in names]
    return {f"/sys/{path.relative_to(upper)}": effective(path.read_text()) for path in paths if path.is_file()}


def untouched(path: str) -> str:
    """What a file below /sys that no machine wrote holds: this host's own."""
    return effective(Path(path).read_text())


def effective(text: str) -> str:
    chosen = re.search(r"\[([^\]]+)\]", text)
    return chosen[1] if chosen else text.strip()


def disk(machine: Machine) -> dict[str, tuple[int, str]]:
    """Mode and hash of every file on its disk, but those in passing."""
    found = {}
    root = machine.root
    for place, folders, names in os.walk(root):
        here = Path("/") / Path(place).relative_to(root)
        folders[:] = [name for name in folders if str(here / name) not in PASSING]
        for name in names:
            path = Path(place, name)
            mode = path.lstat().st_mode
            text = os.readlink(path).encode() if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else b""
            found[str(here / name)] = (mode, hashlib.sha256(text).hexdigest())
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {path: (one.get(path), other.get(path)) for path in {*one, *other} if one.get(path) != other.get(path)}
