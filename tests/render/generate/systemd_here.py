"""A real systemd, as a user's own instance in a corner of this machine: it reads units, starts services and tells what it read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import alone_with

SYSTEMD = "/lib/systemd/systemd"

SCRIPT = """
set -e
work=$1
mount -t tmpfs none /run
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup # what it makes there is removed below
mkdir -p /run/systemd/system /run/u "$work/home/.config/systemd/user"
chmod 700 /run/u
cp -r "$work/files/." /
export XDG_RUNTIME_DIR=/run/u HOME="$work/home"
printf '[Unit]\\nDescription=nothing\\n' >"$HOME/.config/systemd/user/nothing.target"
"$2" --user --unit=nothing.target --log-target=console </dev/null >"$work/log" 2>&1 & pid=$!
while [ ! -S /run/u/systemd/private ] && kill -0 $pid; do sleep 0.05; done
set +e
cd "$work"
"""
AFTER = """
kill $pid
wait $pid
rmdir /sys/fs/cgroup/app.slice /sys/fs/cgroup/init.scope 2>/dev/null
cat "$work/log" >&2
"""


def missing() -> str:
    lacking = [tool for tool in ("systemctl", "unshare") if shutil.which(tool) is None]
    lacking += [] if os.path.exists(SYSTEMD) else ["systemd"]
    return f"needs root and {', '.join(lacking) or 'nothing else'}" if lacking or os.geteuid() else ""


needs_systemd = pytest.mark.skipif(missing() != "", reason=missing())


def told(work: Path, files: Mapping[str, str], commands: str) -> subprocess.CompletedProcess[str]:
    """Run ``commands`` in ``work`` beside a systemd that finds ``files`` (by absolute path, below /run); stderr ends with its log."""
    for path, content in files.items():
        place = work / "files" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    argv = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "bash", "-c", SCRIPT + commands + AFTER]
    with alone_with(SYSTEMD):
        done = subprocess.run([*argv, "stage", str(work), SYSTEMD], capture_output=True, text=True, timeout=100)
    if not (work / "log").exists() or "has not been booted" in done.stderr:
        pytest.skip(f"no systemd here: {done.stderr.strip()[-300:]}")
    return done
