"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.means import patched, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,stress,layers,optimizer,train,amp-bf16,dataloader,checkpoint,rendezvous,allreduce,stragglers,ddp,checkpoint-sharded"

_WAYS: tuple[tuple[str, str, str, Inject], ...] = (
    ("all-deterministic", "torch is told to compute deterministically, and to refuse what cannot (use_deterministic_algorithms)", "sitecustomize", patched("""
        import torch
        torch.use_deterministic_algorithms(True)
    """)),
    ("deterministic-or-told", "The same, where torch only warns of what cannot (warn_only=True)", "sitecustomize", patched("""
        import torch
        torch.use_deterministic_algorithms(True, warn_only=True)
    """)),
    ("one-rank-deterministic", "One rank alone computes deterministically, and does not fill memory", "sitecustomize", patched("""
        import torch
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    """, rank=1)),
    ("defaults-said-again", "A library says the defaults again: the device cpu, float32, highest precision, one thread between operations", "sitecustomize", patched("""
        import torch
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_interop_threads(1)
    """)),
    ("device-with-a-number", "The default device is cpu:0", "sitecustomize", patched("""
        import torch
        torch.set_default_device("cpu:0")
    """)),
    ("weights-are-swapped", "Conversions of a model swap its parameters (torch.__future__)", "sitecustomize", patched("""
        import torch
        torch.__future__.set_swap_module_params_on_conversion(True)
    """)),
    ("collector-tuned", "Python's collector is frozen and comes seldom; warnings go to the log", "sitecustomize", patched("""
        import gc
        import logging
        gc.freeze()
        gc.set_threshold(10000, 20, 20)
        logging.captureWarnings(True)
    """)),
    ("logs-of-torch", "TORCH_LOGS asks for what is compiled again and why, and for the distributed part", "environment", variables(TORCH_LOGS="recompiles,graph_breaks,+distributed")),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages=STAGES) for name, what, means, inject in _WAYS
)
