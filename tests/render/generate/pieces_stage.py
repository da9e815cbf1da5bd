"""A stage for the real readers of configuration: own /etc, /run, /sys and /proc/sys, thrown away afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = """
set -e
work=$1
cd "$work"
mkdir -p up upw sys sysw proc/vm proc/net proc/kernel proc/fs usr
for family in vm net kernel fs; do mount --bind "$work/proc/$family" "/proc/sys/$family"; done
mount -t overlay o -o lowerdir=/etc,upperdir="$work/up",workdir="$work/upw" /etc
mount -t overlay o -o lowerdir=/sys,upperdir="$work/sys",workdir="$work/sysw" /sys
mount -t tmpfs none /run
rm -rf /etc/sysctl.conf /etc/sysctl.d /etc/modprobe.d /etc/tmpfiles.d /etc/udev/rules.d /etc/security/limits.d
mkdir -p /run/udev /etc/sysctl.d /etc/modprobe.d /etc/tmpfiles.d /etc/udev/rules.d /etc/security/limits.d
mount --bind "$work/usr" /usr/lib/sysctl.d
mount --bind "$work/usr" /usr/lib/udev/rules.d 2>/dev/null || :
cp -r files/. /
"""


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if not (shutil.which(tool) or os.path.exists(tool))]
    return pytest.mark.skipif(bool(missing) or os.geteuid() != 0, reason=f"needs root and {', '.join(missing) or 'nothing else'}")


def staged(work: Path, files: Mapping[str, str], commands: str) -> subprocess.CompletedProcess[str]:
    """Run ``commands`` where ``files`` (by absolute path) lie and ``proc/…`` and ``sys/…`` of ``work`` are the kernel's."""
    for path, content in files.items():
        place = work / "files" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    (work / "files").mkdir(exist_ok=True)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", SCRIPT + commands, "stage", str(work)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if "wrong fs type" in done.stderr or "only be mounted" in done.stderr:
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    return done
