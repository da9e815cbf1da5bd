"""Settings of mounts and disks that make reading and writing slower or less safe than the hardware is."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable, SysfsWrite
from torchtune_sys.model.facts.storage import Disk, StoragePath
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, Exactly, OneOf
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
from torchtune_sys.rules.storage.common import DATA, USED, not_applicable, passed, places, subject, value_of


@rule(
    id="read-ahead-small",
    title="Read-ahead is too small for high-latency storage",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(
        SysfsWrite(path="/sys/class/bdi/MAJOR:MINOR/read_ahead_kb", target=AtLeast(4096)),
        Advice(text="to keep it for NFS: nfs=4096 and nfs4=4096 under [nfsrahead] in /etc/nfs.conf (nfs-utils 2.6 or later)"),
        Advice(
            text='with older nfs-utils: a udev rule that sets ATTR{read_ahead_kb} for SUBSYSTEM=="bdi", ACTION=="add" of the devices in '
            "/proc/fs/nfsfs/volumes (the number of the device, and so its path, changes with each mount)"
        ),
    ),
    params=(
        Param("minimum_kib", 1024, "read-ahead below which that of a network file system or spinning disk counts as small, KiB"),
        Param("off_kib", 16, "read-ahead below which that of any other disk counts as switched off, KiB"),
    ),
)
def read_ahead_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel reads ahead less data than the storage could transfer in one round trip or disk rotation.

    Why it matters
        Sequential reads of a large file wait once per read-ahead window. Linux 5.4 lowered the window for NFS from 15 times rsize
        to 128 KiB, and spinning disks have always had 128 KiB.

    When to leave it
        The data consists of small files or is read at random: more read-ahead then reads unneeded data. Of SSDs and virtual disks, which
        have 128 KiB, only a read-ahead that is switched off is reported (ext4, XFS and F2FS; others read ahead by themselves).

    References
        https://learn.microsoft.com/azure/azure-netapp-files/performance-linux-nfs-read-ahead
        tuned: accelerator-performance, hpc-compute, throughput-performance (readahead >= 4096)
        nfs.conf(5), nfsrahead(5)
    """
    for place in places(s, DATA):
        slow = _waits(place)
        by_kernel = place.carrier == "disk" and place.filesystem in ("ext2", "ext3", "ext4", "xfs", "f2fs")
        minimum, target = (int(p["minimum_kib"]), 4096) if slow is True else (int(p["off_kib"]), 128)
        off = by_kernel and not isinstance(place.read_ahead_kib, Missing) and place.read_ahead_kib < minimum
        if isinstance(slow, Missing) and not off:
            yield unsure(subject(place), slow)
        elif not off and not slow:
            yield not_applicable(place, f"{place.filesystem}: neither NFS nor a spinning disk")
        elif isinstance(place.read_ahead_kib, Missing):
            yield unsure(subject(place), place.read_ahead_kib, f">= {minimum} KiB")
        else:
            yield Evidence(
                subject=subject(place),
                seen=f"{place.read_ahead_kib} KiB for {place.mount_point} ({place.filesystem})",
                wanted=f">= {target} KiB",
                verdict=Verdict.FAIL if place.read_ahead_kib < minimum else Verdict.PASS,
                source="read_ahead_kb",
                fix=tuple(SysfsWrite(path=path, target=AtLeast(target)) for path in _read_ahead_file(place)),
            )


def _read_ahead_file(place: StoragePath) -> tuple[str, ...]:
    """Return where read-ahead is set. A disk has one for all its partitions, under its own number; NFS, arrays and logical volumes have theirs under the number of the mount."""
    partition = bool(place.layers) and all(layer.startswith("partition ") for layer in place.layers)
    if partition and not isinstance(place.disks, Missing) and len(place.disks) == 1:
        return (f"/sys/block/{place.disks[0].name}/queue/read_ahead_kb",)
    return (f"/sys/class/bdi/{place.device}/read_ahead_kb",) if place.device else ()


def _waits(place: StoragePath) -> bool | Missing:
    """Whether this is storage where read-ahead is known to pay: NFS, or nothing but spinning disks."""
    if isinstance(place.carrier, Missing) or place.carrier != "disk":
        return place.carrier if isinstance(place.carrier, Missing) else place.carrier == "nfs"
    if isinstance(place.disks, Missing):
        return place.disks
    return bool(place.disks) and all(disk.kind == "hdd" for disk in place.disks)


