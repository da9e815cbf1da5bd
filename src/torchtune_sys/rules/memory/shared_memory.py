"""Shared memory in /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.formats.mounts import carrier
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, absent, known, need
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.gates import gpu_count

_MIB = 1 << 20
_CONTAINER_DEFAULT = 64 * _MIB
"""What Docker, containerd and so Kubernetes give a container."""
_GROW_SHM = (
    Advice(
        text="docker/podman run --ipc=host, or --shm-size=16g; on a host: mount -o remount,size=50% /dev/shm, and the same size in its line of "
        "/etc/fstab, if there is one"
    ),
    Advice(text="Kubernetes: mount an emptyDir with medium: Memory at /dev/shm"),
)


def _shared_memory_is_used(s: Snapshot) -> None:
    ranks, workers = s.intent.ranks, s.intent.workers
    if workers == 0 and ranks is not None and ranks <= 1:
        raise NotApplicable("one process without DataLoader workers needs no shared memory")


def _shared_memory_is_asked_for(s: Snapshot) -> bool:
    """Whether workers or several ranks are meant to run, or a GPU says that training is what this machine is for."""
    return bool(s.intent.workers) or (s.intent.ranks or 0) > 1 or gpu_count(s) > 0


def _with_shm(s: Snapshot) -> MemoryFacts:
    """Return the facts; NotApplicable where nothing is mounted on /dev/shm."""
    memory = need(s.memory)
    if absent(memory.shm_filesystem):
        raise NotApplicable("nothing is mounted on /dev/shm")
    return memory


@rule(
    id="dev-shm-too-small",
    title="/dev/shm is too small for DataLoader workers and NCCL",
    severity=Severity.ERROR,
    cause="dev-shm-too-small",
    fix=_GROW_SHM,
    applies=_shared_memory_is_used,
)
def dev_shm_too_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """DataLoader workers pass tensors through /dev/shm, and NCCL keeps its intra-node buffers there; 64 MiB is not enough for either.

    Why it matters
    A worker that finds the file system full dies of SIGBUS ("DataLoader worker is killed by signal: Bus error"), and NCCL fails
    with "Error while creating shared memory segment" or "unable to extend". One batch of 64 images of 224x224 in float32 takes 37 MiB.

    When to leave it
    The job runs in one process with num_workers=0 (specify --nproc-per-node 1 --workers 0). The sharing strategy file_system needs the
    space as well: its files are in /dev/shm, too.

    References
    PyTorch's package description: "either with --ipc=host or --shm-size command line options to nvidia-docker run".
    NCCL user guide, Troubleshooting, "Shared memory"; moby/moby: default ShmSize 64 MiB.
    """
    memory = _with_shm(s)
    total = need(memory.shm_size_bytes)
    small = total <= _CONTAINER_DEFAULT
    if small and not _shared_memory_is_asked_for(s):
        raise NotApplicable("no GPU, and neither workers nor several ranks were specified")
    yield Evidence(
        subject="/dev/shm",
        seen=f"{size(total)} ({known(memory.shm_filesystem, 'type unknown')})",
        wanted="1 GiB or more",
        verdict=Verdict.FAIL if small else Verdict.PASS,
        source="statvfs /dev/shm",
    )


@rule(
    id="dev-shm-small",
    title="/dev/shm is small for training",
    severity=Severity.WARNING,
    cause="dev-shm-too-small",
    superseded_by=("dev-shm-too-small",),
    fix=_GROW_SHM,
    params=(Param("min_mib", 1024, "smallest size of /dev/shm that is not reported, MiB"),),
    applies=_shared_memory_is_used,
)
def dev_shm_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/shm is larger than a container's default, but a few workers with large batches would fill it; or it does not exist, or is on a disk.

    Why it matters
    Each worker keeps prefetch_factor (2) batches in shared memory; NCCL adds a few MiB per pair of ranks. When it is full, a
    worker dies of SIGBUS, at a moment that depends on the data. Without a tmpfs there, shared memory is on a disk: each
    batch that a worker passes on is written out in the background, and its pages are found again only through the page cache.

    When to leave it
    Samples are small (text), or the space was measured to suffice under the real load (df /dev/shm while training).

    References
    PyTorch's package description on shared memory; torch.utils.data documentation, prefetch_factor.
    DeepSpeed's ds_report warns below 512 MiB; AMD's Primus node check refuses below 8 GiB.
    """
    memory = need(s.memory)
    if absent(memory.shm_filesystem):
        if gpu_count(s) == 0 and not s.intent.workers:
            raise NotApplicable("nothing is mounted on /dev/shm, and no workers were specified")
        yield Evidence(subject="/dev/shm", seen="nothing is mounted there", wanted="a tmpfs", source="/proc/self/mountinfo")
        return
    kind = known(memory.shm_filesystem, "")
    if kind and known(carrier(kind, ""), "memory") != "memory":
        yield Evidence(subject="/dev/shm", seen=f"{kind}, not in memory", wanted="a tmpfs", source="/proc/self/mountinfo")
        return
    total = need(memory.shm_size_bytes)
    wanted = int(p["min_mib"]) * _MIB
    verdict = Verdict.FAIL if total < wanted else Verdict.PASS
    if verdict is Verdict.PASS:
        need(memory.shm_filesystem)  # ds_report tells the size alone
    yield Evidence(
        subject="/dev/shm", seen=size(total), wanted=f"{size(wanted)} or more", verdict=verdict, source="statvfs /dev/shm"
    )


