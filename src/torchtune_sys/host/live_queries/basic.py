"""Answers that one system call gives."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable
from typing import Any

from torchtune_sys.host.base import missing_from
from torchtune_sys.host.regular import open_regular
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_RLIMITS = {
    "as": resource.RLIMIT_AS,
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "rss": resource.RLIMIT_RSS,
    "stack": resource.RLIMIT_STACK,
}


def affinity(_argument: str, _timeout_s: float) -> Fact[str]:
    return str(CpuSet(os.sched_getaffinity(0)))


def memory_policy(_argument: str, _timeout_s: float) -> Fact[bool]:
    from torchtune_sys.host.bind import may_set_memory_policy

    return may_set_memory_policy()


def rlimits(_argument: str, _timeout_s: float) -> Fact[dict[str, list[int | None]]]:
    found: dict[str, list[int | None]] = {}
    for name, number in _RLIMITS.items():
        found[name] = [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number)]
    return found


def uid(_argument: str, _timeout_s: float) -> Fact[dict[str, Any]]:
    import pwd

    number = os.getuid()
    try:
        entry = pwd.getpwuid(number)
        name: str | None = entry.pw_name
        home: str | None = entry.pw_dir
    except KeyError:
        name = home = None
    return {"uid": number, "gid": os.getgid(), "groups": sorted(os.getgroups()), "user": name, "home": home}


def uname(_argument: str, _timeout_s: float) -> Fact[dict[str, str]]:
    seen = os.uname()
    return {"release": seen.release, "machine": seen.machine, "nodename": seen.nodename}


def cwd(_argument: str, _timeout_s: float) -> Fact[str]:
    try:
        return os.getcwd()
    except OSError as error:
        return missing_from(error, "getcwd")


def access(path: str, _timeout_s: float) -> Fact[dict[str, bool]]:
    try:
        os.stat(path)
    except OSError as error:
        return missing_from(error, path)
    return {name: os.access(path, mode, effective_ids=True) for name, mode in (("read", os.R_OK), ("write", os.W_OK))}


_MOST_FILES, _MOST_ENTRIES = 16, 200
_POINTER, _LONGEST_POINTER, _CONTENT = b"version https://git-lfs.github.com/spec/v1\n", 1024, 1 << 20
"""The first line of a Git LFS pointer file, and its size at most (git-lfs, docs/spec.md); a file of data beside it is of this size at least."""


def first_files(directory: str, _timeout_s: float) -> Fact[list[int]]:
    """Return of the first files how many this user may not read, how many were looked at, and how many are Git LFS pointers: 0 beside a file with content. In a directory where
    everybody may write (/tmp) nothing is opened, and root opens nothing of others."""
    closed = looked = pointers = large = 0
    try:
        is_shared = bool(os.stat(directory).st_mode & stat.S_ISVTX)
        with os.scandir(directory) as entries:
            for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):  # no directory is read to its end
                if looked < _MOST_FILES and not entry.name.startswith(".") and entry.is_file():
                    looked += 1
                    readable = os.access(entry.path, os.R_OK, effective_ids=True)
                    closed += not readable
                    info = entry.stat()
                    large += info.st_size >= _CONTENT
                    is_looked_at = readable and not is_shared and (os.geteuid() != 0 or info.st_uid == 0)
                    pointers += (
                        is_looked_at and len(_POINTER) < info.st_size < _LONGEST_POINTER and _begins_with(entry.path, _POINTER)
                    )
    except OSError as error:
        return missing_from(error, directory)
    return [closed, looked, 0 if large else pointers]


def _begins_with(path: str, start: bytes) -> bool:
    """Return whether a file does; one that was exchanged for a pipe meanwhile holds nobody up."""
    with contextlib.suppress(OSError):
        handle = open_regular(path)
        try:
            return os.read(handle, len(start)) == start
        finally:
            os.close(handle)
    return False


def refusals(_argument: str, _timeout_s: float) -> Fact[dict[str, str]]:
    import mmap
    from _socket import AF_NETLINK, SOCK_RAW, socket  # the module socket makes enums of its constants at first, for long

    def refused(attempt: Callable[[], Any]) -> str:
        try:
            attempt().close()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN):
                raise
            return os.strerror(error.errno or 0)
        return ""

    both = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        return {
            "code": refused(lambda: mmap.mmap(-1, mmap.PAGESIZE, prot=both)),
            "netlink": refused(lambda: socket(AF_NETLINK, SOCK_RAW)),
        }
    except OSError as error:
        return missing_from(error, "mmap, socket")


def glibc(_argument: str, _timeout_s: float) -> Fact[str]:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        name = None
    if not name:
        return Missing(Why.ABSENT, "confstr(CS_GNU_LIBC_VERSION)", "this C library is not glibc")
    return name.split()[-1]


def today(_argument: str, _timeout_s: float) -> Fact[str]:
    import time

    return time.strftime("%Y-%m-%d", time.gmtime())
