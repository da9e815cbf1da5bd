"""Which interface NCCL and Gloo take, what speaks against it, and their settings, from both sides of each mark (nccl)."""

from __future__ import annotations

from typing import Any

import pytest
from altered import altered
from network_hosts import (
    BRIDGE,
    ETH0,
    ETH1,
    NOTHING,
    REFUSED,
    TAILSCALE,
    UNTOLD,
    env,
    facts,
    failed,
    gone,
    interface,
    judged,
    net,
    replace,
    seen,
    setting,
    verdict,
    with_nccl,
    with_rdma,
)

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.network import IgnoredLine, Interface, NcclFiles
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Why

WRONG = "nccl-wrong-interface"
GPU = Gpu(index=0, name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9))


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
        ("NCCL_BUFFSIZE", "8MB", "'8MB' counts as 8: strtoll stops at the first letter"),
        ("NCCL_P2P_NET_CHUNKSIZE", "512k", "'512k' counts as 512: strtoll stops at the first letter"),
        ("NCCL_BUFFSIZE", "8e6", "'8e6' counts as 8: strtoll stops at the first letter"),
        ("NCCL_BUFFSIZE", "0x800000", ""),
        ("NCCL_DEBUG_FILE", "8MB", ""),
        ("NCCL_IB_RETRY_CNT", "7", ""),
        ("NCCL_IB_RETRY_CNT", "13", "'13' counts as 5: the field has 3 bits"),
        ("NCCL_IB_TIMEOUT", "31", ""),
        ("NCCL_IB_TIMEOUT", "60", "'60' counts as 28: the field has 5 bits"),
        ("NCCL_IB_SL", "-1", ""),
        ("NCCL_IB_TC", "255", ""),
        ("NCCL_IB_TC", "256", "'256' counts as 0: the field has 8 bits"),
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
    assert failed("nccl-conf-hides-setting", with_rdma(host)) == [name] * off
    assert verdict("nccl-conf-hides-setting", net(ETH0, nccl=env(**{name: value}))) == "na"


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("NCCL_IB_DISABLE", {"network__rdma": NOTHING}, "pass"),
        ("NCCL_IB_DISABLE", {"network__rdma": REFUSED}, "unknown"),
        ("NCCL_P2P_DISABLE", {"gpu__devices": (GPU,)}, "pass"),
        ("NCCL_P2P_DISABLE", {"gpu__devices": (GPU, GPU)}, "pass"),  # two RTX 4090
        (
            "NCCL_P2P_DISABLE",
            {"gpu__devices": (GPU, replace(GPU, name="NVIDIA GeForce RTX 3090", compute_capability=(8, 6)))},
            "fail",
        ),
        ("NCCL_P2P_DISABLE", {"gpu__devices": REFUSED}, "fail"),
        ("NCCL_SHM_DISABLE", {"gpu__devices": (GPU,), "network__rdma": NOTHING}, "pass"),
        ("NCCL_SHM_DISABLE", {"gpu__devices": (GPU, GPU), "network__rdma": NOTHING}, "fail"),
    ],
)
def test_a_transport_that_is_not_there_is_not_switched_off(name: str, facts: dict[str, Any], expected: str) -> None:
    host = altered(net(ETH0, nccl=(setting(name, "1", "/etc/nccl.conf:1"),)), **facts)
    found = judged("nccl-conf-hides-setting", host)
    assert (found.verdict.value, len(found.evidence)) == (expected, 0 if expected == "pass" else 1)


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
        ("mlx4", {}, env(NCCL_NET="socket"), "na"),  # TCP is meant
        ("mlx4", {}, env(NCCL_NET="IB"), "fail"),
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
