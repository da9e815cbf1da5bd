"""Runs of the faults of network.py, switches.py, protocols.py, tcp.py, hosts.py, late.py and wrong_results.py, listed in docs/joint-faults.md, one line of JSON each. From the repository's root:

    PYTHONPATH=tests python -m preflight.joint.faults opened|held|NAME... [--nodes N] [--show]

``--show`` prints the page of a node that is not the bad one. TORCHTUNE_SYS_TEST_TORCH names a Python that has torch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from preflight.joint.cluster import Run, cluster, preflight
from preflight.joint.faults import hosts, late, network, protocols, switches, tcp, wrong_results
from preflight.joint.faults.expected import problems
from smoke.faults.bench import torch_python

BUDGET_S = 60.0
FAULTS = {
    **network.FAULTS,
    **switches.FAULTS,
    **protocols.FAULTS,
    **tcp.FAULTS,
    **hosts.FAULTS,
    **wrong_results.FAULTS,
    **late.FAULTS,
}


def planted(name: str, nodes: int = 4, place: int | None = None) -> tuple[list[str], Run]:
    """What is wrong with the verdicts on one fault."""
    fault = FAULTS[name]
    at = place or fault.place
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), nodes) as made:
        found = preflight(made, torch_python(), **{"budget_s": BUDGET_S, **fault.plant(made, at)})
        return problems(fault.expected(made, at), found), found


def _row(name: str, nodes: int, is_shown: bool) -> dict[str, Any]:
    try:
        wrong, found = planted(name, nodes)
    except pytest.skip.Exception as why:
        return {"fault": name, "skipped": str(why)}
    too_late = [f"{found.seconds:.0f} s"] if found.seconds > BUDGET_S + 10 else []
    row = {"fault": name, "wrong": wrong + too_late, "seconds": round(found.seconds, 1), "load": round(os.getloadavg()[0], 1)}
    return {**row, "told": [each.verdict for each in found.told.values()]} if is_shown else row


def main(words: list[str]) -> None:
    nodes = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 4
    is_shown = "--show" in words
    names = [word for word in words if word in FAULTS]
    for name in names or [name for name, fault in FAULTS.items() if fault.held == ("held" in words)]:
        print(json.dumps(_row(name, nodes, is_shown)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
