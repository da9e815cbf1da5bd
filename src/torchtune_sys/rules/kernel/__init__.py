"""What the kernel reported: its log, as far as it reaches back and may be read."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.kernel import devices, driver, gpu, machine

RULES: tuple[Rule, ...] = (*gpu.RULES, *driver.RULES, *devices.RULES, *machine.RULES)
