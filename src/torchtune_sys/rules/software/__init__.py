"""Packages that may change under a job, the next boot, and container runtimes."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.software.containers import RULES as CONTAINERS
from torchtune_sys.rules.software.next_boot import RULES as BOOT
from torchtune_sys.rules.software.packages import driver_installed_twice, driver_upgrades_unattended, reboot_pending
from torchtune_sys.rules.software.session import RULES as SESSION

RULES: tuple[Rule, ...] = (
    driver_upgrades_unattended,
    driver_installed_twice,
    reboot_pending,
    *BOOT,
    *CONTAINERS,
    *SESSION,
)
