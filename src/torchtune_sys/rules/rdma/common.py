"""Code shared by the RDMA rules: comparing ports of the same kind, and entries of a RoCE port's GID table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import Gid, RdmaDevice, RdmaPort
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, known, need
from torchtune_sys.rules.gates import rdma_devices
from torchtune_sys.rules.nccl.common import nccl_version, values

Pair = tuple[RdmaDevice, RdmaPort]


def outward(s: Snapshot) -> set[str]:
    """Return the interface of the default route, and what bonds, bridges and VLANs (``bond0.100``) make it of: it may be on the management network."""
    network = need(s.network)
    interfaces = known(network.interfaces, ())
    route = known(network.default_route_interface, "")
    found: set[str] = set()
    more = {route} if route else set()
    while more := {*more, *(name.partition(".")[0] for name in more)} - found:
        found |= more
        more = {each.name for each in interfaces if each.master in more}
    return found


def readable(device: RdmaDevice) -> bool:
    """Return whether the state and link layer of all ports are known."""
    return not any(isinstance(port.state, Missing) or isinstance(port.link_layer, Missing) for port in device.ports)


def unreadable_ports(devices: Iterable[RdmaDevice]) -> Iterator[tuple[str, Missing]]:
    """Yield the name of each port that :func:`readable` refuses, with the first fact that is missing."""
    for device in devices:
        for port in device.ports:
            for fact in (port.state, port.link_layer):
                if isinstance(fact, Missing):
                    yield f"{device.name}:{port.port}", fact
                    break


def by_board(pairs: Iterable[Pair]) -> dict[tuple[str, str], list[Pair]]:
    """Return the ports of the same link layer and card model; cards whose model is not known are left out.

    ibstat tells the chip alone (``type``), which several models have: it stands for the model of InfiniBand cards.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for device, port in pairs:
        layer = need(port.link_layer)
        model = known(device.board, known(device.type, "") if layer == "InfiniBand" else "")
        if model:
            groups.setdefault((layer, model), []).append((device, port))
    return groups


def inactive(
    devices: Iterable[RdmaDevice], hca: str, addressed: Mapping[str, str], *, several: bool
) -> Iterator[tuple[RdmaDevice, RdmaPort, str]]:
    """Yield the ports that are not active although something says they should be, with what says so.

    ``addressed``: interfaces that were given an address, and which.
    """
    pairs = [(device, port) for device in devices if readable(device) for port in device.ports]
    names = nccl.parse_names(hca, nccl.MAX_HCAS)
    lost = _lost_cards(pairs)
    any_active = any(port.state == "ACTIVE" for _, port in pairs)
    for device, port in pairs:
        if port.state == "ACTIVE":
            continue
        if waits(port):
            continue  # ib-subnet-manager-missing says so
        if not names.exclude and any(
            names.holds(entry, device.name, port.port) and entry[0] == device.name for entry in names.entries
        ):
            yield device, port, f"NCCL_IB_HCA={hca} names it"
        elif device.name in lost:
            yield device, port, lost[device.name]
        elif given := [name for name in known(device.interfaces, ()) if name in addressed]:
            yield device, port, f"its interface {given[0]} was given the address {addressed[given[0]]}"
        elif several and not any_active and port.link_layer == "InfiniBand":
            yield device, port, "no RDMA port of this host is active, so the job falls back to TCP"


def waits(port: RdmaPort) -> bool:
    """Return whether an InfiniBand port has its link and waits for a subnet manager: INIT until one names it, ARMED until it is activated."""
    return port.state in ("INIT", "ARMED") and port.link_layer == "InfiniBand"


_PHYSICAL = {
    "Polling": "no signal from the other end (cable, transceiver, switch port)",
    "Disabled": "switched off by somebody or by the firmware",
    "Sleep": "asleep",
    "PortConfigurationTraining": "still training",
    "LinkErrorRecovery": "recovering from errors",
}


def physical(port: RdmaPort) -> str:
    """Return the physical state, and what it says (IBTA, PortPhysicalState)."""
    state = known(port.physical_state, "physical state unknown")
    return f"{state} ({_PHYSICAL[state]})" if state in _PHYSICAL else state


def fell_back(device: RdmaDevice, port: RdmaPort) -> str:
    """Return why a rate cannot be what the card was made for, without siblings to compare with; ``""`` where it may be.

    Cards since ConnectX-4 (hca_type MT4115) do 25 Gb/s a lane and more. Two lanes are what half of a split NDR or HDR cable has; one
    lane is no product. On Ethernet the driver makes the lanes up of the speed.
    """
    if port.link_layer != "InfiniBand" or isinstance(port.lanes, Missing) or isinstance(port.rate_gbps, Missing):
        return ""
    if port.lanes == 1:
        return "one lane is left"
    model = known(device.type, "").removeprefix("MT")
    modern = (natural(model) or 0) >= 4115
    return "each lane fell back to the slowest speeds" if modern and port.rate_gbps <= 5 * port.lanes else ""


