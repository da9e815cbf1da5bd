"""Which interface NCCL and Gloo take, what speaks against it, and their settings, from both sides of each mark."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.network import Address, IgnoredLine, Interface, NcclFiles, NcclSetting, NetworkFacts, RdmaDevice
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why
from torchtune_sys.rules import nccl, network
from torchtune_sys.rules.nccl_choice import better, doubt, nccl_version, read_by, settings, sockets_carry_data, uses_nccl

RULES: dict[str, Rule] = {rule.id: rule for rule in (*network.RULES, *nccl.RULES)}
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


NOTHING, REFUSED, UNTOLD = gone(Why.ABSENT), gone(Why.DENIED), gone(Why.NOT_RECORDED)


def facts(host: Snapshot) -> NetworkFacts:
    assert not isinstance(host.network, Missing)
    return host.network


def cards(host: Snapshot) -> tuple[RdmaDevice, ...]:
    found = facts(host).rdma
    assert not isinstance(found, Missing)
    return found


def interface(name: str, *addresses: str, kind: str = "ethernet", position: int = 0, **more: Any) -> Interface:
    listed = tuple(
        Address(family="inet6" if ":" in address else "inet", address=address, prefix_length=24, position=position + at)
        for at, address in enumerate(addresses)
    )
    told = {"up": True, "running": True, "operstate": "up", "speed_mbps": 25_000, "mtu": 1500, "addresses": listed}
    plain = {"numa_node": -1, "pci_address": NOTHING, "vendor": NOTHING, "driver": NOTHING}
    return Interface(**{"name": name, "index": position, "kind": kind, **plain, **told, **more})


LO = interface("lo", "127.0.0.1", kind="loopback", speed_mbps=NOTHING, mtu=65536)


def net(*interfaces: Interface, nodes: int | None = 2, **more: Any) -> Snapshot:
    """A host without RDMA that has these interfaces besides lo; the first has the default route and the host's name."""
    placed = tuple(
        replace(item, addresses=tuple(replace(address, position=at * 4 + address.position) for address in item.addresses))
        if not isinstance(item.addresses, Missing)
        else item
        for at, item in enumerate((LO, *interfaces))
    )
    first = interfaces[0] if interfaces else LO
    told = first.addresses[:1] if not isinstance(first.addresses, Missing) else ()
    plain = {"rdma": NOTHING, "verbs_nodes": NOTHING, "nccl": (), "gloo_interfaces": ()}
    named = {"default_route_interface": first.name, "hostname_addresses": tuple(item.address for item in told)}
    host = replace(seen("healthy"), intent=Intent(nodes=nodes))
    return replace(host, network=replace(facts(host), **{"interfaces": placed, **plain, **named, **more}))


def setting(name: str, value: str, source: str = "environment", **more: str) -> NcclSetting:
    return NcclSetting(name=name, value=value, source=source, **more)


def env(**values: str) -> tuple[NcclSetting, ...]:
    return tuple(setting(name, value) for name, value in values.items())


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


ETH0, ETH1 = interface("eth0", "10.0.0.11"), interface("eth1", "10.0.1.11")
BRIDGE = interface("br0", "10.9.0.1", kind="bridge", speed_mbps=NOTHING)
TAILSCALE = interface("ts0", "100.64.0.1", kind="tun", speed_mbps=NOTHING)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (LO, "the loopback interface"),
        (interface("eth5", "127.0.0.5"), "the loopback interface"),
        (interface("lo1", "10.3.0.1", kind="loopback"), "the loopback interface"),
        (BRIDGE, "a bridge of containers or virtual machines"),
        (interface("veth1", "10.3.0.1", kind="veth"), "one end of a container's cable"),
        (TAILSCALE, "a tunnel"),
        (interface("wg0", "10.3.0.1", kind="wireguard"), "a VPN"),
        (interface("d0", "10.3.0.1", kind="dummy"), "a dummy"),
        (interface("usb0", "10.3.0.1", kind="usb"), "a USB network (often the board controller's)"),
        (interface("wwan0", "10.3.0.1", kind="wwan"), "a mobile network"),
        (interface("eth5", "169.254.3.4"), "an address that is valid on one wire only"),
        (interface("eth5", "fe80::1"), "an address that is valid on one wire only"),
        (interface("eth5", "10.3.0.1", running=False), "no carrier"),
        (interface("eth5", "10.3.0.1", running=REFUSED), ""),
        (ETH1, ""),
        (interface("ib0", "10.3.0.1", kind="infiniband"), ""),
        (interface("bond0", "10.3.0.1", kind="bond"), ""),
    ],
)
def test_what_speaks_against_an_interface(item: Interface, words: str) -> None:
    host = net(ETH0, item)
    assert not isinstance(item.addresses, Missing)
    address = item.addresses[0].address
    assert doubt(facts(host), item, address) == words
    own = replace(facts(host), default_route_interface=item.name)
    assert doubt(own, item, address) == (words if "loopback" in words else "")
    lost = replace(facts(host), default_route_interface=NOTHING)
    assert doubt(lost, item, address) == words


