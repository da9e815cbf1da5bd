"""Storage in pasted text: what carries the named paths, as far as lsblk, findmnt, df or the mount table tell."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

import msgspec

from torchtune_sys.evidence.block_devices import LsblkDevice, Paste, PastedMount, plain, read_paste, size_of
from torchtune_sys.formats.mounts import LOCAL, carrier, is_below
from torchtune_sys.model.disk_media import INSTANCE_STORE, classify, is_made_up
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import LISTED, Array, Disk, StorageFacts, StoragePath, nowhere
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_NAME = "report"
_NOTHING = Missing(Why.NOT_RECORDED, _NAME, "not in the report")
_MORE = "lsblk -o NAME,TYPE,SIZE,ROTA,TRAN,VENDOR,MODEL,FSTYPE,MOUNTPOINT -J"


def storage_facts(text: str, intent: Workload) -> StorageFacts | None:
    """Return the disks, and the places that ``intent`` names; without any, the root or what df was asked for, where its room is told."""
    paste = read_paste(text)
    if paste is None:
        return None
    look = _Look(paste)
    named = [(path, role) for paths, role in ((intent.data, "data"), (intent.checkpoints, "checkpoints")) for path in paths]
    places = tuple(look.place(posixpath.normpath(path), role) for path, role in named) or look.room_told()
    listed = (place for place in look.without_inodes() if all(place.mount_point != other.mount_point for other in places))
    return StorageFacts(places=(*places, *listed), disks=look.disks() if paste.devices else _NOTHING)


class _Look:
    def __init__(self, paste: Paste) -> None:
        self._paste = paste
        self._cells: dict[str, dict[str, str]] = {}
        self._parents: dict[str, dict[str, None]] = {}
        self._at: dict[str, str] = {}
        for device in paste.devices:
            self._cells.setdefault(device.name, {}).update(device.cells)
            parents = self._parents.setdefault(device.name, {})
            if device.parent and device.parent != device.name:
                parents[device.parent] = None
            self._points(device)
        self._mounts = self._merged()

    def _points(self, device: LsblkDevice) -> None:
        for point in device.points:
            if point.startswith("/"):
                self._at[point] = device.name

    def _merged(self) -> dict[str, PastedMount]:
        """Return the mounts by their points: what is mounted last on a point hides the earlier; several commands tell different things of one mount."""
        found: dict[str, PastedMount] = {}
        for mount in self._paste.mounts:
            before = found.get(mount.point)
            same = before is not None and plain(before.source) == plain(mount.source)
            found[mount.point] = _filled(mount, before) if same and before is not None else mount
        for point, name in self._at.items():
            found[point] = _filled(found.get(point) or PastedMount(point=point), self._from_lsblk(point, name))
        return found

    def _from_lsblk(self, point: str, name: str) -> PastedMount:
        cells = self._cells[name]
        return PastedMount(
            point=point,
            source=cells.get("name", name),
            filesystem=cells.get("fstype", ""),
            size=size_of(cells.get("fssize", "")),
            free=size_of(cells.get("fsavail", "")),
        )

    def place(self, path: str, role: str) -> StoragePath:
        points = [point for point in self._mounts if is_below(path, point)]
        point = max(points, key=len, default="")
        if not point or (point == "/" and path != "/" and not self._paste.whole):
            from shlex import quote

            why = f"no mount in the report contains {path}, and network mounts are not in it"
            return nowhere(path, role, Missing(Why.NOT_RECORDED, _NAME, why, f"findmnt -J --target {quote(path)}"))
        return self._describe(path, role, self._mounts[point])

    def without_inodes(self) -> Iterator[StoragePath]:
        """Yield the file systems in which no file can be made any more, though they have room: an image has neither room nor inodes."""
        for mount in self._mounts.values():
            if (
                mount.inodes
                and mount.inodes_free == 0
                and mount.free != 0
                and not _NO_STORE.match(f"{mount.source} {mount.point}")
            ):
                yield self._describe(mount.point, LISTED, mount)

    def room_told(self) -> tuple[StoragePath, ...]:
        """Return the root; without it, the only file system of the report: whoever ran df of one path shows it for that."""
        only = next(iter(self._mounts.values())) if len(self._mounts) == 1 else None
        mount = self._mounts.get("/", only if only is not None and not _NO_STORE.match(f"{only.source} {only.point}") else None)
        if mount is not None and (" " in mount.point or (mount.free == 0 and mount.size is not None and mount.size < _IMAGE)):
            return ()
        if mount is None or (None in (mount.size, mount.free) and None in (mount.inodes, mount.inodes_free)):
            return ()
        where = msgspec.structs.replace(self._describe(mount.point, "working directory", mount), layers=(), arrays=())
        return (msgspec.structs.replace(where, disks=_NOTHING, carrier=_NOTHING, network=_NOTHING),)

    def _describe(self, path: str, role: str, mount: PastedMount) -> StoragePath:
        on_device = mount.source.startswith("/dev/") or mount.point in self._at
        kind = carrier(mount.filesystem, mount.source) if mount.filesystem else "disk" if on_device else _by_source(mount.source)
        layers, disks, arrays = self._below(mount, kind)
        options = mount.options
        return StoragePath(
            path=path,
            role=role,
            real_path=path,
            exists=True if path == mount.point else _NOTHING,
            mount_point=mount.point,
            filesystem=mount.filesystem or _NOTHING,
            carrier=kind,
            mount_source=mount.source or _NOTHING,
            options=_NOTHING if options is None else options,
            network=kind if isinstance(kind, Missing) else kind not in LOCAL,
            layers=layers,
            disks=disks,
            arrays=arrays,
            read_ahead_kib=_NOTHING,
            size_bytes=_NOTHING if mount.size is None else mount.size,
            free_bytes=_NOTHING if mount.free is None else mount.free,
            inodes=_NOTHING if mount.inodes is None else mount.inodes,
            inodes_free=_NOTHING if mount.inodes_free is None else mount.inodes_free,
            readable=_NOTHING,
            writable=False if options is not None and "ro" in options else _NOTHING,
        )

    def _below(self, mount: PastedMount, kind: Fact[str]) -> tuple[tuple[str, ...], Fact[tuple[Disk, ...]], tuple[Array, ...]]:
        if isinstance(kind, Missing) or kind != "disk":
            why = kind if isinstance(kind, Missing) else Missing(Why.NOT_SUPPORTED, mount.source, f"{kind}: no disk of this host")
            return (), () if kind == "memory" else why, ()
        start = self._at.get(mount.point, plain(mount.source))
        way = self._way(start)
        ends = [name for name in way if not self._parents.get(name)]
        layers = tuple(self._layer(name) for name in way if name not in ends)
        arrays = tuple(
            Array(name=name, level=self._cells[name]["type"], degraded=_NOTHING)
            for name in way
            if self._cells.get(name, {}).get("type", "").startswith("raid") and name.startswith("md")
        )
        if all(self._cells.get(name, {}).get("type", "") == "disk" for name in ends):
            return layers, tuple(self._disk(name) for name in ends), arrays
        return layers, Missing(Why.NOT_RECORDED, _NAME, f"the disks below {start} are not in the report", _MORE), arrays

    def _way(self, start: str) -> list[str]:
        way, todo = {start: None}, [start]
        while todo:
            for parent in self._parents.get(todo.pop(0), {}):
                if parent not in way:
                    way[parent] = None
                    todo.append(parent)
        return list(way)

    def _layer(self, name: str) -> str:
        kind = self._cells.get(name, {}).get("type", "")
        return f"{name} {kind}" if name.startswith("md") else f"{_LAYERS.get(kind, kind)} {name}".strip()

    def disks(self) -> tuple[Disk, ...]:
        """Card readers and the service processor's virtual drives without a medium are not disks."""
        names = [name for name, cells in self._cells.items() if cells.get("type") == "disk"]
        return tuple(self._disk(name) for name in names if size_of(self._cells[name].get("size", "")) != 0)

    def _disk(self, name: str) -> Disk:
        cells = self._cells[name]
        rota = cells.get("rota", "").lower()
        rotational: Fact[bool] = rota in ("1", "true") if rota else Missing(Why.NOT_RECORDED, _NAME, "no column ROTA", _MORE)
        vendor = cells.get("vendor", "")
        vendor = "" if vendor in ("ATA", "NVMe") or vendor[:2] == "0x" else vendor
        model = " ".join(word for word in (vendor, cells.get("model", "")) if word)
        transport = {"nvme": "pcie"}.get(cells.get("tran", ""), cells.get("tran", ""))
        made_up = is_made_up(model.lower())
        return Disk(
            name=name,
            kind=classify(name, transport, model.lower(), rotational),
            rotational=rotational,
            model=model or _NOTHING,
            scheduler=cells.get("sched") or _NOTHING,
            read_ahead_kib=_NOTHING,
            size_bytes=_NOTHING if (size := size_of(cells.get("size", ""))) is None else size,
            transport=transport,
            instance_store=not made_up and any(word in model.lower() for word in INSTANCE_STORE),
        )