@rule(
    id="dev-shm-not-writable",
    title="No file can be created in /dev/shm",
    severity=Severity.ERROR,
    cause="dev-shm-too-small",
    fix=(
        Advice(
            text="mount it as distributions do: mount -o remount,rw,mode=1777 /dev/shm, with nr_inodes large enough for all files"
        ),
        Advice(text="if it is out of inodes, remove what dead jobs left there (ls -l /dev/shm)"),
    ),
    applies=_shared_memory_is_used,
)
def dev_shm_not_writable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/shm is mounted read-only, is not writable by this user, or has no inodes left.

    Why it matters
    DataLoader workers and NCCL create a file there for each block of memory they share. This fails with "unable to open shared
    memory object" or "unable to allocate shared memory", however much space is free.

    When to leave it
    A single process trains, without DataLoader workers (specify --nproc-per-node 1 --workers 0).

    References
    shm_overview(7), shm_open(3) (EACCES, EROFS, ENOSPC); Linux Documentation/filesystems/tmpfs.rst (nr_inodes)
    """
    memory = _with_shm(s)
    bad = ""
    if not need(memory.shm_writable):
        bad = "this user may not write there, or it is read-only"
    elif need(memory.shm_inodes_free) == 0:
        bad = "no inode is left"
    yield Evidence(
        subject="/dev/shm",
        seen=bad or "writable",
        wanted="writable",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source="access(2), statvfs /dev/shm",
    )


@rule(
    id="dev-shm-full",
    title="/dev/shm is nearly full",
    severity=Severity.WARNING,
    cause="dev-shm-too-small",
    fix=(
        Advice(
            text="see who owns the files in /dev/shm (ls -l, fuser -v) and remove what dead jobs left: torch_*, nccl-*, sem.*"
        ),
    ),
    params=(Param("min_free_mib", 512, "free space below which it counts as nearly full, MiB"),),
)
def dev_shm_full(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/shm is large enough but has little space left, usually because killed jobs left their segments behind.

    Why it matters
    Unused shared memory stays allocated until somebody deletes it, and it takes RAM. The next worker that writes dies of SIGBUS.

    When to leave it
    A running job fills it on purpose (a data set staged in RAM).

    References
    shm_overview(7): objects persist until shut-down or shm_unlink; NCCL user guide, Troubleshooting, "Shared memory".
    """
    memory = _with_shm(s)
    total, free = need(memory.shm_size_bytes), need(memory.shm_free_bytes)
    wanted = int(p["min_free_mib"]) * _MIB
    if total <= _CONTAINER_DEFAULT:
        raise NotApplicable("its size is judged by dev-shm-too-small")
    wanted = min(wanted, total // 2)
    verdict = Verdict.FAIL if free < wanted else Verdict.PASS
    yield Evidence(
        subject="/dev/shm",
        seen=f"{size(free)} free of {size(total)}",
        wanted=f"{size(wanted)} free",
        verdict=verdict,
        source="statvfs /dev/shm",
    )
