"""MASTER_ADDR, WORLD_SIZE: whether the ranks can meet, by what the variables say and what this host resolves and reaches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, result, verdict

from torchtune_sys.model.facts.network import Address, Way
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

NO_ROUTE = "Network is unreachable"
SILENT = Missing(Why.FAILED, "getaddrinfo(node0)", "Temporary failure in name resolution")
CLUSTER = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}


def with_master(seen: Snapshot, name: str, ways: Any, **facts: Any) -> Snapshot:
    return altered(seen, session__env={"MASTER_ADDR": name} if name else {}, network__master=ways, **facts)


@pytest.mark.parametrize(
    ("name", "ways", "facts", "expected"),
    [
        ("", (), {}, NA),
        ("node0", (Way(address="10.0.0.4", refused=""),), {}, PASS),
        ("node0", (Way(address="10.0.0.4", refused=NO_ROUTE),), {}, FAIL),
        (
            "node0",
            (Way(address="fd00::4", refused=NO_ROUTE), Way(address="10.0.0.4", refused="")),
            {},
            PASS,
        ),  # tried one after the other
        ("node0", NOTHING, {}, FAIL),
        ("node0", SILENT, {}, FAIL),
        ("node0", DENIED, {}, UNKNOWN),
        ("node0", NOTHING, {"system__container": "kubernetes"}, NA),  # a service's name comes with its pod
        ("10.0.0.4", (Way(address="10.0.0.4", refused=NO_ROUTE),), {"system__container": "kubernetes"}, FAIL),
    ],
)
def test_an_address_that_resolves_and_has_a_route(healthy: Snapshot, name: str, ways: Any, facts: Any, expected: Verdict) -> None:
    assert verdict(with_master(healthy, name, ways, **facts), "master-address-unreachable") is expected


@pytest.mark.parametrize("name", ["10.9.0.5:29500", "tcp://node0", "[fd00::4]", "node0 "])
def test_what_is_more_than_an_address_is_told(healthy: Snapshot, name: str) -> None:
    item = result(with_master(healthy, name, NOTHING), "master-address-unreachable").evidence[0]
    assert "no port" in item.fix[0].text  # type: ignore[union-attr]
    assert not result(with_master(healthy, "fd00::4", NOTHING), "master-address-unreachable").evidence[0].fix


@pytest.mark.parametrize(
    ("env", "ranks", "expected"),
    [
        (CLUSTER, 1, FAIL),
        (CLUSTER, 4, PASS),
        (CLUSTER, None, NA),
        ({**CLUSTER, "MASTER_ADDR": "node0"}, 1, PASS),  # others may join
        ({**CLUSTER, "LOCAL_WORLD_SIZE": "1"}, 1, NA),
        ({**CLUSTER, "SLURM_JOB_ID": "7"}, 1, NA),
        ({"RANK": "0", "WORLD_SIZE": "4"}, 1, PASS),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}, 1, NA),
        ({**CLUSTER, "WORLD_SIZE": "four"}, 1, NA),
    ],
)
def test_more_ranks_than_are_started(healthy: Snapshot, env: dict[str, str], ranks: int | None, expected: Verdict) -> None:
    seen = msgspec.structs.replace(altered(healthy, session__env=env), intent=Workload(ranks=ranks))
    assert verdict(seen, "world-larger-than-started") is expected


@pytest.mark.parametrize(
    ("nodes", "address", "member", "expected"),
    [
        (2, "172.17.5.9", "veth", FAIL),
        (2, "172.17.5.9", "", FAIL),
        (2, "172.17.5.9", "ethernet", PASS),  # a bridge that leads outside
        (2, "172.17.0.1", "veth", FAIL),  # on each other host it is a bridge of that one
        (1, "172.17.5.9", "veth", PASS),
    ],
)
def test_a_master_behind_the_bridge_of_this_hosts_containers(
    healthy: Snapshot, nodes: int, address: str, member: str, expected: Verdict
) -> None:
    network = healthy.network
    assert not isinstance(network, Missing) and not isinstance(network.interfaces, Missing)
    first = network.interfaces[0]
    inside = Address(family="inet", address="172.17.0.1", prefix_length=16)
    docker0 = msgspec.structs.replace(first, name="docker0", kind="bridge", addresses=(inside,), master="")
    members = (msgspec.structs.replace(first, name="m0", kind=member, addresses=(), master="docker0"),) if member else ()
    ways = (Way(address=address, refused="", own="172.17.0.1"),)
    seen = with_master(healthy, address, ways, network__interfaces=(*network.interfaces, docker0, *members))
    seen = msgspec.structs.replace(seen, intent=Workload(nodes=nodes))
    assert verdict(seen, "master-address-unreachable") is expected
