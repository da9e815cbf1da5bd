"""Judging nodes whose facts differ."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from preflight.joint.a_cluster import gathered, said, weighed


def test_two_that_differ_have_no_majority() -> None:
    found = gathered(2)
    found.members[1].notes["worker/0"]["torch"] = "2.4.0"
    verdict = weighed(found)
    assert said(verdict) == {}
    assert all(any(cause.cause == "software-differs-between-nodes" for cause in node.causes) for node in verdict.nodes)


@pytest.mark.parametrize(("nodes", "odd"), [(3, 1), (4, 1), (8, 2), (8, 3), (100, 49)])
def test_the_smaller_part_is_named(nodes: int, odd: int) -> None:
    """Also where it is a group, and no single node."""
    found = gathered(nodes)
    for node in range(odd):
        found.members[node].notes["worker/0"]["torch"] = "2.4.0"
    assert said(weighed(found)) == {f"n{node}": {"software-differs-between-nodes"} for node in range(odd)}


SEVERAL = {
    "driver": ({"module_version": "570.1"}, {"module_version": "550.2"}, "software-differs-between-nodes"),
    "session": (
        {"env": {"$rows": ["NCCL_ALGO"], "": {"$list": ["Ring"]}}},
        {"env": {"$rows": ["NCCL_ALGO"], "": {"$list": ["Tree"]}}},
        "environment-differs-between-nodes",
    ),
    "gpu": (
        {"devices": {"$rows": "0-7", "name": "NVIDIA H100", "class": "0x0302"}},
        {"devices": {"$rows": "0-6", "name": "NVIDIA H100", "class": "0x0302"}},
        "hardware-differs-between-nodes",
    ),
}


@pytest.mark.parametrize("family", SEVERAL)
def test_facts_are_compared_as_compare_does(family: str) -> None:
    usual, odd, cause = SEVERAL[family]
    found = gathered(4)
    for node, member in found.members.items():
        member.notes["facts"]["families"] = {family: odd if node == 2 else usual, "system": {"machine": "x86_64"}}
    assert said(weighed(found)) == {"n2": {cause}}


def test_the_mtu_of_the_way_between_nodes_counts_and_no_other() -> None:
    found = gathered(4)
    found.members[1].notes["facts"]["interfaces"]["eth0"]["mtu"] = 9000
    found.members[2].notes["facts"]["interfaces"]["docker0"] = {"kind": "bridge", "mtu": 1400, "addresses": [("172.17.0.1", 16)]}
    assert said(weighed(found)) == {"n1": {"mtu-differs-between-nodes"}}


def test_a_lighter_difference_of_the_same_cause_hides_no_heavier_one() -> None:
    found = gathered(4)
    found.members[1].notes["worker/0"].update(torch="2.4.0", python="3.9")
    assert said(weighed(found)) == {"n1": {"software-differs-between-nodes"}}


@pytest.mark.parametrize(
    "families",
    [
        {"cpu": {"caches": {"$rows": "0-9999999"}}},
        {"cpu": {"caches": {"$rows": ",".join(["0-60000"] * 3000)}}},
        {"cpu": {"caches": {"$rows": "0-60000", **{f"c{number}": 1 for number in range(3000)}}}},
        {"cpu": {"caches": {"$rows": ["a"], "x": {"$each": [[1, "0-9999999"]]}}}},
        {"cpu": 3},
        {"": {}},
        {"cpu": [[[]]]},
    ],
)
def test_facts_that_stand_for_millions_are_not_compared(families: dict[str, Any]) -> None:
    """A few hundred bytes of another node's."""
    found = gathered(4)
    found.members[1].notes["facts"]["families"] = families
    begun_s = time.process_time()
    assert said(weighed(found)) == {}
    assert time.process_time() - begun_s < 5


BRIDGE = {"kind": "bridge", "mtu": 1500, "addresses": [("172.17.0.1", 16)]}
BARE = {"kind": "ethernet", "mtu": 1500, "addresses": []}


