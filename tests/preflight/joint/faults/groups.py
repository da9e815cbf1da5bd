"""``check_group`` called more than once, in groups that overlap (docs/preflight-faults.md).

PYTHONPATH=tests python -m preflight.joint.faults.groups [NAME...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from preflight.joint.agents_here import environment
from preflight.joint.cluster import Cluster, cluster
from preflight.joint.faults.computing import FLIPPED_SUM
from preflight.joint.group_here import ran

_SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist
from torchtune_sys.preflight import check_group
dist.init_process_group("gloo")
rank, told = dist.get_rank(), []
def check(group=None):
    found = check_group(group=group, budget_s={budget})
    named = sorted(node.node for node in found.nodes if node.verdict == "no-go")
    told.append([found.verdict.value, named, list(found.absent), [c.seen for n in found.nodes for c in n.causes if c.weight != "warning"]])
WHAT
print(json.dumps({{"told": told}}), flush=True)
time.sleep(1)
os._exit(0)
"""


class Checks(NamedTuple):
    """``what`` is done between two checks or around them; ``wanted``: by rank the verdict of each check, and whom it names."""

    what: str
    wanted: dict[int, list[tuple[str, list[str]]]]


_GO: tuple[str, list[str]] = ("go", [])
_HALVES = "halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]\n"
_AGAIN = f"""check()
if rank == 2:
    exec({FLIPPED_SUM!r})
    plant(torch)
check()""".replace("{", "{{").replace("}", "}}")
FAULTS = {
    "check-again": Checks(_AGAIN, {rank: [_GO, ("no-go", ["n3"])] for rank in range(4)}),
    "halves": Checks(_HALVES + "check(halves[rank // 2])\ncheck()", {rank: [_GO, _GO] for rank in range(4)}),
    "one-half": Checks(
        _HALVES + "if rank < 2:\n    check(halves[0])\ncheck()",
        {0: [_GO, _GO], 1: [_GO, _GO], 2: [_GO], 3: [_GO]},
    ),
}
"""*one-half* came beside the list, from reading the code."""


def wrong(made: Cluster, python: Path, checks: Checks, budget_s: float = 20) -> list[str]:
    """What is wrong with what the ranks were told."""
    found = ran(made, python, budget_s=budget_s, text=_SCRIPT.replace("WHAT", checks.what))
    said = {number - 1: told.get("told", found.errors[number][-300:]) for number, told in found.told.items()}
    return [
        f"rank {rank}: {said.get(rank)}"
        for rank, wanted in checks.wanted.items()
        if [tuple(each[:2]) for each in said.get(rank, "")] != wanted
    ]


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        python = environment(Path(place))
        for name in names or FAULTS:
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), 4) as made:
                row = {"fault": name, "wrong": wrong(made, python, FAULTS[name])}
            print(
                json.dumps({**row, "seconds": round(time.monotonic() - began_s), "load": round(os.getloadavg()[0], 1)}),
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
