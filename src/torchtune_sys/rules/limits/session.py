"""Resource limits of the session, tasks of the cgroup, logind's RemoveIPC."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Limit
from torchtune_sys.model.facts.limits import SessionLimit as Seen
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.gates import gpu_count, gpu_host, training_network
from torchtune_sys.rules.limits.common import IN_CONTAINER, SOURCE, below, both, count, limit_of, should_be_unlimited, verdict_on

_GIB = 1 << 30
_MIB = 1 << 20


def _pinning_failed(s: Snapshot) -> str:
    """Return the verbs call that is known to have failed for lack of memory that may be locked."""
    return "" if isinstance(s.limits, Missing) else known(s.limits.pinning_failed, "")


def _rdma(s: Snapshot) -> None:
    if _pinning_failed(s):
        return
    gpu_host(s)  # a login node has the fabric, too, and its limits are not those of a job
    if not training_network(s):  # ordinary adapters offer RDMA over Ethernet as well, which nothing uses where one host trains
        raise NotApplicable("no RDMA network for training is up, so nothing registers memory with one")


def _pinning_is_limited(s: Snapshot) -> Seen:
    """Return the memlock limit, where it binds: CAP_IPC_LOCK of the initial user namespace lifts it (capable() in ib_umem_get of the kernel)."""
    mapped = not isinstance(s.session, Missing) and known(s.session.user_namespace, False)
    if known(need(s.limits).ipc_lock, False) and not mapped:
        raise NotApplicable("this session holds CAP_IPC_LOCK, which lifts the limit (the job's user may not)")
    return limit_of(s, "memlock")


@rule(
    id="memlock-limit-too-low",
    title="The limit on locked memory is too low for RDMA",
    severity=Severity.ERROR,
    cause="memlock-limit-too-low",
    fix=(Limit(item="memlock", target="unlimited"), Advice(text=IN_CONTAINER.format("memlock=-1"))),
    params=(Param("min_mib", 128, "locked memory below which registering even the first buffers fails, MiB"),),
    applies=_rdma,
)
def memlock_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """An RDMA network for training is up, but the session may lock only a distribution's default amount of memory (64 KiB, or 8 MiB with systemd).

    Why it matters
    Registering memory with a verbs device pins it. NCCL then fails with "Call to ibv_create_cq failed" or "ibv_reg_mr failed … Cannot
    allocate memory", and MPI says that the memlock limit is too low.

    When to leave it
    Nothing here uses the RDMA devices. InfiniBand, EFA and Ethernet of 100 Gb/s are judged; slower Ethernet only for a job that is known to span hosts.

    References
    Linux drivers/infiniband/core/umem.c: the soft RLIMIT_MEMLOCK holds unless the process has CAP_IPC_LOCK.
    limits.conf(5) does not reach systemd services: slurmd, dockerd and kubelet need LimitMEMLOCK=infinity (systemd.exec(5)).
    """
    limit = _pinning_is_limited(s)
    call = _pinning_failed(s)
    if call and limit.soft is not None:
        seen = f"{call} failed: cannot allocate memory; the limit is {size(limit.soft)}"
        yield Evidence(subject="memlock", seen=seen, wanted="unlimited", source="ulimit -l")
        return
    floor = int(p["min_mib"]) * _MIB
    yield should_be_unlimited("memlock", limit, floor)


@rule(
    id="memlock-limit-finite",
    title="The limit on locked memory may stop larger RDMA jobs",
    severity=Severity.WARNING,
    cause="memlock-limit-too-low",
    superseded_by=("memlock-limit-too-low",),
    fix=(Limit(item="memlock", target="unlimited"), Advice(text=IN_CONTAINER.format("memlock=-1"))),
    params=(Param("min_gib", 16, "locked memory that is known to be enough, GiB"),),
    applies=_rdma,
)
def memlock_limit_finite(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RDMA devices are active, and the limit on locked memory is above the usual defaults but below what large jobs pin.

    Why it matters
    The amount of pinned memory grows with the number of peers and channels, so a job that ran on two nodes may fail on twenty.

    When to leave it
    The cluster sets this limit on purpose, and its largest jobs have run.

    References
    awsome-distributed-training, EFA checks: a warning below 16 GiB. oci-hpc sets it to unlimited.
    """
    limit = _pinning_is_limited(s)
    yield should_be_unlimited("memlock", limit, int(p["min_gib"]) * _GIB)


