"""RDMA adapters, their ports and addresses."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import RdmaDevice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import (
    Missing,
    NotApplicable,
    Unknown,
    Why,
    absent,
    absent_or_unrecorded,
    known,
    known_or_unknown,
    need,
)
from torchtune_sys.rules.gates import may_span_hosts, rdma_devices
from torchtune_sys.rules.nccl.common import interface_named, several_hosts, values
from torchtune_sys.rules.rdma import common as rdma_links


@rule(
    id="rail-mtu-mismatch",
    title="Network ports of the same card model have different MTUs",
    severity=Severity.WARNING,
    fix=(Advice(text="give all rails the same MTU (netplan, NetworkManager or ip link set IF mtu N)"),),
)
def rail_mtu_mismatch(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Among the active RoCE or IPoIB ports of one card model, some interfaces have a smaller MTU than the others.

    Why it matters
    RoCE derives its packet size from the interface MTU: the odd rail is slower, and connections between rails with different MTUs
    can fail.

    When to leave it
    The odd port deliberately belongs to another network (storage). That of the default route, which may be the management network, is not judged.

    References
    Linux Documentation/ABI/testing/sysfs-class-net (mtu); NVIDIA, RDMA over Converged Ethernet
    """
    groups = _mtu_groups(s)
    if not any(len(group) > 2 for group in groups.values()):
        raise NotApplicable("there are fewer than three active RDMA ports of one card model with interfaces")
    for group in groups.values():
        most = max(group.values(), key=lambda mtu: (sum(other == mtu for other in group.values()), mtu))
        if sum(mtu == most for mtu in group.values()) * 2 > len(group) > 2:
            for name, mtu in group.items():
                if mtu != most:
                    yield Evidence(
                        subject=name, seen=f"MTU {mtu}", wanted=f"{most}, as the other rails", source=f"/sys/class/net/{name}/mtu"
                    )


def _mtu_groups(s: Snapshot) -> dict[str, dict[str, int]]:
    network = need(s.network)
    if absent(network.rdma):
        return {}
    apart = rdma_links.outward(s)
    groups: dict[str, dict[str, int]] = {}
    for device, port in nccl.usable_ports(need(network.rdma)):
        for name in known_or_unknown(device.interfaces, ()):
            interface = interface_named(network, name)
            if (
                name not in apart
                and interface
                and known_or_unknown(interface.up, False)
                and not isinstance(device.board, Missing)
            ):
                groups.setdefault(f"{device.board} {need(port.link_layer)}", {})[name] = need(interface.mtu)
    return groups


