"""A host that consists of files: a mounted system image, or a copy of /proc and /sys in a directory or a tarball.

Every path and every symbolic link is resolved inside the tree, absolute links too: nothing outside is ever looked at.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import stat as modes
from collections.abc import Callable
from typing import Any, TypeVar

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host, Output, Space, Stat, follow, missing_from
from torchtune_sys.host.input.reading import refuse_lent
from torchtune_sys.host.live import as_space, as_stat, text_of
from torchtune_sys.host.regular import NotRegular, held_below, identity_of, opened
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_T = TypeVar("_T")

FAR_DOWN = 5
"""How many directories deep a recorded /proc and /sys may lie in what was given (``sosreport-x/…``, ``home/me/tickets/4711/host/…``)."""
_WIDE = 1000
"""How many directories of one depth are looked into."""
_PACKED = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
# fmt: off
_KNOWN = {
    "proc": {
        "cmdline", "cpuinfo", "diskstats", "driver", "fs", "interrupts", "loadavg", "locks", "mdstat", "meminfo", "modules",
        "mounts", "net", "pressure", "self", "stat", "swaps", "sys", "thread-self", "uptime", "version", "vmstat",
    },
    "sys": {"block", "bus", "class", "dev", "devices", "firmware", "fs", "hypervisor", "kernel", "module", "power"},
}
# fmt: on
"""Some of what lies in the kernel's own /proc and /sys."""

# fmt: off
OF_THE_SYSTEM = {
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "lost+found", "media", "mnt", "opt", "proc", "root", "run",
    "sbin", "snap", "srv", "sys", "tmp", "usr", "var",
}
# fmt: on
"""What lies at the top of a system (Filesystem Hierarchy Standard 3.0): the probes' business."""

_OF_NAMESPACES = tuple(f"/proc/self/{name}" for name in ("mount", "net/", "ns/"))
"""What /proc tells of a process and is as true of others in its namespaces."""


class TreeStore(abc.ABC):
    """Where the files lie. Places are absolute in the tree and hold no symbolic link on the way."""

    @abc.abstractmethod
    def target(self, place: str) -> str | None:
        """Return the target of the symbolic link at ``place``; None if there is none."""

    @abc.abstractmethod
    def text(self, place: str) -> Fact[str]: ...

    @abc.abstractmethod
    def names(self, place: str) -> Fact[tuple[str, ...]]: ...

    @abc.abstractmethod
    def stat(self, place: str) -> Fact[Stat]: ...

    def space(self, place: str) -> Fact[Space]:
        return Missing(Why.NOT_RECORDED, place, "a recorded tree holds no free space")


