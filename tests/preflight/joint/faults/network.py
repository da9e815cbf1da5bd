"""Faults in the network: firewalls, ways that lose a part, names, routes and addresses; what each verdict on them must name."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from preflight.joint.cluster import Cluster, Ranks, run
from preflight.joint.faults import before, narrow, other, until_worker
from preflight.joint.faults.computing import FLIPPED_PRODUCT, Plant, patched
from preflight.joint.faults.expected import Expected, Fault, Verdict, Way

_OPEN = "iif lo accept; ct state established,related accept; tcp dport 29711-29714 accept; meta l4proto icmp accept; ct state new drop"

SCANNER = """
import itertools, socket, time
for number in itertools.count():
    try:
        with socket.create_connection(("127.0.0.1", 29711), 1) as held:
            held.sendall((b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\0" * 4096, b"")[number % 3])
            time.sleep(0.25)
    except OSError:
        time.sleep(0.25)
"""


def mtu_pair(made: Cluster, node: int) -> dict[str, Any]:
    for here, there in ((node, before(made, node)), (before(made, node), node)):
        made.drop(here, f"ip saddr {made.address(there)} meta length > 1300 drop")
    return {}


def firewall_all(made: Cluster, _node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        made.drop(number, _OPEN)
    return {}


def firewall_one(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, _OPEN)
    return {}


def egress_refused(made: Cluster, node: int) -> dict[str, Any]:
    refused = "meta l4proto tcp ct state new reject with tcp reset"
    made.drop(node, out=f"oif lo accept; ct state established,related accept; tcp dport 29711-29714 accept; {refused}")
    return {}


def connection_limit(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "iif eth0 meta l4proto tcp ct state new ct count over 4 drop")
    return {}


def one_name_twice(made: Cluster, node: int) -> dict[str, Any]:
    made.hostnames[other(made, node)] = made.names[node - 1]
    return {}


def master_name_wrong(made: Cluster, node: int) -> dict[str, Any]:
    made.table(node, made.hosts.replace(f"{made.address(1)} n1\n", "10.78.0.99 n1\n"))
    return {}


def master_differs(made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"MASTER_ADDR": made.names[other(made, node) - 1]}}}


def world_differs(made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"WORLD_SIZE": str(2 * made.nodes)}}}


def rank_twice(made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"RANK": str(before(made, node) - 1)}}}


def stale_port(made: Cluster, node: int) -> dict[str, Any]:
    listens = "import socket, time; s = socket.create_server(('', 29711)); print(flush=True); time.sleep(600)"
    words = ["ip", "netns", "exec", made.space(node), sys.executable, "-c", listens]
    child = made.stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))  # its end waits, and closes the pipe
    made.planted.add(child.pid)
    made.stack.callback(child.kill)
    assert child.stdout is not None
    child.stdout.readline()
    return {"fatal": ("master-port-in-use",)}


def reset_in_transfer(made: Cluster, node: int) -> dict[str, Any]:
    for here, there in ((node, before(made, node)), (before(made, node), node)):
        made.inside(here, "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
        drops = f"ip saddr {made.address(there)} meta l4proto tcp ct bytes > 2000000"
        made.drop(here, f"tcp flags & rst == rst accept; {drops} reject with tcp reset")
    return {}


def silent_in_transfer(made: Cluster, node: int) -> dict[str, Any]:
    """As what was first planted for the one before: the answer that resets is dropped, too."""
    for here, there in ((node, before(made, node)), (before(made, node), node)):
        made.inside(here, "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
        made.drop(here, f"ip saddr {made.address(there)} meta l4proto tcp ct bytes > 2000000 drop")
    return {}


def into(rule: str) -> Plant:
    """A rule on what comes to the node."""

    def plant(made: Cluster, node: int) -> dict[str, Any]:
        made.drop(node, rule)
        return {}

    return plant


def loss_one_way(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, f"ip saddr {made.address(before(made, node))} numgen random mod 100 < 10 drop")
    return {}


def other_network_name(made: Cluster, node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        made.ip(number, "link", "add", "eth1", "type", "veth", "peer", "name", "far1")
        for interface in ("eth1", "far1"):
            made.ip(number, "link", "set", interface, "up")
        made.ip(number, "addr", "add", f"192.168.77.{number}/24", "dev", "eth1")
    made.table(node, made.hosts.replace(f"{made.address(node)} n{node}\n", f"192.168.77.{node} n{node}\n"))
    return {}


def netmask(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "addr", "flush", "dev", "eth0")
    made.ip(node, "addr", "add", f"{made.address(node)}/31", "dev", "eth0")
    return {}


def loopback_down(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "link", "set", "lo", "down")
    return {"fatal": ("loopback-unusable",)}


def two_faults(made: Cluster, node: int) -> dict[str, Any]:
    return {**narrow(made, node), **patched(FLIPPED_PRODUCT)(made, _next_but_one(made, node))}


def everywhere(rule: str) -> Plant:
    """A rule on what comes to each node, and on what leaves it."""

    def plant(made: Cluster, _node: int) -> dict[str, Any]:
        for number in range(1, made.nodes + 1):
            made.drop(number, rule, rule)
        return {}

    return plant


def udp_blocked(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "iif eth0 meta l4proto udp drop", "oif eth0 meta l4proto udp drop")
    return {}


def link_flap(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        run("ip", "link", "set", made.outer(node), "down")
        time.sleep(1.5)
        run("ip", "link", "set", made.outer(node), "up")

    return {"during": during}


def port_differs(_made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"MASTER_PORT": "29911"}}}


def four_ports(made: Cluster, node: int) -> dict[str, Any]:
    made.inside(node, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40003")
    return {}


def two_never(made: Cluster, node: int) -> dict[str, Any]:
    return {"skip": ((node, 0), (other(made, node), 0))}


def wrong_neighbour(made: Cluster, node: int) -> dict[str, Any]:
    peer = made.address(before(made, node))
    made.ip(node, "neigh", "replace", peer, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    return {}


def no_route(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "route", "add", "unreachable", f"{made.address(before(made, node))}/32")
    return {}


def other_order(made: Cluster, _node: int) -> dict[str, Any]:
    return {"listed": made.names[::-1]}


def other_order_never(made: Cluster, node: int) -> dict[str, Any]:
    return {"listed": made.names[::-1], "skip": ((node, 0),)}


def both_protocols(made: Cluster, _node: int) -> dict[str, Any]:
    numbers = range(1, made.nodes + 1)
    text = "".join(f"fd00:78::{number} n{number}\n" for number in numbers) + made.hosts
    for number in numbers:
        made.ip(number, "-6", "addr", "add", f"fd00:78::{number}/64", "dev", "eth0", "nodad")
        made.table(number, text)
    return {}


def scanner(made: Cluster, node: int) -> dict[str, Any]:
    words = ["ip", "netns", "exec", made.space(node), sys.executable, "-c", SCANNER]
    child = subprocess.Popen(words)
    made.planted.add(child.pid)
    made.stack.callback(child.wait)
    made.stack.callback(child.kill)
    return {}


def half_cut(made: Cluster, node: int) -> dict[str, Any]:
    others = [made.address(number) for number in range(2, made.nodes + 1) if number != node]
    made.drop(node, *(f"ip {side} {{ {', '.join(others)} }} drop" for side in ("saddr", "daddr")))
    return {}


def small_buffers(made: Cluster, node: int) -> dict[str, Any]:
    for name in ("tcp_rmem", "tcp_wmem"):
        made.inside(node, "sysctl", "-qw", f"net.ipv4.{name}=4096 4096 4096")
    return {}


def _next_but_one(made: Cluster, node: int) -> int:
    return other(made, other(made, node))


def _name(number: int) -> str:
    return f"n{number}"


def node_with(*causes: str, **more: Any) -> Any:
    """The node is named, with one of these causes."""
    return lambda _made, node: Expected(causes, (_name(node),), bad=(node,), **more)


def link(*causes: str, is_one_way: bool = False) -> Any:
    def expected(made: Cluster, node: int) -> Expected:
        way = _name(before(made, node)), _name(node)
        return Expected(causes, links=frozenset({way} if is_one_way else {way, way[::-1]}))

    return expected


def _alike(made: Cluster, _node: int) -> Expected:
    ways = frozenset((one, another) for one in made.names for another in made.names if one != another)

    def also(verdict: Verdict) -> list[str]:
        blamed = {node["node"] for node in verdict["nodes"] if node["verdict"] == "no-go"}
        links = {(link["from"], link["to"]) for link in verdict["links"]}
        is_all = any(cause["cause"] == "port-dropped" for cause in verdict["causes"])
        alike = (is_all and not links) or links == ways
        return [] if blamed == {*made.names} or (not blamed and alike) else ["some more than the others"]

    return Expected(("port-dropped",), may=tuple(made.names), links=ways, also=also)


def _of_netmask(made: Cluster, node: int) -> Expected:
    cut = [number for number in range(1, made.nodes + 1) if number not in (node, before(made, node))]
    ways: list[Way] = [(_name(node), _name(number)) for number in cut]
    links = frozenset(ways + [way[::-1] for way in ways])
    return Expected(("port-dropped", "port-refused", "link-one-way-drop"), (_name(node),), links=links, bad=(node,))


def _of_half(made: Cluster, node: int) -> Expected:
    others = [_name(number) for number in range(2, made.nodes + 1) if number != node]
    links = frozenset(way for other in others for way in ((_name(node), other), (other, _name(node))))
    return Expected(("port-dropped",), (_name(node),), links=links, bad=(node,))


def _of_clone(made: Cluster, node: int) -> Expected:
    clone = other(made, node)
    causes = ("duplicate-address", "hostname-unresolvable", "nccl-wrong-interface")
    return Expected(causes, (_name(clone),), may=(_name(node),), bad=(clone,))


def _of_rank_twice(made: Cluster, node: int) -> Expected:
    causes = ("job-launch-nested-wrongly", "ranks-missing", "node-never-came")
    return Expected(causes, (_name(node),), may=(_name(before(made, node)),), bad=(node,))


def _of_two(made: Cluster, node: int) -> Expected:
    two = {_name(node): "narrow-link", _name(_next_but_one(made, node)): "silent-data-corruption"}

    def also(verdict: Verdict) -> list[str]:
        told = {each["node"]: {cause["cause"] for cause in each["causes"]} for each in verdict["nodes"]}
        return [f"{name} without {cause}" for name, cause in two.items() if cause not in told.get(name, ())]

    return Expected(must=(*two,), bad=(node, _next_but_one(made, node)), also=also)


def _of_route(made: Cluster, node: int) -> Expected:
    way = f"n{before(made, node)}", f"n{node}"
    causes = ("port-dropped", "port-refused", "link-one-way-drop")
    return Expected(causes, may=(f"n{node}",), links=frozenset({way, way[::-1]}))


def _of_two_absent(made: Cluster, node: int) -> Expected:
    return Expected(("node-never-came",), (f"n{node}", f"n{other(made, node)}"))


def go(_made: Cluster, _node: int) -> Expected:
    return Expected(verdicts=("go",))


_CUT = ("port-dropped", "port-refused", "link-one-way-drop")
_LARGE_LOST = "iif eth0 meta length > 1000 numgen random mod 100 < 5 drop"
_CORRUPTED = "iif eth0 meta l4proto tcp meta length > 1000 numgen random mod 200 == 0 @th,4000,8 set 0x5a"
_SECOND_FLOW = "iif eth0 meta l4proto { tcp, udp } jhash ip saddr . th sport . th dport mod 2 == 0 drop"

FAULTS = {
    "mtu-pair": Fault(mtu_pair, link("mtu-black-hole"), 2, held=True),
    "firewall-all": Fault(firewall_all, _alike),
    "firewall-one": Fault(firewall_one, node_with("port-dropped")),
    "egress-refused": Fault(egress_refused, node_with("port-refused", "port-dropped")),
    "connection-limit": Fault(connection_limit, node_with("port-dropped", "port-refused", "straggler-network"), held=True),
    "one-name-twice": Fault(one_name_twice, _of_clone, held=True),
    "master-name-wrong": Fault(master_name_wrong, node_with("master-addr-wrong", "hostname-unresolvable"), 3, held=True),
    "master-differs": Fault(
        master_differs,
        node_with("master-addr-wrong", "environment-differs-between-nodes", "node-never-came", words=("master_addr",)),
        3,
    ),
    "world-differs": Fault(
        world_differs,
        node_with("environment-differs-between-nodes", "job-launch-nested-wrongly", "node-never-came", words=("world_size",)),
        held=True,
    ),
    "rank-twice": Fault(rank_twice, _of_rank_twice, 2),
    "stale-port": Fault(stale_port, node_with("master-port-in-use")),
    "reset-in-transfer": Fault(reset_in_transfer, link("port-refused", "port-dropped", "straggler-network")),
    "silent-in-transfer": Fault(silent_in_transfer, link("port-dropped", "straggler-network")),
    "loss-1": Fault(into("iif eth0 numgen random mod 100 < 1 drop"), node_with("packet-loss"), 3, held=True),
    "loss-of-large": Fault(into(_LARGE_LOST), node_with("packet-loss", "narrow-link"), held=True),
    "loss-one-way": Fault(loss_one_way, link("packet-loss", is_one_way=True), held=True),
    "narrow-in": Fault(
        into("iif eth0 limit rate over 2500 kbytes/second burst 64 kbytes drop"), node_with("narrow-link", "packet-loss"), 3
    ),
    "dead-member": Fault(into(_SECOND_FLOW), node_with("port-dropped", "packet-loss", "link-one-way-drop")),
    "other-network-name": Fault(
        other_network_name, node_with("nccl-wrong-interface", "hostname-unresolvable", "straggler-network"), 2
    ),
    "netmask": Fault(netmask, _of_netmask, 3),
    "loopback-down": Fault(loopback_down, node_with(), 3, held=True),
    "two-faults": Fault(two_faults, _of_two),
    "icmp-blocked": Fault(everywhere("meta l4proto icmp drop"), go, held=True),
    "udp-blocked": Fault(udp_blocked, go),
    "link-flap": Fault(link_flap, lambda _made, node: Expected(may=(_name(node),), verdicts=("go", "no-go"), bad=(node,))),
    "port-differs": Fault(
        port_differs, node_with("node-never-came", "environment-differs-between-nodes", words=("master_port",)), 3
    ),
    "four-ports": Fault(four_ports, node_with(), 2),
    "two-never": Fault(two_never, _of_two_absent, 2),
    "wrong-neighbour": Fault(wrong_neighbour, link("link-one-way-drop", "port-dropped"), 4),
    "no-route": Fault(no_route, _of_route),
    "other-order-never": Fault(other_order_never, node_with("node-never-came"), 3),
    "other-order": Fault(other_order, go),
    "both-protocols": Fault(both_protocols, go),
    "scanner": Fault(scanner, go),
    "syn-loss": Fault(
        into("iif eth0 tcp flags & (syn | ack) == syn numgen random mod 10 < 4 drop"),
        node_with("packet-loss", "port-dropped", "straggler-network"),
        4,
        held=True,
    ),
    "half-cut": Fault(half_cut, _of_half, 3),
    "small-buffers": Fault(small_buffers, node_with("narrow-link", "straggler-network"), 2, held=True),
    "corrupted-in-flight": Fault(into(_CORRUPTED), node_with("silent-data-corruption", "packet-loss", "straggler-network"), 2),
}
