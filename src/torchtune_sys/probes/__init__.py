"""One module per family: ``probe(host, intent)`` reads, pure ``parse_*`` functions interpret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.probes import (
    cpu,
    driver,
    gpu,
    limits,
    memory,
    network,
    numa,
    pci,
    python,
    session,
    storage,
    sysctl,
    system,
)

Probe = Callable[[Host, Intent], Any]

PROBES: dict[str, Probe] = {
    "python": python.probe,
    "gpu": gpu.probe,
    "system": system.probe,
    "session": session.probe,
    "cpu": cpu.probe,
    "numa": numa.probe,
    "memory": memory.probe,
    "sysctl": sysctl.probe,
    "limits": limits.probe,
    "storage": storage.probe,
    "network": network.probe,
    "pci": pci.probe,
    "driver": driver.probe,
}
"""By family; the ones that wait for a child process come first, so that the others run meanwhile."""
