"""RDMA ports among their like, and the entries of RoCE ports, from both sides of each mark (rdma_health)."""

from __future__ import annotations

from typing import Any

import pytest
from rdma_hosts import (
    GOOD,
    LOCAL,
    NOTHING,
    REFUSED,
    RULES,
    UNTOLD,
    V4,
    card,
    cards,
    env,
    facts,
    failed,
    gid,
    gone,
    judged,
    net,
    port,
    replace,
    roce,
    verdict,
    words,
)

from conftest import load
from torchtune_sys.model.facts.network import Gid
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

UNSAID = gone(Why.NOT_SUPPORTED)
NEEDS_DEVICES = sorted(set(RULES) - {"efa-not-in-container", "efa-plugin-missing", "rdma-driver-not-loaded"})


@pytest.mark.parametrize("rule", NEEDS_DEVICES)
def test_no_device_is_not_judged_and_devices_that_were_not_seen_are_unknown(rule: str) -> None:
    assert verdict(rule, net(NOTHING)) == "na"
    assert verdict(rule, net(REFUSED)) == ("na" if rule == "rdma-errors-growing" else "unknown") or rule == "rdma-errors-growing"


@pytest.mark.parametrize(("nodes", "expected"), [(None, "fail"), (2, "fail"), (1, "na")])
def test_a_job_on_one_host_needs_no_efa_in_its_container(nodes: int | None, expected: str) -> None:
    host = replace(load("efa-not-in-container.fail"), intent=Workload(nodes=nodes))
    assert verdict("efa-not-in-container", host) == expected


GLOBAL6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
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
