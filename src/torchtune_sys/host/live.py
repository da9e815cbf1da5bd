"""The machine that this process runs on."""

from __future__ import annotations

import os
import stat as modes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torchtune_sys.host import queries, trust
from torchtune_sys.host.base import TEXT_LIMIT, Host, Output, Space, Stat, missing_from
from torchtune_sys.host.isolation import session, session_status
from torchtune_sys.host.mounted import mount_table
from torchtune_sys.host.regular import READING, NotRegular, open_regular
from torchtune_sys.host.remote import Remotes
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_T = TypeVar("_T")
_STATUS = "/proc/self/status"
_KERNEL_S = ("/proc/", "/sys/")
_LEADS_OUT = frozenset(("..", "root", "cwd", "exe", "fd", "map_files"))
"""Of these the last five are links of a process's to whatever it has (proc(5)); users name paths, too."""
_TEXT_IN_ALL = 64 << 20
"""Bytes of memory for what files say, without the kernel's: who owns an environment may lay out any number of files of 4 MiB."""
_AT_ONCE = frozenset((queries.AFFINITY, queries.RLIMITS, queries.UNAME, queries.CWD, queries.TODAY, queries.GLIBC))
"""System calls that take no time: answered also when there is none left."""


class LiveHost(Host):
    """Reads are remembered: one look at a file per run, so that probes agree with each other."""

    origin = "live"
    live = True

    def __init__(self, deadline: float | None = None) -> None:
        """``deadline``: the time.monotonic() after which no command is waited for."""
        self._deadline = deadline
        self._texts: dict[str, Fact[str]] = {}
        self._text_left = _TEXT_IN_ALL
        self._answers: dict[str, Fact[Any]] = {}
        self._asking: dict[str, threading.Lock] = {}
        self._remotes: Remotes | None = None
        self._deciding: dict[str, int | None] = {}
        self._told: list[tuple[int, str]] | None = None
        self._session: dict[str, str] | None = None
        self._system = trust.system_users()
        self._lock = threading.Lock()

    def text(self, path: str) -> Fact[str]:
        if path not in self._texts:
            found = self._look(path, lambda: self._read(path))
            return self._texts.setdefault(path, found)
        return self._texts[path]

    def _read(self, path: str) -> Fact[str]:
        if _is_kernel_s(path):
            return session_status[0] if path == _STATUS and session_status else read_text(path, path)
        if self._text_left <= 0:
            return Missing(Why.UNPARSED, path, f"files of more than {_TEXT_IN_ALL >> 20} MiB were read before it")
        found = self._read_as_lent(path)
        self._text_left -= 0 if isinstance(found, Missing) else sys.getsizeof(found)
        return found

    def _read_as_lent(self, path: str) -> Fact[str]:
        if os.geteuid() != 0:
            return read_text(path, path)
        user = self._decided_by(path)
        if user is None:
            return read_text(path, path, lent=self._named_by(path))
        found = read_text(path, path, lent=(user, *self._named_by(path)))
        if not isinstance(found, Missing):
            self._from_others().append((user, found))
        return found

    def _named_by(self, path: str) -> tuple[int, ...]:
        """Return the other users by whose word a file of the system's is read: its path stands in a file of theirs, or in a variable of who called sudo."""
        return tuple(uid for uid, text in self._from_others() if path in text)

    def _from_others(self) -> list[tuple[int, str]]:
        if self._told is None:
            from torchtune_sys.host.account import callers

            env = session()
            self._told = [(user.uid, "\n".join(env.values())) for user in callers(env)]
        return self._told

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return self._look(path, lambda: self._listed(path))

    def _listed(self, path: str) -> Fact[tuple[str, ...]]:
        if os.geteuid() != 0 or _is_kernel_s(path):
            return tuple(sorted(os.listdir(path)))
        user = self._decided_by(path)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            refusal = _not_lent(handle, path, self._named_by(path) if user is None else (user,))
            return tuple(sorted(os.listdir(handle))) if refusal is None else refusal
        finally:
            os.close(handle)

    def link(self, path: str) -> Fact[str]:
        return self._look(path, lambda: os.readlink(path))

    def real(self, path: str) -> Fact[str]:
        return self._look(path, lambda: os.path.realpath(path, strict=True))

    def stat(self, path: str) -> Fact[Stat]:
        return self._look(path, lambda: as_stat(os.stat(path)))

    def space(self, path: str) -> Fact[Space]:
        return self._look(path, lambda: as_space(os.statvfs(path)))

    def look_ahead(self, paths: tuple[str, ...]) -> None:
        self._remote().ask(paths)

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        from torchtune_sys.host.children import process

        left = self._left(timeout_s)
        if left <= 0:
            return Missing(Why.TIMEOUT, argv[0], "the time for the whole look was up", "a longer --timeout")
        found = process.run(argv, timeout_s=left)
        return _cut_short(found) if left < timeout_s else found

    def env(self) -> Fact[dict[str, str]]:
        if self._session is None:
            self._session = session()
        return self._session

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        with self._lock:
            turn = self._asking.setdefault(question, threading.Lock())
        with turn:  # two probes that ask the same thing share one child process
            if question not in self._answers:
                self._answers[question] = self._answer(question, timeout_s)
            return self._answers[question]

    def _answer(self, question: str, timeout_s: float) -> Fact[Any]:
        wanted_s, timeout_s = timeout_s, self._left(timeout_s)
        if timeout_s <= 0 and question not in _AT_ONCE:
            return Missing(Why.TIMEOUT, question, "the time for the whole look was up", "a longer --timeout")
        place = question.partition(":")[2]
        if place.startswith("/") and (refusal := self._remote().refuse(place)) is not None:
            return refusal
        from torchtune_sys.host.live_queries import answer

        found = answer(question, timeout_s)
        return _cut_short(found) if timeout_s < wanted_s else found

    def _left(self, timeout_s: float) -> float:
        return timeout_s if self._deadline is None else min(timeout_s, self._deadline - time.monotonic())

    def _look(self, path: str, look: Callable[[], Fact[_T]]) -> Fact[_T]:
        if not _is_kernel_s(path):
            refusal = self._remote().refuse(path)
            if refusal is not None:
                return refusal
        try:
            return look()
        except OSError as error:
            return missing_from(error, path)
        except ValueError:
            return Missing(Why.ABSENT, path, "no file can have this name")  # a NUL byte in it

    def _decided_by(self, path: str) -> int | None:
        """Return the other user who decides what lies at a path, since a directory on the way, or what lies there, is theirs."""
        folder = os.path.dirname(path)
        if folder not in self._deciding:
            try:
                owners = (info.st_uid for _, info in trust.steps(folder))
                self._deciding[folder] = next((uid for uid in owners if uid not in self._system), None)
            except OSError:
                self._deciding[folder] = None
        if self._deciding[folder] is not None:
            return self._deciding[folder]
        owner = os.lstat(path).st_uid
        return None if owner in self._system else owner

    def _remote(self) -> Remotes:
        with self._lock:  # one for all probes: a server that does not answer is waited for once
            if self._remotes is None:
                try:
                    self._remotes = Remotes(mount_table())
                except OSError:
                    self._remotes = Remotes("")
            return self._remotes


