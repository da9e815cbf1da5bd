#!/usr/bin/env python3
"""What the joint pre-flight costs its coordinator at N nodes, and how long a run would take: measured with N nodes that answer at once.

    joint_cost.py [N ...]          lines, bytes and processor time; then wall times projected to 1,024 and 10,000 nodes
                                   (needs root: it runs in a network namespace of its own, where each node has an address)

The coordinator is the real one, in a process of its own, over real TCP on the loopback; the facts are those of this machine, with a name and address for each node.
Nodes are connections of one process that answers each task at once, so that what is measured is the coordinator. Parts that take time on a node (testing one
direction, the training step) are measured one by one, and counted as often as a run does them one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import sys
import threading
import time
from typing import Any

from torchtune_sys import engine
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.peers import detached, local
from torchtune_sys.host.peers.links import LinkServer, test
from torchtune_sys.host.peers.wire import Gone, Wire, handshake
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.facts import facts_of
from torchtune_sys.preflight.joint.gathered import NodeFacts
from torchtune_sys.preflight.joint.job import Job, Times
from torchtune_sys.preflight.joint.phases import pairings

NETWORK = "10.77.0.0/16"
HERE, SECRET, BUDGET_S = "10.77.0.1", b"cost", 400.0
COMPUTE = {"hardware": "x", "class": "x", "kernel_s": [1e-4] * 6, "weights": "0" * 32, "wrong": "", "share": 0.9, "gap": 0.0}
LINK = {"connect": "ok", "small_s": 0.02, "beyond": True, "rates": [5e7, 5e7], "sent": 200, "retransmits": 0}
"""No better than what node 0 really measures, so that it does not look odd beside them."""
TURN_S = 0.9
"""One turn of the timed kernel and the steps on a CPU (six blocks of 60 ms, two steps, the share of a CPU)."""
COLLECTIVE_S, TORCH_S = 1.5, 4.0
"""Of the runs on namespaces at four nodes: a group's connect and its collectives; the import of torch."""


def job_of(nodes: int, node: int, port: int) -> Job:
    place = {"rank": node, "world": nodes, "local": 0, "locals_": 1, "node": node, "nodes": nodes}
    return Job(**place, master=HERE, ports=(port,), secret=SECRET, key=f"cost-{port}")


def address_of(number: int) -> str:
    return f"10.77.{number + 1 >> 8}.{number + 1 & 255}"


def facts_at(facts: dict[str, Any], number: int) -> dict[str, Any]:
    """The facts of this machine, as those of another with a name and an address of its own."""
    interfaces = {"eth0": {"kind": "ethernet", "mtu": 1500, "addresses": [[address_of(number), 16]]}}
    return {**facts, "name": f"node{number:05}", "interfaces": interfaces, "own_name_addresses": [address_of(number)]}


