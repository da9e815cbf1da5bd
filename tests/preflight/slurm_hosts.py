"""A Slurm of several nodes on one machine: each slurmd in a host name, mounts and a network of its own, with a second link for data.

All of it, the controller and its switches too, lies in one network namespace: the live host has no interface more, and addresses are free.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
import slurm_here
from slurm_here import SBIN, Unavailable

__all__ = ["Cluster", "Unavailable", "cluster"]

CONTROL, DATA = "10.77.0", "10.78.0"
_PORT = 17000


class Cluster:
    """Nodes ``tt1`` … and the controller ``ttctl``."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.nodes = root, [f"tt{number}" for number in range(1, count + 1)]
        self.places: dict[str, int] = {}
        """By name the process that holds the namespaces."""
        self.env = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(root / "slurm.conf")}

    def at(self, node: str, *argv: str | Path) -> list[str]:
        """The command that runs ``argv`` on a node, or on ``ttctl``."""
        return ["nsenter", "-t", str(self.places[node]), "--net", "--uts", "--mount", *map(str, argv)]

    def run(self, *argv: str | Path, node: str = "ttctl", timeout_s: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.at(node, *argv), env={**self.env, **env}, cwd="/", capture_output=True, text=True, timeout=timeout_s
        )

    def shell(self, node: str, text: str) -> None:
        """Change something on a node."""
        done = self.run("sh", "-ec", text, node=node)
        if done.returncode:
            raise Unavailable(f"{node}: {done.stderr.strip()[-300:]}")

    def states(self) -> str:
        return self.run("sinfo", "-h", "-N", "-o", "%T").stdout

    def drained(self) -> dict[str, str]:
        """The reasons of the nodes that are out of service, by node."""
        rows = (
            row.partition("|") for row in self.run("sinfo", "-h", "-N", "-t", "drain,drng", "-o", "%N|%E").stdout.splitlines()
        )
        return {node: reason for node, _, reason in rows}

    def resume(self) -> None:
        """Take all nodes back into service, until all are idle: an Epilog or a repeated report of slurmd's may drain one once more."""
        for _ in range(600):
            for node in self.drained():
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
            if self.states().split() == ["idle"] * len(self.nodes):
                return
            time.sleep(0.1)
        raise Unavailable(f"the nodes are {self.states().split()}")


@contextmanager
def cluster(root: Path, count: int, more: str = "") -> Iterator[Cluster]:
    """``count`` nodes; ``more``: lines of slurm.conf, where {root} stands for the directory. Raises Unavailable."""
    tools = (*slurm_here.NEEDED, "ip", "unshare", "nsenter")
    missing = [tool for tool in tools if shutil.which(tool, path=SBIN) is None]
    if missing or os.geteuid() != 0:
        raise Unavailable(f"needs root and {', '.join(missing) or 'nothing else'}")
    found = Cluster(root, count)
    nodes = f"tt[1-{count}] NodeAddr={CONTROL}.[1-{count}] Port={_PORT + 1} CPUs=2"
    slurm_here.configure(root, "task/none", f"ttctl({CONTROL}.254)", _PORT, nodes, more)
    with ExitStack() as stack:
        _place(stack, found, "ttctl", [])
        found.shell("ttctl", "".join(_switch(name, net) for name, net in (("control", CONTROL), ("data", DATA))))
        hosts = "".join(f"{CONTROL}.{number} {node}\n" for number, node in enumerate(found.nodes, 1))
        (root / "hosts").write_text(f"127.0.0.1 localhost\n{CONTROL}.254 ttctl\n{hosts}")
        for number, node in enumerate(found.nodes, 1):
            _place(stack, found, node, found.at("ttctl"))
            pid = found.places[node]
            found.shell("ttctl", _cable("control", 0, number, pid) + _cable("data", 1, number, pid))
            found.shell(
                node,
                f"ip link set lo up; ip addr add {CONTROL}.{number}/24 dev eth0; ip link set eth0 up; "
                f"ip addr add {DATA}.{number}/24 dev eth1; ip link set eth1 up; mkdir {root}/cgroup.{node}; "
                f"mount --rbind /sys/fs/cgroup {root}/cgroup.{node}; mount -t sysfs none /sys; mount -t tmpfs none /run; "
                f"mount --rbind {root}/cgroup.{node} /sys/fs/cgroup; "
                "[ ! -d /var/lib/torchtune-sys ] || mount -t tmpfs -o mode=0755 none /var/lib/torchtune-sys; "  # what this machine proved is none of theirs
                f"cp {root}/hosts {root}/hosts.{node}; mount --bind {root}/hosts.{node} /etc/hosts; hostname {node}",
            )
        found.shell("ttctl", f"ip link set lo up; mount --bind {root}/hosts /etc/hosts; hostname ttctl")
        slurm_here.start_munge(stack, root, found.env)
        slurm_here.start(stack, root, found.env, "slurmctld", found.at("ttctl", "slurmctld"))
        for node in found.nodes:
            slurm_here.start(stack, root, found.env, f"slurmd.{node}", found.at(node, "slurmd", "-N", node))
        slurm_here.wait(root, found.states, count)
        yield found


def _place(stack: ExitStack, found: Cluster, name: str, inside: list[str]) -> None:
    """Namespaces of its own, which a process holds until the end of the stack."""
    ready = "echo; exec sleep infinity"
    argv = [*inside, "unshare", "--net", "--uts", "--mount", "--propagation", "private", "sh", "-c", ready]
    holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end() -> None:
        holder.kill()
        holder.communicate()

    stack.callback(end)
    assert holder.stdout is not None
    if holder.stdout.readline() != "\n":
        raise Unavailable(f"namespaces: {holder.communicate()[1].strip()[-200:]}")
    found.places[name] = holder.pid


def _switch(name: str, net: str) -> str:
    return f"ip link add {name} type bridge; ip addr add {net}.254/24 dev {name}; ip link set {name} up; "


def _cable(switch: str, port: int, number: int, pid: int) -> str:
    end = f"{switch}{number}"
    return f"ip link add {end} type veth peer name eth{port} netns {pid}; ip link set {end} master {switch} up; "
