"""DataLoader workers against the CPUs of this session, and values to start from."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.dataloader import batch_room_bytes, starting_values
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known
from torchtune_sys.rules.cpu.common import budget, some
from torchtune_sys.rules.gates import gpu_count, gpu_host, ranks_here


@rule(
    id="dataloader-workers-exceed-cpus",
    title="There are more DataLoader workers than CPUs available to this session",
    severity=Severity.WARNING,
    cause="dataloader-workers-exceed-cpus",
    fix=(Advice(text="lower num_workers until ranks x workers fits the CPUs, or allow the job more CPUs"),),
)
def workers_exceed_cpus(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Ranks times workers exceed the usable CPUs (after affinity, cpuset and the cgroup's CPU quota).

    Why it matters
    The workers compete for the CPUs and keep the training process itself from running: the GPU waits, and start-up can look like
    a hang. torch's own warning considers only the affinity mask of one rank, not the quota or the other ranks.

    When to leave it
    The workers mostly wait for slow network storage rather than compute.

    References
    torch 2.15 utils/data/dataloader.py, check_worker_number_rationality
    Linux Documentation/admin-guide/cgroup-v2.rst, cpu.max
    """
    if s.intent.workers is None:
        raise NotApplicable("--workers does not say how many workers each rank starts")
    ranks, workers = ranks_here(s), s.intent.workers
    have = budget(s)
    total = ranks * workers
    if total <= have.cpus:
        have.settle()
    yield Evidence(
        subject="DataLoader workers",
        seen=f"{some(ranks, 'rank')} x {some(workers, 'worker')} on {some(have.cpus, 'CPU')}",
        wanted=f"at most {some(int(have.cpus / ranks), 'worker')} per rank",
        verdict=Verdict.FAIL if total > have.cpus else Verdict.PASS,
        source=have.source,
    )


@rule(
    id="dataloader-without-workers",
    title="The DataLoader has no workers, so the GPU waits for data",
    severity=Severity.ADVICE,
    fix=(Advice(text="start with the values of no-cpu-for-dataloader-workers (torchtune-sys check -v), and measure"),),
)
def without_workers(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The job is set to run with num_workers=0, the DataLoader default, although CPUs are free.

    Why it matters
    Without workers, each batch is read, decoded and collated between two steps, in the process that launches the kernels.

    When to leave it
    The data is in memory, ready to use; you are debugging; or a library loads it in its own threads (DALI, Ray Data).

    References
    PyTorch performance tuning guide, section on asynchronous data loading
    """
    if s.intent.workers is None:
        raise NotApplicable("--workers does not say how many workers each rank starts")
    gpu_host(s)
    have, ranks = budget(s), ranks_here(s)
    if s.intent.workers == 0:
        have.settle()
    start = starting_values(have.cpus, ranks, gpu=True)
    yield Evidence(
        subject="DataLoader workers",
        seen=f"{s.intent.workers} per rank, {some(have.cpus, 'CPU')} for {some(ranks, 'rank')}",
        wanted=f"{start.num_workers or 1} to start with",
        verdict=Verdict.FAIL if s.intent.workers == 0 and start.num_workers >= 1 else Verdict.PASS,
        source=have.source,
    )


@rule(
    id="no-cpu-for-dataloader-workers",
    title="No CPU is left for a DataLoader worker beside each rank",
    severity=Severity.ADVICE,
    fix=(Advice(text="give the job more CPUs, start fewer ranks, or preprocess the data and load it with num_workers=0"),),
)
def no_cpu_left(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Suggests initial DataLoader values for this host; fails if there is not at least one spare CPU per rank for a worker.

    Why it matters
    Each rank needs a CPU for itself, and the remaining CPUs load its data: without a CPU for at least one worker, loading and
    computing take turns.

    When to leave it
    The data needs no work on the CPU.

    References
    PyTorch performance tuning guide; ml-engineering, compute/cpu: two workers per rank for text, three or four for images
    torch 2.15 utils/data/dataloader.py: prefetch_factor is 2 for each worker
    """
    have, ranks = budget(s), ranks_here(s)
    gpus = 0 if isinstance(s.driver, Missing) or isinstance(s.driver.nvidia_devices, Missing) else gpu_count(s)
    start = starting_values(have.cpus, ranks, gpu=gpus > 0)
    if start.num_workers:
        have.settle()
    elif s.intent.workers == 0:
        raise NotApplicable("no worker is wanted (--workers 0)")
    yield Evidence(
        subject="DataLoader",
        seen=f"{some(have.cpus, 'CPU')} for {some(ranks, 'rank')}: start with {start}{_room(s, ranks, start.num_workers)}",
        wanted="at least one more CPU per rank",
        verdict=Verdict.PASS if start.num_workers else Verdict.FAIL,
        source=have.source,
    )


def _room(s: Snapshot, ranks: int, workers: int) -> str:
    """Return what /dev/shm leaves for a batch, where that is little enough to matter."""
    if isinstance(s.memory, Missing) or not workers:
        return ""
    free = known(s.memory.shm_free_bytes, 0)
    room = batch_room_bytes(free, ranks, workers)
    return f"; /dev/shm holds batches of {room >> 20} MiB at most" if 0 < room < 1 << 30 else ""
