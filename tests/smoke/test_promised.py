"""What a container was promised and did not get: limits, a small /dev/shm, a cgroup and a seccomp filter, each of them real but for
the files of the cgroup."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke.faults.bench import torch_python
from smoke.faults.forked import said
from smoke.faults.forking import forking
from torchtune_sys.smoke import script

ASK = """
import ctypes, json, os, resource, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS, linux/sched.h
subprocess.run(["sh", "-ec", %r], check=True)
told = {}

def ask(name, key, amount=1):
    lack = _KEPT[key](amount)
    told[name] = None if lack is None else lack._asdict()

ask("shm is there", "shm", 60)
ask("shm is small", "shm", 8192)
ask("tasks are there", "tasks", 400)
ask("tasks are few", "tasks", 1024)
ask("a GPU is missing", "gpus", 99)
ask("no RDMA", "infiniband")
ask("numactl may", "numa")
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 1000))
ask("files are there", "nofile", 500)
ask("files are few", "nofile", 65536)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
ask("root may lock", "memlock")
# EPERM for set_mempolicy, as a container's profile answers it; all else is allowed (linux/filter.h, linux/seccomp.h)
number = _SET_MEMPOLICY[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(held))), 0, 0) == 0
ask("numactl may not", "numa")
os.setuid(65534)
ask("a user may not lock", "memlock")
print(json.dumps(told))
"""
PLACE = """
mount --make-rprivate /
mount -t tmpfs -o size=${SHM:-64m} tmpfs /dev/shm
mount -t tmpfs tmpfs /sys/fs/cgroup
echo 500 >/sys/fs/cgroup/pids.max
echo 40 >/sys/fs/cgroup/pids.current
"""
"""In a mount namespace of its own: 64 MiB of /dev/shm, and a cgroup of 500 tasks."""


def contained(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command in that place."""
    _may_mount()
    argv = ["unshare", "--mount", "sh", "-ec", f'{PLACE}\nexec "$@"', "sh", *words]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)


def _may_mount() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    _may_mount()
    found: dict[str, Any] = json.loads(said(ASK % PLACE).splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shm is there", "tasks are there", "files are there", "numactl may", "root may lock"])
def test_what_is_there_is_kept(told: dict[str, Any], name: str) -> None:
    assert told[name] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause", "flag", "seen"),
    [
        ("shm is small", "dev-shm-too-small", "--shm-size=8192m", "64 MiB"),
        ("tasks are few", "cgroup-pids-limit", "--pids-limit=-1", "500"),
        ("files are few", "nofile-limit-too-low", "--ulimit nofile=65536:65536", "500"),
        ("a user may not lock", "memlock-limit-too-low", "--ulimit memlock=-1", "64 KiB"),
        ("numactl may not", "memory-policy-refused", "--cap-add SYS_NICE", "set_mempolicy"),
        ("a GPU is missing", "container-without-gpu-devices", "--gpus all", "99 were promised"),
        ("no RDMA", "rdma-device-not-in-container", "--device /dev/infiniband", "uverbs"),
    ],
)
def test_what_is_missing_is_named_with_its_flag(told: dict[str, Any], name: str, cause: str, flag: str, seen: str) -> None:
    if name == "no RDMA" and told[name] is None:
        pytest.skip("this machine has RDMA cards")
    assert told[name]["cause"] == cause and flag in told[name]["remedy"] and seen in told[name]["seen"]


@pytest.mark.slow
def test_all_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "smoke.py").write_text(script.source())
    argv = [torch_python(), str(tmp_path / "smoke.py"), "--stages", "device", "--promised", "shm=8192,tasks=1024"]
    done = contained(*argv, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    rows = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    at = next(place for place, row in enumerate(rows) if row.startswith("fail    container"))
    assert rows[at].endswith("[dev-shm-too-small]") and "500 processes" in rows[at]
    assert "--shm-size=8192m" in rows[at + 1] and "--pids-limit=-1" in rows[at + 1]
    assert [row.split()[:2] for row in rows[:1]] == [["pass", "import"]] and rows[at + 2].startswith("pass    device")


@pytest.mark.slow
@pytest.mark.long
def test_it_is_told_although_the_ranks_die_of_it(tmp_path: Path) -> None:
    """/dev/shm does not hold a batch: the workers of both ranks die, and torchrun ends the one that would print the table."""
    (tmp_path / "smoke.py").write_text(script.source())
    argv = [
        torch_python(),
        str(tmp_path / "smoke.py"),
        "--stages",
        "dataloader",
        "--nproc-per-node",
        "2",
        "--promised",
        "shm=1024",
    ]
    done = contained(*argv, SHM="1m", OMP_NUM_THREADS="1", **forking(tmp_path))
    assert done.returncode == 1
    rows = done.stderr.splitlines()
    at = rows.index("rank 0: container failed: /dev/shm holds 1 MiB, 1024 were promised [dev-shm-too-small]")
    assert "--shm-size=1024m" in rows[at + 1]
    assert "dataloader failed: " in done.stderr


_LUCK = """
import contextlib
with contextlib.redirect_stderr(sys.stdout):
    try:
        arguments(["--promised", "shm=8192,luck=1"])
    except SystemExit as error:
        print(error.code)
"""


@pytest.mark.long
def test_what_nobody_promises_is_a_usage_error() -> None:
    told = said(_LUCK)
    assert "'luck=1' is none of shm=N" in told and told.endswith("\n2\n")
