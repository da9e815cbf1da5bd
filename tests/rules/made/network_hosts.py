"""Hosts and words that the boundary tests of network share."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.network import Address, Interface, NcclSetting, NetworkFacts, RdmaDevice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import nccl, network

RULES: dict[str, Rule] = {rule.id: rule for rule in (*network.RULES, *nccl.RULES)}
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


NOTHING, REFUSED, UNTOLD = gone(Why.ABSENT), gone(Why.DENIED), gone(Why.NOT_RECORDED)


def facts(host: Snapshot) -> NetworkFacts:
    assert not isinstance(host.network, Missing)
    return host.network


def cards(host: Snapshot) -> tuple[RdmaDevice, ...]:
    found = facts(host).rdma
    assert not isinstance(found, Missing)
    return found


def interface(name: str, *addresses: str, kind: str = "ethernet", position: int = 0, **more: Any) -> Interface:
    listed = tuple(
        Address(family="inet6" if ":" in address else "inet", address=address, prefix_length=24, position=position + at)
        for at, address in enumerate(addresses)
    )
    told = {"up": True, "running": True, "operstate": "up", "speed_mbps": 25_000, "mtu": 1500, "addresses": listed}
    plain = {"numa_node": -1, "pci_address": NOTHING, "vendor": NOTHING, "driver": NOTHING}
    return Interface(**{"name": name, "index": position, "kind": kind, **plain, **told, **more})


LO = interface("lo", "127.0.0.1", kind="loopback", speed_mbps=NOTHING, mtu=65536)


def net(*interfaces: Interface, nodes: int | None = 2, **more: Any) -> Snapshot:
    """A host without RDMA that has these interfaces besides lo; the first has the default route and the host's name."""
    placed = tuple(
        replace(item, addresses=tuple(replace(address, position=at * 4 + address.position) for address in item.addresses))
        if not isinstance(item.addresses, Missing)
        else item
        for at, item in enumerate((LO, *interfaces))
    )
    first = interfaces[0] if interfaces else LO
    told = first.addresses[:1] if not isinstance(first.addresses, Missing) else ()
    plain = {"rdma": NOTHING, "verbs_nodes": NOTHING, "nccl": (), "gloo_interfaces": ()}
    named = {"default_route_interface": first.name, "hostname_addresses": tuple(item.address for item in told)}
    host = replace(seen("healthy"), intent=Workload(nodes=nodes))
    return replace(host, network=replace(facts(host), **{"interfaces": placed, **plain, **named, **more}))


def setting(name: str, value: str, source: str = "environment", **more: str) -> NcclSetting:
    return NcclSetting(name=name, value=value, source=source, **more)


def env(**values: str) -> tuple[NcclSetting, ...]:
    return tuple(setting(name, value) for name, value in values.items())


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


ETH0, ETH1 = interface("eth0", "10.0.0.11"), interface("eth1", "10.0.1.11")
BRIDGE = interface("br0", "10.9.0.1", kind="bridge", speed_mbps=NOTHING)
TAILSCALE = interface("ts0", "100.64.0.1", kind="tun", speed_mbps=NOTHING)


def with_nccl(host: Snapshot, release: Any) -> Snapshot:
    assert not isinstance(host.python, Missing) and not isinstance(host.python.torch, Missing)
    return replace(host, python=replace(host.python, torch=replace(host.python.torch, nccl=release)))


ROCE = {"link_layer": "Ethernet"}


def with_rdma(host: Snapshot, **port: Any) -> Snapshot:
    healthy = facts(seen("healthy"))
    rdma = tuple(replace(card, ports=tuple(replace(item, **port) for item in card.ports)) for card in cards(seen("healthy")))
    return replace(host, network=replace(facts(host), rdma=rdma, verbs_nodes=healthy.verbs_nodes))
