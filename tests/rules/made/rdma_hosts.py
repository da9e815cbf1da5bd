"""Hosts and words that the boundary tests of rdma share."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.network import Gid, Interface, NcclSetting, NetworkFacts, RdmaDevice, RdmaPort
from torchtune_sys.model.facts.session import Workload
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
    host = replace(seen("healthy"), intent=Workload(nodes=nodes))
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


# Entries of RoCE ports


def gid(index: int, text: str = "0000:0000:0000:0000:0000:ffff:0a01:020b", kind: Any = "RoCE v2") -> Gid:
    return Gid(index=index, gid=text, type=kind)


LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"
V4 = "0000:0000:0000:0000:0000:ffff:0a01:020b"
TABLE = (gid(0, LOCAL, "IB/RoCE v1"), gid(1, LOCAL), gid(2, V4, "IB/RoCE v1"), gid(3))


def roce(table: tuple[Gid, ...] = TABLE, release: Any = "2.28.9", **values: str) -> Snapshot:
    host = net(cards({"link_layer": "Ethernet", "gids": table}), nccl=env(**values))
    assert not isinstance(host.python, Missing) and not isinstance(host.python.torch, Missing)
    return replace(host, python=replace(host.python, torch=replace(host.python.torch, nccl=release)))