def test_better_interfaces_begin_with_the_default_routes() -> None:
    bare = interface("eth2", addresses=())
    both = interface("eth3", "169.254.0.1", "10.5.0.1")
    assert better(facts(net(ETH1, ETH0, BRIDGE, bare, both))) == ("eth1", "eth0")
    assert better(facts(net(ETH1, ETH0, default_route_interface="eth0"))) == ("eth0", "eth1")
    assert better(facts(net(ETH1, ETH0, default_route_interface=NOTHING))) == ("eth1", "eth0")
    assert better(facts(net(ETH1, interface("eth2", addresses=REFUSED)))) == ("eth1",)


@pytest.mark.parametrize(
    ("installed", "first", "before", "read"),
    [
        ((2, 20), "", "", True),
        ((2, 20), "2.20", "", True),
        ((2, 20), "2.21", "", False),
        ((2, 20), "", "2.20", False),
        ((2, 20), "", "2.21", True),
        ((2, 20), "2.19", "2.20", False),
        ((2, 20), "2.19", "2.21", True),
        ((2, 20), "2.21", "2.22", False),
    ],
)
def test_files_that_a_release_reads(installed: tuple[int, ...], first: str, before: str, read: bool) -> None:
    assert read_by(installed, first, before) is read


def with_nccl(host: Snapshot, release: Any) -> Snapshot:
    assert not isinstance(host.python, Missing) and not isinstance(host.python.torch, Missing)
    return replace(host, python=replace(host.python, torch=replace(host.python.torch, nccl=release)))


def test_the_first_file_that_the_installed_release_reads_counts() -> None:
    both = (
        setting("NCCL_DEBUG", "WARN", "/etc/new.conf:1", first="2.21"),
        setting("NCCL_DEBUG", "INFO", "/etc/old.conf:1", before="2.21"),
        setting("NCCL_DEBUG", "TRACE", "/etc/nccl.conf:1"),
    )
    host = net(ETH0, nccl=both)
    assert settings(with_nccl(host, "2.20.5"))["NCCL_DEBUG"].value == "INFO"
    assert settings(with_nccl(net(ETH0, nccl=both[1:2]), "2.21.5")) == {}
    assert settings(with_nccl(host, "2.21.5"))["NCCL_DEBUG"].value == "WARN"
    assert nccl_version(with_nccl(host, "2.21.5"))[0] == (2, 21, 5)
    assert nccl_version(with_nccl(host, "2.21.5.7"))[0] == (2, 21, 5)
    assert (
        nccl_version(with_nccl(host, NOTHING)) == nccl_version(with_nccl(host, "")) == nccl_version(replace(host, python=REFUSED))
    )


def test_who_uses_nccl() -> None:
    host = net(ETH0)
    uses_nccl(host)
    assert not isinstance(host.python, Missing) and not isinstance(host.python.torch, Missing)
    for torch in (NOTHING, REFUSED):  # it may come yet
        uses_nccl(replace(host, python=replace(host.python, torch=torch)))
    uses_nccl(replace(host, python=REFUSED))
    with pytest.raises(NotApplicable):
        cpu = replace(host.python.torch, cuda=NOTHING)
        uses_nccl(replace(host, python=replace(host.python, torch=cpu)))


ROCE = {"link_layer": "Ethernet"}


