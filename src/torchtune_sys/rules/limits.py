"""Resource limits of the session, tasks of the cgroup, logind's RemoveIPC."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Limit, Needs, OwnedFile
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import Limit as Seen
from torchtune_sys.model.rule import Evidence, Param, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.gates import gpu_host, not_in_container, ranks_here, rdma_active

_GIB = 1 << 30
_MIB = 1 << 20
_SOURCE = "getrlimit"
_IN_CONTAINER = "in a container: docker run --ulimit {0}; Slurm: LimitXXX= of slurmd.service and PropagateResourceLimits"


def _limit(s: Snapshot, name: str) -> Seen:
    limits = need(s.limits).limits
    found: Fact[Seen] | None = limits.get(name)
    if found is None:
        raise NotApplicable(f"this system has no limit {name}")
    return need(found)


def _size(value: int | None) -> str:
    if value is None:
        return "unlimited"
    for unit, name in ((1 << 40, "TiB"), (_GIB, "GiB"), (_MIB, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}".replace(".0 ", " ")
    return f"{value} bytes"


def _count(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _below(value: int | None, floor: int) -> bool:
    return value is not None and value < floor


def _verdict(fails: bool) -> Verdict:
    return Verdict.FAIL if fails else Verdict.PASS


def _rdma(s: Snapshot) -> None:
    if not rdma_active(s):
        raise NotApplicable("no active RDMA device: nothing registers memory with one")


def _pinning_is_limited(s: Snapshot) -> Seen:
    """The memlock limit, where it binds: CAP_IPC_LOCK lifts it (ib_umem_get in the kernel)."""
    if known(need(s.limits).ipc_lock, False):
        raise NotApplicable("this session holds CAP_IPC_LOCK, which lifts the limit (the job's user may not)")
    return _limit(s, "memlock")


@rule(
    id="memlock-limit-too-low",
    title="The limit on locked memory is too low for RDMA",
    severity=Severity.ERROR,
    cause="memlock-limit-too-low",
    fix=(Limit(item="memlock", target="unlimited"), Advice(text=_IN_CONTAINER.format("memlock=-1"))),
    params=(Param("min_mib", 128, "locked memory below which registering the first buffers fails, MiB"),),
    applies=_rdma,
)
def memlock_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RDMA devices are active, and the session may lock no more memory than a distribution's default (64 KiB, or 8 MiB with systemd).

    Why it matters
    Registering memory with a verbs device pins it. NCCL then fails with "Call to ibv_create_cq failed" or "ibv_reg_mr failed … Cannot
    allocate memory", and MPI says that the memlock limit is too low.

    When to leave it
    Nothing here uses the RDMA devices.

    References
    Linux drivers/infiniband/core/umem.c: the soft RLIMIT_MEMLOCK holds unless the process has CAP_IPC_LOCK.
    limits.conf(5) does not reach systemd services: slurmd, dockerd and kubelet need LimitMEMLOCK=infinity (systemd.exec(5)).
    """
    limit = _pinning_is_limited(s)
    floor = int(p["min_mib"]) * _MIB
    yield Evidence(
        subject="memlock",
        seen=f"soft {_size(limit.soft)}, hard {_size(limit.hard)}",
        wanted="unlimited",
        verdict=_verdict(_below(limit.soft, floor)),
        source=_SOURCE,
    )


