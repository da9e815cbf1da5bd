"""NUMA: where memory, CPUs and GPUs lie, and what the session may use of them."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.numa.locality import (
    cpus_far_from_gpus,
    gpu_numa_unknown,
    memory_imbalanced,
    memory_on_other_node,
    node_offline,
    node_without_memory,
)

RULES: tuple[Rule, ...] = (
    gpu_numa_unknown,
    node_without_memory,
    memory_imbalanced,
    node_offline,
    memory_on_other_node,
    cpus_far_from_gpus,
)
