"""NUMA: where memory, CPUs and GPUs lie, and what the session may use of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.rules.pci.common import gpus

_GIB = 1 << 30


def cpu_nodes(s: Snapshot) -> tuple[NumaNode, ...]:
    """Return the nodes that have CPUs; NotApplicable where there are not several."""
    nodes = need(need(s.numa).nodes)
    found = tuple(node for node in nodes if len(need(node.cpus)))
    if len(found) < 2:
        raise NotApplicable("one NUMA node")
    return found


def memory_apart(s: Snapshot) -> bool:
    """Return whether there are nodes of memory alone (HBM, CXL, NVDIMM): then a CPU's own node may hold less, or none, by design."""
    nodes = need(need(s.numa).nodes)
    return any(not len(need(node.cpus)) and known(node.memory_bytes, 0) and not node.gpu_memory for node in nodes)


def _half_without(s: Snapshot, nodes: tuple[NumaNode, ...]) -> bool:
    """Return whether this processor has memory channels at two of its four dies, and those are populated."""
    model = "" if isinstance(s.cpu, Missing) else known(s.cpu.model, "")
    with_memory = sum(1 for node in nodes if known(node.memory_bytes, 0))
    return len(nodes) == 4 and with_memory == 2 and any(name in model for name in ("Threadripper 2970WX", "Threadripper 2990WX"))


