"""A Slurm of many nodes on this machine's loopback: one slurmctld, and a slurmd for each node that is to live."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slurm_here import NEEDED, SBIN, Unavailable, configure, start, start_munge, wait


@contextmanager
def cluster(root: Path, names: Sequence[str], dead: Sequence[str], unnoticed: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """The variables with which srun finds it. ``unnoticed``: their slurmd is gone, and Slurm still calls them idle. Raises Unavailable."""
    missing = [tool for tool in NEEDED if shutil.which(tool, path=SBIN) is None]
    if missing or os.geteuid() != 0:
        raise Unavailable(f"needs root and {', '.join(missing) or 'nothing else'}")
    env = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(root / "slurm.conf")}
    _configure(root, names)
    with ExitStack() as stack:
        start_munge(stack, root, env)
        start(stack, root, env, "slurmctld", ["slurmctld"])
        living = [name for name in names if name not in dead]
        for name in living:
            start(stack, root, env, f"slurmd.{name}", ["slurmd", "-N", name])
        asked = ["sinfo", "-h", "-N", "-n", ",".join(living), "-o", "%T"]
        wait(root, lambda: subprocess.run(asked, env=env, capture_output=True, text=True, timeout=30).stdout, len(living))
        for name in dead:
            subprocess.run(
                ["scontrol", "update", f"nodename={name}", "state=down", "reason=died"], env=env, check=True, timeout=30
            )
        for name in unnoticed:
            os.kill(int((root / f"slurmd.{name}.pid").read_text()), 9)
        yield {"PATH": SBIN, "SLURM_CONF": env["SLURM_CONF"]}


def _configure(root: Path, names: Sequence[str]) -> None:
    host = os.uname().nodename
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(len(names) + 1)]
        for listener in bound:
            listener.bind(("127.0.0.1", 0))
        ports = [listener.getsockname()[1] for listener in bound]
    lines = [
        f"{name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2" for name, port in zip(names, ports[1:], strict=True)
    ]
    more = "".join(f"NodeName={line} RealMemory=1000 Gres=gpu:2 State=UNKNOWN\n" for line in lines[1:])
    configure(root, "task/none", f"{host}(127.0.0.1)", ports[0], lines[0], f"{more}PropagateResourceLimits=NONE\n")
