"""The real numactl on the CPUs and nodes of another machine: it reads that one's /sys and /proc/self/status, and what it asks of the
kernel is written down instead of being done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known, need

BITS = 1024
NEEDED = ("numactl", "strace", "unshare")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    said: str
    """What numactl wrote to stderr; empty where it accepted everything."""
    cpus: CpuSet
    policy: str
    """``bind:1``, ``prefer:0`` or empty."""


def missing() -> str:
    lacking = [tool for tool in NEEDED if shutil.which(tool) is None]
    return f"needs root and {', '.join(lacking) or 'nothing else'}" if lacking or os.geteuid() else ""


def mask(numbers: Iterable[int]) -> str:
    """As the kernel prints it: words of 32 bits, the highest first."""
    text = f"{sum(1 << number for number in numbers):0{BITS // 4}x}"
    return ",".join(text[at : at + 8] for at in range(0, len(text), 8))


def lay(work: Path, s: Snapshot) -> None:
    """The files that libnuma reads. Source: numactl 2.0, libnuma.c (set_configured_cpus, set_nodemask_size, set_task_constraints)."""
    cpu = need(s.cpu)
    online = need(cpu.online)
    nodes = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    homes = {node.id: (known(node.cpus, CpuSet()), known(node.memory_bytes, 0)) for node in nodes} or {0: (online, 1 << 33)}
    write(work / "node/online", CpuSet(homes))
    write(work / "node/possible", CpuSet(homes))
    write(work / "node/has_cpu", CpuSet(number for number, (cpus, _) in homes.items() if cpus))
    for name in ("has_memory", "has_normal_memory"):
        write(work / "node" / name, CpuSet(number for number, (_, memory) in homes.items() if memory))
    for number, (cpus, memory) in homes.items():
        place = work / f"node/node{number}"
        write(place / "cpumap", mask(cpus))
        write(place / "cpulist", cpus)
        write(place / "distance", " ".join("10" if other == number else "20" for other in homes))
        write(place / "meminfo", f"Node {number} MemTotal: {memory >> 10} kB\nNode {number} MemFree: {memory >> 11} kB")
    for name in ("online", "possible", "present"):
        write(work / "cpu" / name, online)
    for number in range(max(online) + 1):  # glibc counts them: an offline CPU has a directory, too
        (work / f"cpu/cpu{number}").mkdir()
    mems = CpuSet() if isinstance(s.numa, Missing) else known(s.numa.allowed_mems, CpuSet())
    allowed = {
        "Cpus": known(cpu.affinity, online),
        "Mems": mems or CpuSet(number for number, (_, memory) in homes.items() if memory) or CpuSet(homes),
    }
    own = [line for line in Path("/proc/self/status").read_text().splitlines() if "_allowed" not in line]
    own += [f"{name}_allowed:\t{mask(numbers)}\n{name}_allowed_list:\t{numbers}" for name, numbers in allowed.items()]
    write(work / "status", "\n".join(own))


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


SCRIPT = """
cd "$1"
mount --bind . /sys/devices/system || exit 9
shift
number=0
while read -r line; do
    number=$((number + 1))
    strace -s 4096 -o "log.$number" -e trace=sched_setaffinity,set_mempolicy,sched_getaffinity \\
        -e inject=sched_setaffinity,set_mempolicy:retval=0 -e inject=sched_getaffinity:retval=128 \\
        bash -c 'mount --bind status /proc/$$/status && exec numactl "$@"' stage $line true 2>"said.$number" >&2
done <commands
true
"""


def ask(work: Path, s: Snapshot, commands: Sequence[Sequence[str]]) -> list[Asked]:
    """What numactl asks the kernel for by each of the commands (options with words of digits and signs alone)."""
    work.mkdir()
    (work / "cpu").mkdir()
    lay(work, s)
    (work / "commands").write_text("".join(" ".join(command) + "\n" for command in commands))
    argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", SCRIPT, "stage", str(work)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [_asked(work, number + 1) for number in range(len(commands))]


def _asked(work: Path, number: int) -> Asked:
    said, log = ((work / f"{name}.{number}").read_text() for name in ("said", "log"))
    cpus = re.findall(r"sched_setaffinity\(0, \d+, \[([\d ]*)\]\)", log)
    # libnuma itself tries policies at its start, and puts the default one back
    policies = re.findall(r"set_mempolicy\(MPOL_(\w+), \[([^\]]*)\]", log.rpartition("set_mempolicy(MPOL_DEFAULT")[2])
    policy = ""
    for name, words in policies:
        bits = [at * 64 + bit for at, word in enumerate(words.split(", ")) for bit in range(64) if int(word, 16) >> bit & 1]
        policy = f"{ {'BIND': 'bind', 'PREFERRED': 'prefer'}[name] }:{','.join(map(str, bits))}"
    return Asked(said=said, cpus=CpuSet(map(int, cpus[-1].split())) if cpus else CpuSet(), policy=policy)
