"""The faults of docs/joint-faults.md: how each is planted on a host, and whom and what the verdict must name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.joint.cluster import Cluster, Ranks, Run, run
from preflight.joint.faults.computing import (
    FLIPPED_PRODUCT,
    FLIPPED_SUM,
    FLIPPED_WEIGHT,
    OTHER_TORCH,
    SLOW_KERNEL,
    Plant,
    clock,
    hangs_in_groups,
    hangs_with_the_one_before,
    hung,
    no_torch,
    patched,
    quota,
)


class Fault(NamedTuple):
    plant: Plant
    cause: tuple[str, ...]
    """Any of these is right."""
    whom: str = "node"
    """``node``; ``link`` (from the one before it, to it); ``both`` (it and the one after it); ``absent``; ``cut``; ``nobody``."""
    either_way: bool = False
    """The link may be named in either direction, or both."""


def other(made: Cluster, node: int) -> int:
    """The one after it."""
    return node % made.nodes + 1


def before(made: Cluster, node: int) -> int:
    return (node - 2) % made.nodes + 1


def mtu(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "link", "set", "eth0", "mtu", "1300")
    return {}


def black_hole(made: Cluster, node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        made.ip(number, "link", "set", "eth0", "mtu", "9000")
        run("ip", "link", "set", made.outer(number), "mtu", "9000")
    run("ip", "link", "set", made.bridge, "mtu", "9000")
    run("ip", "link", "set", made.outer(node), "mtu", "1500")
    return {}


def one_way(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, f"ip saddr {made.address(before(made, node))} drop")
    return {}


def both_ways(made: Cluster, node: int) -> dict[str, Any]:
    peer = made.address(before(made, node))
    made.drop(node, f"ip saddr {peer} drop", f"ip daddr {peer} drop")
    return {}


def ports_dropped(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "tcp dport 1024-65535 ct state new drop")
    return {}


def ports_refused(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "ct state new tcp dport 1024-65535 reject with tcp reset")
    return {}


def duplicate(made: Cluster, node: int) -> dict[str, Any]:
    twin = other(made, node)
    made.ip(twin, "addr", "add", f"{made.address(node)}/24", "dev", "eth0")
    if shutil.which("arping"):
        subprocess.run(
            ["ip", "netns", "exec", made.space(twin), "arping", "-c1", "-A", "-I", "eth0", made.address(node)],
            capture_output=True,
        )
    return {}


def loss(percent: int) -> Plant:
    def plant(made: Cluster, node: int) -> dict[str, Any]:
        made.drop(node, f"iif eth0 numgen random mod 100 < {percent} drop")
        return {}

    return plant


def narrow(made: Cluster, node: int) -> dict[str, Any]:
    made.inside(node, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "32kbit", "latency", "50ms")
    return {}


def tenth(made: Cluster, node: int) -> dict[str, Any]:
    """One node's port came up with 100 Mbit/s, the others have 1 Gbit/s."""
    for number in range(1, made.nodes + 1):
        rate = "100mbit" if number == node else "1gbit"
        made.inside(
            number, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kbit", "latency", "20ms"
        )
    return {}


def narrow_way(made: Cluster, node: int) -> dict[str, Any]:
    """20 Mbit/s from the one before it to the node, and nowhere else: what is more is dropped."""
    made.drop(node, f"ip saddr {made.address(before(made, node))} limit rate over 2500 kbytes/second burst 64 kbytes drop")
    return {}


def delayed(made: Cluster, node: int, *figures: float) -> dict[str, Any]:
    """``figures``: those of delay_link.py."""
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("needs /dev/net/tun")
    made.ip(node, "link", "set", "eth0", "down")
    made.ip(node, "link", "set", "eth0", "name", "old0")
    made.ip(node, "addr", "flush", "dev", "old0")
    outer = f"jd{os.getpid() % 10000}"
    script = Path(__file__).parents[1] / "delay_link.py"
    words = [sys.executable, str(script), outer, made.bridge, made.space(node), "eth0", *map(str, figures or (0.01,))]
    child = made.stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    made.stack.callback(child.kill)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    made.ip(node, "addr", "add", f"{made.address(node)}/24", "dev", "eth0")
    return {}


