"""Rules on logged faults of disks and file systems."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.rules.kernel.common import DAYS, grouped, logged_of_devices, none_logged, recent, seen_in_log, shorter


@rule(
    id="nvme-errors-logged",
    title="An NVMe drive was reset or disabled",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="check the drive (nvme smart-log, nvme error-log), update its firmware and check its slot; replace it if this "
            "recurs"
        ),
    ),
    params=(DAYS,),
    cause="storage-io-error",
)
def nvme_errors_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel reset an NVMe controller that did not respond, or disabled it.

    Why it matters
    All reads and writes wait for the reset, half a minute each time; once the controller is removed, its data is inaccessible.

    When to leave it
    It happened once, during a suspend or a firmware update of the drive.

    References
    Linux drivers/nvme/host/pci.c, core.c
    """
    yield from logged_of_devices(s, p, ("nvme-reset", "nvme-dead"), "NVMe disks", "disk reset", "no reset")


@rule(
    id="disk-errors-logged",
    title="A disk or file system had errors",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="back up the data, check the disk (smartctl -a, nvme smart-log), and check the file system offline (fsck, "
            "xfs_repair)"
        ),
    ),
    params=(DAYS,),
    cause="storage-io-error",
)
def disk_errors_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds I/O or medium errors of a disk, errors or corruption of a file system, which may have become read-only, or a RAID array that started
    without some of its members.

    Why it matters
    Training data or checkpoints cannot be read or written, or are damaged; where a file system became read-only, no checkpoint is.

    When to leave it
    A removable disk was unplugged. Errors of disk images (loop devices and what is mapped only onto them) and of mapped devices
    that no longer exist do not count.

    References
    Linux block/blk-core.c, fs/buffer.c, fs/ext4/super.c, fs/jbd2, fs/xfs, fs/btrfs, fs/bcachefs, drivers/md; OpenZFS module/zfs/spa_misc.c
    """
    kinds = ("array-degraded", "disk-io", "disk-medium", "fs-error", "fs-read-only")
    found = {
        name: group
        for name, group in grouped(recent(s, p, *kinds)).items()
        if not _pulled_out(s, name, group) and not _is_whole(s, name)
    }
    for name, group in found.items():
        worst = max(group, key=lambda event: kinds.index(event.kind))
        yield seen_in_log(s, name, shorter(worst.text), group, "no error")
    if not found:
        yield from none_logged(s, "disks", "disk or file system error")


def _is_whole(s: Snapshot, name: str) -> bool:
    """Tell whether it is an array that has all its members by now."""
    places = () if isinstance(s.storage, Missing) else known(s.storage.places, ())
    return any(array.name == name and array.degraded == 0 for place in places for array in place.arrays)


def _pulled_out(s: Snapshot, name: str, group: list[KernelEvent]) -> bool:
    """Tell whether it was a SCSI disk that is not there any more: USB sticks and drives. (A controller or array that took a disk out says so itself.)"""
    of_array = any("md/raid" in event.text for event in group)
    if of_array or not name.startswith("sd") or isinstance(s.storage, Missing) or isinstance(s.storage.disks, Missing):
        return False
    return not any(name.rstrip("0123456789") == disk.name for disk in s.storage.disks)
