"""From a file system down to the whole disks: partitions, device-mapper, md, loop devices, and what has no disks."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from torchtune_sys.formats.mounts import Mount, carrier, carrying
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.storage import Array, Disk
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.probes.storage.disks import read_disk, read_size

DEPTH_LIMIT = 16
"""Deeper than any real stack (LUKS on LVM on md on partitions is 4); ends loops that a hostile tree may hold."""

_DM_PREFIXES = (
    ("LVM-", "lvm"),
    ("CRYPT-", "dm-crypt"),
    ("mpath-", "multipath"),
    ("DMRAID-", "dmraid"),
    ("stratis-", "stratis"),
    ("VDO-", "vdo"),
    ("part", "partition"),
)


class Stack:
    """What was met on the way down from one file system."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.disks: dict[str, Disk] = {}
        self.arrays: dict[str, Array] = {}
        self.under_way: set[str] = set()
        """Devices that were met on the way from the file system to this place."""
        self.passed: set[str] = set()
        """Devices below which all was met: others may lie on the same, and a few of these in each of some layers would make a million ways down."""
        self.lost: Missing | None = None
        """The first place where the way down could not be followed."""
        self.device: Fact[str] = Missing(Why.ABSENT, "mountinfo", "no block device")
        """sysfs directory of the block device that the file system was made on."""

    def lose(self, why: Missing) -> None:
        self.lost = why if self.lost is None else self.lost

    def found(self) -> Fact[tuple[Disk, ...]]:
        return tuple(self.disks.values()) if self.lost is None else self.lost


