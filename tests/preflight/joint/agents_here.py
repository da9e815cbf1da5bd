"""torchrun on hosts of a cluster, with this package installed beside torch, as a person installs it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import torchtune_sys
from preflight.joint.cluster import Cluster
from smoke.faults.bench import torch_python

PORT = 29400
TRAINS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(f"trained as {dist.get_rank()} of {int(one)}, start {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
TELLS = """
import os
env = os.environ
print(f"trained as {env['RANK']} of {env['WORLD_SIZE']}, start {env['TORCHELASTIC_RESTART_COUNT']}", flush=True)
"""
"""Without torch: what torchrun's rendezvous agreed on."""


class Agent(NamedTuple):
    """How one torchrun ended."""

    status: int
    out: str
    errors: str
    seconds: float

    @property
    def trained(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("trained")]

    @property
    def told(self) -> str:
        """What we said in it."""
        return "\n".join(line for line in self.errors.splitlines() if line.startswith("torchtune-sys:"))


def environment(folder: Path) -> Path:
    """The Python of a virtual environment with torch, and with the distribution's entry points as pyproject.toml has them."""
    torch = Path(torch_python())
    told = "import sys, importlib.util as found; print('%d.%d' % sys.version_info[:2], *found.find_spec('torch').submodule_search_locations)"
    found = subprocess.run([str(torch), "-c", told], capture_output=True, text=True, timeout=120, check=True).stdout.split()
    if found[0] != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("torch's Python is another than ours")
    made = folder / "beside-torch"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=120)
    (site,) = made.glob("lib/python*/site-packages")
    info = site / f"torchtune_sys-{torchtune_sys.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchtune-sys\nVersion: {torchtune_sys.__version__}\n")
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    points = re.search(r'\[project\.entry-points\."torchrun\.handlers"\]\n((?:.+\n)+)', project)
    assert points is not None, "pyproject.toml names no handler"
    (info / "entry_points.txt").write_text("[torchrun.handlers]\n" + points[1].replace('"', ""))
    needed = importlib.util.find_spec("msgspec")
    assert needed is not None and needed.origin is not None
    places = dict.fromkeys((Path(torchtune_sys.__path__[0]).parent, Path(found[1]).parent, Path(needed.origin).parents[1]))
    (site / "beside.pth").write_text("".join(f"{place}\n" for place in places))
    return made / "bin" / "python"


def torchrun(
    python: Path,
    folder: Path,
    nnodes: str,
    conf: str = "",
    endpoint: str = f"n1:{PORT}",
    *,
    backend: str = "torchtune-sys",
    restarts: int = 0,
    script: str = TELLS,
) -> list[str]:
    """The command of one agent. This machine's own findings are none of the test's."""
    policy = folder / "policy.toml"
    if not policy.exists():
        policy.write_text('warning = ["error"]\n')
    program = folder / "train.py"
    program.write_text(script)
    words = [
        str(python),
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        backend,
        "--rdzv-id",
        "here",
        "--rdzv-endpoint",
        endpoint,
    ]
    ours = f"policy={policy}," if backend == "torchtune-sys" else ""
    words += ["--rdzv-conf", f"{ours}join_timeout=60,last_call_timeout=3{conf and ',' + conf}"]
    return [*words, "--nnodes", nnodes, "--max-restarts", str(restarts), "--nproc-per-node", "1", str(program)]


def unproven(words: list[str]) -> list[str]:
    """The command on a host that never trained: what this machine's last training found is none of the test's."""
    return [
        "sh",
        "-c",
        '[ ! -d /var/lib/torchtune-sys ] || mount -t tmpfs -o mode=0755 none /var/lib/torchtune-sys; exec "$@"',
        "-",
        *words,
    ]


def ran(
    made: Cluster,
    commands: Mapping[int, list[str]],
    folder: Path,
    *,
    env: Mapping[int, Mapping[str, str]] | None = None,
    after: Mapping[int, Callable[[], bool]] | None = None,
    outer: Mapping[int, list[str]] | None = None,
    unheard: Collection[int] = (),
    patience_s: float = 150,
) -> dict[int, Agent]:
    """Each agent on its host, started together but for those that come ``after`` something. Of the ``unheard`` nobody waits for the end."""
    usual = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    running: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
    for number, words in sorted(commands.items(), key=lambda item: item[0] in (after or {})):
        until_s = time.monotonic() + patience_s
        while number in (after or {}) and not (after or {})[number]() and time.monotonic() < until_s:
            time.sleep(0.1)
        given = {**usual, **(env or {}).get(number, {})}
        with open(folder / f"out{number}", "wb") as out, open(folder / f"err{number}", "wb") as err:
            child = subprocess.Popen(
                [*(outer or {}).get(number, []), *made.argv(number, unproven(words))],
                env=given,
                cwd=folder,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        made.stack.callback(child.wait)
        made.stack.callback(child.kill)
        running[number] = (child, time.monotonic())
    found: dict[int, Agent] = {}
    until_s = time.monotonic() + patience_s
    while not {*running} - {*unheard} <= {*found} and time.monotonic() < until_s:
        for number, (child, since_s) in running.items():
            if number not in found and child.poll() is not None:
                said, errors = ((folder / f"{name}{number}").read_text(errors="replace") for name in ("out", "err"))
                found[number] = Agent(child.returncode, said, errors, time.monotonic() - since_s)
        time.sleep(0.05)
    missing = {number: (folder / f"err{number}").read_text()[-800:] for number in running if number not in {*found, *unheard}}
    assert not missing, missing
    return found