@rule(
    id="nofile-limit-too-low",
    title="The limit on open files is low",
    severity=Severity.WARNING,
    cause="nofile-limit-too-low",
    fix=(Limit(item="nofile", target="65536"), Advice(text=IN_CONTAINER.format("nofile=65536:65536"))),
    params=(Param("min_hard", 8192, "hard limit on open files of one process"),),
)
def nofile_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The hard limit, to which NCCL raises the soft limit by itself, leaves little room for sockets and shared tensors.

    Why it matters
    Each tensor that a DataLoader worker passes takes a file descriptor, each peer a few sockets, each shard a file. The job fails
    with "Too many open files" or "received 0 items of ancdata". Without privileges, a process cannot raise the hard limit.

    When to leave it
    Jobs run on one host with few workers and shards, and ls /proc/PID/fd shows that the limit is enough.

    References
    NCCL, src/os/linux.cc: soft is raised to hard. torch.multiprocessing documentation, file_descriptor. systemd's default is 524288,
        the kernel's own 4096 (include/linux/fs.h, INR_OPEN_MAX).
    """
    limit = limit_of(s, "nofile")
    floor = int(p["min_hard"])
    yield Evidence(
        subject="nofile",
        seen=both(limit, count),
        wanted=f"hard {floor} or more",
        verdict=verdict_on(below(limit.hard, floor)),
        source=SOURCE,
    )


@rule(
    id="nofile-soft-limit-low",
    title="The soft limit on open files is low for this many workers",
    severity=Severity.ADVICE,
    cause="nofile-limit-too-low",
    fix=(
        Limit(item="nofile", target="65536"),
        Advice(text='ulimit -n 65536 before the job, or torch.multiprocessing.set_sharing_strategy("file_system")'),
    ),
    params=(Param("files_per_worker", 64, "descriptors that one worker's batches in flight need in the main process"),),
)
def nofile_soft_limit_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The tensors in flight from all workers of a rank may need more descriptors than the soft limit, which Python does not raise.

    Why it matters
    With the default sharing strategy, the receiving process holds a descriptor for each tensor until it is freed; a list of
    samples that are dicts of many tensors soon reaches 1024.

    When to leave it
    Each batch consists of one or two tensors.

    References
    torch.multiprocessing documentation, "Sharing strategies": file_descriptor is the default on Linux.
    """
    workers = s.intent.workers
    if not workers:
        raise NotApplicable("no number of DataLoader workers was given")
    limit = limit_of(s, "nofile")
    wanted = workers * int(p["files_per_worker"])
    yield Evidence(
        subject="nofile",
        seen=f"{both(limit, count)}; {workers} workers per rank",
        wanted=f"soft {max(wanted, 4096)} or more",
        verdict=verdict_on(below(limit.soft, wanted) and below(limit.soft, 4096)),
        source=SOURCE,
    )