@pytest.mark.parametrize(
    ("port", "more", "carry"),
    [
        ({}, {}, False),
        (ROCE, {}, False),
        ({"state": "DOWN"}, {}, True),
        ({}, {"nccl": env(NCCL_IB_DISABLE="1")}, True),
        ({}, {"nccl": env(NCCL_IB_DISABLE="0")}, False),
        ({}, {"nccl": env(NCCL_IB_HCA="mlx5_3")}, False),
        ({}, {"nccl": env(NCCL_IB_HCA="mlx4")}, True),
        ({}, {"nccl": env(NCCL_IB_HCA="^mlx5")}, True),
        ({}, {"rdma": NOTHING}, True),
        ({}, {"verbs_nodes": NOTHING}, True),
        ({}, {"verbs_nodes": ("rdma_cm",)}, True),
        ({"link_layer": "Unspecified"}, {}, False),  # EFA's, by its plug-in
        ({"link_layer": "Unspecified"}, {"nccl": env(NCCL_IB_DISABLE="1")}, False),
        ({"link_layer": "Unspecified", "state": "DOWN"}, {}, True),
    ],
)
def test_who_carries_the_data(port: dict[str, Any], more: dict[str, Any], carry: bool) -> None:
    host = seen("healthy")
    rdma = tuple(replace(card, ports=tuple(replace(item, **port) for item in card.ports)) for card in cards(host))
    assert sockets_carry_data(replace(host, network=replace(facts(host), **{"rdma": rdma, **more}))) is carry
    with pytest.raises(Unknown):
        sockets_carry_data(replace(host, network=replace(facts(host), rdma=REFUSED)))


WRONG = "nccl-wrong-interface"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (net(ETH0), "pass"),
        (net(ETH0, TAILSCALE), "pass"),
        (net(TAILSCALE, ETH0, default_route_interface="eth0"), "fail"),
        (net(TAILSCALE, ETH0, default_route_interface="eth0", nodes=1), "pass"),
        (net(TAILSCALE, ETH0, default_route_interface="eth0", nodes=None), "pass"),
        (net(TAILSCALE, ETH0), "pass"),  # the tunnel has the default route
        (net(), "fail"),  # nothing but lo
        (net(nodes=1), "pass"),
        (net(ETH0, nccl=env(NCCL_SOCKET_IFNAME="eth9")), "fail"),
        (net(ETH0, nccl=env(NCCL_SOCKET_IFNAME="e")), "pass"),  # ignored
        (net(ETH0, nccl=env(NCCL_COMM_ID="10.0.0.11:29500")), "pass"),
        (net(ETH0, nccl=env(NCCL_COMM_ID="10.7.0.11:29500")), "fail"),
        (net(ETH0, nccl=env(NCCL_COMM_ID="trainer-00:29500")), "unknown"),
        (net(ETH0, nccl=env(NCCL_COMM_ID="")), "fail"),
    ],
)
def test_the_first_contact(host: Snapshot, expected: str) -> None:
    assert verdict(WRONG, host) == expected


@pytest.mark.parametrize(
    ("value", "subject"), [("e9", "NCCL_SOCKET_IFNAME"), ("e", "interfaces"), ("", "interfaces"), ("^eth", "NCCL_SOCKET_IFNAME")]
)
def test_what_is_blamed_where_nothing_is_found(value: str, subject: str) -> None:
    chosen = env(NCCL_SOCKET_IFNAME=value)
    alone = interface("eth0", "10.0.0.11")
    host = net(alone, nccl=(*chosen, *env(NCCL_SOCKET_FAMILY="AF_INET6")))
    assert failed(WRONG, host) == [subject]
    assert ("AF_INET6" in judged(WRONG, host).evidence[0].seen) is (subject == "interfaces")


DOUBTFUL = "nccl-interface-doubtful"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (net(ETH0, ETH1), []),
        (net(ETH0, TAILSCALE), ["ts0"]),
        (net(ETH0, TAILSCALE, BRIDGE), ["ts0", "br0"]),
        (net(ETH0, TAILSCALE, ETH1, BRIDGE), ["ts0", "br0"]),
        (net(TAILSCALE, BRIDGE, default_route_interface=NOTHING), []),  # there is no better one
        (net(TAILSCALE, ETH0, default_route_interface="eth0"), []),  # another rule's: it comes first
        (net(TAILSCALE, ETH0, BRIDGE, default_route_interface="eth0"), ["br0"]),
        (net(ETH0, TAILSCALE, nccl=env(NCCL_COMM_ID="100.64.0.1:29500")), []),
        (net(ETH0, TAILSCALE, BRIDGE, nccl=env(NCCL_COMM_ID="10.9.0.1:29500")), []),
        (net(ETH0, nccl=env(NCCL_SOCKET_IFNAME="nothing")), []),
        (net(ETH0, TAILSCALE, nccl=env(NCCL_SOCKET_IFNAME="ts0,eth0")), ["ts0"]),
        (net(ETH0, TAILSCALE, nccl=env(NCCL_COMM_ID="10.7.0.1:1", NCCL_SOCKET_IFNAME="ts,eth")), ["ts0"]),
        (
            net(
                TAILSCALE, ETH0, default_route_interface="eth0", nccl=env(NCCL_COMM_ID="10.7.0.1:1", NCCL_SOCKET_IFNAME="ts,eth")
            ),
            [],
        ),
    ],
)
def test_networks_that_hosts_hardly_share(host: Snapshot, found: list[str]) -> None:
    assert failed(DOUBTFUL, host) == found


