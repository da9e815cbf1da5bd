"""Rules on disks that no longer answer, and on a cgroup that may hardly read."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, absent_or_unsupported, need, need_any


@rule(
    id="disk-not-answering",
    title="The kernel has given up a disk, or is resetting it",
    severity=Severity.WARNING,
    cause="storage-io-error",
    fix=(
        Advice(
            text="see why in the kernel's log (dmesg | grep -iE 'nvme|sd[a-z]'), and whether the disk is healthy: smartctl -a, nvme smart-log"
        ),
        Advice(text="seat or replace the disk; one that is only offline: echo running | sudo tee /sys/block/NAME/device/state"),
    ),
    nothing="no NVMe controller and no SCSI or SATA disk tells its state",
)
def disk_not_answering(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A local NVMe controller is dead, or in a reset; or a SCSI or SATA disk is offline.

    Why it matters
    Each access to what lies on it fails with an I/O error, or waits. A file system that was mounted from it became read-only.

    When to leave it
    The disk was taken offline on purpose, or its firmware is being changed.

    References
    Linux drivers/nvme/host/sysfs.c (nvme_sysfs_show_state), drivers/scsi/scsi_sysfs.c (sdev_states)
    """
    for name, state in need(need(s.storage).states).items():
        yield Evidence(
            subject=name,
            seen=state,
            wanted="live or running",
            verdict=Verdict.PASS if state in ("live", "new", "running", "created") else Verdict.FAIL,
            source=f"/sys/class/nvme/{name}/state" if name.startswith("nvme") else f"/sys/block/{name}/device/state",
        )


@rule(
    id="cgroup-io-limited",
    title="The cgroup may read and write only slowly",
    severity=Severity.WARNING,
    params=(
        Param("mib_per_s", 500, "bytes per second below which a limit counts as low: what one SATA SSD reads"),
        Param("operations_per_s", 5000, "operations per second below which a limit counts as low"),
    ),
    fix=(
        Advice(
            text="raise or drop the limit: docker run --device-read-bps/--device-write-iops, IOReadBandwidthMax= and its like (systemd unit or slice), the "
            "container runtime's blockio class (Kubernetes)"
        ),
    ),
)
def cgroup_io_limited(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """io.max of this cgroup, or of one above it, holds a low limit on a disk.

    Why it matters
    DataLoader workers and checkpoints wait at this limit, however fast the disk is; nothing says so but the waiting.

    When to leave it
    The data is on another disk or a file server, which the limit does not hold for; the number is that of /sys/dev/block.

    References
    Linux Documentation/admin-guide/cgroup-v2.rst (io.max: rbps, wbps, riops, wiops)
    """
    nothing = "no cgroup limits reading and writing, or none that can be seen from here"
    if absent_or_unsupported(need(s.storage).io_limits):
        raise NotApplicable(nothing)
    for limit in need_any(need(s.storage).io_limits, nothing):
        bytes_, count = float(p["mib_per_s"]) * (1 << 20), float(p["operations_per_s"])
        low = [f"{name}={value}" for name, value in limit.values.items() if value < (bytes_ if name.endswith("bps") else count)]
        yield Evidence(
            subject=f"disk {limit.device}",
            seen=" ".join(low) or "high limits",
            wanted=f">= {p['mib_per_s']} MiB/s and {p['operations_per_s']} operations/s",
            verdict=Verdict.FAIL if low else Verdict.PASS,
            source=limit.source,
        )
