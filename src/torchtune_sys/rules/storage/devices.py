"""Rules on the devices and file systems that hold data and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.storage import Disk, StoragePath
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
from torchtune_sys.rules.storage.common import DATA, USED, not_applicable, passed, places, subject

_LOCAL_COPY = Advice(
    text="copy the data to a local NVMe drive or SSD before training, or pack it into large files that are read sequentially"
)


def _names(disks: tuple[Disk, ...]) -> str:
    return ", ".join(f"{disk.name} ({disk.kind})" for disk in disks) or "memory"


@rule(
    id="data-on-spinning-disk",
    title="The training data lies on a spinning disk",
    severity=Severity.WARNING,
    cause="slow-data-storage",
    fix=(_LOCAL_COPY,),
)
def data_on_spinning_disk(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A spinning disk serves 100 to 200 random reads per second, an NVMe drive several hundred thousand.

    Why it matters
        A shuffled data set of small files is read in random order. One epoch over a million files then takes hours on a spinning
        disk, however many DataLoader workers there are, and the GPUs wait.

    When to leave it
        The data is read sequentially from large files (WebDataset, Parquet, memory-mapped tokens), or fits into the page cache
        after the first epoch.

    References
        https://docs.kernel.org/block/queue-sysfs.html (rotational)
        https://github.com/pytorch/examples/issues/164 (batches that wait for the disk)
    """
    for place in places(s, DATA):
        if isinstance(place.network, Missing):
            yield unsure(subject(place), place.network)
        elif place.network:
            yield not_applicable(place, f"{place.filesystem}: not on a disk of this host")
        elif isinstance(place.disks, Missing):
            yield unsure(subject(place), place.disks)
        else:
            yield _medium(place, place.disks)


def _medium(place: StoragePath, disks: tuple[Disk, ...]) -> Evidence:
    source = ", ".join(f"/sys/block/{disk.name}/queue/rotational" for disk in disks[:4])
    spinning = [disk for disk in disks if disk.kind == "hdd"]
    vague = [disk for disk in disks if disk.kind in ("virtual", "unknown")]
    if spinning and len(spinning) == len(disks):
        way = " > ".join((*place.layers, _names(disks)))
        return Evidence(subject=subject(place), seen=way, wanted="NVMe or SSD", source=source)
    if spinning:
        why = f"{_names(tuple(spinning))} spin, the rest does not; which of them holds the data cannot be seen"
        return unsure(subject(place), Missing(Why.NOT_SUPPORTED, source, why), "NVMe or SSD")
    if vague:
        kind = "a virtual disk" if vague[0].kind == "virtual" else "this controller"
        why = f"{vague[0].name}: {kind} does not say whether it spins"
        measure = (
            f"fio --name=read --rw=randread --bs=128k --direct=1 --readonly --filename=FILE (a large file below {place.path})"
        )
        return unsure(subject(place), Missing(Why.NOT_SUPPORTED, source, why, measure), "NVMe or SSD")
    return passed(place, _names(disks), source)


