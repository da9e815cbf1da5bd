"""RDMA ports among their like, and the entries of RoCE ports, from both sides of each mark (rdma)."""

from __future__ import annotations

from typing import Any

import pytest
from rdma_hosts import (
    GOOD,
    NOTHING,
    REFUSED,
    UNTOLD,
    card,
    cards,
    env,
    facts,
    failed,
    interface,
    judged,
    net,
    port,
    replace,
    verdict,
    words,
)

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

DOWN = {"state": "DOWN", "physical_state": "Polling"}


# MTUs of rails


def rails(*mtus: Any, **more: Any) -> Snapshot:
    interfaces = tuple(interface(f"ib{at}", mtu=mtu) for at, mtu in enumerate(mtus))
    return net(cards(*([GOOD] * len(mtus)), **more), interfaces=interfaces)


@pytest.mark.parametrize(
    ("mtus", "expected", "found"),
    [
        ((9000, 9000), "na", []),
        ((9000, 1500), "na", []),
        ((9000, 9000, 9000), "pass", []),
        ((9000, 9000, 1500), "fail", ["ib2"]),
        ((1500, 1500, 9000), "fail", ["ib2"]),
        ((9000, 1500, 1500, 1500), "fail", ["ib0"]),
        ((9000, 9000, 1500, 1500), "pass", []),  # no majority
        ((9000, 4092, 1500), "pass", []),
        ((9000, 9000, REFUSED), "unknown", []),
    ],
)
def test_rails_of_one_mtu(mtus: tuple[Any, ...], expected: str, found: list[str]) -> None:
    assert verdict("rail-mtu-mismatch", rails(*mtus)) == expected
    assert failed("rail-mtu-mismatch", rails(*mtus)) == found


@pytest.mark.parametrize("change", [{"up": False}, {"up": REFUSED}])
def test_an_interface_that_is_not_up_is_no_rail(change: dict[str, Any]) -> None:
    odd = [interface("ib0", mtu=1500, **change), *(interface(f"ib{at}", mtu=9000) for at in (1, 2, 3))]
    assert verdict("rail-mtu-mismatch", net(cards(*([GOOD] * 4)), interfaces=tuple(odd))) == "pass"


def test_rails_are_alike_by_card_and_layer() -> None:
    mtus = (9000, 9000, 9000, 1500)
    host = rails(*mtus)
    assert failed("rail-mtu-mismatch", host) == ["ib3"]
    others = (*cards(GOOD, GOOD, GOOD), card(3, port(link_layer="Ethernet")))
    assert failed("rail-mtu-mismatch", replace(host, network=replace(facts(host), rdma=others))) == []
    model = (*cards(GOOD, GOOD, GOOD), card(3, board="another"))
    assert failed("rail-mtu-mismatch", replace(host, network=replace(facts(host), rdma=model))) == []
    unknown = (*cards(GOOD, GOOD, GOOD), card(3, board=REFUSED))
    assert failed("rail-mtu-mismatch", replace(host, network=replace(facts(host), rdma=unknown))) == []
    for interfaces in (("ib9",), (), REFUSED):
        elsewhere = (*cards(GOOD, GOOD, GOOD), card(3, interfaces=interfaces))
        assert verdict("rail-mtu-mismatch", replace(host, network=replace(facts(host), rdma=elsewhere))) == "pass"


# Ports that are down


@pytest.mark.parametrize(
    ("ports", "nodes", "found"),
    [
        ([GOOD, GOOD, DOWN], None, ["mlx5_2:1"]),
        ([GOOD, DOWN], None, []),  # one against one
        ([GOOD, GOOD, DOWN, DOWN], None, []),
        ([GOOD, GOOD, GOOD, DOWN, DOWN], None, ["mlx5_3:1", "mlx5_4:1"]),
        ([GOOD, GOOD, DOWN], 1, []),
        ([DOWN, DOWN], 2, ["mlx5_0:1", "mlx5_1:1"]),  # no port of the host is active
        ([DOWN, DOWN], None, []),
        ([{**DOWN, "link_layer": "Ethernet"}], 2, []),
        ([{**DOWN, "state": "INIT"}, GOOD, GOOD, GOOD, DOWN], None, ["mlx5_4:1"]),  # the subnet manager's rule
        ([{**DOWN, "state": "ARMED"}, GOOD, GOOD], None, []),
        ([{**DOWN, "state": "INIT", "link_layer": "Ethernet"}, GOOD, GOOD, GOOD], None, []),
        ([{**DOWN, "state": "ACTIVE_DEFER"}, GOOD, GOOD], None, ["mlx5_0:1"]),
    ],
)
def test_ports_that_are_down(ports: list[dict[str, Any]], nodes: int | None, found: list[str]) -> None:
    result = judged("ib-port-down", net(cards(*ports), nodes))
    assert [(item.subject, item.verdict) for item in result.evidence if item.subject != "RDMA ports"] == [
        (subject, Verdict.FAIL) for subject in found
    ]
    assert [item.verdict for item in result.evidence if item.subject == "RDMA ports"] == [Verdict.PASS] * (
        nodes != 1 and not found
    )


