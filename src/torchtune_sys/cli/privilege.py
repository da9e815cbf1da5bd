"""Privileges of this process, the boot id and the node's name."""

from __future__ import annotations

import os


def is_root() -> bool:
    return os.geteuid() == 0


def boot_id() -> str:
    """Return an id that differs from one start of the host to the next; empty where the kernel does not tell."""
    from torchtune_sys.host.live import LiveHost

    found = LiveHost().word("/proc/sys/kernel/random/boot_id")
    return found if isinstance(found, str) else ""


def effective_user() -> int:
    return os.geteuid()


def node_name() -> str:
    return os.uname().nodename
