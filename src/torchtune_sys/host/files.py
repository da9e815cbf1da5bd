"""Files that the tool itself writes: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Mapping

from torchtune_sys.errors import CannotWrite


def write_atomically(path: str, text: str) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old file or the whole new one, never a part.

    A device, FIFO or socket (``/dev/stdout``) is written to as it is, since it cannot be renamed over. An existing file
    keeps its permission bits; a new one gets 0644 as far as the umask allows. Raises CannotWrite; then nothing is left behind.
    """
    if not path:
        raise CannotWrite("the name of the output file is empty", "name a file")
    try:
        target = os.path.realpath(path)  # a symbolic link stays one: what it points to is replaced
        if os.path.exists(target) and not os.path.isfile(target):
            if os.path.isdir(target):
                raise CannotWrite(f"{path}: is a directory", "name a file in it")
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)
            return
        _replace(target, text)
    except OSError as error:
        raise CannotWrite.because(error, path, "write somewhere else or make room") from None


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
                    f"{place}: is there already, and not made by torchtune-sys", "move it away, or choose another folder"
                )
        for place in places:
            os.makedirs(os.path.dirname(place), exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CannotWrite(f"{error.filename or folder}: is no folder", "name a folder, or one that is not there yet") from None
    except OSError as error:
        raise CannotWrite.because(error, error.filename or folder, "write somewhere else or make room") from None
    for place, text in places.items():
        write_atomically(place, text)


def write_in_new_folder(path: str, text: str) -> None:
    """As :func:`write_atomically`, making the folders that lead there. Raises CannotWrite."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise CannotWrite.because(error, path, "make room, or a folder that can be written") from None
    write_atomically(path, text)


def _is_ours(place: str, mark: str) -> bool:
    if os.path.islink(place) or not os.path.isfile(place):
        return False
    with open(place, encoding="utf-8", errors="replace") as file:
        return file.read(len(mark)) == mark


def _replace(target: str, text: str) -> None:
    folder, name = os.path.split(target)
    handle, draft = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder or ".")
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), _mode(target))
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    with contextlib.suppress(OSError):
        sync_folder(folder)


def _mode(target: str) -> int:
    try:
        return os.stat(target).st_mode & 0o777
    except OSError:
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o644 & ~mask


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
