"""Find where a pre-flight runs, by its environment: in a Slurm hook, inside a job, or alone."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.model.launchers import LAUNCHERS
from torchtune_sys.preflight import hooks

_MPI = ("Open MPI", "Intel MPI", "MVAPICH2", "PALS", "PMIx")
_STARTERS = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "GROUP_RANK")),
    ("mpirun", tuple(launcher.rank for launcher in LAUNCHERS if launcher.name in _MPI)),
    ("srun", ("SLURM_STEP_ID",)),
    ("sbatch", ("SLURM_JOB_ID",)),
    ("pod", ("KUBERNETES_SERVICE_HOST",)),
)
"""The innermost first: what srun starts inherits the batch script's variables, and torchrun those of both."""

NODE_VARIABLE = "TORCHTUNE_SYS_NODE"
"""What a node is called, where another name than its own is known to those who ask: an inventory's."""


def where(env: Mapping[str, str]) -> str:
    """Return what started this process: a hook's name, ``srun``, ``sbatch``, ``torchrun``, ``mpirun``, ``pod`` or ``alone``.

    >>> where({"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_ID": "7"}), where({"SLURM_JOB_ID": "7"}), where({})
    ('prolog', 'sbatch', 'alone')
    """
    return hooks.context(env) or next(
        (name for name, variables in _STARTERS if any(env.get(variable) for variable in variables)), "alone"
    )


def node_name(env: Mapping[str, str], hostname: str) -> str:
    """Return the name that whoever started us, or the scheduler, knows this node by; the host's own where there is none.

    >>> node_name({"SLURMD_NODENAME": "n1"}, "n1.cluster.example"), node_name({}, "n1")
    ('n1', 'n1')
    """
    return env.get(NODE_VARIABLE) or env.get("SLURMD_NODENAME") or hostname


def partition(env: Mapping[str, str]) -> str:
    """Return the job's partition; ``""`` outside of a job."""
    return env.get("SLURM_JOB_PARTITION", "")
