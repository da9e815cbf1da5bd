"""Kernel settings, the operating system's age, and which interfaces share a subnet: each mark from both sides (sysctl_network)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sysctl_hosts import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, changed, judged, made, over_tcp, with_intent, with_keys

from torchtune_sys.model.facts.network import Address
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why
from torchtune_sys.rules.sysctl import network as sysctl_network

UNTOLD = Missing(Why.NOT_SUPPORTED, "test")


def with_interfaces(seen: Snapshot, *interfaces: dict[str, Any]) -> Snapshot:
    """Interfaces that are each an Ethernet card that is up, but for what is told of them."""
    assert not isinstance(seen.network, Missing) and not isinstance(seen.network.interfaces, Missing)
    card = next(interface for interface in seen.network.interfaces if interface.name == "eno1")
    found = tuple(msgspec.structs.replace(card, **{"name": f"eth{n}", **told}) for n, told in enumerate(interfaces))
    return changed(seen, "network", interfaces=found)


@pytest.mark.parametrize(("nodes", "expected"), [(None, NA), (0, NA), (1, NA), (2, FAIL), (3, FAIL)])
def test_tcp_matters_between_hosts(healthy: Snapshot, nodes: int | None, expected: Verdict) -> None:
    slow = {"net.ipv4.tcp_slow_start_after_idle": "1"}
    assert judged(with_keys(over_tcp(healthy, nodes), slow), "tcp-slow-start-after-idle").verdict is expected
    assert (
        judged(with_keys(with_intent(healthy, nodes=nodes), slow), "tcp-slow-start-after-idle").verdict is NA
    )  # RDMA carries it


RECEIVE, SEND = 6291456, 4194304
"""What the kernel takes by itself (net/ipv4/tcp.c)."""


FAST = 16 << 20


@pytest.mark.parametrize(
    ("speeds", "receive", "send"),
    [
        ([25000], FAST, FAST),
        ([24999], RECEIVE, SEND),
        ([1000, 100_000], FAST, FAST),
        ([DENIED, 100_000], FAST, FAST),
        ([UNTOLD, 1000], RECEIVE, SEND),  # a virtual machine's
        ([NOTHING, 1000], RECEIVE, SEND),  # a bridge
        ([NOTHING], RECEIVE, SEND),
        ([], RECEIVE, SEND),
        ([1000, DENIED], None, None),  # it may be a fast one
    ],
)
def test_buffers_by_the_fastest_link(healthy: Snapshot, speeds: list[Any], receive: int | None, send: int | None) -> None:
    seen = with_interfaces(over_tcp(healthy), *({"speed_mbps": speed} for speed in speeds))

    def verdicts(less_receive: int, less_send: int) -> list[Verdict]:
        values = {
            "net.ipv4.tcp_rmem": f"4096 131072 {(receive or FAST) - less_receive}",
            "net.ipv4.tcp_wmem": f"4096 16384 {(send or FAST) - less_send}",
        }
        found = judged(with_keys(seen, values), "tcp-buffer-ceiling-low")
        return [item.verdict for item in found.evidence] or [found.verdict]

    if receive is None:
        assert verdicts(0, 0) == [UNKNOWN]
    else:
        assert (verdicts(0, 0), verdicts(1, 0), verdicts(0, 1)) == ([PASS, PASS], [FAIL, PASS], [PASS, FAIL])


@pytest.mark.parametrize(
    ("nodes", "ranks", "queue", "expected"),
    [
        (None, 300, "128", NA),
        (1, 300, "128", NA),
        (2, 127, "128", NA),
        (2, 128, "255", FAIL),
        (2, 128, "256", PASS),
        (3, 100, "299", FAIL),
        (1000, 8, "2048", PASS),
        (1000, 8, "2047", FAIL),
    ],
)
def test_a_queue_as_long_as_the_job(healthy: Snapshot, nodes: int | None, ranks: int, queue: str, expected: Verdict) -> None:
    seen = with_keys(with_intent(healthy, nodes=nodes, ranks=ranks), {"net.core.somaxconn": queue})
    assert judged(seen, "somaxconn-low").verdict is expected


# --- congestion control


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"systemd": made("bbr")}, ["bbr"]),
        ({"systemd": made("brr")}, ["brr!"]),
        ({"systemd": made("brr extra", "a"), "procps": made("cubic", "b")}, ["brr!", "cubic"]),
        ({"systemd": made("brr", "a"), "procps": made("brr", "a")}, ["brr!"]),  # one line that both read
        ({"systemd": made("brr", "a"), "procps": made("brr", "b")}, ["brr!", "brr!"]),
        ({"tuned": made("brr", "t"), "cmdline": made("mine", "c")}, ["brr!", "mine"]),
        ({"systemd": made("")}, ["!"]),
        ({"systemd": DENIED, "procps": made("bbr")}, ["?", "bbr"]),
        ({"procps": DENIED}, ["?"]),
        ({}, []),
    ],
)
def test_names_of_congestion_control(healthy: Snapshot, facts: dict[str, Any], expected: list[str]) -> None:
    control, offered = "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control"
    seen = with_keys(with_keys(healthy, {control: "cubic"}, **facts), {offered: "reno cubic mine"})
    marks = {FAIL: "!", UNKNOWN: "?", PASS: ""}
    found = judged(seen, "congestion-control-unknown").evidence
    assert [("" if item.verdict is UNKNOWN else item.seen) + marks[item.verdict] for item in found] == expected


ALGORITHMS = [
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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_modules_that_the_kernel_loads_when_they_are_asked_for(healthy: Snapshot, name: str) -> None:
    control, offered = "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control"
    seen = with_keys(with_keys(healthy, {control: "mine"}, systemd=made(name)), {offered: "mine"})
    assert judged(seen, "congestion-control-unknown").verdict is PASS


# --- subnets


def at(address: str, prefix: Any = 24, family: str = "inet") -> tuple[Address, ...]:
    return (Address(family=family, address=address, prefix_length=prefix),)


ONE, TWO = {"addresses": at("10.1.2.3")}, {"addresses": at("10.1.2.4")}


@pytest.mark.parametrize(
    ("interfaces", "shared"),
    [
        ([ONE, TWO], {"10.1.2.0/24": ["eth0", "eth1"]}),
        ([ONE, {"kind": "loopback", **TWO}], {}),
        ([ONE, {"master": "bond0", **TWO}], {}),
        ([ONE, {"up": False, **TWO}], {}),
        ([ONE, {"up": DENIED, **TWO}], {"10.1.2.0/24": ["eth0", "eth1"]}),
        ([{"kind": "loopback", **TWO}, {"addresses": DENIED}, ONE, TWO], {"10.1.2.0/24": ["eth2", "eth3"]}),
        ([{"kind": "infiniband", **ONE}, TWO, {"addresses": at("10.1.2.9")}], {"10.1.2.0/24": ["eth1", "eth2"]}),
        ([{"kind": "infiniband", **ONE}, {"kind": "infiniband", **TWO}], {}),  # native InfiniBand carries the data
        ([ONE, {"addresses": at("10.1.3.4")}], {}),
        ([{"addresses": at("10.1.2.3", 16)}, {"addresses": at("10.1.3.4", 16)}], {"10.1.0.0/16": ["eth0", "eth1"]}),
        ([ONE, {"addresses": at("10.1.2.4", 25)}], {}),
        ([{"addresses": at("10.1.2.3", 32)}, {"addresses": at("10.1.2.3", 32)}], {}),  # a host route
        ([{"addresses": at("10.1.2.3", 31)}, {"addresses": at("10.1.2.2", 31)}], {"10.1.2.2/31": ["eth0", "eth1"]}),
        ([{"addresses": at("10.1.2.3", 1)}, {"addresses": at("10.9.9.9", 1)}], {"0.0.0.0/1": ["eth0", "eth1"]}),
        ([{"addresses": at("10.1.2.3", 0)}, {"addresses": at("10.9.9.9", 0)}], {}),
        ([{"addresses": at("10.1.2.3", DENIED)}, TWO], {}),
        ([{"addresses": at("fe80::1", 24, "inet6")}, {"addresses": at("fe80::2", 24, "inet6")}], {}),
        ([{"addresses": at("10.1.2.3") + at("10.1.2.4")}], {}),  # two addresses of one interface
    ],
)
def test_interfaces_in_one_subnet(healthy: Snapshot, interfaces: list[dict[str, Any]], shared: dict[str, list[str]]) -> None:
    seen = with_interfaces(healthy, *interfaces)
    try:
        found = {net: [member.name for member in members] for net, members in sysctl_network.shared_subnets(seen).items()}
    except NotApplicable:
        found = {}
    assert found == shared


def test_ipoib_shares_a_subnet_where_no_rdma_is_active(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"kind": "infiniband", **ONE}, {"kind": "infiniband", **TWO})
    assert list(sysctl_network.shared_subnets(changed(seen, "network", rdma=NOTHING))) == ["10.1.2.0/24"]
    mixed = with_interfaces(healthy, ONE, TWO)  # RoCE: the addresses matter
    assert list(sysctl_network.shared_subnets(mixed)) == ["10.1.2.0/24"]


@pytest.mark.parametrize(
    ("address", "prefix", "network"),
    [
        ("10.1.2.3", 16, "10.1.0.0/16"),
        ("10.1.2.3", 31, "10.1.2.2/31"),
        ("255.255.255.255", 1, "128.0.0.0/1"),
        ("192.168.7.9", 30, "192.168.7.8/30"),
        ("0.0.0.1", 24, "0.0.0.0/24"),
        ("1.2.3.129", 25, "1.2.3.128/25"),
        ("10.1.2", 24, ""),
        ("10.1.2.3.4", 24, ""),
        ("10.1.2.x", 24, ""),
        ("10.1.2.", 24, ""),
        ("10.1.2.\u0663", 24, ""),
        ("10.1.2.1000", 24, ""),
        ("fe80::1", 24, ""),
    ],
)
def test_networks_of_addresses(address: str, prefix: int, network: str) -> None:
    assert sysctl_network._network(address, prefix) == network


def filtered(seen: Snapshot, leaf: str, common: Any, *own: Any, first: str = "eth0") -> Snapshot:
    keys = {f"net.ipv4.conf.{name}.{leaf}": value for name, value in zip((first, "eth1", "eth2"), own, strict=False)}
    return with_keys(seen, {f"net.ipv4.conf.all.{leaf}": common, **keys})


@pytest.mark.parametrize(
    ("common", "own", "strict", "answers"),
    [
        ("0", "0", PASS, FAIL),
        ("0", "1", FAIL, PASS),
        ("1", "0", FAIL, PASS),
        ("1", "2", PASS, PASS),
        ("2", "1", PASS, PASS),
        ("x", "1", FAIL, PASS),
        ("x", "x", PASS, FAIL),  # what the kernel cannot have printed says nothing
        ("0", None, UNKNOWN, UNKNOWN),
        (None, "1", UNKNOWN, UNKNOWN),
    ],
)
def test_the_higher_of_two_values_holds(healthy: Snapshot, common: Any, own: Any, strict: Verdict, answers: Verdict) -> None:
    seen = with_interfaces(healthy, ONE, TWO, {"addresses": at("10.1.2.5")})
    for rule_id, leaf, expected, good in (
        ("rp-filter-strict", "rp_filter", strict, "2"),
        ("arp-answers-on-any-interface", "arp_ignore", answers, "1"),
    ):
        found = judged(filtered(seen, leaf, common, own, good, good), rule_id).evidence
        last = UNKNOWN if common is None else PASS
        assert [item.verdict for item in found] == [expected, last, last]
        assert expected is not UNKNOWN or (found[0].why is not None and found[0].why.why is Why.NOT_RECORDED)


def test_an_interface_of_which_nobody_knows_whether_it_is_up(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"up": DENIED, **ONE}, TWO)
    found = judged(filtered(seen, "rp_filter", "0", "1", "1"), "rp-filter-strict").evidence
    assert [(item.verdict, item.why) for item in found] == [(UNKNOWN, DENIED), (FAIL, None)]


def test_interfaces_with_a_dot_in_their_name(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"name": "eth0.7", **ONE}, TWO)
    found = judged(filtered(seen, "rp_filter", "0", "1", "2", first="eth0/7"), "rp-filter-strict").evidence
    assert [(item.subject, item.verdict) for item in found] == [("eth0.7", FAIL), ("eth1", PASS)]


@pytest.mark.parametrize(
    ("hypervisor", "expected"), [("", FAIL), ("kvm", FAIL), (DENIED, FAIL), ("amazon", NA), ("microsoft", NA), ("google", NA)]
)
def test_virtual_networks_answer_arp_themselves(healthy: Snapshot, hypervisor: Any, expected: Verdict) -> None:
    seen = filtered(with_interfaces(healthy, ONE, TWO), "arp_ignore", "0", "0", "0")
    assert judged(changed(seen, "system", hypervisor=hypervisor), "arp-answers-on-any-interface").verdict is expected
    assert judged(msgspec.structs.replace(seen, system=DENIED), "arp-answers-on-any-interface").verdict is FAIL
