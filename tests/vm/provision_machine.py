"""A bare Debian that systemd-nspawn starts as a machine of its own, without a network, and starts again where it asks for it.

Made once and kept: the root (mmdebstrap), and a folder with the packages and wheels that it needs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from guest import Unavailable, cached, which

from conftest import alone_with

PROGRAMS = ("mmdebstrap", "systemd-nspawn", "nsenter", "unshare")
RELEASE, PYTHON, TORCH = "bookworm", "3.11", ("torch==2.13.0+cpu", "torchvision==0.28.0")
SETTINGS = {
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 bare\n",
    "etc/hostname": "bare\n",
    "etc/dpkg/dpkg.cfg.d/test": "force-unsafe-io\n",  # a minute less; what a power cut leaves is not asked here
    "etc/apt/apt.conf.d/99test": 'APT::Install-Recommends "false";\n',
}
INIT = """#!/bin/sh
# Private copies of what is changed: /proc/sys/vm is the whole kernel's.
mkdir -p /run/vm; for file in /proc/sys/vm/*; do cat "$file" >"/run/vm/${file##*/}" 2>/dev/null; done
mount --bind /run/vm /proc/sys/vm
exec /lib/systemd/systemd systemd.unit=multi-user.target
"""
START = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mkdir -p /run/systemd/nspawn && mount -t tmpfs none /run/systemd/nspawn
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
code=133 # it asks to be started again
while [ $code = 133 ]; do
    systemd-nspawn -q --register=no --keep-unit -M "torchtune-sys-$$" --hostname=bare --private-network --resolv-conf=off \\
        --bind-ro="$3:/offline" --console=pipe -D "$2/root" /bin/sh /test-init
    code=$?
done
"""


def root() -> Path:
    """The bare root: no Python, no lists of packages. Raises Unavailable."""
    lacking = [name for name in PROGRAMS if which(name) is None]
    if lacking or os.geteuid() or os.uname().machine != "x86_64":
        raise Unavailable(f"needs x86-64, root and {', '.join(lacking) or 'nothing else'}")
    place = cached(f"bare-{RELEASE}")
    if not place.is_dir():
        half = place.with_name(f"{place.name}.half")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        include = "--include=systemd,systemd-sysv,dbus"
        _run("mmdebstrap", "-q", "--variant=minbase", include, RELEASE, str(half), timeout_s=300)
        for name, text in SETTINGS.items():
            half.joinpath(name).write_text(text)
        half.rename(place)
    return place


