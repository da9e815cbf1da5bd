"""NUMA nodes: their CPUs, memory and distances.

Source: Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/mm/numaperf.rst.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.numa import NumaFacts, NumaNode
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, known, need
from torchtune_sys.probes import cgroup
from torchtune_sys.probes.cpu.probe import STATUS, status_field
from torchtune_sys.probes.cpumask import parse_list, read_set
from torchtune_sys.probes.topology import online_cpus

NODES = "/sys/devices/system/node"
GPUS = "/proc/driver/nvidia/gpus"


def probe(host: Host, intent: Workload) -> NumaFacts:
    online_nodes = _online(host)
    nodes: Fact[tuple[NumaNode, ...]]
    if isinstance(online_nodes, Missing):
        nodes = _single(host, online_nodes)
    else:
        cpus = online_cpus(host)
        nodes = _with_gpus(host, tuple(_node(host, number, cpus) for number in online_nodes))
        if _all_alike(nodes):
            nodes = _single(host, Missing(Why.ABSENT, NODES, "all nodes claim the same CPUs"))
    return NumaFacts(nodes=nodes, offline=_offline(host, online_nodes), allowed_mems=_allowed_mems(host))


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse /sys/devices/system/node/nodeN/meminfo or /proc/meminfo in bytes; lines that say something else are left out.

    >>> parse_meminfo("Node 0 MemTotal:       129839104 kB\\nNode 0 HugePages_Total:     0\\n")
    {'MemTotal': 132955242496}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        before, colon, after = line.partition(":")
        words, value = before.split(), after.split()
        if colon and words and len(value) == 2 and value[1] == "kB" and value[0].isdecimal() and len(value[0]) < 18:
            found.setdefault(words[-1], int(value[0]) * 1024)
    return found


def parse_distances(text: str) -> tuple[int, ...]:
    """Parse one row of the ACPI SLIT. Raises ValueError.

    >>> parse_distances("10 21\\n")
    (10, 21)
    """
    row = tuple(int(word) for word in text.split())
    if not row or min(row) < 0 or max(row) > 255:
        raise ValueError(f"not a row of distances: {text[:60]!r}")
    return row


def parse_numa_status(text: str) -> Fact[int]:
    """Return the node that a GPU's memory is, from the driver's numa_status; -1 where it is none.

    >>> parse_numa_status("Node:      255\\nStatus:    online\\nAddress:   40000000000\\nSize:      3f0000000\\n")
    255
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Node" and value.strip().lstrip("-").isdecimal() and len(value) < 20:
            return int(value)
    return Missing(Why.UNPARSED, f"{GPUS}/*/numa_status", "names no node")


@fact
def _online(host: Host) -> Fact[CpuSet]:
    """Ids of the online nodes; kernels before 2.6.28 have their directories only."""
    listed = read_set(host, f"{NODES}/online")
    if not absent_or_unrecorded(listed) and (isinstance(listed, Missing) or len(listed)):
        return listed
    names = need(host.names(NODES))
    found = CpuSet(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal() and len(name) < 11)
    return found if len(found) else Missing(Why.ABSENT, NODES, "no node directory")


def _node(host: Host, number: int, online: Fact[CpuSet]) -> NumaNode:
    folder = f"{NODES}/node{number}"
    memory = host.text(f"{folder}/meminfo")
    amounts = {} if isinstance(memory, Missing) else parse_meminfo(memory)
    missing = memory if isinstance(memory, Missing) else Missing(Why.UNPARSED, f"{folder}/meminfo", "no such line")
    return NumaNode(
        id=number,
        cpus=_cpus(host, folder, online),
        memory_bytes=amounts.get("MemTotal", missing),
        free_bytes=amounts.get("MemFree", missing),
        distances=_distances(host, f"{folder}/distance"),
    )


def _cpus(host: Host, folder: str, online: Fact[CpuSet]) -> Fact[CpuSet]:
    found = read_set(host, f"{folder}/cpulist")
    if isinstance(found, Missing):  # before 2.6.26 there is only the mask
        listed, found = found, read_set(host, f"{folder}/cpumap", mask=True)
        if isinstance(found, Missing):
            return listed
    # Some kernels list the CPUs that the node could have.
    return found if isinstance(online, Missing) else CpuSet(found & online)


