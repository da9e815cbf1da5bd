"""Which interface NCCL and Gloo take, what speaks against it, and their settings, from both sides of each mark (network)."""

from __future__ import annotations

from typing import Any

import pytest
from altered import altered, asked, result
from network_hosts import (
    BRIDGE,
    ETH0,
    ETH1,
    NOTHING,
    REFUSED,
    ROCE,
    TAILSCALE,
    cards,
    env,
    facts,
    failed,
    gone,
    interface,
    judged,
    net,
    replace,
    verdict,
    with_rdma,
)

from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

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
        ({"speed_mbps": 100, "driver": "8139cp"}, "na"),
        ({"speed_mbps": 100, "driver": "r8169"}, "fail"),
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
        (net(interface("eth0", "10.0.0.11", up=False, running=False)), ["eth0"]),  # where nothing better is there, too
        (net(interface("eth0", "10.0.0.11", running=False)), ["eth0"]),
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


@pytest.mark.parametrize(
    ("ranks", "nodes", "with_torch", "expected"),
    [
        (None, None, True, "fail"),
        (2, None, True, "fail"),
        (2, None, False, "fail"),
        (1, 2, True, "fail"),
        (1, None, True, "na"),
        (None, None, False, "na"),
    ],
)
def test_no_loopback_on_a_host_without_a_gpu(
    healthy: Snapshot, ranks: int | None, nodes: int | None, with_torch: bool, expected: str
) -> None:
    """Nobody said how many ranks there will be: torchrun and the smoke test meet over the loopback, also those of one host."""
    torch: dict[str, Any] = {} if with_torch else {"python__torch": NOTHING}
    found = healthy.network
    assert not isinstance(found, Missing) and not isinstance(found.interfaces, Missing)
    down = tuple(replace(item, up=False) if item.name == "lo" else item for item in found.interfaces)
    seen = altered(healthy, driver__nvidia_devices=(), driver__amd_devices=(), gpu__devices=(), network__interfaces=down, **torch)
    assert result(asked(seen, ranks=ranks, nodes=nodes), "loopback-unusable").verdict.value == expected
