"""The bytes of what a user named with ``--from``: bounded in size and time, decompressed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, cast

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host import trust
from torchtune_sys.host.input.limits import FILE_LIMIT, STREAM_LIMIT, TIMEOUT_S
from torchtune_sys.host.input.sparse import PlainFile
from torchtune_sys.host.regular import reopened

STANDARD_INPUT = "standard input"
PIECE = 1 << 20
"""Bytes that are read at once."""

_STRANGERS = (
    (
        b"\x28\xb5\x2f\xfd",
        "compressed with zstd, which this Python does not read",
        "decompress it first: zstd -d (or zstd -dc FILE | torchtune-sys diagnose); or pip install zstandard",
    ),
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


class Source:
    """Bytes from their start to their end, with a look ahead: what ``_decompressed`` and ``archive`` read from, a piece at a time."""

    def __init__(self, read: Callable[[int], bytes], name: str, grown: str, file: PlainFile | None = None) -> None:
        self.name = name
        self.grown = grown
        """What is said of too many bytes: that the file *is larger than* a limit, or *unpacks to more than* it."""
        self.size = 0
        """Bytes of a regular file that is read as it lies there; 0 where nobody knows."""
        self._read = read
        self._file = file
        """What is read, where parts of it can be passed over."""
        self._buffer = b""
        self._at = 0
        self._passed = 0
        self._ended = False

    def look(self, size: int) -> bytes:
        """Return the next bytes, which stay; fewer at the end."""
        self._fill(size)
        return self._buffer[self._at : self._at + size]

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end only."""
        found = self.look(size)
        self._at += len(found)
        return found

    def skip(self, size: int) -> bool:
        """Pass over so many bytes; False where it ends before them."""
        size -= len(self.read(min(size, len(self._buffer) - self._at)))
        if size > 0 and self._file is not None:
            size -= self._counted(self._file.pass_over(size))
        while size > 0:
            found = len(self.read(min(size, PIECE)))
            if not found:
                return False
            size -= found
        return True

    def written(self, size: int) -> bytes:
        """Return the next bytes but for holes, fewer than ``size`` also before one; none at the end only."""
        ahead = len(self._buffer) - self._at
        if self._file is None or ahead:
            return self.read(min(size, ahead) if ahead else size)
        self._counted(self._file.pass_hole())
        found = self._read(size)
        self._counted(len(found))
        return found

    def pass_zeros(self, piece: int) -> None:
        """Pass over the zeros that come next, as many as whole pieces hold; a hole at once."""
        zeros = bytes(piece)
        while self.look(piece) == zeros:
            self.skip(piece)
            ahead = self._buffer[self._at :]
            if self._file is not None and ahead == bytes(len(ahead)):
                self._at = len(self._buffer)
                self._counted(self._file.pass_hole())

    def rest(self, limit: int) -> bytes:
        """Return all that follows. Raises UnreadableInput where it is more than ``limit``."""
        parts = []
        size = 0
        while part := self.read(PIECE):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise self.too_much(limit)
        return b"".join(parts)

    def too_much(self, limit: int) -> UnreadableInput:
        return UnreadableInput(
            f"{self.name}: {self.grown} {limit >> 20} MiB",
            "give a recording of /proc and /sys only, or the part of the text that matters",
        )

    def _fill(self, size: int) -> None:
        lacks = size - (len(self._buffer) - self._at)
        if lacks <= 0 or self._ended:
            return
        parts = [self._buffer[self._at :]]
        while lacks > 0:
            part = self._read(PIECE)
            if not part:
                self._ended = True
                break
            parts.append(part)
            lacks -= self._counted(len(part))
        self._buffer = b"".join(parts)
        self._at = 0

    def _counted(self, size: int) -> int:
        """Count bytes that were read or passed over. Raises UnreadableInput where they are too many."""
        self._passed += size
        if self._passed > STREAM_LIMIT:
            raise self.too_much(STREAM_LIMIT)
        return size


@contextlib.contextmanager
def opened_input(path: str, timeout_s: float = TIMEOUT_S, *, plain: bool = False, strangers: bool = True) -> Iterator[Source]:
    """Provide what the file ``path`` (``-``: standard input) holds, decompressed. ``plain``: only a regular file that is no link, since
    no person named it. ``strangers``: refuse what no reader of one host's facts knows. Raises UnreadableInput, also while it is read."""
    handle = _handle(path, plain)
    try:
        info = os.fstat(handle)
        file = PlainFile(handle, info) if modes.S_ISREG(info.st_mode) and info.st_size else None  # of /proc none has a size
        source = Source(_pieces(handle, path, timeout_s, file), display_name(path), "is larger than", file)
        source.size = info.st_size  # of a pipe 0
        if not source.look(1):
            raise UnreadableInput(f"{source.name}: is empty", "check how it was made")
        source = decompressed(source)
        if strangers:
            refuse_strangers(source)
        yield source
    finally:
        os.close(handle)


