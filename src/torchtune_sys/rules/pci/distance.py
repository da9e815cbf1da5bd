"""Rules on the distance between GPUs and RDMA cards, in NCCL's classes."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.formats.pci_paths import CLASSES
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.pci import PciDevice, PciDistance
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.pci import common as pci_seen

_SOURCE = "/sys/bus/pci/devices, by NCCL's rules"


_RATES = Missing(Why.NOT_RECORDED, "network cards", "their rates, which distinguish training networks from others")


def _several_hosts(s: Snapshot) -> None:
    if s.intent.nodes == 1:
        raise NotApplicable("the job runs on this host only: nothing goes over the network")
    if s.intent.nodes is None and not gates.training_network(s):
        raise NotApplicable("no RDMA network for training is up, and nothing is known of other hosts")


def _nearest(s: Snapshot) -> dict[str, PciDistance]:
    """GPU → its nearest RDMA card among those with the best rate (the others are for storage and login)."""
    pci_seen.gpus(s)
    if not isinstance(need(s.pci).topology_file, Missing):
        raise NotApplicable("NCCL takes the distances from a topology file")
    fast = _fast(s)
    found: dict[str, PciDistance] = {}
    for item in need(need(s.pci).distances):
        if item.rdma not in fast or item.path not in CLASSES:
            continue
        best = found.get(item.gpu)
        if best is None or CLASSES.index(item.path) < CLASSES.index(best.path):
            found[item.gpu] = item
    if not found:
        raise NotApplicable("no RDMA card on this host")
    return found


def _fast(s: Snapshot) -> set[str]:
    """Return the names of the cards whose best port has the highest rate of all, and of those without a port that is up."""
    devices, names = pci_seen.rdma_by_name(s), {card.rdma for card in pci_seen.cards(s)}
    rates = {
        name: max((known(port.rate_gbps, 0.0) for port in devices[name].ports), default=0.0) for name in names if name in devices
    }
    best = max(rates.values(), default=0.0)
    # A port that is down shows a low rate or none: it still belongs to the machine's rails, and ib-port-down tells of it.
    down = {name for name in rates if not any(port.state == "ACTIVE" for port in devices[name].ports)}
    return {name for name in names if rates.get(name, best) >= best or name in down}


def _on_nodes(s: Snapshot, addresses: set[str]) -> dict[int, list[PciDevice]]:
    found: dict[int, list[PciDevice]] = {}
    for address, device in pci_seen.functions(s).items():
        if address in addresses:
            found.setdefault(need(device.numa_node), []).append(device)
    return found


def _sockets(s: Snapshot) -> dict[int, int]:
    """NUMA node → the first node of its socket."""
    nodes = [node for node in need(need(s.numa).nodes) if len(need(node.cpus))]
    if len(nodes) <= need(need(s.cpu).sockets):
        return {node.id: node.id for node in nodes}
    for node in nodes:
        need(node.distances)
    found = {node.id: gates.nodes_beside(node, need(need(s.numa).nodes))[0] for node in nodes}
    if len(set(found.values())) != need(need(s.cpu).sockets):
        raise NotApplicable("several NUMA nodes at each socket, and their distances do not say which belong together")
    return found


@rule(
    id="gpu-far-from-network",
    title="A GPU has no RDMA card on its own socket",
    severity=Severity.WARNING,
    applies=_several_hosts,
    fix=(
        Advice(
            text="move a card to a slot of that socket (the board's manual says which slots belong to which CPU), one per GPU or pair"
        ),
        Advice(
            text="virtual machine: assign GPUs and cards to the vNUMA nodes that match the hardware, or set NCCL_TOPO_FILE to "
            "the provider's file"
        ),
    ),
)
def far_from_network(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Every path from the GPU to the network crosses the inter-socket link (NCCL's class SYS).

    Why it matters
        NCCL does not use GPUDirect RDMA over that distance: the data is copied to host memory and crosses the shared inter-socket
        link. The slowest GPU sets the pace of each collective.

    When to leave it
        The host has fewer cards than NUMA nodes with GPUs (such hosts are not judged).

    References
        NCCL src/graph/paths.cc (PATH_SYS, NCCL_NET_GDR_LEVEL: PXB by default)
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_NET_GDR_LEVEL)
    """
    nearest = _nearest(s)
    homes = _on_nodes(s, set(nearest))
    fast = _fast(s)
    cards = [card for card in pci_seen.cards(s) if card.rdma in fast]
    if len(homes) > 1 and len({card.address.rpartition(".")[0] or card.address for card in cards}) < len(homes):
        raise NotApplicable("there are fewer cards than NUMA nodes with GPUs, so some GPUs have none nearby")
    if -1 in homes or any(known(card.numa_node, -1) < 0 for card in cards):
        raise NotApplicable("the kernel does not know the NUMA nodes of these devices")
    sockets = _sockets(s)
    served = {sockets.get(need(card.numa_node)) for card in cards}
    of_gpu = {gpu.address: sockets.get(node) for node, found in homes.items() for gpu in found}
    for gpu, item in nearest.items():
        yield Evidence(
            subject=pci_seen.gpu_name(gpu),
            seen=f"nearest: {item.rdma} ({item.other}), {item.path}",
            wanted="a card at the same socket, best below the same switch",
            verdict=Verdict.FAIL if item.path == "SYS" and of_gpu.get(gpu) not in served else Verdict.PASS,
            source=_SOURCE,
        )


