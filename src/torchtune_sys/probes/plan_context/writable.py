"""Tell before a change begins why a path cannot be written: read-only, immutable, full, a dangling link.

What only root may write is root's to ask (access(2) tells of chattr's +i and of read-only mounts, EPERM and EROFS); the rest is seen by all.
"""

from __future__ import annotations

import stat as modes

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.values import Missing, Why

_LEAST_BYTES = 65536
"""A file of ours and its draft, with room for what the file system keeps of them."""


def reason(host: Host, path: str) -> str:
    """Return why a file cannot be written; empty where nothing speaks against it."""
    if path.startswith(("/proc/", "/sys/")):
        space = host.space(path)
        if not isinstance(space, Missing) and space.read_only:
            return f"{path} is on a read-only mount"
        return _refused(host, path)
    folder, found = _folder(host, path.rpartition("/")[0])
    if found:
        return found
    space = host.space(folder)
    if not isinstance(space, Missing):
        free = max(space.free, space.free_for_root)
        if space.read_only:
            return f"{folder} is on a read-only file system"
        if 0 <= free < _LEAST_BYTES <= space.size or (space.inodes > 0 and space.inodes_free == 0):
            return f"the file system of {folder} is full"
    return _refused(host, folder) or _refused(host, path)


def _folder(host: Host, folder: str) -> tuple[str, str]:
    """Return the nearest directory that is there, and what stands in the way of making the others."""
    while folder:
        found = host.stat(folder)
        if not isinstance(found, Missing):
            return folder, "" if modes.S_ISDIR(found.mode) else f"{folder} is no directory"
        target = host.link(folder)
        if found.why is Why.ABSENT and isinstance(target, str):
            return folder, f"{folder} is a link to {target}, which is not there"
        folder = folder.rpartition("/")[0]
    return "/", ""


def _refused(host: Host, path: str) -> str:
    who = host.ask(queries.UID) if host.live else None
    if not isinstance(who, dict) or who.get("uid") != 0:
        return ""
    found = host.ask(f"{queries.ACCESS}:{path}")
    if isinstance(found, dict) and found.get("write") is False:
        return f"{path} may not be written, by root either: immutable (lsattr -d), or read-only"
    return ""
