"""Parse what the dynamic loader reads: a shared object's dynamic section, and the cache of libraries. Bytes in, values out."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

Read = Callable[[int, int], bytes]
"""(offset, size) → the bytes there, fewer at the end of the file."""


class Elf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The loader's part of an ELF file's dynamic section."""

    kind: str
    """Class and machine, which both must be the process's own: ``64:62`` is x86_64, ``64:183`` aarch64."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    """DT_NEEDED in the file's order."""
    rpath: str = ""
    """DT_RPATH; ``""`` where a DT_RUNPATH overrules it (ld.so(8))."""
    runpath: str = ""
    no_default: bool = False
    """DF_1_NODEFLIB: neither the cache nor the default directories are searched for what it needs."""


_PT_LOAD, _PT_DYNAMIC = 1, 2
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH, _FLAGS_1 = 1, 5, 14, 15, 29, 0x6FFFFFFB
_NODEFLIB = 0x800
_STRING = 4096
"""Bytes; no path that the kernel takes is longer. A list of directories in DT_RPATH may be, so it is read on."""
_MOST = 1 << 16
"""Bytes of a program header table or dynamic section; real ones have less than 2 KB."""


def parse_elf(read: Read) -> Elf:
    """Read by little pieces: a library of 2 GB costs a few kilobytes. Raises ValueError for what is not a dynamic ELF file."""
    head = read(0, 4096)
    if head[:4] != b"\x7fELF" or head[4:5] not in (b"\x01", b"\x02") or head[5:6] not in (b"\x01", b"\x02"):
        raise ValueError("not an ELF file")
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    try:
        machine = struct.unpack_from(order + "H", head, 18)[0]
        table, size, count = (
            struct.unpack_from(order + "Q14xHH", head, 32) if wide else struct.unpack_from(order + "I10xHH", head, 28)
        )
        segments = _segments(read, head, table, size, count, order, wide)
        dynamic = next(((offset, length) for kind, offset, _, length in segments if kind == _PT_DYNAMIC), None)
        kind = f"{64 if wide else 32}:{machine}"
        if dynamic is None:
            return Elf(kind=kind)
        tags = list(struct.iter_unpack(order + ("qQ" if wide else "iI"), _whole(read, *dynamic, 16 if wide else 8)))
    except struct.error as error:
        raise ValueError(f"a broken ELF file: {error}") from None
    return _of_tags(kind, tags, [segment[1:] for segment in segments if segment[0] == _PT_LOAD], read)


def least_size(head: bytes) -> int:
    """Return how long a file must be, by the table of sections that linkers write at its end; 0 where its start (4 KB) is not an ELF file's or tells
    nothing. An empty file, and one whose start is zeros (a disk that was full), must have a byte more than it has.

    >>> header = b"\\x7fELF\\x02\\x01\\x01" + bytes(33) + (1000).to_bytes(8, "little") + bytes(10) + (64).to_bytes(2, "little") + b"\\x05\\0\\0\\0"
    >>> least_size(header), least_size(b"INPUT(libc.so.6)"), least_size(b"")
    (1320, 0, 1)
    """
    if not head.strip(b"\0"):
        return len(head) + 1 if len(head) < 4096 else 1 << 62
    if head[:4] != b"\x7fELF" or len(head) < 64 or head[4:5] not in (b"\x01", b"\x02") or head[5:6] not in (b"\x01", b"\x02"):
        return 0
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    table, size, count = (
        struct.unpack_from(order + "Q10xHH", head, 40) if wide else struct.unpack_from(order + "I10xHH", head, 32)
    )
    return int(table + size * count) if table else 0


def _segments(
    read: Read, head: bytes, table: int, size: int, count: int, order: str, wide: bool
) -> list[tuple[int, int, int, int]]:
    """(type, offset, virtual address, size in the file) of each."""
    if size < (56 if wide else 32) or size * count > _MOST:
        raise ValueError("a broken ELF file: its program headers")
    data = head[table : table + size * count] if table + size * count <= len(head) else read(table, size * count)
    form = struct.Struct(order + ("I4xQQ8xQ" if wide else "IIIxxxxI"))
    return [form.unpack_from(data, start) for start in range(0, len(data) - form.size + 1, size)]


