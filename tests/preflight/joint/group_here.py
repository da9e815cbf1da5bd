"""A training script of four hosts that checks its own process group, with faults planted before or while it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from preflight.joint.agents_here import unproven
from preflight.joint.cluster import Cluster, cluster
from preflight.joint.faults import loopback_name, mtu
from preflight.joint.faults.computing import FLIPPED_SUM, FLIPPED_WEIGHT, OTHER_TORCH, SLOW_KERNEL, Plant, clock, patched, quota

SCRIPT = """
import json, os, random, sys, time
import torch, torch.distributed as dist
from torchtune_sys.preflight import check_group
dist.init_process_group("gloo")
rank = dist.get_rank()
before = torch.get_rng_state(), torch.get_num_threads()
if {absent}:
    time.sleep(40)
    os._exit(0)
began = time.monotonic()
open(sys.argv[1] + "/begun" + str(rank), "w").write(str(os.getpid()))
found = check_group(budget_s={budget})
told = {{node.node: [[c.cause, c.weight.value, c.seen] for c in node.causes] for node in found.nodes}}
print(json.dumps({{"verdict": found.verdict.value, "nodes": told, "absent": found.absent, "links": [[l.from_, l.to, l.cause] for l in found.links],
    "seconds": time.monotonic() - began, "kept": bool((before[0] == torch.get_rng_state()).all()) and before[1] == torch.get_num_threads()}}), flush=True)
time.sleep(1)
os._exit(0)
"""
HANGING_SUM = """
def plant(torch):
    import time
    import torch.distributed as dist
    def hanging(*words, **named):
        time.sleep(1000)
    dist.all_reduce = hanging
"""
_WITH_SUMS = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'


class Planted(NamedTuple):
    """A fault of a group, and what its verdict must say of whom."""

    cause: tuple[str, ...]
    plant: Plant | None = None
    signalled: signal.Signals | None = None
    absent: bool = False
    chosen: bool = True
    """Whether gloo is told its interface: else it asks for the host's own name."""
    verdict: str = "no-go"


PLANTED = {
    "mtu": Planted(("mtu-differs-between-nodes",), mtu),
    "loopback-name": Planted(("hostname-resolves-to-loopback",), loopback_name, chosen=False),
    "clock": Planted(("clock-skew",), clock),
    "other-torch": Planted(("software-differs-between-nodes",), patched(OTHER_TORCH)),
    "quota": Planted(("cpu-quota-on-one-node",), quota),
    "slow-kernel": Planted(("straggler-compute",), patched(SLOW_KERNEL)),
    "flipped-weight": Planted(("silent-data-corruption",), patched(FLIPPED_WEIGHT)),
    "flipped-sum": Planted(("silent-data-corruption",), patched(FLIPPED_SUM, _WITH_SUMS)),
    "hanging-sum": Planted(("straggler-network",), patched(HANGING_SUM, _WITH_SUMS)),
    "stopped": Planted(("rank-stopped", "node-never-came"), signalled=signal.SIGSTOP),
    "killed": Planted(("rank-stopped", "node-never-came"), signalled=signal.SIGKILL),
    "never-called": Planted(("node-never-came",), absent=True),
}


class Ran(NamedTuple):
    told: dict[int, dict[str, Any]]
    """By the number of the host, what each rank that ended printed."""
    errors: dict[int, str]


def ran(
    made: Cluster, python: Path, fault: Planted | None = None, node: int = 3, budget_s: float = 20, text: str = SCRIPT
) -> Ran:
    """Four ranks, one a host; ``node`` is the one that something is wrong with; ``text``: the training script."""
    extra = fault.plant(made, node) if fault is not None and fault.plant is not None else {}
    script = made.folder / "group.py"
    absent = f"rank == {node - 1}" if fault is not None and fault.absent else "False"
    script.write_text(text.format(absent=absent, budget=budget_s))
    children = {}
    for number in range(1, made.nodes + 1):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(made.folder),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "n1",
            "MASTER_PORT": "29533",
        }
        env |= {
            "RANK": f"{number - 1}",
            "WORLD_SIZE": f"{made.nodes}",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        if fault is not None and not fault.chosen:
            del env["GLOO_SOCKET_IFNAME"]
        env |= extra.get("env", {}).get(number, {})
        words = [*extra.get("outer", {}).get(number, []), str(python), str(script), str(made.folder)]
        with open(made.folder / f"out{number}", "wb") as out, open(made.folder / f"err{number}", "wb") as err:
            children[number] = subprocess.Popen(
                made.argv(number, unproven(words)), env=env, stdout=out, stderr=err, start_new_session=True
            )
        made.stack.callback(children[number].wait)
        made.stack.callback(children[number].kill)
    if fault is not None and fault.signalled is not None:
        _signal(made.folder / f"begun{node - 1}", fault.signalled)
    waited = [n for n in children if n != node or fault is None or (fault.signalled is None and not fault.absent)]
    until_s = time.monotonic() + 90
    while time.monotonic() < until_s and any(children[number].poll() is None for number in waited):
        time.sleep(0.1)
    told = {}
    for number in waited:
        text = (made.folder / f"out{number}").read_text()
        told[number] = json.loads(text) if text.strip() else {}
    return Ran(told, {number: (made.folder / f"err{number}").read_text()[-1500:] for number in children})


def _signal(mark: Path, sig: signal.Signals) -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if mark.exists() and (text := mark.read_text()):
            time.sleep(1.5)
            os.kill(int(text), sig)
            return
        time.sleep(0.05)
    raise AssertionError("the rank did not begin")


def problems(fault: Planted, found: Ran, node: int = 3) -> list[str]:
    """What is wrong with what each rank was told."""
    wrong = []
    for number, told in found.told.items():
        if not told:
            wrong.append(f"n{number} said nothing: {found.errors[number][-300:]}")
            continue
        fatal = {
            name: {cause for cause, weight, _seen in causes if weight != "warning"} for name, causes in told["nodes"].items()
        }
        whom = {f"rank {node - 1}"} if fault.absent else {f"n{node}"}
        whom |= {f"rank {node - 1}"} if fault.signalled else set()  # before it said where it is
        named = {name for name, causes in fatal.items() if causes}
        causes = {cause for name in named for cause in fatal[name]}
        if (
            told["verdict"] != fault.verdict
            or len(named) != 1
            or not named <= whom
            or not causes & {*fault.cause}
            or told["links"]
        ):
            wrong.append(f"n{number}: {told['verdict']} {fatal} {told['links']}")
        if not told["kept"]:
            wrong.append("random numbers or threads are others than before")
    return wrong


if __name__ == "__main__":
    import sys
    import tempfile

    for name in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), 4) as made:
            fault = PLANTED.get(name)
            found = ran(made, Path(sys.argv[1]), fault)
            seconds = [round(told.get("seconds", 0), 1) for told in found.told.values()]
            print(name, os.getloadavg()[0], seconds, problems(fault, found) if fault else found, flush=True)
