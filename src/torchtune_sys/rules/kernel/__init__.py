"""What the kernel logged: Xids, PCIe, memory and disk errors, killed processes."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.kernel import (
    accelerators,
    amd,
    crash,
    devices,
    disks,
    driver,
    exhausted,
    firewall,
    gpu,
    held_up,
    machine,
    memory_sharing,
    servers,
    sleep,
)

RULES = rules_of(
    gpu, amd, driver, memory_sharing, devices, disks, servers, machine, exhausted, crash, firewall, accelerators, sleep, held_up
)
