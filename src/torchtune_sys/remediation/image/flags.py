"""The flags that a container needs so that training has the same resources as on the host."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.image import Flag
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown
from torchtune_sys.model.values import known as value
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.remediation.install.host import os_of
from torchtune_sys.rules import gates
from torchtune_sys.rules.limits import tasks

_MIB = 1 << 20
_FILES = 65536
_RANK_MIB, _BATCH_MIB, _PREFETCHED, _WORKERS = 256, 64, 2, 4
"""NCCL's buffers of a rank; a large batch; batches that each worker has on the way (prefetch_factor); workers where nobody said."""


def has_rdma(s: Snapshot) -> bool:
    try:
        return gates.rdma_active(s)
    except (Unknown, NotApplicable):
        return False


def flags(s: Snapshot, build: str, rdma: bool, numa: bool) -> Iterator[Flag]:
    if build.startswith("rocm"):
        yield _amd_gpus(s)
    elif build != "cpu":
        yield _gpus(s)
    if build != "cpu" and _has_selinux(s):
        yield Flag(
            key="selinux",
            docker=(),
            podman=("--security-opt=label=disable",),
            why="SELinux, which is on here by default, lets no container open the GPUs' device files otherwise",
            source="docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
        )
    yield _shm(s)
    yield Flag(
        key="nofile",
        amount=_FILES,
        docker=("--ulimit", f"nofile={_FILES}:{_FILES}"),
        podman=("--ulimit", f"nofile={_FILES}:{_FILES}"),
        why="each tensor that a DataLoader worker hands over is an open file; a runtime's default may be 1024",
        source="docs.pytorch.org/docs/stable/multiprocessing.html, file_descriptor",
        promise=f"nofile={_FILES}",
    )
    yield _tasks(s)
    if rdma or has_rdma(s):
        yield from _rdma()
    if numa:
        yield Flag(
            key="numa",
            docker=("--cap-add", "SYS_NICE"),
            podman=(),
            why="numactl sets memory policies, which Docker's seccomp profile allows with this capability alone (Podman's allows them); "
            "a user that is not root gets nothing else by it",
            source="moby issue 37241; containers/common pkg/seccomp",
            promise="numa=1",
        )
    if (s.intent.nodes or 1) > 1:
        yield Flag(
            key="network",
            docker=("--network=host",),
            podman=("--network=host",),
            why="ranks on several hosts reach each other by the hosts' addresses; RoCE's addresses belong to a network namespace",
            source="NCCL user guide, Networking issues",
        )


def _has_selinux(s: Snapshot) -> bool:
    os = os_of(s)
    return os is not None and not {"fedora", "rhel", "centos"}.isdisjoint((os.id, *os.id_like)) and os.id != "amzn"


def _gpus(s: Snapshot) -> Flag:
    shown = () if isinstance(s.gpu, Missing) else value(s.gpu.devices, ())
    # CUDA shows one instance of all that MIG makes
    split = any(value(gpu.mig, False) for gpu in shown)
    number = 1 if split else max(len(cards(s)), 1)
    return Flag(
        key="gpus",
        amount=number,
        docker=("--gpus", "all"),
        podman=("--device", "nvidia.com/gpu=all"),
        why="the GPUs with the driver's libraries, by nvidia-container-toolkit (Podman: by CDI, after nvidia-ctk cdi generate, and under SELinux with --security-opt=label=disable)",
        source="docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
        promise=f"gpus={number}",
    )


def _amd_gpus(s: Snapshot) -> Flag:
    number = 0 if isinstance(s.driver, Missing) else len(value(s.driver.amd_devices, ()))
    words = ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", '"$(stat -c %g /dev/kfd)"')
    return Flag(
        key="amd-gpus",
        amount=max(number, 1),
        docker=words,
        podman=words,
        why="the GPUs, and the host's group that may open them (a rootless Podman: --group-add keep-groups, with crun)",
        source="rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html; ROCm/ROCm-docker issue 116",
        promise=f"gpus={max(number, 1)}",
    )


def shm_mib(ranks: int, workers: int | None, memory_bytes: int) -> int:
    """Return the size of /dev/shm in MiB: room for what ranks and workers have on the way, in whole GiB of a power of two, at most half of the host's memory.

    >>> shm_mib(1, 0, 64 << 30), shm_mib(8, 4, 1 << 40), shm_mib(8, 16, 32 << 30)
    (1024, 8192, 16384)
    """
    need = ranks * (_RANK_MIB + (_WORKERS if workers is None else workers) * _PREFETCHED * _BATCH_MIB)
    most = memory_bytes // _MIB // 2 if memory_bytes else need * 2
    size = 1024
    while size < need and size * 2 <= most:
        size *= 2
    return size


def _ranks(s: Snapshot) -> int:
    try:
        return gates.ranks_here(s)
    except (Unknown, NotApplicable):
        return 1


def _shm(s: Snapshot) -> Flag:
    memory = 0 if isinstance(s.memory, Missing) else value(s.memory.total_bytes, 0)
    ranks, workers = _ranks(s), s.intent.workers
    size = shm_mib(ranks, workers, memory)
    words = f"--shm-size={size // 1024}g"
    processes = f"{ranks} {'rank' if ranks == 1 else 'ranks'} with {_WORKERS if workers is None else workers} DataLoader workers"
    return Flag(
        key="shm",
        amount=size,
        docker=(words,),
        podman=(words,),
        why=f"for {processes}: the default of 64 MiB holds neither their batches nor NCCL's buffers. It takes memory only when it is used. "
        "--ipc=host would do, too, but leaves what killed jobs forget in the host's /dev/shm",
        source="rules dev-shm-too-small and dev-shm-small",
        promise=f"shm={size}",
    )


def _tasks(s: Snapshot) -> Flag:
    try:
        number = max(1024, tasks.tasks_needed(s))
    except (Unknown, NotApplicable):
        number = 1024
    return Flag(
        key="tasks",
        amount=number,
        docker=("--pids-limit=-1",),
        podman=("--pids-limit=-1",),
        why="threads count as tasks, and Podman allows 2048 by default (Docker sets no limit unless it is told to)",
        source="rule cgroup-pids-limit; podman-run(1)",
        promise=f"tasks={number}",
    )


def _rdma() -> Iterator[Flag]:
    yield Flag(
        key="infiniband",
        docker=("--device", "/dev/infiniband"),
        podman=("--device", "/dev/infiniband"),
        why="the RDMA cards; NCCL takes TCP without",
        source="NCCL user guide, Networking issues",
        promise="infiniband=1",
    )
    yield Flag(
        key="memlock",
        docker=("--ulimit", "memlock=-1"),
        podman=("--ulimit", "memlock=-1"),
        why="registering memory with an RDMA card locks it. --cap-add IPC_LOCK would not do: Docker gives it to root alone",
        source="rule memlock-limit-too-low; Linux drivers/infiniband/core/umem.c",
        promise="memlock=unlimited",
    )
