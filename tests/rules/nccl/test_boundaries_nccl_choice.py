"""Which interface NCCL and Gloo take, what speaks against it, and their settings, from both sides of each mark (nccl_choice)."""

from __future__ import annotations

from typing import Any

import pytest
from network_hosts import (
    BRIDGE,
    ETH0,
    ETH1,
    LO,
    NOTHING,
    REFUSED,
    ROCE,
    TAILSCALE,
    cards,
    env,
    facts,
    interface,
    net,
    replace,
    seen,
    setting,
    with_nccl,
)

from torchtune_sys.model.facts.network import Address, Interface
from torchtune_sys.model.values import Missing, NotApplicable, Unknown
from torchtune_sys.rules.nccl.common import better, doubt, nccl_version, read_by, settings, sockets_carry_data, uses_nccl


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (LO, "the loopback interface"),
        (interface("eth5", "127.0.0.5"), "the loopback interface"),
        (interface("lo1", "10.3.0.1", kind="loopback"), "the loopback interface"),
        (BRIDGE, "a bridge of containers or virtual machines"),
        (interface("veth1", "10.3.0.1", kind="veth"), "a container's veth interface"),
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
    assert doubt(host, item, address) == words
    own = replace(host, network=replace(facts(host), default_route_interface=item.name))
    assert doubt(own, item, address) == (words if "loopback" in words or words == "no carrier" else "")
    lost = replace(host, network=replace(facts(host), default_route_interface=NOTHING))
    assert doubt(lost, item, address) == words


@pytest.mark.parametrize(
    ("container", "address", "bits", "alone"),
    [
        ("docker", "172.17.0.2", 16, True),
        ("docker", "172.31.0.9", 16, True),
        ("podman", "10.88.0.4", 16, True),
        ("docker", "172.17.5.2", 24, False),
        ("docker", "172.16.0.2", 16, False),
        ("docker", "10.88.0.4", 16, False),
        ("kubernetes", "172.17.0.2", 16, False),
        ("lxc", "172.20.0.2", 16, False),
        (REFUSED, "172.17.0.2", 16, False),
    ],
)
def test_a_container_on_its_hosts_own_bridge_has_no_way_to_others(
    container: str | Missing, address: str, bits: int, alone: bool
) -> None:
    own = Address(family="inet", address=address, prefix_length=bits)
    host = net(replace(interface("eth0", address, kind="veth"), addresses=(own,)))
    assert not isinstance(host.system, Missing)
    host = replace(host, system=replace(host.system, container=container))
    assert bool(doubt(host, next(item for item in facts(host).interfaces if item.name == "eth0"), address)) is alone


def test_better_interfaces_begin_with_the_default_routes() -> None:
    bare = interface("eth2", addresses=())
    both = interface("eth3", "169.254.0.1", "10.5.0.1")
    assert better(net(ETH1, ETH0, BRIDGE, bare, both)) == ("eth1", "eth0")
    assert better(net(ETH1, ETH0, default_route_interface="eth0")) == ("eth0", "eth1")
    assert better(net(ETH1, ETH0, default_route_interface=NOTHING)) == ("eth1", "eth0")
    assert better(net(ETH1, interface("eth2", addresses=REFUSED))) == ("eth1",)


@pytest.mark.parametrize(
    "name", ["^eth0", "=eth0", "eth0,eth1", "eth0:1", "eth\x1b[31m", "e\u202eth", "\u0435th0", "e th", "{{x}}"]
)
def test_no_interface_is_named_as_better_whose_name_a_variable_reads_otherwise(name: str) -> None:
    """NCCL_SOCKET_IFNAME=^eth0 chooses all others."""
    assert better(net(replace(ETH1, name=name), ETH0, default_route_interface=name)) == ("eth0",)


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
