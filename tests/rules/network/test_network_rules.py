"""Where the rules on networks turn, and hosts on which they must keep quiet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot

UP, NO_CARRIER, DOWN = 69699, 4099, 4098
FAMILIES = ("network", "nccl", "rdma")

Row = tuple[str, str, int, str]
"""Name, link kind, flags, IPv4 address."""


def interfaces(*rows: Row) -> list[dict[str, Any]]:
    found = []
    for index, (name, kind, flags, address) in enumerate((("lo", "", 65609, "127.0.0.1"), *rows), 1):
        hardware = 772 if name == "lo" else 65534 if name.startswith(("tun", "tailscale", "wg")) else 1
        addresses = [{"family": "inet", "address": address, "prefix_length": 24}] if address else []
        told = {"index": index, "type": hardware, "flags": flags, "operstate": "up" if flags == UP else "down"}
        found.append({"name": name, "kind": kind, "master": "", "mtu": 1500, **told, "addresses": addresses})
    return found


def results(
    name: str = "healthy", *, nodes: int | None = None, answers: dict[str, Any] | None = None, **sections: Any
) -> Mapping[str, Result]:
    return judge(load(name, intent={"nodes": nodes}, answers=answers or {}, **sections))


def said(found: Mapping[str, Result], *verdicts: Verdict) -> set[str]:
    wanted = verdicts or (Verdict.FAIL, Verdict.CRASHED)
    return {rule_id for rule_id, result in found.items() if result.rule.family in FAMILIES and result.verdict in wanted}


def subjects(result: Result) -> list[str]:
    return [evidence.subject for evidence in result.evidence if evidence.verdict is Verdict.FAIL]


WORKSTATION = interfaces(
    ("docker0", "bridge", NO_CARRIER, "172.17.0.1"),
    ("virbr0", "bridge", NO_CARRIER, "192.168.122.1"),
    ("br-5f21c0a3d9e4", "bridge", UP, "172.18.0.1"),
    ("veth1a2b3c4", "veth", UP, ""),
    ("tailscale0", "tun", UP, "100.101.102.103"),
    ("eno1", "", UP, "10.0.0.11"),
)
NO_RDMA = {"dirs": {"/sys/class/infiniband": [], "/dev/infiniband": {"error": "absent"}}}
PLAIN = {"interfaces": WORKSTATION, "hostname-addresses": ["127.0.1.1"]}


@pytest.mark.parametrize("torch", ["2.28.9", "2.20.5"])
def test_a_workstation_with_bridges_tunnels_and_debians_127_0_1_1_has_no_error_and_one_machine_no_finding(torch: str) -> None:
    site = "/data/train/.venv/lib/python3.12/site-packages/nvidia_nccl_cu13-"
    files = {f"{site}2.28.9.dist-info/INSTALLER": None, f"{site}{torch}.dist-info/INSTALLER": "pip"}
    unknown_nodes = results("base-single-gpu", answers=PLAIN, files=files, **NO_RDMA)
    assert said(unknown_nodes) <= {"rdma-driver-not-loaded"}, "the recording keeps its InfiniBand cards on the bus"
    assert said(unknown_nodes, Verdict.UNKNOWN) == set()
    alone = results("base-single-gpu", nodes=1, answers=PLAIN, files=files, **NO_RDMA)
    assert said(alone) <= {"rdma-driver-not-loaded"}


def test_the_same_machine_in_a_job_over_several_is_warned_of_what_would_hang() -> None:
    found = results("base-tcp-cluster", nodes=2, answers=PLAIN)
    assert found["nccl-wrong-interface"].verdict is Verdict.FAIL
    assert subjects(found["nccl-wrong-interface"]) == ["br-5f21c0a3d9e4"]
    assert subjects(found["nccl-interface-doubtful"]) == ["tailscale0"], "the first has a finding of its own"
    assert found["hostname-resolves-to-loopback"].verdict is Verdict.FAIL


@pytest.mark.parametrize("name", ["wlp3s0", "br0", "eth0"])
def test_the_interface_of_the_default_route_is_not_doubted(name: str) -> None:
    kind = {"br0": "bridge", "eth0": "veth"}.get(name, "")
    row = interfaces((name, kind, UP, "192.168.1.5"))
    routes = [
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask",
        f"{name}\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000",
    ]
    answers = {"interfaces": row, "hostname-addresses": ["192.168.1.5"]}
    found = results("base-tcp-cluster", nodes=2, answers=answers, files={"/proc/net/route": routes})
    assert not said(found) & {"nccl-wrong-interface", "nccl-interface-doubtful", "gloo-interface-doubtful"}


def test_an_administrator_who_names_an_interface_of_two_is_not_second_guessed() -> None:
    rows = interfaces(("tailscale0", "tun", UP, "100.101.102.103"), ("eno1", "", UP, "10.0.0.11"))
    answers = {"interfaces": rows, "hostname-addresses": ["10.0.0.11"]}
    found = results("base-tcp-cluster", nodes=2, answers=answers, env={"NCCL_SOCKET_IFNAME": "eno1"})
    assert not said(found) & {"nccl-wrong-interface", "nccl-interface-doubtful", "nccl-uneven-networks"}


def test_ranks_of_one_host_need_an_interface_too() -> None:
    dead = interfaces(("eno1", "", DOWN, "10.0.0.11"))
    dead[0]["flags"] = 8
    found = results(nodes=1, answers={"interfaces": dead})
    assert found["nccl-wrong-interface"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("env", "verdict"),
    [
        ({"NCCL_COMM_ID": "10.0.0.77:1"}, Verdict.PASS),
        ({"NCCL_COMM_ID": "10.0.1.77:1"}, Verdict.FAIL),
        ({"NCCL_COMM_ID": "[::ffff:0]"}, Verdict.FAIL),
        ({"NCCL_COMM_ID": "[fe80::1"}, Verdict.FAIL),
        ({"NCCL_COMM_ID": "head:1"}, Verdict.UNKNOWN),
        ({"NCCL_COMM_ID": "10.0.0.77:1", "NCCL_SOCKET_IFNAME": "nic7"}, Verdict.FAIL),
        ({"NCCL_SOCKET_IFNAME": "e"}, Verdict.PASS),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, Verdict.FAIL),
        ({"NCCL_SOCKET_FAMILY": "inet6"}, Verdict.PASS),
    ],
)
def test_variables_that_decide_the_first_contact(env: dict[str, str], verdict: Verdict) -> None:
    answers = {"interfaces": interfaces(("eno1", "", UP, "10.0.0.11"))}
    assert results(nodes=2, answers=answers, env=env)["nccl-wrong-interface"].verdict is verdict


@pytest.mark.parametrize(
    ("value", "odd"),
    [
        ("eno1", False),
        ("=eno1,ib0", False),
        ("^docker,lo", False),
        ("^=docker0", False),
        ("=^docker0", True),
        ("==eno1", True),
        ("^^docker", True),
        ("eno1 ,ib0", True),
        ('"eno1"', True),
        ("eno1,=ib0", True),
        ("e", True),
        (",".join(f"nic{number}" for number in range(16)), False),
        (",".join(f"nic{number}" for number in range(17)), True),
    ],
)
def test_values_that_nccl_takes_otherwise_than_written(value: str, odd: bool) -> None:
    found = results(nodes=2, env={"NCCL_SOCKET_IFNAME": value})["nccl-socket-ifname-syntax"]
    assert found.verdict is (Verdict.FAIL if odd else Verdict.PASS), found.evidence


PREFIX = {"interfaces": interfaces(("eth1", "", UP, "10.0.0.11"), ("eth10", "", UP, "10.9.0.11"))}


@pytest.mark.parametrize(("nodes", "verdict"), [(None, Verdict.FAIL), (2, Verdict.FAIL), (1, Verdict.PASS)])
def test_a_prefix_that_takes_more_matters_between_hosts(nodes: int | None, verdict: Verdict) -> None:
    found = results(nodes=nodes, answers=PREFIX, env={"NCCL_SOCKET_IFNAME": "eth1"})
    assert found["nccl-socket-ifname-syntax"].verdict is verdict


@pytest.mark.parametrize(
    ("mbps", "verdict"), [("10", Verdict.FAIL), ("100", Verdict.FAIL), ("1000", Verdict.PASS), ("-1", Verdict.NA)]
)
def test_slow_link(mbps: str, verdict: Verdict) -> None:
    assert results(files={"/sys/class/net/eno1/speed": mbps})["ethernet-link-slow"].verdict is verdict


@pytest.mark.parametrize(
    ("speed", "mtu", "verdict"),
    [("25000", "1500", Verdict.FAIL), ("25000", "1501", Verdict.PASS), ("24999", "1500", Verdict.PASS)],
)
def test_small_packets_count_from_25_gb_s(speed: str, mtu: str, verdict: Verdict) -> None:
    files = {"/sys/class/net/eno1/speed": speed, "/sys/class/net/eno1/mtu": mtu}
    assert results("base-tcp-cluster", nodes=2, files=files)["ethernet-mtu-small"].verdict is verdict


def port(device: int, **files: str) -> dict[str, str]:
    return {f"/sys/class/infiniband/mlx5_{device}/ports/1/{name}": text for name, text in files.items()}


def test_one_dead_rail_of_eight_is_named() -> None:
    found = results(files=port(3, state="1: DOWN", phys_state="2: Polling"))["ib-port-down"]
    assert subjects(found) == ["mlx5_3:1"]


def without_addresses(*names: str) -> dict[str, Any]:
    recorded = load_answers()
    return {"interfaces": [{**row, "addresses": []} if row["name"] in names else row for row in recorded]}


def load_answers() -> list[dict[str, Any]]:
    from conftest import HOSTS
    from torchtune_sys.host.recorded import load_recording

    return list(load_recording(str(HOSTS / "healthy.json"))["answers"]["interfaces"])


def test_ports_that_were_never_cabled_are_no_fault_on_one_host() -> None:
    files: dict[str, str] = {}
    for number in range(8):
        files |= port(number, state="1: DOWN", phys_state="3: Disabled")
    answers = without_addresses(*(f"ib{number}" for number in range(8)))
    assert results(files=files, answers=answers)["ib-port-down"].verdict is Verdict.PASS
    assert results(nodes=1, files=files, answers=answers)["ib-port-down"].verdict is Verdict.NA
    assert results(nodes=2, files=files, answers=answers)["ib-port-down"].verdict is Verdict.FAIL


def test_half_of_the_rails_down_is_taken_for_a_choice_unless_they_have_addresses() -> None:
    files: dict[str, str] = {}
    for number in range(4):
        files |= port(number, state="1: DOWN", phys_state="3: Disabled")
    bare = without_addresses(*(f"ib{number}" for number in range(4)))
    assert results(files=files, answers=bare)["ib-port-down"].verdict is Verdict.PASS
    assert len(subjects(results(files=files)["ib-port-down"])) == 4


def test_a_link_that_fell_back_a_generation() -> None:
    found = results(files=port(5, rate="200 Gb/sec (4X HDR)"))["rdma-rate-degraded"]
    assert subjects(found) == ["mlx5_5:1"]
    halves: dict[str, str] = {}
    for number in range(4):
        halves |= port(number, rate="200 Gb/sec (4X HDR)")
    assert results(files=halves)["rdma-rate-degraded"].verdict is Verdict.PASS, "no majority tells which half is right"


LINK_LOCAL, IPV4 = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a01:000b"
TABLE = ((LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2"))


@pytest.mark.parametrize(
    ("index", "verdict"),
    [("0", Verdict.FAIL), ("1", Verdict.FAIL), ("2", Verdict.FAIL), ("3", Verdict.PASS), ("4", Verdict.FAIL), ("", Verdict.PASS)],
)
def test_only_the_routable_v2_entry_leads_between_hosts(index: str, verdict: Verdict) -> None:
    files = port(0, link_layer="Ethernet")
    for place, (gid, kind) in enumerate(TABLE):
        files |= port(0, **{f"gids/{place}": gid, f"gid_attrs/types/{place}": kind})
    env = {"NCCL_IB_GID_INDEX": index}
    assert results(nodes=2, files=files, env=env)["roce-gid-index"].verdict is verdict
    assert results(nodes=1, files=files, env=env)["roce-gid-index"].verdict is Verdict.NA


def test_a_card_without_ipv4_addresses_has_nothing_better_to_offer() -> None:
    files = port(0, link_layer="Ethernet", **{"gids/0": LINK_LOCAL, "gid_attrs/types/0": "RoCE v2"})
    assert results(nodes=2, files=files, env={"NCCL_IB_GID_INDEX": "0"})["roce-gid-index"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("addresses", "verdict"),
    [
        (["10.0.0.11"], Verdict.PASS),
        (["127.0.1.1"], Verdict.FAIL),
        (["::1"], Verdict.FAIL),
        (["127.0.0.1", "10.0.0.11"], Verdict.FAIL),
        (["192.0.2.9"], Verdict.PASS),
    ],
)
def test_what_the_host_name_resolves_to_matters_between_hosts(addresses: list[str], verdict: Verdict) -> None:
    answers = {"hostname-addresses": addresses}
    assert results(nodes=2, answers=answers)["hostname-resolves-to-loopback"].verdict is verdict
    assert results(nodes=1, answers=answers)["hostname-resolves-to-loopback"].verdict is Verdict.NA
    assert results(answers=answers)["hostname-resolves-to-loopback"].verdict is Verdict.PASS


@pytest.mark.parametrize(("release", "verdict"), [("2.28.9", Verdict.FAIL), ("2.30.3", Verdict.PASS)])
def test_a_carriage_return_in_a_file_harms_until_nccl_cuts_it_off(release: str, verdict: Verdict) -> None:
    site = "/data/train/.venv/lib/python3.12/site-packages/nvidia_nccl_cu13-"
    files = {f"{site}2.28.9.dist-info/INSTALLER": None, f"{site}{release}.dist-info/INSTALLER": "pip"}
    found = results(files={**files, "/etc/nccl.conf": "NCCL_DEBUG=WARN\r\n"})
    assert found["nccl-conf-line-ignored"].verdict is verdict


def test_efa_carries_the_data_by_its_plug_in() -> None:
    """No judgement of sockets where libfabric goes past them: its ports are neither InfiniBand nor Ethernet."""
    rows = interfaces(("eno1", "", UP, "10.0.0.11"), ("br-5f21c0a3d9e4", "bridge", UP, "172.18.0.1"))
    efa: dict[str, str] = {}
    for number in range(8):
        efa |= port(number, link_layer="Unspecified")
    found = results(nodes=4, files=efa, answers={"interfaces": rows}, env={"NCCL_IB_DISABLE": "1"})
    sockets = ("nccl-interface-doubtful", "nccl-uneven-networks", "ethernet-mtu-small")
    assert not said(found) & set(sockets)
    assert found["ethernet-mtu-small"].verdict is Verdict.NA


def test_nothing_of_nvidia_is_said_on_other_hosts() -> None:
    seen: Snapshot = load("base-amd-gpu", env={"NCCL_SOCKET_IFNAME": "nic7"}, intent={"nodes": 2})
    assert {result.verdict for result in judge(seen).values() if result.rule.family == "nccl"} == {Verdict.NA}


TWO = (("eno1", "", UP, "10.0.0.11"), ("eno2", "", UP, "10.7.0.11"), ("eno3", "", UP, "10.7.0.12"))


@pytest.mark.parametrize(
    ("env", "verdict"),
    [
        ({}, Verdict.NA),
        ({"NCCL_SOCKET_IFNAME": "eno1"}, Verdict.PASS),
        ({"NCCL_SOCKET_IFNAME": "eno2"}, Verdict.FAIL),
        ({"NCCL_SOCKET_IFNAME": "^eno1"}, Verdict.NA),
        ({"NCCL_SOCKET_IFNAME": "e"}, Verdict.NA),
        ({"NCCL_SOCKET_IFNAME": "eno2", "GLOO_SOCKET_IFNAME": "eno1"}, Verdict.NA),
        ({"NCCL_SOCKET_IFNAME": "eno2,eno1"}, Verdict.PASS),
        ({"GLOO_SOCKET_IFNAME": "eno1"}, Verdict.PASS),
        ({"GLOO_SOCKET_IFNAME": "eno2"}, Verdict.FAIL),
    ],
)
def test_who_names_a_network_to_one_library_means_both(env: dict[str, str], verdict: Verdict) -> None:
    found = results(nodes=2, answers={"interfaces": interfaces(*TWO)}, env=env, **NO_RDMA)
    assert found["gloo-and-nccl-on-different-networks"].verdict is verdict
    alone = results(nodes=1, answers={"interfaces": interfaces(*TWO)}, env=env, **NO_RDMA)
    assert alone["gloo-and-nccl-on-different-networks"].verdict is Verdict.NA


def test_the_same_subnet_is_the_same_network_and_the_fabric_is_not_doubted() -> None:
    rule = "gloo-and-nccl-on-different-networks"
    answers = {"interfaces": interfaces(*TWO), "hostname-addresses": ["10.7.0.12"]}
    assert results(nodes=2, answers=answers, env={"NCCL_SOCKET_IFNAME": "eno2"}, **NO_RDMA)[rule].verdict is Verdict.PASS
    assert results(nodes=2, env={"NCCL_SOCKET_IFNAME": "ib0"})[rule].verdict is Verdict.NA
    assert results(nodes=2, env={"GLOO_SOCKET_IFNAME": "eno1"})[rule].verdict is Verdict.NA


@pytest.mark.parametrize("nodes", [None, 1, 2])
def test_one_host_needs_no_name_of_its_own(nodes: int | None) -> None:
    found = results(nodes=nodes, answers={"hostname-addresses": {"error": "absent"}})["hostname-unresolvable"]
    assert found.verdict is (Verdict.NA if nodes == 1 else Verdict.FAIL)


@pytest.mark.parametrize(("release", "verdict"), [("2.28.9", Verdict.PASS), ("2.30.3", Verdict.FAIL)])
def test_the_home_is_that_of_the_user_database_until_nccl_2_30_3(release: str, verdict: Verdict) -> None:
    site = "/data/train/.venv/lib/python3.12/site-packages/nvidia_nccl_cu13-"
    files = {f"{site}2.28.9.dist-info/INSTALLER": None, f"{site}{release}.dist-info/INSTALLER": "pip"}
    files |= {
        "/home/ubuntu/.nccl.conf": "NCCL_SOCKET_IFNAME=nic7\n",
        "/srv/people/ubuntu/.nccl.conf": "NCCL_SOCKET_IFNAME=eno1\n",
    }
    answers = {"uid": {"uid": 1000, "gid": 1000, "groups": [44, 109], "user": "ubuntu", "home": "/srv/people/ubuntu"}}
    assert results(files=files, answers=answers)["nccl-wrong-interface"].verdict is verdict


def test_a_name_localhost_that_resolves_to_nothing_is_wrong_on_any_host() -> None:
    found = judge(load("typical/laptop-cpu", answers={"localhost-addresses": []}))
    assert found["localhost-not-loopback"].verdict is Verdict.FAIL
    elsewhere = judge(load("typical/laptop-cpu", answers={"localhost-addresses": ["10.1.2.3"]}))
    assert elsewhere["localhost-not-loopback"].verdict is Verdict.FAIL
