"""What lsblk, findmnt, df, mount and the mount table print, read into devices and mounts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from torchtune_sys.formats.mounts import parse_mountinfo, unescape

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 4096
"""Devices and mounts that are taken; a busy Kubernetes node has a thousand mounts."""
_DEPTH = 32


class LsblkDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One line of lsblk; a device that several others carry is told once below each."""

    name: str
    """Without ``/dev/`` and ``mapper/``."""
    parent: str
    cells: dict[str, str]
    """The columns that have a value, by their names in lower case."""
    points: tuple[str, ...]


class PastedMount(msgspec.Struct, frozen=True, kw_only=True):
    point: str
    source: str = ""
    filesystem: str = ""
    options: tuple[str, ...] | None = None
    size: int | None = None
    free: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None


class Paste(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[LsblkDevice, ...]
    mounts: tuple[PastedMount, ...]
    whole: bool
    """Whether the mounts of network file systems would be among them: lsblk shows those of block devices only."""


def read_paste(text: str) -> Paste | None:
    """Return the devices and mounts that the text lists; None where the text has nothing of the kind."""
    rows, mounts = [], []
    for document in _documents(text):
        rows += list(_tree(document.get("blockdevices"), "", 0))
        mounts += list(_found(document.get("filesystems"), 0))
    lines = text.split("\n")
    rows += list(_pairs(lines)) + list(_table(lines))
    mounts += list(_findmnt(lines)) + list(_df(lines)) + list(_mounted(text))
    table = [
        PastedMount(point=line.point, source=line.source, filesystem=line.filesystem, options=line.options)
        for line in (parse_mountinfo(text) if " - " in text else ())
    ]
    whole = bool(table) or len(mounts) > 2
    if not rows and not mounts and not table:
        return None
    return Paste(devices=tuple(rows[:_MOST]), mounts=tuple((table + mounts)[:_MOST]), whole=whole)


def plain(name: str) -> str:
    """Return the kernel's or device mapper's own name, without a subvolume or bind-mounted folder behind it.

    >>> plain("/dev/mapper/vg-data[/kubelet]"), plain("/dev/sda1")
    ('vg-data', 'sda1')
    """
    return name.partition("[")[0].removeprefix("/dev/").removeprefix("mapper/")


def size_of(cell: str, unit: int = 1) -> int | None:
    """Return the bytes of a size as util-linux and df -h write it: powers of 1024, one decimal, in some locales behind a comma.

    >>> size_of("1.5T"), size_of("894,3G"), size_of("512"), size_of("-")
    (1649267441664, 960247313203, 512, None)
    """
    found = re.fullmatch(r"(\d{1,20})(?:[.,](\d{1,3}))?([BKMGTPE]?)(?:i?B)?", cell.strip())
    if found is None:
        return None
    factor = unit if not found[3] else 1024 ** "BKMGTPE".index(found[3])
    return int(float(f"{found[1]}.{found[2] or 0}") * factor) if found[2] or found[3] else int(found[1]) * factor


def _documents(text: str) -> Iterator[dict[str, object]]:
    from json import JSONDecoder

    decoder, place, tried = JSONDecoder(), 0, 0
    for start in re.finditer(r'\{\s{0,40}"(?:blockdevices|filesystems)"\s{0,8}:', text):
        if start.start() < place or tried >= _TRIED:
            continue
        tried += 1
        try:
            found, place = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


_TRIED = 16
"""Places where a document may begin; each is read to its end."""


def _cells(entry: dict[str, object]) -> dict[str, str]:
    """Return the texts, numbers and truths among the values; old versions write each as a text."""
    cells = {}
    for key, value in entry.items():
        if isinstance(value, bool):
            cells[str(key).lower()] = str(int(value))
        elif isinstance(value, (str, int)) and str(value).strip():
            cells[str(key).lower()] = str(value).strip()
    return cells


def _tree(entries: object, parent: str, depth: int) -> Iterator[LsblkDevice]:
    for entry in entries if isinstance(entries, list) and depth < _DEPTH else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        name, several = plain(entry["name"]), entry.get("mountpoints")
        points = [*(several if isinstance(several, list) else ()), entry.get("mountpoint")]
        yield LsblkDevice(
            name=name,
            parent=parent or plain(str(entry.get("pkname") or "")),
            cells=_cells(entry),
            points=tuple(point for point in points if isinstance(point, str)),
        )
        yield from _tree(entry.get("children"), name, depth + 1)


def _found(entries: object, depth: int) -> Iterator[PastedMount]:
    for entry in entries if isinstance(entries, list) and depth < _DEPTH else ():
        if isinstance(entry, dict):
            cells = _cells(entry)
            if cells.get("target", "").startswith("/"):
                yield _mount(cells)
            yield from _found(entry.get("children"), depth + 1)


def _mount(cells: dict[str, str]) -> PastedMount:
    return PastedMount(
        point=cells["target"],
        source=cells.get("source", ""),
        filesystem=cells.get("fstype", ""),
        options=tuple(cells["options"].split(",")) if "options" in cells else None,
        size=size_of(cells.get("size", "")),
        free=size_of(cells.get("avail", "")),
    )


def _pairs(lines: list[str]) -> Iterator[LsblkDevice]:
    """lsblk -P."""
    for line in lines:
        if 'NAME="' in line[:200]:
            cells = {key.lower(): value.strip() for key, value in re.findall(r'([A-Z][A-Z%:_-]{1,20})="([^"]{0,400})"', line)}
            cells = {key: value for key, value in cells.items() if value}
            if "name" in cells:
                points = tuple(cells.get("mountpoints", cells.get("mountpoint", "")).split("\\x0a"))
                yield LsblkDevice(name=plain(cells["name"]), parent=plain(cells.get("pkname", "")), cells=cells, points=points)


_BRANCHES = " │├└─|`-"
_COLUMNS = frozenset(("SIZE", "TYPE", "MOUNTPOINT", "MOUNTPOINTS", "ROTA", "MODEL", "FSTYPE", "TRAN", "MAJ:MIN"))


def _table(lines: list[str]) -> Iterator[LsblkDevice]:
    """lsblk's own table: a tree of names, and columns in which values may lack."""
    heads: list[tuple[str, int, int]] = []
    above: list[str] = []
    for line in lines:
        if not heads and "NAME" not in line:
            continue
        words = [(found[0], found.start(), found.end()) for found in re.finditer(r"\S+", line[:2000])]
        names = {word for word, _, _ in words}
        if words and words[0][0] == "NAME" and names & _COLUMNS and "KERNEL" not in names:
            heads, above = words, []
        elif heads and words:
            yield from _row(line, words, heads, above)
        else:
            heads = []


def _row(
    line: str, words: list[tuple[str, int, int]], heads: list[tuple[str, int, int]], above: list[str]
) -> Iterator[LsblkDevice]:
    """One device; or, on a line without a name, one more place where the device above is mounted."""
    indent = len(line) - len(line.lstrip(_BRANCHES))
    name = line[indent : indent + 200].split(" ")[0].split("\t")[0]
    point_at = next((start for head, start, _ in heads if head.startswith("MOUNTPOINT")), len(line))
    if (indent >= point_at or name.startswith("[")) and above and not name.startswith("sd"):
        yield LsblkDevice(name=above[-1], parent="", cells={}, points=(line[indent:].strip(),))
        return
    depth = (indent - heads[0][1]) // 2
    if not name or depth > len(above) or depth < 0:
        return
    parts: dict[str, list[str]] = {}
    for word, start, end in words:
        if end > indent + len(name):
            parts.setdefault(_column(start, end, heads), []).append(word)
    cells = {head.lower(): " ".join(found) for head, found in parts.items() if head != "NAME"}
    above[depth:] = [plain(name)]
    parent = above[depth - 1] if depth else plain(cells.get("pkname", ""))
    point = cells.get("mountpoints", cells.get("mountpoint", ""))
    yield LsblkDevice(name=plain(name), parent=parent, cells={"name": name, **cells}, points=(point,))


def _column(start: int, end: int, heads: list[tuple[str, int, int]]) -> str:
    """Return the column whose title stands over the word, or else the last one to the left."""
    for head, first, last in heads[1:]:
        if start < last and first < end:
            return head
    return next((head for head, first, _ in reversed(heads) if first <= start), heads[0][0])


def _findmnt(lines: list[str]) -> Iterator[PastedMount]:
    titles: list[str] = []
    for line in lines:
        words = line.lstrip(_BRANCHES).split()
        if words[:1] == ["TARGET"] and len(words) > 2 and all(word.isupper() or "%" in word for word in words):
            titles = [word.lower() for word in words]
        elif titles and len(words) == len(titles) and words[0].startswith("/"):
            yield _mount(dict(zip(titles, words, strict=True)))
        elif not words:
            titles = []


_MOUNTED = re.compile(
    r"^(\S{1,200}) on (/\S{0,300}) type (\w[\w.-]{0,40}) \(((?:rw|ro)[^()\n]{0,400})\)$"
    r"|^(\S{1,200}) (/\S{0,300}) (\w[\w.-]{0,40}) ((?:rw|ro)(?:,[^\s]{1,400})?) \d \d$",
    re.MULTILINE,
)
"""What ``mount`` prints, and /proc/mounts."""


def _mounted(text: str) -> Iterator[PastedMount]:
    for found in _MOUNTED.finditer(text) if " type " in text or " 0 0" in text else ():
        source, point, kind, options = (cell for cell in found.groups() if cell is not None)
        yield PastedMount(point=unescape(point), source=source, filesystem=kind, options=tuple(options.split(",")))


def _df(lines: list[str]) -> Iterator[PastedMount]:
    """df with or without -h, -k, -m, -T and -i. A long source stands on a line of its own in old versions."""
    read: Callable[[str], PastedMount | None] | None = None
    for line in lines:
        if line.startswith("Filesystem") and "Mounted on" in line:
            read = _df_row(line)
        elif read is not None and (found := read(line)) is not None:
            yield found
        elif not line.strip():
            read = None


def _df_row(title: str) -> Callable[[str], PastedMount | None]:
    block = re.search(r"\b(\d{1,7})([KMG]?)B?-blocks", title)
    unit = 1 if block is None else int(block[1]) * 1024 ** " KMG".index(block[2] or " ")
    kind = r"(?P<kind>\S+)\s+" if re.search(r"\bType\b", title) else ""
    counts = "Inodes" in title or "IUsed" in title  # df -i
    pattern = re.compile(
        rf"(?P<source>\S.{{0,300}}?)\s+{kind}(?P<size>[\d.,]+[KMGTPE]?i?)\s+[\d.,]+[KMGTPE]?i?\s+(?P<free>[\d.,]+[KMGTPE]?i?)"
        r"\s+(?:\d+%|-)\s+(?P<point>/.*?)\s*"
    )

    def read(line: str) -> PastedMount | None:
        found = pattern.fullmatch(line[:1000])
        if found is None:
            return None
        whole, left = (size_of(found[name].removesuffix("i"), unit) for name in ("size", "free"))
        mount = PastedMount(point=found["point"], source=found["source"], filesystem=found["kind"] if kind else "")
        return (
            msgspec.structs.replace(mount, inodes=whole, inodes_free=left)
            if counts
            else msgspec.structs.replace(mount, size=whole, free=left)
        )

    return read