def test_rdma_leaves_the_other_interfaces_alone() -> None:
    host = net(ETH0, TAILSCALE)
    rdma = facts(seen("healthy"))
    with_rdma = replace(host, network=replace(facts(host), rdma=rdma.rdma, verbs_nodes=rdma.verbs_nodes))
    assert failed(DOUBTFUL, with_rdma) == []
    assert verdict("nccl-uneven-networks", with_rdma) == "na"
    assert verdict("ethernet-mtu-small", with_rdma) == "na"


def at_speed(name: str, address: str, speed: Any, **more: Any) -> Interface:
    return interface(name, address, speed_mbps=speed, **more)


UNEVEN = "nccl-uneven-networks"
FAST = at_speed("eth0", "10.0.0.11", 100_000)


@pytest.mark.parametrize(
    ("host", "expected", "found"),
    [
        (net(FAST, at_speed("eth1", "10.0.1.11", 100_000)), "pass", []),
        (net(FAST, at_speed("eth1", "10.0.1.11", 99_999)), "fail", ["eth1"]),
        (net(at_speed("eth1", "10.0.1.11", 1000), FAST), "fail", ["eth1"]),
        (net(FAST, at_speed("eth1", "10.0.1.11", REFUSED)), "unknown", []),
        (net(FAST, at_speed("eth1", "10.0.1.11", UNTOLD)), "unknown", []),
        (net(FAST, at_speed("eth1", "10.0.1.11", gone(Why.NOT_SUPPORTED))), "pass", []),
        (net(FAST, at_speed("eth1", "10.0.1.11", NOTHING)), "pass", []),
        (net(at_speed("eth1", "10.0.1.11", REFUSED)), "pass", []),  # there is none to compare with
        (net(at_speed("eth1", "10.0.1.11", REFUSED), at_speed("eth2", "10.0.2.11", REFUSED)), "unknown", []),
        (net(FAST, at_speed("eth1", "10.0.1.11", REFUSED), at_speed("eth2", "10.0.2.11", 1000)), "fail", ["eth2"]),
        (net(FAST, at_speed("br1", "10.0.1.11", 1000, kind="bridge")), "pass", []),  # another rule's
        (net(FAST, at_speed("br1", "10.0.1.11", REFUSED, kind="bridge")), "pass", []),
        (net(), "pass", []),
    ],
)
def test_networks_of_unlike_speed(host: Snapshot, expected: str, found: list[str]) -> None:
    assert verdict(UNEVEN, host) == expected
    assert failed(UNEVEN, host) == found


MTU = "ethernet-mtu-small"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"speed_mbps": 25_000, "mtu": 1500}, "fail"),
        ({"speed_mbps": 25_000, "mtu": 1501}, "pass"),
        ({"speed_mbps": 24_999, "mtu": 1500}, "pass"),
        ({"speed_mbps": 25_000, "mtu": 1500, "kind": "bond"}, "fail"),
        ({"speed_mbps": 25_000, "mtu": 1500, "kind": "vlan"}, "pass"),
        ({"speed_mbps": REFUSED, "mtu": 1500}, "unknown"),
        ({"speed_mbps": REFUSED, "mtu": 9000}, "pass"),
        ({"speed_mbps": REFUSED, "mtu": 1501}, "pass"),
        ({"speed_mbps": gone(Why.NOT_SUPPORTED), "mtu": 1500}, "pass"),
        ({"speed_mbps": 25_000, "mtu": REFUSED}, "unknown"),
        ({"speed_mbps": 1000, "mtu": REFUSED}, "pass"),
    ],
)
def test_small_packets(item: dict[str, Any], expected: str) -> None:
    first = interface("eth0", "10.0.0.11", **item)
    assert verdict(MTU, net(first)) == expected
    if not isinstance(first.mtu, Missing):
        assert failed(MTU, net(first, ETH1))[-1] == "eth1"


