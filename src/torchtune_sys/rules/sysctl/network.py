"""Network settings of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Safety, Sysctl
from torchtune_sys.model.facts.network import Interface
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, Exactly
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, known, known_or_unknown, need
from torchtune_sys.rules.gates import rdma_active
from torchtune_sys.rules.sysctl.policy import (
    judged,
    neighbours_target,
    origin,
    setting,
    somaxconn_target,
)

ALGORITHMS = frozenset(
    [
        "bbr",
        "bbr1",
        "bbr2",
        "bbr3",
        "bic",
        "cdg",
        "cubic",
        "dctcp",
        "highspeed",
        "htcp",
        "hybla",
        "illinois",
        "lp",
        "nv",
        "prague",
        "reno",
        "scalable",
        "vegas",
        "veno",
        "westwood",
        "yeah",
    ]
)
"""Names of Linux's modules tcp_*.c (net/ipv4), which the kernel loads when they are asked for, and of well-known ones outside of it."""


@rule(
    id="local-ports-few",
    title="Few ephemeral local ports are available",
    severity=Severity.WARNING,
    cause="ephemeral-ports-exhausted",
    params=(Param("min", 1000, "number of available ports below which they are reported"),),
    fix=(
        Advice(
            text="set net.ipv4.ip_local_port_range = 32768 60999, the kernel's default, and remove the other line from sysctl.d"
        ),
    ),
)
def local_ports_few(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """net.ipv4.ip_local_port_range is small, or net.ipv4.ip_local_reserved_ports excludes most of it.

    Why it matters
    Each listener of Gloo and NCCL takes a port from that range, and so does each connection to a peer. Once they are used up,
    within seconds for many ranks, programs fail with "Address already in use" or "Cannot assign requested address". Fewer than 100 are too few for one process, too.

    When to leave it
    A firewall allows only this range, and you have checked that it is enough for the ranks of this host.

    References
    Linux Documentation/networking/ip-sysctl.rst, ip_local_port_range (32768 to 60999 by default), ip_local_reserved_ports
    """
    found = setting(s, "net.ipv4.ip_local_port_range")
    is_one_process = (s.intent.ranks or 1) < 2 and (s.intent.nodes or 1) < 2
    ends = [number for word in known(found.running, "").split() if (number := natural(word, 5)) is not None]
    count = max(ends[1] - ends[0] + 1, 0) if len(ends) == 2 else 0
    kept = _reserved(s, ends[0], ends[1]) if count >= int(p["min"]) else 0
    if is_one_process and (not count or count - kept >= _FEW_FOR_ANY):
        raise NotApplicable("neither several ranks nor several hosts were specified")
    running = need(found.running)
    yield Evidence(
        subject=found.key,
        seen=f"{running}: {count} ports" + (f", {kept} of them in net.ipv4.ip_local_reserved_ports" if kept else ""),
        wanted=f">= {p['min']} ports",
        verdict=Verdict.FAIL if count - kept < int(p["min"]) else Verdict.PASS,
        source=origin(s, found),
    )


@rule(
    id="somaxconn-low",
    title="The listen queue (somaxconn) is shorter than the number of ranks",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="net.core.somaxconn", target=AtLeast(2048)),),
)
def somaxconn_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """All ranks of a large job connect to the rendezvous at once; connections beyond net.core.somaxconn are dropped and retried.

    Why it matters
    Each retry costs a second or more, and the rendezvous may time out.

    When to leave it
    The job starts without delays.

    References
    listen(2): 4096 since Linux 5.4, 128 before. tuned 2.28, throughput-performance, asks for at least 2048.
    """
    yield judged(s, "net.core.somaxconn", somaxconn_target(s, p))


@rule(
    id="neighbour-table-small",
    title="The neighbour (ARP) table is too small for the job",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="net.ipv4.neigh.default.gc_thresh3", target=AtLeast(4096)),),
)
def neighbour_table_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """gc_thresh3, the maximum size of the neighbour table, is below the number of the job's hosts on this host's subnets.

    Why it matters
    All hosts contact each other when a job starts, and at each all-to-all. When the table is full, packets to further neighbours
    are dropped ("neighbor table overflow!") and ranks lose each other at random. A subnet too small for all of the job's hosts
    counts with its own size, since the other hosts are behind a router. Each RoCE card counts separately; InfiniBand does not
    count.

    When to leave it
    The hosts of the job are spread over several subnets, although this subnet is large enough for all of them.

    References
    Linux Documentation/networking/ip-sysctl.rst (neigh/default/gc_thresh3); net/core/neighbour.c (neigh_alloc); net/ipv4/arp.c: 1024
    """
    yield judged(s, "net.ipv4.neigh.default.gc_thresh3", neighbours_target(s, p))


