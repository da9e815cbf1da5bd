"""The members of a tar archive, by name. An own reader: tarfile takes half a second for a recorded /sys of 16,000 files, this a tenth.

Formats: POSIX.1-1988 ustar and POSIX.1-2001 pax (IEEE Std 1003.1-2017, pax), and GNU's long names, long sizes and old sparse
files (the GNU tar manual, appendix "Tar Internals").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import msgspec

from torchtune_sys.host.base import TEXT_LIMIT
from torchtune_sys.host.input.reading import COMPRESSED, ZIP

BLOCK = 512
_LENGTH = re.compile(rb"([0-9]{1,9}) ")
"""Of a record in a pax header, itself included."""
_USED = (b"path", b"linkpath")
"""Of a pax header's records. One may hold half a million others, and each member would take them along."""


class ArchiveReader(Protocol):
    """What an archive is read from, once, from its start on."""

    def read(self, size: int, /) -> bytes: ...
    def skip(self, size: int, /) -> bool: ...


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """``file``, ``dir``, ``link``, ``hard`` (link), ``char``, ``block`` or ``other``."""
    mode: int
    uid: int
    gid: int
    size: int
    target: str = ""
    """Of a link or hard link."""
    special: str = ""
    """``major:minor`` of a device node."""
    content: bytes | None = b""
    """Of a file; None where it is longer than ``TEXT_LIMIT``."""


_KINDS = {"0": "file", "\0": "file", "7": "file", "S": "file", "1": "hard", "2": "link", "3": "char", "4": "block", "5": "dir"}


def is_tar(head: bytes) -> bool:
    """Return whether a tar header begins here: its checksum is right."""
    return len(head) >= BLOCK and any(head[:BLOCK]) and _checksum_holds(head[:BLOCK])


def members(source: ArchiveReader) -> Iterator[ArchiveMember]:
    """Yield every member, in the archive's order. Raises ValueError where the archive is damaged or ends too early."""
    at = 0
    for_all: dict[str, str] = {}
    for_next: dict[str, str] = {}
    while head := _head(source, at):
        content, size, length = _content(source, head, at)
        at += length
        match kind := chr(head[156]):
            case "L" | "K":
                for_next["path" if kind == "L" else "linkpath"] = _string(content or b"")
            case "x" | "X":
                for_next.update(_pax(content or b""))
            case "g":
                for_all.update(_pax(content or b""))
            case _:
                yield _member(head, kind, content, size, {**for_all, **for_next} if for_all or for_next else for_next)
                for_next = {}


def _head(source: ArchiveReader, at: int) -> bytes:
    """Return the next header; empty at the end mark."""
    head = source.read(BLOCK)
    if not any(head):
        if not head:
            raise ValueError(f"it ends at byte {at} without an end mark")
        return b""
    if len(head) < BLOCK or not _checksum_holds(head):
        raise ValueError(f"no tar header at byte {at}")
    return head


def _content(source: ArchiveReader, head: bytes, at: int) -> tuple[bytes | None, int, int]:
    """Return what follows a header (None where it is too much to keep), how many bytes it says that this is, and how many the member takes."""
    size = _number(head[124:136])
    more = head[482:483] == b"\x01"
    passed = BLOCK
    while chr(head[156]) == "S" and more:  # more of the sparse map
        block = source.read(BLOCK)
        more = block[504:505] == b"\x01"
        passed += BLOCK
    padded = (size + BLOCK - 1) // BLOCK * BLOCK
    content = source.read(padded) if 0 <= size <= TEXT_LIMIT else None
    if size < 0 or (len(content) < size if content is not None else not source.skip(padded)):
        raise ValueError(f"it ends inside the member at byte {at}")
    return content if content is None else content[:size], size, passed + padded


def _member(head: bytes, kind: str, content: bytes | None, size: int, extra: dict[str, str]) -> ArchiveMember:
    name = _string(head[:100])
    prefix = _string(head[345:500]) if head[257:263] == b"ustar\0" else ""
    name = extra.get("path") or (f"{prefix}/{name}" if prefix else name)
    what = _KINDS.get(kind, "other")
    if what == "file" and name.endswith("/"):  # how tar wrote directories before 1988
        what = "dir"
    return ArchiveMember(
        name=name,
        kind=what,
        mode=_number(head[100:108]) & 0o7777,
        uid=max(_number(head[108:116]), 0),
        gid=max(_number(head[116:124]), 0),
        size=size if what == "file" else 0,
        target=extra.get("linkpath") or _string(head[157:257]) if what in ("link", "hard") else "",
        special=f"{_number(head[329:337])}:{_number(head[337:345])}" if what in ("char", "block") else "",
        content=content and _as_written(content) if what == "file" else b"",
    )


def _as_written(content: bytes) -> bytes:
    """Return a text without zeros at its end: sysfs claims 4096 bytes for each file, and tar fills up what could not be read. Of what is packed
    they may be a part: of a zip's last record, of gzip's length, of a tar's end mark."""
    return content if is_tar(content) or content.startswith((ZIP, *COMPRESSED)) else content.rstrip(b"\0")


def _checksum_holds(head: bytes) -> bool:
    try:
        wanted = int(head[148:156].rstrip(b" \0"), 8)
    except ValueError:
        return False
    return wanted == sum(head) - sum(head[148:156]) + 8 * 32


def _number(field: bytes) -> int:
    """Return an octal number, or GNU's base 256 where the first bit is set; -1 for anything else."""
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return -1


def _string(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _pax(data: bytes) -> dict[str, str]:
    """Return the records ``"length key=value\\n"`` of a pax header that are used, up to the first that is none.

    >>> _pax(b"19 path=sys/class/x\\n"[:-1] + b"\\n")
    {}
    >>> _pax(b"20 path=sys/class/x\\n")
    {'path': 'sys/class/x'}
    """
    found: dict[str, str] = {}
    at = 0
    while head := _LENGTH.match(data, at):
        end = at + int(head[1])
        if not head.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            break
        key, equals, value = data[head.end() : end - 1].partition(b"=")
        if not equals:
            break
        if key in _USED:
            found[key.decode()] = value.decode("utf-8", "replace")
        at = end
    return found