@rule(
    id="memlock-limit-finite",
    title="The limit on locked memory may stop larger RDMA jobs",
    severity=Severity.WARNING,
    cause="memlock-limit-too-low",
    fix=(Limit(item="memlock", target="unlimited"), Advice(text=_IN_CONTAINER.format("memlock=-1"))),
    params=(Param("min_gib", 16, "locked memory that has been seen to be enough, GiB"),),
    applies=_rdma,
)
def memlock_limit_finite(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RDMA devices are active, and the limit on locked memory lies between a default and what large jobs pin.

    Why it matters
    What is pinned grows with the number of peers and channels, so that a job which ran on two nodes fails on twenty.

    When to leave it
    The cluster sets this limit on purpose, and jobs of the largest size have run.

    References
    awsome-distributed-training, EFA checks: a warning below 16 GiB. oci-hpc sets it to unlimited.
    """
    limit = _pinning_is_limited(s)
    if _below(limit.soft, 128 * _MIB):
        raise NotApplicable("lower still: see memlock-limit-too-low")
    yield Evidence(
        subject="memlock",
        seen=f"soft {_size(limit.soft)}, hard {_size(limit.hard)}",
        wanted="unlimited",
        verdict=_verdict(_below(limit.soft, int(p["min_gib"]) * _GIB)),
        source=_SOURCE,
    )


@rule(
    id="nofile-limit-too-low",
    title="The hard limit on open files is low",
    severity=Severity.WARNING,
    cause="nofile-limit-too-low",
    fix=(Limit(item="nofile", target="65536"), Advice(text=_IN_CONTAINER.format("nofile=65536:65536"))),
    params=(Param("min_hard", 8192, "hard limit on open files of one process"),),
)
def nofile_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The hard limit, which NCCL raises the soft one to by itself, leaves little room for sockets and shared tensors.

    Why it matters
    Each tensor that a DataLoader worker hands over takes a file descriptor, each peer some sockets, each shard a file: "Too many open
    files", "received 0 items of ancdata". Without privilege nobody can go beyond the hard limit.

    When to leave it
    Few workers and few shards on a single host, as measured with ls /proc/PID/fd.

    References
    NCCL, src/os/linux.cc: soft is raised to hard. torch.multiprocessing documentation, file_descriptor. systemd's default is 524288,
    the kernel's own 4096 (include/linux/fs.h, INR_OPEN_MAX).
    """
    limit = _limit(s, "nofile")
    floor = int(p["min_hard"])
    yield Evidence(
        subject="nofile",
        seen=f"soft {_count(limit.soft)}, hard {_count(limit.hard)}",
        wanted=f"hard {floor} or more",
        verdict=_verdict(_below(limit.hard, floor)),
        source=_SOURCE,
    )


@rule(
    id="nofile-soft-limit-low",
    title="The soft limit on open files is low for that many workers",
    severity=Severity.ADVICE,
    cause="nofile-limit-too-low",
    fix=(
        Limit(item="nofile", target="65536"),
        Advice(text='ulimit -n 65536 before the job, or torch.multiprocessing.set_sharing_strategy("file_system")'),
    ),
    params=(Param("files_per_worker", 64, "descriptors that one worker's batches in flight take in the main process"),),
)
def nofile_soft_limit_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Tensors in flight from all workers of a rank may take more descriptors than the soft limit, which Python does not raise.

    Why it matters
    With the default sharing strategy the receiving process holds a descriptor for each tensor until it is freed; samples that are
    dicts of many tensors, kept in a list, reach 1024 soon.

    When to leave it
    Batches are one or two tensors each.

    References
    torch.multiprocessing documentation, "Sharing strategies": file_descriptor is the default on Linux.
    """
    workers = s.intent.workers
    if not workers:
        raise NotApplicable("no number of DataLoader workers was given")
    limit = _limit(s, "nofile")
    wanted = workers * int(p["files_per_worker"])
    yield Evidence(
        subject="nofile",
        seen=f"soft {_count(limit.soft)}, hard {_count(limit.hard)}; {workers} workers per rank",
        wanted=f"soft {max(wanted, 4096)} or more",
        verdict=_verdict(_below(limit.soft, wanted) and _below(limit.soft, 4096)),
        source=_SOURCE,
    )


def tasks_needed(s: Snapshot) -> int:
    """Processes and threads that training takes here, by a cautious count: ranks × (threads + 32 of CUDA, NCCL and autograd + workers × 4)."""
    ranks = ranks_here(s)
    threads = s.intent.threads
    if threads is None:
        cores = None if isinstance(s.cpu, Missing) else s.cpu.cores
        # torchrun sets OMP_NUM_THREADS=1 with several ranks; a single process takes one thread per core
        threads = 1 if ranks > 1 or cores is None or isinstance(cores, Missing) else cores
    return ranks * (threads + 32 + 4 * (s.intent.workers or 0))


@rule(
    id="nproc-limit-too-low",
    title="The user may not start enough processes and threads",
    severity=Severity.WARNING,
    cause="nproc-limit-too-low",
    fix=(Limit(item="nproc", target="unlimited"), Advice(text=_IN_CONTAINER.format("nproc=-1"))),
    params=(Param("min_soft", 1024, "soft limit below which even a small job is at risk"),),
)
def nproc_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The soft limit on the user's tasks is lower than what ranks, threads and workers of this job add up to.

    Why it matters
    The limit counts all threads of the user on the host, other jobs included. Past it, fork and pthread_create fail with EAGAIN:
    "can't start new thread", "OpenBLAS blas_thread_init: pthread_create failed", "fork: Resource temporarily unavailable".

    When to leave it
    The job is smaller than was assumed (say so with --ranks, --workers and --threads).

    References
    setrlimit(2), RLIMIT_NPROC: not enforced for a process with CAP_SYS_RESOURCE or CAP_SYS_ADMIN. oci-hpc sets 40960 on GPU shapes.
    """
    session = need(s.session)
    if need(session.uid) == 0:
        raise NotApplicable("root is not bound by it (the job's user may be)")
    limit = _limit(s, "nproc")
    wanted = max(int(p["min_soft"]), tasks_needed(s))
    yield Evidence(
        subject="nproc",
        seen=f"soft {_count(limit.soft)}, hard {_count(limit.hard)}",
        wanted=f"soft {wanted} or more",
        verdict=_verdict(_below(limit.soft, wanted)),
        source=_SOURCE,
    )


@rule(
    id="cgroup-pids-limit",
    title="The cgroup allows too few processes and threads",
    severity=Severity.WARNING,
    cause="cgroup-pids-limit",
    fix=(
        Advice(
            text="raise the limit: docker/podman run --pids-limit -1, podPidsLimit (kubelet), TasksMax=infinity (systemd unit or user-.slice)"
        ),
    ),
)
def cgroup_pids_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The tightest pids.max on the way to the root leaves fewer tasks than ranks, threads and workers add up to.

    Why it matters
    Threads count as tasks. At the limit fork and pthread_create fail with EAGAIN although ulimit -u is generous, and the kernel logs
    "cgroup: fork rejected by pids controller".

    When to leave it
    The job is smaller than was assumed (say so with --ranks, --workers and --threads).

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, pids.max. Podman's default is 2048; systemd's TasksMax for users is a third of the
    system's tasks.
    """
    limits = need(s.limits)
    most = need(limits.pids_max)
    if most == float("inf"):
        raise NotApplicable("no cgroup limits the number of tasks")
    taken = known(limits.pids_current, 0)
    wanted = tasks_needed(s)
    yield Evidence(
        subject="pids.max",
        seen=f"{most:.0f}, {taken} of them taken",
        wanted=f"room for {wanted} more",
        verdict=_verdict(most - taken < wanted),
        source=limits.pids_source,
    )


@rule(
    id="address-space-limit",
    title="The address space is limited (ulimit -v)",
    severity=Severity.ERROR,
    fix=(
        Limit(item="as", target="unlimited"),
        Advice(text="ulimit -v unlimited before the job; Slurm: VSizeFactor=0, PropagateResourceLimitsExcept=AS"),
    ),
    params=(Param("min_tib", 16, "address space from which the limit is no concern, TiB"),),
    applies=gpu_host,
)
def address_space_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_AS is finite on a host with GPUs, where programs reserve far more addresses than they use memory.

    Why it matters
    CUDA reserves address space for the memory of the host and of all GPUs at once when a context is created, and PyTorch's expandable
    segments more; reservations count towards this limit although they take no memory. The symptom is "out of memory" at initialisation.

    When to leave it
    The GPUs are not for the jobs of this session. Limit memory by a cgroup instead.

    References
    setrlimit(2), RLIMIT_AS. NVIDIA CUDA C programming guide, unified virtual address space. A reservation of 80 to 128 GiB per process
    was seen in microsoft/WSL#40401.
    """
    limit = _limit(s, "as")
    floor = int(p["min_tib"]) << 40
    yield Evidence(
        subject="as",
        seen=f"soft {_size(limit.soft)}, hard {_size(limit.hard)}",
        wanted="unlimited",
        verdict=_verdict(_below(limit.soft, floor)),
        source=_SOURCE,
    )


@rule(
    id="data-segment-limit",
    title="Private memory is limited (ulimit -d)",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(Limit(item="data", target="unlimited"),),
)
def data_segment_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_DATA is finite and smaller than the memory, and since Linux 4.7 it covers every private writable mapping.

    Why it matters
    malloc and new thread stacks fail with ENOMEM at the limit while memory is free.

    When to leave it
    A batch system sets it to what the job asked for.

    References
    setrlimit(2), RLIMIT_DATA: since 4.7 also mmap(2).
    """
    limit = _limit(s, "data")
    total = need(need(s.memory).total_bytes)
    yield Evidence(
        subject="data",
        seen=f"soft {_size(limit.soft)}, hard {_size(limit.hard)}",
        wanted="unlimited",
        verdict=_verdict(_below(limit.soft, total)),
        source=_SOURCE,
    )


@rule(
    id="file-size-limit",
    title="The size of files is limited (ulimit -f)",
    severity=Severity.WARNING,
    fix=(Limit(item="fsize", target="unlimited"),),
    params=(Param("min_gib", 1024, "file size that no checkpoint exceeds, GiB"),),
)
def file_size_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RLIMIT_FSIZE is finite: a checkpoint, a data set cache or a shared-memory segment past it is cut off.

    Why it matters
    The process gets SIGXFSZ, or the write fails with EFBIG ("File too large"), mostly hours into a run. Segments in /dev/shm are files too.

    When to leave it
    Checkpoints are known to be smaller, or sharded.

    References
    setrlimit(2), RLIMIT_FSIZE.
    """
    limit = _limit(s, "fsize")
    yield Evidence(
        subject="fsize",
        seen=f"soft {_size(limit.soft)}, hard {_size(limit.hard)}",
        wanted="unlimited",
        verdict=_verdict(_below(limit.soft, int(p["min_gib"]) * _GIB)),
        source=_SOURCE,
    )


@rule(
    id="logind-removes-ipc",
    title="logind deletes the shared memory of Slurm jobs when their user logs out",
    severity=Severity.WARNING,
    fix=(
        OwnedFile(
            path="/etc/systemd/logind.conf.d/90-torchtune-sys.conf",
            content="[Login]\nRemoveIPC=no\n",
            needs=Needs.SERVICE_RESTART,
        ),
    ),
    applies=not_in_container,
)
def logind_removes_ipc(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RemoveIPC is on where Slurm runs jobs that are no login sessions of their users.

    Why it matters
    When the user's last login session ends, logind deletes what that user owns in /dev/shm, under a job that still runs: bus errors
    and "unable to open shared memory object" in NCCL and DataLoader workers, seemingly at random.

    When to leave it
    Users never log in to this node, or jobs run as a system user (UID below 1000), which logind spares.

    References
    logind.conf(5), RemoveIPC; NVIDIA/deepops, roles/slurm, shmfix; NCCL user guide, Troubleshooting, "Shared memory".
    """
    limits = need(s.limits)
    if absent(limits.remove_ipc):
        raise NotApplicable("systemd-logind is not installed")
    if not need(limits.slurm):
        raise NotApplicable("no Slurm here: jobs run in login sessions or services of their own")
    on = need(limits.remove_ipc)
    yield Evidence(
        subject="RemoveIPC",
        seen="yes" if on else "no",
        wanted="no",
        verdict=_verdict(on),
        source=limits.remove_ipc_source,
    )


RULES: tuple[Rule, ...] = (
    memlock_limit_too_low,
    memlock_limit_finite,
    nofile_limit_too_low,
    nofile_soft_limit_low,
    nproc_limit_too_low,
    cgroup_pids_limit,
    address_space_limit,
    data_segment_limit,
    file_size_limit,
    logind_removes_ipc,
)
