"""NUMA nodes read from files of many shapes, hostile ones included."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.numa import NumaFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.numa import probe as numa

NODE = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"


def probe(files: dict[str, Any]) -> NumaFacts:
    return numa.probe(RecordedHost({"files": files}, "test"), Workload())


def node(number: int, cpus: str, mib: int, distance: str = "10") -> dict[str, str]:
    return {
        f"{NODE}/node{number}/cpulist": cpus,
        f"{NODE}/node{number}/meminfo": f"Node {number} MemTotal: {mib * 1024} kB\n",
        f"{NODE}/node{number}/distance": distance,
    }


def test_sparse_ids_and_memory_without_cpus() -> None:
    facts = probe(
        {
            f"{NODE}/online": "0,8,255\n",
            f"{CPUS}/online": "0-3\n",
            **node(0, "0-1", 10),
            **node(8, "2-3", 20),
            **node(255, "", 30),
        }
    )
    assert not isinstance(facts.nodes, Missing)
    assert [(n.id, str(n.cpus), n.memory_bytes) for n in facts.nodes] == [
        (0, "0-1", 10 << 20),
        (8, "2-3", 20 << 20),
        (255, "", 30 << 20),
    ]


def test_memory_of_gpus_is_told_from_other_memory() -> None:
    files = {f"{NODE}/online": "0-2\n", f"{CPUS}/online": "0\n", **node(0, "0", 10), **node(1, "", 10), **node(2, "", 10)}
    files["/proc/driver/nvidia/gpus/0009:01:00.0/numa_status"] = "Node:      2\nStatus:    online\n"
    facts = probe(files)
    assert not isinstance(facts.nodes, Missing)
    assert [n.gpu_memory for n in facts.nodes] == [False, False, True]


def test_offline_cpus_belong_to_no_node() -> None:
    facts = probe({f"{NODE}/online": "0\n", f"{CPUS}/online": "4-5\n", **node(0, "0-7", 10)})
    assert not isinstance(facts.nodes, Missing) and facts.nodes[0].cpus == CpuSet((4, 5))


def test_the_mask_serves_where_there_is_no_list() -> None:
    files = {f"{NODE}/node3/cpumap": "00000000,000000f0\n", f"{CPUS}/online": "0-7\n"}
    facts = probe(files)
    assert not isinstance(facts.nodes, Missing)
    assert (facts.nodes[0].id, str(facts.nodes[0].cpus)) == (3, "4-7")
    assert isinstance(facts.nodes[0].memory_bytes, Missing)


def test_a_kernel_without_numa_is_one_node() -> None:
    facts = probe({f"{CPUS}/online": "0-1\n", "/proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1024 kB\n"})
    assert not isinstance(facts.nodes, Missing)
    (only,) = facts.nodes
    assert (only.id, str(only.cpus), only.memory_bytes, only.free_bytes) == (0, "0-1", 2 << 20, 1 << 20)
    assert facts.offline == ()


def test_denied_is_not_one_node() -> None:
    facts = probe({f"{NODE}/online": {"error": "denied"}, f"{CPUS}/online": "0\n", "/proc/meminfo": "MemTotal: 1 kB\n"})
    assert isinstance(facts.nodes, Missing)


def test_offline_nodes_are_those_that_hold_something() -> None:
    files = {
        f"{NODE}/online": "1",
        f"{NODE}/possible": "0-7",
        f"{NODE}/has_memory": "0-1",
        f"{NODE}/has_cpu": "1",
        f"{CPUS}/online": "0",
    }
    assert probe({**files, **node(1, "0", 1)}).offline == (0,)


@pytest.mark.parametrize(("text", "expected"), [("Mems_allowed_list:\t0,8\n", "0,8"), ("Mems_allowed_list:\t\n", "")])
def test_allowed_memory(text: str, expected: str) -> None:
    assert str(probe({"/proc/self/status": text}).allowed_mems) == expected


def test_huge_numbers_are_no_memory() -> None:
    assert numa.parse_meminfo("MemTotal: 99999999999999999999 kB\nMemFree: -4 kB\nX: 4 pages\n") == {}


TEXTS = st.one_of(
    st.text(), st.text(alphabet="0123456789-,: NodeMmTtal\n", max_size=60), st.just("\0" * 4096), st.just("9" * 5000)
)


@given(TEXTS)
def test_parsers_survive_any_text(text: str) -> None:
    assert all(value >= 0 for value in numa.parse_meminfo(text).values())
    assert isinstance(numa.parse_numa_status(text), (int, Missing))
    with contextlib.suppress(ValueError):
        numa.parse_distances(text)


FILES = [
    *(f"{NODE}/{name}" for name in ("online", "possible", "has_cpu", "has_memory")),
    *(f"{NODE}/node0/{name}" for name in ("cpulist", "cpumap", "meminfo", "distance")),
    f"{CPUS}/online",
    "/proc/meminfo",
    "/proc/self/status",
    "/proc/driver/nvidia/gpus/0000:01:00.0/numa_status",
]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), TEXTS))
def test_any_contents_give_facts(files: dict[str, str]) -> None:
    assert isinstance(probe(files), NumaFacts)


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("content", [{"error": "denied"}, {"error": "failed"}, "", "\ufffd\0", "-1", "1" * 3000])
def test_each_file_may_refuse_or_lie(path: str, content: Any) -> None:
    good = {f"{NODE}/online": "0\n", f"{CPUS}/online": "0\n", **node(0, "0", 1)}
    assert isinstance(probe({**good, path: content}), NumaFacts)


@pytest.mark.parametrize("path", FILES)
def test_a_directory_in_place_of_a_file(path: str) -> None:
    assert isinstance(probe({f"{path}/inner": "0"}), NumaFacts)


def test_missing_files_are_named() -> None:
    facts = probe({f"{NODE}/online": "0\n", f"{CPUS}/online": "0\n"})
    assert not isinstance(facts.nodes, Missing)
    distances = facts.nodes[0].distances
    assert isinstance(distances, Missing) and distances.why is Why.ABSENT and distances.source.endswith("node0/distance")


def test_distances_of_the_only_node() -> None:
    nodes = numa.probe(RecordedHost({"files": {f"{CPUS}/online": "0-3\n"}}, "test"), Workload()).nodes
    assert not isinstance(nodes, Missing) and [str(node.cpus) for node in nodes] == ["0-3"]
    assert isinstance(nodes[0].distances, Missing) and nodes[0].distances.why is Why.ABSENT


def test_of_a_recording_without_nodes_nothing_is_told() -> None:
    nodes = numa.probe(RecordedHost({"files": {f"{CPUS}/online": "0-3\n"}, "complete": False}, "test"), Workload()).nodes
    assert isinstance(nodes, Missing) and nodes.why is Why.NOT_RECORDED
    beside = {"/sys/devices/system": ["cpu", "memory"]}
    nodes = numa.probe(
        RecordedHost({"files": {f"{CPUS}/online": "0-3\n"}, "dirs": beside, "complete": False}, "test"), Workload()
    ).nodes
    assert not isinstance(nodes, Missing) and len(nodes) == 1


def test_nodes_that_all_claim_the_same_cpus_are_one() -> None:
    files = {f"{NODE}/online": "0-1\n", f"{CPUS}/online": "0-7\n", **node(0, "0-7", 10, "10 20"), **node(1, "0-7", 10, "20 10")}
    facts = probe({**files, "/proc/meminfo": "MemTotal: 20480 kB\n"})
    assert not isinstance(facts.nodes, Missing)
    assert [(n.id, n.memory_bytes) for n in facts.nodes] == [(0, 20 << 20)]


def test_one_node_without_meminfo_still_has_its_cpus() -> None:
    facts = probe({f"{CPUS}/online": "0-1\n"})
    assert not isinstance(facts.nodes, Missing)
    assert facts.nodes[0].cpus == CpuSet((0, 1)) and isinstance(facts.nodes[0].memory_bytes, Missing)
