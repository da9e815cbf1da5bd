"""Read paths on NFS and FUSE safely. A dead server or daemon would block the reader forever.

The first look at such a file system is made by a child process under a deadline. Once that child came back, we look ourselves;
if it did not, nothing below that mount point is looked at again. (A thread would not do: one that waits in the kernel for a
FUSE daemon cannot be killed, and neither can then its process.)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from torchtune_sys.formats.mounts import parse_mountinfo
from torchtune_sys.host.base import follow
from torchtune_sys.host.mounted import served_by_users
from torchtune_sys.host.trust import user_name
from torchtune_sys.model.values import Missing, Why

TIMEOUT_S = 3.0

_REMOTE = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "pvfs2",
        "orangefs",
        "glusterfs",
        "ocfs2",
        "gfs2",
        "panfs",
        "wekafs",
        "virtiofs",
        "autofs",
        "coda",
        "davfs",
        "daos",
        "yas3fs",
        "vboxsf",
        "prl_fs",
        "drvfs",
        "fuse",
        "fuseblk",
    ]
)
_LOCAL_FUSE = frozenset(
    ("fuse.lxcfs", "fuse.fuse-overlayfs", "fusectl", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse")
)
_LOOK = "import os,sys; os.stat(sys.argv[1]); os.statvfs(sys.argv[1])"


class Remotes:
    """The remote mounts of this process's namespace, and which of them answer."""

    def __init__(self, mountinfo: str) -> None:
        self._users = served_by_users(mountinfo) if os.geteuid() == 0 else {}
        self._mounts = {**remote_mounts(mountinfo), **dict.fromkeys(self._users, "fuse")}
        self._answers: dict[str, bool] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def refuse(self, path: str) -> Missing | None:
        """Return Missing if a look at ``path`` would hang, or as root could whenever another user wants; None if one may look."""
        if not self._mounts:
            return None
        for mount, kind in self._on_the_way(path):
            if mount in self._users:
                seen = f"the file system on {mount} was mounted by user {user_name(self._users[mount])}, whose program answers for it"
                return Missing(Why.DENIED, path, seen, "run it as that user")
            place = path if kind == "autofs" else mount  # below an automounter each directory is another server's
            if not self._answer(place):
                return Missing(Why.TIMEOUT, path, f"the {kind} file system on {mount} does not answer")
        return None

    def ask(self, paths: tuple[str, ...]) -> None:
        """Look at all of them at once: a file server that is gone has several mounts, and each would be waited for in turn."""
        if len(paths) < 2 or not self._mounts:
            return
        threads = []
        with contextlib.suppress(RuntimeError):  # no more threads can be started: the others are looked at in turn
            for path in paths:
                thread = threading.Thread(target=self.refuse, args=(path,), daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()

    def _answer(self, place: str) -> bool:
        """Whether it answers; who asks for the same one meanwhile waits for that answer."""
        with self._lock:
            turn = self._turns.setdefault(place, threading.Lock())
        with turn:
            if place not in self._answers:
                self._answers[place] = _answers(place)
            return self._answers[place]

    def _on_the_way(self, path: str) -> list[tuple[str, str]]:
        """Return the remote mount that holds the path. A symbolic link is followed only as far as that needs no look at a remote one."""
        found: list[tuple[str, str]] = []

        def target_of(place: str) -> str | None:
            mount = self._holding(place)
            if mount is not None:
                found.append(mount)
                return None
            try:
                return os.readlink(place)
            except (OSError, ValueError):  # a NUL byte in it
                return None

        follow(path, target_of)
        return list(dict.fromkeys(found))

    def _holding(self, place: str) -> tuple[str, str] | None:
        while place != "/" and place:
            if place in self._mounts:
                kind = self._mounts[place]
                return (place, kind) if kind else None
            place = place.rpartition("/")[0]
        return None


def remote_mounts(mountinfo: str) -> dict[str, str]:
    """Mount point → type for each remote file system, ``""`` for a local one; empty if there is no remote one.

    What is mounted on ``/`` counts as local: if that hangs, nothing works at all.

    >>> remote_mounts("36 35 0:44 / /data rw,noatime shared:1 - nfs4 10.0.0.5:/x rw\\n37 35 8:1 / / rw - ext4 /dev/sda1 rw")
    {'/data': 'nfs4', '/': ''}
    """
    mounts = {
        mount.point: mount.filesystem if mount.point != "/" and _remote(mount.filesystem) else ""
        for mount in parse_mountinfo(mountinfo)
    }
    return mounts if any(mounts.values()) else {}


def _remote(kind: str) -> bool:
    return kind not in _LOCAL_FUSE and (kind in _REMOTE or kind.startswith("fuse."))


def _answers(place: str) -> bool:
    from torchtune_sys.host.children import process

    found = process.run((sys.executable, "-I", "-S", "-c", _LOOK, place), timeout_s=TIMEOUT_S)
    return not isinstance(found, Missing) or found.why is not Why.TIMEOUT