def decompressed(source: Source) -> Source:
    """Return what it holds, twice unpacked at most: an upload may have compressed the compressed file again."""
    return _decompressed(_decompressed(source))


def refuse_strangers(source: Source) -> None:
    """Raise UnreadableInput where it is a form that nobody here reads."""
    head = source.look(512)
    for magic, what, todo in _STRANGERS:
        if head.startswith(magic):
            raise UnreadableInput(
                f"{source.name}: is {what}", todo or "give a recording, a tarball of /proc and /sys, or a report's text"
            )


def whole(source: Source) -> bytes:
    """Return all of it. Raises UnreadableInput where it is nothing, or too much."""
    data = source.rest(FILE_LIMIT)
    if not data or (data[:4096].isspace() and not data.strip()):
        raise UnreadableInput(f"{source.name}: is empty", "check how it was made")
    return data


def read_input(path: str, *, plain: bool = False) -> bytes:
    """Read as :func:`opened_input`, all at once."""
    with opened_input(path, plain=plain) as source:
        return whole(source)


def display_name(path: str) -> str:
    """Return what it is called where people read of it."""
    return STANDARD_INPUT if path == "-" else path


def _handle(path: str, plain: bool) -> int:
    try:
        if path == "-" and not plain:
            return _no_device(os.dup(0), path)
        held = os.open(path, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if plain else 0))
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        kind = os.fstat(held).st_mode
        if plain and modes.S_ISLNK(kind):
            raise UnreadableInput(f"{path}: is a symbolic link", "put the file itself there")
        if plain and not modes.S_ISREG(kind):
            raise UnreadableInput(f"{path}: is not a regular file", "give a file")
        if os.geteuid() == 0 and not modes.S_ISREG(kind):  # before it is opened, which may act
            refuse_lent(path, held)
        handle = _no_device(reopened(held, path), path)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(held)
    try:
        if os.geteuid() == 0:
            refuse_lent(path, handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _no_device(handle: int, path: str) -> int:
    kind = os.fstat(handle).st_mode
    if modes.S_ISBLK(kind) or (modes.S_ISCHR(kind) and path != "-" and not os.isatty(handle)):
        os.close(handle)
        raise UnreadableInput(f"{path}: is a device", "give a file")
    return handle


def refuse_lent(path: str, handle: int) -> None:
    """As root: what a user's link, or a second name for a file, leads to must be what that user may read, too; its lines would be told, or
    stand in a bundle for others. Raises UnreadableInput."""
    from torchtune_sys.host.live import may_read

    try:
        passed = trust.steps(os.path.abspath(path))
        real = os.readlink(f"/proc/self/fd/{handle}")
    except OSError as error:
        if error.errno == errno.EACCES:  # root may pass everywhere but where a user's program answers
            raise UnreadableInput(
                f"{error.filename or path}: {error.strerror}", "read it as that user, or copy the file"
            ) from None
        return
    system = trust.system_users()
    links = [info.st_uid for _, info in passed if modes.S_ISLNK(info.st_mode)]
    info = os.fstat(handle)
    one_name = info.st_nlink <= 1 or modes.S_ISDIR(info.st_mode)
    owners = links if one_name and real == _end_of(passed) else [info.st_uid for _, info in passed]
    for uid in owners:
        if uid not in system and not may_read(uid, handle):
            raise UnreadableInput(
                f"{path}: user {trust.user_name(uid)}, who owns this place, may not read what is there",
                "read it as that user, or give the file itself",
            )


def _end_of(passed: Sequence[tuple[str, os.stat_result]]) -> str:
    return next(place for place, info in reversed(passed) if not modes.S_ISLNK(info.st_mode))


def _unreadable(path: str, error: OSError) -> UnreadableInput:
    todo = {
        errno.ENOENT: "check the path" + ("; a message itself is read from standard input" if path.count(" ") > 1 else ""),
        errno.EACCES: "run as a user who may read it",
        errno.EBADF: "standard input is closed; name a file",
    }.get(error.errno or 0, "")
    return UnreadableInput(f"{display_name(path)}: {error.strerror}", todo)


def _pieces(handle: int, path: str, timeout_s: float, file: PlainFile | None) -> Callable[[int], bytes]:
    patient = os.isatty(handle)  # a person is pasting
    waits = not modes.S_ISREG(os.fstat(handle).st_mode) and not patient

    def read(size: int) -> bytes:
        try:
            if waits:
                _wait(handle, path, timeout_s)
            while True:
                try:
                    return os.read(handle, size) if file is None else file.read(size)
                except BlockingIOError:  # also of a regular file: /proc/kmsg has nothing to say for the moment
                    _wait(handle, path, timeout_s)
        except OSError as error:
            raise _unreadable(path, error) from None

    return read


def _wait(handle: int, path: str, timeout_s: float) -> None:
    """Wait for something to read: a FIFO without a writer is not at its end but never becomes readable (poll(2), POLLHUP only after the last writer left)."""
    poll = select.poll()
    poll.register(handle, select.POLLIN | select.POLLHUP)
    if not poll.poll(timeout_s * 1000):
        raise UnreadableInput(
            f"{display_name(path)}: delivered nothing for {timeout_s:g} s", "check the program that writes to it"
        )


class _ZerosPassed:
    """What GzipFile reads from: the zeros that may follow its data it reads one by one, without an end to this call (gzip(1): padding of tapes)."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        found = self._source.read(size)
        if found == b"\0" and self._source.look(_MANY_ZEROS) == bytes(_MANY_ZEROS):  # no header and no data go on with so many
            self._source.pass_zeros(PIECE)
            self._source.pass_zeros(_MANY_ZEROS)
        return found


_MANY_ZEROS = 4096


_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", (b"\xfd7zXZ\x00", b"\x5d\x00\x00"), b"\x28\xb5\x2f\xfd"
COMPRESSED = (_GZIP, _BZIP2, *_XZ, _ZSTD)
"""How compressed data begin."""
ZIP = b"PK\x03\x04"


def _decompressed(source: Source) -> Source:
    head = source.look(6)
    packed: Any = source  # the three ask for no more than read(size)
    stream: IO[bytes]
    if head.startswith(_GZIP):
        import gzip

        kind, stream = "gzip", cast("IO[bytes]", gzip.GzipFile(fileobj=cast("Any", _ZerosPassed(source))))
    elif head.startswith(_BZIP2):
        import bz2

        kind, stream = "bzip2", bz2.BZ2File(packed)
    elif head.startswith(_XZ):
        import lzma

        kind, stream = "xz", lzma.LZMAFile(packed)  # noqa: SIM115 - its source is closed by who opened it
    elif head.startswith(_ZSTD) and (opener := _zstd()) is not None:
        kind, stream = "zstd", opener(packed)
    else:
        return source
    return Source(_unpacked(stream, kind, source.name), source.name, "unpacks to more than")


_READERS_OF_ZSTD = ("compression.zstd", "backports.zstd", "zstandard")


def _zstd() -> Callable[[Any], IO[bytes]] | None:
    """Python's own reader (3.14), or a package that brings one; None where there is none."""
    import importlib

    for name in _READERS_OF_ZSTD[:2]:
        try:
            return cast("Callable[[Any], IO[bytes]]", importlib.import_module(name).ZstdFile)
        except ImportError:
            continue
    try:
        zstandard = importlib.import_module(_READERS_OF_ZSTD[2])
    except ImportError:
        return None
    return cast(
        "Callable[[Any], IO[bytes]]", lambda packed: zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    )


def damaged() -> tuple[type[Exception], ...]:
    """Return what decompressors raise."""
    import sys
    import zlib

    of_zstd = [module.ZstdError for name in _READERS_OF_ZSTD if (module := sys.modules.get(name)) is not None]
    try:
        from lzma import LZMAError
    except ImportError:  # a Python built without liblzma
        return EOFError, OSError, zlib.error, *of_zstd
    return EOFError, OSError, zlib.error, LZMAError, *of_zstd


def _unpacked(stream: IO[bytes], kind: str, name: str) -> Callable[[int], bytes]:
    damages = damaged()

    def read(size: int) -> bytes:
        try:
            return stream.read(size)
        except damages as error:
            raise UnreadableInput(f"{name}: the {kind} data are damaged or cut off: {error}", "copy it again") from None
        except MemoryError:  # 96 bytes of xz may ask for a window of 4 GiB: one block, which the kernel's limit refuses
            raise UnreadableInput(f"{name}: the {kind} data need more memory than is available", "unpack it first") from None

    return read
