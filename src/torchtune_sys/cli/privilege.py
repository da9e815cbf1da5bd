"""Privileges of this process, who decides by a file that it is told to obey, the boot id and the node's name."""

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


def tell_of_others(option: str, path: str) -> None:
    """As root, say whose word a file is that decides what is judged and how, where it is neither root's alone nor of who called sudo."""
    from torchtune_sys.cli.terminal import environment, tell
    from torchtune_sys.host.account import callers
    from torchtune_sys.host.trust import distrust

    if not is_root() or not os.path.isfile(path):
        return
    why = distrust(os.path.abspath(path), frozenset(user.uid for user in callers(environment())))
    if why:
        tell(f"torchtune-sys: {option} {path}: others decide by it what root is told, since {why}")


def node_name() -> str:
    return os.uname().nodename
