"""What the kernel logged: Xids, PCIe, memory and disk errors, killed processes."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.kernel import (
    amd,
    crash,
    devices,
    disks,
    driver,
    exhausted,
    firewall,
    gpu,
    machine,
    memory_sharing,
    servers,
)

RULES: tuple[Rule, ...] = (
    *gpu.RULES,
    *amd.RULES,
    *driver.RULES,
    *memory_sharing.RULES,
    *devices.RULES,
    *disks.RULES,
    *servers.RULES,
    *machine.RULES,
    *exhausted.RULES,
    *crash.RULES,
    *firewall.RULES,
)