def _in_use(s: Snapshot, gpus: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Those that the driver shows to this session: containers and batch systems grant some, while the bus shows all."""
    devices = gpus_told(s)
    shown = {gpu.pci_address for gpu in devices}
    return tuple(gpu for gpu in gpus if gpu.address in shown) or gpus


@rule(
    id="gpu-numa-unknown",
    title="The kernel does not know which NUMA node a GPU belongs to",
    severity=Severity.WARNING,
    fix=(
        Advice(text="bare metal: update the firmware, and enable ACPI proximity information (SRAT/_PXM) in the firmware setup"),
        Advice(text="virtual machine: pass the GPU through on a PCIe bus of the right vNUMA node (QEMU pxb-pcie numa_node=)"),
    ),
)
def gpu_numa_unknown(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host has several NUMA nodes, but sysfs shows numa_node -1 for a GPU.

    Why it matters
    NCCL, torchrun --numa-binding and the kernel place CPUs, memory and network cards by this number. Without it they guess: on
    two sockets, half of the copies to and from that GPU cross the inter-socket link.

    When to leave it
    The provider does not expose it to the virtual machine, and one rank per host runs.

    References
    Linux Documentation/ABI/testing/sysfs-bus-pci, numa_node
    NCCL src/graph/topo.cc: the NUMA node of a device is read from sysfs
    """
    cpu_nodes(s)
    for gpu in gpus(s):
        node = gpu.numa_node
        if isinstance(node, Missing):
            yield unsure(gpu.address, node)
            continue
        yield Evidence(
            subject=gpu.address,
            seen=f"numa_node {node}",
            wanted="the number of a node",
            verdict=Verdict.FAIL if node < 0 else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{gpu.address}/numa_node",
        )


@rule(
    id="numa-node-without-memory",
    title="A NUMA node has CPUs but no memory",
    severity=Severity.WARNING,
    fix=(Advice(text="populate the memory channels of each socket (virtual machine: give each vNUMA node memory)"),),
)
def node_without_memory(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The CPUs of this socket have no local memory.

    Why it matters
    Each memory access crosses the inter-socket link, which the GPUs of that socket need for their own traffic.

    When to leave it
    Nothing runs on that node's CPUs. Of AMD's Threadripper 2970WX and 2990WX two of the four dies have no memory channels: that passes.

    References
    Linux Documentation/admin-guide/mm/numaperf.rst; the board maker's guide to populating memory
    https://bitsum.com/cpu/video-of-ryzen-masters-dynamic-local-mode/ (the nodes of the 2970WX and 2990WX)
    """
    nodes = cpu_nodes(s)
    apart = memory_apart(s)
    by_design = _half_without(s, nodes)
    for node in nodes:
        memory = node.memory_bytes
        if isinstance(memory, Missing):
            yield unsure(f"node {node.id}", memory)
            continue
        yield Evidence(
            subject=f"node {node.id}",
            seen=f"{memory / _GIB:.0f} GiB, CPUs {known(node.cpus, CpuSet())}{'; memory in nodes of its own' if apart else ''}",
            wanted="memory at each socket",
            verdict=Verdict.FAIL if memory == 0 and not apart and not by_design else Verdict.PASS,
            source=f"/sys/devices/system/node/node{node.id}/meminfo",
        )


@rule(
    id="numa-memory-imbalanced",
    title="The NUMA nodes have very different amounts of memory",
    severity=Severity.ADVICE,
    params=(Param("share", 0.6, "smallest share of the largest node's memory that still counts as balanced"),),
    fix=(Advice(text="check for a missing or disabled memory module (dmidecode -t memory, the firmware's event log)"),),
)
def memory_imbalanced(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """One socket has much less memory than another.

    Why it matters
    That socket also uses fewer channels, so it has less bandwidth, and its ranks run out of local memory first. Often this is the
    only visible sign of a module that failed at boot.

    When to leave it
    The machine was bought in this configuration.

    References
    Linux Documentation/admin-guide/mm/numaperf.rst; the board maker's guide to populating memory
    """
    sizes = {node.id: need(node.memory_bytes) for node in cpu_nodes(s)}
    if memory_apart(s):
        raise NotApplicable("memory of several kinds, in nodes of its own")
    largest = max(sizes.values())
    for number, size in sizes.items():
        if not size:
            continue  # numa-node-without-memory's finding
        yield Evidence(
            subject=f"node {number}",
            seen=f"{size / _GIB:.0f} GiB of the largest node's {largest / _GIB:.0f} GiB",
            wanted="as much as the other nodes",
            verdict=Verdict.FAIL if size < largest * float(p["share"]) else Verdict.PASS,
            source=f"/sys/devices/system/node/node{number}/meminfo",
        )


@rule(
    id="numa-node-offline",
    title="A NUMA node with CPUs or memory is offline",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="bring its memory blocks and CPUs online (chmem -e, chcpu -e), or look in the kernel log for why they are offline"
        ),
        Advice(text="boot without numa=off, if that hides the nodes"),
    ),
)
def node_offline(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel knows about a node with CPUs or memory, but does not use it; or a machine with several sockets was booted with numa=off.

    Why it matters
    GPUs and network cards of that node are served from another node. With numa=off all memory is one node: the kernel does not place it
    near the CPUs and GPUs that use it, and NCCL and torchrun --numa-binding do not know which are near.

    When to leave it
    It was taken offline on purpose.

    References
    Linux Documentation/ABI/stable/sysfs-devices-node: online, has_cpu, has_memory
    Linux Documentation/admin-guide/kernel-parameters.txt (numa=off)
    """
    lost = need(need(s.numa).offline)
    if not lost:
        yield from _hidden_nodes(s)
    yield Evidence(
        subject="NUMA nodes",
        seen=f"offline: {', '.join(str(node) for node in lost)}" if lost else "all online",
        wanted="all online",
        verdict=Verdict.FAIL if lost else Verdict.PASS,
        source="/sys/devices/system/node/online",
    )


def _hidden_nodes(s: Snapshot) -> Iterator[Evidence]:
    """Yield what numa=off hides: with it the kernel shows one node, whatever there is. One socket has no others to hide."""
    if len(need(need(s.numa).nodes)) != 1 or known(need(s.cpu).sockets, 2) == 1:
        return
    if "numa=off" in need(need(s.system).cmdline) and (sockets := need(need(s.cpu).sockets)) > 1:
        yield Evidence(
            subject="boot argument", seen=f"numa=off, with {sockets} sockets", wanted="not set", source="/proc/cmdline"
        )


@rule(
    id="session-memory-on-other-node",
    title="The session may use CPUs of one NUMA node but only memory of another",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="set cpuset.cpus and cpuset.mems to the same nodes (docker: --cpuset-cpus with --cpuset-mems; Kubernetes: memory manager and "
            "topology manager; systemd: AllowedCPUs= with AllowedMemoryNodes=)"
        ),
    ),
)
def memory_on_other_node(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cpuset allows CPUs of one node, but memory only of another.

    Why it matters
    All memory of the session's processes is remote, including pinned buffers, and nothing indicates this: each copy to the GPU
    crosses the sockets.

    When to leave it
    The nodes are parts of one chip (sub-NUMA clusters), and the memory was separated on purpose.

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, cpuset.mems.effective; proc(5), Mems_allowed_list
    """
    nodes = cpu_nodes(s)
    mems = need(need(s.numa).allowed_mems)
    affinity = need(need(s.cpu).affinity)
    for node in nodes:
        cpus = need(node.cpus) & affinity
        if not cpus or need(node.memory_bytes) == 0:
            continue
        yield Evidence(
            subject=f"node {node.id}",
            seen=f"CPUs {cpus} allowed, memory of nodes {mems}",
            wanted=f"memory of node {node.id}",
            verdict=Verdict.PASS if node.id in mems else Verdict.FAIL,
            source="/proc/self/status",
        )


@rule(
    id="session-cpus-far-from-gpus",
    title="The session has no CPU on the NUMA node of a GPU that it uses",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="start the job without numactl -N or taskset, and bind each rank: torchrun --numa-binding=node (torch 2.9 and "
            "later)"
        ),
        Advice(text="or use only the GPUs near the CPUs that you were given (CUDA_VISIBLE_DEVICES)"),
    ),
)
def cpus_far_from_gpus(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPUs in use are on several nodes, but the session's CPUs are on only some of these nodes.

    Why it matters
    The ranks of the other GPUs run, and allocate their pinned buffers, on the wrong socket: copies and kernel launches take the
    longer path. It is best to bind each rank to the node of its GPU, which torchrun does with --numa-binding=node; for that, the
    session must be free to use all CPUs.

    When to leave it
    All the CPUs that the job was granted are on one node.

    References
    PyTorch documentation, torchrun, --numa-binding; nvidia-smi topo -m, column "CPU Affinity"
    """
    nodes = cpu_nodes(s)
    used = _in_use(s, tuple(gpus(s)))
    homes = Counter(need(gpu.numa_node) for gpu in used)
    if len(homes) < 2 or min(homes) < 0:
        raise NotApplicable("the GPUs are on one node, or on unknown ones")
    if s.intent.ranks is not None and s.intent.ranks < len(used):
        raise NotApplicable("fewer ranks than GPUs: which of them are used is not known")
    affinity = need(need(s.cpu).affinity)
    for node in nodes:
        if node.id not in homes:
            continue
        cpus = need(node.cpus) & affinity
        yield Evidence(
            subject=f"node {node.id}",
            seen=f"{homes[node.id]} GPUs, {len(cpus)} of the session's CPUs",
            wanted="CPUs at the GPUs; ranks bound by torchrun --numa-binding=node",
            verdict=Verdict.PASS if cpus else Verdict.FAIL,
            source="sched_getaffinity",
        )
