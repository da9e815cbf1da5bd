"""One module per family: ``probe(host, intent)`` reads, pure ``parse_*`` functions interpret."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Workload

Probe = Callable[[Host, Workload], Any]

WAIT_FOR_CHILDREN = ("python", "gpu")
"""The interpreter's, and NVML's where there is a GPU: these begin first, and the others run meanwhile."""
FAMILIES = (
    *WAIT_FOR_CHILDREN,
    "system",
    "session",
    "cpu",
    "numa",
    "memory",
    "sysctl",
    "limits",
    "storage",
    "network",
    "pci",
    "driver",
    "kernel",
    "software",
    "hardware",
)


def _probe(family: str) -> Probe:
    def probe(host: Host, intent: Workload) -> Any:
        return importlib.import_module(f"{__name__}.{family}.probe").probe(host, intent)

    return probe


PROBES: dict[str, Probe] = {family: _probe(family) for family in FAMILIES}
"""By family. A module is imported by the thread that probes with it: while a child is waited for, the others load."""
