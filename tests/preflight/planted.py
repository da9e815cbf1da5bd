"""Faults of a node, planted for real in namespaces and control groups of one child: nothing of the live host changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import warm

HERE = Path(__file__).parent
TOOL = (*warm.PROGRAM, "preflight")
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "debug"}
PROLOG = {**JOB, "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
STEP = {**JOB, "SLURM_STEP_ID": "0"}
TWO = {"SLURM_JOB_NUM_NODES": "2"}


class Unavailable(Exception):
    """Why a fault cannot be planted here."""


class Fault(NamedTuple):
    env: dict[str, str]
    plant: str
    """Shell commands, run in namespaces of their own (mounts, host name, network) with $D, a directory."""
    named: tuple[str, ...] = ()
    """``weight cause blame`` of what must be found beside what is found without the fault."""
    verdict: str = "go"
    group: dict[str, str] = {}
    """Files of a control group that the tool runs in: ``cpu.cfs_quota_us`` …, as version 1 names them."""
    network: bool = False
    words: tuple[str, ...] = ()


NET = (
    "ip link set lo up; ip link add eth0 type veth peer name peer0; ip link set peer0 up; ip addr add 10.77.3.1/24 dev eth0; ip link set eth0 up; "
    "printf '127.0.0.1 localhost\\n10.77.3.1 node3\\n' >$D/hosts; mount --bind $D/hosts /etc/hosts; hostname node3; "
)
DOCKER0 = NET + "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up; "
LOOP = NET + "printf '127.0.0.1 localhost\\n127.0.1.1 node3\\n' >$D/hosts; "
NO_NAME = (
    NET + "printf '127.0.0.1 localhost\\n' >$D/hosts; printf 'hosts: files\\n' >$D/nss; mount --bind $D/nss /etc/nsswitch.conf; "
)
LITTLE_MEMORY = (
    "awk '/^MemTotal/{t=$2} /^MemAvailable/{$2=int(t/20); if ($2>900000) $2=900000} {print}' /proc/meminfo >$D/m; "
    "sed -i 's/^MemAvailable: *\\([0-9]*\\).*/MemAvailable:   \\1 kB/' $D/m; mount --bind $D/m /proc/meminfo; "
)
FULL_TMP = "mount -t tmpfs -o size=64m none /tmp; head -c 100m /dev/zero >/tmp/full 2>/dev/null || :; "
SMALL_TMP = "mount -t tmpfs -o size=300m none /tmp; head -c 40m /dev/zero >/tmp/some; "
HALF_TMP = "mount -t tmpfs -o size=1g none /tmp; head -c 600m /dev/zero >/tmp/some; "
LEFT = f"{sys.executable} {HERE}/left_behind.py 1200 $D/left; "

FAULTS: dict[str, Fault] = {
    "1 quota of half of the CPUs": Fault(STEP, "", ("warning cpu-quota-on-one-node node",), group={"cpu.cfs_quota_us": "50%"}),
    "2 tiny /dev/shm": Fault(
        {**STEP, "SLURM_NTASKS_PER_NODE": "2"},
        "mount -t tmpfs -o size=16m none /dev/shm",
        ("fatal dev-shm-too-small node",),
        "no-go",
    ),
    "3 name at 127.0.1.1, two nodes": Fault(
        {**PROLOG, **TWO}, LOOP, ("fatal hostname-resolves-to-loopback node",), "no-go", network=True
    ),
    "4 name at 127.0.1.1, one node": Fault({**PROLOG, "SLURM_JOB_NUM_NODES": "1"}, LOOP, network=True),
    "5 name unresolvable, two nodes": Fault(
        {**PROLOG, **TWO}, NO_NAME, ("fatal hostname-unresolvable node",), "no-go", network=True
    ),
    "6 name unresolvable, one node": Fault({**STEP, "SLURM_JOB_NUM_NODES": "1"}, NO_NAME, network=True),
    "7 Gloo on docker0, two nodes": Fault(
        {**STEP, **TWO, "GLOO_SOCKET_IFNAME": "docker0"}, DOCKER0, ("fatal gloo-interface-doubtful user",), "no-go", network=True
    ),
    "8 Gloo on no interface, two nodes": Fault(
        {**STEP, **TWO, "GLOO_SOCKET_IFNAME": "ib7"}, NET, ("fatal gloo-wrong-interface user",), "no-go", network=True
    ),
    "9 Gloo on no interface, one node": Fault(
        {"GLOO_SOCKET_IFNAME": "ib7"}, NET, ("warning gloo-wrong-interface user",), network=True
    ),
    "10 memory eaten": Fault(PROLOG, LITTLE_MEMORY, ("warning host-memory-oom node",)),
    "11 /tmp full": Fault(PROLOG, FULL_TMP, ("fatal disk-full-or-quota node",), "no-go"),
    "12 hung mount": Fault(PROLOG, f"{sys.executable} {HERE}/hung_mount.py $D/scratch; ", ("fatal hung-mount network",), "no-go"),
    "12b six mounts of a server that is gone": Fault(
        PROLOG,
        f"for i in 1 2 3 4 5 6; do {sys.executable} {HERE}/hung_mount.py $D/s$i; done; ",
        ("fatal hung-mount network",),
        "no-go",
    ),
    "13 leftover process": Fault(PROLOG, LEFT, ("warning leftover-processes node",)),
    "14 GPU memory in use": Fault(
        PROLOG, "", ("warning gpu-memory-in-use hardware",), words=("--from", f"{HERE.parent}/hosts/gpu-memory-in-use.fail.json")
    ),
    "18 slurmd's own limits": Fault(
        {
            **PROLOG,
            **TWO,
            "GLOO_SOCKET_IFNAME": "ib7",
            "NCCL_SOCKET_IFNAME": "ib7",
            "TMPDIR": "/no/such",
            "LD_PRELOAD": "/no/such.so",
        },
        NET + "ulimit -Sn 128; ulimit -Sl 64; ",
        group={"cpu.cfs_quota_us": "10%"},
        network=True,
    ),
    "19 no inodes on /tmp": Fault(
        PROLOG,
        "mount -t tmpfs -o nr_inodes=200 none /tmp; seq -f /tmp/%g 300 | xargs touch 2>/dev/null || :; ",
        ("fatal disk-full-or-quota node",),
        "no-go",
    ),
    "20 /tmp read-only": Fault(PROLOG, "mount -t tmpfs -o ro none /tmp; ", ("fatal no-temporary-directory node",), "no-go"),
    "21 dead FUSE mount": Fault(
        PROLOG, f"{sys.executable} {HERE}/hung_mount.py $D/scratch dead; ", ("fatal hung-mount network",), "no-go"
    ),
    "22 /dev/shm full": Fault(
        PROLOG,
        "mount -t tmpfs -o size=1100m none /dev/shm; head -c 1090m /dev/zero >/dev/shm/left; ",
        ("warning dev-shm-too-small node",),
    ),
    "23 idle huge pages": Fault(
        PROLOG,
        "awk '/^MemTotal/{t=$2} /^HugePages_(Total|Free)/{$2=int(t/4096)} /^Hugetlb/{$2=int(t/2)} {print}' /proc/meminfo >$D/m; "
        "mount --bind $D/m /proc/meminfo; for d in /sys/kernel/mm/hugepages/hugepages-2048kB; do "
        "awk '/^MemTotal/{print int($2/4096)}' /proc/meminfo >$D/h; mount --bind $D/h $d/free_hugepages; mount --bind $D/h $d/nr_hugepages; done; ",
        ("warning hugepages-hoard-memory node",),
    ),
    "24 memory limit of the job": Fault(
        {**STEP, "SLURM_NTASKS_PER_NODE": "2"},
        "",
        ("warning host-memory-oom user",),
        group={"memory.limit_in_bytes": str(512 << 20)},
    ),
    "25 limit on tasks": Fault(STEP, "", ("warning cgroup-pids-limit node",), group={"pids.max": "30"}),
    "26 few open files": Fault(STEP, "ulimit -n 256; ", ("warning nofile-limit-too-low node",)),
    "27 two at once": Fault(
        PROLOG, FULL_TMP + LEFT, ("fatal disk-full-or-quota node", "warning leftover-processes node"), "no-go"
    ),
    "28a quota of three quarters": Fault(STEP, "", group={"cpu.cfs_quota_us": "75%"}),
    "28b a service's memory and an idle leftover": Fault(
        PROLOG, f"{sys.executable} {HERE}/left_behind.py 1200 $D/left 0; {sys.executable} {HERE}/left_behind.py 1 $D/idle; "
    ),
    "28c a small /tmp": Fault(PROLOG, SMALL_TMP, verdict="go"),
    "28d a /tmp in memory, more than half used": Fault(PROLOG, HALF_TMP, verdict="go"),
}
HELD_BACK = tuple(name for name in FAULTS if int(name.split()[0].rstrip("abcd")) >= 19)


def found(fault: Fault, folder: Path, *words: str) -> dict[str, Any]:
    """What pre-flight says with the fault. Raises Unavailable."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Unavailable("needs root and unshare")
    folder.mkdir(parents=True, exist_ok=True)
    base = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMP_", "GLOO", "NCCL", "CUDA"))}
    argv = [*TOOL, "--format", "json", *fault.words, *words]
    kinds = ["--mount", "--uts", *(["--net"] if fault.network else [])]
    inner = f'set -e; {fault.plant}\nexec "$@"'
    with ExitStack() as stack:
        joins = stack.enter_context(_group(fault.group)) if fault.group else ""
        env = [f"{name}={value}" for name, value in fault.env.items()]
        done = subprocess.run(
            ["sh", "-c", joins + 'exec "$@"', "sh", "unshare", *kinds, "--propagation", "private", "sh", "-c", inner, "sh", "env", *env, *argv],
            env={**base, "D": str(folder)}, capture_output=True, text=True, timeout=180, cwd="/",
        )  # fmt: skip
        for pid in (folder / "left", folder / "idle"):
            if pid.exists():
                os.kill(int(pid.read_text()), 9)
    if not done.stdout:
        raise Unavailable(f"cannot be planted here: {done.stderr.strip()[-300:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def named(document: dict[str, Any]) -> Counter[str]:
    """How often each was named: this machine may have had the same cause already."""
    return Counter(f"{cause['weight']} {cause['cause']} {cause['blame']}" for cause in document["nodes"][0]["causes"])


@contextmanager
def _group(settings: dict[str, str]) -> Iterator[str]:
    """A control group with these settings; yields the shell commands that join it."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    made, joins = [], ""
    try:
        for name, value in settings.items():
            controller = name.partition(".")[0]
            above = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup") / controller
            group = above / f"torchtune-sys-test-{os.getpid()}"
            if not group.exists():
                group.mkdir()
                made.append(group)
            cpus = len(os.sched_getaffinity(0))
            amount = str(int(value[:-1]) * 1000 * cpus) if value.endswith("%") else value
            if unified:
                (above / "cgroup.subtree_control").write_text(f"+{controller}")
                told = {"cpu.cfs_quota_us": ("cpu.max", f"{amount} 100000"), "memory.limit_in_bytes": ("memory.max", amount)}
                file, amount = told.get(name, (name, amount))
            else:
                file = name
            (group / file).write_text(amount)
            joins += f"echo $$ >{group}/cgroup.procs; "
        yield joins
    except OSError as error:
        raise Unavailable(f"control groups: {error}") from None
    finally:
        for group in made:
            group.rmdir()
