"""What a rank's worker does with a task, in the interpreter that has torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from smoke.faults.bench import torch_python
from torchtune_sys.host import scratch
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.preflight.joint.rank import PARTS, SCRIPT
from torchtune_sys.smoke.script import joined


def test_a_store_outlives_its_rank_and_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    """Where another rank of the node speaks for it, too: that rank's process was not known to this one, and the store stayed for a minute."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as speaker,
        scratch.nameless(SCRIPT, joined(PARTS)) as script,
    ):
        env = {"PATH": os.environ["PATH"], "MARK": str(tmp_path)}
        worker = RankWorker((torch_python(), f"/proc/self/fd/{script}"), env, script, None)
        told = worker.ask("1", {"do": "store", "seconds": 50, "speaker": speaker.pid}, 40)
        assert isinstance(told.get("port"), int), told
        worker.end()
        assert _marked(tmp_path), "the store ended with its rank"
        speaker.communicate(b"\n")
        until_s = time.monotonic() + 20
        while _marked(tmp_path):
            assert time.monotonic() < until_s, "the store is still there"
            time.sleep(0.05)


def _marked(folder: Path) -> list[str]:
    """Processes that were started with this mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={folder}\0".encode() in (place / "environ").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found