_NO_STORE = pattern(r"(?:tmpfs|shm|udev|devtmpfs|none|cgroup\S*) |/dev/(?:loop|sr)\d|\S{1,300} /(?:dev|run|sys|proc|snap)(?:/|$)")
"""Sources and points of what lies in memory, or is full by its nature (images)."""
_IMAGE = 128 << 20
"""Bytes: a full file system that is smaller is an image that holds names or a base system alone: the root of composefs (Fedora bootc), of Talos."""
_LAYERS = {"part": "partition", "crypt": "dm-crypt", "mpath": "multipath"}


def _by_source(source: str) -> Fact[str]:
    """df without -T names no type: a server's export still looks like one."""
    if ":/" in source and not source.startswith("/"):
        return "nfs"
    if source.startswith("//"):
        return "smb"
    if source in ("tmpfs", "overlay"):
        return carrier(source, source)
    return Missing(Why.NOT_RECORDED, _NAME, f"the type of the file system {source[:60]}", "findmnt -J")


def _filled(mount: PastedMount, other: PastedMount | None) -> PastedMount:
    if other is None:
        return mount
    names = ("source", "filesystem", "options", "size", "free", "inodes", "inodes_free")
    return msgspec.structs.replace(mount, **{name: getattr(other, name) for name in names if getattr(mount, name) in (None, "")})
