"""Boundaries of the rules on NUMA nodes."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load

NODE = "/sys/devices/system/node"


def verdict(rule_id: str, **overlay: Any) -> str:
    return judge(load("healthy", **overlay))[rule_id].verdict.value


def memory(node: int, kib: int) -> dict[str, Any]:
    return {f"{NODE}/node{node}/meminfo": [f"Node {node} MemTotal:  {kib} kB", f"Node {node} MemFree:  {kib} kB"]}


ONE_NODE = {
    f"{NODE}/online": "0\n",
    f"{NODE}/possible": "0\n",
    f"{NODE}/has_cpu": "0\n",
    f"{NODE}/has_memory": "0\n",
    f"{NODE}/node0/cpulist": "0-63\n",
    f"{NODE}/node0/distance": "10\n",
}


@pytest.mark.parametrize(
    "rule_id",
    [
        "gpu-numa-unknown",
        "numa-node-without-memory",
        "numa-memory-imbalanced",
        "session-memory-on-other-node",
        "session-cpus-far-from-gpus",
    ],
)
def test_one_node_leaves_nothing_to_judge(rule_id: str) -> None:
    gone = {f"{NODE}/node1/{name}": None for name in ("cpulist", "distance", "meminfo")}
    assert verdict(rule_id, files={**ONE_NODE, **gone}) == "na"


@pytest.mark.parametrize(("kib", "expected"), [(316_834_932, "pass"), (316_834_931, "fail"), (0, "pass")])
def test_an_uneven_node_has_less_than_six_tenths(kib: int, expected: str) -> None:
    assert 316_834_932 >= 528_058_220 * 0.6 > 316_834_931
    assert verdict("numa-memory-imbalanced", files=memory(1, kib)) == expected


def test_memory_of_several_kinds_is_uneven_by_design() -> None:
    files = {
        **memory(1, 1_000_000),
        **memory(2, 64_000_000),
        f"{NODE}/online": "0-2\n",
        f"{NODE}/node2/cpulist": "\n",
        f"{NODE}/node2/distance": "20 20 10\n",
    }
    assert verdict("numa-memory-imbalanced", files=files) == "na"
    # The memory of GPUs says nothing about the sockets'.
    files["/proc/driver/nvidia/gpus/0009:01:00.0/numa_status"] = "Node:      2\nStatus:    online\n"
    assert verdict("numa-memory-imbalanced", files=files) == "fail"


def test_possible_nodes_that_hold_nothing_are_places_for_hot_plugging() -> None:
    assert verdict("numa-node-offline", files={f"{NODE}/possible": "0-7\n"}) == "pass"
    assert verdict("numa-node-offline", files={f"{NODE}/possible": "0-7\n", f"{NODE}/has_memory": "0-2\n"}) == "fail"


def test_memory_may_be_kept_from_nodes_without_allowed_cpus() -> None:
    status = ["Cpus_allowed_list:\t0-15", "Mems_allowed_list:\t0"]
    files = {"/proc/self/status": status}
    assert verdict("session-memory-on-other-node", files=files, answers={"affinity": "0-15"}) == "pass"
    assert verdict("session-memory-on-other-node", files=files, answers={"affinity": "0-16"}) == "fail"


@pytest.mark.parametrize(
    ("affinity", "ranks", "expected"), [("0-63", 8, "pass"), ("0-16", 8, "pass"), ("0-15", 8, "fail"), ("0-15", 4, "na")]
)
def test_each_gpu_that_is_used_finds_a_cpu_at_its_node(affinity: str, ranks: int, expected: str) -> None:
    overlay = {"answers": {"affinity": affinity}, "intent": {"ranks": ranks, "nodes": 1}}
    assert verdict("session-cpus-far-from-gpus", **overlay) == expected
