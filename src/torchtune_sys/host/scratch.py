"""Create scratch directories and files without a name that no other user can replace."""

from __future__ import annotations

import contextlib
import fcntl
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
            made = (
                tempfile.mkdtemp(prefix="torchtune-sys-", dir=place)
                if user is None
                else _made_by(user, os.path.abspath(place), until_s - time.monotonic())
            )
            break
        except OSError as error:
            failure = CannotWrite(f"{place}: {error.strerror}{_no_more_files(place)}", todo)
    if not made:
        raise UserError(failure.seen, failure.todo) if parent else failure
    try:
        yield made
    finally:
        if user is None:
            shutil.rmtree(made, ignore_errors=True)
        else:
            process.run(("rm", "-rf", "--", made), timeout_s=max(until_s - time.monotonic(), _REMOVING_S), user=user)


def _no_more_files(place: str) -> str:
    """Tell that it has room for bytes and for no more files: the kernel has one word for both (ENOSPC); a user without rights there has another."""
    with contextlib.suppress(OSError):
        found = os.statvfs(place)
        if found.f_files and not found.f_favail and found.f_bavail:
            return f" (there is room for {found.f_bavail * found.f_frsize >> 20} MB, but all {found.f_files} inodes are taken)"
    return ""


def _made_by(user: Account, parent: str, within_s: float) -> str:
    """Made and removed as the user: what root did there, the user could lead elsewhere. Raises OSError."""
    made = os.path.join(parent, f"torchtune-sys-{os.urandom(6).hex()}")
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
