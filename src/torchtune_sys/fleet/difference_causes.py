"""The causes that a difference between nodes of a job stands for."""

from __future__ import annotations

_ALIKE = (
    ("job.torch", "software-differs-between-nodes"),
    ("job.cuda", "software-differs-between-nodes"),
    ("driver.module_version", "software-differs-between-nodes"),
    ("gpu.driver_version", "software-differs-between-nodes"),
    ("gpu.cuda_driver_version", "software-differs-between-nodes"),
    ("kind", "hardware-differs-between-nodes"),
    ("gpu.devices", "hardware-differs-between-nodes"),
    ("job.mtu", "mtu-differs-between-nodes"),
    ("session.env[NCCL_", "environment-differs-between-nodes"),
    ("session.env[GLOO_", "environment-differs-between-nodes"),
)
"""Facts that a job must have alike on all nodes, by the begin of their names: what NCCL and gloo agree on when they connect, or what decides which bits are
computed."""
_OWN = (
    "session.env[NCCL_DEBUG",
    "session.env[NCCL_SOCKET_IFNAME]",
    "session.env[GLOO_SOCKET_IFNAME]",
    "session.env[NCCL_IB_HCA]",
)
"""Of these each host may have its own: what is logged, and what its interfaces are called."""
_NOTED = (
    (("job.", "python", "driver", "kernel", "system", "software"), "software-differs-between-nodes"),
    (("gpu", "pci", "cpu", "memory", "numa", "hardware", "storage.disks"), "hardware-differs-between-nodes"),
    (("session.env",), "environment-differs-between-nodes"),
)
"""Others that may matter, as heavy as ``compare`` has them."""


def must_be_alike(fact: str) -> bool:
    """Return whether a job breaks where hosts differ in it.

    >>> must_be_alike("session.env[NCCL_ALGO]"), must_be_alike("session.env[NCCL_DEBUG]")
    (True, False)
    """
    return not fact.startswith(_OWN) and any(fact.startswith(begin) for begin, _ in _ALIKE)


def cause_of(fact: str) -> str | None:
    """Return the cause that a difference in this fact stands for; None where it stands for none.

    >>> cause_of("driver.module_version"), cause_of("gpu.devices[0].name"), cause_of("sysctl.net")
    ('software-differs-between-nodes', 'hardware-differs-between-nodes', None)
    """
    alike = next((cause for begin, cause in _ALIKE if fact.startswith(begin)), None)
    return alike or next((cause for begins, cause in _NOTED if fact.startswith(begins)), None)
