"""A Slurm of one node on this machine's loopback, with its own munge, ports, state and two graphics cards that are mere files."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


_PATIENCE_S = 120.0


class Unavailable(Exception):
    """Why there is no Slurm here."""


CONF = """
ClusterName=here
SlurmctldHost={controller}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={plugin}
TaskProlog={root}/task-prolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,nohold_on_prolog_fail
SlurmdParameters=config_overrides
FirstJobId={first_job}
ReturnToService=2
KillWait=2
GresTypes=gpu
NodeName={nodes} RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(root: Path, plugin: str, cpus: int, more: str = "") -> Iterator[dict[str, str]]:
    """The variables with which srun finds it. ``cpus``: as many as Slurm believes; ``more``: lines of slurm.conf. Raises Unavailable."""
    missing = [tool for tool in NEEDED if shutil.which(tool, path=SBIN) is None]
    if missing or os.geteuid() != 0:
        raise Unavailable(f"needs root and {', '.join(missing) or 'nothing else'}")
    env = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(root / "slurm.conf")}
    host = os.uname().nodename
    with ExitStack() as stack:
        ports = [_free_port(stack.enter_context(socket.socket())) for _ in range(2)]
    nodes = f"here NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}"
    configure(root, plugin, f"{host}(127.0.0.1)", ports[0], nodes, more)
    with ExitStack() as stack:
        start_munge(stack, root, env)
        start(stack, root, env, "slurmctld", ["slurmctld"])
        start(stack, root, env, "slurmd.here", ["slurmd", "-N", "here"])
        wait(
            root, lambda: subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, timeout=30).stdout
        )
        yield {"PATH": SBIN, "SLURM_CONF": env["SLURM_CONF"]}


def _free_port(listener: socket.socket) -> int:
    """Below those that the kernel gives to connections: one of them may take a port between its choice here and the daemon's start."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(10_000)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port
    raise Unavailable("no free port from 20000 to 30000")


def write_task_prolog(root: Path, text: str) -> None:
    """What each task runs first."""
    (root / "task-prolog").write_text(text)
    (root / "task-prolog").chmod(0o755)


def configure(root: Path, plugin: str, controller: str, port: int, nodes: str, more: str) -> None:
    """Write slurm.conf, and what it names. ``nodes``: the line of NodeName, as far as nodes differ."""
    write_task_prolog(root, "#!/bin/sh\n")
    for folder in ("state", "spool"):
        (root / folder).mkdir()
    (root / "key").write_bytes(os.urandom(1024))
    (root / "key").chmod(0o600)
    for number in range(2):
        os.mknod(root / f"nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={root}/nvidia[0-1]\n")
    # Ranks of a job meet at a port that its number gives (smoke/worker/identity.py): the first jobs of two clusters must not be both number 1.
    first_job = 1 + 20 * secrets.randbelow(450)
    conf = CONF.format(root=root, controller=controller, port=port, plugin=plugin, nodes=nodes, first_job=first_job)
    (root / "slurm.conf").write_text(conf + more)


def start_munge(stack: ExitStack, root: Path, env: dict[str, str]) -> None:
    munge = ["munged", "--force", f"--key-file={root}/key", f"--socket={root}/munge.socket", f"--pid-file={root}/munged.pid"]
    start(stack, root, env, "munged", [*munge, f"--log-file={root}/munge.log", f"--seed-file={root}/seed"])


def start(stack: ExitStack, root: Path, env: dict[str, str], name: str, argv: list[str]) -> None:
    """Start a daemon that writes its id to ``NAME.pid``, and end it with the stack. Raises Unavailable."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise Unavailable(f"{name}: {(done.stderr or done.stdout).strip()[-300:]}")
    stack.callback(_stop, root / f"{name}.pid")


def _stop(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, 15)
    except (OSError, ValueError):
        return
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, 9)


def wait(root: Path, states: Callable[[], str], nodes: int = 1) -> None:
    """Wait until ``states`` (of sinfo) says idle for each node. Raises Unavailable."""
    said, until_s = "", time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:  # sinfo alone asks a controller that ended for a minute
        said = states()
        if said.split() == ["idle"] * nodes:
            return
        time.sleep(0.1)
    logs = "; ".join(log.read_text()[-300:] for log in sorted(root.glob("slurmd.*.log"))[:2])
    raise Unavailable(f"the nodes are {' '.join(said.split()) or 'silent'}: {logs}")