@rule(
    id="data-on-usb-disk",
    title="The training data or the checkpoints are on a USB disk",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(Advice(text="copy the data to an internal disk"),),
)
def data_on_usb_disk(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A USB disk shares a bus, lacks deep queues, and disconnects under load more often than an internal one.

    Why it matters
        Random reads through a USB bridge are several times slower than the disk itself, and a reset of the bus in the
        middle of a checkpoint leaves a broken file.

    When to leave it
        The disk only feeds a copy, or the data is small.

    References
        https://docs.kernel.org/usb/mass-storage.html
    """
    for place in places(s, USED):
        if isinstance(place.disks, Missing):
            if place.network is True:
                yield not_applicable(place, f"{place.filesystem}: not on a disk of this host")
            else:
                yield unsure(subject(place), place.disks)
            continue
        for disk in place.disks:
            if disk.transport == "usb":
                yield Evidence(subject=subject(place), seen=f"{disk.name} on USB", wanted="an internal disk", source="/sys/block")


@rule(
    id="data-on-object-store",
    title="The training data is read through a FUSE mount of an object store",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(Advice(text="stage the data on a local disk, enable the mount's file cache, or read large shards sequentially"),),
)
def data_on_object_store(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Opening a file takes one or more HTTP requests of 10 to 100 ms each, and listing a directory takes many.

    Why it matters
        Data sets of small files are bound by that latency: a worker reads a few dozen files per second. Object stores deliver
        bandwidth only for large, parallel reads.

    When to leave it
        The mount has a local cache that holds the data (gcsfuse's file cache, mountpoint's --cache, JuiceFS), or the
        data is in large shards.

    References
        https://cloud.google.com/storage/docs/cloud-storage-fuse/performance
        https://github.com/awslabs/mountpoint-s3/blob/main/doc/SEMANTICS.md
    """
    yield from _by_carrier(s, DATA, ("object-store",), "a local disk, or large shards")


@rule(
    id="data-on-network-filesystem",
    title="The training data is read file by file from a network share",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(_LOCAL_COPY,),
)
def data_on_network_filesystem(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On NFS, SMB, sshfs or Google Drive (Colab's /content/drive), opening a file costs round trips to a server.

    Why it matters
        Close-to-open consistency makes an NFS client ask the server at every open, even for cached data. With small files and
        many workers, training is limited by the server's requests per second rather than its bandwidth.

    When to leave it
        The data is in large files, or the server is built for this load and the loader was measured to keep up.

    References
        nfs(5), "Close-to-open cache consistency"
        https://docs.kernel.org/filesystems/caching/fscache.html
    """
    yield from _by_carrier(s, ("data",), ("nfs", "smb", "remote"), "a local disk, a parallel file system, or large files")


def _by_carrier(s: Snapshot, roles: tuple[str, ...], carriers: tuple[str, ...], wanted: str) -> Iterator[Evidence]:
    for place in places(s, roles):
        if isinstance(place.carrier, Missing):
            yield unsure(subject(place), place.carrier, wanted)
        elif place.carrier in carriers:
            seen = f"{place.filesystem} {place.mount_source} on {place.mount_point}"
            yield Evidence(subject=subject(place), seen=seen, wanted=wanted, source="/proc/self/mountinfo")
        else:
            yield passed(place, str(place.filesystem))


@rule(
    id="data-on-windows-drive",
    title="WSL2 reads the training data from a Windows drive",
    severity=Severity.WARNING,
    cause="slow-data-storage",
    fix=(Advice(text="copy the data into the Linux file system (below your home directory), not below /mnt/c"),),
)
def data_on_windows_drive(s: Snapshot, p: Params) -> Iterator[Evidence]:
    r"""A Windows drive in WSL2 is a 9P share: every file operation is a message to Windows and back.

    Why it matters
        Opening many small files through it is an order of magnitude slower than on WSL2's own ext4 disk.

    When to leave it
        A few large files that are read once.

    References
        https://learn.microsoft.com/windows/wsl/filesystems (file storage and performance across file systems)
    """
    for place in places(s, DATA):
        if isinstance(place.carrier, Missing):
            yield unsure(subject(place), place.carrier)
        elif place.carrier == "hypervisor" and _is_windows_drive(place):
            seen = f"{place.mount_source} on {place.mount_point} ({place.filesystem})"
            yield Evidence(subject=subject(place), seen=seen, wanted="WSL2's own ext4 disk", source="/proc/self/mountinfo")


def _is_windows_drive(place: StoragePath) -> bool:
    source = known(place.mount_source, "")
    options = known(place.options, ())
    return source[1:2] == ":" or source.startswith("drvfs") or any(option.startswith("aname=drvfs") for option in options)


@rule(
    id="data-on-container-layer",
    title="The training data lies in the container's own layers",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(Advice(text="keep the data on a volume: docker run -v HOST_DIR:/data, or a volumeMount in Kubernetes"),),
)
def data_on_container_layer(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Files in an overlay are looked up through all its layers, and a file is copied up as a whole before it is changed.

    Why it matters
        The layers are on the host's system disk, shared with container images and logs, and disappear with the container: each
        new container downloads or unpacks the data again.

    When to leave it
        The data is small and part of the image on purpose.

    References
        https://docs.docker.com/engine/storage/drivers/overlayfs-driver/ (performance, use volumes for write-heavy work)
    """
    yield from _by_carrier(s, ("data",), ("layers",), "a volume")


@rule(
    id="checkpoints-on-volatile-storage",
    title="Checkpoints are written to volatile storage",
    severity=Severity.WARNING,
    fix=(Advice(text="write checkpoints to a volume or a file system that outlives the container, the job and the instance"),),
)
def checkpoints_on_volatile_storage(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A checkpoint should outlive the job; what is stored here does not.

    Why it matters
        Files in memory (tmpfs) are lost at reboot and take memory from training until then. A container's writable layer is
        removed with the container. A cloud instance store is erased when the instance stops.

    When to leave it
        The directory is only a staging area from which another process copies checkpoints to persistent storage.

    References
        https://docs.kernel.org/filesystems/tmpfs.html
        https://docs.docker.com/engine/storage/ (data does not persist when the container goes)
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/InstanceStorage.html
        https://learn.microsoft.com/azure/virtual-machines/managed-disks-overview (temporary disk: not persistent)
    """
    for place in places(s, ("checkpoints",)):
        if isinstance(place.carrier, Missing):
            yield unsure(subject(place), place.carrier)
            continue
        why = _lost(place)
        if why:
            yield Evidence(subject=subject(place), seen=why, wanted="lasting storage", source="/proc/self/mountinfo")
        elif place.carrier == "disk" and isinstance(place.disks, Missing):
            yield unsure(subject(place), place.disks, "lasting storage")  # it may be an instance store
        else:
            yield passed(place, f"{place.filesystem} on {place.mount_point}")


def _lost(place: StoragePath) -> str:
    if place.carrier == "memory":
        return f"{place.filesystem} on {place.mount_point}: in memory"
    if place.carrier == "layers" and (isinstance(place.disks, Missing) or not place.disks):
        return f"{place.filesystem} on {place.mount_point}: the container's own layer"
    if not isinstance(place.disks, Missing) and place.disks and all(disk.instance_store for disk in place.disks):
        return f"{_names(place.disks)}: the instance's own disk, emptied when it stops"
    return ""


@rule(
    id="md-array-degraded",
    title="A RAID array or ZFS pool that is mounted here has lost a member",
    severity=Severity.WARNING,
    fix=(Advice(text="replace the failed disk (mdadm --detail, zpool status -v shows which) and let the array rebuild"),),
)
def md_array_degraded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A degraded array reads more slowly, and one more failure may lose everything on it.

    Why it matters
        Each read of the missing member's data is reconstructed from all the others; a rebuild takes most of the remaining
        bandwidth.

    When to leave it
        The array was deliberately created with a missing member.

    References
        https://docs.kernel.org/admin-guide/md.html (degraded); zpoolconcepts(7), "Device Failure and Recovery" (a pool that is not ONLINE)
    """
    arrays, seen = {}, True
    for place in places(s, USED):
        hidden = isinstance(place.disks, Missing) and place.disks.why is Why.HIDDEN
        for fact in (place.mount_point, *((place.disks,) if hidden else ())):
            if isinstance(fact, Missing):
                seen = False
                yield unsure(subject(place), fact)
        arrays.update({array.name: array for array in place.arrays})
    arrays.update({array.name: array for array in need(s.storage).mounted_arrays})
    for array in arrays.values():
        pool = known(array.level, "").removeprefix("zfs ") if known(array.level, "").startswith("zfs") else ""
        source = f"/proc/spl/kstat/zfs/{array.name}/state" if pool else f"/sys/block/{array.name}/md/degraded"
        if isinstance(array.degraded, Missing):
            if array.degraded.why is not Why.ABSENT:  # levels without redundancy have no such file
                yield unsure(array.name, array.degraded, "0 members missing")
        elif array.degraded > 0:
            said, wanted = (f"ZFS pool {pool}", "ONLINE") if pool else (f"{array.degraded} missing", "0 members missing")
            yield Evidence(subject=array.name, seen=said, wanted=wanted, source=source)
        else:
            yield Evidence(subject=array.name, seen="complete", verdict=Verdict.PASS, source=source)
    if seen and not arrays:
        raise NotApplicable("no md array below the judged places, nor below another mount")


@rule(
    id="filesystem-errors-recorded",
    title="The file system of the data or the checkpoints has recorded errors",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="back up the data, unmount it and check it: e2fsck -f DEVICE, which also resets the count; check the disk (smartctl -a)"
        ),
    ),
    nothing="no ext4 below the judged places, or one that does not show its errors",
)
def filesystem_errors_recorded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """ext4 has found errors in itself, and keeps their number in its superblock until it is checked.

    Why it matters
        Files may be damaged, and the next error may make the file system read-only in the middle of a run. The message in the kernel's log is
        gone after a reboot; the count is not.

    When to leave it
        The file system was repaired without e2fsck (which alone resets the count).

    References
        Linux Documentation/ABI/testing/sysfs-fs-ext4, errors_count; e2fsck(8)
    """
    for place in places(s, USED):
        count = place.errors_recorded
        if isinstance(count, Missing):
            if count.why not in (Why.ABSENT, Why.NOT_RECORDED, Why.NOT_SUPPORTED):
                yield unsure(subject(place), count)
            continue
        yield Evidence(
            subject=subject(place),
            seen=f"{count} errors of {place.filesystem} on {place.mount_point}",
            wanted="0",
            verdict=Verdict.FAIL if count > 0 else Verdict.PASS,
            source="/sys/fs/ext4/DEVICE/errors_count",
        )