class TreeHost(Host):
    """Files answer; commands, the environment and system calls are not recorded. ``nothing`` says what it means that a path is not there; with
    ``is_running`` /proc is that of a running kernel."""

    def __init__(self, store: TreeStore, origin: str, nothing: Callable[[str], Why], *, is_running: bool = False) -> None:
        self.origin = origin
        self._store = store
        self._nothing = nothing
        self._is_running = is_running
        self.keeps_outputs = not is_running and nothing("/") is Why.NOT_RECORDED

    def text(self, path: str) -> Fact[str]:
        return self._at(path, self._store.text)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return self._at(path, self._store.names)

    def stat(self, path: str) -> Fact[Stat]:
        return self._at(path, self._store.stat)

    def space(self, path: str) -> Fact[Space]:
        return self._at(path, self._store.space)

    def real(self, path: str) -> Fact[str]:
        place = follow(path, self._store.target)
        found = self._at(path, self._store.stat)
        return found if isinstance(found, Missing) else place

    def link(self, path: str) -> Fact[str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        place = follow(parent or "/", self._store.target)
        target = self._store.target(f"{place.rstrip('/')}/{name}") if place and name else None
        if target is not None:
            return target
        found = self.stat(path)
        return found if isinstance(found, Missing) else Missing(Why.NOT_SUPPORTED, path, "not a symbolic link")

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        return _not_recorded(argv[0], "a tree of files runs no commands")

    def env(self) -> Fact[dict[str, str]]:
        return _not_recorded("environment", "a tree of files has no session")

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return _not_recorded(question, "a tree of files answers no system call")

    def _at(self, path: str, look: Callable[[str], Fact[_T]]) -> Fact[_T]:
        if self._is_running and path.startswith("/proc/self/") and not path.startswith(_OF_NAMESPACES):
            return _not_recorded(path, "belongs to the process that reads the tree")
        place = follow(path, self._store.target)
        if not place:
            return Missing(Why.FAILED, path, os.strerror(errno.ELOOP))
        found = look(place)
        if not isinstance(found, Missing):
            return found
        why, detail = found.why, found.detail
        if why is Why.ABSENT:
            why = self._nothing(place)
            detail = "not in the recorded tree" if why is Why.NOT_RECORDED else detail
        return Missing(why, path, detail, found.remedy)


class FolderStore(TreeStore):
    """Files below a real directory."""

    def __init__(self, root: str, prefix: str = "") -> None:
        """``prefix``: where below ``root`` they lie. Raises UnreadableInput."""
        self._root, self._prefix = os.path.realpath(root), prefix
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.geteuid() == 0:
                refuse_lent(root, handle)
            self._identity = identity_of(handle)
        finally:
            os.close(handle)
        self._targets: dict[str, str | None] = {}

    def target(self, place: str) -> str | None:
        if place not in self._targets:
            try:
                with self._held(place) as held:
                    self._targets[place] = os.readlink("", dir_fd=held)
            except (OSError, ValueError):
                self._targets[place] = None
        return self._targets[place]

    def text(self, place: str) -> Fact[str]:
        def read(held: int) -> Fact[str]:
            try:
                return text_of(opened(held, place), place)
            except NotRegular as error:
                return Missing(Why.FAILED, place, error.strerror)

        return self._look(place, read)

    def names(self, place: str) -> Fact[tuple[str, ...]]:
        def listed(held: int) -> tuple[str, ...]:
            handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
            try:
                return tuple(sorted(os.listdir(handle)))
            finally:
                os.close(handle)

        return self._look(place, listed)

    def stat(self, place: str) -> Fact[Stat]:
        return self._look(place, lambda held: as_stat(os.fstat(held)))

    def _held(self, place: str) -> contextlib.AbstractContextManager[int]:
        return held_below(self._root, self._prefix + place, self._identity)

    def _look(self, place: str, look: Callable[[int], Fact[_T]]) -> Fact[_T]:
        try:
            with self._held(place) as held:
                return look(held)
        except (OSError, ValueError) as error:
            return _refusal(error, place)


class MountedStore(FolderStore):
    """As FolderStore, where the directory is a mounted system: its free space is the host's own."""

    def space(self, place: str) -> Fact[Space]:
        return self._look(place, lambda held: as_space(os.fstatvfs(held)))


def below(root: str) -> TreeHost:
    """Return the system whose files are mounted at the directory ``root``. Raises UnreadableInput."""
    names = _listed(root)
    if not {"etc", "proc", "sys", "usr"} & set(names):
        raise UnreadableInput(
            f"{root}: holds none of etc, proc, sys, usr", "give --root the directory where a system's / is mounted"
        )
    store = MountedStore(root)
    empty = tuple(f"/{name}/" for name in ("proc", "sys", "dev", "run") if not _filled(store, f"/{name}"))

    def nothing(place: str) -> Why:
        # An image that is not running has nothing in these: that says nothing about the machine it will run on.
        return Why.NOT_RECORDED if f"{place}/".startswith(empty) else Why.ABSENT

    return TreeHost(store, f"root {root}", nothing, is_running=_is_of_kernel(f"{root}/proc"))


def folder(path: str) -> TreeHost:
    """Return the host whose /proc and /sys were copied to a directory. Raises UnreadableInput."""
    _listed(path)
    store = FolderStore(path)
    prefix = find_prefix(store, path)
    name = os.path.basename(path.rstrip("/")) or path
    running = _is_of_kernel(f"{path}{prefix}/proc")
    return TreeHost(FolderStore(path, prefix), called(name, prefix), lambda _place: Why.NOT_RECORDED, is_running=running)


def called(name: str, prefix: str) -> str:
    """Return what a recorded tree is called; with the way to it where it lay deep.

    >>> called("host.tgz", "/host"), called("tickets", "/4711/node-3")
    ('tree host.tgz', 'tree tickets: 4711/node-3')
    """
    return f"tree {name}: {prefix[1:]}" if prefix.count("/") > 1 else f"tree {name}"


def find_prefix(store: TreeStore, name: str) -> str:
    """Return where in the tree the recorded /proc and /sys lie: ``""``, also where there are only other files, or some directories down. Raises UnreadableInput."""
    level = [""]
    packed: list[str] = []
    has_files = False
    for _ in range(FAR_DOWN + 1):
        found = [top for top in level if _is_recorded(store, top)]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(top.lstrip("/") for top in found[:4])
            raise UnreadableInput(f"{name}: holds {len(found)} recorded hosts ({shown} …)", "give one of them")
        below = [f"{top}/{entry}" for top in level for entry in _some_names(store, top)]
        packed += [place[1:] for place in below if place.endswith(_PACKED)]
        folders = [place for place in below if _is_folder(store, place)]
        has_files = has_files or any(place.split("/")[1] not in OF_THE_SYSTEM for place in set(below).difference(folders))
        level = folders[:_WIDE]
    recorded = [entry for entry in _some_names(store, "") if entry.endswith(".json")]
    if recorded:
        raise UnreadableInput(
            f"{name}: is a directory of files ({', '.join(recorded[:4])}), not one host",
            "give one recording of it; what differs between several: torchtune-sys compare DIR",
        )
    if packed:
        raise UnreadableInput(
            f"{name}: holds no recorded /proc or /sys, but archives ({', '.join(packed[:4])})",
            "give one of them; out of an archive, unpack it first",
        )
    if has_files:  # what commands printed, it may be
        return ""
    raise UnreadableInput(
        f"{name}: holds no recorded /proc or /sys (looked {FAR_DOWN} directories deep)",
        "give a tree with proc/ and sys/ in it, or a recording made with: torchtune-sys record",
    )


def _is_recorded(store: TreeStore, top: str) -> bool:
    """Whether a host's /proc or /sys lies here. ``/usr/include`` has a directory ``sys``, too; what was given itself is taken at its word."""
    there = [name for name in _KNOWN if _is_folder(store, f"{top}/{name}")]
    if not there or len(there) == len(_KNOWN) or not top:
        return bool(there)
    return any(entry in _KNOWN[there[0]] or entry.isdecimal() for entry in _some_names(store, f"{top}/{there[0]}"))


def _is_of_kernel(proc: str) -> bool:
    """Whether it is no copy but a kernel's own (``/`` itself, a host's ``/`` in a container): its ``self`` is this process, with our limits and state."""
    read, write = os.pipe()
    try:
        return os.path.samestat(os.stat(f"{proc}/self/fd/{read}"), os.fstat(read))
    except OSError:
        return False
    finally:
        os.close(read)
        os.close(write)


def _some_names(store: TreeStore, top: str) -> tuple[str, ...]:
    names = store.names(top or "/")
    return () if isinstance(names, Missing) else names[:_WIDE]


def _is_folder(store: TreeStore, place: str) -> bool:
    found = store.stat(place)
    return not isinstance(found, Missing) and modes.S_ISDIR(found.mode)


def _filled(store: TreeStore, place: str) -> bool:
    names = store.names(place)
    return not isinstance(names, Missing) and bool(names)


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        todo = "run as a user who may read it" if error.errno == errno.EACCES else "check the path"
        raise UnreadableInput(f"{path}: {error.strerror}", todo) from None


def _not_recorded(source: str, detail: str) -> Missing:
    return Missing(Why.NOT_RECORDED, source, detail)


def _refusal(error: OSError | ValueError, place: str) -> Missing:
    if isinstance(error, OSError):
        return missing_from(error, place)
    return Missing(Why.ABSENT, place, "no file can have this name")