@rule(
    id="ib-port-down",
    title="An RDMA port that the job could use is not active",
    severity=Severity.WARNING,
    cause="ib-port-down",
    fix=(
        Advice(
            text="bring the port up (cable, transceiver, switch port; ip link set IF up), or list only the active ports in "
            "NCCL_IB_HCA"
        ),
    ),
)
def ib_port_down(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A card is down while others of its model are active, or a port selected by NCCL_IB_HCA or given an address is down.

    Why it matters
    NCCL silently skips a port that is not ACTIVE. Its GPUs then share other NICs, and every collective of the job runs at the
    pace of this host. Libraries that do not check fail on it.

    When to leave it
    The port is deliberately not cabled. The second port of a card is reported only if NCCL_IB_HCA or an IP address on its
    interface shows that it should be used. A job on this host only (--nnodes 1) is not judged.

    References
    Linux Documentation/ABI/stable/sysfs-class-infiniband (state, phys_state)
    NVIDIA/nccl src/transport/net_ib/init.cc
    """
    devices = rdma_devices(s)
    may_span_hosts(s)
    settings = need(s.network).nccl
    unrecorded = isinstance(settings, Missing) and settings.why is Why.NOT_RECORDED  # a tree of files belongs to no job
    hca = "" if unrecorded else values(s).get("NCCL_IB_HCA", "")
    reported = False
    asked = (s.intent.nodes or 1) > 1 or is_pasted(s)  # nobody pastes the ports of a network that is not used
    for device, port, why in rdma_links.inactive(devices, hca, _addressed(s), several=asked):
        reported = True
        yield Evidence(
            subject=f"{device.name}:{port.port}",
            seen=f"{need(port.state)}, {rdma_links.physical(port)}: {why}",
            wanted="ACTIVE, LinkUp",
            source=f"/sys/class/infiniband/{device.name}/ports/{port.port}/state",
        )
    for subject, missing in rdma_links.unreadable_ports(devices):
        reported = True
        yield unsure(subject, missing, "ACTIVE")
    if not reported:
        _addresses_recorded(s, devices)
        active = nccl.usable_ports(devices)
        yield Evidence(
            subject="RDMA ports", seen=f"{len(active)} active", wanted="", verdict=Verdict.PASS, source="/sys/class/infiniband"
        )


def _addresses_recorded(s: Snapshot, devices: tuple[RdmaDevice, ...]) -> None:
    """Unknown where a port is down and a look at the interfaces, which may have addresses, failed."""
    interfaces = need(s.network).interfaces
    down = any(port.state != "ACTIVE" for device in devices for port in device.ports)
    if down and isinstance(interfaces, Missing) and not absent_or_unrecorded(interfaces):
        raise Unknown(interfaces)


def _addressed(s: Snapshot) -> dict[str, str]:
    """Interfaces that somebody gave an address; a link-local one comes by itself."""
    found: dict[str, str] = {}
    for interface in known(need(s.network).interfaces, ()):
        for address in known(interface.addresses, ()):
            if not nccl.is_link_local(address.address):
                found.setdefault(interface.name, address.address)
    return found


@rule(
    id="ib-subnet-manager-missing",
    title="InfiniBand ports have a link, but no subnet manager configures them",
    severity=Severity.WARNING,
    cause="ib-port-down",
    fix=(Advice(text="start a subnet manager (opensm on one host, UFM, or that of a managed switch), and check its log"),),
)
def ib_subnet_manager_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The physical link is up but the port stays in state INIT (or ARMED): cable and card are fine.

    Why it matters
    A port carries no traffic until a subnet manager assigns it a local identifier and routes. NCCL silently skips it.

    When to leave it
    The switch or the subnet manager was restarted within the last minute. (Two hosts connected back to back need a subnet
    manager, too.)

    References
    Linux Documentation/ABI/stable/sysfs-class-infiniband (state, sm_lid); opensm(8)
    """
    devices = rdma_devices(s)
    may_span_hosts(s)
    pairs = [(device, port) for device in devices for port in device.ports if port.link_layer == "InfiniBand"]
    if not pairs:
        raise NotApplicable("there is no InfiniBand port")
    for device, port in pairs:
        if isinstance(port.state, Missing):
            yield unsure(f"{device.name}:{port.port}", port.state, "ACTIVE")
        elif rdma_links.waits(port):
            never = known(port.sm_lid, -1) == 0
            yield Evidence(
                subject=f"{device.name}:{port.port}",
                seen=f"{port.state}, {known(port.physical_state, 'LinkUp')}"
                + ("; it never heard of a subnet manager (sm_lid 0)" if never else ""),
                wanted="ACTIVE",
                source=f"/sys/class/infiniband/{device.name}/ports/{port.port}/state",
            )


@rule(
    id="rdma-rate-degraded",
    title="An RDMA link came up slower than its card or its siblings",
    severity=Severity.WARNING,
    fix=(Advice(text="reseat or replace the cable or transceiver, and check the switch port's speed"),),
)
def rdma_rate_degraded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A card's link rate is lower than that of most cards of its model, or an InfiniBand link has lost all lanes but one.

    Why it matters
    A link that lost lanes or fell back a generation still counts as active; collectives run at the speed of the slowest rail.

    When to leave it
    The port is deliberately connected to an older fabric (storage). Two lanes are what a split cable provides and are not judged
    by themselves; nor is the RoCE port of the default route, which may be on the management network. A RoCE port is compared with
    at least three others, of which three quarters must be faster. Where a listing tells a card's chip and not its model (ibstat), only
    a quarter of the others' rate, or less, is reported.

    References
    Linux Documentation/ABI/stable/sysfs-class-infiniband (rate)
    """
    ports = nccl.usable_ports(rdma_devices(s))
    groups = [group for (layer, _), group in rdma_links.by_board(ports).items() if len(group) >= _SIBLINGS[layer][0]]
    below = dict(_below_siblings(s, groups))
    judged = bool(groups)
    for device, port in ports:
        name = f"{device.name}:{port.port}"
        why = rdma_links.fell_back(device, port)
        judged = judged or (port.link_layer == "InfiniBand" and not isinstance(port.lanes, Missing))
        if name in below or why:
            lanes = (
                f" ({port.lanes}X {known(port.signalling, '')})".replace(" )", ")") if not isinstance(port.lanes, Missing) else ""
            )
            yield Evidence(
                subject=name,
                seen=f"{need(port.rate_gbps):g} Gb/s{lanes}" + (f": {why}" if why else ""),
                wanted=f"{below[name]:g} Gb/s" if name in below else "the rate of the card",
                source=f"/sys/class/infiniband/{name.replace(':', '/ports/')}/rate",
            )
    if not judged:
        raise NotApplicable("there are fewer than three active ports of one card model to compare (RoCE: four)")


_SIBLINGS = {"InfiniBand": (3, 0.5), "Ethernet": (4, 0.74)}
"""How many ports are compared at least, and which part of them has more than one rate: an Ethernet card's ports are more often used for several networks."""


def _below_siblings(s: Snapshot, groups: list[list[rdma_links.Pair]]) -> Iterator[tuple[str, float]]:
    """Ports below what most ports of the same card model have, and that rate."""
    outward = rdma_links.outward(s)
    for group in groups:
        rates = {f"{device.name}:{port.port}": need(port.rate_gbps) for device, port in group}
        best = max(rates.values())
        part = _SIBLINGS[need(group[0][1].link_layer)][1]
        if sum(rate == best for rate in rates.values()) > len(rates) * part:
            apart = {f"{device.name}:{port.port}" for device, port in group if outward.intersection(known(device.interfaces, ()))}
            # Where the chip alone is told: its models differ by less than a link differs that has one lane of four.
            limit = best / 4 if isinstance(group[0][0].board, Missing) else best - 0.1
            yield from ((name, best) for name, rate in rates.items() if rate <= limit and name not in apart)


@rule(
    id="roce-gid-index",
    title="NCCL would use a RoCE GID that does not work between hosts",
    severity=Severity.WARNING,
    cause="roce-gid-index",
    applies=several_hosts,
    fix=(
        Advice(
            text="set NCCL_IB_GID_INDEX to the RoCE v2 entry with the port's IPv4 address (show_gids), or, with NCCL 2.21 or "
            "later, unset it"
        ),
    ),
)
def roce_gid_index(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The selected GID is empty, or RoCE v1 or link-local although the port has a RoCE v2 entry with an IPv4 address.

    Why it matters
    Connections fail with "Got completion with error 12" (transport retry exceeded): the peer cannot be reached at that address.
    Up to NCCL 2.20 the default was entry 0, which is RoCE v1 and link-local; since 2.21 NCCL finds a RoCE v2 entry itself unless
    NCCL_IB_GID_INDEX is set.

    When to leave it
    All hosts share one Ethernet segment and RoCE v1 is used on purpose.

    References
    NVIDIA/nccl src/transport/net_ib/connect.cc (ncclIbGetGidIndex), src/transport/net_ib.cc at 2.20.5
    https://github.com/NVIDIA/nccl/issues/426
    """
    devices = rdma_devices(s)
    chosen = values(s)
    if nccl.ib_disabled(chosen):
        raise NotApplicable("NCCL_IB_DISABLE or NCCL_NET=Socket is set")
    ports = [pair for pair in nccl.usable_ports(devices, chosen.get("NCCL_IB_HCA", "")) if need(pair[1].link_layer) == "Ethernet"]
    if not ports:
        raise NotApplicable("no RoCE port is active")
    unseen = rdma_links.unseen_version(s)
    index = 0 if unseen is not None else rdma_links.gid_index(s)
    if index < 0:
        return
    for device, port in ports:
        why = rdma_links.gid_fault(port, index)
        if why and unseen is not None:
            raise Unknown(unseen)
        if why:
            yield Evidence(
                subject=f"{device.name}:{port.port}",
                seen=f"entry {index}: {why[0]}",
                wanted=why[1],
                source=f"/sys/class/infiniband/{device.name}/ports/{port.port}/gids/{index}",
            )
