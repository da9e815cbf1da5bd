"""A cluster of network namespaces on one bridge: each is a host of its own name, with its own table of hosts, on which ranks are started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_GROUPS = "[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null;"
if Path("/sys/fs/cgroup/cpu").is_dir():
    _GROUPS = "mount -t tmpfs none /sys/fs/cgroup; for each in cpu memory; do mkdir /sys/fs/cgroup/$each && mount -t cgroup -o $each none /sys/fs/cgroup/$each 2>/dev/null; done;"
"""ip netns exec mounts a /sys without control groups."""
_NO_FUSE = (
    "while read -r _ place kind _; do case $kind:$place in fuse*:{}/*) ;; fuse*) "
    'umount -l -c -i "$place";; esac; done < /proc/mounts;'
)
"""Hosts have the mounts of this machine: among them those that other tests let hang, but what the cluster's own folder holds is meant."""
_COUNT = itertools.count()
TOOL = Path(sys.executable).with_name("torchtune-sys")
NEEDED = ("ip", "unshare", "mount", "nft", "tc")


class Told(NamedTuple):
    """What one rank printed, and how it ended."""

    node: int
    status: int | None
    text: str
    errors: str
    seconds: float

    @property
    def verdict(self) -> dict[str, Any]:
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Cluster:
    """Hosts are counted from 1: ``n1`` is the first."""

    def __init__(self, folder: Path, nodes: int, stack: ExitStack) -> None:
        self.folder, self.nodes, self.stack = folder, nodes, stack
        tag = f"{os.getpid() % 10000}{next(_COUNT) % 100:02}"  # what the kernel still takes down keeps its name for a while
        self.bridge = f"jb{tag}"
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.hostnames = {number: f"n{number}" for number in range(1, nodes + 1)}
        """What hosts call themselves; the node list has ``names``."""
        self.planted: set[int] = set()
        """Processes that are part of a fault."""
        self._spaces = [f"joint{tag}-{number}" for number in range(1, nodes + 1)]
        self._outer = [f"jv{tag}-{number}" for number in range(1, nodes + 1)]
        self.hosts = "127.0.0.1 localhost\n" + "".join(f"{self.address(n)} n{n}\n" for n in range(1, nodes + 1))
        for number in range(1, nodes + 1):
            self.table(number, self.hosts)

    def address(self, number: int) -> str:
        return f"10.78.0.{number}"

    def table(self, number: int, text: str) -> None:
        """The host's /etc/hosts."""
        (self.folder / f"hosts{number}").write_text(text)

    def space(self, number: int) -> str:
        return self._spaces[number - 1]

    def outer(self, number: int) -> str:
        """The host's port of the switch."""
        return self._outer[number - 1]

    def build(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge", "forward_delay", "0", "stp_state", "0")
        self.stack.callback(subprocess.run, ["ip", "link", "del", self.bridge], check=False, capture_output=True)
        run("ip", "link", "set", self.bridge, "up")
        for number in range(1, self.nodes + 1):
            if subprocess.run(["ip", "netns", "add", self.space(number)], check=False, capture_output=True).returncode:
                pytest.skip("network namespaces are not allowed here")
            self.stack.callback(subprocess.run, ["ip", "netns", "del", self.space(number)], check=False, capture_output=True)
            run("ip", "link", "add", self.outer(number), "type", "veth", "peer", "name", "eth0", "netns", self.space(number))
            run("ip", "link", "set", self.outer(number), "master", self.bridge, "up")
            for interface in ("lo", "eth0"):
                self.ip(number, "link", "set", interface, "up")
            self.ip(number, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")

    def ip(self, number: int, *words: str) -> None:
        run("ip", "-n", self.space(number), *words)

    def inside(self, number: int, *words: str, text: str | None = None) -> None:
        run("ip", "netns", "exec", self.space(number), *words, text=text)

    def drop(self, number: int, into: str = "", out: str = "") -> None:
        """Rules for packets that come to a host, and that leave it."""
        chains = (
            f"chain i {{ type filter hook input priority 0; {into}; }}; chain o {{ type filter hook output priority 0; {out}; }};"
        )
        self.inside(number, "nft", "-f", "-", text=f"table inet joint {{ {chains} }}\n")

    def argv(self, number: int, command: list[str]) -> list[str]:
        hosts = self.folder / f"hosts{number}"
        inside = f'hostname {self.hostnames[number]}; mount --make-rprivate /; {_NO_FUSE.format(self.folder)} mount --bind {hosts} /etc/hosts; {_GROUPS} exec "$@"'
        return ["ip", "netns", "exec", self.space(number), "unshare", "--mount", "--uts", "sh", "-c", inside, "-", *command]


class Ranks:
    """The ranks of one run."""

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        self.files: dict[tuple[int, int], Path] = {}
        self.began_s = time.monotonic()

    def pid(self, number: int, local: int = 0) -> int:
        return self.children[number, local].pid

    def kill(self, number: int, sig: signal.Signals) -> None:
        os.kill(self.pid(number), sig)


def run(*argv: str, text: str | None = None) -> None:
    done = subprocess.run(argv, input=text, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Cluster]:
    """Skips the test where it cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    with ExitStack() as stack:
        made = Cluster(folder, nodes, stack)
        made.build()
        yield made


class Run(NamedTuple):
    told: dict[tuple[int, int], Told]
    seconds: float
    left: list[str]
    """Processes that were still there some seconds after the end."""

    def verdicts(self) -> list[dict[str, Any]]:
        return [each.verdict for each in self.told.values() if each.verdict]


def preflight(
    made: Cluster,
    python: str,
    *,
    env: Mapping[int, Mapping[str, str]] | None = None,
    pythons: Mapping[int, str] | None = None,
    skip: tuple[tuple[int, int], ...] = (),
    locals_: int | Mapping[int, int] = 1,
    budget_s: float = 60,
    nodelist: bool = True,
    during: Callable[[Ranks], None] | None = None,
    outer: Mapping[int, list[str]] | None = None,
    words: tuple[str, ...] = (),
    port: int = 29711,
    master: str = "",
    tool: tuple[str, ...] = (str(TOOL),),
    tools: Mapping[int, tuple[str, ...]] | None = None,
    fatal: tuple[str, ...] = (),
    listed: Sequence[str] = (),
    tag: str = "",
) -> Run:
    """``preflight --level standard`` on every host, all at once, as mpirun would start it. ``fatal``: causes that a host finds alone, and that count; ``listed``: the node list,
    where it is not in the order of the ranks; ``tag``: of a job beside another one."""
    ranks = Ranks()
    mark = f"joint-{os.getpid()}-{time.monotonic_ns()}"
    policy = made.folder / "policy.toml"
    own_causes = json.dumps(["hung-mount", *fatal])
    policy.write_text(f'warning = ["error"]\nfatal = {own_causes}\n')  # this machine's own findings are none of the test's
    hostfile = made.folder / "hostfile"
    hostfile.write_text("".join(f"{name}\n" for name in listed or made.names))
    numbers = range(1, made.nodes + 1)
    counts = {number: locals_ if isinstance(locals_, int) else locals_.get(number, 1) for number in numbers}
    for number in numbers:
        for local in range(counts[number]):
            if (number, local) in skip:
                continue
            rank = sum(counts[before] for before in range(1, number)) + local
            place = {"RANK": rank, "WORLD_SIZE": sum(counts.values()), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": counts[number]}
            own = {"PATH": os.environ["PATH"], "HOME": str(made.folder), "OMP_NUM_THREADS": "1", "JOINT_TEST": mark}
            own.update({name: str(value) for name, value in place.items()})
            own.update(MASTER_ADDR=master or made.names[0], MASTER_PORT=str(port))
            own.update((env or {}).get(number, {}))
            command = [
                *(tools or {}).get(number, tool),
                "preflight",
                "--level",
                "standard",
                "--python",
                (pythons or {}).get(number, python),
            ]
            command += ["--format", "json", "--budget", str(budget_s), "--policy", str(policy), *words]
            command += ["--hostfile", str(hostfile)] if nodelist else []
            argv = [*(outer or {}).get(number, []), *made.argv(number, command)]
            out = made.folder / f"out-{number}-{local}{tag}"
            with out.open("wb") as told, Path(f"{out}.err").open("wb") as errors:
                ranks.children[number, local] = subprocess.Popen(
                    argv, env=own, stdout=told, stderr=errors, start_new_session=True
                )
            ranks.files[number, local] = out
    try:
        if during is not None:
            during(ranks)
        found = _collected(ranks, budget_s + 30)
    finally:
        for child in ranks.children.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    seconds = time.monotonic() - ranks.began_s
    return Run(found, max([each.seconds for each in found.values()], default=seconds), _left(mark, made))


def _collected(ranks: Ranks, patience_s: float) -> dict[tuple[int, int], Told]:
    found: dict[tuple[int, int], Told] = {}
    while len(found) < len(ranks.children) and time.monotonic() - ranks.began_s < patience_s:
        for key, child in ranks.children.items():
            if key not in found and child.poll() is not None:
                out = ranks.files[key]
                errors = Path(f"{out}.err").read_text(errors="replace")
                taken = time.monotonic() - ranks.began_s
                found[key] = Told(key[0], child.returncode, out.read_text(errors="replace"), errors, taken)
        if all(key in found or _is_stopped(child.pid) for key, child in ranks.children.items()):
            break
        time.sleep(0.05)
    return found


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _left(mark: str, made: Cluster, patience_s: float = 6.0) -> list[str]:
    """Processes of the run that do not end by themselves, by what is in their environment, or by their network namespace."""
    until_s = time.monotonic() + patience_s
    spaces = {os.stat(f"/run/netns/{made.space(number)}").st_ino for number in range(1, made.nodes + 1)}
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            if int(place.name) in made.planted:
                continue
            with contextlib.suppress(OSError):
                if os.stat(place / "ns/net").st_ino in spaces or mark.encode() in (place / "environ").read_bytes():
                    found.append(f"{place.name}: {(place / 'cmdline').read_bytes()[:200].decode(errors='replace')}")
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.2)
