"""Faults of switches, addresses and protocols: what each verdict on them must name."""

from __future__ import annotations

import subprocess
import time
from typing import Any

from preflight.joint.cluster import Cluster, Ranks, run
from preflight.joint.faults import other, until_worker
from preflight.joint.faults.expected import Expected, Fault
from preflight.joint.faults.network import both_protocols, go, into, node_with


def _halves(made: Cluster) -> tuple[list[int], list[int]]:
    numbers = list(range(1, made.nodes + 1))
    return numbers[: made.nodes // 2], numbers[made.nodes // 2 :]


def narrow_cut(made: Cluster, _node: int) -> dict[str, Any]:
    for own, far in (halves := _halves(made)), halves[::-1]:
        for number in own:
            addresses = ", ".join(map(made.address, far))
            made.drop(number, f"ip saddr {{ {addresses} }} limit rate over 2500 kbytes/second burst 64 kbytes drop")
    return {}


def duplicate_mac(made: Cluster, node: int) -> dict[str, Any]:
    address = "02:00:00:00:00:77"
    for number in (node, other(made, node)):
        made.ip(number, "link", "set", "eth0", "address", address)
    return {}


def flapping(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_s = time.monotonic() + 90
        while time.monotonic() < until_s and ranks.children[node, 0].poll() is None:
            run("ip", "link", "set", made.outer(node), "down")
            time.sleep(0.3)
            run("ip", "link", "set", made.outer(node), "up")
            time.sleep(2.2)

    return {"during": during}


def address_lost(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        made.ip(node, "addr", "flush", "dev", "eth0")

    return {"during": during}


def ecn_dropped(made: Cluster, node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        made.inside(number, "sysctl", "-qw", "net.ipv4.tcp_ecn=1")
    made.drop(node, "iif eth0 ip ecn != not-ect drop")
    return {}


def broken_v6(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "iif eth0 meta nfproto ipv6 meta l4proto { tcp, udp } drop")
    return both_protocols(made, node)


def only_v6(made: Cluster, node: int) -> dict[str, Any]:
    both_protocols(made, node)
    text = "::1 localhost\n" + "".join(f"fd00:78::{number} n{number}\n" for number in range(1, made.nodes + 1))
    for number in range(1, made.nodes + 1):
        made.table(number, text)
    return {}


def many_interfaces(made: Cluster, node: int) -> dict[str, Any]:
    for pair in range(20):
        made.ip(node, "link", "add", f"cali{pair}", "type", "veth", "peer", "name", f"pod{pair}")
        for side, name in enumerate((f"cali{pair}", f"pod{pair}")):
            made.ip(node, "addr", "add", f"172.20.{pair}.{side + 1}/24", "dev", name)
            made.ip(node, "link", "set", name, "up")
    subprocess.run(["ip", "-n", made.space(node), "link"], check=True, capture_output=True)
    return {}


def _of_cut(made: Cluster, _node: int) -> Expected:
    one, two = _halves(made)
    ways = [(f"n{here}", f"n{there}") for here in one for there in two]
    return Expected(("narrow-link", "packet-loss", "straggler-network"), links=frozenset(ways + [way[::-1] for way in ways]))


def _of_mac(made: Cluster, node: int) -> Expected:
    two = (f"n{node}", f"n{other(made, node)}")
    ways = [(one, far) for one in two for far in made.names if far != one]
    causes = ("duplicate-address", "port-dropped", "packet-loss", "link-one-way-drop")
    return Expected(causes, may=two, links=frozenset(ways + [way[::-1] for way in ways]), bad=(node, other(made, node)))


_SMALL_LOST = "iif eth0 meta l4proto tcp meta length <= 80 numgen random mod 100 < 20 drop"

FAULTS = {
    "narrow-cut": Fault(narrow_cut, _of_cut),
    "duplicate-mac": Fault(duplicate_mac, _of_mac, 4, held=True),
    "flapping": Fault(flapping, node_with("packet-loss", "link-down", "straggler-network", "port-dropped"), 3),
    "address-lost": Fault(address_lost, node_with("link-down", "rank-killed", "rank-stopped"), 3, held=True),
    "ecn-dropped": Fault(ecn_dropped, node_with("packet-loss", "port-dropped", "link-one-way-drop"), 2, held=True),
    "broken-v6": Fault(
        broken_v6, node_with("port-dropped", "nccl-wrong-interface", "hostname-unresolvable", "straggler-network")
    ),
    "loss-of-small": Fault(into(_SMALL_LOST), node_with("packet-loss", "narrow-link"), held=True),
    "only-v6": Fault(only_v6, go, held=True),
    "many-interfaces": Fault(many_interfaces, go, 4, held=True),
}
