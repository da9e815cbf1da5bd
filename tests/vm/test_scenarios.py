"""A machine in good order is told of nothing; each fault that it is given is found, and nothing else with it. One boot serves all."""

from __future__ import annotations

import json
from typing import Any

import guest
import pytest
import scenarios_guest

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SMALL_GPU_HOST = {
    "no-nvidia-driver",  # nobody can give the guest a real one
    "cpus-too-few-for-gpus",  # 4 for 2 GPUs
    "host-small-for-gpu-training",  # 4 CPUs and 6 GiB
    "memory-modules-uneven",  # QEMU's DMI table holds one module for both nodes
}
"""What is true of the guest once two of its devices pass for H100s."""

EXPECTED = {
    "clean": set(),
    "link": {"pcie-link-degraded"},
    "port": {"ib-port-down"},
    "spinning": {"data-on-spinning-disk"},
    # 512 MiB are too little for a rank, and under a quarter of the host's 6 GiB; 1.5 CPUs leave none beside the one rank.
    "limits": {"cgroup-memory-tight", "cgroup-memory-far-below-host", "cgroup-pids-limit", "no-cpu-for-dataloader-workers"},
    "memory-apart": {"session-memory-on-other-node"},
    "gpus": SMALL_GPU_HOST,
    # Two CPUs for the two ranks of two GPUs: none is left for workers.
    "gpus-far": SMALL_GPU_HOST | {"session-cpus-far-from-gpus", "no-cpu-for-dataloader-workers"},
}

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    try:
        return scenarios_guest.boot(tmp_path_factory.mktemp("scenarios"))
    except guest.Unavailable as why:
        pytest.skip(f"no virtual machine here: {why}")


def results(printed: dict[str, bytes], scenario: str) -> Results:
    text = printed[f"{scenario}.check"]
    assert text, printed[f"{scenario}.err"].decode("utf-8", "replace")
    return {result["rule"]: result for result in json.loads(text)["results"]}


def found(printed: dict[str, bytes], scenario: str, rule: str) -> list[tuple[str, str, str]]:
    """(subject, seen, source) of what failed."""
    evidence = results(printed, scenario)[rule]["evidence"]
    return [(item["subject"], item["seen"], item["source"]) for item in evidence if item["verdict"] == "fail"]


@pytest.mark.parametrize("scenario", EXPECTED)
def test_the_fault_is_found_and_nothing_else(printed: dict[str, bytes], scenario: str) -> None:
    said = results(printed, scenario)
    assert {rule for rule, result in said.items() if result["verdict"] == "fail"} == EXPECTED[scenario]
    assert {rule for rule, result in said.items() if result["verdict"] == "crashed"} == set()


def test_what_has_no_fault_was_looked_at(printed: dict[str, bytes]) -> None:
    """Silence of the clean machine counts only where the rules judged it."""
    said = results(printed, "clean")
    judged = {rule for rule in set().union(*EXPECTED.values()) - SMALL_GPU_HOST if said[rule]["verdict"] == "pass"}
    # Without a GPU, or a cgroup limit, there is nothing to judge; what a virtual NVMe drive is made of, nobody can tell.
    assert judged == {"pcie-link-degraded", "ib-port-down", "session-memory-on-other-node", "no-cpu-for-dataloader-workers"}
    assert said["data-on-spinning-disk"]["verdict"] == "unknown"


def test_the_slow_link_is_that_of_the_card_below_the_wide_port(printed: dict[str, bytes]) -> None:
    ((_, seen, source),) = found(printed, "link", "pcie-link-degraded")
    assert seen == "x1 at 2.5 GT/s"
    assert source.endswith("/current_link_speed")


def test_the_port_that_is_down_is_named_with_its_interface(printed: dict[str, bytes]) -> None:
    ((subject, seen, _),) = found(printed, "port", "ib-port-down")
    assert subject == "rxe1:1"
    assert seen.startswith("DOWN, Disabled")
    assert "rail1 was given the address 10.20.1.5" in seen


def test_the_spinning_disk_is_named_through_all_layers(printed: dict[str, bytes]) -> None:
    """LUKS on a logical volume, and a logical volume on LUKS; made by cryptsetup and LVM themselves."""
    assert [(subject, seen) for subject, seen, _ in found(printed, "spinning", "data-on-spinning-disk")] == [
        ("data /cold", "dm-crypt sealed > lvm tank-cold > sda (hdd)"),
        ("data /vault", "lvm safe-vault > dm-crypt opened > sdb (hdd)"),
    ]


def test_of_limits_at_several_levels_the_tightest_counts(printed: dict[str, bytes]) -> None:
    """Of each kind the session's own group, or its parent, sets a looser one."""
    facts = json.loads(printed["limits.snapshot"])["facts"]
    top = "/sys/fs/cgroup/org"
    assert (facts["cpu"]["quota"], facts["cpu"]["quota_source"]) == (1.5, f"{top}/cpu.max")
    assert facts["cpu"]["cpuset"] == "2-3"
    memory, limits = facts["memory"], facts["limits"]
    assert (memory["cgroup_limit_bytes"], memory["cgroup_limit_source"]) == (512 << 20, f"{top}/team/memory.max")
    assert (limits["pids_max"], limits["pids_source"]) == (40, f"{top}/team/user/pids.max")


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("no-cpu-for-dataloader-workers", "org/cpu.max"),
        ("cgroup-memory-tight", "org/team/memory.max"),
        ("cgroup-pids-limit", "org/team/user/pids.max"),
    ],
)
def test_the_group_that_limits_is_named(printed: dict[str, bytes], rule: str, source: str) -> None:
    assert [item[2] for item in found(printed, "limits", rule)] == [f"/sys/fs/cgroup/{source}"]


def test_memory_of_the_wrong_node(printed: dict[str, bytes]) -> None:
    ((subject, seen, _),) = found(printed, "memory-apart", "session-memory-on-other-node")
    assert (subject, seen) == ("node 0", "CPUs 0-1 allowed, memory of nodes 1")


def test_the_gpu_without_a_cpu_at_its_node(printed: dict[str, bytes]) -> None:
    ((subject, seen, _),) = found(printed, "gpus-far", "session-cpus-far-from-gpus")
    assert subject == "node 1"
    assert "0 of the session's CPUs" in seen
