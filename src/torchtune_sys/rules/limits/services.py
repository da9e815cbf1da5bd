"""Locked memory in the context where jobs really start: below slurmd, containerd and the like."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs, OwnedFile
from torchtune_sys.model.facts.limits import ServiceLimits
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent_or_unsupported, need, need_if_there
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.gates import gpu_host, may_span_hosts, not_in_container, rdma_active
from torchtune_sys.rules.limits.common import below, both, count, limit_of, verdict_on
from torchtune_sys.rules.limits.tasks import tasks_needed

_MIB = 1 << 20
_STARTERS = ("slurmd", "pbs", "lsfd", "jupyterhub", "ray")
_PODS = ("kubelet", "k3s", "k3s-agent", "rke2-agent")
_POD_RUNTIMES = ("containerd", "crio", "k3s", "k3s-agent", "rke2-agent")


def _rdma_outside(s: Snapshot) -> None:
    not_in_container(s)
    gpu_host(s)
    may_span_hosts(s)
    if not rdma_active(s):
        raise NotApplicable("no active RDMA device, so nothing registers memory with one")


def _services(s: Snapshot, units: tuple[str, ...]) -> list[ServiceLimits]:
    found = need_if_there(need(s.limits).services, "there is no RDMA device")
    services = [service for service in found if service.unit in units]
    if not services:
        raise NotApplicable("no such service runs here")
    return services


def _judged(services: list[ServiceLimits], floor: int, wanted: str, *more: Advice) -> Iterator[Evidence]:
    """``more``: what helps beside a file for each service that is named."""
    for service in services:
        if isinstance(service.memlock, Missing):
            yield unsure(service.unit, service.memlock, wanted)
            continue
        yield Evidence(
            subject=service.unit,
            seen=both(service.memlock),
            wanted=wanted,
            verdict=verdict_on(below(service.memlock.hard, floor)),
            source=service.source,
            fix=(_drop_in(service.unit), *more) if more and below(service.memlock.hard, floor) else (),
        )


def _drop_in(unit: str) -> OwnedFile:
    return OwnedFile(
        path=f"/etc/systemd/system/{unit}.service.d/90-torchtune-sys.conf",
        content="[Service]\nLimitMEMLOCK=infinity\n",
        needs=Needs.SERVICE_RESTART,
    )


_FOR_PODS = Advice(text="or default_ulimits in crio.conf (CRI-O); or give the pods the capability IPC_LOCK")


@rule(
    id="service-memlock-too-low",
    title="The service that starts jobs has a memlock limit too low for RDMA",
    severity=Severity.WARNING,
    cause="memlock-limit-too-low",
    fix=(
        Advice(text="systemctl edit UNIT: [Service] LimitMEMLOCK=infinity, then restart the unit; running jobs keep their limit"),
    ),
    params=(Param("min_mib", 128, "locked memory below which registering even the first buffers fails, MiB"),),
    applies=_rdma_outside,
)
def service_memlock_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RDMA is active, but jobs inherit a low hard limit on locked memory from slurmd (or PBS, LSF, JupyterHub, Ray as a service).

    Why it matters
    ulimit -l shows unlimited in a login shell, but in a job the same program fails with "Call to ibv_create_cq failed" or "Cannot
    allocate memory". limits.conf applies to PAM logins; services get systemd's default (64 KiB, now 8 MiB).

    When to leave it
    Only storage uses the RDMA network (its clients are in the kernel and need no such limit), or jobs run on one host only, or as
    root with CAP_IPC_LOCK.

    References
    https://slurm.schedmd.com/faq.html#memlock
    systemd.exec(5), LimitMEMLOCK; Linux drivers/infiniband/core/umem.c
    """
    yield from _judged(_services(s, _STARTERS), int(p["min_mib"]) * _MIB, "hard unlimited (LimitMEMLOCK=infinity)")