def _whole(read: Read, offset: int, length: int, entry: int) -> bytes:
    if length > _MOST:
        raise ValueError("a broken ELF file: its dynamic section")
    data = read(offset, length)
    return data[: len(data) // entry * entry]


def _of_tags(kind: str, tags: list[tuple[int, int]], loads: list[tuple[int, int, int]], read: Read) -> Elf:
    end = next((place for place, (tag, _) in enumerate(tags) if tag == 0), len(tags))
    tags = tags[:end]
    found = dict(tags)
    wanted = [value for tag, value in tags if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH)]
    address = found.get(_STRTAB, 0)
    start = next((offset + address - place for offset, place, length in loads if place <= address < place + length), None)
    if not wanted or start is None:
        return Elf(kind=kind)
    text = _strings(read, start, wanted)
    runpath = text[found[_RUNPATH]] if _RUNPATH in found else ""
    return Elf(
        kind=kind,
        soname=text[found[_SONAME]] if _SONAME in found else "",
        needed=tuple(text[value] for tag, value in tags if tag == _NEEDED)[:1000],
        rpath=text[found[_RPATH]] if _RPATH in found and _RUNPATH not in found else "",
        runpath=runpath,
        no_default=bool(found.get(_FLAGS_1, 0) & _NODEFLIB),
    )


def _strings(read: Read, start: int, offsets: list[int]) -> dict[int, str]:
    """patchelf moves some of the strings to the end of a table of many megabytes: one piece for each cluster."""
    found: dict[int, str] = {}
    piece, begin = b"", 0
    for offset in sorted(set(offsets)):
        end = piece.find(b"\0", offset - begin) if piece else -1
        if end < 0:
            piece, begin = read(start + offset, _STRING), offset
            end = piece.find(b"\0")
        if end < 0:
            piece = read(start + offset, _MOST)
            end = piece.find(b"\0")
        if end < 0:
            raise ValueError("a broken ELF file: its strings")
        found[offset] = piece[offset - begin : end].decode("utf-8", "replace")
    return found


class Cached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of ld.so.cache."""

    name: str
    path: str
    flags: int
    """What ``ldconfig -p`` shows in brackets: 0x303 for x86-64, 0xa03 for AArch64 (sysdeps/generic/ldconfig.h of glibc)."""
    level: str = ""
    """The subdirectory of glibc-hwcaps it comes from (``x86-64-v3``)."""


_CACHE = b"glibc-ld.so.cache1.1"
_ENTRY = "iIIIQ"
_EXTENSION_MAGIC, _HWCAPS_TAG = 0xEAA42174, 1
_HWCAP_EXTENSION = 1 << 62


def parse_cache(data: bytes, prefixes: tuple[str, ...]) -> tuple[Cached, ...]:
    """Return the entries whose names begin so, in the file's order, which is the loader's. Raises ValueError.

    Layout: struct cache_file_new in sysdeps/generic/dl-cache.h of glibc. Older glibcs put the same behind a table in the format
    of libc5. Entries for the hardware capabilities of before glibc 2.33 are left out.
    """
    import sys

    base = data.find(_CACHE)
    if base < 0 or len(data) < base + 48:
        raise ValueError("not glibc's cache")
    # one byte says the order (2 little, 3 big); 0 in caches from before glibc 2.33
    order = {2: "<", 3: ">"}.get(data[base + 28] & 3, "<" if sys.byteorder == "little" else ">")
    count, _, extension = struct.unpack_from(order + "II4xI", data, base + 20)
    form = struct.Struct(order + _ENTRY)
    table = data[base + 48 : base + 48 + min(count, 1 << 18) * form.size]
    levels = _levels(data, base, extension, order)
    starts = tuple(prefix.encode() for prefix in prefixes)
    found = []
    for flags, key, value, _, hwcap in form.iter_unpack(table[: len(table) // form.size * form.size]):
        if not data.startswith(starts, base + key) or (hwcap and not hwcap & _HWCAP_EXTENSION):
            continue
        level = levels.get(hwcap & 0xFFFFFFFF, "?") if hwcap else ""
        found.append(Cached(name=_string(data, base + key), path=_string(data, base + value), flags=flags, level=level))
    return tuple(found)


def _levels(data: bytes, base: int, extension: int, order: str) -> dict[int, str]:
    place = base + extension
    if not extension or len(data) < place + 8 or struct.unpack_from(order + "I", data, place)[0] != _EXTENSION_MAGIC:
        return {}
    count = min(struct.unpack_from(order + "I", data, place + 4)[0], 64)
    for section in struct.iter_unpack(order + "IIII", data[place + 8 : place + 8 + 16 * count].ljust(16 * count, b"\0")):
        tag, _, offset, size = section
        if tag == _HWCAPS_TAG:
            names = data[base + offset : base + offset + min(size, 4096) // 4 * 4]
            return {
                index: _string(data, base + start)
                for index, (start,) in enumerate(struct.iter_unpack(order + "I", names[: len(names) // 4 * 4]))
            }
    return {}


def _string(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + _STRING)
    return data[start : end if end >= 0 else start].decode("utf-8", "replace")