def _lost_cards(pairs: Iterable[Pair]) -> dict[str, str]:
    """Devices on cards without an active port, where most cards of the same model have one."""
    models: dict[str, dict[str, list[Pair]]] = {}
    pairs = tuple(pairs)
    whole = any(known(device.type, "") not in _VIRTUAL for device, _ in pairs)
    for device, port in pairs:
        if whole and known(device.type, "") in _VIRTUAL:
            continue  # beside the card itself: it is given to a guest or a pod, or kept for one
        model = f"{known(device.board, known(device.type, device.name))} {need(port.link_layer)}"
        models.setdefault(model, {}).setdefault(_card(device), []).append((device, port))
    lost: dict[str, str] = {}
    for cards in models.values():
        dead = [card for card in cards.values() if all(port.state != "ACTIVE" for _, port in card)]
        alive = len(cards) - len(dead)
        if alive > len(dead):
            lost.update(
                {device.name: f"{alive} of {len(cards)} cards of this model are active" for card in dead for device, _ in card}
            )
    return lost


_VIRTUAL = frozenset(f"MT{number}" for number in (4100, 4114, 4116, 4118, 4120, 4122, 4124, 4126))
"""``hca_type`` of virtual functions, which is their PCI id (pci.ids, 15b3: 1004, 1012, 1014 … 101e)."""


def _card(device: RdmaDevice) -> str:
    """Return the slot: both ports of a card are functions of one PCI device."""
    return device.name if isinstance(device.pci_address, Missing) else device.pci_address.rpartition(".")[0]


def gid_index(s: Snapshot) -> int:
    """Return the entry that NCCL would take on RoCE; -1: it searches the table for a RoCE v2 address itself."""
    value = values(s).get("NCCL_IB_GID_INDEX", "")
    if value:
        return nccl.as_number(value)
    return -1 if nccl_version(s)[0] >= nccl.GID_AUTOMATIC_SINCE else 0


def unseen_version(s: Snapshot) -> Missing | None:
    """Return why the installed NCCL's release could not be seen, where it decides whether NCCL searches the table."""
    if values(s).get("NCCL_IB_GID_INDEX", ""):
        return None
    torch = s.python if isinstance(s.python, Missing) else s.python.torch
    found = torch if isinstance(torch, Missing) else torch.nccl
    return found if isinstance(found, Missing) and found.why not in _TOLD else None


_TOLD = (Why.ABSENT, Why.NOT_RECORDED, Why.NOT_SUPPORTED)
"""There is no torch (yet), or a report does not speak of it: the newest NCCL is assumed then."""


def gid_type(gid: Gid) -> str:
    """Return the type of an entry; ``""`` where this kernel has none to show (before 4.5)."""
    if isinstance(gid.type, Missing):
        return "" if gid.type.why in _TOLD else need(gid.type)
    return gid.type


def is_ipv4(gid: str) -> bool:
    return gid.startswith("0000:0000:0000:0000:0000:ffff:")


def gid_fault(port: RdmaPort, index: int) -> tuple[str, str] | None:
    """Return what is wrong with an entry, and what to take instead; None if nothing is, or the entry was not read."""
    gids = need(port.gids)
    chosen = next((gid for gid in gids if gid.index == index), None)
    fit = [gid for gid in gids if is_ipv4(gid.gid) and gid_type(gid).startswith("RoCE v2")]
    if not fit:
        return None
    wanted = f"entry {fit[0].index} (RoCE v2, {_dotted(fit[0].gid)})"
    if chosen is None:
        return ("it is empty", wanted) if index < 16 else None
    kind = gid_type(chosen)
    if kind and "RoCE v2" not in kind:
        return f"{kind}, {chosen.gid}", wanted
    return (f"link-local, {chosen.gid}", wanted) if chosen.gid.startswith("fe80:") else None


def _dotted(gid: str) -> str:
    high, low = (int(group, 16) for group in gid.split(":")[6:8])
    return f"{high >> 8}.{high & 255}.{low >> 8}.{low & 255}"


OTHER_MODE = (
    Advice(
        text="was it meant for InfiniBand: sudo mlxconfig -d ADDRESS set LINK_TYPE_P1=1, then restart the machine (an exchanged card comes in another mode)"
    ),
    Advice(text="else give its interface an IPv4 address, or exclude the port with NCCL_IB_HCA"),
)


def infiniband_alike(s: Snapshot, device: RdmaDevice) -> int:
    """Return how many active InfiniBand ports there are on cards of the same model, where they are three or more."""
    alike = [
        port
        for other, port in nccl.usable_ports(rdma_devices(s))
        if port.link_layer == "InfiniBand" and not isinstance(device.board, Missing) and other.board == device.board
    ]
    return len(alike) if len(alike) > 2 else 0