def bridge_interface(made: Cluster, node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        made.ip(number, "link", "add", "docker0", "type", "bridge")
        made.ip(number, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        made.ip(number, "link", "set", "docker0", "up")
    return {"env": {node: {"GLOO_SOCKET_IFNAME": "docker0"}}}


def absent_interface(made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"GLOO_SOCKET_IFNAME": "ib7"}}}


def loopback_name(made: Cluster, node: int) -> dict[str, Any]:
    made.table(node, made.hosts.replace(f"{made.address(node)} n{node}\n", f"127.0.1.1 n{node}\n"))
    return {}


def loopback_names(made: Cluster, node: int) -> dict[str, Any]:
    loopback_name(made, node)
    return loopback_name(made, other(made, node))


def no_name(made: Cluster, node: int) -> dict[str, Any]:
    made.table(node, made.hosts.replace(f"{made.address(node)} n{node}\n", ""))
    return {"master": made.address(1)}


def never(made: Cluster, node: int) -> dict[str, Any]:
    return {"skip": ((node, 0),)}


def rank_never(made: Cluster, node: int) -> dict[str, Any]:
    return {"skip": ((node, 1),), "locals_": 2}


def dead_host(made: Cluster, node: int) -> dict[str, Any]:
    run("ip", "link", "set", made.outer(node), "down")
    return {"skip": ((node, 0),)}


def signalled(sig: signal.Signals, late: bool) -> Plant:
    def plant(made: Cluster, node: int) -> dict[str, Any]:
        def during(ranks: Ranks) -> None:
            if late:
                until_worker(ranks, node)
            else:
                time.sleep(0.3)
            ranks.kill(node, sig)

        return {"during": during}

    return plant


