"""Runs of one, three and four ranks: what is exact with powers of two has tolerances else, and one rank has nothing to exchange."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from smoke.faults.bench import torch_python
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


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_ranks(tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "smoke.py"
    script.write_text(source())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    argv = [torch_python(), str(script), "--device", "cpu", "--nproc-per-node", str(ranks), "--stages", ",".join(STAGES)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    found = re.findall(r"^(pass|fail|na|unknown) +(\S+) +[\d.]+ s", done.stdout, re.MULTILINE)
    verdicts = {stage: verdict for verdict, stage in found if stage in STAGES}
    idle = {"sync-batchnorm": "na", **({"allreduce": "na"} if ranks == 1 else {})}
    assert verdicts == {**dict.fromkeys(STAGES, "pass"), **idle}, done.stdout + done.stderr[-2000:]
    assert done.returncode == 0
    assert ("bus bandwidth" in done.stdout) == (ranks > 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("sharded-", "smoke-"))] == []
