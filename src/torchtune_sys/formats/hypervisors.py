"""Which hypervisor a program's name for it means."""

from __future__ import annotations

_WORDS = (("microsoft", "microsoft"), ("hyperv", "microsoft"), ("kvm", "kvm"), ("vmware", "vmware"), ("xen", "xen"))
"""What stands in the names that the kernel's log ("Hypervisor detected: …", arch/x86/kernel/cpu/hypervisor.c), lscpu ("Hypervisor vendor"), the
device tree and paravirtual clocks (hyperv_clocksource_tsc_page, kvm-clock) give one; and its name in ``SystemFacts.hypervisor``."""


def meant(named: str) -> str:
    """Return the hypervisor's name among the facts, ``other`` for one that has none.

    >>> meant("Microsoft Hyper-V"), meant("tsc kvm-clock acpi_pm"), meant("Jailhouse")
    ('microsoft', 'kvm', 'other')
    """
    lower = named.lower()
    return next((name for word, name in _WORDS if word in lower), "other")
