"""The bytes of what a user named with ``--from``: bounded in size and time, decompressed."""

from __future__ import annotations

import errno
import os
import select
import stat as modes
from typing import Any

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input.limits import FILE_LIMIT

PATIENCE_S = 30.0
"""How long a pipe may deliver nothing."""

_STRANGERS = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it first: zstd -d"),
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-zip archive", "unpack it first: 7z x"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it first: lz4 -d"),
    (b"LZIP", "compressed with lzip", "decompress it first: lzip -d"),
    (b"\x1f\x9d", "compressed with compress", "decompress it first: gzip -d"),
    (b"070701", "a cpio archive", "unpack it first: cpio -id"),
    (b"070707", "a cpio archive", "unpack it first: cpio -id"),
    (b"Rar!", "a RAR archive", "unpack it first: unrar x"),
    (b"hsqs", "a squashfs image", "unpack it first: unsquashfs"),
    (b"QFI\xfb", "a disk image", "mount it, and give the directory with --root"),
    (b"\x7fELF", "a program", ""),
    (b"\x89PNG", "a picture", "give the text, not a picture of it"),
    (b"\xff\xd8\xff", "a picture", "give the text, not a picture of it"),
    (b"%PDF", "a PDF document", "give the text itself"),
)


def read_input(path: str, patience_s: float = PATIENCE_S, *, plain: bool = False) -> bytes:
    """Everything in the file ``path`` (``-``: standard input), decompressed. ``plain``: only a regular file that is no link, since
    no person named it. Raises UnreadableInput."""
    data = _read(path, patience_s, plain)
    if (data[:4096].isspace() and not data.strip()) or not data:
        raise UnreadableInput(f"{_called(path)}: is empty", "check how it was made")
    for _ in range(2):  # an upload may have compressed the compressed file again
        data = _decompressed(data, _called(path))
    for magic, what, todo in _STRANGERS:
        if data.startswith(magic):
            raise UnreadableInput(
                f"{_called(path)}: is {what}", todo or "give a recording, a tarball of /proc and /sys, or a report's text"
            )
    return data


def _called(path: str) -> str:
    return "standard input" if path == "-" else path


def _read(path: str, patience_s: float, plain: bool) -> bytes:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (os.O_NOFOLLOW if plain else 0)
    try:
        handle = os.dup(0) if path == "-" and not plain else os.open(path, flags)
    except OSError as error:
        if plain and error.errno == errno.ELOOP:
            raise UnreadableInput(f"{path}: is a symbolic link", "put the file itself there") from None
        raise _unreadable(path, error) from None
    try:
        kind = os.fstat(handle).st_mode
        if plain and not modes.S_ISREG(kind):
            raise UnreadableInput(f"{path}: is no regular file", "give a file")
        if modes.S_ISBLK(kind) or (modes.S_ISCHR(kind) and path != "-" and not os.isatty(handle)):
            raise UnreadableInput(f"{path}: is a device", "give a file")
        return _read_all(handle, path, patience_s, waits=not modes.S_ISREG(kind))
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(handle)


def _unreadable(path: str, error: OSError) -> UnreadableInput:
    todo = {
        errno.ENOENT: "check the path",
        errno.EACCES: "run as a user who may read it",
        errno.EBADF: "standard input is closed; name a file",
    }.get(error.errno or 0, "")
    return UnreadableInput(f"{_called(path)}: {error.strerror}", todo)


def _read_all(handle: int, path: str, patience_s: float, *, waits: bool) -> bytes:
    parts: list[bytes] = []
    size = 0
    patient = os.isatty(handle)  # a person is pasting
    while True:
        if waits and not patient:
            _wait(handle, path, patience_s)
        try:
            part = os.read(handle, 1 << 20)
        except BlockingIOError:
            _wait(handle, path, patience_s)  # also of a regular file: /proc/kmsg has nothing to say for the moment
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > FILE_LIMIT:
            raise UnreadableInput(
                f"{_called(path)}: is larger than {FILE_LIMIT >> 20} MiB", "give a recording of /proc and /sys only"
            )


def _wait(handle: int, path: str, patience_s: float) -> None:
    """A FIFO without a writer is not at its end but never becomes readable (poll(2), POLLHUP only after the last writer left)."""
    poll = select.poll()
    poll.register(handle, select.POLLIN | select.POLLHUP)
    if not poll.poll(patience_s * 1000):
        raise UnreadableInput(f"{_called(path)}: delivered nothing for {patience_s:g} s", "check the program that writes to it")


def _decompressed(data: bytes, name: str) -> bytes:
    import io

    source = io.BytesIO(data)
    if data.startswith(b"\x1f\x8b"):
        import gzip

        return _bounded(gzip.GzipFile(fileobj=source), "gzip", name)
    if data.startswith(b"BZh"):
        import bz2

        return _bounded(bz2.BZ2File(source), "bzip2", name)
    if data.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        import lzma

        return _bounded(lzma.LZMAFile(source), "xz", name)
    return data


def _bounded(stream: Any, kind: str, name: str) -> bytes:
    import zlib

    try:
        from lzma import LZMAError
    except ImportError:  # a Python built without liblzma
        LZMAError = zlib.error  # type: ignore[assignment,misc]
    parts: list[bytes] = []
    size = 0
    try:
        while part := stream.read(1 << 20):
            parts.append(part)
            size += len(part)
            if size > FILE_LIMIT:
                raise UnreadableInput(
                    f"{name}: unpacks to more than {FILE_LIMIT >> 20} MiB", "give a recording of /proc and /sys only"
                )
    except (EOFError, OSError, zlib.error, LZMAError) as error:
        raise UnreadableInput(f"{name}: the {kind} data are damaged or cut off: {error}", "copy it again") from None
    return b"".join(parts)
