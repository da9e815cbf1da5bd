"""Hosts that are namespaces of this machine: each has its own network, mounts and name, kernel settings of its network, limits and environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

NAMES = tuple(f"n{number}" for number in range(1, 12))
FAULTS: Mapping[str, tuple[str, str, str]] = {
    # host: (what is done in its namespaces, what its sessions begin with, the fact that is to be named)
    "n1": ("echo 77 > /proc/sys/net/core/somaxconn", "", "sysctl.settings[net.core.somaxconn].running"),
    "n2": ("", "export NCCL_P2P_DISABLE=1", "session.env[NCCL_P2P_DISABLE]"),
    "n3": ("sed -i s/2.7.1/2.6.0/ $SITE/torch-2.7.1.dist-info/METADATA $SITE/torch/version.py", "", "python.torch.version"),
    "n4": ("ip link set data0 mtu 1400", "", "network.interfaces[data0].mtu"),
    "n5": ("", "export SKEW=300", "clock.offset_s"),
    "n6": ("mount -t tmpfs -o size=9m none $ROOT/data", "", "storage.places[data].filesystem"),
    "n7": ("", "ulimit -n 777; ulimit -l 64", "limits.limits[nofile].soft"),
    "n8": (
        "cd $ROOT/libs; mv libcudnn.so.9.5.1 libcudnn.so.9.1.0; ln -sf libcudnn.so.9.1.0 libcudnn.so.9",
        "",
        "python.shadowing[libcudnn].version",
    ),
}
SILENT = {"n9": "hung", "n10": "dead", "n11": "garbage"}
BRING_UP = """
set -eu
ip link set lo up; ip link add data0 type bridge; ip link set data0 mtu 9000 up
cp -a "$SITE" "$ROOT/own-$NAME"; mount --bind "$ROOT/own-$NAME" "$SITE"
cp -a "$ROOT/libs" "$ROOT/libs-$NAME"; mount --bind "$ROOT/libs-$NAME" "$ROOT/libs"
hostname "$NAME"
"""
AT = """#!/bin/bash
# at HOST COMMAND...: what a login on that host would run
host=$1; shift
case $host in {hung}) exec sleep 10000;; {dead}) exec false;; {garbage}) echo 'Welcome! {{"a": }}'; exit 0;; esac
export LD_LIBRARY_PATH={root}/libs
[ -f {root}/$host.session ] && . {root}/$host.session
exec nsenter -t $(cat {root}/$host.pid) -m -n -u -- "$@"
"""
SKEWED = """
import os, time
if os.environ.get("SKEW"):
    real = time.time
    time.time = lambda: real() + float(os.environ["SKEW"])
"""


class Unavailable(Exception):
    """Why there are no such hosts here."""


@contextlib.contextmanager
def hosts(root: Path) -> Iterator[tuple[str, ...]]:
    """The command that each host is to run, behind ``root/at HOST``. Raises Unavailable."""
    if os.geteuid() != 0:
        raise Unavailable("namespaces need root")
    site = _environment(root)
    (root / "data").mkdir()
    silent = {what: name for name, what in SILENT.items()}
    (root / "at").write_text(AT.format(root=root, **silent))
    (root / "at").chmod(0o755)
    with ExitStack() as stack:
        for name in FAULTS:
            _start(stack, root, name, site)
        tool = ("-m", "torchtune_sys", "snapshot", "--compact", "--python", f"{root}/venv/bin/python3", "--data", f"{root}/data")
        yield (f"{root}/tool", *tool[2:])


def _environment(root: Path) -> Path:
    """An environment with a torch of which only what is looked at is there; and the tool, in a process whose clock may be wrong."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=120)
    site = next((root / "venv" / "lib").glob("python3*/site-packages"))
    for name, version in (("torch", "2.7.1"), ("numpy", "2.1.0")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text(
        "__version__ = '2.7.1'\ncuda = None\nhip = None\ngit_version = 'x'\ndebug = False\n"
    )
    (site / "torch" / "__init__.py").write_text("")
    (root / "libs").mkdir()
    (root / "libs" / "libcudnn.so.9.5.1").write_bytes(b"")
    (root / "libs" / "libcudnn.so.9").symlink_to("libcudnn.so.9.5.1")
    (root / "skewed.py").write_text(SKEWED + "import sys\nfrom torchtune_sys.__main__ import main\nmain()\n")
    (root / "tool").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {root}/skewed.py "$@"\n')
    (root / "tool").chmod(0o755)
    return site


def _start(stack: ExitStack, root: Path, name: str, site: Path) -> None:
    done, session, _ = FAULTS[name]
    (root / f"{name}.session").write_text(f"{session}\n")
    env = {**os.environ, "ROOT": str(root), "SITE": str(site), "NAME": name}
    script = f"{BRING_UP}\n{done}\necho $$ > {root}/{name}.pid\nexec sleep 100000"
    argv = ["unshare", "--mount", "--net", "--uts", "--propagation", "private", "bash", "-c", script]
    child = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
    stack.callback(_stop, child)
    for _ in range(600):
        if (root / f"{name}.pid").exists():
            return
        if child.poll() is not None:
            assert child.stderr is not None
            raise Unavailable(f"{name}: {child.stderr.read().strip()[-300:]}")
        time.sleep(0.1)
    raise Unavailable(f"{name} did not come up")


def _stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    if child.stderr is not None:
        child.stderr.close()