class Descent:
    """Follows stacks on one host; remembers the disks it has read."""

    def __init__(self, host: Host, mounts: Sequence[Mount]) -> None:
        self._host = host
        self._mounts = mounts
        self._disks: dict[str, Disk] = {}

    def below(self, mount: Mount) -> Stack:
        stack = Stack()
        self._file_system(mount, stack, 0)
        return stack

    def disk(self, directory: str) -> Disk:
        if directory not in self._disks:
            self._disks[directory] = read_disk(self._host, directory)
        return self._disks[directory]

    def _file_system(self, mount: Mount, stack: Stack, depth: int) -> None:
        kind = carrier(mount.filesystem, mount.source)
        if depth > DEPTH_LIMIT:
            stack.lose(Missing(Why.UNPARSED, mount.point, "the layers have no end"))
        elif isinstance(kind, Missing):
            stack.lose(kind)
        elif kind == "memory":
            stack.layers.append(mount.filesystem)
        elif kind == "layers":
            stack.layers.append(mount.filesystem)
            self._upper(mount, stack, depth)
        elif kind == "disk":
            self._on_disk(mount, stack, depth)
        else:
            stack.layers.append(f"{mount.filesystem} {mount.source}")
            stack.lose(Missing(Why.NOT_SUPPORTED, mount.source, "the disks are on another machine"))

    def _upper(self, mount: Mount, stack: Stack, depth: int) -> None:
        """Below an overlay lies the file system of its upper (or only lower) directory, if this namespace shows it."""
        upper = mount.option("upperdir") or (mount.option("lowerdir") or "").partition(":")[0]
        inside = "a container does not see what its layers lie on"
        there = self._host.exists(upper) if upper.startswith("/") else False
        if isinstance(there, Missing) and there.why is Why.NOT_RECORDED:
            stack.lose(there)
            return
        if there is not True:
            stack.lose(Missing(Why.NOT_SUPPORTED, upper or f"mount options of {mount.point}", inside, "run on the host"))
            return
        below = carrying(self._mounts, upper)
        if below is None or below.id == mount.id:
            stack.lose(Missing(Why.NOT_SUPPORTED, upper, inside, "run on the host"))
        else:
            self._file_system(below, stack, depth + 1)

    def _on_disk(self, mount: Mount, stack: Stack, depth: int) -> None:
        if mount.filesystem in ("zfs", "fuse.zfs"):
            from shlex import quote  # whoever mounts by FUSE chooses the name

            pool = mount.source.partition("/")[0]
            stack.layers.append(f"zfs pool {pool}")
            state = self._host.word(f"/proc/spl/kstat/zfs/{pool}/state")  # OpenZFS 0.8 and later
            lacks = state if isinstance(state, Missing) else int(state != "ONLINE")
            stack.arrays[pool] = Array(name=pool, level="zfs" if isinstance(state, Missing) else f"zfs {state}", degraded=lacks)
            why = "no file tells the disks of a ZFS pool"
            stack.lose(Missing(Why.NOT_SUPPORTED, f"zpool {pool}", why, f"zpool status {quote(pool)}"))
            return
        if mount.filesystem == "ecryptfs" or (mount.filesystem.startswith("fuse.") and mount.source.startswith("/")):
            below = None if mount.source.startswith("/dev/") else carrying(self._mounts, mount.source)
            if below is not None and below.id != mount.id:
                stack.layers.append(f"{mount.filesystem} {mount.source}")
                self._file_system(below, stack, depth + 1)
                return
        devices = self._devices(mount)
        if isinstance(devices, Missing):
            stack.lose(devices)
            return
        stack.device = devices[0]
        for directory in devices:
            self._device(directory, stack, depth + 1)

    def _devices(self, mount: Mount) -> Fact[tuple[str, ...]]:
        """sysfs directories of the devices that a file system spans; never empty."""
        major = mount.device.partition(":")[0]
        if major not in ("", "0"):
            found = self.resolved(f"/sys/dev/block/{mount.device}")
            if not isinstance(found, Missing):
                return (found,)
            if found.why is Why.HIDDEN:
                return found
        named = [self._by_path(part) for part in mount.source.split(":") if part.startswith("/")]
        if not named:
            return Missing(Why.ABSENT, f"/sys/dev/block/{mount.device}", f"{mount.source} is no block device")
        if mount.filesystem == "btrfs" and not isinstance(named[0], Missing):
            return self._btrfs(named[0])
        good = tuple(item for item in named if not isinstance(item, Missing))
        return good if len(good) == len(named) else next(item for item in named if isinstance(item, Missing))

    def _by_path(self, path: str) -> Fact[str]:
        """Return the sysfs directory of ``/dev/sda2``, ``/dev/mapper/vg-data``, ``/dev/disk/by-uuid/…``."""
        place = self._host.real(path)
        name = posixpath.basename(path if isinstance(place, Missing) else place)
        found = self._by_name(name)
        if isinstance(found, Missing) and path.startswith("/dev/mapper/"):
            for other in known(self._host.names("/sys/class/block"), ()):
                if other.startswith("dm-") and self._host.word(f"/sys/class/block/{other}/dm/name") == name:
                    return self._by_name(other)
        return found

    def _by_name(self, name: str) -> Fact[str]:
        found = self.resolved(f"/sys/class/block/{name}")
        return self.resolved(f"/sys/block/{name}") if isinstance(found, Missing) else found

    def resolved(self, path: str) -> Fact[str]:
        """Return the directory that a link of sysfs leads to; HIDDEN where it is not to be seen."""
        target = self._host.link(path)
        if isinstance(target, Missing):
            return self._host.real(path) if target.why is Why.NOT_SUPPORTED else target  # old kernels: a directory
        there = self._host.stat(path)
        if isinstance(there, Missing) and there.why is Why.HIDDEN:
            return there
        return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

    def _btrfs(self, device: str) -> Fact[tuple[str, ...]]:
        """Every device of the btrfs that ``device`` is part of (``/sys/fs/btrfs/<uuid>/devices``)."""
        name = posixpath.basename(device)
        for uuid in known(self._host.names("/sys/fs/btrfs"), ()):
            members = self._host.names(f"/sys/fs/btrfs/{uuid}/devices") if "-" in uuid else ()
            if not isinstance(members, Missing) and name in members:
                found = [self._by_name(member) for member in members]
                return tuple(item for item in found if not isinstance(item, Missing)) or (device,)
        return (device,)

    def _device(self, directory: str, stack: Stack, depth: int) -> None:
        if depth > DEPTH_LIMIT or directory in stack.under_way:
            stack.lose(Missing(Why.UNPARSED, directory, "the layers have no end"))
        elif directory not in stack.passed:
            stack.under_way.add(directory)
            self._layer(directory, stack, depth)
            stack.under_way.remove(directory)
            stack.passed.add(directory)

    def _layer(self, directory: str, stack: Stack, depth: int) -> None:
        name = posixpath.basename(directory)
        if name.startswith("dm-"):
            self._add_layer(stack, self._mapped(directory, name))
            self._slaves(directory, stack, depth)
        elif name.startswith("loop"):
            self._loop(directory, stack, depth)
        elif name.startswith("md") and name[2:3].isdigit() and "/virtual/" in directory and "p" not in name:
            level = self._host.word(f"{directory}/md/level")
            degraded = self._host.number(f"{directory}/md/degraded")
            stack.arrays[name] = Array(name=name, level=level, degraded=degraded)
            self._add_layer(stack, name if isinstance(level, Missing) else f"{name} {level}")
            self._slaves(directory, stack, depth)
        elif name[-1:].isdigit() and self._host.exists(f"{directory}/partition") is True:
            self._add_layer(stack, f"partition {name}")
            self._device(posixpath.dirname(directory), stack, depth + 1)
        elif name.startswith("bcache"):
            self._add_layer(stack, name)
            self._slaves(directory, stack, depth)
        else:
            stack.disks[directory] = self.disk(directory)

    def _mapped(self, directory: str, name: str) -> str:
        called = self._host.word(f"{directory}/dm/name")
        uuid = self._host.word(f"{directory}/dm/uuid")
        label = name if isinstance(called, Missing) else called
        if not isinstance(uuid, Missing):
            for prefix, kind in _DM_PREFIXES:
                if uuid.startswith(prefix):
                    return f"{kind} {label}"
        return f"device-mapper {label}"

    def _loop(self, directory: str, stack: Stack, depth: int) -> None:
        backing = self._host.word(f"{directory}/loop/backing_file")
        if isinstance(backing, Missing):
            stack.lose(backing)
            return
        self._add_layer(stack, f"{posixpath.basename(directory)} {backing}")
        path = backing.removesuffix(" (deleted)")
        if path.startswith("/dev/"):
            device = self._by_path(path)
            if not isinstance(device, Missing):
                self._device(device, stack, depth + 1)
                return
        below = carrying(self._mounts, path)
        if below is None:
            stack.lose(Missing(Why.ABSENT, path, "its file system is not mounted here"))
        else:
            self._file_system(below, stack, depth + 1)

    def _slaves(self, directory: str, stack: Stack, depth: int) -> None:
        names = self._host.names(f"{directory}/slaves")
        if isinstance(names, Missing):
            stack.lose(names)
            return
        if not names:
            stack.lose(Missing(Why.NOT_SUPPORTED, f"{directory}/slaves", "the kernel names nothing below this device"))
        for name in names:
            below = self._by_name(name)
            if isinstance(below, Missing):
                stack.lose(below)
            else:
                self._device(below, stack, depth + 1)

    def _add_layer(self, stack: Stack, layer: str) -> None:
        if layer not in stack.layers:
            stack.layers.append(layer)