SLOW = "ethernet-link-slow"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"speed_mbps": 100}, "fail"),
        ({"speed_mbps": 101}, "pass"),
        ({"speed_mbps": 10, "kind": "usb"}, "fail"),
        ({"speed_mbps": 10, "kind": "bridge"}, "na"),
        ({"speed_mbps": 10, "driver": "virtio_net"}, "na"),
        ({"speed_mbps": 10, "driver": REFUSED}, "fail"),
        ({"speed_mbps": 10, "driver": "e1000e"}, "fail"),
        ({"speed_mbps": REFUSED}, "unknown"),
        ({"speed_mbps": gone(Why.NOT_SUPPORTED)}, "na"),
    ],
)
def test_slow_links(item: dict[str, Any], expected: str) -> None:
    first = interface("eth0", "10.0.0.11", **item)
    assert verdict(SLOW, net(first, ETH1)) == expected
    assert verdict(SLOW, net(first, ETH1, default_route_interface="eth1")) == "pass"
    assert verdict(SLOW, net(first, default_route_interface=NOTHING)) == "na"
    assert verdict(SLOW, net(first, default_route_interface=REFUSED)) == "unknown"
    assert verdict(SLOW, net(first, default_route_interface="eth7")) == "na"


# The host's own name, and Gloo


@pytest.mark.parametrize(
    ("addresses", "nodes", "expected"),
    [
        (("10.0.0.11",), 2, "pass"),
        (("127.0.1.1",), 2, "fail"),
        (("127.0.1.1",), None, "pass"),
        (("127.0.1.1",), 1, "na"),
        (("127.0.1.1", "10.0.0.11"), 2, "fail"),
        (("10.0.0.11", "127.0.1.1"), 2, "pass"),
        (("8.8.8.8",), 2, "pass"),  # another rule's
        (("::1",), 2, "fail"),
        (NOTHING, 2, "na"),
        (REFUSED, 2, "unknown"),
    ],
)
def test_names_that_lead_home(addresses: Any, nodes: int | None, expected: str) -> None:
    host = net(ETH0, nodes=nodes, hostname_addresses=addresses)
    assert verdict("hostname-resolves-to-loopback", host) == expected
    named = replace(host, network=replace(facts(host), gloo_interfaces=("eth0",)))
    assert verdict("hostname-resolves-to-loopback", named) == "na"


def test_the_host_is_called_by_its_name() -> None:
    host = net(ETH0, hostname_addresses=("127.0.1.1",))
    assert failed("hostname-resolves-to-loopback", host) == ["trainer-01"]
    assert not isinstance(host.system, Missing)
    for unnamed in (replace(host, system=REFUSED), replace(host, system=replace(host.system, hostname=REFUSED))):
        assert failed("hostname-resolves-to-loopback", unnamed) == ["the host name"]


def with_rdma(host: Snapshot, **port: Any) -> Snapshot:
    healthy = facts(seen("healthy"))
    rdma = tuple(replace(card, ports=tuple(replace(item, **port) for item in card.ports)) for card in cards(seen("healthy")))
    return replace(host, network=replace(facts(host), rdma=rdma, verbs_nodes=healthy.verbs_nodes))


@pytest.mark.parametrize(
    ("addresses", "nodes", "rdma", "expected"),
    [
        (("8.8.8.8",), 2, None, "fail"),
        (("8.8.8.8",), 1, None, "na"),
        (("8.8.8.8",), None, None, "pass"),
        (("8.8.8.8",), None, {}, "fail"),  # with a live RDMA port it is no loner
        (("8.8.8.8",), None, {"state": "DOWN"}, "pass"),
        (("10.0.0.11",), None, {}, "pass"),
        (("10.0.0.11",), 2, None, "pass"),
        (NOTHING, None, None, "fail"),
        (REFUSED, 2, None, "unknown"),
    ],
)
def test_names_that_lead_nowhere(addresses: Any, nodes: int | None, rdma: Any, expected: str) -> None:
    host = net(ETH0, nodes=nodes, hostname_addresses=addresses)
    assert verdict("hostname-unresolvable", host if rdma is None else with_rdma(host, **rdma)) == expected


