"""Names of exchanges that torch has changed, and how a backend says that it does not have one."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

SCATTERS, GATHERS = ("reduce_scatter_single", "reduce_scatter_tensor"), ("all_gather_single", "all_gather_into_tensor")
"""Names that mean the same, the newest first: torch 2.13 renamed these exchanges, and warns of the old names, which will go."""
_REFUSALS = ("Cannot use ReduceOp", "not support", "nsupported")
_FAULTS = ("NCCL error", "Cuda failure", "CUDA error")
"""NCCL passes the driver's "operation not supported" on: peer access, say, that fails."""
_REFUSALS_OF_GLOO = ("support", "Invalid scalar type")


def named_now(names: Tuple[str, ...]) -> List[Callable[..., Any]]:
    """Return what torch.distributed has of such names, at least one. Some trainings call the one, some the other."""
    import torch.distributed as dist

    return [getattr(dist, name) for name in names if hasattr(dist, name)]


def backend_has(backend: str, exchange: Callable[[], object]) -> bool:
    """Do an exchange, and say whether the backend has it. gloo learned some operations late, and some for the CPU only, NCCL has none on bits; they refuse those before
    they exchange anything, NCCL's process group with a ValueError (ProcessGroupNCCL.cpp, getNcclReduceOp)."""
    try:
        exchange()
    except (RuntimeError, ValueError) as error:
        is_refusal = not any(words in str(error) for words in _FAULTS)
        if is_refusal and any(words in str(error) for words in _REFUSALS + _REFUSALS_OF_GLOO * (backend == "gloo")):
            return False
        raise
    return True