def _all_alike(nodes: tuple[NumaNode, ...]) -> bool:
    """Whether each node claims the same CPUs: wrong firmware tables, or numa=fake. Then the nodes say nothing of nearness."""
    sets = [frozenset(node.cpus) for node in nodes if not isinstance(node.cpus, Missing) and len(node.cpus)]
    return len(sets) > 1 and len(set(sets)) == 1


def _distances(host: Host, path: str) -> Fact[tuple[int, ...]]:
    return interpreted(host.text(path), lambda text: parse_distances(text.strip("\0")), path)


def _with_gpus(host: Host, nodes: tuple[NumaNode, ...]) -> tuple[NumaNode, ...]:
    """Mark the nodes that are GPU memory; looked for only where a node has memory and no CPUs."""
    if not any(not isinstance(n.cpus, Missing) and not len(n.cpus) and not isinstance(n.memory_bytes, Missing) for n in nodes):
        return nodes
    names = host.names(GPUS)
    found: set[int] = set()
    for name in known(names, ()):
        text = host.text(f"{GPUS}/{name}/numa_status")
        number = text if isinstance(text, Missing) else parse_numa_status(text)
        if not isinstance(number, Missing):
            found.add(number)
    return tuple(_as_gpu_memory(node) if node.id in found else node for node in nodes)


def _as_gpu_memory(node: NumaNode) -> NumaNode:
    from msgspec import structs

    return structs.replace(node, gpu_memory=True)


def _single(host: Host, nothing: Missing) -> Fact[tuple[NumaNode, ...]]:
    """Return the single node: a kernel built without NUMA is one node with everything; of a recording without these files nothing can be told, unless what stands
    beside them was recorded."""
    beside = host.names("/sys/devices/system") if nothing.why is Why.NOT_RECORDED else ()
    if not absent_or_unrecorded(nothing) or isinstance(beside, Missing) or "node" in beside:
        return nothing
    cpus = online_cpus(host)
    if isinstance(cpus, Missing):
        return nothing
    memory = host.text("/proc/meminfo")
    amounts = {} if isinstance(memory, Missing) else parse_meminfo(memory)
    missing = memory if isinstance(memory, Missing) else Missing(Why.UNPARSED, "/proc/meminfo", "no such line")
    only = NumaNode(
        id=0,
        cpus=cpus,
        memory_bytes=amounts.get("MemTotal", missing),
        free_bytes=amounts.get("MemFree", missing),
        distances=nothing if nothing.why is Why.NOT_RECORDED else Missing(Why.ABSENT, NODES, "this kernel has no NUMA nodes"),
    )
    return (only,)


@fact
def _offline(host: Host, online: Fact[CpuSet]) -> Fact[tuple[int, ...]]:
    """Nodes with CPUs or memory that are not online. Nodes that are merely possible are places for hot-plugging."""
    if isinstance(online, Missing):
        return () if online.why is Why.ABSENT else online
    possible = need(read_set(host, f"{NODES}/possible"))
    if not len(possible - online):
        return ()
    present: set[int] = set()
    for name in ("has_cpu", "has_memory", "has_normal_memory"):
        found = read_set(host, f"{NODES}/{name}")
        if not isinstance(found, Missing):
            present |= {node for node in found if node in possible and node not in online}
    return tuple(sorted(present))


def _allowed_mems(host: Host) -> Fact[CpuSet]:
    status = host.text(STATUS)
    text = status if isinstance(status, Missing) else status_field(status, "Mems_allowed_list")
    if isinstance(text, Missing):
        files = {2: ("cpuset.mems.effective",), 1: ("cpuset.effective_mems", "cpuset.mems", "effective_mems", "mems")}
        inherited, _ = cgroup.nearest(host, "cpuset", files)
        if isinstance(inherited, Missing):
            return text
        text = inherited
    return interpreted(text, parse_list, STATUS)