def until_worker(ranks: Ranks, node: int, patience_s: float = 40) -> None:
    """The rank has started its worker, which imports torch: the meeting is over, or nearly."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        pid = ranks.pid(node)
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes()
                if b"/proc/self/fd/" in words and f"PPid:\t{pid}\n" in (place / "status").read_text():
                    time.sleep(1)
                    return
            except OSError:
                continue
        time.sleep(0.1)


def link_down(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        run("ip", "link", "set", made.outer(node), "down")

    return {"during": during}


def cut(made: Cluster, node: int) -> dict[str, Any]:
    half = made.nodes // 2
    for number in range(1, made.nodes + 1):
        others = [other for other in range(1, made.nodes + 1) if (other <= half) != (number <= half)]
        made.drop(number, "ip saddr { " + ", ".join(map(made.address, others)) + " } drop")
    return {}


FAULTS = {
    "hung-mount": Fault(hung, ("hung-mount",)),
    "mtu": Fault(mtu, ("mtu-differs-between-nodes",)),
    "mtu-black-hole": Fault(black_hole, ("mtu-black-hole",)),
    "one-way": Fault(one_way, ("link-one-way-drop",), "link"),
    "both-ways": Fault(both_ways, ("port-dropped",), "link", either_way=True),
    "ports-dropped": Fault(ports_dropped, ("port-dropped",)),
    "ports-refused": Fault(ports_refused, ("port-refused",)),
    "duplicate": Fault(duplicate, ("duplicate-address",), "both"),
    "loss-5": Fault(loss(5), ("packet-loss",)),
    "loss-30": Fault(loss(30), ("packet-loss",)),
    "narrow": Fault(narrow, ("narrow-link",)),
    "tenth": Fault(tenth, ("narrow-link",)),
    "narrow-way": Fault(narrow_way, ("narrow-link",), "link"),
    "delay": Fault(delayed, ("link-delay",)),
    "bridge-interface": Fault(bridge_interface, ("nccl-wrong-interface",)),
    "absent-interface": Fault(absent_interface, ("nccl-wrong-interface",)),
    "loopback-name": Fault(loopback_name, ("hostname-resolves-to-loopback",)),
    "loopback-names": Fault(loopback_names, ("hostname-resolves-to-loopback",), "both"),
    "no-name": Fault(no_name, ("hostname-unresolvable",)),
    "never": Fault(never, ("node-never-came",), "absent"),
    "rank-never": Fault(rank_never, ("ranks-missing",)),
    "dead-host": Fault(dead_host, ("node-never-came",), "absent"),
    "stopped": Fault(signalled(signal.SIGSTOP, True), ("rank-stopped",)),
    "stopped-early": Fault(signalled(signal.SIGSTOP, False), ("rank-stopped", "node-never-came")),
    "killed": Fault(signalled(signal.SIGKILL, True), ("rank-killed",)),
    "link-down": Fault(link_down, ("link-down",)),
    "cut": Fault(cut, ("network-partition",), "cut"),
    "clock": Fault(clock, ("clock-skew",)),
    "flipped-product": Fault(patched(FLIPPED_PRODUCT), ("silent-data-corruption",)),
    "flipped-weight": Fault(patched(FLIPPED_WEIGHT), ("silent-data-corruption",)),
    "flipped-sum": Fault(
        patched(FLIPPED_SUM, 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'),
        ("silent-data-corruption",),
    ),
    "hangs-in-groups": Fault(hangs_in_groups, ("straggler-network",)),
    "hangs-with-one": Fault(hangs_with_the_one_before, ("straggler-network",), "link", either_way=True),
    "other-torch": Fault(patched(OTHER_TORCH), ("software-differs-between-nodes",)),
    "no-torch": Fault(no_torch, ("software-differs-between-nodes",)),
    "quota": Fault(quota, ("cpu-quota-on-one-node",)),
    "slow-kernel": Fault(patched(SLOW_KERNEL), ("straggler-compute",)),
}


def named(verdict: dict[str, Any]) -> dict[str, set[str]]:
    """The nodes that a verdict speaks against, with the causes."""
    found = {
        node["node"]: {cause["cause"] for cause in node["causes"] if cause["weight"] == "fatal"}
        for node in verdict["nodes"]
        if node["verdict"] == "no-go"
    }
    for name in verdict["absent"]:
        found.setdefault(name, set())
    return found


def problems(fault: Fault, made: Cluster, node: int, found: Run) -> list[str]:
    """What is wrong with the verdicts; empty where all are right."""
    wrong = [f"left running: {each}" for each in found.left]
    verdicts = {key[0]: told.verdict for key, told in found.told.items() if told.verdict and key[0] != node}
    if not verdicts:
        return [*wrong, "no rank gave a verdict", *(told.errors[-300:] for told in found.told.values())]
    for number, verdict in verdicts.items():
        wrong += [f"by n{number}: {words}" for words in _problems(fault, made, node, verdict)]
    return wrong


def _problems(fault: Fault, made: Cluster, node: int, verdict: dict[str, Any]) -> list[str]:
    blamed, links = named(verdict), {(link["from"], link["to"]): link["cause"] for link in verdict["links"]}
    wanted = {"node": {f"n{node}"}, "absent": {f"n{node}"}, "both": {f"n{node}", f"n{other(made, node)}"}}.get(fault.whom, set())
    wrong = []
    if {*blamed} != wanted:
        wrong.append(f"named {blamed}, not {wanted}")
    wrong += [f"{name}: {causes}" for name, causes in blamed.items() if not causes & {*fault.cause}]
    if fault.whom == "absent" and f"n{node}" not in verdict["absent"]:
        wrong.append("not among the absent")
    ends = (f"n{before(made, node)}", f"n{node}")
    if fault.whom == "link":
        allowed = {ends, ends[::-1]} if fault.either_way else {ends}
        if not links or not {*links} <= allowed or not {*links.values()} <= {*fault.cause}:
            wrong.append(f"links {links}, not {ends}")
    elif fault.whom == "cut":
        if {*links.values()} != {*fault.cause}:
            wrong.append(f"links {links}")
    elif links:
        wrong.append(f"links {links}")
    if verdict["verdict"] != "no-go":
        wrong.append(f"verdict {verdict['verdict']}")
    return wrong
