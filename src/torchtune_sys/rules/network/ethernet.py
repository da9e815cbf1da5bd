"""Rules on the interfaces that Gloo takes, and on Ethernet links."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import Interface, NetworkFacts
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, known_or_unknown, need, need_if_there
from torchtune_sys.rules.nccl.common import (
    NO_CARRIER,
    SWITCHED_OFF,
    at_loopback,
    better,
    doubt,
    fast_roce_interfaces,
    interface_named,
    nccl_on_several_hosts,
    prediction,
    settings,
    several_hosts,
    sockets_carry_data,
)
from torchtune_sys.rules.network.hostname import NAME_IN_HOSTS


@rule(
    id="gloo-interface-missing",
    title="GLOO_SOCKET_IFNAME names an interface that this host does not have",
    severity=Severity.ERROR,
    fix=(Advice(text="set GLOO_SOCKET_IFNAME to the exact name of an interface with an address, or unset it"),),
    cause="gloo-wrong-interface",
)
def gloo_interface_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Unlike NCCL_SOCKET_IFNAME, this variable takes exact names: no prefixes, no ^ and no =.

    Why it matters
    init_process_group fails with "Unable to find address for: NAME" as soon as a Gloo group is created.

    When to leave it
    No Gloo group is ever created (backend nccl alone, no CPU collectives).

    References
    facebookincubator/gloo transport/tcp/device.cc (lookupAddrForIface)
    https://pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use
    """
    network = need(s.network)
    wanted = need(network.gloo_interfaces)
    if not wanted:
        raise NotApplicable("GLOO_SOCKET_IFNAME is not set")
    interfaces = need(network.interfaces)
    there = ", ".join(interface.name for interface in interfaces if known(interface.addresses, ()))
    for name in nccl.predict_gloo(interfaces, (), wanted).missing:
        yield Evidence(
            subject="GLOO_SOCKET_IFNAME", seen=f"{name!r} has no address here", wanted=f"one of {there}", source="environment"
        )


