"""Checks of the pre-flight beside the rules: an interpreter without torch, a share of the CPUs, leftovers of earlier jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torchtune_sys.host.children.left_processes import Left
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.values import Missing
from torchtune_sys.preflight.policy import CPU_QUOTA, LEFTOVERS, NO_TORCH, Policy
from torchtune_sys.preflight.verdict import own
from torchtune_sys.rules.can_train import Device, ability

LOW_QUOTA = 0.5
"""From this share on, a job that waits for its slowest rank takes at least twice as long."""
LEFTOVER_BYTES = 1 << 30
"""Memory that one user's leftover processes may hold without a warning."""


def of_quota(seen: Snapshot, policy: Policy) -> list[Cause]:
    """Return a CPU quota of at most half of the CPUs that the process sees; in a container it is what was asked for (limits.cpu, --cpus), and no
    fault of the node. Whether other nodes have more is compared by the joint part."""
    cpu = seen.cpu
    if container_told(seen):
        return []
    if isinstance(cpu, Missing) or isinstance(cpu.quota, Missing) or isinstance(cpu.affinity, Missing) or math.isinf(cpu.quota):
        return []
    visible = len(cpu.affinity)
    if cpu.quota > LOW_QUOTA * visible:
        return []
    seen_ = f"quota of {cpu.quota:g} CPUs, {visible} visible ({cpu.quota_source})"
    return own(policy, CPU_QUOTA, "preflight:cpu-quota", Blame.NODE, Weight.WARNING, seen_)


TORCH = "preflight:torch"


def of_torch(seen: Snapshot, policy: Policy) -> list[Cause]:
    """Return a finding if the judged interpreter has no torch. What keeps an installed torch from working is for the rules."""
    found = ability(seen)
    if found.device is not Device.NONE:
        return []
    words = f"{found.why}: training could not be checked (--python PATH names the interpreter you train with)"
    return own(policy, NO_TORCH, TORCH, Blame.USER, Weight.WARNING, words)


def of_leftovers(left: Iterable[Left], policy: Policy) -> list[Cause]:
    """Return processes of users that outlived their job, by user, where they hold much memory."""
    by_user: dict[str, list[Left]] = {}
    for one in left:
        by_user.setdefault(one.user, []).append(one)
    causes = []
    for user, trees in by_user.items():
        held = sum(tree.anonymous_bytes for tree in trees)
        if held < LEFTOVER_BYTES:
            continue
        names = ", ".join(f"{tree.name} ({tree.pid})" for tree in trees[:3])
        words = f"{held / (1 << 30):.1f} GiB in {counted(sum(tree.processes for tree in trees), 'process', 'processes')} of {user}, outside of any job: {names}"
        causes += own(policy, LEFTOVERS, "preflight:leftover-processes", Blame.NODE, Weight.WARNING, words)
    return causes
