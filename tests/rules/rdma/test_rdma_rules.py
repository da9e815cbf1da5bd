"""Where the rules on RDMA ports turn: on both sides of each threshold, and on fabrics that are as they should be."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from elsewhere import recorded_elsewhere
from torchtune_sys import engine
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict

LINK_LOCAL, IPV4 = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a01:000b"
IPV6 = "2001:0db8:0000:0000:0e42:a1ff:fe00:0001"


def port(device: int, **files: Any) -> dict[str, Any]:
    return {f"/sys/class/infiniband/mlx5_{device}/ports/1/{name}": text for name, text in files.items()}


def ports(*numbers: int, **files: Any) -> dict[str, Any]:
    return {path: text for number in numbers for path, text in port(number, **files).items()}


def judged(rule: str, nodes: int | None = None, live: bool = False, **sections: Any) -> Result:
    return judge(load("healthy", intent={"nodes": nodes, "live": live}, **sections))[rule]


def subjects(result: Result) -> list[str]:
    return [evidence.subject for evidence in result.evidence if evidence.verdict is Verdict.FAIL]


# --- partitions and nodes


@pytest.mark.parametrize(
    ("key", "index", "found"),
    [("0xffff", "0", []), ("0x7fff", "0", ["mlx5_0:1"]), ("0x0000", "0", ["mlx5_0:1"]), ("0x7fff", "1", []), ("0x7fff", "9", [])],
)
def test_limited_members_of_a_partition_do_not_reach_each_other(key: str, index: str, found: list[str]) -> None:
    """The second entry is a full member's, as Azure has it the other way round."""
    files = port(0, **{"pkeys/0": key, "pkeys/1": "0x800b"})
    assert subjects(judged("partition-member-limited", 2, files=files, env={"NCCL_IB_PKEY": index})) == found


@pytest.mark.parametrize(("write", "nodes", "found"), [(False, 2, ["/dev/infiniband"]), (True, 2, []), (False, 1, [])])
def test_nodes_that_this_user_may_not_open(write: bool, nodes: int, found: list[str]) -> None:
    answers = {f"access:/dev/infiniband/uverbs{number}": {"read": write, "write": write} for number in range(8)}
    assert subjects(judged("rdma-driver-not-loaded", nodes, answers=answers)) == found


def test_one_node_of_another_keeps_nobody_out() -> None:
    answers = {f"access:/dev/infiniband/uverbs{number}": {"read": number > 0, "write": number > 0} for number in range(8)}
    assert subjects(judged("rdma-driver-not-loaded", 2, answers=answers)) == []


# --- counters


@pytest.mark.parametrize(("count", "found"), [(1, []), (10, []), (11, ["mlx5_1:1"]), (255, ["mlx5_1:1"])])
def test_ten_failures_more_than_the_siblings_are_a_bad_cable(count: int, found: list[str]) -> None:
    """The siblings of the healthy host went down once each."""
    assert subjects(judged("rdma-link-flaps", files=port(1, **{"counters/link_downed": str(count)}))) == found


def test_what_hit_all_rails_alike_was_the_switch() -> None:
    assert subjects(judged("rdma-link-flaps", files=ports(*range(8), **{"counters/link_downed": "40"}))) == []


def test_two_of_a_kind_cannot_tell_which_is_odd() -> None:
    files = {f"/sys/class/infiniband/mlx5_{number}/board_id": f"MT_{number}" for number in range(2, 8)}
    files |= port(0, **{"counters/link_downed": "200"})
    assert judged("rdma-link-flaps", files=files).verdict is Verdict.NA


def test_a_port_that_is_down_is_not_compared() -> None:
    files = port(1, state="1: DOWN", **{"counters/link_downed": "200"})
    assert subjects(judged("rdma-link-flaps", files=files)) == []


@pytest.mark.parametrize("text", ["N/A (no PMA)", {"error": "absent"}, {"error": "not-supported"}])
def test_cards_that_count_nothing_are_not_judged(text: Any) -> None:
    names = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")
    files = ports(*range(8), **{f"counters/{name}": text for name in names})
    assert judged("rdma-link-flaps", files=files).verdict is Verdict.NA
    assert judged("rdma-symbol-errors", files=files).verdict in (Verdict.NA, Verdict.PASS)


@pytest.mark.parametrize(
    ("uptime_s", "count", "verdict"),
    [
        (36000, 1200, Verdict.PASS),
        (36000, 1201, Verdict.FAIL),
        (60, 120, Verdict.PASS),
        (60, 121, Verdict.FAIL),
        (30 * 86400, 65535, Verdict.PASS),
        (20 * 86400, 65535, Verdict.FAIL),
    ],
)
def test_symbol_errors_count_by_the_hour(uptime_s: int, count: int, verdict: Verdict) -> None:
    files = {"/proc/uptime": f"{uptime_s}.00 1.00\n", **port(2, **{"counters/symbol_error": str(count)})}
    assert judged("rdma-symbol-errors", files=files).verdict is verdict