@rule(
    id="gloo-interface-doubtful",
    title="Gloo would use an interface that other hosts probably cannot reach",
    severity=Severity.WARNING,
    applies=several_hosts,
    fix=(NAME_IN_HOSTS,),
)
def gloo_interface_doubtful(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The address that Gloo would publish belongs to the loopback, a bridge, a tunnel, a veth pair or a link-local network.

    Why it matters
    CPU process groups, barriers and object collectives then hang or fail with "Connection refused", although NCCL itself may
    work.

    When to leave it
    That network is an overlay that all hosts of the job share on purpose.

    References
    facebookincubator/gloo transport/tcp/device.cc, pytorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
    """
    if value := at_loopback(s, "GLOO_SOCKET_IFNAME"):
        wanted = "an interface that other hosts reach"
        yield Evidence(subject="GLOO_SOCKET_IFNAME", seen=f"{value}: the loopback alone", wanted=wanted, source="environment")
        return
    network = need(s.network)
    named = need(network.gloo_interfaces)
    addresses = () if absent(network.hostname_addresses) else need(network.hostname_addresses)
    choice = nccl.predict_gloo(need(network.interfaces), addresses, named)
    good = better(s)
    for item in choice.choices:
        interface = interface_named(network, item.interface)
        if interface is None or (nccl.is_loopback(item.address) and not named):
            continue  # the rules on the host's name say so
        why = doubt(s, interface, item.address)
        if why and (good or why in (SWITCHED_OFF, NO_CARRIER)):
            wanted = " or ".join(good[:3]) or "an interface that is up, with a carrier"
            yield Evidence(subject=item.interface, seen=f"{item.address}: {why}; {choice.reason}", wanted=wanted)


@rule(
    id="gloo-and-nccl-on-different-networks",
    title="NCCL and Gloo use different networks: only one of them has its interface set",
    severity=Severity.ADVICE,
    applies=nccl_on_several_hosts,
    fix=(Advice(text="name the same interface in both NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"),),
)
def gloo_and_nccl_differ(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """One of NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME names an interface; the library without one would use a different subnet.

    Why it matters
    There is usually a reason to name an interface: the other networks do not connect the hosts, or a firewall is in between.
    Neither library reads the other's variable, so a job passes its first NCCL collective and hangs in the first barrier of a Gloo
    group, or vice versa.

    When to leave it
    Both networks connect all hosts of the job. A management network next to InfiniBand or RoCE is normal and not judged; nor is a
    host where neither variable is set.

    References
    https://pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use
    NVIDIA/nccl src/misc/socket.cc, facebookincubator/gloo transport/tcp/device.cc
    """
    network = need(s.network)
    named = need(network.gloo_interfaces)
    setting = settings(s).get("NCCL_SOCKET_IFNAME")
    named_for_nccl = setting is not None and len(setting.value) > 1 and not setting.value.startswith("^")
    if named_for_nccl == bool(named):
        raise NotApplicable("both variables name an interface" if named_for_nccl else "neither variable names an interface")
    addresses = () if absent(network.hostname_addresses) else need(network.hostname_addresses)
    gloo = nccl.predict_gloo(need(network.interfaces), addresses, named).choices
    predicted = prediction(s)
    theirs = (
        predicted.choices if named_for_nccl else predicted.choices[:1]
    )  # unnamed: the first contact goes over the first alone
    if not gloo or not theirs or (nccl.is_loopback(gloo[0].address) and not named):
        return  # the rules on wrong names and on the host's own name say so
    fabric = _fabric_interfaces(s)
    if any(choice.interface in fabric for choice in (*gloo, *theirs)):
        raise NotApplicable("one of them takes the RDMA fabric, which connects the hosts beside the other network")
    if not any(nccl.share_subnet(need(network.interfaces), one, other) for one in gloo for other in theirs):
        silent, other = ("GLOO_SOCKET_IFNAME", gloo[0]) if named_for_nccl else ("NCCL_SOCKET_IFNAME", theirs[0])
        by = theirs[0] if named_for_nccl else gloo[0]
        yield Evidence(
            subject=silent,
            seen=f"not set: {silent.partition('_')[0].replace('GLOO', 'Gloo')} takes {other.interface} ({other.address})",
            wanted=f"{by.interface} ({by.address}), as the other variable says",
            source=setting.source if named_for_nccl and setting else "environment",
        )


def _fabric_interfaces(s: Snapshot) -> set[str]:
    network = need(s.network)
    devices = known(network.rdma, ())
    own = {name for device in devices for name in known(device.interfaces, ())}
    return own | {interface.name for interface in need(network.interfaces) if interface.kind == "infiniband"}


_ETHERNET = ("ethernet", "usb")
_TOO_SLOW_MBPS = 100
_MADE_UP = ("virtio_net", "8139cp", "pcnet32")
"""Drivers of cards that hypervisors play (QEMU's rtl8139, VirtualBox' PCnet), whose speed is a word: data goes as fast as the host copies it."""


@rule(
    id="ethernet-link-slow",
    title="The network link is wireless in a job of several hosts, or came up at 100 Mb/s or less or at half duplex",
    severity=Severity.WARNING,
    fix=(Advice(text="change the cable or port, and let both ends negotiate the speed (ethtool IF)"),),
)
def ethernet_link_slow(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The wired interface of the default route runs at 100 Mb/s or 10 Mb/s, or sends and receives in turns (half duplex); or it is a wireless one, the
    job spans hosts, and no wired interface has a carrier and an address.

    Why it matters
    Every NIC of the last fifteen years supports 1 Gb/s; less means a damaged cable, a bad port or a forced speed. Data sets,
    checkpoints and package downloads are then limited to 12 MB/s. At half duplex, where one end negotiates and the other was set by hand, frames of
    both directions collide, and little is left of the speed as soon as both send. Over Wi-Fi the hosts share one channel and send in turns, too, and
    a packet waits for milliseconds: a step of training exchanges all gradients, and waits for the last one.

    When to leave it
    This is the speed that the provider sells.

    References
    Linux Documentation/ABI/testing/sysfs-class-net (speed, duplex)
    """
    interface = _default_interface(s)
    if interface.kind == "wifi" and (s.intent.nodes or 1) > 1 and not _is_wired(need(s.network)):
        yield Evidence(subject=interface.name, seen="Wi-Fi", wanted="a wired link", source="/sys/class/net", fix=(_BY_WIRE,))
        return
    if known_or_unknown(interface.driver, "") in _MADE_UP or interface.kind not in _ETHERNET:
        raise NotApplicable("the default route leaves by no wired link")
    if isinstance(interface.speed_mbps, Missing):
        if interface.speed_mbps.why is Why.NOT_SUPPORTED:
            raise NotApplicable("the driver names no speed, as those of virtual machines mostly do")
        yield unsure(interface.name, interface.speed_mbps, f"more than {_TOO_SLOW_MBPS} Mb/s")
        return
    yield Evidence(
        subject=interface.name,
        seen=f"{interface.speed_mbps} Mb/s",
        wanted=f"more than {_TOO_SLOW_MBPS} Mb/s",
        verdict=Verdict.FAIL if interface.speed_mbps <= _TOO_SLOW_MBPS else Verdict.PASS,
        source=f"/sys/class/net/{interface.name}/speed",
    )
    if known(interface.duplex, "") == "half":
        yield Evidence(
            subject=interface.name, seen="half duplex", wanted="full duplex", source=f"/sys/class/net/{interface.name}/duplex"
        )


_BY_WIRE = Advice(
    text="connect the hosts of the job by cable, and name that interface in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
)


def _is_wired(network: NetworkFacts) -> bool:
    """Return whether a job can go by cable while the internet is reached by Wi-Fi: two hosts side by side are joined so."""
    return any(
        interface.kind in _WIRED and known(interface.running, True) and not one.address.startswith("fe80:")
        for interface in need(network.interfaces)
        for one in known(interface.addresses, ())
    )


_WIRED = (*_ETHERNET, "infiniband", "bond", "vlan")


def _default_interface(s: Snapshot) -> Interface:
    network = need(s.network)
    way = network.default_route_interface
    if isinstance(way, Missing) and way.why is Why.NOT_RECORDED:
        ports = [one for one in need(network.interfaces) if one.kind in _ETHERNET and known(one.running, False)]
        if len(ports) == 1:  # of a report, or of copied files: nothing leaves but by the one port with a link
            return ports[0]
    interface = interface_named(network, need_if_there(way, "there is no default route"))
    if interface is None:
        raise NotApplicable("the default route's interface is not listed")
    return interface


_NEVER_LINKED = Missing(Why.NOT_RECORDED, "link_failure_count", "no link since the port joined the bond: whether it has a cable")


@rule(
    id="bond-port-down",
    title="A bond of network ports lacks one of them",
    severity=Severity.WARNING,
    applies=several_hosts,
    fix=(
        Advice(
            text="look at the port's cable, its transceiver and the switch (ethtool PORT, /proc/net/bonding/BOND), or take the port out of the bond"
        ),
    ),
    nothing="no bond of several ports is up",
)
def bond_port_down(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Of the ports that a bond is made of, one is switched off or has no carrier.

    Why it matters
    A bond by LACP then has that much less of its rate, and of any other the spare is gone: the next fault takes the host out of the job. The bond itself is up and
    says nothing.

    When to leave it
    The port was never cabled: where it has not lost a link since it joined the bond, that is unknown. A job on this host alone is not judged.

    References
    Linux Documentation/networking/bonding.rst (mii_status); netdevice(7), IFF_RUNNING; drivers/net/bonding/bond_sysfs_slave.c (link_failure_count)
    """
    interfaces = need(need(s.network).interfaces)
    for bond in (each for each in interfaces if each.kind == "bond" and known(each.running, False)):
        ports = [each for each in interfaces if each.master == bond.name]
        for port in ports if len(ports) > 1 else ():
            if isinstance(port.running, Missing):
                yield unsure(f"{port.name} of {bond.name}", port.running)
                continue
            if not port.running and known(port.up, False) and port.links_lost == 0:
                yield unsure(f"{port.name} of {bond.name}", _NEVER_LINKED, "up")
                continue
            times = known(port.links_lost, 0)
            lost = f", lost {times} time{'s' * (times > 1)}" if times else ""
            yield Evidence(
                subject=f"{port.name} of {bond.name}",
                seen="up" if port.running else f"no carrier{lost}" if known(port.up, True) else "switched off",
                wanted="up",
                verdict=Verdict.PASS if port.running else Verdict.FAIL,
                source=f"/sys/class/net/{port.name}",
            )


_CLOUD_MTU = {"amazon": "9001", "google": "8896 (of the VPC network, too)"}
"""The largest packets of clouds that carry jumbo frames (docs.aws.amazon.com, Network MTU for your EC2 instance; cloud.google.com/vpc/docs/mtu)."""


def _jumbo(s: Snapshot) -> str:
    """Return the MTU to aim for. The network of a virtual machine belongs to the provider, and few of them carry jumbo frames."""
    inside = "" if isinstance(s.system, Missing) else known(s.system.hypervisor, "")
    if inside and inside not in _CLOUD_MTU:
        raise NotApplicable(f"a virtual machine ({inside}): who owns its network says what the network carries")
    return _CLOUD_MTU.get(inside, "9000")


_KEPT = Advice(
    text="make it last where the interface is configured: nmcli connection modify CONNECTION mtu 9000 (NetworkManager), mtu: 9000 (netplan), "
    "MTUBytes=9000 under [Link] of its .network file (systemd-networkd), MTU=9000 in its /etc/sysconfig/network/ifcfg file (wicked), "
    "mtu 9000 in /etc/network/interfaces (ifupdown); ip link set is gone after a restart"
)
"""Sources: nm-settings-nmcli(5), netplan-yaml(5), systemd.network(5), ifcfg(5) of wicked, interfaces(5)."""


@rule(
    id="ethernet-mtu-small",
    title="The MTU is 1500 on a fast Ethernet network between hosts",
    severity=Severity.ADVICE,
    applies=several_hosts,
    fix=(Advice(text="set MTU 9000 on the interface and on every switch port between the hosts"), _KEPT),
)
def ethernet_mtu_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL's or Gloo's data goes over TCP on a link of 25 Gb/s or more whose MTU is 1500 or less; or by RoCE over ports of 100 Gb/s or more whose interfaces
    have such an MTU, so that packets hold 1024 bytes of the 4096 that they may.

    Why it matters
    A core handles a limited number of packets per second; with jumbo frames, one sixth as many carry the same data. RoCE loses some five per cent
    to headers.

    When to leave it
    Not all switches and hosts on the path support jumbo frames: a mismatch is worse than small packets.

    References
    https://fasterdata.es.net/network-tuning/mtu-issues/
    https://github.com/NVIDIA/dgx-spark-playbooks/pull/103 (all_reduce over RoCE: 4200 and 9000 against 1500)
    NVIDIA, "MTU Considerations for RoCE based Applications" (an MTU of 4200 for packets of 4096 bytes)
    """
    if not sockets_carry_data(s):
        found = fast_roce_interfaces(s)
        if not found:
            raise NotApplicable("RDMA carries the data, and not over fast Ethernet ports with interfaces")
        wanted = _jumbo(s)
        for name, mtu in found.items():
            small = mtu <= 1500
            yield Evidence(subject=name, seen=f"MTU {mtu}", wanted=wanted, verdict=Verdict.FAIL if small else Verdict.PASS)
        return
    wanted = _jumbo(s)
    for item in prediction(s).choices:
        interface = interface_named(need(s.network), item.interface)
        if interface is None:
            continue
        speed = interface.speed_mbps
        if isinstance(speed, Missing) and speed.why is Why.HIDDEN:
            yield unsure(item.interface, speed)  # of which kind the interface is, is hidden too
            continue
        if interface.kind not in ("ethernet", "bond") or (isinstance(speed, Missing) and speed.why is Why.NOT_SUPPORTED):
            continue  # drivers of virtual machines mostly name no speed
        if not isinstance(speed, Missing) and speed < 25_000:
            continue
        mtu = need(interface.mtu)
        if mtu <= 1500 and isinstance(speed, Missing):
            yield unsure(item.interface, speed)
            continue
        small = mtu <= 1500
        yield Evidence(subject=item.interface, seen=f"MTU {mtu}", wanted=wanted, verdict=Verdict.FAIL if small else Verdict.PASS)
