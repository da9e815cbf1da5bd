"""The machine's clock, heat and memory modules."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.hardware.machine import (
    clock_not_synchronised,
    clock_of_node_not_synchronised,
    clocksource_slow,
    cpu_throttled_for_heat,
    host_small_for_gpu_training,
    temperature_near_limit,
)
from torchtune_sys.rules.hardware.memory import RULES as MEMORY
from torchtune_sys.rules.hardware.services import RULES as SERVICES

RULES: tuple[Rule, ...] = (
    clock_not_synchronised,
    clock_of_node_not_synchronised,
    clocksource_slow,
    cpu_throttled_for_heat,
    temperature_near_limit,
    host_small_for_gpu_training,
    *MEMORY,
    *SERVICES,
)