GLOO = "gloo-interface-doubtful"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (net(ETH0), []),
        (net(TAILSCALE, ETH0, default_route_interface="eth0"), ["ts0"]),
        (net(ETH0, TAILSCALE, gloo_interfaces=("ts0",)), ["ts0"]),
        (net(ETH0, TAILSCALE, BRIDGE, gloo_interfaces=("ts0", "eth0", "br0")), ["ts0", "br0"]),
        (net(ETH0, TAILSCALE, gloo_interfaces=("lo", "ts0")), ["lo", "ts0"]),
        (net(ETH0, hostname_addresses=("127.0.1.1",)), []),  # the rule on names
        (net(ETH0, hostname_addresses=NOTHING), []),
        (net(TAILSCALE, default_route_interface=NOTHING), []),
    ],
)
def test_where_gloo_would_talk(host: Snapshot, found: list[str]) -> None:
    assert failed(GLOO, host) == found
    assert verdict(GLOO, host) == ("fail" if found else "pass")


def test_a_name_that_could_not_be_looked_up() -> None:
    assert verdict(GLOO, net(ETH0, hostname_addresses=REFUSED)) == "unknown"
    differ = net(ETH0, ETH1, hostname_addresses=REFUSED, nccl=env(NCCL_SOCKET_IFNAME="eth1"))
    assert verdict("gloo-and-nccl-on-different-networks", differ) == "unknown"
    missing = net(ETH0, gloo_interfaces=("eth7", "eth0", "eth8"))
    assert len(failed("gloo-interface-missing", missing)) == 2


DIFFER = "gloo-and-nccl-on-different-networks"


@pytest.mark.parametrize(
    ("host", "expected", "silent"),
    [
        (net(ETH0, ETH1), "na", []),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth1")), "fail", ["GLOO_SOCKET_IFNAME"]),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth0")), "pass", []),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth1,eth0")), "pass", []),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth1,eth0"), hostname_addresses=("10.0.1.11",)), "pass", []),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="^eth0")), "na", []),
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="e")), "na", []),
        (net(ETH0, interface("e1", "10.0.1.11"), nccl=env(NCCL_SOCKET_IFNAME="e1")), "fail", ["GLOO_SOCKET_IFNAME"]),
        (net(ETH0, ETH1, gloo_interfaces=("eth1",)), "fail", ["NCCL_SOCKET_IFNAME"]),
        (net(ETH0, ETH1, gloo_interfaces=("eth0",)), "pass", []),
        (net(ETH0, ETH1, gloo_interfaces=("eth1", "eth0")), "pass", []),
        (net(ETH0, ETH1, gloo_interfaces=("eth1",), nccl=env(NCCL_SOCKET_IFNAME="eth0")), "na", []),
        (net(ETH0, ETH1, gloo_interfaces=("eth7",)), "pass", []),  # a rule of its own
        (net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth7")), "pass", []),
        (net(ETH0, ETH1, hostname_addresses=("127.0.1.1",), nccl=env(NCCL_SOCKET_IFNAME="eth1")), "pass", []),
        (net(ETH0, ETH1, hostname_addresses=NOTHING, nccl=env(NCCL_SOCKET_IFNAME="eth1")), "pass", []),
        (net(ETH0, ETH1, gloo_interfaces=("lo",)), "fail", ["NCCL_SOCKET_IFNAME"]),
        (net(ETH0, interface("ib0", "10.0.1.11", kind="infiniband"), nccl=env(NCCL_SOCKET_IFNAME="ib0")), "na", []),
        (net(ETH0, interface("ib0", "10.0.1.11", kind="infiniband"), gloo_interfaces=("ib0",)), "na", []),
    ],
)
def test_two_libraries_two_networks(host: Snapshot, expected: str, silent: list[str]) -> None:
    assert verdict(DIFFER, host) == expected
    assert failed(DIFFER, host) == silent