def is_here(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def answer(do: str, said: dict[str, Any]) -> Any:
    if do == "link":
        return LINK
    if do == "count":
        return {"from": dict.fromkeys(said["tokens"], 200), "overflowed": 0}
    found: dict[str, Any] = {}
    for number, task in said["tasks"].items():
        found[str(number)] = {"compute": COMPUTE, "store": {"port": 1}, "collective": {"ok": True, "best_s": [1e-3]}}[task["do"]]
    return found


def coordinator(nodes: int, port: int, facts: dict[str, Any], told: Any) -> None:
    """Node 0: the real process, and a rank that answers at once."""
    own = job_of(nodes, 0, port)
    listener = local.claim(f"{own.key}-0")
    assert listener is not None

    def rank() -> None:
        link = local.RankLink.connect(f"{own.key}-0", 5)
        link.send({"is": "rank", "rank": 0, "local": 0})
        for key, value in (("node", []), ("facts", facts_at(facts, 0)), ("worker/0", {"torch": "2.13.0"})):
            link.send({"is": "note", "key": key, "value": value})
        with contextlib.suppress(Gone):
            while (said := link.receive(BUDGET_S)) is not None and said["is"] not in ("verdict", "cut-off"):
                if said["is"] == "task":
                    value = answer("ranks", {"tasks": {"0": said["task"]}})["0"]
                    link.send({"is": "done", "id": said["id"], "value": value})
        link.send({"is": "bye"})

    threading.Thread(target=rank, daemon=True).start()
    agent = Agent(own, Times(time.monotonic(), BUDGET_S, BUDGET_S / 2))
    begun_s = time.monotonic()
    asyncio.run(agent.run(listener))
    used = resource.getrusage(resource.RUSAGE_SELF)
    verdict = agent.verdict or {}
    told.send(
        {
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_mib": used.ru_maxrss / 1024,
            "wall_s": time.monotonic() - begun_s,
            "verdict": verdict.get("value", {}).get("verdict", verdict.get("seen", "none")),
        }
    )


class Count:
    lines = bytes = 0
    verdict_bytes = 0


async def connection(address: str, port: int) -> Wire:
    """A coordinator lets only so many strangers in at once: who is sent away comes again, as a node does."""
    while True:
        with contextlib.suppress(Gone, OSError):
            return await handshake(
                *await asyncio.open_connection(HERE, port, local_addr=(address, 0)), SECRET, first=True, timeout_s=60
            )
        await asyncio.sleep(0.5)


async def node(nodes: int, number: int, port: int, facts: dict[str, Any], count: Count, server: LinkServer) -> None:
    address = address_of(number)
    link = await connection(address, port)
    link.send(messages.plain(messages.Who()))
    await link.receive(60)
    join = messages.Join(
        node=number, address=address, dialled=HERE, control=2000, link=(server.port, server.udp_port, server.mark), ranks=[0], expected=1, notes={},
        words={0: "ok"}, lost={}, ended={},
    )  # fmt: skip
    link.send(messages.plain(join))
    for key, value in (("facts", facts_at(facts, number)), ("node", []), ("worker/0", {"torch": "2.13.0"})):
        link.send(messages.plain(messages.Note(key=key, value=value)))
    with contextlib.suppress(Gone):
        while True:
            before = link.bytes_received
            said = await link.receive(BUDGET_S)
            count.lines += 1
            if said["is"] == "ping":
                link.send(messages.plain(messages.Pong(n=said["n"], clock=time.time())))
            elif said["is"] == "task":
                link.send(messages.plain(messages.Done(id=said["id"], value=answer(said["do"], said))))
            elif said["is"] in ("verdict", "cut-off"):
                count.verdict_bytes = link.bytes_received - before
                break
    count.bytes += link.bytes_received + link.bytes_sent
    count.lines += link._sent
    link.close()


async def one_direction() -> float:
    server = LinkServer()
    await server.start()
    begun_s = time.monotonic()
    await test(HERE, server.port, server.udp_port, server.mark, "t")
    taken_s = time.monotonic() - begun_s
    server.stop()
    return taken_s


def measured(nodes: int, facts: dict[str, Any]) -> dict[str, Any]:
    port = 20000 + os.getpid() % 20000
    near, far = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=coordinator, args=(nodes, port, facts, far))
    child.start()
    count = Count()

    async def all_nodes() -> None:
        for _ in range(600):
            with contextlib.suppress(OSError, TimeoutError):
                _reader, writer = await asyncio.open_connection(HERE, port)
                writer.close()
                break
            await asyncio.sleep(0.1)
        server = LinkServer()  # what node 0, which is real, tests its directions against
        await server.start()
        await asyncio.gather(*(node(nodes, number, port, facts, count, server) for number in range(1, nodes)))
        server.stop()

    asyncio.run(all_nodes())
    found: dict[str, Any] = near.recv()
    child.join()
    return {**found, "lines": count.lines / (nodes - 1), "bytes": count.bytes / (nodes - 1), "verdict_bytes": count.verdict_bytes}


def main(counts: list[int]) -> None:
    detached.allow_connections()
    seen = engine.snapshot(LiveHost(), Workload(), timeout_s=20)
    told = facts_of(seen, "node00000", {})
    facts: dict[str, Any] = json.loads(json.dumps({name: getattr(told, name) for name in ("env", "families", "cpu_quota")}))
    assert isinstance(told, NodeFacts)
    found = {}
    print(
        "| nodes | lines a node, both ways | bytes a node | of these the verdict | processor time of the coordinator | its memory | wall | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for nodes in counts:
        one = found[nodes] = measured(nodes, facts)
        print(
            f"| {nodes:,} | {one['lines']:.0f} | {one['bytes']:,.0f} | {one['verdict_bytes']:,} | {one['cpu_s']:.1f} s | {one['memory_mib']:.0f} MiB "
            f"| {one['wall_s']:.1f} s | {one['verdict']} |",
            flush=True,
        )
    link_s = asyncio.run(one_direction())
    small, large = min(found), max(found)
    slope_s = (found[large]["cpu_s"] - found[small]["cpu_s"]) / max(large - small, 1)
    print(
        f"\nOne direction of a connection takes {link_s:.2f} s here. Projected, with {slope_s * 1e3:.2f} ms of the coordinator for each node:\n"
    )
    print(
        "| nodes | rounds of pairs | connections | torch and facts | two turns | collectives of a group | coordinator | in all |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for nodes in dict.fromkeys((*counts, 1024, 10_000)):
        rounds = len(pairings(range(nodes)))
        parts = (2 * rounds * link_s, TORCH_S, 2 * TURN_S, COLLECTIVE_S, found[small]["cpu_s"] + slope_s * (nodes - small))
        print(f"| {nodes:,} | {rounds} | " + " | ".join(f"{part:.1f} s" for part in parts) + f" | {sum(parts):.0f} s |")


if __name__ == "__main__":
    if not is_here(HERE):
        inside = 'ip link set lo up && ip route add local "$1" dev lo && shift && exec "$@"'
        os.execvp("unshare", ["unshare", "--net", "sh", "-c", inside, "sh", NETWORK, sys.executable, *sys.argv])
    main([int(word) for word in sys.argv[1:]] or [16, 64, 256])