@rule(
    id="address-space-limit",
    title="The address space of a process is limited (ulimit -v)",
    severity=Severity.ERROR,
    fix=(
        Limit(item="as", target="unlimited"),
        Advice(text="ulimit -v unlimited before the job; Slurm: VSizeFactor=0, PropagateResourceLimitsExcept=AS"),
    ),
    params=(
        Param("min_tib", 16, "address space above which the limit does not matter on a host with a GPU, TiB"),
        Param(
            "min_gib", 8, "the same without a GPU, where torch itself, its libraries and the stacks of its threads map a few, GiB"
        ),
    ),
)
def address_space_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_AS is finite on a host with GPUs, where programs reserve far more address space than they use; or is a few GiB anywhere.

    Why it matters
    When a context is created, CUDA reserves address space for the memory of the host and of all GPUs, and PyTorch's expandable
    segments reserve more. Reservations count towards this limit although they take no memory. The symptom is "out of memory" at
    initialisation; on a CPU "DefaultCPUAllocator: can't allocate memory" while memory is free.

    When to leave it
    The GPUs are not for the jobs of this session. Limit memory by a cgroup instead.

    References
    setrlimit(2), RLIMIT_AS. NVIDIA CUDA C programming guide, unified virtual address space. A reservation of 80 to 128 GiB per process
        was seen in microsoft/WSL#40401.
    """
    limit = limit_of(s, "as")
    gpus = gpu_count(s)
    floor = int(p["min_tib"]) << 40 if gpus else int(p["min_gib"]) << 30
    if not gpus and not below(limit.soft, floor):
        raise NotApplicable("no GPU on this host, and room for a process that trains on the CPU")
    yield should_be_unlimited("as", limit, floor)


@rule(
    id="data-segment-limit",
    title="The private memory of a process is limited (ulimit -d)",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(Limit(item="data", target="unlimited"), Advice(text=IN_CONTAINER.format("data=-1"))),
)
def data_segment_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_DATA is smaller than the memory, and since Linux 4.7 it covers every private writable mapping.

    Why it matters
    At the limit, malloc and new thread stacks fail with ENOMEM although memory is free.

    When to leave it
    A batch system sets it to what the job requested.

    References
    setrlimit(2), RLIMIT_DATA: since 4.7 also mmap(2).
    """
    limit = limit_of(s, "data")
    total = need(need(s.memory).total_bytes)
    yield should_be_unlimited("data", limit, total)


@rule(
    id="file-size-limit",
    title="The size of files is limited (ulimit -f)",
    severity=Severity.WARNING,
    cause="file-size-limit",
    fix=(Limit(item="fsize", target="unlimited"), Advice(text=IN_CONTAINER.format("fsize=-1"))),
    params=(Param("min_gib", 1024, "file size that no checkpoint exceeds, GiB"),),
)
def file_size_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_FSIZE is finite: a checkpoint, a data set cache or a shared-memory segment beyond it is cut off.

    Why it matters
    The process gets SIGXFSZ, or the write fails with EFBIG ("File too large"), mostly hours into a run. Segments in /dev/shm
    count as files too.

    When to leave it
    Checkpoints are known to be smaller, or sharded.

    References
    setrlimit(2), RLIMIT_FSIZE.
    """
    limit = limit_of(s, "fsize")
    yield should_be_unlimited("fsize", limit, int(p["min_gib"]) * _GIB)


@rule(
    id="cpu-time-limit",
    title="CPU time is limited (ulimit -t)",
    severity=Severity.WARNING,
    cause="cpu-time-limit",
    fix=(
        Advice(text="train in a job of the batch system: sites limit it on login nodes on purpose"),
        Advice(
            text="or ulimit -t unlimited before the job; where the hard limit forbids that, find who sets it: the item cpu of limits.conf (in minutes), LimitCPU="
        ),
    ),
    params=(Param("min_days", 7, "processor time per process that no run uses up, days"),),
)
def cpu_time_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_CPU is finite: it limits the CPU seconds that all threads of a process may use together.

    Why it matters
    At the soft limit the process gets SIGXCPU, which ends it, at the hard one SIGKILL. A training process that keeps eight CPUs busy uses eight seconds a second, and
    each DataLoader worker counts for itself: the run ends in the middle, and no message but the signal's says why.

    When to leave it
    Runs are known to be shorter, or the limit guards a login node where nobody trains.

    References
    setrlimit(2), RLIMIT_CPU. limits.conf(5), cpu. systemd.exec(5), LimitCPU=.
    """
    limit = limit_of(s, "cpu")
    floor = int(p["min_days"]) * 86400
    yield should_be_unlimited("cpu", limit, floor, _duration)


def _duration(seconds: int | None) -> str:
    """
    >>> _duration(None), _duration(60), _duration(3600), _duration(90)
    ('unlimited', '1 min', '1 h', '90 s')
    """
    if seconds is None:
        return "unlimited"
    unit, name = next(((size, name) for size, name in ((3600, "h"), (60, "min")) if seconds and seconds % size == 0), (1, "s"))
    return f"{seconds // unit} {name}"
