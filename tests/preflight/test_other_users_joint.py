"""Another user of the host during a joint pre-flight, started in each way: nothing is read, joined or stopped, and no node is left out for what they do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import torchtune_sys
from conftest import exhaustive
from smoke.test_as_another_user import _torch
from smoke.test_other_users import shared, watched
from two_users import SYSTEM_PYTHON, Scene, needs_root, system_minor

pytestmark = [needs_root, pytest.mark.long]
SECRET = "a-secret-of-the-job-4f1c9a"
_PATIENCE_S = 240
_APART = '"$@" -o "$HOME/told.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK}}}" || :'
"""Whatever the verdict: a launcher ends all ranks where one ends with another status."""
_STARTERS = {
    "torchrun": [SYSTEM_PYTHON, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port", "29771"],
    "mpirun": ["mpirun.openmpi", "--oversubscribe", "-n", "2"],
    "mpiexec": ["mpiexec.hydra", "-n", "2"],
}


def tool(scene: Scene) -> list[str]:
    """The program, as alice starts it: these tests' own interpreter may lie where she cannot go."""
    places = [str(Path(module.__file__ or "").parents[1]) for module in (torchtune_sys, msgspec)]
    readable = all(Path(place, name).stat().st_mode & 4 for place in places for name in ("", *map(str, Path(place).parents)))
    if system_minor() != ".".join(map(str, sys.version_info[:2])) or not readable:
        pytest.skip("another user cannot read this program, or has no Python for it")
    text = f"import sys\nsys.path[:0] = {places!r}\nfrom torchtune_sys.cli.main import main\nmain()\n"
    return [SYSTEM_PYTHON, "-I", str(scene.alice.write(scene.alice.home / "tool.py", text))]


def verdicts(scene: Scene, name: str, temporary: Path, **more: str) -> list[dict[str, Any]]:
    """What each of alice's two ranks was told."""
    policy = scene.alice.write(scene.alice.home / "policy.toml", 'warning = ["error"]\n')
    words = [*tool(scene), "preflight", "--level", "standard", "--format", "json", "--python", SYSTEM_PYTHON]
    rest = [*words, "--policy", str(policy), "--budget", "90"]
    env = {"PATH": os.environ["PATH"], "HOME": str(scene.alice.home), "TMPDIR": str(temporary), "PYTHONPATH": str(_torch())}
    env |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29781", **more}
    if shutil.which(_STARTERS[name][0]) is None:
        pytest.skip(f"{_STARTERS[name][0]} is not installed")
    argv = [*_STARTERS[name], "sh", "-c", _APART, "-", *rest]
    done = scene.alice.run(argv, env=env, cwd=scene.alice.home, timeout=_PATIENCE_S)
    files = sorted(scene.alice.home.glob("told.*"))
    assert len(files) == 2, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("name", ["mpirun", *exhaustive("torchrun", "mpiexec")])
def test_another_user_gets_nothing_and_nobody_is_left_out(scene: Scene, name: str) -> None:
    temporary = shared(scene.folder)
    with watched(scene, temporary, secret=SECRET, attacks=True) as told:
        found = verdicts(scene, name, temporary, TORCHTUNE_SYS_JOB_SECRET=SECRET)
    assert told["got"] == {}
    assert told["tried"]["port"] > 2 and told["tried"]["speak"] and told["tried"]["cmdline"], told
    print(
        f"tried {told['tried']}, keys that he saw in stores: {len(told['stolen'])}, verdicts {[each['verdict'] for each in found]}"
    )
    for verdict in found:
        assert {node["verdict"] for node in verdict["nodes"]} <= {"go", "unknown"}, verdict
        assert not verdict["links"] and not verdict["absent"], verdict
