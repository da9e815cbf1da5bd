"""RDMA ports among their like, and the entries of RoCE ports, from both sides of each mark."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.network import Gid, Interface, NcclSetting, NetworkFacts, RdmaDevice, RdmaPort
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import rdma

RULES: dict[str, Rule] = {rule.id: rule for rule in rdma.RULES}
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


NOTHING, REFUSED, UNTOLD = gone(Why.ABSENT), gone(Why.DENIED), gone(Why.NOT_RECORDED)
UNSAID = gone(Why.NOT_SUPPORTED)


def facts(host: Snapshot) -> NetworkFacts:
    assert not isinstance(host.network, Missing)
    return host.network


def port(number: int = 1, **more: Any) -> RdmaPort:
    found = facts(seen("healthy")).rdma
    assert not isinstance(found, Missing)
    return replace(found[0].ports[0], **{"port": number, **more})


def card(number: int, *ports: RdmaPort, **more: Any) -> RdmaDevice:
    """mlx5_<number>, with one good port where none is given."""
    found = facts(seen("healthy")).rdma
    assert not isinstance(found, Missing)
    plain = {"name": f"mlx5_{number}", "pci_address": f"0000:{number + 16:x}:00.0", "interfaces": (f"ib{number}",)}
    return replace(found[0], **{**plain, "ports": ports or (port(),), **more})


def cards(*ports: dict[str, Any], **more: Any) -> tuple[RdmaDevice, ...]:
    """mlx5_0 … by what their port differs in."""
    return tuple(card(at, port(**change), **more) for at, change in enumerate(ports))


def interface(name: str, **more: Any) -> Interface:
    found = facts(seen("healthy")).interfaces
    assert not isinstance(found, Missing)
    ib0 = next(item for item in found if item.name == "ib0")
    return replace(ib0, **{"name": name, "addresses": (), **more})


def net(devices: Any, nodes: int | None = 2, **more: Any) -> Snapshot:
    host = replace(seen("healthy"), intent=Intent(nodes=nodes))
    plain = {"rdma": devices, "interfaces": tuple(interface(f"ib{at}") for at in range(8))}
    return replace(host, network=replace(facts(host), **{**plain, **more}))


def env(**values: str) -> tuple[NcclSetting, ...]:
    return tuple(NcclSetting(name=name, value=value, source="environment") for name, value in values.items())


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def words(rule: str, host: Snapshot) -> list[str]:
    return [item.seen for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


GOOD: dict[str, Any] = {}
DOWN = {"state": "DOWN", "physical_state": "Polling"}
NEEDS_DEVICES = sorted(set(RULES) - {"efa-not-in-container", "efa-plugin-missing", "rdma-driver-not-loaded"})


@pytest.mark.parametrize("rule", NEEDS_DEVICES)
def test_no_device_is_not_judged_and_devices_that_were_not_seen_are_unknown(rule: str) -> None:
    assert verdict(rule, net(NOTHING)) == "na"
    assert verdict(rule, net(REFUSED)) == ("na" if rule == "rdma-errors-growing" else "unknown") or rule == "rdma-errors-growing"


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


ROCE = {"link_layer": "Ethernet", "lanes": NOTHING}


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([GOOD], "pass"),
        ([{"lanes": UNTOLD}], "na"),
        ([{"lanes": UNTOLD}] * 2, "na"),
        ([{"lanes": UNTOLD}] * 3, "pass"),
        ([ROCE] * 3, "na"),
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


# Entries of RoCE ports


def gid(index: int, text: str = "0000:0000:0000:0000:0000:ffff:0a01:020b", kind: Any = "RoCE v2") -> Gid:
    return Gid(index=index, gid=text, type=kind)


LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"
GLOBAL6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
V4 = "0000:0000:0000:0000:0000:ffff:0a01:020b"
TABLE = (gid(0, LOCAL, "IB/RoCE v1"), gid(1, LOCAL), gid(2, V4, "IB/RoCE v1"), gid(3))


def roce(table: tuple[Gid, ...] = TABLE, release: Any = "2.28.9", **values: str) -> Snapshot:
    host = net(cards({"link_layer": "Ethernet", "gids": table}), nccl=env(**values))
    assert not isinstance(host.python, Missing) and not isinstance(host.python.torch, Missing)
    return replace(host, python=replace(host.python, torch=replace(host.python.torch, nccl=release)))


@pytest.mark.parametrize(
    ("index", "said", "wanted"),
    [
        ("0", f"entry 0: IB/RoCE v1, {LOCAL}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("1", f"entry 1: link-local, {LOCAL}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("2", f"entry 2: IB/RoCE v1, {V4}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("3", "", ""),
        ("4", "entry 4: it is empty", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("15", "entry 15: it is empty", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("16", "", ""),  # beyond what was read
        ("-1", "", ""),
    ],
)
def test_entries_that_are_named(index: str, said: str, wanted: str) -> None:
    found = judged("roce-gid-index", roce(NCCL_IB_GID_INDEX=index)).evidence
    assert [(item.seen, item.wanted) for item in found] == ([(said, wanted)] if said else [])
    assert verdict("roce-gid-index", roce((gid(0, LOCAL, "IB/RoCE v1"),), NCCL_IB_GID_INDEX=index)) == "pass"


@pytest.mark.parametrize(
    ("release", "values", "expected"),
    [
        ("2.20.5", {}, "fail"),  # entry 0 then
        ("2.21.5", {}, "pass"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": ""}, "pass"),
        ("2.20.5", {"NCCL_IB_GID_INDEX": "3"}, "pass"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": "0"}, "fail"),
        (REFUSED, {}, "unknown"),
        (REFUSED, {"NCCL_IB_GID_INDEX": "0"}, "fail"),
        (REFUSED, {"NCCL_IB_GID_INDEX": "3"}, "pass"),
        (NOTHING, {}, "pass"),
        ("2.20.5", {"NCCL_IB_DISABLE": "1"}, "na"),
        ("2.20.5", {"NCCL_IB_HCA": "mlx5_0"}, "fail"),
        ("2.20.5", {"NCCL_IB_HCA": "mlx4"}, "na"),
    ],
)
def test_which_entry_each_release_takes(release: Any, values: dict[str, str], expected: str) -> None:
    host = roce(TABLE, release, **values)
    assert verdict("roce-gid-index", host) == expected
    assert all(text.startswith("entry 0") for text in words("roce-gid-index", host))


def test_an_interpreter_or_a_type_that_was_not_seen() -> None:
    host = roce()
    assert not isinstance(host.python, Missing)
    for unseen in (replace(host, python=REFUSED), replace(host, python=replace(host.python, torch=REFUSED))):
        assert verdict("roce-gid-index", unseen) == "unknown"
    unread = roce((gid(0, V4, REFUSED), gid(1)), NCCL_IB_GID_INDEX="0")
    assert verdict("roce-gid-index", unread) == "unknown"
    assert verdict("roce-gid-index", roce((gid(0, V4, NOTHING), gid(1)), NCCL_IB_GID_INDEX="0")) == "pass"


def test_the_first_entry_is_good_where_the_release_was_not_seen() -> None:
    assert verdict("roce-gid-index", roce((gid(0), gid(1, LOCAL)), REFUSED)) == "pass"


ROUTE = "roce-without-routable-address"


@pytest.mark.parametrize(
    ("table", "values", "said"),
    [
        ((gid(0),), {}, ""),
        ((gid(0, LOCAL), gid(1, V4, UNTOLD)), {}, ""),
        ((gid(0, LOCAL),), {}, "only link-local entries"),
        ((gid(0, LOCAL), gid(1, LOCAL)), {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, "only link-local entries"),
        ((gid(0, LOCAL), gid(1, GLOBAL6)), {}, "no IPv4 address"),
        ((gid(0, LOCAL), gid(1, GLOBAL6)), {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, ""),
        ((), {}, "no IPv4 address"),
        ((gid(0, LOCAL), gid(1, V4, "IB/RoCE v1")), {}, "RoCE v1 entries alone have an address of this family"),
        ((gid(14, LOCAL),), {}, "only link-local entries"),
        ((gid(15, LOCAL),), {}, ""),  # what is behind may hold one
    ],
)
def test_addresses_to_route_by(table: tuple[Gid, ...], values: dict[str, str], said: str) -> None:
    assert words(ROUTE, roce(table, **values)) == ([said] if said else [])


@pytest.mark.parametrize(
    ("release", "values", "expected"),
    [
        ("2.20.5", {}, "na"),
        ("2.21.5", {}, "fail"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": "3"}, "na"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": ""}, "fail"),
        ("2.28.9", {"NCCL_IB_DISABLE": "1"}, "na"),
        ("2.28.9", {"NCCL_IB_HCA": "mlx4"}, "na"),
    ],
)
def test_releases_that_search_the_table(release: str, values: dict[str, str], expected: str) -> None:
    host = roce((gid(0, LOCAL),), release, **values)
    assert verdict(ROUTE, host) == expected


# Congestion control


def controls(*masks: Any, point: str = "roce_np", **more: Any) -> Snapshot:
    devices = tuple(
        card(at, port(link_layer="Ethernet"), congestion=mask if isinstance(mask, Missing) else {point: mask}, **more)
        for at, mask in enumerate(masks)
    )
    return net(devices)


CONTROL = "roce-congestion-control-differs"
ON, OFF = "11111111", "00000000"


@pytest.mark.parametrize("point", ["roce_np", "roce_rp"])
@pytest.mark.parametrize(
    ("masks", "expected", "found"),
    [
        ((ON, ON, ON), "pass", []),
        ((ON, ON, OFF), "fail", ["ib2"]),
        ((OFF, ON, OFF), "fail", ["ib1"]),
        ((OFF, ON, ON, ON), "fail", ["ib0"]),
        ((ON, ON, OFF, OFF), "pass", []),
        ((ON, "00010000", OFF), "pass", []),
        ((ON, OFF), "na", []),
        ((ON, ON, ON, REFUSED), "unknown", []),
        ((REFUSED, ON, ON, OFF), "fail", ["ib3"]),
        ((ON, ON, REFUSED), "unknown", []),
        ((ON, ON, NOTHING), "na", []),
        ((ON, ON, UNTOLD), "na", []),
        ((NOTHING, ON, ON, OFF), "fail", ["ib3"]),
        ((REFUSED, NOTHING, UNTOLD), "unknown", []),
        ((NOTHING, NOTHING, NOTHING), "na", []),
    ],
)
def test_controls_of_siblings(point: str, masks: tuple[Any, ...], expected: str, found: list[str]) -> None:
    host = controls(*masks, point=point)
    assert verdict(CONTROL, host) == expected
    passed = [item.subject for item in judged(CONTROL, host).evidence if item.verdict is Verdict.PASS]
    assert passed == ["RoCE ports"] * (expected in ("pass", "fail") and REFUSED not in masks)
    assert failed(CONTROL, host) == found


def test_controls_that_are_not_compared() -> None:
    three = controls(ON, ON, OFF)
    devices = facts(three).rdma
    assert not isinstance(devices, Missing)
    for change in ({"board": REFUSED}, {"interfaces": ()}, {"interfaces": REFUSED}, {"board": "another"}, {"ports": (port(),)}):
        rest = (replace(devices[0], **change), *devices[1:])
        assert verdict(CONTROL, net(rest)) == "na"
        more = (replace(card(7, port(link_layer="Ethernet"), congestion={"roce_np": OFF}), **change), *devices)
        assert failed(CONTROL, net(more)) == ["ib2"]
    halves = tuple(
        replace(device, congestion={"roce_np": ON if at < 2 else OFF, "roce_rp": OFF if at == 0 else ON})
        for at, device in enumerate((*devices, card(3, port(link_layer="Ethernet"))))
    )
    assert failed(CONTROL, net(halves)) == ["ib0"]  # of the second point alone: the first has no majority


# Counters and firmware


def counted(*counts: Any, counter: str = "link_downed") -> Snapshot:
    return net(cards(*({"counters": count if isinstance(count, Missing) else {counter: count}} for count in counts)))


@pytest.mark.parametrize(
    ("counts", "expected", "found"),
    [
        ((0, 0, 10), "fail", ["mlx5_2:1"]),
        ((0, 0, 9), "pass", []),
        ((0, 10), "na", []),
        ((0, 0, 10, 10), "fail", ["mlx5_2:1", "mlx5_3:1"]),
        ((0, 10, 10), "pass", []),
        ((0, 5, 12, 15, 40), "fail", ["mlx5_4:1"]),
        ((0, 0, 6, 12, 14), "pass", []),
        ((0, 2, 11, 30), "fail", ["mlx5_3:1"]),
        ((0, 0, REFUSED), "unknown", []),
        ((0, 0, NOTHING), "na", []),
        ((0, 0, UNSAID), "na", []),
        ((NOTHING, 0, REFUSED), "na", []),  # the first that tells nothing
        ((REFUSED, 0, 0, 20), "fail", ["mlx5_3:1"]),
    ],
)
def test_links_that_went_down(counts: tuple[Any, ...], expected: str, found: list[str]) -> None:
    assert verdict("rdma-link-flaps", counted(*counts)) == expected
    assert failed("rdma-link-flaps", counted(*counts)) == found


def test_failures_are_compared_within_a_fabric() -> None:
    layers = ("InfiniBand", "InfiniBand", "Ethernet")
    devices = cards(*({"counters": {"link_downed": 20 * (at == 2)}, "link_layer": layer} for at, layer in enumerate(layers)))
    assert verdict("rdma-link-flaps", net(devices)) == "na"
    other = counted(0, 0, 20)
    found = facts(other).rdma
    assert not isinstance(found, Missing)
    for board in ("another", REFUSED):
        assert verdict("rdma-link-flaps", net((*found[:2], replace(found[2], board=board)))) == "na"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"counters": {}}, "pass"),
        ({"counters": REFUSED}, "unknown"),
        ({"counters": UNSAID}, "pass"),
        ({"counters": {"symbol_error": 10**6}}, "fail"),
        ({"counters": {"symbol_error": 10**6}, "link_layer": "Ethernet"}, "pass"),
        ({"counters": {"symbol_error": 10**6}, "state": "DOWN"}, "pass"),
    ],
)
def test_symbol_errors(first: dict[str, Any], expected: str) -> None:
    assert verdict("rdma-symbol-errors", net(cards(first, GOOD))) == expected
    assert failed("rdma-symbol-errors", net(cards(first, {"counters": {"symbol_error": 10**6}})))[-1] == "mlx5_1:1"


def fresh(rule_uptime_s: float, count: Any) -> Snapshot:
    host = net(cards({"counters": count}))
    assert not isinstance(host.system, Missing)
    return replace(host, system=replace(host.system, uptime_s=rule_uptime_s))


@pytest.mark.parametrize(
    ("uptime_s", "count", "expected"), [(60, 120, "pass"), (60, 121, "fail"), (7200, 240, "pass"), (7200, 241, "fail")]
)
def test_symbol_errors_an_hour(uptime_s: float, count: int, expected: str) -> None:
    assert verdict("rdma-symbol-errors", fresh(uptime_s, {"symbol_error": count})) == expected


@pytest.mark.parametrize(
    ("releases", "expected", "found"),
    [
        (("28.41.1000",), "na", []),
        (("28.41.1000", "28.41.1000"), "pass", []),
        (("28.41.1000", "28.40.1000"), "fail", ["mlx5_1"]),
        (("28.9.1000", "28.10.1000"), "fail", ["mlx5_0"]),
        (("28.40.1000", "28.40.1000", "28.41.1000"), "fail", ["mlx5_2"]),
        (("1.1.1.1.1", "1.1.1.1.2"), "fail", ["mlx5_0"]),
        (("1.x", "1.1"), "fail", ["mlx5_0"]),
        (("1.٣", "1.1"), "fail", ["mlx5_0"]),
        (("1.9999999999", "1.1"), "fail", ["mlx5_0"]),  # no number that anybody gave a release
        (("1.999999999", "1.1"), "fail", ["mlx5_1"]),
        (("28.41.1000", REFUSED), "unknown", []),
    ],
)
def test_firmware_of_siblings(releases: tuple[Any, ...], expected: str, found: list[str]) -> None:
    devices = tuple(card(at, firmware=release) for at, release in enumerate(releases))
    assert verdict("rdma-firmware-differs", net(devices)) == expected
    assert failed("rdma-firmware-differs", net(devices)) == found
    others = (*devices, card(8, board="another", firmware="1.1.1"))
    assert failed("rdma-firmware-differs", net(others)) == found


# Adapters on the bus


def on_bus(**change: Any) -> tuple[PciDevice, ...]:
    host = seen("healthy")
    assert not isinstance(host.pci, Missing) and not isinstance(host.pci.devices, Missing)
    first = next(device for device in host.pci.devices if device.rdma)
    return (replace(first, **change),)


LOADED = "rdma-driver-not-loaded"
EFA = {"class_": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "fail"),
        (EFA, "fail"),
        ({**EFA, "device": "0xec20"}, "na"),  # Amazon's ordinary network card
        ({**EFA, "vendor": "0x15b3"}, "na"),
        ({**EFA, "vendor": REFUSED}, "na"),
        ({**EFA, "device": REFUSED}, "na"),
        ({"class_": "0x020000"}, "na"),
        ({"class_": REFUSED}, "na"),
        ({"driver": "vfio-pci"}, "na"),
        ({"driver": NOTHING}, "fail"),
    ],
)
def test_adapters_without_a_driver(change: dict[str, Any], expected: str) -> None:
    host = net(())
    assert not isinstance(host.pci, Missing)
    bus = replace(host, pci=replace(host.pci, devices=on_bus(**change)))
    assert verdict(LOADED, bus) == expected
    with_device = replace(bus, network=replace(facts(bus), rdma=cards(GOOD)))
    assert verdict(LOADED, with_device) == ("pass" if expected == "fail" else expected)
    absent = replace(bus, network=replace(facts(bus), rdma=NOTHING))
    assert verdict(LOADED, absent) == expected
    assert verdict(LOADED, replace(bus, pci=replace(host.pci, devices=NOTHING))) == "na"
    assert verdict(LOADED, replace(bus, pci=replace(host.pci, devices=REFUSED))) == "unknown"


@pytest.mark.parametrize(
    ("plugins", "values", "expected"),
    [
        (("/opt/libnccl-net.so",), {}, "pass"),
        ((), {}, "fail"),
        ((), {"NCCL_NET_PLUGIN": "/opt/libnccl-net-mine.so"}, "na"),
        ((), {"NCCL_NET_PLUGIN": "ofi"}, "fail"),
        (NOTHING, {}, "na"),
        (REFUSED, {}, "unknown"),
    ],
)
def test_plug_ins(plugins: Any, values: dict[str, str], expected: str) -> None:
    host = net(cards({"link_layer": "Unspecified"}), net_plugins=plugins, nccl=env(**values))
    assert verdict("efa-plugin-missing", host) == expected
