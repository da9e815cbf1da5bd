"""Create scratch directories and files without a name that no other user can replace."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from torchtune_sys.errors import CannotWrite, UserError
from torchtune_sys.host.account import Account
from torchtune_sys.host.children import process
from torchtune_sys.host.trust import distrust
from torchtune_sys.model.values import Missing

_TIMEOUT_S, _REMOVING_S = 60.0, 2.0
_ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")
_YOUNG_S, _LOOKED_AT, _SWEPT_AT_MOST = 60.0, 20_000, 16
"""A folder is made before it is locked; how many names are looked at, and how many folders removed, at one start."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@contextlib.contextmanager
def directory(parent: str, user: Account | None = None, within_s: float = _TIMEOUT_S) -> Iterator[str]:
    """Provide a new directory in ``parent`` ("": where temporary files go), for ``user`` only (None: for us).

    Not where others could put another in its place: they would have our files, and we theirs. Such a ``parent`` is refused to root; any
    other user may trust whom they like. ``user`` can stop what makes and removes it, which is waited for ``within_s`` from now on, and 2 s for the removal.
    Raises CannotWrite; UserError where ``parent`` was named and cannot be taken.
    """
    until_s = time.monotonic() + within_s
    todo = f"{'name another directory with --scratch' if parent else 'set TMPDIR to a directory'} that can be written"
    made, failure = "", CannotWrite("no directory for temporary files", todo)
    for place in (parent,) if parent else dict.fromkeys((_temporary(), *_ELSEWHERE)):
        try:
            trusted = frozenset((os.geteuid() if user is None else user.uid,))
            reason = distrust(os.path.abspath(place), trusted, may_be_shared=True)
            if reason and (not parent or os.geteuid() == 0):
                failure = CannotWrite(f"{place}: {reason}", todo)
                continue
            _sweep(os.path.abspath(place), user, until_s)
            made = (
                tempfile.mkdtemp(prefix=_prefix(), dir=place)
                if user is None
                else _made_by(user, os.path.abspath(place), until_s - time.monotonic())
            )
            break
        except OSError as error:
            failure = CannotWrite(f"{place}: {error.strerror}{_no_more_files(place)}", todo)
    if not made:
        raise UserError(failure.seen, failure.todo) if parent else failure
    lock = _locked(made)
    try:
        yield made
    finally:
        _remove(made, user, until_s)
        if lock is not None:
            os.close(lock)


def _remove(folder: str, user: Account | None, until_s: float) -> None:
    if user is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        process.run(("rm", "-rf", "--", folder), timeout_s=max(until_s - time.monotonic(), _REMOVING_S), user=user)


def _prefix() -> str:
    """How the folders of this start of this kernel are called: only among them a lock tells whether somebody still lives."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"torchtune-sys-{file.read(8)}-"
    except OSError:
        return "torchtune-sys-"


def _locked(folder: str) -> int | None:
    """Return the descriptor that says of a folder that we live, as the kernel ends it with us (flock(2)); None where somebody holds it, or nobody can."""
    handle = -1
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:  # NFS locks no file that is open for reading alone
        if handle >= 0:
            os.close(handle)
        return None


def _sweep(place: str, user: Account | None, until_s: float) -> None:
    """Remove what runs left there that were killed: folders of the same owner, that nobody has locked any more."""
    prefix, owner = _prefix(), os.geteuid() if user is None else user.uid
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        seen = itertools.islice(entries, _LOOKED_AT)
        names = (entry.name for entry in seen if entry.name.startswith(prefix) and prefix != "torchtune-sys-")
        for name in itertools.islice(names, _SWEPT_AT_MOST):
            folder = os.path.join(place, name)
            lock = _locked(folder)
            if lock is None:
                continue
            try:
                held = os.fstat(lock)
                if held.st_uid == owner and time.time() - held.st_mtime > _YOUNG_S:
                    _remove(folder, user, until_s)
            finally:
                os.close(lock)


def _no_more_files(place: str) -> str:
    """Tell that it has room for bytes and for no more files: the kernel has one word for both (ENOSPC); a user without rights there has another."""
    with contextlib.suppress(OSError):
        found = os.statvfs(place)
        if found.f_files and not found.f_favail and found.f_bavail:
            return f" (there is room for {found.f_bavail * found.f_frsize >> 20} MB, but all {found.f_files} inodes are taken)"
    return ""


def _made_by(user: Account, parent: str, within_s: float) -> str:
    """Made and removed as the user: what root did there, the user could lead elsewhere. Raises OSError."""
    made = os.path.join(parent, f"{_prefix()}{os.urandom(6).hex()}")
    done = process.run(("mkdir", "-m", "700", "--", made), timeout_s=within_s, user=user)
    if isinstance(done, Missing):
        raise OSError(0, done.detail, parent)
    if done.rc:
        raise OSError(0, f"user {user.name} may not make a directory there", parent)
    return made


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # it tried to write in each of its places
        return "/tmp"


@contextlib.contextmanager
def nameless(name: str, text: str) -> Iterator[int]:
    """Provide the descriptor of a file with ``text``, which children that inherit it open as ``/proc/self/fd/NUMBER``. ``name`` is what /proc
    calls it. It takes no room on a disk, and nobody can write to it. Raises CannotWrite."""
    handle = _written(name, text)
    try:
        yield handle
    finally:
        os.close(handle)


def _written(name: str, text: str) -> int:
    handle = -1
    try:
        handle = _new(name)
        with open(os.dup(handle), "w", encoding="utf-8") as file:
            file.write(text)
        with contextlib.suppress(OSError):  # one that lies in a file system has no seals
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
        return handle
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise CannotWrite.because(error, name, "make room for temporary files") from None


def _new(name: str) -> int:
    with contextlib.suppress(AttributeError, OSError):  # Python was built for glibc before 2.27; a filter refuses it
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with directory("") as folder, tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())