def watched(counter: str, first: int, second: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"rdma-counters": {"seconds": seconds, "ports": {"mlx5_0:1": {counter: [first, second]}}}}


@pytest.mark.parametrize(
    ("counter", "gained", "verdict"),
    [
        ("symbol_error", 10, Verdict.PASS),
        ("symbol_error", 11, Verdict.FAIL),
        ("link_downed", 1, Verdict.FAIL),
        ("link_error_recovery", 1, Verdict.FAIL),
        ("local_ack_timeout_err", 1, Verdict.PASS),
        ("local_ack_timeout_err", 2, Verdict.FAIL),
        ("port_rcv_errors", 10, Verdict.PASS),
        ("port_rcv_errors", 11, Verdict.FAIL),
        ("port_xmit_discards", 100, Verdict.PASS),
        ("port_xmit_discards", 101, Verdict.FAIL),
        ("roce_slow_restart", 11, Verdict.FAIL),
        ("np_cnp_sent", 100000, Verdict.PASS),
        ("symbol_error", -5, Verdict.PASS),
    ],
)
def test_what_grows_while_one_looks(counter: str, gained: int, verdict: Verdict) -> None:
    answers = watched(counter, 1000, 1000 + gained)
    assert judged("rdma-errors-growing", live=True, answers=answers).verdict is verdict
    assert judged("rdma-errors-growing", answers=answers).verdict is Verdict.NA


def test_growth_is_per_second() -> None:
    assert judged("rdma-errors-growing", live=True, answers=watched("symbol_error", 0, 20, 2.0)).verdict is Verdict.PASS


# --- rates, states, firmware


@pytest.mark.parametrize(
    ("rate", "kind", "found"),
    [
        ("400 Gb/sec (4X NDR)", "MT4129", False),
        ("200 Gb/sec (2X NDR)", "MT4129", False),
        ("100 Gb/sec (1X NDR)", "MT4129", True),
        ("10 Gb/sec (4X SDR)", "MT4129", True),
        ("20 Gb/sec (4X DDR)", "MT4129", True),
        ("40 Gb/sec (4X QDR)", "MT4129", False),
        ("10 Gb/sec (4X)", "MT4099", False),
        ("10 Gb/sec (4X)", "", False),
    ],
)
def test_a_lone_card_with_one_lane_or_the_slowest_speed_fell_back(rate: str, kind: str, found: bool) -> None:
    """Alone of its model, so that no sibling tells."""
    files = {**port(0, rate=rate), "/sys/class/infiniband/mlx5_0/board_id": "SM_1", "/sys/class/infiniband/mlx5_0/hca_type": kind}
    assert (subjects(judged("rdma-rate-degraded", files=files)) == ["mlx5_0:1"]) is found


def test_roce_lanes_are_made_up_of_the_speed() -> None:
    files = port(0, rate="25 Gb/sec (1X EDR)", link_layer="Ethernet")
    assert subjects(judged("rdma-rate-degraded", files=files)) == []


def test_a_port_without_a_subnet_manager_is_no_dead_cable() -> None:
    files = port(3, state="2: INIT", sm_lid="0x0")
    assert subjects(judged("ib-subnet-manager-missing", files=files)) == ["mlx5_3:1"]
    assert "sm_lid 0" in judged("ib-subnet-manager-missing", files=files).evidence[0].seen
    assert subjects(judged("ib-port-down", files=files)) == []
    assert judged("ib-subnet-manager-missing", nodes=1, files=files).verdict is Verdict.NA
    assert subjects(judged("ib-subnet-manager-missing", files=port(3, state="1: DOWN"))) == []


@pytest.mark.parametrize(("state", "words"), [("2: Polling", "no signal"), ("3: Disabled", "switched off"), ("9: Odd", "Odd")])
def test_the_physical_state_tells_a_cable_from_a_switch(state: str, words: str) -> None:
    found = judged("ib-port-down", files=port(3, state="1: DOWN", phys_state=state))
    assert words in found.evidence[0].seen


@pytest.mark.parametrize("layer", ["Ethernet", "Unspecified"])
def test_only_infiniband_has_a_subnet_manager(layer: str) -> None:
    files = ports(*range(8), link_layer=layer, state="2: INIT")
    assert judged("ib-subnet-manager-missing", files=files).verdict is Verdict.NA


