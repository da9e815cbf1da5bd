"""A snapshot without what belongs to the process that asked.

A hook of Slurm is a child of slurmd: its limits, CPUs, memory limit, working directory, environment and Python are slurmd's, and no job
will have them. They are taken out of the facts, so that no rule can judge them, whichever rules there are.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

FAMILIES = (
    "gpu",
    "system",
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
"""What is looked at in a hook: neither the session nor the Python one trains with."""
JOB_PLACES = ("/tmp",)
"""Where jobs write although nobody names it; the hook's own working directory is slurmd's."""
_HIDDEN = Missing(Why.NOT_RECORDED, "pre-flight", "in a hook the host is judged, not the process that asks")
_FIELDS: dict[str, tuple[str, ...]] = {
    "cpu": ("affinity", "cpuset", "quota", "effective"),
    "numa": ("allowed_mems",),
    "memory": ("cgroup_limit_bytes",),
    "limits": ("pids_max", "pids_current", "ipc_lock"),
}
"""Facts of the process, by family."""


def host_only(seen: Snapshot) -> Snapshot:
    """``seen`` with every fact of the asking process Missing(NOT_RECORDED)."""
    changed: dict[str, object] = {"session": _HIDDEN, "python": _HIDDEN}
    for family, names in _FIELDS.items():
        facts = getattr(seen, family)
        if not isinstance(facts, Missing):
            changed[family] = msgspec.structs.replace(facts, **dict.fromkeys(names, _HIDDEN))
    limits = changed.get("limits", seen.limits)
    if not isinstance(limits, Missing) and limits is not _HIDDEN:
        changed["limits"] = msgspec.structs.replace(limits, limits=dict.fromkeys(seen.limits.limits, _HIDDEN))  # type: ignore[type-var,union-attr]
    return msgspec.structs.replace(seen, **changed)
