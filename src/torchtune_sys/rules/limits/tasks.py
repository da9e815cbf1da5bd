"""Rules on the number of processes and threads that the session may start."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Limit
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, need_if_there
from torchtune_sys.rules.gates import ranks_here
from torchtune_sys.rules.limits.common import IN_CONTAINER, SOURCE, below, both, count, limit_of, verdict_on


def tasks_needed(s: Snapshot) -> int:
    """Return processes and threads that training takes here, by a cautious count: ranks × (threads + 32 of CUDA, NCCL and autograd + workers × 4)."""
    ranks = ranks_here(s)
    threads = s.intent.threads
    if threads is None:
        cores = None if isinstance(s.cpu, Missing) else s.cpu.cores
        # torchrun sets OMP_NUM_THREADS=1 with several ranks; a single process takes one thread per core
        threads = 1 if ranks > 1 or cores is None or isinstance(cores, Missing) else cores
    return ranks * (threads + 32 + 4 * (s.intent.workers or 0))


@rule(
    id="nproc-limit-too-low",
    title="The limit on the user's processes and threads is too low",
    severity=Severity.WARNING,
    cause="nproc-limit-too-low",
    fix=(Limit(item="nproc", target="unlimited"), Advice(text=IN_CONTAINER.format("nproc=-1"))),
    params=(Param("min_soft", 1024, "soft limit below which even a small job is at risk"),),
)
def nproc_limit_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The soft limit on the user's tasks is lower than the total of this job's ranks, threads and workers, or than these and what the user runs already.

    Why it matters
    The limit counts all threads of the user on the host, including other jobs. Beyond it, fork and pthread_create fail with
    EAGAIN: "can't start new thread", "OpenBLAS blas_thread_init: pthread_create failed", "fork: Resource temporarily
    unavailable".

    When to leave it
    The job is smaller than assumed (specify its size with --nproc-per-node, --workers and --threads).

    References
    setrlimit(2), RLIMIT_NPROC: not enforced for a process with CAP_SYS_RESOURCE or CAP_SYS_ADMIN. oci-hpc sets 40960 on GPU shapes.
    Linux kernel/fork.c (copy_process): these capabilities, and root, count in the initial user namespace only
    """
    session = need(s.session)
    if need(session.uid) == 0 and not known(session.user_namespace, False):
        raise NotApplicable("the limit does not apply to root (it may apply to the job's user)")
    limit = limit_of(s, "nproc")
    needed, taken = tasks_needed(s), known(need(s.limits).user_tasks, 0)
    wanted = max(int(p["min_soft"]), needed)
    short = not below(limit.soft, wanted) and below(limit.soft, needed + taken)
    yield Evidence(
        subject="nproc",
        seen=both(limit, count) + f", {taken} of them taken" * short,
        wanted=f"room for {needed} more" if short else f"soft {wanted} or more",
        verdict=verdict_on(short or below(limit.soft, wanted)),
        source=SOURCE,
    )


_MORE_TASKS = Advice(
    text="raise the limit: docker/podman run --pids-limit -1, podPidsLimit (kubelet), TasksMax=infinity (systemd unit or user-.slice)"
)


@rule(
    id="cgroup-pids-exhausted",
    title="The cgroup has no room for another process or thread",
    severity=Severity.ERROR,
    cause="cgroup-pids-limit",
    fix=(Advice(text="end what is left of earlier runs (ps -eLf | wc -l counts threads), or"), _MORE_TASKS),
    params=(Param("percent", 98, "share of pids.max from which on it counts as used up, where tasks were refused already"),),
)
def cgroup_pids_exhausted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cgroup, or a parent of it, holds as many tasks as its pids.max allows; or nearly as many, and has refused some.

    Why it matters
    Each fork and pthread_create fails with EAGAIN: "can't start new thread", "Resource temporarily unavailable", "fork: retry". Not even a shell
    starts.

    When to leave it
    Never: nothing starts there.

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, pids.max, pids.current and pids.events (max: how often the limit was hit)
    """
    limits = need(s.limits)
    most = need(limits.pids_max)
    if most == float("inf"):
        raise NotApplicable("no cgroup limits the number of tasks")
    taken = need_if_there(limits.pids_current, "the group does not tell how many tasks it holds")
    full = taken >= most
    close = taken * 100 >= most * float(p["percent"])
    refused = 0 if full or not close or absent(limits.pids_refused) else need(limits.pids_refused)
    yield Evidence(
        subject="pids.max",
        seen=f"{most:.0f}, {taken} of them taken" + f", {refused} more refused" * (refused > 0),
        wanted="room for more",
        verdict=verdict_on(full or refused > 0),
        source=limits.pids_source,
    )


@rule(
    id="cgroup-pids-limit",
    title="The cgroup allows too few processes and threads",
    severity=Severity.WARNING,
    cause="cgroup-pids-limit",
    superseded_by=("cgroup-pids-exhausted",),
    fix=(_MORE_TASKS,),
)
def cgroup_pids_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The lowest pids.max of this cgroup and its parents allows fewer tasks than the ranks, threads and workers need.

    Why it matters
    Threads count as tasks. At the limit, fork and pthread_create fail with EAGAIN even if ulimit -u is generous, and the kernel
    logs "cgroup: fork rejected by pids controller".

    When to leave it
    The job is smaller than assumed (specify its size with --nproc-per-node, --workers and --threads).

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
        verdict=verdict_on(most - taken < wanted),
        source=limits.pids_source,
    )


@rule(
    id="aio-requests-used-up",
    title="Nearly all requests for asynchronous I/O that the kernel grants are taken",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="sudo sysctl -w fs.aio-max-nr=1048576, and the same in a file of /etc/sysctl.d; databases reserve many: stopping one lowers "
            "/proc/sys/fs/aio-nr"
        ),
    ),
    params=(Param("percent", 95, "share of fs.aio-max-nr from which on it is reported, percent"),),
)
def aio_requests_used_up(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """fs.aio-nr, what all programs of the host have reserved by io_setup, is near to fs.aio-max-nr.

    Why it matters
    io_setup then fails with EAGAIN for everybody: DeepSpeed's swapping to NVMe (ZeRO-Infinity, its operator async_io) and other readers by libaio end with "Resource
    temporarily unavailable".

    When to leave it
    Nothing here uses libaio; torch itself does not.

    References
    Linux Documentation/admin-guide/sysctl/fs.rst (aio-nr and aio-max-nr: 65536 by default); io_setup(2); DeepSpeed csrc/aio
    """
    used, most = need_if_there(need(s.limits).aio_requests, "this kernel has no asynchronous I/O to reserve")
    yield Evidence(
        subject="fs.aio-nr",
        seen=f"{used} of {most} taken",
        wanted=f"less than {p['percent']} %",
        verdict=verdict_on(most > 0 and used * 100 >= most * int(p["percent"])),
        source="/proc/sys/fs/aio-nr",
    )