def whole_disks(host: Host, descent: Descent) -> Fact[tuple[Disk, ...]]:
    """Return every whole disk with a size, by name; loop, RAM, compressed-RAM and stacked devices left out."""
    found: dict[str, str] = {}
    missing: Missing | None = None
    # The second holds partitions too; a recording may hold either, or parts of both.
    for top in ("/sys/block", "/sys/class/block"):
        names = host.names(top)
        if isinstance(names, Missing):
            missing = names if missing is None else missing
            continue
        for name in names:
            if name not in found and not name.startswith(_STACKED) and not _is_hidden_path(name):
                directory = descent.resolved(f"{top}/{name}")
                found[name] = f"{top}/{name}" if isinstance(directory, Missing) else directory
    if missing is not None and not found:
        return missing
    whole = [path for name, path in sorted(found.items()) if not _is_partition(host, path, found)]
    return tuple(descent.disk(path) for path in whole if _has_size(host, path))


def _has_size(host: Host, directory: str) -> bool:
    size = read_size(host, directory)
    return isinstance(size, Missing) or size > 0


_STACKED = ("loop", "ram", "zram", "dm-", "md", "bcache", "fd", "nullb")


def _is_partition(host: Host, directory: str, disks: dict[str, str]) -> bool:
    if posixpath.basename(posixpath.dirname(directory)) in disks:
        return True
    unresolved = directory.startswith(("/sys/class/", "/sys/block/"))
    return unresolved and host.exists(f"{directory}/partition") is True


def _is_hidden_path(name: str) -> bool:
    """``nvme0c1n1`` is one path to nvme0n1, which the kernel hides."""
    return name.startswith("nvme") and "c" in name[4:]
