"""Write the tool's own files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.places import place as place_of
from torchtune_sys.host.trust import owner, system_users, user_name

PRIVATE, READABLE, EXECUTABLE = 0o600, 0o644, 0o755
_STREAM = re.compile(r"/dev/std(?:out|err)|(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})")
_NO_MORE_FOR_OTHERS = 0o022
_TIMEOUT_MS = 30_000
"""How long the reader of a FIFO may take nothing."""


_WHAT_HELPS = {
    errno.ENOENT: "make its directory first, or write somewhere else",
    errno.EACCES: "write somewhere else, or as a user who may write there",
    **dict.fromkeys((errno.ENOTDIR, errno.EROFS, errno.EISDIR), "write somewhere else"),
}
"""By error, where room does not help."""


def _cannot_write(error: OSError, path: str) -> CannotWrite:
    return CannotWrite.because(error, path, _WHAT_HELPS.get(error.errno or 0, "write somewhere else or make room"))


def write_atomically(path: str, text: str, *, by_root: int = READABLE) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old file or the whole new one, never a part.

    A device or FIFO (``/dev/stdout``) is written to as it is, since it cannot be renamed over; a FIFO must have a reader. A file of our own
    keeps its permission bits, but that others may not write; a new one gets 0644, of root's ``by_root``, as far as the umask allows.
    EXECUTABLE holds for everybody, and whoever may read a file that is there may then run it.
    Raises CannotWrite; then nothing is left behind.
    """
    if not path:
        raise CannotWrite("the name of the output file is empty", "name a file")
    stream = _STREAM.fullmatch(path)
    try:
        if stream is not None:
            _into_stream(path, int(stream[1] or ("stderr" in path) + 1), text)
            return
        with place_of(path) as (folder, name):
            _write(folder, name, path, text, by_root if os.geteuid() == 0 or by_root == EXECUTABLE else READABLE)
    except OSError as error:
        raise _cannot_write(error, path) from None


def write_in_child(path: str, text: str, *, by_root: int = READABLE) -> None:
    """Write as :func:`write_atomically`, to a place that an option names: one that does not answer costs its deadline. Raises CannotWrite."""
    if _STREAM.fullmatch(path):
        write_atomically(path, text, by_root=by_root)
        return

    _in_child(path, lambda: write_atomically(path, text, by_root=by_root))


def require_place(path: str) -> None:
    """Raise CannotWrite where a file could not be made at ``path``: before work whose result it is to hold."""

    def check() -> None:
        try:
            with place_of(path) as (folder, name):
                if os.access(name, os.F_OK, dir_fd=folder) and not os.path.isfile(path):
                    return  # a device or a FIFO: its directory need not be writable
                if not os.access(f"/proc/self/fd/{folder}", os.W_OK, effective_ids=True):
                    raise CannotWrite(f"{path}: its directory cannot be written to", "write somewhere else")
        except OSError as error:
            raise _cannot_write(error, path) from None

    if path and not _STREAM.fullmatch(path):
        _in_child(path, check)


