"""Write files that survive a power cut: write a copy, sync it, rename it, sync the directory (rename(2), fsync(2))."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat

import msgspec

from torchtune_sys.host.files import sync_folder
from torchtune_sys.host.trust import distrust

_NO_XATTRS = (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.ENOSYS)


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """All that undoing restores of a file."""

    content: bytes
    mode: int
    """Permission bits, set-id bits included."""
    uid: int
    gid: int
    xattrs: dict[str, bytes] = {}
    """Extended attributes, POSIX ACLs and security labels included, as far as this process may read them."""


class NotOurs(OSError):
    """Something other than a regular file stands where ours would be."""


def require_trusted_folder(path: str) -> None:
    """Raise OSError where somebody else decides which folder the file lies in: a link in its place would have another file written or removed."""
    found = distrust(os.path.dirname(path), frozenset((os.geteuid(),)))
    if found:
        raise OSError(errno.EPERM, f"{found}, who could have a file elsewhere changed in its place", path)


def read(path: str, at_most: int | None = None) -> FileState | None:
    """Return the file's state; None if there is none. Raises OSError, also for more than ``at_most`` bytes; NotOurs for what is not a regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOurs(errno.ELOOP, "is a symbolic link", path) from None
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise NotOurs(errno.EINVAL, "is not a regular file", path)
    with open(handle, "rb") as file:
        if at_most is not None and found.st_size > at_most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return FileState(
            content=file.read(),
            mode=stat.S_IMODE(found.st_mode),
            uid=found.st_uid,
            gid=found.st_gid,
            xattrs={name: os.getxattr(handle, name) for name in _xattrs(handle)},
        )


def _xattrs(handle: int) -> list[str]:
    try:
        return os.listxattr(handle)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return []
        raise


def draft_of(path: str) -> str:
    """Return where the new content is written first: always the same name, so that what a crash left there is found."""
    folder, name = os.path.split(path)
    return f"{folder}/.{name}.torchtune-sys"


def write(path: str, state: FileState) -> None:
    """Put the state in the file's place: a reader, and a host after a power cut, sees the old file or the whole new one.

    Raises OSError; then the old file is untouched and no draft is left.
    """
    draft = draft_of(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(handle, "wb") as file:
            file.write(state.content)
            file.flush()
            os.fchown(handle, state.uid, state.gid)
            _set_xattrs(handle, state.xattrs)
            os.fchmod(handle, state.mode)
            os.fsync(handle)
        os.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    sync_folder(os.path.dirname(path))


def _set_xattrs(handle: int, wanted: dict[str, bytes]) -> None:
    """Set the extended attributes: what a new file got by itself (a default ACL, a label of its directory) goes, unless it may not be removed."""
    for name in _xattrs(handle):
        if name not in wanted:
            with contextlib.suppress(OSError):
                os.removexattr(handle, name)
    for name, value in wanted.items():
        if name not in _xattrs(handle) or os.getxattr(handle, name) != value:
            os.setxattr(handle, name, value)


def may_write(path: str) -> None:
    """Raise OSError where putting another file in its place would, for what access(2) tells: read-only, immutable, not ours to write."""
    for place in (os.path.dirname(path), path):
        if os.path.lexists(place) and not os.access(place, os.W_OK, effective_ids=True):
            read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
            number = errno.EROFS if read_only else errno.EPERM
            raise OSError(number, os.strerror(number), place)


def remove(path: str) -> None:
    """Remove a file durably; one that is gone already is no error."""
    if os.path.lexists(path):  # where nothing may be written, unlink fails even of what is not there
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    sync_folder(os.path.dirname(path))


def missing_folders(path: str) -> tuple[str, ...]:
    """Return the directories that must be made for the file, the outermost first."""
    found = []
    folder = os.path.dirname(path)
    while folder not in ("", "/") and not os.path.isdir(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return tuple(reversed(found))


def make_folders(folders: tuple[str, ...], mode: int = 0o755) -> None:
    for folder in folders:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, mode)
            os.chmod(folder, mode)  # whatever the umask says
        sync_folder(os.path.dirname(folder))


def remove_folders(folders: tuple[str, ...]) -> None:
    """Remove those directories that are empty, the innermost first."""
    for folder in filter(os.path.lexists, reversed(folders)):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            raise
        sync_folder(os.path.dirname(folder))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
