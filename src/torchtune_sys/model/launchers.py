"""Launchers and batch systems: their environment variables, and which rank of this host a process is.

Source: torchrun's page (LOCAL_RANK), mpirun(1) of Open MPI, Intel MPI's reference (MPI_LOCALRANKID), MVAPICH2's guide, HPE PALS aprun(1),
IBM jsrun, flux-run(1), condor_submit(1), srun(1) (SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE, SLURM_CPU_BIND_TYPE, SLURM_GPUS_ON_NODE).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from torchtune_sys.model.numbers import natural


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """The environment variables by which one launcher or batch system tells a process what it is; ``""`` where it has none."""

    name: str
    job: str = ""
    """Set in every process of a job."""
    rank: str = ""
    ranks: str = ""
    local_rank: str = ""
    """The rank on this host."""
    local_ranks: str = ""
    node: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.job, self.rank, self.ranks, self.local_rank, self.local_ranks, self.node)))


LAUNCHERS = (
    Launcher(
        name="torchrun",
        rank="RANK",
        ranks="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_ranks="LOCAL_WORLD_SIZE",
        node="NODE_RANK",
    ),
    Launcher(name="torchrun's agent", node="GROUP_RANK"),
    Launcher(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        ranks="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(name="Intel MPI", rank="PMI_RANK", ranks="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_ranks="MPI_LOCALNRANKS"),
    Launcher(
        name="MVAPICH2",
        rank="MV2_COMM_WORLD_RANK",
        ranks="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_ranks="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(name="PALS", rank="PALS_RANKID", local_rank="PALS_LOCAL_RANKID", local_ranks="PALS_LOCAL_SIZE"),
    Launcher(
        name="jsrun",
        rank="JSM_NAMESPACE_RANK",
        ranks="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_ranks="JSM_NAMESPACE_LOCAL_SIZE",
    ),
    Launcher(name="PMIx", rank="PMIX_RANK"),
    Launcher(name="Flux", job="FLUX_JOB_ID", rank="FLUX_TASK_RANK", local_rank="FLUX_TASK_LOCAL_ID"),
    Launcher(name="Slurm", job="SLURM_JOB_ID", rank="SLURM_PROCID", local_rank="SLURM_LOCALID", node="SLURM_NODEID"),
    Launcher(name="PBS", job="PBS_JOBID"),
    Launcher(name="LSF", job="LSB_JOBID"),
    Launcher(name="HTCondor", job="_CONDOR_SLOT"),
)
"""The one table of these names: what reads the environment, and what lets a variable through to be read, asks it. It lies in model because
host and rules both need it. Batch systems come last: a batch script has SLURM_LOCALID=0, and what mpirun or torchrun starts from there
inherits it."""
VARIABLES = frozenset(name for launcher in LAUNCHERS for name in launcher.variables)
JOB_VARIABLES = tuple(launcher.job for launcher in LAUNCHERS if launcher.job)
RANK_VARIABLES = tuple(name for launcher in LAUNCHERS for name in (launcher.rank, launcher.node) if name)
"""In this order the first that is set says whether a process, or its host, is the first of the job."""
LOCAL_RANK_VARIABLES = tuple(launcher.local_rank for launcher in LAUNCHERS if launcher.local_rank)
STARTERS = tuple((launcher.local_rank, launcher.local_ranks) for launcher in LAUNCHERS if launcher.local_rank)
"""Variables of the local rank and of the number of ranks on the host."""


class LocalRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    ranks: int | None
    """On this host; None where nobody says."""
    source: str
    """The variable that told the rank."""


def local_rank(env: Mapping[str, str]) -> LocalRank | None:
    """Return what the first starter says that says anything; None without any, and where that is not a number.

    >>> local_rank({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "SLURM_LOCALID": "0"})
    LocalRank(rank=3, ranks=8, source='LOCAL_RANK')
    """
    name = launcher_of(env)
    rank = natural(env[name], 6) if name else None
    if rank is None:
        return None
    ranks = _slurm_tasks(env) if name == "SLURM_LOCALID" else natural(env.get(dict(STARTERS)[name], ""), 6)
    return LocalRank(rank=rank, ranks=ranks or None, source=name)


def launcher_of(env: Mapping[str, str]) -> str:
    """Return the variable that tells the rank; ``""`` where none does."""
    return next((name for name, _ in STARTERS if env.get(name)), "")


def _slurm_tasks(env: Mapping[str, str]) -> int | None:
    """Tasks on this node: ``SLURM_STEP_TASKS_PER_NODE`` is ``8(x2),4`` for three nodes, of which SLURM_NODEID is one."""
    node = natural(env.get("SLURM_NODEID", ""), 6) or 0
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        at = 0
        for part in env.get(name, "").split(","):
            count, _, times = part.rstrip(")").partition("(x")
            tasks, repeated = natural(count, 6), natural(times, 6) if times else 1
            if not tasks or not repeated:
                break
            at += repeated
            if node < at or name == "SLURM_NTASKS_PER_NODE":
                return tasks
    return None


def slurm_binds_each(env: Mapping[str, str]) -> bool:
    """Return whether Slurm gave the tasks different CPUs: then what this one may use is its own, and nothing to be shared out.

    >>> slurm_binds_each({"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x0F,0xF0"})
    True
    """
    kind = env.get("SLURM_CPU_BIND_TYPE", "").rstrip(":").split(",")[-1]
    if kind not in ("mask_cpu", "map_cpu", "mask_ldom", "map_ldom"):
        return False
    return len({mask.partition("*")[0].lower() for mask in env.get("SLURM_CPU_BIND_LIST", "").split(",")}) > 1


def slurm_gives_gpus_to_each(env: Mapping[str, str], ranks: int, seen: int) -> bool:
    """Return whether each of ``ranks`` tasks here has GPUs of its own, of which this one sees ``seen``.

    srun does not hand its options on to tasks: it says how many GPUs the step has on this node, and where each task sees fewer, with
    enough for all of them to differ, they do. Older releases do not say it; then a batch script's options decide, which tasks inherit.

    >>> slurm_gives_gpus_to_each({"SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "8"}, ranks=8, seen=1)
    True
    """
    starter = local_rank(env)
    if starter is None or starter.source != "SLURM_LOCALID" or not 0 < seen < ranks:
        return False
    here = natural(env.get("SLURM_GPUS_ON_NODE", ""), 6)
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