@pytest.mark.parametrize(
    ("told", "cause", "seen"),
    [
        ({"env": {"GLOO_SOCKET_IFNAME": "eth7"}}, "nccl-wrong-interface", "GLOO_SOCKET_IFNAME=eth7: eth7 does not exist"),
        ({"env": {"GLOO_SOCKET_IFNAME": "eth0,eth1"}}, "nccl-wrong-interface", "eth1 has no address"),
        ({"env": {"GLOO_SOCKET_IFNAME": "docker0"}}, "nccl-wrong-interface", "docker0 is a bridge and leads to no other node"),
        ({"env": {"NCCL_SOCKET_IFNAME": "=ib0"}}, "nccl-wrong-interface", "NCCL_SOCKET_IFNAME==ib0: matches no interface"),
        ({"env": {"NCCL_SOCKET_IFNAME": "docker"}}, "nccl-wrong-interface", "docker0 is a bridge"),
        (
            {"own_name_addresses": ["127.0.1.1"]},
            "hostname-resolves-to-loopback",
            "its host name resolves to 127.0.1.1, which gloo",
        ),
        ({"own_name_addresses": ["10.9.9.9"]}, "hostname-unresolvable", "10.9.9.9, which is not one of its addresses"),
        ({"own_name_addresses": []}, "hostname-unresolvable", "its host name does not resolve"),
    ],
)
def test_a_choice_of_interface_or_a_name_that_leads_nowhere_is_that_node_s(told: dict[str, Any], cause: str, seen: str) -> None:
    found = gathered(4)
    facts = found.members[1].notes["facts"]
    facts["interfaces"] |= {"docker0": BRIDGE, "eth1": BARE}
    facts |= told
    verdict = weighed(found)
    assert said(verdict) == {"n1": {cause}}
    assert [seen in one.seen for node in verdict.nodes for one in node.causes] == [True]


@pytest.mark.parametrize(
    "told",
    [
        {"env": {"GLOO_SOCKET_IFNAME": "eth0"}, "own_name_addresses": ["127.0.1.1"]},  # gloo does not ask the name then
        {"env": {"NCCL_SOCKET_IFNAME": "^docker"}},
        {"env": {"NCCL_SOCKET_IFNAME": "docker,eth"}},  # one of them leads to the others
        {"own_name_addresses": ["127.0.1.1", "10.0.0.2"]},
    ],
)
def test_a_choice_that_leads_to_the_others_is_no_fault(told: dict[str, Any]) -> None:
    found = gathered(4)
    facts = found.members[1].notes["facts"]
    facts["interfaces"] |= {"docker0": BRIDGE}
    facts |= told
    assert said(weighed(found)) == {}


def test_an_address_that_two_nodes_hold_names_both() -> None:
    found = gathered(4)
    eth0 = found.members[1].notes["facts"]["interfaces"]["eth0"]
    eth0["addresses"] = [*eth0["addresses"], *found.members[2].notes["facts"]["interfaces"]["eth0"]["addresses"]]
    assert said(weighed(found)) == {"n1": {"duplicate-address"}, "n2": {"duplicate-address"}}


def test_an_address_that_one_node_holds_twice_is_no_fault() -> None:
    found = gathered(4)
    interfaces = found.members[1].notes["facts"]["interfaces"]
    interfaces["eth1"] = dict(interfaces["eth0"])
    assert "duplicate-address" not in str(said(weighed(found)))


@pytest.mark.parametrize("taken", [(1, 4), (1, 2, 4), (1,)])
def test_who_has_the_addresses_of_several_others_is_the_one_that_is_told(taken: tuple[int, ...]) -> None:
    """All of a job were no-go by what one of them said of itself."""
    found = gathered(4)
    facts = found.members[2].notes["facts"]
    facts["interfaces"]["eth0"]["addresses"] += [(f"10.0.0.{last}", 24) for last in taken]
    others = {"n0": {"duplicate-address"}} if len(taken) == 1 else {}
    assert said(weighed(found)) == {"n2": {"duplicate-address"}, **others}


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ({2: 300.0}, {"n2"}),
        ({2: 300.0, 3: 300.0}, set()),
        ({0: 300.0, 1: 300.0, 2: 300.0}, {"n3"}),
    ],
    ids=["one", "half", "all but one"],
)
def test_a_clock_is_wrong_by_that_of_the_majority(offsets: dict[int, float], named: set[str]) -> None:
    """Half and half were all accused: the middle between them was nobody's clock. Of two nodes it was the one that does not coordinate."""
    found = gathered(4)
    for node, offset in offsets.items():
        found.members[node] = msgspec.structs.replace(found.members[node], clock_offset_s=offset)
    verdict = weighed(found)
    assert (verdict.verdict, {*said(verdict)}) == ("no-go", named)
    assert [cause.cause for cause in verdict.causes] == ([] if named else ["clock-skew"])


def test_of_two_clocks_nobody_says_which_is_right() -> None:
    found = gathered(2)
    found.members[1] = msgspec.structs.replace(found.members[1], clock_offset_s=-300.0)
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict)) == ("no-go", {})
    assert "there is no majority: n0 +300.0 s" in verdict.causes[0].seen


def test_nodes_of_one_name_are_told_with_their_addresses() -> None:
    found = gathered(3)
    found.members[2].notes["facts"]["name"] = "n1"
    verdict = weighed(found)
    seen = [cause.seen for node in verdict.nodes for cause in node.causes if cause.cause == "job-launch-nested-wrongly"]
    assert verdict.verdict == "go" and len(seen) == 2
    assert seen[0].startswith("at 10.0.0.2 it is called n1, as is the node at 10.0.0.3 ")
