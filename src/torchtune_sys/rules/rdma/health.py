"""Rules on the counters, firmware and addresses of RDMA ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import RdmaPort
from torchtune_sys.model.numbers import counted, natural
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import (
    Missing,
    NotApplicable,
    Why,
    absent,
    absent_or_unrecorded,
    absent_or_unsupported,
    known,
    need,
)
from torchtune_sys.rules.gates import rdma_devices
from torchtune_sys.rules.nccl.common import nccl_on_several_hosts, nccl_version, several_hosts, uses_nccl, values
from torchtune_sys.rules.rdma import common as rdma_links

_CABLE = Advice(
    text="reseat or replace the cable or transceiver, try another switch port, then watch the counter (perfquery, mlxlink)"
)
_ENDS = {"link_downed": 255, "link_error_recovery": 255, "symbol_error": 65535, "port_rcv_errors": 65535}


def _name(pair: rdma_links.Pair) -> str:
    return f"{pair[0].name}:{pair[1].port}"


def _source(pair: rdma_links.Pair, counter: str) -> str:
    return f"/sys/class/infiniband/{pair[0].name}/ports/{pair[1].port}/counters/{counter}"


def _active(s: Snapshot) -> list[rdma_links.Pair]:
    return [(device, port) for device in rdma_devices(s) for port in device.ports if port.state == "ACTIVE"]


@rule(
    id="rdma-link-flaps",
    title="An RDMA link went down far more often than its siblings",
    severity=Severity.WARNING,
    fix=(_CABLE,),
    params=(Param("more_than_siblings", 10, "number of link failures above the median of the sibling ports"),),
)
def rdma_link_flaps(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Among at least three active ports of one card model, one has counted many more link failures (link_downed) than the others.

    Why it matters
    Restarts of a switch or host affect all rails equally; failures of a single rail point to its cable, transceiver or switch
    port. A link that is down for a few seconds ends a job with transport retry errors (completion error 12), or stalls it.

    When to leave it
    The port was recabled or moved while the host was up. perfquery -R clears the counter; check whether it grows again.

    References
    Linux drivers/infiniband/core/sysfs.c: the counter has eight bits and stays at 255.
    NVIDIA/NVSentinel, NIC health monitor: each further link_downed counts as fatal. leptonai/gpud, components/accelerator/nvidia/infiniband
    """
    groups = _counted(s, "link_downed")
    more = int(p["more_than_siblings"])
    for group in groups:
        counts = sorted(count for _, count in group)
        usual = counts[(len(counts) - 1) // 2]
        for pair, count in group:
            if count >= usual + more:
                ends = " (the counter's end)" if count >= _ENDS["link_downed"] else ""
                yield Evidence(
                    subject=_name(pair),
                    seen=f"went down {count} times{ends}",
                    wanted=f"about {usual}, as its {counted(len(group) - 1, 'sibling')}",
                    source=_source(pair, "link_downed"),
                )


def _counted(s: Snapshot, counter: str) -> list[list[tuple[rdma_links.Pair, int]]]:
    """Ports with that counter, grouped by card model and link layer; NotApplicable without three of a kind."""
    groups: dict[str, list[tuple[rdma_links.Pair, int]]] = {}
    unread: Missing | None = None
    for pair in _active(s):
        counters = pair[1].counters
        if isinstance(counters, Missing) or counter not in counters:
            if unread is None and isinstance(counters, Missing):
                unread = counters
        elif not isinstance(pair[0].board, Missing):
            groups.setdefault(f"{pair[0].board} {known(pair[1].link_layer, '')}", []).append((pair, counters[counter]))
    found = [group for group in groups.values() if len(group) > 2]
    if not found:
        if unread is not None and not absent_or_unsupported(unread):
            need(unread)
        raise NotApplicable("there are fewer than three active ports of one card model with counters to compare")
    return found


@rule(
    id="rdma-symbol-errors",
    title="An InfiniBand link has more bit errors than the standard allows",
    severity=Severity.WARNING,
    fix=(_CABLE,),
    params=(Param("per_hour", 120, "symbol errors per hour that the InfiniBand specification allows"),),
)
def rdma_symbol_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The symbol error rate of an active port, averaged since boot, is higher than a healthy link may have.

    Why it matters
    Corrupted packets are retransmitted, which stalls every rank that waits for them; a link with many errors will retrain or go
    down next.

    When to leave it
    The errors came from a cable that has since been replaced: clear the counter (perfquery -R). If the counter was cleared after
    boot, the real rate is higher than shown.

    References
    NVIDIA/NVSentinel docs/configuration/nic-health-monitor.md: over 120 an hour is beyond the InfiniBand specification, and fatal.
    Linux drivers/infiniband/core/sysfs.c: the counter has sixteen bits and stays at 65535.
    """
    ports = [pair for pair in _active(s) if pair[1].link_layer == "InfiniBand" and not absent(pair[1].counters)]
    if not ports:
        raise NotApplicable("no InfiniBand port is active, or they count nothing")
    hours = max(need(need(s.system).uptime_s) / 3600, 1.0)
    for pair in ports:
        if isinstance(pair[1].counters, Missing):
            if pair[1].counters.why is not Why.NOT_SUPPORTED:
                yield unsure(_name(pair), pair[1].counters)
            continue
        count = pair[1].counters.get("symbol_error", 0)
        if count > float(p["per_hour"]) * hours:
            yield Evidence(
                subject=_name(pair),
                seen=f"{count} symbol errors within {hours:.0f} h, {count / hours:.0f} an hour",
                wanted=f"at most {p['per_hour']} an hour",
                source=_source(pair, "symbol_error"),
            )


_GROWTH_PER_S = {
    "link_downed": 0.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
    "rnr_nak_retry_err": 0.0,
    "link_error_recovery": 5 / 60,
    "local_ack_timeout_err": 1.0,
    "symbol_error": 10.0,
    "port_rcv_errors": 10.0,
    "roce_slow_restart": 10.0,
    "port_xmit_discards": 100.0,
}
"""What is more than this a second is a fault: the defaults of NVSentinel's NIC health monitor."""


@rule(
    id="rdma-errors-growing",
    title="Error counters of an RDMA port are rising",
    severity=Severity.WARNING,
    fix=(
        _CABLE,
        Advice(text="for RoCE: check that PFC and ECN are configured the same way on host and switch (mlnx_qos, cma_roce_tos)"),
    ),
)
def rdma_errors_growing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """With --live, all ports' error counters are read twice within a second; some grew faster than on a healthy link.

    Why it matters
    Errors that are occurring right now slow down or break the running job: corrupted or dropped packets, retransmissions, links
    that retrain.

    When to leave it
    The switch or the other hosts were being restarted during that second.

    References
    NVIDIA/NVSentinel docs/configuration/nic-health-monitor.md (default thresholds)
    Linux Documentation/ABI/stable/sysfs-class-infiniband; NVIDIA, "Understanding mlx5 Linux counters"
    """
    rdma_devices(s)
    if not s.intent.live:
        raise NotApplicable("watched only with --live")
    seen = need(need(s.network).rdma_growth)
    for port, counters in seen.gained.items():
        for counter, gained in counters.items():
            most = _GROWTH_PER_S.get(counter)
            if most is not None and gained > most * seen.seconds:
                limit = f"{most:g} a second" if most else "no more of them"
                yield Evidence(
                    subject=port, seen=f"{counter} grew by {gained} in {seen.seconds:.1f} s", wanted=limit, source="two readings"
                )


@rule(
    id="rdma-firmware-differs",
    title="Network cards of the same model run different firmware",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="update all cards to the same firmware release (mlxfwmanager, or the vendor's tool; then reset the card or "
            "reboot)"
        ),
    ),
)
def rdma_firmware_differs(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Cards with the same board ID report different firmware versions.

    Why it matters
    Congestion control, adaptive routing and known bugs differ between releases, so one rail behaves differently from the others.
    The usual cause is a card that was missed by an update.

    When to leave it
    The cards are on different networks (storage, management) and are updated separately on purpose.

    References
    Linux Documentation/ABI/stable/sysfs-class-infiniband (fw_ver, board_id)
    """
    boards: dict[str, dict[str, str]] = {}
    for device in rdma_devices(s):
        if not isinstance(device.board, Missing):
            boards.setdefault(device.board, {})[device.name] = need(device.firmware)
    if not any(len(cards) > 1 for cards in boards.values()):
        raise NotApplicable("no two RDMA devices are of the same model")
    for cards in boards.values():
        releases = Counter(cards.values())
        usual = max(releases, key=lambda release: (releases[release], _parts(release)))
        for name, release in cards.items():
            if release != usual:
                yield Evidence(
                    subject=name,
                    seen=release,
                    wanted=f"{usual}, as {releases[usual]} of {len(cards)} cards of this model",
                    source=f"/sys/class/infiniband/{name}/fw_ver",
                )


def _parts(release: str) -> tuple[int, ...]:
    return tuple(number for part in release.split(".")[:5] if (number := natural(part, 9)) is not None)


@rule(
    id="roce-without-routable-address",
    title="A RoCE port that NCCL would use has no address that other hosts can reach",
    severity=Severity.WARNING,
    cause="roce-gid-index",
    applies=several_hosts,
    fix=(
        Advice(text="give the port's interface an IPv4 address (with RoCE v2 enabled), or exclude the port with NCCL_IB_HCA"),
        Advice(text="on an IPv6-only network: set NCCL_IB_ADDR_FAMILY=AF_INET6"),
    ),
)
def roce_without_routable_address(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The port's GID table has no RoCE v2 entry with an IPv4 address (or a global IPv6 address, if NCCL is set to use IPv6).

    Why it matters
    NCCL uses every active port. Without such an entry it uses entry 0, which is link-local: connections fail with "Got completion
    with error 12" although the other ports work.

    When to leave it
    All hosts share one Ethernet segment and use link-local addresses on purpose.

    References
    NVIDIA/nccl src/transport/net_ib/connect.cc (ncclIbGetGidIndex)
    """
    uses_nccl(s)
    chosen = values(s)
    if nccl.ib_disabled(chosen):
        raise NotApplicable("NCCL_IB_DISABLE or NCCL_NET=Socket is set")
    ports = [
        pair for pair in nccl.usable_ports(rdma_devices(s), chosen.get("NCCL_IB_HCA", "")) if pair[1].link_layer == "Ethernet"
    ]
    if not ports:
        raise NotApplicable("no RoCE port is active")
    if chosen.get("NCCL_IB_GID_INDEX", "") or nccl_version(s)[0] < nccl.GID_AUTOMATIC_SINCE:
        raise NotApplicable("NCCL does not search the table: see roce-gid-index")
    ipv6 = chosen.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6"
    for device, port in ports:
        fault = _unreachable(port, ipv6)
        if fault:
            others = rdma_links.infiniband_alike(s, device)
            yield Evidence(
                subject=f"{device.name}:{port.port}",
                seen=f"{fault}; it is an Ethernet port, {others} on cards of the same model are InfiniBand" if others else fault,
                fix=rdma_links.OTHER_MODE if others else (),
                wanted="a RoCE v2 entry with an IPv4 address",
                source=f"/sys/class/infiniband/{device.name}/ports/{port.port}/gids",
            )


def _unreachable(port: RdmaPort, ipv6: bool) -> str:
    gids = need(port.gids)
    fit = [gid for gid in gids if rdma_links.is_ipv4(gid.gid) or (ipv6 and not nccl.is_link_local(gid.gid))]
    if any((rdma_links.gid_type(gid) or "RoCE v2").startswith("RoCE v2") for gid in fit) or any(gid.index > 14 for gid in gids):
        return ""  # the table is read up to entry 15: what is behind may hold one
    if fit:
        return "RoCE v1 entries alone have an address of this family"
    return "only link-local entries" if all(nccl.is_link_local(gid.gid) for gid in gids) and gids else "no IPv4 address"


@rule(
    id="efa-plugin-missing",
    title="NCCL has no plug-in for the Elastic Fabric Adapter",
    severity=Severity.WARNING,
    applies=nccl_on_several_hosts,
    fix=(
        Advice(text="install aws-ofi-nccl (Amazon's EFA installer brings it), and put its lib directory into LD_LIBRARY_PATH"),
        Advice(text="in a container: the image needs it, too"),
    ),
    cause="efa-not-in-container",
)
def efa_plugin_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """There are EFA devices, but the loader finds no libnccl-net*.so, without which NCCL cannot use them.

    Why it matters
    NCCL then logs "NET/Plugin: No plugin found" at level INFO and uses TCP, at a fraction of the bandwidth.

    When to leave it
    The job's own script sets LD_LIBRARY_PATH or NCCL_NET_PLUGIN later.

    References
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
    aws/aws-ofi-nccl; NVIDIA/nccl src/plugin/plugin_open.cc
    """
    found = need(s.network).net_plugins
    if absent(found):
        raise NotApplicable("there is no EFA, or no RDMA device at all")
    named = values(s).get("NCCL_NET_PLUGIN", "")
    if named.startswith("/"):
        raise NotApplicable(f"NCCL_NET_PLUGIN names {named}")
    plugins = need(found)
    elsewhere = known(need(s.network).net_plugins_elsewhere, ())
    yield Evidence(
        subject="libnccl-net.so",
        seen=plugins[0] if plugins else f"not on the loader's path{f'; there is {elsewhere[0]}' if elsewhere else ''}",
        wanted="a plug-in that the loader finds",
        verdict=Verdict.PASS if plugins else Verdict.FAIL,
        source="LD_LIBRARY_PATH and ld.so.conf.d",
    )


@rule(
    id="partition-member-limited",
    title="An InfiniBand port is only a limited member of its partition",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="make the hosts of the job full members (OpenSM, partitions.conf: Default=0x7fff,ipoib:ALL=full;), or ask who runs the fabric"
        ),
        Advice(text="or name the entry of another partition: export NCCL_IB_PKEY=INDEX (/sys/class/infiniband/*/ports/*/pkeys)"),
    ),
    applies=nccl_on_several_hosts,
    nothing="no InfiniBand port is active",
)
def partition_member_limited(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The partition key that NCCL takes (entry NCCL_IB_PKEY of the port's table, else the first) lacks the bit of a full member, or is empty.

    Why it matters
    Each switch and adapter drops packets between two limited members. The links are up, IPoIB may have addresses, and the first collective over
    RDMA ends with retry errors (completion error 12).

    When to leave it
    The other hosts of the job are full members.

    References
    InfiniBand Architecture Specification, volume 1, 10.9.1.2 (membership: full or limited); opensm(8), PARTITION CONFIGURATION
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-pkey
    """
    for subject, missing in rdma_links.unreadable_ports(rdma_devices(s)):
        yield unsure(subject, missing)
    ports = [pair for pair in _active(s) if pair[1].link_layer == "InfiniBand"]
    index = max(nccl.as_number(values(s).get("NCCL_IB_PKEY", "")), 0)
    for pair in ports:
        keys = pair[1].partitions
        if isinstance(keys, Missing):
            if not absent_or_unrecorded(keys):
                yield unsure(_name(pair), keys)
        elif index < len(keys):
            yield Evidence(
                subject=_name(pair),
                seen=f"entry {index} is 0x{keys[index]:04x}",
                wanted="0x8000 or more: a full member",
                verdict=Verdict.PASS if keys[index] & 0x8000 else Verdict.FAIL,
                source=f"/sys/class/infiniband/{pair[0].name}/ports/{pair[1].port}/pkeys/{index}",
            )