@rule(
    id="congestion-control-unknown",
    title="A TCP congestion control is configured that does not exist",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="correct the name (sysctl net.ipv4.tcp_available_congestion_control lists what is loaded), then sysctl --system"
        ),
    ),
)
def congestion_control_unknown(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A configuration file names an algorithm that this kernel does not offer and no Linux kernel has ever had.

    Why it matters
    Setting it fails with ENOENT, which at most appears in the journal. The default stays in effect although the file suggests
    otherwise.

    When to leave it
    It is provided by a module that is loaded later.

    References
    Linux Documentation/networking/ip-sysctl.rst, tcp_congestion_control. A widely copied cluster recipe has "brr" for "bbr".
    """
    found = setting(s, "net.ipv4.tcp_congestion_control")
    offered = need(setting(s, "net.ipv4.tcp_available_congestion_control").running).split()
    blind = next(
        (made for made in (found.systemd, found.procps) if isinstance(made, Missing) and made.why is not Why.ABSENT), None
    )
    if blind is not None:
        yield unsure(found.key, blind)
    for made in _distinct(found):
        name = made.value.split()[0] if made.value.split() else ""
        known_name = name in ALGORITHMS or name in offered
        yield Evidence(
            subject=found.key,
            seen=name,
            wanted=" or ".join(offered),
            verdict=Verdict.PASS if known_name else Verdict.FAIL,
            source=made.source,
        )


def _distinct(found: Setting) -> list[Assignment]:
    sources: dict[str, Assignment] = {}
    for made in (found.systemd, found.procps, found.tuned, found.cmdline):
        if not isinstance(made, Missing):
            sources.setdefault(made.source, made)
    return list(sources.values())


def shared_subnets(s: Snapshot) -> dict[str, tuple[Interface, ...]]:
    """Return the interfaces that are up, by IPv4 subnet, where two or more are in one; NotApplicable where none is."""
    found: dict[str, dict[str, Interface]] = {}
    unseen: Missing | None = None
    interfaces = need(need(s.network).interfaces)
    # Over InfiniBand itself no data goes through IP: its interfaces carry the first contact only, and the first of them does for that.
    native = any(interface.kind == "infiniband" for interface in interfaces) and rdma_active(s)
    for interface in interfaces:
        if interface.kind == "loopback" or interface.master or (not isinstance(interface.up, Missing) and not interface.up):
            continue
        if native and interface.kind == "infiniband":
            continue
        if isinstance(interface.addresses, Missing):
            unseen = interface.addresses
            continue
        for address in interface.addresses:
            if address.family == "inet" and not isinstance(address.prefix_length, Missing) and 0 < address.prefix_length < 32:
                net = _network(address.address, address.prefix_length)
                if net:
                    found.setdefault(net, {})[interface.name] = interface
    several = {net: tuple(members.values()) for net, members in found.items() if len(members) > 1}
    if not several and unseen is not None:
        raise Unknown(unseen)
    if not several:
        raise NotApplicable("no two interfaces are in one IPv4 subnet")
    return several


def _network(address: str, prefix: int) -> str:
    """``_network("10.1.2.3", 16) == "10.1.0.0/16"``; ``""`` for what is no address."""
    parts = address.split(".")
    if len(parts) != 4 or not all(natural(part, 3) is not None for part in parts):
        return ""
    number = 0
    for part in parts:
        number = number << 8 | int(part)
    number &= ~((1 << 32 - prefix) - 1)
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0)) + f"/{prefix}"


def _others(interface: Interface, members: tuple[Interface, ...]) -> str:
    """Return the names of the others in a subnet, the first of very many."""
    names = [each.name for each in members[: _TOLD + 1] if each is not interface][:_TOLD]
    more = len(members) - 1 - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


_TOLD = 16
"""Names of others: a host has some eight rails."""
_ROUTED = ("amazon", "microsoft", "google")
"""Clouds whose virtual networks have no Ethernet segment between machines."""


def _effective(s: Snapshot, name: str, leaf: str) -> tuple[int, Setting]:
    """Return the higher of conf/all and conf/<interface> holds; with the setting that decides."""
    common, own = (setting(s, f"net.ipv4.conf.{part}.{leaf}") for part in ("all", name.replace(".", "/")))
    values = [(natural(value) or 0, found) for found in (own, common) for value in [need(found.running)]]
    return max(values, key=lambda pair: pair[0])


@rule(
    id="rp-filter-strict",
    title="Strict reverse-path filtering with several interfaces in one subnet",
    severity=Severity.WARNING,
    fix=(Sysctl(key="net.ipv4.conf.all.rp_filter", target=Exactly("2"), safety=Safety.UNSAFE),),
)
def rp_filter_strict(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Packets that arrive on one rail are silently dropped if the route back goes through another.

    Why it matters
    The routing table has one best interface per subnet; with strict filtering (1) the others receive nothing. NCCL and Gloo hang
    in connect, and RoCE address resolution fails, although ping over the first interface works.

    When to leave it
    Each rail has its own routing table (ip rule), so the route back uses the same interface.

    References
    Linux Documentation/networking/ip-sysctl.rst, rp_filter: the maximum of all and the interface holds. RFC 3704.
    oci-hpc sets 2 on the rails of its GPU shapes.
    """
    for net, members in shared_subnets(s).items():
        for interface in members:
            if isinstance(interface.up, Missing):
                yield unsure(interface.name, interface.up)
                continue
            try:
                value, decides = _effective(s, interface.name, "rp_filter")
            except NotApplicable as reason:
                yield unsure(interface.name, Missing(Why.NOT_RECORDED, "/proc/sys/net/ipv4/conf", str(reason)))
                continue
            yield Evidence(
                subject=interface.name,
                seen=f"{value}, with {_others(interface, members)} in {net} too",
                wanted="2 (loose) or 0",
                verdict=Verdict.FAIL if value == 1 else Verdict.PASS,
                source=origin(s, decides),
            )


@rule(
    id="arp-answers-on-any-interface",
    title="Every interface answers ARP requests for the addresses of the others",
    severity=Severity.ADVICE,
    fix=(
        Sysctl(key="net.ipv4.conf.all.arp_ignore", target=Exactly("1"), safety=Safety.UNSAFE),
        Sysctl(key="net.ipv4.conf.all.arp_announce", target=Exactly("2"), safety=Safety.UNSAFE),
    ),
)
def arp_answers_on_any_interface(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Several interfaces share a subnet, and arp_ignore is 0: any of them answers a request, with its own hardware address.

    Why it matters
    Traffic for one rail arrives on another: one link then carries the load of several, and NIC-to-GPU affinity is lost.

    When to leave it
    The interfaces are bonded or on standby, or carry only management traffic.

    References
    Linux Documentation/networking/ip-sysctl.rst, arp_ignore and arp_announce; oci-hpc, update_arp_settings.sh.
    """
    if not isinstance(s.system, Missing) and known_or_unknown(s.system.hypervisor, "") in _ROUTED:
        raise NotApplicable("the provider's network answers ARP itself, whatever a machine says")
    for net, members in shared_subnets(s).items():
        for interface in members:
            try:
                value, decides = _effective(s, interface.name, "arp_ignore")
            except NotApplicable as reason:
                yield unsure(interface.name, Missing(Why.NOT_RECORDED, "/proc/sys/net/ipv4/conf", str(reason)))
                continue
            yield Evidence(
                subject=interface.name,
                seen=f"arp_ignore {value}, with {_others(interface, members)} in {net} too",
                wanted="1 or 2",
                verdict=Verdict.FAIL if value == 0 else Verdict.PASS,
                source=origin(s, decides),
            )


_FEW_FOR_ANY = 100
"""Ports that a DataLoader, a download and a tracker of experiments beside each other may take, with those that wait for a minute after their end."""


def _reserved(s: Snapshot, first: int, last: int) -> int:
    """Return how many ports of the range the kernel gives to nobody who asks for any."""
    setting = need(s.sysctl).settings.get("net.ipv4.ip_local_reserved_ports")
    if setting is None or (isinstance(setting.running, Missing) and setting.running.why in (Why.ABSENT, Why.UNPARSED)):
        return 0  # an old kernel; or the file is empty, as it is where none is reserved
    words = need(setting.running)
    ranges = (part.partition("-") for part in words.split(",") if part)
    bounds = [(natural(low, 5), natural(high or low, 5)) for low, _, high in ranges]
    return sum(max(min(high, last) - max(low, first) + 1, 0) for low, high in bounds if low is not None and high is not None)