@rule(
    id="nvme-scheduler-not-none",
    title="An I/O scheduler is set for an NVMe drive",
    severity=Severity.ADVICE,
    fix=(SysfsWrite(path="/sys/block/NVME/queue/scheduler", target=Exactly("none")),),
)
def nvme_scheduler_not_none(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """An NVMe drive has a queue per CPU; an I/O scheduler sorts requests that need no sorting.

    Why it matters
        At several hundred thousand requests per second, the scheduler's lock and per-request work cost CPU time and latency.
        Linux itself uses none for devices with several queues.

    When to leave it
        bfq or kyber was chosen to share the drive fairly between users, or to keep latency low under writes.

    References
        https://docs.kernel.org/block/switching-sched.html
        https://docs.kernel.org/block/blk-mq.html
    """
    yield from _scheduler(s, "nvme", ("none", "noop"), OneOf(("none",)))


@rule(
    id="hdd-scheduler-none",
    title="A spinning disk has no I/O scheduler",
    severity=Severity.ADVICE,
    fix=(SysfsWrite(path="/sys/block/DISK/queue/scheduler", target=OneOf(("mq-deadline", "bfq"))),),
)
def hdd_scheduler_none(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Without a scheduler, requests reach the disk in order of arrival, and the head moves for each one.

    Why it matters
        With several concurrent readers, such as DataLoader workers, most of the disk's throughput is lost to seeks.

    When to leave it
        The disk is behind a RAID controller that sorts requests itself.

    References
        https://docs.kernel.org/block/deadline-iosched.html
        https://docs.kernel.org/block/bfq-iosched.html
    """
    yield from _scheduler(s, "hdd", ("mq-deadline", "bfq", "kyber", "deadline", "cfq"), OneOf(("mq-deadline", "bfq")))


def _is_hidden(disk: Disk) -> bool:
    """Whether sysfs lists a disk and hides of which kind it is."""
    return disk.kind == "unknown" and isinstance(disk.rotational, Missing) and disk.rotational.why is Why.HIDDEN


def _scheduler(s: Snapshot, kind: str, accepted: tuple[str, ...], target: OneOf) -> Iterator[Evidence]:
    disks: tuple[Disk, ...] = need(need(s.storage).disks)
    judged = [disk for disk in disks if disk.kind == kind or _is_hidden(disk)]
    if not judged:
        raise NotApplicable(f"no disk of kind {kind} on this host")
    for disk in judged:
        source = f"/sys/block/{disk.name}/queue/scheduler"
        if isinstance(disk.scheduler, Missing):
            if disk.scheduler.why is not Why.ABSENT:  # kernels before 3.19 drive NVMe without a request queue
                yield unsure(disk.name, disk.scheduler, str(target))
            continue
        good = disk.scheduler in accepted
        yield Evidence(
            subject=disk.name,
            seen=disk.scheduler,
            wanted=str(target),
            verdict=Verdict.PASS if good else Verdict.FAIL,
            source=source,
            fix=() if good else (SysfsWrite(path=source, target=target),),
        )


_REMOUNT = Advice(text="remount without sync and dirsync, and with relatime or noatime (fstab, then mount -o remount)")
_OF_ZFS = Advice(
    text="zfs set relatime=on DATASET (or atime=off), which holds at once and after a restart; DATASET: findmnt -no SOURCE -T PATH"
)
_JOURNAL_MODE = Advice(
    text="take data=journal out of fstab (for /, also out of rootflags= of the kernel command line) and, if tune2fs -l DEVICE lists journal_data, run "
    "tune2fs -o ^journal_data DEVICE; then unmount and mount again, or restart: ext4 refuses to change it in a remount"
)


@rule(
    id="mount-options-slow",
    title="Mount options slow down file access",
    severity=Severity.ADVICE,
    fix=(_REMOUNT, _JOURNAL_MODE),
)
def mount_options_slow(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """sync makes each write go straight to the disk; data=journal writes all data twice; strictatime writes a timestamp for each file that is read.

    Why it matters
        A checkpoint written with sync takes several times as long. With strictatime, an epoch over a million files also causes a
        million metadata writes.

    When to leave it
        Something relies on access times (a policy that removes unused files), or losing the last second of data would be worse.

    References
        mount(8): sync, relatime, strictatime; ext4(5), data=journal; Linux fs/ext4/super.c ("Cannot change data mode on remount")
        https://docs.kernel.org/filesystems/ext4/index.html
    """
    for place in places(s, USED):
        if isinstance(place.options, Missing):
            yield unsure(subject(place), place.options)
            continue
        faults: list[str] = [option for option in ("sync", "dirsync", "data=journal") if option in place.options]
        marked = _ACCESS_TIMES_MARKED & set(place.options)
        if not marked and place.filesystem in _MARKS_ACCESS_TIMES:
            faults.append("strictatime (neither relatime nor noatime)")
        if faults:
            seen = f"{', '.join(faults)} on {place.mount_point}"
            yield Evidence(
                subject=subject(place),
                seen=seen,
                wanted="relatime or noatime, no sync or data=journal",
                source="/proc/self/mountinfo",
                fix=_without(faults, known(place.filesystem, "")),
            )
        elif not marked and isinstance(place.filesystem, Missing):
            yield unsure(subject(place), place.filesystem)
        else:
            yield passed(place, f"{place.filesystem} on {place.mount_point}")


def _without(faults: list[str], filesystem: str) -> tuple[Advice, ...]:
    """Return how to be rid of these options: the mode of the journal is the only one that a remount cannot change."""
    journal = (_JOURNAL_MODE,) if "data=journal" in faults else ()
    return ((_OF_ZFS if filesystem == "zfs" else _REMOUNT,) if len(faults) > len(journal) else ()) + journal


_MARKS_ACCESS_TIMES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs")
_ACCESS_TIMES_MARKED = frozenset({"noatime", "relatime", "ro", "lazytime"})
"""The kernel prints noatime and relatime, and nothing for strictatime (fs/proc_namespace.c)."""


@rule(
    id="mount-without-barriers",
    title="Checkpoints are on a file system mounted without write barriers",
    severity=Severity.ADVICE,
    fix=(
        Advice(text="remount with barrier (the default): mount -o remount,barrier, and remove nobarrier or barrier=0 from fstab"),
    ),
)
def mount_without_barriers(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Without write barriers, a power failure may corrupt the journal and with it the file system.

    Why it matters
        Data that fsync reported as written may only be in the disk's cache: the latest checkpoints, or all of them, may be lost.

    When to leave it
        The disk or controller has a battery- or capacitor-backed cache, like data-centre drives.

    References
        ext4(5), "barrier"; btrfs(5), "barrier" (neither it nor XFS knows barrier=1)
        xfs(5), "nobarrier" (removed in Linux 4.19)
    """
    for place in places(s, ("checkpoints", "working directory")):
        if isinstance(place.options, Missing):
            yield unsure(subject(place), place.options)
        elif "nobarrier" in place.options or "barrier=0" in place.options:
            seen = f"{'nobarrier' if 'nobarrier' in place.options else 'barrier=0'} on {place.mount_point}"
            yield Evidence(subject=subject(place), seen=seen, wanted="barrier", source="/proc/self/mountinfo")
        else:
            yield passed(place, f"{place.filesystem} on {place.mount_point}")


@rule(
    id="cache-without-file-locks",
    title="Caches lie on a file system without working file locks",
    severity=Severity.ADVICE,
    cause="filesystem-without-locks",
    fix=(
        Advice(text="mount Lustre with -o flock (NFS without nolock)"),
        EnvironmentVariable(name="XDG_CACHE_HOME", value="/local/disk/cache"),
        EnvironmentVariable(name="HF_HOME", value="/local/disk/huggingface"),
    ),
)
def cache_without_file_locks(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Compiled extensions, kernels and downloaded models are cached under file locks that this mount does not support.

    Why it matters
        On Lustre mounted without flock, locking fails with "Function not implemented". On NFS mounted with nolock, a lock holds
        on one host only, so ranks on several hosts write the same file at once.

    When to leave it
        Nothing is cached there, or a single process fills the cache before the job.

    References
        mount.lustre(8), "flock"
        nfs(5), "local_lock"
        https://docs.pytorch.org/docs/stable/cpp_extension.html (TORCH_EXTENSIONS_DIR)
    """
    for place in places(s, ("home", "cache")):
        if isinstance(place.filesystem, Missing):
            yield unsure(subject(place), place.filesystem)
            continue
        fault = _lock_fault(place.filesystem, need(place.options), s.intent.nodes)
        if fault:
            yield Evidence(
                subject=subject(place), seen=f"{fault} on {place.mount_point}", wanted="file locks", source="mountinfo"
            )
        else:
            yield passed(place, f"{place.filesystem} on {place.mount_point}")


def _lock_fault(filesystem: str, options: tuple[str, ...], nodes: int | None) -> str:
    if filesystem == "lustre" and "flock" not in options and "localflock" not in options:
        return "lustre without flock"
    if filesystem in ("nfs", "nfs4") and nodes is not None and nodes > 1:
        if "nolock" in options:
            return f"{filesystem} with nolock (locks hold on this host only)"
        if value_of(options, "local_lock") in ("all", "flock"):
            return f"{filesystem} with local_lock (locks hold on this host only)"
    return ""