@rule(
    id="service-nofile-too-low",
    title="The service that starts jobs has a low limit on open files",
    severity=Severity.WARNING,
    cause="nofile-limit-too-low",
    fix=(Advice(text="systemctl edit UNIT: [Service] LimitNOFILE=131072, then restart the unit; running jobs keep their limit"),),
    params=(Param("min_hard", 8192, "hard limit on open files of one process"),),
    applies=_rdma_outside,
)
def service_nofile_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On a host with RDMA, jobs inherit a low hard limit on open files from slurmd (or PBS, LSF, JupyterHub, Ray as a service).

    Why it matters
    Sockets to every peer, tensors passed by DataLoader workers and data shards all take file descriptors: the job fails with "Too
    many open files", although a login shell allows half a million.

    When to leave it
    Jobs have few workers and few peers.

    References
    systemd.exec(5), LimitNOFILE; NCCL, src/os/linux.cc: soft is raised to hard
    https://github.com/SchedMD/slurm/blob/master/etc/slurmd.service.in (LimitNOFILE=131072)
    """
    floor = int(p["min_hard"])
    for service in _services(s, _STARTERS):
        if isinstance(service.nofile, Missing):
            yield unsure(service.unit, service.nofile, f"hard {floor} or more")
            continue
        yield Evidence(
            subject=service.unit,
            seen=both(service.nofile, count),
            wanted=f"hard {floor} or more",
            verdict=verdict_on(below(service.nofile.hard, floor)),
            source=service.source,
        )


@rule(
    id="service-tasks-too-few",
    title="The service that starts jobs has a low limit on processes and threads",
    severity=Severity.WARNING,
    cause="cgroup-pids-limit",
    fix=(Advice(text="systemctl edit UNIT: [Service] TasksMax=infinity, then restart the unit"),),
    applies=_rdma_outside,
    nothing="no limit of the service's own binds its jobs",
)
def service_tasks_too_few(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cgroup of the service that runs the jobs has a pids.max below the total of this job's ranks, threads and workers.

    Why it matters
    All jobs of the service share it. At the limit, fork and pthread_create fail with EAGAIN even if ulimit -u is generous.

    When to leave it
    The job is smaller than assumed (specify its size with --nproc-per-node, --workers and --threads).

    References
    systemd.resource-control(5), TasksMax: 15 % of the system's tasks unless told otherwise
    Linux Documentation/admin-guide/cgroup-v2.rst, pids.max
    """
    wanted = tasks_needed(s)
    for service in _services(s, _STARTERS):
        if _elsewhere(service):
            continue
        if isinstance(service.tasks_max, Missing):
            yield unsure(service.unit, service.tasks_max, f"{wanted} or more")
            continue
        yield Evidence(
            subject=service.unit,
            seen=f"pids.max {service.tasks_max:.0f}",
            wanted=f"{wanted} or more",
            verdict=verdict_on(service.tasks_max < wanted),
            source=f"{service.unit}.service, pids.max",
        )


def _elsewhere(service: ServiceLimits) -> bool:
    """Its jobs are not in its control group, or it has no limit."""
    tasks = service.tasks_max
    return absent_or_unsupported(tasks) if isinstance(tasks, Missing) else tasks == float("inf")


@rule(
    id="container-memlock-too-low",
    title="Containers on this host inherit a low memlock limit",
    severity=Severity.ADVICE,
    cause="memlock-limit-too-low",
    fix=(
        _drop_in("containerd"),
        _FOR_PODS,
    ),
    params=(Param("min_mib", 128, "locked memory below which registering even the first buffers fails, MiB"),),
    applies=_rdma_outside,
)
def container_memlock_too_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Kubernetes runs here with RDMA, and the container runtime passes its own low limit on to every pod.

    Why it matters
    A pod specification has no field for ulimits (one is only being introduced). A pod without the capability IPC_LOCK inherits
    the limit of containerd or CRI-O, and cannot register memory with a network card.

    When to leave it
    All pods that use RDMA get the capability IPC_LOCK, as in the examples of NVIDIA's network operator.

    References
    https://github.com/kubernetes/kubernetes/issues/3595, kubernetes/enhancements KEP-5758
    https://github.com/containerd/containerd/blob/main/containerd.service; systemd.exec(5), LimitMEMLOCK
    """
    if not {service.unit for service in _services(s, _PODS)}:
        raise NotApplicable("Kubernetes does not run here")
    yield from _judged(_services(s, _POD_RUNTIMES), int(p["min_mib"]) * _MIB, "unlimited (LimitMEMLOCK=infinity)", _FOR_PODS)


@rule(
    id="slurm-propagates-memlock",
    title="Slurm passes the submitting shell's low memlock limit on to jobs",
    severity=Severity.ADVICE,
    cause="memlock-limit-too-low",
    fix=(Advice(text="slurm.conf: PropagateResourceLimitsExcept=MEMLOCK, then scontrol reconfigure"),),
    params=(Param("min_mib", 128, "locked memory below which registering even the first buffers fails, MiB"),),
    applies=_rdma_outside,
)
def slurm_propagates_memlock(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RDMA is active, slurm.conf passes the submitting shell's soft limit on to jobs (the default), and this session's limit is low.

    Why it matters
    A job submitted from a login node, notebook or cron with the usual 8 MiB cannot register memory, although every compute node
    is configured correctly; the same script works from another shell.

    When to leave it
    No jobs are submitted from here.

    References
    https://slurm.schedmd.com/faq.html#memlock, slurm.conf(5)
    """
    propagates = need(s.limits).slurm_propagates_memlock
    if not need_if_there(propagates, "there is no slurm.conf"):
        return
    soft = limit_of(s, "memlock").soft
    yield Evidence(
        subject="PropagateResourceLimits",
        seen=f"MEMLOCK is propagated, and this session has {size(soft)}",
        wanted="PropagateResourceLimitsExcept=MEMLOCK",
        verdict=verdict_on(below(soft, int(p["min_mib"]) * _MIB)),
        source="slurm.conf",
    )
