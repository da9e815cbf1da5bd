"""Which rank of this host a process is, and of how many, as whoever started it says.

Source: torchrun's page (LOCAL_RANK), mpirun(1) of Open MPI, Intel MPI's reference (MPI_LOCALRANKID), MVAPICH2's guide, HPE PALS aprun(1),
IBM jsrun, flux-run(1), srun(1) (SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE, SLURM_CPU_BIND_TYPE, SLURM_GPUS_ON_NODE).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

STARTERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("FLUX_TASK_LOCAL_ID", ""),
    ("SLURM_LOCALID", ""),
)
"""Variables of the rank and of the number of ranks. Slurm's come last: a batch script has SLURM_LOCALID=0, and what mpirun or torchrun
starts from there inherits it."""


class LocalRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    ranks: int | None
    """On this host; None where nobody says."""
    source: str
    """The variable that told the rank."""


def local_rank(env: Mapping[str, str]) -> LocalRank | None:
    """What the first starter says that says anything; None without any, and where that is no number.

    >>> local_rank({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "SLURM_LOCALID": "0"})
    LocalRank(rank=3, ranks=8, source='LOCAL_RANK')
    """
    name = told_by(env)
    rank = _number(env.get(name, ""))
    if rank is None:
        return None
    ranks = _slurm_tasks(env) if name == "SLURM_LOCALID" else _number(env.get(dict(STARTERS)[name], ""))
    return LocalRank(rank=rank, ranks=ranks or None, source=name)


def told_by(env: Mapping[str, str]) -> str:
    """The variable that tells the rank; ``""`` where none does."""
    return next((name for name, _ in STARTERS if env.get(name)), "")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def _slurm_tasks(env: Mapping[str, str]) -> int | None:
    """Tasks on this node: ``SLURM_STEP_TASKS_PER_NODE`` is ``8(x2),4`` for three nodes, of which SLURM_NODEID is one."""
    node = _number(env.get("SLURM_NODEID", "")) or 0
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        at = 0
        for part in env.get(name, "").split(","):
            count, _, times = part.rstrip(")").partition("(x")
            tasks, repeated = _number(count), _number(times) if times else 1
            if not tasks or not repeated:
                break
            at += repeated
            if node < at or name == "SLURM_NTASKS_PER_NODE":
                return tasks
    return None


def slurm_binds_each(env: Mapping[str, str]) -> bool:
    """Whether Slurm gave the tasks different CPUs: then what this one may use is its own, and nothing to be shared out.

    >>> slurm_binds_each({"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x0F,0xF0"})
    True
    """
    kind = env.get("SLURM_CPU_BIND_TYPE", "").rstrip(":").split(",")[-1]
    if kind not in ("mask_cpu", "map_cpu", "mask_ldom", "map_ldom"):
        return False
    return len({mask.partition("*")[0].lower() for mask in env.get("SLURM_CPU_BIND_LIST", "").split(",")}) > 1


def slurm_gives_gpus_to_each(env: Mapping[str, str], ranks: int, seen: int) -> bool:
    """Whether each of ``ranks`` tasks here has GPUs of its own, of which this one sees ``seen``.

    srun does not hand its options on to tasks: it says how many GPUs the step has on this node, and where each task sees fewer, with
    enough for all of them to differ, they do. Older releases do not say it; then a batch script's options decide, which tasks inherit.

    >>> slurm_gives_gpus_to_each({"SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "8"}, ranks=8, seen=1)
    True
    """
    starter = local_rank(env)
    if starter is None or starter.source != "SLURM_LOCALID" or not 0 < seen < ranks:
        return False
    here = _number(env.get("SLURM_GPUS_ON_NODE", ""))
    if here is not None:
        return ranks * seen <= here
    bind = env.get("SLURM_GPU_BIND", "").rpartition("verbose,")[2]
    return (
        "SLURM_GPUS_PER_TASK" in env
        or "gres/gpu" in env.get("SLURM_TRES_PER_TASK", "")
        or env.get("SLURM_NTASKS_PER_GPU") == "1"
        or bind == "single:1"
        or bind.startswith("per_task:")
    )