def test_the_interfaces_of_roce_cards_are_the_fabric() -> None:
    host = with_rdma(net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth1")), **ROCE)
    assert verdict(DIFFER, host) == "fail"
    first, *others = cards(host)
    mine = replace(host, network=replace(facts(host), rdma=(replace(first, interfaces=("eth1",)), *others)))
    assert verdict(DIFFER, mine) == "na"
    unread = replace(host, network=replace(facts(host), rdma=(replace(first, interfaces=REFUSED), *others)))
    assert verdict(DIFFER, unread) == "fail"


def test_what_each_library_takes_is_told() -> None:
    (item,) = judged(DIFFER, net(ETH0, ETH1, nccl=env(NCCL_SOCKET_IFNAME="eth1"))).evidence
    assert "Gloo takes eth0 (10.0.0.11)" in item.seen and item.wanted.startswith("eth1 (10.0.1.11)")
    (item,) = judged(DIFFER, net(ETH0, ETH1, gloo_interfaces=("eth1",))).evidence
    assert "NCCL takes eth0 (10.0.0.11)" in item.seen and item.wanted.startswith("eth1 (10.0.1.11)")


# What NCCL makes of its settings


@pytest.mark.parametrize(
    ("value", "oddities"),
    [
        ("eth0", []),
        ("=eth0", []),
        ("^docker0", []),
        ("e", ["a value of one character is ignored"]),
        ("eth0 ", ["blanks and quotes are part of the names"]),
        ("eth0, eth1", ["blanks and quotes are part of the names"]),
        ("'eth0'", ["blanks and quotes are part of the names"]),
        ('"eth0"', ["blanks and quotes are part of the names"]),
        ("eth0\t", ["blanks and quotes are part of the names"]),
        ("eth0\r\n", ["blanks and quotes are part of the names"]),
        ("eth0X", []),
        ("eth0,X1", []),
        ("eth0,=eth1", ["a further ^ or = is part of a name"]),
        ("eth0,^eth1", ["a further ^ or = is part of a name"]),
        ("=^eth0", ["a further ^ or = is part of a name"]),
        ("=" + ",".join(f"eth{at}" for at in range(16)), []),
        ("=" + ",".join(f"eth{at}" for at in range(17)), ["names after the sixteenth are ignored (17 given)"]),
    ],
)
def test_values_that_say_something_else(value: str, oddities: list[str]) -> None:
    found = judged("nccl-socket-ifname-syntax", net(ETH0, nccl=env(NCCL_SOCKET_IFNAME=value))).evidence
    assert [item.seen.partition(": ")[2] for item in found] == oddities


WANTED = {
    "e": "a name, or nothing",
    "eth0 ": "the plain name",
    "eth0,=eth1": "^, =, or ^= once, in front of the whole list",
    "=" + ",".join(f"eth{at}" for at in range(17)): "at most 16 names",
    "eth0": "=eth0",
}


@pytest.mark.parametrize(("value", "wanted"), WANTED.items())
def test_how_to_say_it(value: str, wanted: str) -> None:
    more = tuple(interface(f"eth0{at}", f"10.1.{at}.1") for at in range(6))
    found = judged("nccl-socket-ifname-syntax", net(ETH0, *more, nccl=env(NCCL_SOCKET_IFNAME=value))).evidence
    (item,) = (item for item in found if item.wanted == wanted)
    if value == "eth0":
        assert item.seen.endswith("also stands for eth00, eth01, eth02, eth03")


@pytest.mark.parametrize(
    ("name", "value", "seen_words"),
    [
        ("NCCL_IB_DISABLE", "true", "'true' counts as 0"),
        ("NCCL_IB_DISABLE", "1", ""),
        ("NCCL_IB_DISABLE", "+1", ""),
        ("NCCL_IB_DISABLE", "-1", ""),
        ("NCCL_IB_DISABLE", " 1", ""),
        ("NCCL_IB_DISABLE", "1x", ""),
        ("NCCL_IB_DISABLE", "x1", "'x1' counts as 0"),
        ("NCCL_IB_DISABLE", "X+1", "'X+1' counts as 0"),
        ("NCCL_IB_DISABLE", "", ""),
        ("NCCL_IB_DISABLE", " ", ""),
        ("NCCL_P2P_LEVEL", "nvl", "'nvl' is ignored"),
        ("NCCL_P2P_LEVEL", "NVL", ""),
        ("NCCL_SOCKET_FAMILY", "INET", "'INET' is ignored"),
        ("NCCL_DEBUG", "LOUD", "'LOUD' is ignored"),
        ("NCCL_SOCKET_IFNAME", "true", ""),
    ],
)
def test_values_that_nccl_reads(name: str, value: str, seen_words: str) -> None:
    found = judged("nccl-value-ignored", net(ETH0, nccl=env(**{name: value}))).evidence
    assert [item.seen for item in found] == ([seen_words] if seen_words else [])


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ({}, True),
        ({"cured_in": "2.28"}, False),
        ({"cured_in": "2.29"}, True),
        ({"first": "2.28"}, True),
        ({"first": "2.29"}, False),
        ({"before": "2.28"}, False),
        ({"before": "2.29"}, True),
    ],
)
def test_lines_of_files_that_the_release_reads(line: dict[str, str], read: bool) -> None:
    lines = tuple(IgnoredLine(source=f"/etc/nccl.conf:{at}", text="x", why="y", **more) for at, more in ((1, line), (2, {})))
    host = with_nccl(net(ETH0, nccl_files=NcclFiles(ignored=lines)), "2.28")
    assert failed("nccl-conf-line-ignored", host) == ["/etc/nccl.conf:1"] * read + ["/etc/nccl.conf:2"]


