"""A shell script on a stage of its own: files laid over /proc/sys, an overlay over /etc, an empty /var/lib/torchtune-sys.

Mounts and network are private to the script; nothing that it does reaches the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warm

STATE = "/var/lib/torchtune-sys"
FILE = "/etc/sysctl.d/99-torchtune-sys.conf"
MAPS = "/proc/sys/vm/max_map_count"
PIDS = "/proc/sys/kernel/pid_max"
SET_UP = """
set -u
mount -t tmpfs none "$STAGE"
mkdir "$STAGE"/{upper,work,state}
mount -t overlay o -o "lowerdir=/etc,upperdir=$STAGE/upper,workdir=$STAGE/work" /etc
mount --bind "$STAGE/state" /var/lib/torchtune-sys
echo 3000 > "$STAGE/maps"; mount --bind "$STAGE/maps" /proc/sys/vm/max_map_count
echo 2000 > "$STAGE/pids"; mount --bind "$STAGE/pids" /proc/sys/kernel/pid_max
ip link set lo up
tt() { $TOOL "$@"; echo "rc $?"; }
APPLY="apply --yes --select max-map-count-low,task-table-small"
shows() { for path in "$@"; do echo "$path: $(cat "$path" 2>&1 | tr '\\n' '|')"; done; }
before() { getfattr -d -m- -R --absolute-names /etc/sysctl.d 2>/dev/null; find /etc/sysctl.d -printf '%p %m %U:%G %y\\n' | sort; \
 cat /etc/sysctl.d/*torchtune* /proc/sys/vm/max_map_count /proc/sys/kernel/pid_max 2>/dev/null; }
"""


def can_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(("unshare", "--mount", "--net", "true"), capture_output=True).returncode


def made_folder() -> bool:
    """The mount point must be there; an empty one on the machine harms nobody."""
    os.makedirs(STATE, exist_ok=True)
    return True


NEEDS = [
    pytest.mark.skipif(not can_mount() or not made_folder(), reason="needs root that may mount"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)"),
]


def staged(folder: Path, script: str, timeout_s: float = 120) -> str:
    """What the script printed, standard error mixed in."""
    stage = folder / "stage"
    stage.mkdir(exist_ok=True)
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", SET_UP + script],
        env={**os.environ, "STAGE": str(stage), "PYTHON": sys.executable, "TOOL": warm.WORDS, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
    )
    found = done.stdout.decode("utf-8", "replace")
    print(found)
    return found
