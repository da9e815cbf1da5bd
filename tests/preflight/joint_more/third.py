"""Faults of the third list of docs/joint-faults.md."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from preflight.joint.cluster import Cluster, Ranks
from preflight.joint.faults import before, other, until_worker
from preflight.joint.faults_computing import patched
from preflight.joint_more.expected import Expected, Fault
from preflight.joint_more.hosts import at_import, processes_of
from preflight.joint_more.network import go, link, node_with

_WITH_SUM = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'
ABORTS = """
def plant(torch):
    import os, signal
    def ends(*words, **named):
        os.kill(os.getpid(), signal.SIGABRT)
    torch.distributed.all_reduce = ends
"""
WRONG_GATHER = """
def plant(torch):
    import torch.distributed as dist
    right = dist.all_gather
    def wrong(parts, *rest, **more):
        found = right(parts, *rest, **more)
        parts[0][0] += 1
        return found
    dist.all_gather = wrong
"""
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


def port_differs(_made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"MASTER_PORT": "29911"}}}


def terminated(_made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        ranks.kill(node, signal.SIGTERM)

    return {"during": during}


def agent_stopped(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        own = Path(f"/proc/{ranks.pid(node)}/cmdline").read_bytes()
        for pid in [*processes_of(made, node)]:
            if pid != ranks.pid(node) and Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                made.planted.add(pid)  # it cannot end by itself
                made.stack.callback(subprocess.run, ["kill", "-KILL", str(pid)], check=False, capture_output=True)
                subprocess.run(["kill", "-STOP", str(pid)], check=True)

    return {"during": during}


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


def _of_route(made: Cluster, node: int) -> Expected:
    way = f"n{before(made, node)}", f"n{node}"
    causes = ("port-dropped", "port-refused", "link-one-way-drop")
    return Expected(causes, may=(f"n{node}",), links=frozenset({way, way[::-1]}))


def _of_two(made: Cluster, node: int) -> Expected:
    return Expected(("node-never-came",), (f"n{node}", f"n{other(made, node)}"))


FAULTS = {
    "port-differs": Fault(
        port_differs, node_with("node-never-came", "environment-differs-between-nodes", words=("master_port",)), 3
    ),
    "torch-hangs": Fault(at_import("time.sleep(1000)"), node_with(verdicts=("no-go", "unknown")), 2),
    "terminated": Fault(terminated, node_with("rank-killed"), 1),
    "agent-stopped": Fault(agent_stopped, node_with("rank-stopped"), 3),
    "four-ports": Fault(four_ports, node_with(), 2),
    "aborts-in-sum": Fault(
        patched(ABORTS, _WITH_SUM), node_with("software-differs-between-nodes", "rank-killed", words=("SIGABRT",)), 4
    ),
    "wrong-gather": Fault(patched(WRONG_GATHER, _WITH_SUM), node_with("silent-data-corruption"), 3),
    "two-never": Fault(two_never, _of_two, 2),
    "wrong-neighbour": Fault(wrong_neighbour, link("link-one-way-drop", "port-dropped"), 4),
    "no-route": Fault(no_route, _of_route),
    "other-order-never": Fault(other_order_never, node_with("node-never-came"), 3),
    "other-order": Fault(other_order, go),
    "both-protocols": Fault(both_protocols, go),
    "scanner": Fault(scanner, go),
}
