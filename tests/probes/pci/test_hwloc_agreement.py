"""On recorded machines of other projects the NUMA nodes agree with what hwloc's own test suite expects.

``hwloc_expected`` is an independent reader of that expected output (``lstopo --of console -v`` or XML): it shares no code with the
probes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from elsewhere import all_recorded_elsewhere, each_recorded_elsewhere, recorded_elsewhere
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.numa import NumaFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.cpu import probe as cpu
from torchtune_sys.probes.numa import probe as numa

HWLOC, GHW = "hwloc/*.tar.bz2", "ghw/*.tar.gz"

RESTRICTED = {
    "16amd64-8n2c-cpusets": "hwloc leaves out what the recording's cpuset forbids",
    "32amd64-4s2n4c-cgroup2": "hwloc leaves out what the recording's cpuset forbids",
    "16em64t-4s2ca2c-cpusetreorder": "hwloc leaves out what the recording's cpuset forbids",
    "16amd64-4n4c-cgroup-distance-merge": "hwloc leaves out what the recording's cpuset forbids",
    "4fake-4gr1nu1pu": "hwloc leaves out what the recording's cpuset forbids",
    "40intel64-4n10c+pci-conflicts": "hwloc leaves out what the recording's cpuset forbids",
}
"""Machines recorded inside a cpuset: the nodes agree with the kernel's files once cut by the cpuset that our own probe found."""

EXPLAINED = {
    "fakememinitiators-1np2c+1npp+gi": (
        "invented by hwloc's developers: nodes 0-3 hold CPUs and no memory, nodes 5-10 memory and no CPUs. hwloc drops the former and "
        "hangs the latter where the firmware's HMAT names the initiators; the kernel's CPU lists, which we report, stay as they are"
    ),
}


MERGED = {
    "8em64t-2s2ca2c-buggynuma": "each of eight nodes claims all CPUs: hwloc keeps the first with its memory, we the machine with all of it",
}
NODE_FORBIDDEN = {
    "4fake-4gr1nu1pu": "the cpuset allows CPU 1 and not the memory beside it: hwloc then shows the CPU near another node",
}

OTHER_CORES = {
    "64amd64-4p2n4ca2co": "AMD's Bulldozer, as below",
    "64amd64-4s2n4ca2co": "AMD's Bulldozer: the kernel calls the two halves of a compute unit threads of one core, hwloc calls them cores",
}


class Node:
    def __init__(self, number: int, memory: tuple[float, float] | None, cpus: set[int]) -> None:
        self.number = number
        self.memory = memory
        """Least and greatest number of bytes that the (rounded) text can mean."""
        self.cpus = cpus


def hwloc_expected(path: Path) -> tuple[dict[int, Node], dict[str, int]]:
    """NUMA nodes by OS id, and the number of objects by type."""
    console = path.with_name(path.name.removesuffix(".tar.bz2") + ".console")
    if not console.exists() and not console.with_suffix(".xml").exists():
        pytest.skip("hwloc has no expected output for it")
    return read_console(console.read_text()) if console.exists() else read_xml(console.with_suffix(".xml"))


def read_console(text: str) -> tuple[dict[int, Node], dict[str, int]]:
    nodes: dict[int, Node] = {}
    stack: list[tuple[int, str, list[Node], set[int]]] = []
    counts: dict[str, int] = {}
    for line in text.splitlines():
        counted = re.match(r" *(?:Special )?depth -?\d+:\s+(\d+) (\w+) ", line)
        if counted:
            counts[counted[2]] = counts.get(counted[2], 0) + int(counted[1])
            continue
        found = re.match(r"( *)([A-Za-z]\w*)(?:\([\w ]+\))?(?: L#\d+)? (?:\(|$)", line)
        if found is None or not re.search(r" L#\d+|^Machine", line) or "=" in line.split("(")[0]:
            continue
        indent, kind = len(found[1]), found[2]
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if kind == "PU":
            number = int(re.search(r"\(P#(\d+)", line)[1])  # type: ignore[index]
            for _, _, below, _ in stack:
                for node in below:
                    node.cpus.add(number)
        if kind == "NUMANode":
            node = Node(int(re.search(r"\(P#(\d+)", line)[1]), memory_range(line), set())  # type: ignore[index]
            nodes[node.number] = node
            parent = next(item for item in reversed(stack) if item[1] != "MemCache")  # a memory-side cache holds no CPUs
            node.cpus |= parent[3]
            parent[2].append(node)
            for item in stack[stack.index(parent) + 1 :]:
                item[2].append(node)
        stack.append((indent, kind, [], set()))
    return nodes, counts


def memory_range(line: str) -> tuple[float, float] | None:
    found = re.search(r"local=(\d+)(KiB|MiB|GiB|TiB)", line)
    if found is None:
        return None
    unit = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[found[2]]
    return (int(found[1]) - 1) * unit, (int(found[1]) + 1) * unit


def read_xml(path: Path) -> tuple[dict[int, Node], dict[str, int]]:
    nodes: dict[int, Node] = {}
    counts: dict[str, int] = {}
    for element in ET.parse(path).getroot().iter("object"):
        kind = element.get("type", "")
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "NUMANode":
            memory = float(element.get("local_memory", "0"))
            number = int(element.get("os_index", "-1"))
            nodes[number] = Node(number, (memory, memory), bits(element.get("cpuset", "0x0")))
    return nodes, counts


