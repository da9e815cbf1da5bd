"""Runs by hand, of one, three and four ranks (what is exact with powers of two has tolerances else), and of one that breaks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import exhaustive
from smoke.faults.bench import Bench, torch_python
from smoke.faults.means import patched
from torchtune_sys.smoke.script import source

pytestmark = pytest.mark.long
STAGES = (
    "allreduce",
    "ddp",
    "sampler",
    "accumulate",
    "buffers",
    "sync-batchnorm",
    "join",
    "ddp-amp",
    "fsdp",
    "checkpoint-sharded",
)


@pytest.mark.parametrize("ranks", [1, *exhaustive(3, 4)])
def test_ranks(tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "smoke.py"
    script.write_text(source())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    argv = [torch_python(), str(script), "--device", "cpu", "--nproc-per-node", str(ranks), "--stages", ",".join(STAGES)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    found = re.findall(r"^(pass|fail|na|unknown) +(\S+) +[\d.]+ s", done.stdout, re.MULTILINE)
    verdicts = {stage: verdict for verdict, stage in found if stage in STAGES}
    alone = {**dict.fromkeys(STAGES, "na"), "allreduce": "pass"}
    together = {**dict.fromkeys(STAGES, "pass"), "sync-batchnorm": "na"}
    assert verdicts == (alone if ranks == 1 else together), done.stdout + done.stderr[-2000:]
    assert done.returncode == 0
    assert ("bus bandwidth" in done.stdout) == (ranks > 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("sharded-", "smoke-"))] == []


def test_what_breaks_on_another_rank_than_the_first_is_told(tmp_path: Path) -> None:
    """Its launcher ends the first rank, which would have printed the summary."""
    bench = Bench(tmp_path, torch_python())
    patched(
        """
        import torch
        def broken(*args):
            raise ValueError("broken here")
        torch.nn.BatchNorm1d.forward = broken
        """,
        rank=1,
    )(bench)
    script = tmp_path / "smoke.py"
    script.write_text(source())
    argv = [torch_python(), str(script), "--device", "cpu", "--nproc-per-node", "2", "--stages", "sampler,buffers"]
    done = subprocess.run(argv, env=bench.env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert re.search(r"^fail +buffers .*rank 1: ValueError: broken here$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == 1