@rule(
    id="gpu-network-distance-uneven",
    title="Some GPUs are farther from the network than others",
    severity=Severity.ADVICE,
    applies=_several_hosts,
    fix=(
        Advice(
            text="place the cards so that each GPU has one at the same distance, ideally below the same PCIe switch (nvidia-smi "
            "topo -m)"
        ),
    ),
)
def distance_uneven(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """For some GPUs the nearest RDMA card is below the same PCIe switch, for others it is behind the host bridge.

    Why it matters
        NCCL uses GPUDirect RDMA up to distance PXB. Data of the other GPUs goes through host memory, or over NVLink through a
        nearer GPU. The ring is as fast as its slowest part.

    When to leave it
        The board is designed that way, or the distant GPUs do not take part.

    References
        NCCL src/graph/paths.cc (NCCL_NET_GDR_LEVEL: PXB by default; PXN)
    """
    nearest = _nearest(s)
    if len(nearest) < 2:
        raise NotApplicable("one GPU")
    near = sum(item.path in ("PIX", "PXB") for item in nearest.values())
    # Where rates do not tell which cards are for storage, one that happens to be near to a GPU says nothing of the others.
    enough = 1 if pci_seen.rdma_by_name(s) else len(nearest) / 2
    for gpu, item in nearest.items():
        far = item.path == "PHB" and near > 0
        if far and near < enough:
            yield unsure(pci_seen.gpu_name(gpu), _RATES, "the same for all GPUs")
            continue
        yield Evidence(
            subject=pci_seen.gpu_name(gpu),
            seen=f"nearest: {item.rdma} ({item.other}), {item.path}",
            wanted="PXB or nearer, as others have" if far else "the same for all GPUs",
            verdict=Verdict.FAIL if far else Verdict.PASS,
            source=_SOURCE,
        )


@rule(
    id="network-cards-uneven-over-nodes",
    title="The NUMA nodes have different numbers of RDMA cards for their GPUs",
    severity=Severity.ADVICE,
    applies=_several_hosts,
    fix=(
        Advice(
            text="check whether a card is missing (lspci, the kernel log); otherwise distribute the cards over the sockets like "
            "the GPUs"
        ),
    ),
)
def cards_uneven(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPUs of one NUMA node share fewer cards than those of another.

    Why it matters
        Each GPU of that node gets a smaller share of the network, and every collective waits for them. Often a card is no longer
        detected.

    When to leave it
        The machine was bought in this configuration.

    References
        NCCL src/graph/search.cc: each channel's speed is that of its slowest network card
    """
    nearest = _nearest(s)
    homes = _on_nodes(s, set(nearest))
    fast = _fast(s)
    by_node = _on_nodes(s, {card.address for card in pci_seen.cards(s) if card.rdma in fast})
    if len(homes) < 2 or -1 in homes or -1 in by_node:
        raise NotApplicable("the GPUs are on one NUMA node, or on unknown ones")
    if any(node not in by_node for node in homes):
        raise NotApplicable("a node has no card at all")
    pci_seen.all_reported(s)
    share = {node: _share(len(by_node[node]), len(found)) for node, found in homes.items()}
    best = max(share.values())
    for node, found in sorted(homes.items()):
        yield Evidence(
            subject=f"node {node}",
            seen=f"{len(found)} GPUs, {len(by_node[node])} cards",
            wanted=f"{best:g} card{'s' * (best != 1)} for each GPU",
            verdict=Verdict.FAIL if share[node] < best else Verdict.PASS,
            source=_SOURCE,
        )


def _share(cards: int, gpus: int) -> float:
    """Return how many cards a GPU has: whole ones, where there is one for each. What is left over (a ninth card, for storage) is nobody's share.

    >>> _share(5, 4), _share(3, 4), _share(8, 4)
    (1, 0.75, 2)
    """
    return cards // gpus if cards >= gpus else cards / gpus