def folder(script: str) -> Path:
    """What ``--download`` of ``script`` fetches into it in that root, and torch's wheels. Raises Unavailable."""
    place = cached(f"offline-{RELEASE}")
    if place.is_dir():
        return place
    half = place.with_name(f"{place.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    wheels = (sys.executable, "-m", "pip", "download", "-q", "-d", str(half / "wheels"), "--only-binary", ":all:")
    tags = [word for tag in ("2_28", "2_27", "2_17") for word in ("--platform", f"manylinux_{tag}_x86_64")]
    old = ("--platform", "manylinux2014_x86_64", "--python-version", PYTHON)
    _run(*wheels, *tags, *old, *TORCH, timeout_s=300)
    stage = (
        'mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && mount --bind "$2" "$1/mnt" && mount -t tmpfs none "$1/tmp"'
    )
    names = 'mkdir -p "$1/run" && mount -t tmpfs none "$1/run" && touch "$1/etc/resolv.conf" && mount --bind /etc/resolv.conf "$1/etc/resolv.conf"'
    done = f'{stage} && {names} && printf %s "$3" | chroot "$1" /bin/bash -s -- --download /mnt'
    words = ("bash", "-c", done, "bash", str(root()), str(half), script)
    _run("unshare", "--mount", "--propagation", "private", *words, timeout_s=300)
    half.rename(place)
    return place


class Machine:
    """One that runs."""

    def __init__(self, work: Path, process: subprocess.Popen[bytes]) -> None:
        self.work, self.process = work, process
        self.begun: list[subprocess.Popen[bytes]] = []

    def leader(self) -> int:
        """Its process 1 as this machine sees it; 0 while it has none."""
        parents = [self.process.pid]
        while parents:
            parent = parents.pop()
            for child in _children(parent):
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except OSError:
                    continue
                if "\nNSpid:" in status and status.partition("\nNSpid:")[2].splitlines()[0].split()[1:] == ["1"]:
                    return child
                parents.append(child)
        return 0

    def run(self, *argv: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._inside(*argv), capture_output=True, text=True, timeout=timeout_s, check=False)

    def begin(self, *argv: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        self.begun.append(subprocess.Popen(self._inside(*argv), stdout=quiet, stderr=quiet, start_new_session=True))
        return self.begun[-1]

    def _inside(self, *argv: str) -> list[str]:
        env = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        return ["nsenter", "-t", str(self.leader()), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", *env, *argv]

    def text(self, path: str) -> str:
        """``""`` while it is not there."""
        try:
            return Path(f"/proc/{self.leader()}/root{path}").read_text(errors="replace")
        except OSError:
            return ""

    def kill(self, *words: str) -> int:
        """SIGKILL for whatever runs in it with one of the words in its command line; how many there were."""
        killed = 0
        namespace = os.readlink(f"/proc/{self.leader()}/ns/pid")
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if any(word in line for word in words):
                        os.kill(int(entry), signal.SIGKILL)
                        killed += 1
            except OSError:
                continue
        return killed

    def state(self) -> dict[str, str]:
        """Everything that stays on its disk, but logs, and what our script notes for itself."""
        out = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log", "/var/lib/torchtune-sys", "/var/lib/systemd", "/root")
        prune = [word for path in out for word in ("-path", path, "-o")][:-1]
        show = r"%p\t%y %s %T@ %m %U:%G %l\n"
        told = self.run("find", "/", "-xdev", "(", *prune, ")", "-prune", "-o", "-printf", show)
        return dict(line.split("\t", 1) for line in told.stdout.splitlines())


@contextmanager
def machine(work: Path, script: str, offline: Path) -> Iterator[Machine]:
    """Started, with the script as /provision.sh. Its control groups go with it."""
    with alone_with(str(which("systemd-nspawn"))), _machine(work, script, offline) as made:
        yield made


@contextmanager
def _machine(work: Path, script: str, offline: Path) -> Iterator[Machine]:
    for name in ("upper", "work", "root"):
        (work / name).mkdir()
    (work / "upper/provision.sh").write_text(script)
    (work / "upper/test-init").write_text(INIT)
    with (work / "console").open("wb") as console:
        argv = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-c",
            START,
            "bash",
            str(root()),
            str(work),
            str(offline),
        ]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, start_new_session=True
        )
    made = Machine(work, process)
    try:
        until(lambda: made.leader() and made.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"), 400)
        yield made
    finally:
        leader = made.leader()
        os.killpg(process.pid, signal.SIGKILL)
        if leader:
            os.kill(leader, signal.SIGKILL)
        for each in (process, *made.begun):
            each.kill()
            each.wait()
        with suppress(TimeoutError):
            until(_is_tidy, 30)


def _is_tidy() -> bool:
    """Whether the control groups that systemd-nspawn made below ours are gone: what died in them takes a moment."""
    left = []
    ours = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    for base, group, name in product(("", "/systemd", "/unified"), ours, ("payload", "supervisor")):
        top = f"/sys/fs/cgroup{base}{group.rstrip('/')}/{name}"
        for place, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(place)
        left.append(os.path.isdir(top))
    return not any(left)


def until(what: Callable[[], object], patience_s: float) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience_s:.0f} s")
        time.sleep(0.05)


def _children(process: int) -> list[int]:
    found = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            found += [int(word) for word in Path(f"/proc/{process}/task/{task}/children").read_text().split()]
    except OSError:
        pass
    return found


def _run(*argv: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            (which(argv[0]) or argv[0], *argv[1:]), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(argv[:3])}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(argv[:3])}: {(done.stderr or done.stdout).strip()[-300:]}")