def _is_kernel_s(path: str) -> bool:
    """Return whether the kernel alone decides what lies there.

    >>> _is_kernel_s("/proc/self/status"), _is_kernel_s("/proc/self/root/etc/shadow"), _is_kernel_s("/sys/../etc/shadow")
    (True, False, False)
    """
    return path.startswith(_KERNEL_S) and _LEADS_OUT.isdisjoint(path.split("/"))


def _cut_short(found: Fact[_T]) -> Fact[_T]:
    """Return what did not end because the whole look was about to, and may have needed only more time."""
    if isinstance(found, Missing) and found.why is Why.TIMEOUT and not found.remedy:
        return Missing(found.why, found.source, found.detail, "a longer --timeout")
    return found


def read_text(real_path: str, name: str, flags: int = 0, *, lent: tuple[int, ...] = ()) -> Fact[str]:
    """Read a regular file of at most TEXT_LIMIT bytes; never opens a FIFO or a device. ``lent``: only what these users may read, too, who
    decide what lies there: a link of theirs to a file of root's would put that into a recording."""
    try:
        handle = os.open(real_path, READING | flags) if _is_kernel_s(real_path) else open_regular(real_path, flags)
    except NotRegular as error:
        return Missing(Why.FAILED, name, error.strerror)
    except OSError as error:
        return missing_from(error, name)
    except ValueError:
        return Missing(Why.ABSENT, name, "no file can have this name")  # a NUL byte in it
    return text_of(handle, name, lent)


def text_of(handle: int, name: str, lent: tuple[int, ...] = ()) -> Fact[str]:
    """Return what an open file holds, and close it."""
    try:
        if not modes.S_ISREG(os.fstat(handle).st_mode):
            return Missing(Why.FAILED, name, "not a regular file")
        refusal = _not_lent(handle, name, lent)
        if refusal is not None:
            return refusal
        content = read_all(handle, TEXT_LIMIT)
    except OSError as error:
        return missing_from(error, name)
    finally:
        os.close(handle)
    if len(content) > TEXT_LIMIT:
        return Missing(Why.UNPARSED, name, f"larger than {TEXT_LIMIT >> 20} MiB")
    return content.decode("utf-8", "replace")


def _not_lent(handle: int, name: str, lent: tuple[int, ...]) -> Missing | None:
    for uid in lent:
        if not may_read(uid, handle):
            return Missing(Why.DENIED, name, f"user {trust.user_name(uid)}, who owns this place, may not read what is there")
    return None


def may_read(uid: int, handle: int) -> bool:
    """Return whether a user could have opened the file or directory that is open here, at the place where it really lies."""
    from torchtune_sys.host.account import account

    info = os.fstat(handle)
    if info.st_uid == uid:
        return True
    user = account(uid, 0)
    folders = trust.steps(os.path.dirname(os.readlink(f"/proc/self/fd/{handle}")))
    return user.may_read(info, handle) and all(user.may_pass(info, place) for place, info in folders)


def read_all(handle: int, at_most: int) -> bytes:
    """Return what an open file holds; some more than ``at_most`` bytes of what is longer."""
    parts: list[bytes] = []
    size = 0
    while size <= at_most and (part := os.read(handle, 1 << 16)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def as_stat(found: os.stat_result) -> Stat:
    node = modes.S_ISCHR(found.st_mode) or modes.S_ISBLK(found.st_mode)
    return Stat(
        mode=found.st_mode,
        uid=found.st_uid,
        gid=found.st_gid,
        size=found.st_size,
        device=f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}",
        special=f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if node else "",
    )


def as_space(found: os.statvfs_result) -> Space:
    return Space(
        size=found.f_blocks * found.f_frsize,
        free=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        inodes_free=found.f_favail,
        read_only=bool(found.f_flag & os.ST_RDONLY),
        free_for_root=found.f_frsize * found.f_bfree,
    )
