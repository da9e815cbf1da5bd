"""Where rank 0 would listen, and whose address that is: every way to each verdict."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, verdict, with_env

from torchtune_sys.model.facts.network import Address
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


@pytest.mark.parametrize(
    ("address", "hostname", "expected"),
    [
        *((name, "trainer-01", FAIL) for name in (None, "localhost", "127.0.0.1", "::1", "trainer-01", "Trainer-01.example.org")),
        ("trainer-01", "trainer-01.example.org", FAIL),
        ("trainer-02", "trainer-01", NA),
        ("10.0.0.11", "trainer-01", FAIL),  # its own
        ("10.0.0.12", "trainer-01", NA),
        ("10.0.0.12", "10", NA),  # an address is no name
        ("7b-node", "7b-node", FAIL),
        ("trainer-01", NOTHING, NA),
        ("trainer-01", "", NA),
        ("10.0.0.11", NOTHING, FAIL),
    ],
)
def test_who_would_listen(healthy: Snapshot, address: str | None, hostname: Any, expected: Verdict) -> None:
    env = {"MASTER_PORT": "29500", **({} if address is None else {"MASTER_ADDR": address})}
    seen = altered(with_env(healthy, env), software__port_listeners=(1001,), system__hostname=hostname)
    assert verdict(seen, "master-port-in-use") is expected


RANKS = ("RANK", "NODE_RANK", "GROUP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_NODEID")
"""Slurm last: what mpirun starts from a batch script inherits that script's SLURM_PROCID=0."""


@pytest.mark.parametrize(
    ("env", "container", "expected"),
    [
        ({}, "", FAIL),
        ({}, "docker", FAIL),
        ({}, "kubernetes", NA),
        ({}, DENIED, UNKNOWN),
        ({"TORCHELASTIC_RUN_ID": "none"}, "", NA),
        ({"TORCHELASTIC": "x"}, "", FAIL),
        *(({name: "1"}, "", NA) for name in RANKS),
        *(({name: "0"}, "", FAIL) for name in RANKS),
        *(({name: ""}, "", FAIL) for name in RANKS),
        *(({first: "0", second: "3"}, "", FAIL) for first, second in itertools.pairwise(RANKS)),
        ({"LOCAL_RANK": "3"}, "", FAIL),  # says nothing about this host
    ],
)
def test_the_first_process_listens(healthy: Snapshot, env: dict[str, str], container: Any, expected: Verdict) -> None:
    seen = altered(with_env(healthy, {"MASTER_PORT": "29500", **env}), software__port_listeners=(1001,))
    assert verdict(altered(seen, system__container=container), "master-port-in-use") is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [("localhost", FAIL), ("127.0.0.1", FAIL), ("::1", FAIL), ("trainer-01", FAIL), ("10.0.0.11", UNKNOWN)],
)
def test_a_name_of_this_host_needs_no_look_at_interfaces(healthy: Snapshot, address: str, expected: Verdict) -> None:
    seen = altered(with_env(healthy, {"MASTER_PORT": "29500", "MASTER_ADDR": address}), software__port_listeners=(1001,))
    assert verdict(altered(seen, network__interfaces=DENIED), "master-port-in-use") is expected


def test_an_interface_whose_addresses_are_not_known_hides_no_other(healthy: Snapshot) -> None:
    env = {"MASTER_PORT": "29500", "MASTER_ADDR": "10.0.0.11"}
    seen = altered(with_env(healthy, env), software__port_listeners=(1001,))
    assert not isinstance(seen.network, Missing)
    assert not isinstance(seen.network.interfaces, Missing)
    hidden = tuple(msgspec.structs.replace(one, addresses=DENIED) for one in seen.network.interfaces)
    assert verdict(altered(seen, network__interfaces=hidden), "master-port-in-use") is NA
    own = msgspec.structs.replace(hidden[-1], addresses=(Address(family="inet", address="10.0.0.11", prefix_length=24),))
    assert verdict(altered(seen, network__interfaces=(*hidden[:-1], own)), "master-port-in-use") is FAIL


# --- where the ranks meet

OF_SLURM = {"SLURM_NODEID": "1", "MASTER_ADDR": "localhost"}
RANK = {"RANK": "8", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize(
    ("env", "nodes", "expected"),
    [
        (RANK, 2, FAIL),
        ({**RANK, "MASTER_ADDR": "127.0.0.1"}, 2, FAIL),
        ({**RANK, "MASTER_ADDR": "::1"}, 2, FAIL),
        ({**RANK, "MASTER_ADDR": "node0"}, 2, PASS),
        ({**RANK, "RANK": "7"}, 2, NA),  # the first host's: master-address-loopback warns
        (RANK, None, NA),
        (RANK, 1, NA),
        ({**RANK, "TORCHELASTIC_RUN_ID": "none"}, 2, NA),  # two agents on one host may be meant
        ({**RANK, "LOCAL_WORLD_SIZE": "0"}, 2, NA),
        ({**RANK, "RANK": "x"}, 2, NA),
        ({name: RANK[name] for name in RANK if name != "LOCAL_WORLD_SIZE"}, 2, NA),
        ({**OF_SLURM, "RANK": "4", "SLURM_LOCALID": "0"}, 2, FAIL),
        ({**OF_SLURM, "RANK": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 2, FAIL),
        ({**OF_SLURM, "RANK": "3", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 2, NA),  # a job of its own on each node
        ({**OF_SLURM, "RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 2, NA),
        ({**OF_SLURM, "RANK": "3", "SLURM_LOCALID": "3"}, 2, NA),  # --distribution=arbitrary: rank 0 is here
        ({**OF_SLURM, "RANK": "4", "SLURM_NODEID": "0"}, 2, NA),
        ({name: RANK[name] for name in RANK if name != "MASTER_ADDR"}, 2, NA),
    ],
)
def test_a_rank_of_another_host_cannot_meet_rank_0_at_its_own_loopback(
    healthy: Snapshot, env: dict[str, str], nodes: int | None, expected: Verdict
) -> None:
    seen = msgspec.structs.replace(with_env(healthy, env), intent=Workload(nodes=nodes))
    assert verdict(seen, "rank-seeks-master-on-own-host") is expected


@pytest.mark.parametrize(
    ("port", "first", "uid", "expected"),
    [
        ("443", 1024, 1000, FAIL),
        ("1024", 1024, 1000, PASS),
        ("443", 0, 1000, PASS),
        ("443", 1024, 0, PASS),
        ("29500", 32768, 1000, FAIL),
    ],
)
def test_ports_that_are_for_root_alone(healthy: Snapshot, port: str, first: int, uid: int, expected: Verdict) -> None:
    seen = altered(
        with_env(healthy, {"MASTER_PORT": port}), software__port_listeners=(), software__first_open_port=first, session__uid=uid
    )
    assert verdict(seen, "master-port-in-use") is expected