def test_both_functions_of_a_card() -> None:
    """Their ports are of one card: one that is down beside one that is up is the second port, which nobody needs."""
    pairs = [card(at, port(**(DOWN if at % 2 else GOOD)), pci_address=f"0000:{at // 2 + 16}:00.{at % 2}") for at in range(6)]
    assert failed("ib-port-down", net(tuple(pairs))) == []
    alone = [replace(item, pci_address=REFUSED) for item in pairs]
    assert failed("ib-port-down", net(tuple(alone))) == []
    dead = [replace(item, ports=(port(**DOWN),)) if at > 3 else item for at, item in enumerate(pairs)]
    assert failed("ib-port-down", net(tuple(dead), None)) == ["mlx5_4:1", "mlx5_5:1"]


def test_virtual_functions_beside_their_card_are_given_to_guests() -> None:
    """A node whose cards serve pods: those functions that no pod has are down, in slots of their own. In a guest there is nothing else."""
    own = [card(at, port(**GOOD), pci_address=f"0000:{at + 16}:00.0", type="MT4129") for at in range(4)]
    kept = [card(at, port(**DOWN), pci_address=f"0000:{at}:01.2", type="MT4126") for at in (16, 17, 18)]
    assert failed("ib-port-down", net((*own, *kept))) == []
    assert failed("ib-port-down", net((*own, *(replace(item, type="MT4129") for item in kept))))
    guest = [replace(item, type="MT4126") for item in own]
    assert failed("ib-port-down", net((*guest, *kept))) == ["mlx5_16:1", "mlx5_17:1", "mlx5_18:1"]


@pytest.mark.parametrize(
    ("like", "other", "found"),
    [
        ({"board": "a"}, {"board": "a"}, ["mlx5_2:1"]),
        ({"board": "a"}, {"board": "b"}, []),
        ({"board": NOTHING, "type": "MT4129"}, {"board": NOTHING, "type": "MT4129"}, ["mlx5_2:1"]),
        ({"board": NOTHING, "type": "MT4129"}, {"board": NOTHING, "type": "MT4119"}, []),
        ({"board": NOTHING, "type": NOTHING}, {"board": NOTHING, "type": NOTHING}, []),
    ],
)
def test_cards_of_one_model(like: dict[str, Any], other: dict[str, Any], found: list[str]) -> None:
    devices = (card(0, **like), card(1, **like), card(2, port(**DOWN), **other))
    assert failed("ib-port-down", net(devices, None)) == found


def test_cards_of_one_model_on_two_fabrics() -> None:
    devices = (card(0), card(1), card(2, port(**DOWN, link_layer="Ethernet")))
    assert failed("ib-port-down", net(devices, None)) == []


@pytest.mark.parametrize(("several", "found"), [(2, ["mlx5_1:1", "mlx5_2:1"]), (None, ["mlx5_1:1", "mlx5_2:1"]), (1, [])])
def test_three_to_two(several: int | None, found: list[str]) -> None:
    devices = cards(GOOD, DOWN, DOWN, GOOD, GOOD)
    assert failed("ib-port-down", net(devices, several)) == found


@pytest.mark.parametrize(
    ("hca", "found"),
    [
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("mlx5_1:1", ["mlx5_1:1"]),
        ("mlx5_1:2", ["mlx5_1:2"]),
        ("mlx5", []),  # a prefix names none
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("^mlx5_1", []),
        ("mlx5_7", []),
        ("mlx5_0,mlx5_1:2", ["mlx5_1:2"]),
        (",".join(f"mlx5_{at + 10}" for at in range(17)) + ",mlx5_1:1", ["mlx5_1:1"]),
        ("", []),
    ],
)
def test_ports_that_are_named(hca: str, found: list[str]) -> None:
    devices = (card(0), card(1, port(1, **DOWN), port(2, **DOWN)))
    assert failed("ib-port-down", net(devices, None, nccl=env(NCCL_IB_HCA=hca))) == found
    assert verdict("ib-port-down", net(devices, None, nccl=UNTOLD)) == "pass"  # a tree of files, which belongs to no job
    assert failed("ib-port-down", net(devices, None, nccl=UNTOLD)) == []
    assert verdict("ib-port-down", net(devices, None, nccl=REFUSED)) == "unknown"


