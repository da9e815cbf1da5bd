"""Rules on the interfaces and adapters that NCCL chooses; its other settings are in settings.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtune_sys.knowledge import nccl, nccl_variables
from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.network import NcclSetting, RdmaDevice, RdmaPort
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, absent_or_unsupported, known, need
from torchtune_sys.rules.nccl.common import (
    at_loopback,
    better,
    doubt,
    interface_named,
    nccl_on_several_hosts,
    nccl_version,
    prediction,
    settings,
    sockets_carry_data,
    uses_nccl,
    values,
)


def _starts_over_sockets(s: Snapshot) -> None:
    """Require NVIDIA GPUs; a variable of NCCL's that cannot work is one for whatever it runs on."""
    if not at_loopback(s, "NCCL_SOCKET_IFNAME"):
        uses_nccl(s)


_SET_IFNAME = Advice(text="set NCCL_SOCKET_IFNAME to the interface that the other hosts can reach (or unset it)")


@rule(
    id="nccl-wrong-interface",
    title="NCCL finds no usable network interface, or one that other hosts cannot reach",
    severity=Severity.ERROR,
    cause="nccl-wrong-interface",
    applies=_starts_over_sockets,
    fix=(_SET_IFNAME,),
)
def wrong_interface(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Following NCCL's own search order, no interface is found, or a multi-host job would start on one that other hosts cannot reach.

    Why it matters
    Every job needs one IP interface to start, even on one host and with InfiniBand. If NCCL_SOCKET_IFNAME is set there is no
    fallback: a name that does not match fails with "Bootstrap : no socket interface found". If it is unset, NCCL uses the first
    interface named ib*, else the first that is not named docker*, lo* or (since 2.28.3) virbr*. Other bridges, tunnels and VPNs
    pass that test, and ranks on other hosts then wait forever. NCCL_COMM_ID, if set, must contain an address in a subnet of this
    host.

    When to leave it
    The named interface exists on the hosts where the job will run, and this host is not one of them.

    References
    NVIDIA/nccl src/misc/socket.cc (ncclFindInterfaces), src/bootstrap.cc
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    if value := at_loopback(s, "NCCL_SOCKET_IFNAME"):
        yield Evidence(
            subject="NCCL_SOCKET_IFNAME", seen=f"{value}: the loopback alone", wanted=_wanted(()), source="environment"
        )
        return
    choice = prediction(s)
    network = need(s.network)
    setting = settings(s).get("NCCL_SOCKET_IFNAME")
    _, name = nccl_version(s)
    if not choice.choices:
        yield _nothing_found(s, setting)
        return
    if choice.undecided or choice.bootstrap is None:
        yield from _by_comm_id(s, choice)
        return
    chosen = interface_named(network, choice.bootstrap.interface)
    why = doubt(s, chosen, choice.bootstrap.address) if chosen else ""
    bad = bool(why) and (s.intent.nodes or 1) > 1
    yield Evidence(
        subject=choice.bootstrap.interface,
        seen=f"{name} starts with {choice.bootstrap.interface} ({choice.bootstrap.address}): {choice.reason}"
        + (f"; it is {why}" if bad else ""),
        wanted=_wanted(better(s)),
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source=setting.source if setting else "the interfaces",
    )


def _by_comm_id(s: Snapshot, choice: nccl.Prediction) -> Iterator[Evidence]:
    """Where NCCL_COMM_ID is set, its subnet alone decides the first contact, and there is no fallback."""
    setting = settings(s)["NCCL_COMM_ID"]
    wanted = "ADDRESS:PORT in a subnet of this host, or unset"
    if choice.undecided:
        yield unsure("NCCL_COMM_ID", Missing(Why.NOT_SUPPORTED, setting.source, choice.undecided), wanted)
    else:
        seen = f"{setting.value!r}: {choice.comm_id_fault}"
        yield Evidence(subject="NCCL_COMM_ID", seen=seen, wanted=wanted, source=setting.source)


def _nothing_found(s: Snapshot, setting: NcclSetting | None) -> Evidence:
    network = need(s.network)
    there = ", ".join(interface.name for interface in need(network.interfaces) if known(interface.addresses, ()))
    wanted = _wanted(better(s) or tuple(there.split(", ")))
    if setting is None or len(setting.value) < 2:
        family = values(s).get("NCCL_SOCKET_FAMILY", "")
        hint = f" of NCCL_SOCKET_FAMILY={family}" if family else ""
        return Evidence(
            subject="interfaces", seen=f"no interface has a usable address{hint}", wanted=wanted, source="the interfaces"
        )
    return Evidence(
        subject="NCCL_SOCKET_IFNAME",
        seen=f"{setting.value!r} leaves none of: {there or 'no interface has an address'}",
        wanted=wanted,
        source=setting.source,
    )


def _wanted(names: tuple[str, ...]) -> str:
    return (
        f"an interface that exists and that other hosts reach: {' or '.join(names[:3])}"
        if names and names[0]
        else "an interface with an address that other hosts reach"
    )


@rule(
    id="nccl-interface-doubtful",
    title="NCCL would also use bridge, tunnel or veth interfaces",
    severity=Severity.WARNING,
    cause="nccl-wrong-interface",
    applies=nccl_on_several_hosts,
    fix=(_SET_IFNAME,),
)
def interface_doubtful(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL would also use interfaces that hosts of a job rarely share, although better ones exist.

    Why it matters
    Without RDMA, NCCL opens sockets on every interface that it does not filter out, not only on the first, and assigns each GPU
    the nearest one. Container bridges (br-*, cni0), veth*, tailscale0, wg* and tun* are not filtered out by default. They have
    the same addresses on every host or no route between hosts, so the job hangs at its first collective.

    When to leave it
    The interface is an overlay network that all hosts of the job share on purpose.

    References
    NVIDIA/nccl src/transport/net_socket.cc, src/misc/socket.cc
    """
    network, choice = need(s.network), prediction(s)
    good = better(s)
    if not choice.choices or not good or not sockets_carry_data(s):
        return
    first = choice.bootstrap or choice.choices[0]  # nccl-wrong-interface judges it
    judged = [other for other in choice.choices if other != first]
    for item in judged:
        interface = interface_named(network, item.interface)
        if interface and (why := doubt(s, interface, item.address)):
            yield Evidence(
                subject=item.interface,
                seen=f"{item.address}: {why}; taken because {choice.reason}",
                wanted=f"only {' and '.join(good[:3])}",
            )


@rule(
    id="nccl-uneven-networks",
    title="NCCL would use both fast and slow networks",
    severity=Severity.WARNING,
    applies=nccl_on_several_hosts,
    fix=(Advice(text="list only the fast interfaces: NCCL_SOCKET_IFNAME==IF1,IF2"),),
)
def uneven_networks(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Data goes over sockets, and the interfaces that NCCL would use differ in speed.

    Why it matters
    NCCL assigns network devices to GPUs by distance, not by speed. A ring that passes through a 1 Gb/s management port runs at
    that speed.

    When to leave it
    The other hosts cannot reach the slow interface anyway, or the data volume is small.

    References
    NVIDIA/nccl src/transport/net_socket.cc, src/graph/topo.cc
    """
    if not sockets_carry_data(s):
        raise NotApplicable("RDMA carries the data")
    network = need(s.network)
    speeds: dict[str, int] = {}
    unread: dict[str, Missing] = {}
    for item in prediction(s).choices:
        interface = interface_named(network, item.interface)
        if interface and not doubt(s, interface, item.address):
            speed = interface.speed_mbps
            if not isinstance(speed, Missing):
                speeds[item.interface] = speed
            elif not absent_or_unsupported(speed):  # virtual interfaces, and drivers of virtual machines
                unread[item.interface] = speed
    if len(speeds) + len(unread) > 1:
        yield from (unsure(name, missing, "as fast as the others") for name, missing in unread.items())
    fastest = max(speeds.values(), default=0)
    for name, speed in speeds.items():
        if speed < fastest:
            yield Evidence(
                subject=name, seen=f"{speed} Mb/s", wanted=f"{fastest} Mb/s, as {max(speeds, key=lambda key: speeds[key])}"
            )


@rule(
    id="nccl-socket-ifname-syntax",
    title="NCCL reads NCCL_SOCKET_IFNAME differently than was probably intended",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write NCCL_SOCKET_IFNAME without spaces or quotes; a leading = makes all names exact"),),
)
def ifname_syntax(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL parses the value differently than its author intended.

    Why it matters
    Names are prefixes (eth1 also matches eth10); ^ and = count only at the very start and apply to the whole list; spaces and
    quotes become part of a name; a value of one character is ignored; and names after the sixteenth are dropped. NCCL reports
    none of this.

    When to leave it
    The prefix is meant to match several interfaces.

    References
    NVIDIA/nccl src/misc/utils.cc (parseStringList, matchIfList), src/misc/socket.cc
    """
    setting = settings(s).get("NCCL_SOCKET_IFNAME")
    if setting is None or not setting.value:
        raise NotApplicable("NCCL_SOCKET_IFNAME is not set")
    names: tuple[str, ...] = ()
    if s.intent.nodes != 1 and not nccl.parse_names(setting.value).exact:  # on one host every interface leads home
        found = need(need(s.network).interfaces)
        names = tuple(interface.name for interface in found if known(interface.addresses, None) != ())
    for why, wanted in _oddities(setting.value, names):
        yield Evidence(subject="NCCL_SOCKET_IFNAME", seen=f"{setting.value!r}: {why}", wanted=wanted, source=setting.source)


def _oddities(value: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if len(value) == 1:
        yield "a value of one character is ignored", "a name, or nothing"
        return
    parsed = nccl.parse_names(value)
    parts = [part for part in value.removeprefix("^").removeprefix("=").split(",") if part]
    if any(part.strip(" \t\"'\r\n") != part for part in parts):
        yield "blanks and quotes are part of the names", "the plain name"
    if any(part[0] in "^=" for part in parts):
        yield "a further ^ or = is part of a name", "^, =, or ^= once, in front of the whole list"
    if len(parts) > nccl.MAX_INTERFACES:
        yield f"names after the sixteenth are ignored ({len(parts)} given)", "at most 16 names"
    if parsed.exact:
        return
    for word, _ in parsed.entries:
        also = [name for name in names if name.startswith(word) and name != word]
        if word in names and also:
            yield f"as a prefix, {word} also stands for {', '.join(also[:4])}", f"={word}"


@rule(
    id="nccl-ib-hca-unmatched",
    title="NCCL_IB_HCA matches no active RDMA port, or misspells one",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(EnvironmentVariable(name="NCCL_IB_HCA", value=None),),
)
def ib_hca_unmatched(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """There are active RDMA ports, but NCCL_IB_HCA excludes all of them; or one of its names is that of an active port but for one or two letters, and nothing
    else in the list takes that port.

    Why it matters
    NCCL logs "NET/IB : No device found" only at level INFO and continues over TCP, at a tenth of the speed or less. It says nothing of a name that fits no
    device: the port is not used.

    When to leave it
    You want TCP; NCCL_IB_DISABLE=1 says so explicitly.

    References
    NVIDIA/nccl src/transport/net_ib/init.cc
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    setting = settings(s).get("NCCL_IB_HCA")
    devices = need(s.network).rdma
    if setting is None or not setting.value:
        raise NotApplicable("NCCL_IB_HCA is not set")
    if absent(devices):
        raise NotApplicable("there is no RDMA device")
    active = nccl.usable_ports(need(devices))
    if not active or nccl.ib_disabled(values(s)):
        raise NotApplicable("no RDMA port is active, or NCCL_IB_DISABLE or NCCL_NET=Socket is set")
    if not nccl.usable_ports(need(devices), setting.value):
        ports = ", ".join(f"{device.name}:{port.port}" for device, port in active)
        yield Evidence(
            subject="NCCL_IB_HCA",
            seen=f"{setting.value!r} lets none of the active ports through",
            wanted=f"some of {ports}",
            source=setting.source,
        )
        return
    for wrong, meant in _mistyped(setting.value, need(devices), active):
        yield Evidence(
            subject="NCCL_IB_HCA",
            seen=f"{wrong!r} fits no device, and {meant} is not used",
            wanted=meant,
            source=setting.source,
            fix=(Advice(text=f"write {meant} in place of {wrong}"),),
        )


def _mistyped(
    value: str, devices: tuple[RdmaDevice, ...], active: tuple[tuple[RdmaDevice, RdmaPort], ...]
) -> list[tuple[str, str]]:
    """Return the names of a list that fit no device and are near one that the list leaves out: both have the same numbers, so that a list for hosts with
    more devices is none."""
    names = nccl.parse_names(value, nccl.MAX_HCAS)
    if names.exclude:
        return []
    lost = [device.name for device, port in active if not names.chosen(device.name, port.port)]
    odd = [word for word, _ in names.entries if not any(names.holds((word, -1), device.name) for device in devices)]
    return [
        (word, near)
        for word in odd
        if (
            near := next(
                (name for name in lost if _digits(name) == _digits(word) and nccl_variables.distance(word, name) <= 2), ""
            )
        )
    ]


def _digits(name: str) -> list[str]:
    return re.findall("[0-9]+", name)