def test_the_odd_firmware_is_that_of_the_minority_and_of_the_older_in_a_draw() -> None:
    def firmware(**found: str) -> dict[str, str]:
        return {f"/sys/class/infiniband/{name}/fw_ver": text for name, text in found.items()}

    rule = "rdma-firmware-differs"
    assert subjects(judged(rule, files=firmware(mlx5_6="28.99.1"))) == ["mlx5_6"], "newer, and alone"
    older = firmware(**{f"mlx5_{number}": "28.9.1000" for number in range(4)})
    assert subjects(judged(rule, files=older)) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"], "28.9 is older than 28.41"
    boards = {"/sys/class/infiniband/mlx5_6/board_id": "MT_0000000884"}
    assert subjects(judged(rule, files=firmware(mlx5_6="32.38.3056") | boards)) == []


# --- addresses, plug-ins


@pytest.mark.parametrize(
    ("table", "env", "verdict"),
    [
        (((LINK_LOCAL, "RoCE v2"), (IPV4, "RoCE v2")), {}, Verdict.PASS),
        (((LINK_LOCAL, "RoCE v2"),), {}, Verdict.FAIL),
        (((LINK_LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1")), {}, Verdict.FAIL),
        (((LINK_LOCAL, "RoCE v2"), (IPV6, "RoCE v2")), {}, Verdict.FAIL),
        (((LINK_LOCAL, "RoCE v2"), (IPV6, "RoCE v2")), {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, Verdict.PASS),
        (((LINK_LOCAL, "RoCE v2"),), {"NCCL_IB_DISABLE": "1"}, Verdict.NA),
        (((LINK_LOCAL, "RoCE v2"),), {"NCCL_IB_GID_INDEX": "0"}, Verdict.NA),
        (((LINK_LOCAL, "RoCE v2"),), {"NCCL_IB_HCA": "mlx5_1"}, Verdict.NA),
        (tuple((LINK_LOCAL, "RoCE v2") for _ in range(16)), {}, Verdict.PASS),
    ],
)
def test_nccl_needs_an_address_to_route_by(table: tuple[tuple[str, str], ...], env: dict[str, str], verdict: Verdict) -> None:
    files = port(0, link_layer="Ethernet")
    for place, (gid, kind) in enumerate(table):
        files |= port(0, **{f"gids/{place}": gid, f"gid_attrs/types/{place}": kind})
    assert judged("roce-without-routable-address", nodes=2, files=files, env=env).verdict is verdict
    assert judged("roce-without-routable-address", nodes=1, files=files, env=env).verdict is Verdict.NA


def test_a_type_that_a_container_does_not_show_is_not_held_against_the_entry() -> None:
    files = port(0, link_layer="Ethernet", **{"gids/0": IPV4, "gid_attrs/types/0": {"error": "not-supported"}})
    assert judged("roce-without-routable-address", nodes=2, files=files).verdict is Verdict.PASS


PLUGIN = "/opt/amazon/ofi-nccl/lib/libnccl-net.so"


@pytest.mark.parametrize(
    ("env", "files", "verdict"),
    [
        ({}, {}, Verdict.FAIL),
        ({}, {PLUGIN: ""}, Verdict.FAIL),
        ({"LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib"}, {PLUGIN: ""}, Verdict.PASS),
        ({"LD_LIBRARY_PATH": "/srv"}, {"/srv/libnccl-net-ofi.so": ""}, Verdict.PASS),
        ({"NCCL_NET_PLUGIN": "/srv/libnccl-net-ofi.so"}, {}, Verdict.NA),
    ],
)
def test_efa_needs_a_plug_in_that_the_loader_finds(env: dict[str, str], files: dict[str, str], verdict: Verdict) -> None:
    efa = ports(*range(8), link_layer="Unspecified")
    assert judged("efa-plugin-missing", nodes=2, files={**efa, **files}, env=env).verdict is verdict
    assert judged("efa-plugin-missing", nodes=2, files=files, env=env).verdict is Verdict.NA, "InfiniBand needs none"


# --- a recorded node


def test_the_recorded_h100_node_has_one_bad_link() -> None:
    """mlx5_1 went down 255 times, its seven siblings never. The BlueField's bond has two lanes, and is the only one of its model."""
    root = recorded_elsewhere("infiniband/h100")
    found = judge(engine.snapshot(open_host(str(root)), Workload(), timeout_s=20))
    assert {rule for rule, result in found.items() if result.verdict is Verdict.FAIL} == {"rdma-link-flaps"}
    assert subjects(found["rdma-link-flaps"]) == ["mlx5_1:1"]
    healthy = ("ib-port-down", "ib-subnet-manager-missing", "rdma-rate-degraded", "rdma-firmware-differs")
    assert {found[rule].verdict for rule in healthy} == {Verdict.PASS}