def bits(mask: str) -> set[int]:
    number = int("".join(f"{int(part or '0', 16):08x}" for part in mask.split(",")), 16)
    return {bit for bit in range(number.bit_length()) if number >> bit & 1}


def probed(path: Path) -> tuple[NumaFacts, CpuFacts]:
    host = open_host(str(path))
    return numa.probe(host, Workload()), cpu.probe(host, Workload())


def name_of(path: Path) -> str:
    return path.name.removesuffix(".tar.bz2").removesuffix(".tar.gz")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", each_recorded_elsewhere(HWLOC), ids=name_of)
def test_numa_nodes_agree_with_hwloc(path: Path) -> None:
    name = name_of(path)
    expected, _ = hwloc_expected(path)
    facts, processors = probed(path)
    assert not isinstance(facts.nodes, Missing), facts.nodes
    # hwloc hides GPU memory unless HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES is set.
    ours = {node.id: node for node in facts.nodes if not node.gpu_memory}
    bound: set[int] | None = None
    if name in RESTRICTED:
        assert isinstance(processors.cpuset, CpuSet), processors.cpuset
        bound = set(processors.cpuset)
        if not isinstance(facts.allowed_mems, Missing):
            ours = {number: node for number, node in ours.items() if number in facts.allowed_mems}
    if name in EXPLAINED:
        ours = {number: node for number, node in ours.items() if node.memory_bytes != 0}
    assert set(ours) == set(expected)
    compared = 0
    for number, node in ours.items():
        memory = expected[number].memory
        if memory is None:
            assert isinstance(node.memory_bytes, Missing)
        elif name not in MERGED:
            assert not isinstance(node.memory_bytes, Missing)
            assert memory[0] <= node.memory_bytes <= memory[1], f"node {number}"
        assert not isinstance(node.cpus, Missing), f"node {number}: {node.cpus}"
        cpus = set(node.cpus) if bound is None else set(node.cpus) & bound
        if name in NODE_FORBIDDEN or (not node.cpus and name not in RESTRICTED):
            continue  # memory of its own kind (HBM, NVDIMM): hwloc shows the CPUs near it, the kernel lists none
        assert cpus == expected[number].cpus, f"node {number}"
        compared += 1
    print(
        f"{name}: {len(ours)} nodes with their memory, CPUs of {compared} ({RESTRICTED.get(name) or EXPLAINED.get(name) or 'all'})"
    )


@pytest.mark.sampled(7)
@pytest.mark.parametrize("path", each_recorded_elsewhere(HWLOC), ids=name_of)
def test_sockets_and_cores_agree_with_hwloc(path: Path) -> None:
    name = name_of(path)
    _, counts = hwloc_expected(path)
    _, processors = probed(path)
    if name in RESTRICTED:
        pytest.skip(RESTRICTED[name])
    if "Core" not in counts:
        pytest.skip("hwloc shows no cores")
    print(f"{name}: {processors.sockets} sockets, {processors.cores} cores {OTHER_CORES.get(name, '')}")
    if "Package" in counts:
        assert processors.sockets == counts["Package"]
    else:
        assert isinstance(processors.sockets, Missing)
    assert processors.cores == (counts["Core"] // 2 if name in OTHER_CORES else counts["Core"])


@pytest.mark.parametrize("path", each_recorded_elsewhere(GHW), ids=name_of)
def test_snapshots_of_ghw_agree_with_their_own_node_links(path: Path) -> None:
    """ghw ships no expected output: the directories' cpuN links are another place where the kernel says the same."""
    host = open_host(str(path))
    facts = numa.probe(host, Workload())
    assert not isinstance(facts.nodes, Missing)
    for node in facts.nodes:
        names = host.names(f"/sys/devices/system/node/node{node.id}")
        assert not isinstance(names, Missing) and not isinstance(node.cpus, Missing)
        linked = {int(name[3:]) for name in names if re.fullmatch(r"cpu\d+", name)}
        states = {number: host.word(f"/sys/devices/system/cpu/cpu{number}/online") for number in linked}
        assert set(node.cpus) == {number for number, state in states.items() if state != "0"}
    print(f"{name_of(path)}: {len(facts.nodes)} nodes, CPUs {[str(node.cpus) for node in facts.nodes]}")


def test_machines_were_compared() -> None:
    recorded_elsewhere("hwloc")
    assert len(all_recorded_elsewhere(HWLOC)) > 20 and all_recorded_elsewhere(GHW)


def test_the_reader_of_console_output_notices_what_it_should() -> None:
    text = (
        "Machine (P#0 total=96GiB)\n"
        "  Package L#0 (P#0 total=64GiB)\n"
        "    MemCache L#0 (total=32GiB size=16GiB)\n"
        "      NUMANode L#0 (P#4 local=32GiB total=32GiB)\n"
        "    Core L#0 (P#0)\n"
        "      PU L#0 (P#7)\n"
        "  Package L#1 (P#1)\n"
        "    Core L#1 (P#0)\n"
        "      PU L#1 (P#9)\n"
        "depth 0:           1 Machine (type #0)\n"
        " depth 1:          2 Package (type #1)\n"
    )
    nodes, counts = read_console(text)
    assert {number: node.cpus for number, node in nodes.items()} == {4: {7}}
    assert counts == {"Machine": 1, "Package": 2}