@pytest.mark.parametrize(
    ("name", "value", "off"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "2", False),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_SHM_DISABLE", "1", True),
        ("NCCL_SHM_DISABLE", "2", False),
        ("NCCL_IB_DISABLE", "1", True),
        ("NCCL_IB_DISABLE", "2", True),
        ("NCCL_IB_DISABLE", "0", False),
        ("NCCL_IB_DISABLE", "true", False),
        ("NCCL_NVLS_ENABLE", "1", False),
        ("NCCL_CUMEM_ENABLE", "0", False),
    ],
)
def test_transports_that_a_file_switches_off(name: str, value: str, off: bool) -> None:
    host = net(ETH0, nccl=(setting("NCCL_DEBUG", "INFO", "/etc/nccl.conf:1"), setting(name, value, "/etc/nccl.conf:2")))
    assert failed("nccl-conf-hides-setting", host) == [name] * off
    assert verdict("nccl-conf-hides-setting", net(ETH0, nccl=env(**{name: value}))) == "na"


def test_a_variable_that_the_release_is_the_last_to_read() -> None:
    from torchtune_sys.knowledge.nccl_variables import variables

    row = next(row for row in variables().values() if row.last)
    release = ".".join(map(str, row.last))
    host = net(ETH0, nccl=env(**{row.name: "1"}))
    assert failed("nccl-variable-unknown", with_nccl(host, release)) == []
    assert failed("nccl-variable-unknown", with_nccl(host, f"{row.last[0]}.{row.last[1] + 1}.9")) == [row.name]


@pytest.mark.parametrize(
    ("value", "port", "more", "expected"),
    [
        ("mlx5", {}, {}, "pass"),
        ("mlx4", {}, {}, "fail"),
        ("mlx4", {"state": "DOWN"}, {}, "na"),
        ("mlx4", {}, env(NCCL_IB_DISABLE="1"), "na"),
        ("mlx4", {}, env(NCCL_IB_DISABLE="0"), "fail"),
        ("", {}, {}, "na"),
    ],
)
def test_cards_that_a_value_names(value: str, port: dict[str, Any], more: Any, expected: str) -> None:
    host = with_rdma(net(ETH0, nccl=(*env(NCCL_IB_HCA=value), *more)), **port)
    assert verdict("nccl-ib-hca-unmatched", host) == expected
    assert verdict("nccl-ib-hca-unmatched", replace(host, network=replace(facts(host), rdma=NOTHING))) == "na"
    if value:
        assert verdict("nccl-ib-hca-unmatched", replace(host, network=replace(facts(host), rdma=REFUSED))) == "unknown"


def test_prefixes_matter_between_hosts_and_among_interfaces_with_an_address() -> None:
    rule = "nccl-socket-ifname-syntax"
    longer = interface("eth00", "10.1.0.1")
    chosen = env(NCCL_SOCKET_IFNAME="eth0")
    assert verdict(rule, net(ETH0, longer, nccl=chosen)) == "fail"
    assert verdict(rule, net(ETH0, longer, nccl=chosen, nodes=None)) == "fail"
    assert verdict(rule, net(ETH0, longer, nccl=chosen, nodes=1)) == "pass"
    assert verdict(rule, net(ETH0, longer, nccl=env(NCCL_SOCKET_IFNAME="=eth0"))) == "pass"
    assert verdict(rule, net(ETH0, interface("eth00", addresses=()), nccl=chosen)) == "pass"
    assert verdict(rule, net(ETH0, interface("eth00", addresses=REFUSED), nccl=chosen)) == "fail"
    assert verdict(rule, net(ETH0, longer)) == "na"
    assert verdict(rule, net(ETH0, longer, nccl=env(NCCL_SOCKET_IFNAME=""))) == "na"


@pytest.mark.parametrize(("release", "taken"), [("2.27.7", "eth0"), ("2.28.3", "eth1")])
def test_interfaces_without_a_carrier(release: str, taken: str) -> None:
    host = with_nccl(net(interface("eth0", "10.0.0.11", running=False), ETH1, nodes=1), release)
    assert judged(WRONG, host).evidence[0].subject == taken
