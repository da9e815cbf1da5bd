"""Debian machines with systemd and sshd on a network of their own: systemd-nspawn below network namespaces, one bridge between them.

The bridge lies in a namespace, too, in which the controller's programs are started: nothing of it is seen on this host. A machine's root is an overlay over a root that is made once (mmdebstrap) and kept in the cache: what a machine writes stays its own,
and stays over its restarts. /proc/sys/{vm,kernel,fs} and /sys are private copies: what is set there never reaches this host.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAMS = ("mmdebstrap", "systemd-nspawn", "ip", "ssh", "ssh-keygen", "unshare")
PACKAGES = "systemd,systemd-sysv,udev,dbus,openssh-server,python3,python3-venv,iproute2,procps,kmod,sudo"
SETTINGS = {
    "etc/dpkg/dpkg.cfg.d/test": "force-unsafe-io\n",
    "etc/ssh/sshd_config.d/test.conf": "UseDNS no\nMaxStartups 100\nPasswordAuthentication no\n",
    "etc/systemd/system/ssh.service.d/test.conf": "[Service]\nRestart=always\n",
}
NETWORK = "10.79.0"
CONTROLLER = f"{NETWORK}.254"
NOBODY_THERE = f"{NETWORK}.250"
INIT = """#!/bin/sh
# Process 1 until systemd takes over: private copies of what is changed.
mkdir -p /run/proc-sys && mount -t tmpfs none /run/proc-sys && cp -r /machine/proc-sys/. /run/proc-sys/
cat /proc/sys/kernel/random/uuid >/run/proc-sys/kernel/random/boot_id
for name in vm kernel fs; do mount --bind "/run/proc-sys/$name" "/proc/sys/$name"; done
mkdir -p /run/cgroups && mount --rbind /sys/fs/cgroup /run/cgroups
rm -rf /machine/sys && mkdir -p /machine/sys/upper /machine/sys/work
mount -t overlay overlay -o lowerdir=/sys,upperdir=/machine/sys/upper,workdir=/machine/sys/work /sys
mount --rbind /run/cgroups /sys/fs/cgroup
[ -e /machine/hardware ] && . /machine/hardware
umount /run/host/* 2>/dev/null; umount /run/host 2>/dev/null; rm -rf /run/host  # it is judged as a machine, not as a container
exec env -u container -u container_uuid -u container_host_version_id /lib/systemd/systemd systemd.unit=multi-user.target
"""
START = """
for base in systemd unified ''; do
    folder=/sys/fs/cgroup/$base/$1
    [ -w "/sys/fs/cgroup/$base/cgroup.procs" ] && mkdir -p "$folder" && echo $$ >"$folder/cgroup.procs"
done
mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" "$3/root"
mkdir -p /run/systemd/nspawn && mount -t tmpfs none /run/systemd/nspawn
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
code=133 # it asks to be started again
while [ $code = 133 ] || [ -e "$3/again" ]; do
    rm -f "$3/again"
    systemd-nspawn -q --register=no --keep-unit -M "$1" --hostname="$6" --uuid="$5" --network-namespace-path="/run/netns/$1" \\
        --resolv-conf=off --bind="$3/machine:/machine" --console=pipe -D "$3/root" $4 /bin/sh /machine/init
    code=$?
done
"""


class Unavailable(Exception):
    """This machine cannot start others, and why."""


def cached(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchtune-sys-tests" / name


def root(suite: str) -> Path:
    """The suite's root, made where it is not there. Raises Unavailable."""
    lacking = [name for name in PROGRAMS if which(name) is None]
    if lacking or os.geteuid() or os.uname().machine != "x86_64":
        raise Unavailable(f"needs x86-64, root and {', '.join(lacking) or 'nothing else'}")
    place = cached(f"ssh-{suite}")
    if not place.is_dir():
        half = place.with_name(f"{place.name}.{os.getpid()}")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "-q", "--variant=minbase", f"--include={PACKAGES}", suite, str(half), timeout_s=600)
        for name, text in SETTINGS.items():
            half.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
            half.joinpath(name).write_text(text)
        for key in half.glob("etc/ssh/ssh_host_*"):
            key.unlink()
        try:
            half.rename(place)
        except OSError:  # another run was faster
            shutil.rmtree(half, ignore_errors=True)
    return place


@dataclass(frozen=True)
class Controller:
    """The side that connects: where its programs run, and the key that all machines take."""

    namespace: str
    key: Path

    def inside(self, *argv: str) -> list[str]:
        return [which("ip") or "ip", "netns", "exec", self.namespace, *argv]


@dataclass
class Machine:
    """One that runs."""

    name: str
    address: str
    work: Path
    controller: Controller
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def root(self) -> Path:
        """Its whole file system as it sees it, /proc and /sys included."""
        return Path(f"/proc/{self.leader()}/root")

    def leader(self) -> int:
        """Its process 1 as this machine sees it; 0 while it has none."""
        parents = [self.process.pid]
        while parents:
            parent = parents.pop()
            for child in _children(parent):
                with suppress(OSError):
                    status = Path(f"/proc/{child}/status").read_text()
                    if "\nNSpid:" in status and status.partition("\nNSpid:")[2].splitlines()[0].split()[1:] == ["1"]:
                        return child
                parents.append(child)
        return 0

    def ssh(self, command: str, user: str = "root", timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        argv = self.controller.inside(
            "ssh", "-q", "-i", str(self.controller.key), *SSH_OPTIONS, f"{user}@{self.address}", command
        )
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)

    def sh(self, command: str, timeout_s: float = 60) -> str:
        """Run as root, without sshd; what it wrote. Raises AssertionError where it fails."""
        entered = ["nsenter", "-t", str(self.leader()), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"]
        env = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        argv = [*entered, *env, "/bin/sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def is_up(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            return self.ssh("true", timeout_s=10).returncode == 0
        return False

    def restart(self) -> None:
        """End all its processes at once, as a power cut would, and start it again from its disk."""
        before = self.boot()
        (self.work / "again").touch()
        os.kill(self.leader(), signal.SIGKILL)
        until(lambda: self.boot() not in ("", before), 300)
        until(self.is_up, 300)

    def boot(self) -> str:
        """The id of its present start; empty while it has none."""
        with suppress(OSError):
            return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()
        return ""


SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes"),
)


@contextmanager
def machines(work: Path, suites: Mapping[str, str], options: str = "") -> Iterator[tuple[Controller, dict[str, Machine]]]:
    """Machines by name, each of its suite, up and reachable by ssh as root. Skips the test where that cannot be."""
    try:
        roots = {suite: root(suite) for suite in dict.fromkeys(suites.values())}
        work = Path(tempfile.mkdtemp(prefix="machines-", dir=work))  # an earlier module of this run has its own
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(work / "key"))
    except Unavailable as why:
        pytest.skip(f"machines with sshd: {why}")
    prefix = f"ttansible{os.getpid()}"
    with ExitStack() as stack:
        controller = Controller(f"{prefix}.0", work / "key")
        try:
            stack.enter_context(_network(controller, [f"{prefix}.{number + 1}" for number in range(len(suites))]))
        except Unavailable as why:
            pytest.skip(f"machines with sshd: {why}")
        made = {}
        for number, (name, suite) in enumerate(suites.items(), 1):
            place = (f"{prefix}.{number}", f"{NETWORK}.{number}")
            made[name] = stack.enter_context(_machine(work, name, place, controller, roots[suite], options))
        for one in made.values():
            until(one.is_up, 300)
        yield controller, made


@contextmanager
def _network(controller: Controller, names: list[str]) -> Iterator[None]:
    """A bridge that the controller's namespace has an address on, and a namespace with one link to it for each name."""
    at = ("ip", "-n", controller.namespace)
    try:
        run("ip", "netns", "add", controller.namespace)
        for words in ("link set lo up", "link add br0 type bridge", f"address add {CONTROLLER}/24 dev br0", "link set br0 up"):
            run(*at, *words.split())
        for number, name in enumerate(names, 1):
            run("ip", "netns", "add", name)
            run(*at, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run(*at, "link", "set", f"port{number}", "master", "br0", "up")
            for words in ("link set lo up", f"address add {NETWORK}.{number}/24 dev eth0", "link set eth0 up"):
                run("ip", "-n", name, *words.split())
        yield
    finally:
        for name in (*names, controller.namespace):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def _machine(
    work: Path, name: str, place: tuple[str, str], controller: Controller, base: Path, options: str
) -> Iterator[Machine]:
    """``place`` is its namespace, after which its control group is called, too, and its address."""
    own = work / name
    namespace, address = place
    for folder in ("upper/root/.ssh", "work", "root", "machine/proc-sys"):
        (own / folder).mkdir(parents=True)
    (own / "upper/root").chmod(0o700)
    (own / "upper/root/.ssh").chmod(0o700)
    shutil.copy(controller.key.with_suffix(".pub"), own / "upper/root/.ssh/authorized_keys")
    (own / "upper/etc/ssh").mkdir(parents=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "upper/etc/ssh/ssh_host_ed25519_key"))
    (own / "upper/etc/hostname").write_text(f"{name}\n")
    (own / "upper/etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    (own / "machine/init").write_text(INIT)
    _copy_settings(own / "machine/proc-sys")
    with (own / "console").open("wb") as console:
        words = ["bash", "-c", START, "bash", namespace, str(base), str(own), options, uuid.uuid4().hex, name]
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", *words],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    made = Machine(name, address, own, controller, process)
    try:
        yield made
    finally:
        leader = made.leader()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if leader:
            with suppress(ProcessLookupError):
                os.kill(leader, signal.SIGKILL)
        process.wait()
        with suppress(TimeoutError):
            until(lambda: _is_tidy(namespace), 30)


def _copy_settings(folder: Path) -> None:
    for part in ("vm", "kernel", "fs"):
        for place, _, names in os.walk(f"/proc/sys/{part}"):
            own = folder / os.path.relpath(place, "/proc/sys")
            own.mkdir(parents=True, exist_ok=True)
            for name in names:
                with suppress(OSError):
                    (own / name).write_bytes(Path(place, name).read_bytes())


def _is_tidy(name: str) -> bool:
    """Whether the machine's control groups are gone: what died in them takes a moment."""
    left = []
    for base in ("", "/systemd", "/unified"):
        for place, _, _ in os.walk(f"/sys/fs/cgroup{base}/{name}", topdown=False):
            with suppress(OSError):
                os.rmdir(place)
        left.append(os.path.isdir(f"/sys/fs/cgroup{base}/{name}"))
    return not any(left)


def until(what: Callable[[], object], patience_s: float) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience_s:.0f} s")
        time.sleep(0.1)


def run(*argv: str, timeout_s: float = 60) -> str:
    """Raises Unavailable."""
    try:
        done = subprocess.run(
            (which(argv[0]) or argv[0], *argv[1:]), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(argv[:3])}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(argv[:4])}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _children(process: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            found += [int(word) for word in Path(f"/proc/{process}/task/{task}/children").read_text().split()]
    return found
