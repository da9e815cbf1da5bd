"""What the pre-flight finds beside the rules: a small quota, no torch, what an earlier job left behind."""

from __future__ import annotations

import math

import msgspec
import pytest

from torchtune_sys.host.children.left_processes import Left
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.preflight import Blame, Weight
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.preflight import own_checks
from torchtune_sys.preflight.policy import CPU_QUOTA, parse_policy
from torchtune_sys.rules import CATALOGUE

POLICY = parse_policy("", "policy.toml", CATALOGUE, "")
GIB = 1 << 30
UNREAD = Missing(Why.DENIED, "/sys/fs/cgroup/cpu.max", "permission denied")


def with_cpu(seen: Snapshot, **facts: object) -> Snapshot:
    assert not isinstance(seen.cpu, Missing)
    return msgspec.structs.replace(seen, cpu=msgspec.structs.replace(seen.cpu, **facts))


@pytest.mark.parametrize(
    ("quota", "visible", "is_low"),
    [(4.0, 8, True), (4.1, 8, False), (math.inf, 8, False), (8.0, 64, True), (UNREAD, 8, False)],
)
def test_a_quota_of_half_of_what_is_seen_is_named(healthy: Snapshot, quota: float | Missing, visible: int, is_low: bool) -> None:
    seen = with_cpu(healthy, quota=quota, affinity=CpuSet(range(visible)), quota_source="cpu.max")
    causes = own_checks.of_quota(seen, POLICY)
    assert [(cause.cause, cause.weight) for cause in causes] == ([(CPU_QUOTA, Weight.WARNING)] if is_low else [])
    assert all(cause.seen == f"quota of {quota:g} CPUs, {visible} visible (cpu.max)" for cause in causes)


def test_a_pod_s_own_limit_is_no_fault_of_its_node(healthy: Snapshot) -> None:
    """A pod with limits.cpu on a large node was told each time that the node has too small a quota."""
    assert not isinstance(healthy.system, Missing)
    seen = with_cpu(healthy, quota=8.0, affinity=CpuSet(range(64)), quota_source="cpu.max")
    inside = msgspec.structs.replace(seen, system=msgspec.structs.replace(healthy.system, container="kubernetes"))
    assert own_checks.of_quota(seen, POLICY) != [] and own_checks.of_quota(inside, POLICY) == []


def test_where_the_cpus_were_not_read_nothing_is_said_of_a_quota(healthy: Snapshot) -> None:
    assert own_checks.of_quota(msgspec.structs.replace(healthy, cpu=UNREAD), POLICY) == []
    assert own_checks.of_quota(with_cpu(healthy, quota=1.0, affinity=UNREAD), POLICY) == []


def test_an_interpreter_without_torch_is_the_user_s(healthy: Snapshot) -> None:
    assert own_checks.of_torch(healthy, POLICY) == []
    assert not isinstance(healthy.python, Missing)
    bare = msgspec.structs.replace(healthy.python, torch=Missing(Why.ABSENT, "site-packages", "no torch"), distributions={})
    (cause,) = own_checks.of_torch(msgspec.structs.replace(healthy, python=bare), POLICY)
    assert (cause.rule, cause.blame, cause.weight) == ("preflight:torch", Blame.USER, Weight.WARNING)
    assert cause.seen.endswith("training could not be checked (--python PATH names the interpreter you train with)")


def test_leftovers_are_summed_by_user() -> None:
    left = [
        Left(pid=10, user="ada", name="python", processes=3, anonymous_bytes=700 << 20),
        Left(pid=20, user="ada", name="python", processes=1, anonymous_bytes=GIB),
        Left(pid=30, user="bob", name="bash", processes=1, anonymous_bytes=GIB - 1),
    ]
    (cause,) = own_checks.of_leftovers(left, POLICY)
    assert cause.seen == "1.7 GiB in 4 processes of ada, outside of any job: python (10), python (20)"
    assert own_checks.of_leftovers(left, parse_policy('ignore = ["leftover-processes"]', "p.toml", CATALOGUE, "")) == []
