"""Facts on the storage of data and checkpoints, from the path down to the disks."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

INSTEAD = "temporary files instead"
"""Role of the directories that Python takes one after the other where the first for temporary files cannot be written."""
MOUNTED = "mounted"
"""The role of a mount that is only asked whether it answers."""
LISTED = "listed"
"""The role of a mount in which no file can be made, among those that a report lists."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A whole disk at the bottom of a stack of block devices."""

    name: str
    """Kernel name, e.g. ``nvme0n1``."""
    kind: str
    """``nvme``, ``ssd``, ``hdd``, ``pmem``, ``virtual`` (medium unknown), ``ram``, ``zram``, ``optical`` or ``unknown``."""
    rotational: Fact[bool]
    model: Fact[str]
    scheduler: Fact[str]
    """The active I/O scheduler (``none``, ``mq-deadline`` …)."""
    read_ahead_kib: Fact[int]
    size_bytes: Fact[int]
    transport: str = ""
    """``pcie``, ``nvme-tcp``, ``virtio``, ``sata``, ``sas``, ``usb``, ``iscsi`` … as far as sysfs tells."""
    instance_store: bool = False
    """A cloud's local disk, which is emptied when the instance stops."""


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """One md array on the way down."""

    name: str
    level: Fact[str]
    degraded: Fact[int]
    """Members missing (``md/degraded``); NOT_SUPPORTED for levels without redundancy."""


class StoragePath(msgspec.Struct, frozen=True, kw_only=True):
    """One path that training reads or writes, and what carries it."""

    path: str
    role: str
    """``data``, ``checkpoints``, ``working directory``, ``temporary files``, ``home``, ``cache``, ``mounted`` or ``listed``."""
    real_path: Fact[str]
    """With symbolic links resolved; of a path that is not there yet, the nearest parent that is."""
    exists: Fact[bool]
    mount_point: Fact[str]
    filesystem: Fact[str]
    """Type as in mountinfo: ext4, xfs, nfs4, overlay, fuse.s3fs …"""
    carrier: Fact[str]
    """What the file system lives on: ``disk``, ``memory``, ``layers`` (overlay), ``nfs``, ``smb``, ``parallel`` (Lustre, GPFS,
    CephFS …), ``object-store``, ``remote`` (sshfs, AFS …) or ``hypervisor`` (a folder of the machine above: 9p, virtiofs)."""
    device: str = ""
    """``major:minor`` of the mounted file system; empty where it was not seen."""
    mount_source: Fact[str]
    options: Fact[tuple[str, ...]]
    """The mount's own options, then the file system's."""
    network: Fact[bool]
    """Whether the file system is served over a network (NFS, Lustre, CephFS, FUSE to an object store …)."""
    layers: tuple[str, ...]
    """From the file system down: ``dm-crypt luks-x``, ``lvm vg-data``, ``md0 raid0``, ``partition sda1`` …"""
    disks: Fact[tuple[Disk, ...]]
    arrays: tuple[Array, ...]
    read_ahead_kib: Fact[int]
    """Read-ahead of the mount's own device (bdi), which is what reads through it get."""
    size_bytes: Fact[int]
    free_bytes: Fact[int]
    """Available to a non-root user."""
    inodes: Fact[int]
    """0 where the file system has no fixed number."""
    inodes_free: Fact[int]
    readable: Fact[bool]
    writable: Fact[bool]
    closed_files: Fact[tuple[int, int]] = Missing(Why.NOT_RECORDED, "scandir", "not looked at")
    """Of the first files of a directory of data, how many this user may not read, and how many were looked at; ABSENT for other places."""
    pointer_files: Fact[int] = Missing(Why.NOT_RECORDED, "scandir", "not looked at")
    """How many of them are pointers of Git LFS whose content was not fetched; 0 where one of the others has a MiB or more."""
    errors_recorded: Fact[int] = Missing(Why.NOT_RECORDED, "/sys/fs/ext4", "not read")
    """Errors that ext4 keeps in its superblock until it is checked; ABSENT for other file systems."""


class IoLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What a cgroup may read and write of one disk."""

    device: str
    """``major:minor``."""
    values: dict[str, float]
    """``rbps``, ``wbps``, ``riops`` and ``wiops``, those that are limited."""
    source: str


_NOT_READ = Missing(Why.NOT_RECORDED, "storage", "not read")


class StorageFacts(msgspec.Struct, frozen=True, kw_only=True):
    places: tuple[StoragePath, ...]
    disks: Fact[tuple[Disk, ...]]
    """Every whole disk of the host."""
    mounted_arrays: tuple[Array, ...] = ()
    """The md arrays below any file system that is mounted, whether a place lies on it or not."""
    states: Fact[dict[str, str]] = _NOT_READ
    """Local NVMe controllers, and SCSI and SATA disks with a medium → what the kernel says of them: ``live``, ``dead``, ``running``, ``offline`` …"""
    io_limits: Fact[tuple[IoLimit, ...]] = _NOT_READ
    """By io.max of this cgroup and those above it; ABSENT where no cgroup of version 2 counts input and output."""


def without_inodes(place: StoragePath) -> bool:
    """Return whether no file at all can be made there: its file system has a fixed number of them, and none is left."""
    return not isinstance(place.inodes, Missing) and place.inodes > 0 and place.inodes_free == 0


def nowhere(path: str, role: str, why: Missing) -> StoragePath:
    """Return a place of which nothing is known, for one reason."""
    return StoragePath(
        path=path,
        role=role,
        real_path=why,
        exists=why,
        mount_point=why,
        filesystem=why,
        carrier=why,
        mount_source=why,
        options=why,
        network=why,
        layers=(),
        disks=why,
        arrays=(),
        read_ahead_kib=why,
        size_bytes=why,
        free_bytes=why,
        inodes=why,
        inodes_free=why,
        readable=why,
        writable=why,
    )
