"""The system's state directory. Root puts back and runs what its journals say, so nobody else may decide what lies there."""

from __future__ import annotations

import os

from torchtune_sys.errors import UserError
from torchtune_sys.host.trust import Decision, distrust

STATE = "/var/lib/torchtune-sys"


class ForeignState(UserError):
    """Others than root decide what lies in the state directory."""

    exit_code = 3


def doubt(folder: str, name: str = "") -> str:
    """Return why others than root, and than the user who asks, decide what lies in a state directory, or what its file ``name`` holds; "" where
    nobody else does."""
    seen, users = Decision(), frozenset((os.geteuid(),))
    found = distrust(folder, users, seen=seen)
    return found or (distrust(f"{folder}/{name}", users, seen=seen) if name else "")


def doubt_of(path: str) -> str:
    """Return the same of a file by its path; "" for one that lies elsewhere: a user may trust whom they like with their own.

    >>> doubt_of("/home/ada/.local/state/torchtune-sys/proof-n7.json")
    ''
    """
    folder, _, name = path.rpartition("/")
    return doubt(folder, name) if folder == STATE else ""


def require_trusted(folder: str, name: str = "") -> None:
    """Raise ForeignState where others decide what lies there."""
    found = doubt(folder, name)
    if found:
        raise ForeignState(
            f"{found}: what is written in {folder} may not be root's own, so nothing of it is believed or carried out",
            f"look through it; then chown -R root:root {folder} and chmod -R go-w {folder}, or move it away",
        )