def require_folder(path: str) -> None:
    """Make the folder that results of long work are to be written in, unless it is there; the one above it must be. Raises CannotWrite."""

    def check() -> None:
        if os.path.isdir(path):
            return
        try:
            with place_of(path.rstrip("/")) as (folder, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
        except OSError as error:
            raise CannotWrite.because(error, path, "name a directory, or one that can be made") from None

    _in_child(path, check)


def remove_older(folder: str, names: Iterable[str], than_s: float) -> None:
    """Remove those of ``names`` in ``folder`` that were written more than ``than_s`` seconds ago. Raises CannotWrite."""

    def remove() -> None:
        for name in names:
            path = os.path.join(folder, name)
            try:
                with place_of(path) as (held, own), contextlib.suppress(FileNotFoundError):
                    if os.stat(own, dir_fd=held, follow_symlinks=False).st_mtime <= time.time() - than_s:
                        os.unlink(own, dir_fd=held)
            except OSError as error:
                raise _cannot_write(error, path) from None

    _in_child(folder, remove)


def write_below_in_child(folder: str, files: Mapping[str, str], mark: str) -> None:
    """Write as :func:`write_below`, with a deadline. Raises CannotWrite."""
    _in_child(folder, lambda: write_below(folder, files, mark))


def _in_child(path: str, write: Callable[[], None]) -> None:
    from torchtune_sys.host.children.apart import TIMEOUT_S, end_by_exception, run_in_child

    def written() -> str:
        end_by_exception()
        write()
        return ""

    timeout_s = TIMEOUT_S + _TIMEOUT_MS / 1000  # the reader of a FIFO has a patience of its own
    seen = f"{path}: could not be written within {timeout_s:g} s"
    late = CannotWrite(seen, "look whether its file system, or the server behind it, still answers")
    run_in_child(written, late, timeout_s)


def _write(folder: int, name: str, path: str, text: str, mode: int) -> None:
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        _replace(folder, name, text, _new(mode))
        return
    if stat.S_ISREG(there.st_mode):
        kept = there.st_mode & 0o777 & ~_NO_MORE_FOR_OTHERS
        kept |= (kept & 0o444) >> 2 if mode == EXECUTABLE else 0
        _replace(folder, name, text, kept if _is_ours_alone(there) else _new(mode))
    elif stat.S_ISDIR(there.st_mode):
        raise CannotWrite(f"{path}: is a directory", "name a file in it")
    else:
        _into(folder, name, path, text)


def write_below(folder: str, files: Mapping[str, str], mark: str) -> None:
    """Write each file at its absolute path below ``folder``, one by one whole or not at all.

    Nothing is written if one of the places holds something that is not ours: no regular file, or one without ``mark`` at its head.
    Raises CannotWrite.
    """
    places = {os.path.join(folder, path.lstrip("/")): text for path, text in files.items()}
    try:
        for place in places:
            if os.path.lexists(place) and not _is_ours(place, mark):
                raise CannotWrite(
                    f"{place}: is there already, and not made by torchtune-sys", "move it away, or choose another directory"
                )
        for place in places:
            with place_of(place, make=True):
                pass
    except (FileExistsError, NotADirectoryError) as error:
        raise CannotWrite(
            f"{error.filename or folder}: is no directory", "name a directory, or one that is not there yet"
        ) from None
    except OSError as error:
        raise _cannot_write(error, error.filename or folder) from None
    for place, text in places.items():
        write_atomically(place, text)


def write_in_new_folder(path: str, text: str) -> None:
    """Write as :func:`write_atomically`, making the folders that lead there. Raises CannotWrite."""
    try:
        with place_of(path, make=True):
            pass
    except OSError as error:
        raise CannotWrite.because(error, path, "make room, or a directory that can be written") from None
    write_atomically(path, text)


def _is_ours_alone(info: os.stat_result) -> bool:
    """Tell whether it is our file, and no second name that another user gave to one (link(2); fs.protected_hardlinks hinders that, where it is on)."""
    return info.st_uid == os.geteuid() and info.st_nlink == 1


def _is_ours(place: str, mark: str) -> bool:
    if os.path.islink(place) or not os.path.isfile(place):
        return False
    with open(place, encoding="utf-8", errors="replace") as file:
        return file.read(len(mark)) == mark


def _replace(folder: int, name: str, text: str, mode: int) -> None:
    draft = f".{name[:40]}.{os.urandom(6).hex()}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE, dir_fd=folder)
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    with contextlib.suppress(OSError):
        sync_folder(f"/proc/self/fd/{folder}")


def _new(mode: int) -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mode & ~mask


def _into(folder: int, name: str, path: str, text: str) -> None:
    """Write into what is not a regular file: of others than us and root only where nobody but they could have laid it there."""
    try:
        handle = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise CannotWrite(f"{path}: no program reads from it", "start what reads from the FIFO first") from None
        raise
    try:
        info = os.fstat(handle)
        if not (stat.S_ISFIFO(info.st_mode) or stat.S_ISCHR(info.st_mode)):
            raise CannotWrite(f"{path}: is neither a file nor a FIFO", "name a file")
        owned_by = owner(handle, os.path.abspath(path))
        if owned_by not in system_users() | {os.geteuid()} and os.fstat(folder).st_mode & _NO_MORE_FOR_OTHERS:
            seen = f"{path}: belongs to user {user_name(owned_by)}, in a directory that others may write to"
            raise CannotWrite(seen, "name a file that is not there yet")
        _pour(handle, path, text)
    finally:
        os.close(handle)


def _into_stream(path: str, number: int, text: str) -> None:
    """Write into a stream that we were started with: opened once more it could be another one (a FIFO), or none (a socket)."""
    handle = os.dup(number)
    try:
        _pour(handle, path, text)
    finally:
        os.close(handle)


def _pour(handle: int, path: str, text: str) -> None:
    left = memoryview(text.encode("utf-8", "surrogateescape"))
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    while left:
        if not poll.poll(_TIMEOUT_MS):
            raise CannotWrite(f"{path}: its reader takes nothing", "write to a file")
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(handle, left[:4096]) :]


def sync_folder(folder: str) -> None:
    """Make the names in a directory durable: a rename survives a power cut only once its directory is on the disk (fsync(2), NOTES).

    A directory that is gone has none, and some file systems (CIFS, 9p) do not know the call for directories. Raises OSError.
    """
    try:
        handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def _emptied(path: str) -> int:
    """Open a file of our own to write to, empty; one of another user's, or with a second name, makes way for it: its owner may have it open, or the name
    be laid there by somebody else."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with place_of(path) as (folder, name):
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(there.st_mode):
                raise CannotWrite(f"{path}: is not a regular file", "name another file with --save")
            if _is_ours_alone(there):
                handle = os.open(name, flags, dir_fd=folder)
                if _is_ours_alone(os.fstat(handle)):
                    os.ftruncate(handle, 0)
                    os.fchmod(handle, there.st_mode & 0o777 & ~_NO_MORE_FOR_OTHERS)
                    return handle
                os.close(handle)
            os.unlink(name, dir_fd=folder)
        return os.open(name, flags | os.O_CREAT | os.O_EXCL, PRIVATE if os.geteuid() == 0 else READABLE, dir_fd=folder)


@contextlib.contextmanager
def growing_file(path: str | None) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Provide a file that text is added to, each piece with one write, so that all that came is there whatever happens next; and what adds it.

    Without a ``path`` it is a file of nobody's that is gone afterwards. Raises CannotWrite.
    """
    shown = path or "a temporary file"
    try:
        handle = _emptied(path) if path else os.memfd_create("answers", os.MFD_CLOEXEC)
    except OSError as error:
        raise CannotWrite.because(error, shown, "name another file with --save") from None

    def put(text: str) -> None:
        left = memoryview(text.encode("utf-8", "surrogateescape"))
        try:
            while left:
                left = left[os.write(handle, left) :]
        except OSError as error:
            raise CannotWrite.because(error, shown, "name a file with --save where there is room") from None

    try:
        yield path or f"/proc/self/fd/{handle}", put
    finally:
        os.close(handle)
