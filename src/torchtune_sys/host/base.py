"""The interface of every kind of host. Each read returns a value, or Missing with the reason."""

from __future__ import annotations

import abc
import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from torchtune_sys.host.input.limits import WORD_LIMIT
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_T = TypeVar("_T")

TEXT_LIMIT = 4 << 20
"""Bytes; no file that a probe reads is larger on a real host (/proc/cpuinfo of 1,000 CPUs is 1.5 MB)."""


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    mode: int
    """st_mode, type bits included."""
    uid: int
    gid: int
    size: int
    device: str = ""
    """``major:minor`` of the file system (st_dev)."""
    special: str = ""
    """``major:minor`` of a device node (st_rdev); ``""`` for anything else."""


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """statvfs of a mounted file system; sizes in bytes."""

    size: int
    free: int
    """Available to an ordinary user (f_bavail)."""
    inodes: int
    inodes_free: int
    read_only: bool = False
    free_for_root: int = -1
    """f_bfree; negative where that is not known."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    rc: int
    stdout: str
    stderr: str = ""


class Host(abc.ABC):
    """A host that can be asked. Nothing here raises for what the host is like: absence and refusal are answers."""

    origin: str
    """What was asked, for the report's head: ``live``, ``root /mnt`` …"""

    live: bool = False
    """True for the machine that this process runs on."""

    keeps_outputs: bool = False
    """True where what commands printed may be kept beside the host's files."""

    @abc.abstractmethod
    def text(self, path: str) -> Fact[str]:
        """Return the file's text, undecodable bytes replaced. ``path`` is absolute on that host."""

    @abc.abstractmethod
    def names(self, path: str) -> Fact[tuple[str, ...]]:
        """Return the names in a directory, sorted."""

    @abc.abstractmethod
    def link(self, path: str) -> Fact[str]:
        """Return the target of a symbolic link, as it is written."""

    @abc.abstractmethod
    def real(self, path: str) -> Fact[str]:
        """Return the path with every symbolic link resolved, inside that host's root."""

    @abc.abstractmethod
    def stat(self, path: str) -> Fact[Stat]:
        """Return what stat(2) says, following links."""

    @abc.abstractmethod
    def space(self, path: str) -> Fact[Space]:
        """Call statvfs(3) under a deadline, since a dead network file system never answers."""

    @abc.abstractmethod
    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        """Run a command under a deadline, LC_ALL=C, no shell. Any exit status is an Output; NO_TOOL if it is not installed."""

    @abc.abstractmethod
    def env(self) -> Fact[dict[str, str]]:
        """Return the environment of the session that is judged."""

    @abc.abstractmethod
    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        """Return the answer (plain JSON data) to one of the questions in ``host/queries.py``, which are asked of the system's calls."""

    def look_ahead(self, paths: tuple[str, ...]) -> None:  # noqa: B027 (nothing to do where nothing takes long)
        """Begin at once with what may take long at these paths, which will be asked for one after the other. A recording takes no time."""

    def exists(self, path: str) -> Fact[bool]:
        """Return whether the path is there; Missing only where that could not be seen."""
        found = self.stat(path)
        if isinstance(found, Missing):
            return False if found.why is Why.ABSENT else found
        return True

    def word(self, path: str) -> Fact[str]:
        """Return the text of a one-value file, stripped; an empty one is UNPARSED."""
        content = self.text(path)
        if isinstance(content, Missing):
            return content
        if len(content) > WORD_LIMIT:
            return Missing(Why.UNPARSED, path, f"one value, and larger than {WORD_LIMIT >> 10} KiB")
        stripped = content.strip().strip("\0")
        return stripped if stripped else Missing(Why.UNPARSED, path, "the file is empty")

    def number(self, path: str) -> Fact[int]:
        """Return the whole number in a one-value file (decimal, or 0x hexadecimal)."""
        value = self.word(path)
        if isinstance(value, Missing):
            return value
        try:
            return int(value, 0) if value[:2].lower() == "0x" else int(value)
        except ValueError:
            return Missing(Why.UNPARSED, path, f"not a whole number: {value[:60]!r}")


def interpreted(text: Fact[str], parse: Callable[[str], _T], source: str) -> Fact[_T]:
    """Return what ``parse`` makes of a text; UNPARSED where it raises ValueError.

    >>> interpreted("12", int, "/x"), interpreted("a", int, "/x").why.value
    (12, 'unparsed')
    """
    if isinstance(text, Missing):
        return text
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        return Missing(Why.UNPARSED, source, str(error)[:120])


def missing_from(error: OSError, path: str) -> Missing:
    """Return what an OSError says about the host."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.ENXIO):
        return Missing(Why.ABSENT, path, "no such file")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Missing(Why.DENIED, path, "permission denied", "" if os.geteuid() == 0 else "run as root")
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        return Missing(Why.NOT_SUPPORTED, path, os.strerror(error.errno))
    return Missing(Why.FAILED, path, os.strerror(error.errno or errno.EIO))


PATH_MAX = 4096
"""Bytes of a path that the kernel takes (linux/limits.h)."""


def follow(path: str, target_of: Callable[[str], object]) -> str:
    """Return where ``path`` leads, component by component; ``""`` if by more than 40 links, or too long for the kernel (ELOOP,
    ENAMETOOLONG). ``target_of`` gives the target of the link at a place, or anything but a str where there is none.

    >>> follow("/sys/class/net/eth0/mtu", {"/sys/class/net/eth0": "../../devices/virtual/net/eth0"}.get)
    '/sys/devices/virtual/net/eth0/mtu'
    """
    if len(path) > PATH_MAX:
        return ""
    todo = [part for part in reversed(path.split("/")) if part and part != "."]
    done = ""
    followed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        place = f"{done}/{part}"
        target = target_of(place)
        if not isinstance(target, str):
            done = place
            continue
        followed += 1
        if followed > 40:
            return ""
        done = "" if target.startswith("/") else done
        todo.extend(piece for piece in reversed(target.split("/")) if piece and piece != ".")
    return done or "/"
