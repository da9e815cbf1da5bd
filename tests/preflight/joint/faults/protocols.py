"""Faults of IPv6 and of addresses, of limits, and of jobs beside each other: what each verdict on them must name."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from preflight.joint.cluster import TOOL, Cluster, Ranks, preflight, run
from preflight.joint.faults import other, until_worker
from preflight.joint.faults.computing import SKEW, patched, within
from preflight.joint.faults.expected import Expected, Fault, Verdict
from preflight.joint.faults.hosts import ILLEGAL, agent_killed
from preflight.joint.faults.network import both_protocols, go, node_with
from preflight.joint.faults.switches import only_v6
from smoke.faults.bench import torch_python


def v6_loss(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "iif eth0 meta nfproto ipv6 numgen random mod 100 < 10 drop")
    return only_v6(made, node)


def v6_crash(made: Cluster, node: int) -> dict[str, Any]:
    return {**only_v6(made, node), **patched(ILLEGAL)(made, node)}


def v6_dropped(made: Cluster, node: int) -> dict[str, Any]:
    opened = "iif lo accept; ct state established,related accept; tcp dport 29711-29714 accept; meta l4proto ipv6-icmp accept"
    made.drop(node, f"{opened}; meta nfproto ipv6 ct state new drop")
    return only_v6(made, node)


def v6_own_name(made: Cluster, node: int) -> dict[str, Any]:
    only_v6(made, node)
    place = made.folder / f"hosts{node}"
    place.write_text(place.read_text().replace(f"fd00:78::{node} n{node}\n", f"::1 n{node}\n"))
    return {"master": "fd00:78::1"} if node == 1 else {}


def v6_alone(made: Cluster, node: int) -> dict[str, Any]:
    only_v6(made, node)
    for number in range(1, made.nodes + 1):
        made.ip(number, "-4", "addr", "flush", "dev", "eth0")
    return {}


def no_v6(made: Cluster, node: int) -> dict[str, Any]:
    both_protocols(made, node)
    made.inside(node, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    return {}


def source_address(made: Cluster, node: int) -> dict[str, Any]:
    own = f"10.78.0.{100 + node}"
    made.ip(node, "addr", "add", f"{own}/24", "dev", "eth0")
    made.ip(node, "route", "change", "10.78.0.0/24", "dev", "eth0", "src", own)
    for number in range(1, made.nodes + 1):
        if number != node:
            made.ip(number, "route", "add", "blackhole", f"{own}/32")
    return {}


def arp_unanswered(made: Cluster, node: int) -> dict[str, Any]:
    rules = "table arp joint { chain i { type filter hook input priority 0; arp operation request drop; }; }\n"
    made.inside(node, "nft", "-f", "-", text=rules)
    return {}


def stale_name(made: Cluster, node: int) -> dict[str, Any]:
    one = other(made, node)
    stale = f"{made.address(other(made, one))} n{one}\n"
    made.table(node, made.hosts.replace(f"{made.address(one)} n{one}\n", stale))
    return {}


def no_threads(made: Cluster, node: int) -> dict[str, Any]:
    made.folder.chmod(0o755)
    may_read = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *may_read)
    return {"tools": {node: ("prlimit", "--nproc=3", *user, str(TOOL))}}


def memory_high(made: Cluster, node: int) -> dict[str, Any]:
    old = Path("/sys/fs/cgroup/memory")
    place = (old if old.is_dir() else old.parent) / f"joint-{os.getpid()}"
    try:
        place.mkdir()
        (place / ("memory.limit_in_bytes" if old.is_dir() else "memory.high")).write_text(str(200 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    return within(made, node, place)


def secret_differs(made: Cluster, node: int) -> dict[str, Any]:
    secrets = {number: "beta" if number == node else "alpha" for number in range(1, made.nodes + 1)}
    return {"env": {number: {"TORCHTUNE_SYS_JOB_SECRET": secret} for number, secret in secrets.items()}}


def coordinator_killed(made: Cluster, node: int) -> dict[str, Any]:
    during = agent_killed(made, node)["during"]

    def later(ranks: Ranks) -> None:
        until_worker(ranks, node)
        time.sleep(1)
        during(ranks)

    return {"during": later}


def nccl_differs(_made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"NCCL_PROTO": "Simple", "NCCL_IB_DISABLE": "1"}}}


def _of_nccl(_made: Cluster, node: int) -> Expected:
    def also(verdict: Verdict) -> list[str]:
        told = {cause["cause"] for each in verdict["nodes"] if each["node"] == f"n{node}" for cause in each["causes"]}
        return [] if "environment-differs-between-nodes" in told else [f"n{node}: {sorted(told)}"]

    return Expected(("environment-differs-between-nodes",), may=(f"n{node}",), verdicts=("go", "no-go"), bad=(node,), also=also)


def two_jobs(made: Cluster, _node: int) -> dict[str, Any]:
    beside: list[str] = []

    def second() -> None:
        found = preflight(made, torch_python(), port=29811, tag="second")
        beside.extend(verdict["verdict"] for verdict in found.verdicts())

    def during(_ranks: Ranks) -> None:
        other_job = threading.Thread(target=second)
        other_job.start()
        other_job.join()
        assert beside == ["go"] * made.nodes, beside

    return {"during": during}


def second_network(made: Cluster, _node: int) -> dict[str, Any]:
    for number in range(1, made.nodes + 1):
        outer = made.outer(number).replace("jv", "jw")
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth1", "netns", made.space(number))
        run("ip", "link", "set", outer, "master", made.bridge, "up")
        made.ip(number, "link", "set", "eth1", "up")
        made.ip(number, "addr", "add", f"10.78.0.{200 + number}/24", "dev", "eth1")
    return {}


STEP = SKEW.replace("now->tv_sec += 300", "(now->tv_nsec -= step()) < 0 && (now->tv_nsec += 1000000000, now->tv_sec--)").replace(
    "int clock_gettime",
    """static long step(void) {
  static time_t began;
  struct timespec own;
  clock_gettime(CLOCK_MONOTONIC, &own);
  if (!began) began = own.tv_sec;
  return own.tv_sec > began + 5 ? 400000000 : 0;
}
int clock_gettime""",
)


def time_warp(made: Cluster, node: int) -> dict[str, Any]:
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    (made.folder / "step.c").write_text(STEP)
    library = str(made.folder / "step.so")
    run("cc", "-shared", "-fPIC", "-o", library, str(made.folder / "step.c"), "-ldl")
    return {"env": {node: {"LD_PRELOAD": library}}}


def _of_memory(_made: Cluster, node: int) -> Expected:
    return Expected(may=(f"n{node}",), verdicts=("go", "no-go"), bad=(node,))


_CUT = ("port-dropped", "link-one-way-drop")

FAULTS = {
    "v6-loss": Fault(v6_loss, node_with("packet-loss"), 3),
    "v6-crash": Fault(v6_crash, node_with("software-differs-between-nodes", "rank-killed", words=("SIGILL",))),
    "v6-dropped": Fault(v6_dropped, node_with("port-dropped"), 1, held=True),
    "v6-own-name": Fault(v6_own_name, node_with("hostname-resolves-to-loopback"), 3, held=True),
    "source-address": Fault(source_address, node_with(*_CUT, "nccl-wrong-interface"), 4),
    "arp-unanswered": Fault(arp_unanswered, node_with(*_CUT, "node-never-came"), 1),
    "stale-name": Fault(stale_name, node_with(), 4),
    "no-threads": Fault(no_threads, node_with(verdicts=("no-go", "unknown")), 1, held=True),
    "memory-high": Fault(memory_high, _of_memory, 4),
    "secret-differs": Fault(
        secret_differs, node_with("node-never-came", "environment-differs-between-nodes", words=("secret",)), 1, held=True
    ),
    "coordinator-killed": Fault(coordinator_killed, node_with("rank-killed")),
    "nccl-differs": Fault(nccl_differs, _of_nccl, 4),
    "v6-alone": Fault(v6_alone, go),
    "two-jobs": Fault(two_jobs, go, held=True),
    "second-network": Fault(second_network, go),
    "no-v6": Fault(no_v6, go, 3, held=True),
    "time-warp": Fault(time_warp, go),
}
