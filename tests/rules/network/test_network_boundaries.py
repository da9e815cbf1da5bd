"""The rules on networks at both sides of where they turn."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from rules.network.test_network_rules import NO_RDMA, UP, interfaces, port, results, subjects
from torchtune_sys.model.rule import Verdict


def speeds(**mbps: int | str) -> dict[str, Any]:
    names = tuple(mbps)
    rows = [(name, "", UP, f"10.{number}.0.11") for number, name in enumerate(names)]
    files: dict[str, Any] = {}
    for name, value in mbps.items():
        files[f"/sys/class/net/{name}/speed"] = str(value)
        files[f"/sys/class/net/{name}/device/vendor"] = "0x8086"
    links = {
        f"/sys/class/net/{name}/device": f"/sys/devices/pci0000:00/0000:00:{number + 1:02x}.0"
        for number, name in enumerate(names)
    }
    return {"answers": {"interfaces": interfaces(*rows)}, "files": files, "links": links, **NO_RDMA}


@pytest.mark.parametrize(
    ("mbps", "found"),
    [
        ({"eno1": 25000, "eno2": 25000}, []),
        ({"eno1": 25000, "eno2": 24999}, ["eno2"]),
        ({"eno1": 1000, "eno2": 100000, "eno3": 100000}, ["eno1"]),
        ({"eno1": 25000, "eno2": -1}, []),
        ({"eno1": 25000}, []),
    ],
)
def test_networks_of_unlike_speed(mbps: dict[str, int | str], found: list[str]) -> None:
    assert subjects(results(nodes=2, **speeds(**mbps))["nccl-uneven-networks"]) == found


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("mlx5_0", Verdict.PASS),
        ("mlx5", Verdict.PASS),
        ("=mlx5", Verdict.FAIL),
        ("=mlx5_0:1", Verdict.PASS),
        ("=mlx5_0:2", Verdict.FAIL),
        ("mlx4", Verdict.FAIL),
        ("^mlx5", Verdict.FAIL),
        ("^mlx5_0", Verdict.PASS),
        ("^=mlx5", Verdict.PASS),
        ("ib0", Verdict.FAIL),
        ("", Verdict.NA),
    ],
)
def test_which_hca_the_value_lets_through(value: str, verdict: Verdict) -> None:
    assert results(env={"NCCL_IB_HCA": value})["nccl-ib-hca-unmatched"].verdict is verdict


def mtus(*values: int) -> list[dict[str, Any]]:
    from rules.network.test_network_rules import load_answers

    chosen = {f"ib{number}": value for number, value in enumerate(values)}
    return [{**row, "mtu": chosen.get(row["name"], 4092)} for row in load_answers()]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((4092,) * 8, []),
        ((2044, *(4092,) * 7), ["ib0"]),
        ((2044, 2044, 2044, *(4092,) * 5), ["ib0", "ib1", "ib2"]),
        ((2044, 2044, 2044, 2044, *(4092,) * 4), []),
    ],
)
def test_the_odd_rail_is_that_of_a_minority(values: tuple[int, ...], found: list[str]) -> None:
    assert subjects(results(answers={"interfaces": mtus(*values)})["rail-mtu-mismatch"]) == found


@pytest.mark.parametrize(("slow", "count"), [(0, 0), (1, 1), (3, 3), (4, 0), (5, 3)])
def test_the_rate_of_the_majority_is_the_measure_and_none_is_asked_to_go_lower(slow: int, count: int) -> None:
    """With five of eight at 200 Gb/s the three at 400 are no fault: their rate is the better one."""
    files: dict[str, str] = {}
    for number in range(slow):
        files |= port(number, rate="200 Gb/sec (4X HDR)")
    found = subjects(results(files=files)["rdma-rate-degraded"])
    assert len(found) == (0 if slow == 5 else count)


@pytest.mark.parametrize(("dead", "found"), [(1, 1), (3, 3), (4, 0)])
def test_lost_cards_are_fewer_than_the_living(dead: int, found: int) -> None:
    from rules.network.test_network_rules import without_addresses

    files: dict[str, str] = {}
    for number in range(dead):
        files |= port(number, state="1: DOWN", phys_state="2: Polling")
    answers = without_addresses(*(f"ib{number}" for number in range(8)))
    assert len(subjects(results(files=files, answers=answers)["ib-port-down"])) == found


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        ("eno1", Verdict.PASS),
        ("eno", Verdict.FAIL),
        ("eno1,", Verdict.PASS),
        ("eno1,nic9", Verdict.FAIL),
        ("=eno1", Verdict.FAIL),
        ("e", Verdict.NA),
    ],
)
def test_gloo_takes_whole_names(names: str, verdict: Verdict) -> None:
    assert results(env={"GLOO_SOCKET_IFNAME": names})["gloo-interface-missing"].verdict is verdict


@pytest.mark.parametrize(
    ("nodes", "address", "verdict"),
    [(2, "172.18.0.1", Verdict.FAIL), (1, "172.18.0.1", Verdict.NA), (2, "10.0.0.11", Verdict.PASS)],
)
def test_gloo_on_a_bridge_matters_between_hosts(nodes: int, address: str, verdict: Verdict) -> None:
    rows = interfaces(("br-5f21c0a3d9e4", "bridge", UP, "172.18.0.1"), ("eno1", "", UP, "10.0.0.11"))
    answers = {"interfaces": rows, "hostname-addresses": [address]}
    assert results(nodes=nodes, answers=answers, **NO_RDMA)["gloo-interface-doubtful"].verdict is verdict


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("NCCL_IB_DISABLE", "1", Verdict.PASS),
        ("NCCL_IB_DISABLE", "true", Verdict.FAIL),
        ("NCCL_P2P_LEVEL", "NVL", Verdict.PASS),
        ("NCCL_P2P_LEVEL", "nvl", Verdict.FAIL),
        ("NCCL_SOCKET_FAMILY", "AF_INET", Verdict.PASS),
        ("NCCL_SOCKET_FAMILY", "inet", Verdict.FAIL),
        ("NCCL_DEBUG", "info", Verdict.PASS),
        ("NCCL_DEBUG", "DEBUG", Verdict.FAIL),
    ],
)
def test_values_that_nccl_understands(name: str, value: str, verdict: Verdict) -> None:
    assert results(env={name: value})["nccl-value-ignored"].verdict is verdict


def test_a_card_that_a_virtual_machine_took_has_no_device_here() -> None:
    rule = "rdma-driver-not-loaded"
    gone = {"dirs": {"/sys/class/infiniband": [], "/dev/infiniband": {"error": "absent"}}}
    assert judge(load("healthy", **gone, intent={"nodes": 2}))[rule].verdict is Verdict.FAIL
    assert judge(load("healthy", **gone, intent={"nodes": 1}))[rule].verdict is Verdict.NA
    assert judge(load("healthy"))[rule].verdict in (Verdict.PASS, Verdict.NA)