def address(*texts: str) -> tuple[Any, ...]:
    from torchtune_sys.model.facts.network import Address

    return tuple(Address(family="inet6" if ":" in text else "inet", address=text, prefix_length=24) for text in texts)


@pytest.mark.parametrize(
    ("addresses", "interfaces", "said"),
    [
        (address("10.1.1.11"), ("ib1",), "ib1 was given the address 10.1.1.11"),
        (address("fe80::1", "10.1.1.11", "10.1.1.12"), ("ib0", "ib1"), "ib1 was given the address 10.1.1.11"),
        (address("fe80::1"), ("ib1",), ""),
        (address("169.254.1.1"), ("ib1",), ""),
        ((), ("ib1",), ""),
        (REFUSED, ("ib1",), ""),
        (address("10.1.1.11"), (), ""),
        (address("10.1.1.11"), REFUSED, ""),
    ],
)
def test_ports_whose_interface_has_an_address(addresses: Any, interfaces: Any, said: str) -> None:
    devices = (card(0), card(1, port(**DOWN), interfaces=interfaces))
    host = net(devices, None, interfaces=(interface("ib0"), interface("ib1", addresses=addresses)))
    assert verdict("ib-port-down", host) == ("fail" if said else "pass")
    assert len(words("ib-port-down", host)) == bool(said) and all(said in text for text in words("ib-port-down", host))


@pytest.mark.parametrize(
    ("ports", "unread", "expected"),
    [
        ([GOOD, GOOD], REFUSED, "pass"),
        ([GOOD, DOWN], REFUSED, "unknown"),
        ([GOOD, DOWN], UNTOLD, "pass"),
        ([GOOD, DOWN], NOTHING, "pass"),
        ([GOOD, GOOD, DOWN], REFUSED, "fail"),
        ([GOOD, {"state": REFUSED}], (), "unknown"),
        ([GOOD, {"link_layer": REFUSED}], (), "unknown"),
        ([GOOD, {**DOWN, "link_layer": REFUSED}], (), "unknown"),
        ([{"state": REFUSED, "link_layer": REFUSED}, GOOD, GOOD, GOOD, DOWN], (), "fail"),
    ],
)
def test_what_was_not_read(ports: list[dict[str, Any]], unread: Any, expected: str) -> None:
    result = judged("ib-port-down", net(cards(*ports), None, interfaces=unread))
    assert result.verdict.value == expected
    assert len(result.evidence) == (0 if expected == "unknown" and unread is REFUSED else len(result.evidence))
    if expected in ("unknown", "fail"):
        assert not any(item.verdict is Verdict.PASS for item in result.evidence)
    else:
        assert [item.subject for item in result.evidence] == ["RDMA ports"]


def test_each_unread_port_is_told_once() -> None:
    devices = (card(0, port(1, state=REFUSED, link_layer=REFUSED), port(2, link_layer=REFUSED)), card(1, port(state=REFUSED)))
    subjects = [item.subject for item in judged("ib-port-down", net(devices)).evidence]
    assert subjects == ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"state": "INIT"}, "fail"),
        ({"state": "ARMED"}, "fail"),
        ({"state": "DOWN"}, "pass"),
        ({"state": "ACTIVE"}, "pass"),
        ({"state": REFUSED}, "unknown"),
        ({"state": "INIT", "link_layer": "Ethernet"}, "pass"),
    ],
)
def test_ports_that_wait(change: dict[str, Any], expected: str) -> None:
    assert verdict("ib-subnet-manager-missing", net(cards(change, GOOD))) == expected
    assert verdict("ib-subnet-manager-missing", net(cards(change, GOOD), 1)) == "na"
    assert failed("ib-subnet-manager-missing", net(cards(change, {"state": "INIT"})))[-1] == "mlx5_1:1"


# Rates


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((400, 400, 200), ["mlx5_2:1"]),
        ((400, 200), []),
        ((400, 400, 200, 200), []),
        ((200, 200, 400), []),  # none is asked to reach what most do not
        ((400, 400, 400), []),
        ((400, 400, 400, 200, 100), ["mlx5_3:1", "mlx5_4:1"]),
    ],
)
def test_rates_of_siblings(rates: tuple[int, ...], found: list[str]) -> None:
    devices = cards(*({"rate_gbps": float(rate)} for rate in rates))
    assert failed("rdma-rate-degraded", net(devices)) == found
    lone = (card(8, port(rate_gbps=100.0), board="another"), *devices)
    assert failed("rdma-rate-degraded", net(lone)) == found


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((400, 400, 100), ["mlx5_2:1"]),
        ((200, 200, 200, 25), ["mlx5_3:1"]),
        ((400, 400, 400, 200), []),  # another model with the same chip, perhaps
        ((400, 100), []),
        ((100, 100, 400), []),
    ],
)
def test_rates_of_cards_of_which_the_chip_alone_is_told(rates: tuple[int, ...], found: list[str]) -> None:
    told = net(tuple(card(at, port(rate_gbps=float(rate), lanes=UNTOLD), board=UNTOLD) for at, rate in enumerate(rates)))
    assert failed("rdma-rate-degraded", told) == found


def test_roce_cards_of_which_the_chip_alone_is_told_are_not_compared() -> None:
    rates = (400.0, 400.0, 400.0, 400.0, 100.0)
    devices = tuple(card(at, port(**ROCE, rate_gbps=rate), board=UNTOLD) for at, rate in enumerate(rates))
    assert failed("rdma-rate-degraded", net(devices)) == []


ROCE = {"link_layer": "Ethernet", "lanes": NOTHING}


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((400, 400, 400, 200), ["mlx5_3:1"]),
        ((400, 400, 200), []),
        ((400, 400, 400, 100, 100), []),  # two networks, perhaps
        ((400,) * 6 + (200, 100), ["mlx5_6:1", "mlx5_7:1"]),
        ((200, 200, 200, 400), []),
    ],
)
def test_rates_of_roce_siblings(rates: tuple[int, ...], found: list[str]) -> None:
    assert failed("rdma-rate-degraded", net(cards(*({**ROCE, "rate_gbps": float(rate)} for rate in rates)))) == found


def test_a_slower_roce_port_of_the_bond_that_leads_outward_is_another_network() -> None:
    devices = cards(*({**ROCE, "rate_gbps": rate} for rate in (400.0,) * 7 + (100.0,)))
    members = tuple(interface(f"ib{at}", master="bond0" if at == 7 else "") for at in range(8))
    assert failed("rdma-rate-degraded", net(devices, interfaces=members, default_route_interface="bond0")) == []
    assert failed("rdma-rate-degraded", net(devices, interfaces=members, default_route_interface="eth0")) == ["mlx5_7:1"]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([GOOD], "pass"),
        ([{"lanes": UNTOLD}], "na"),
        ([{"lanes": UNTOLD}] * 2, "na"),
        ([{"lanes": UNTOLD}] * 3, "pass"),
        ([ROCE] * 3, "na"),
        ([ROCE] * 4, "pass"),
        ([{"link_layer": "Ethernet"}], "na"),
        ([GOOD, {"link_layer": "Ethernet"}], "pass"),
    ],
)
def test_rates_that_can_be_judged(ports: list[dict[str, Any]], expected: str) -> None:
    assert verdict("rdma-rate-degraded", net(cards(*ports))) == expected


@pytest.mark.parametrize(
    ("change", "type_", "said"),
    [
        ({"lanes": 1, "rate_gbps": 100.0}, "MT4129", "one lane is left"),
        ({"lanes": 2, "rate_gbps": 200.0}, "MT4129", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, "MT4115", "each lane fell back to the slowest speeds"),
        ({"lanes": 4, "rate_gbps": 20.1}, "MT4115", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, "MT4114", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, "MT4116", "each lane fell back to the slowest speeds"),
        ({"lanes": 4, "rate_gbps": 20.0}, "4129", "each lane fell back to the slowest speeds"),
        ({"lanes": 4, "rate_gbps": 20.0}, "", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, "cxgb4", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, "MT٤١٢٩", ""),
        ({"lanes": 4, "rate_gbps": 20.0}, NOTHING, ""),
        ({"lanes": UNTOLD, "rate_gbps": 20.0}, "MT4129", ""),
        ({"lanes": 1, "rate_gbps": UNTOLD}, "MT4129", ""),
        ({"lanes": 1, "rate_gbps": 20.0, "link_layer": "Ethernet"}, "MT4129", ""),
    ],
)
def test_a_link_that_fell_back(change: dict[str, Any], type_: Any, said: str) -> None:
    found = words("rdma-rate-degraded", net((card(0, port(**change), type=type_),)))
    assert [text.partition(": ")[2] for text in found] == ([said] if said else [])
