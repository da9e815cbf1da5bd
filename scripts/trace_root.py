"""Print what a run as root reads, executes, writes, and listens on, from strace; compare it with the committed list.

    python scripts/trace_root.py                        # the set, one normalised line each, of each group of commands
    python scripts/trace_root.py --compare LIST         # exit 1, and print what is not in LIST
    python scripts/trace_root.py --only preflight,fleet # these groups
    python scripts/trace_root.py --torch PYTHON         # smoke, too
    python scripts/trace_root.py --compare LIST -- CMD  # of another command

The change of ``apply`` is made in a mount namespace of its own: /etc is an overlay, the kernel setting is a copy, the journal lies on a
tmpfs. What stands in LIST before the first ``[group]`` holds for each group. Needs root that may mount, and strace.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

TOOL = (sys.executable, "-I", "-m", "torchtune_sys")
CHANGE = "max-map-count-low"
Commands = tuple[tuple[str, ...], ...]
GIVEN, MADE = "SCRATCH/given", "SCRATCH/made"
"""What is read, and where files are written that the caller names."""
COMMANDS: dict[str, Commands] = {
    "change": (
        ("check", "--quiet"),
        ("plan", "--format", "json", "--select", CHANGE),
        ("apply", "--yes", "--select", CHANGE),
        ("history",),
        ("undo", "--yes"),
    ),
    "record": (
        ("record", "-o", f"{MADE}/host.json"),
        ("snapshot", "-o", f"{MADE}/snapshot.json"),
        ("snapshot", "--compact", "-o", f"{GIVEN}/n1.facts.json"),
    ),
    "preflight": (
        ("preflight", "--alone", "--hook", "prolog", "--format", "reason", "--budget", "60", "--drain-state", f"{MADE}/drained"),
        ("preflight", "--alone", "--hook", "epilog", "--format", "json", "--budget", "60", "--facts", f"{MADE}/facts"),
    ),
    "diagnose": (
        ("diagnose", f"{GIVEN}/train.log", "--share", f"{MADE}/share.txt"),
        ("diagnose", f"{GIVEN}/train.log", "--symptoms"),
    ),
    "fleet": (
        ("fleet", "--dir", GIVEN),
        ("compare", f"{GIVEN}/n1.facts.json", f"{GIVEN}/n1.facts.json"),
        ("fleet", "--nodes", "n1.invalid", "--save", f"{MADE}/answers.jsonl", "--timeout", "5"),
    ),
    "smoke": (("smoke", "--python", "TORCH", "--stages", "ddp", "--nproc-per-node", "2", "--device", "cpu"),),
}
"""Group → its commands, in the order in which they are run."""
LOG = """RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 8.00 MiB is free.
[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)
"""
STAGE = """set -e
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/up,workdir=$1/work" /etc
mkdir -p /var/lib/torchtune-sys
mount -t tmpfs -o mode=0755 none /var/lib/torchtune-sys
echo 1000 >"$1/map_count"
mount --bind "$1/map_count" /proc/sys/vm/max_map_count
cd /
traced() {
    strace -f -qq -y -s 512 $bpf -A -o "$log" -e trace=%file,bind,listen,connect,ftruncate,fchmod,fchown "$@" || echo "status $?"
}
log=$2
bpf=--seccomp-bpf # 4.9: only what is traced costs time
strace -f -o /dev/null $bpf true 2>/dev/null || bpf=
"""
WRITES = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE")
CHANGES = re.compile(
    r"^(mkdir|rmdir|unlink|rename|link|symlink|chmod|chown|truncate|mknod|utime|setxattr|removexattr|f?chmod|f?chown|ftruncate|mount)"
)


def lines_of(log: Path) -> Iterator[str]:
    """Return the calls, put together where strace tore them."""
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
        elif found := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            yield begun.pop(pid, "") + found[1]
        else:
            yield call


def paths_of(call: str) -> list[str]:
    """Return the paths of a call, those below a descriptor put together with its folder."""
    found, folder = [], ""
    for match in re.finditer(r"(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>|\"((?:[^\"\\]|\\.)*)\"", call.partition(") = ")[0]):
        if match[1] is not None:
            folder = match[1]
        elif match[2]:
            found.append(match[2] if match[2].startswith("/") else os.path.normpath(os.path.join(folder, match[2])))
    return found or ([folder] if folder else [])


def touched(call: str, places: list[tuple[str, str]]) -> Iterator[str]:
    """Return what one call does, normalised: ``read PATH``, ``write PATH``, ``execute PATH``, ``listen ADDRESS``, ``connect ADDRESS``."""
    name = re.split(r"\W", call, maxsplit=1)[0]
    if name in ("bind", "listen", "connect"):
        address = re.search(r"\{sa_family=(\w+)(?:, (.*?))?\}", call)
        if address and (address[1], name) != ("AF_NETLINK", "bind"):
            where = re.sub(
                r'inet_addr\("127\.[\d.]+"\)|"(?:::ffff:)?127\.[\d.]+"|"::1"', "LOOPBACK", re.sub(r"[^ -~]", "", address[2] or "")
            )
            port = re.search(r"htons\([1-9]\d{0,2}\)", where)
            said = normal(where, places)
            yield f"{name} {address[1]} {said.replace('htons(N)', port[0]) if port else said}".strip()
        elif name == "listen":
            yield "listen"
        return
    if " = -1 " in call and name != "execve" and not any(flag in call for flag in WRITES):
        return  # nothing was there
    if name == "execve":
        if " = 0" in call:
            yield f"execute {normal(paths_of(call)[0], places)}"
        return
    if (
        name in ("getcwd", "chdir", "fchdir", "statfs", "fstatfs", "readlink", "readlinkat", "access", "faccessat", "faccessat2")
        or "stat" in name
    ):
        return  # names alone, and what can be read without reading it
    kind = "write" if CHANGES.match(name) or any(flag in call for flag in WRITES) else "read"
    for path in paths_of(call):
        yield f"{kind} {normal(path, places)}"


def normal(path: str, places: list[tuple[str, str]]) -> str:
    """Return the path with what differs between machines put in capitals."""
    for place, word in places:
        if path == place or path.startswith(f"{place}/"):
            return word
    path = re.sub(r"^/(?:usr/)?lib(?:32|64)?/(?:[\w.-]+/)*lib[\w.+-]*\.so[\w.]*$", "LIBRARY", path)
    path = re.sub(r"^/tmp/[a-z0-9_]{8}$", "/tmp/RANDOM", path)
    return re.sub(r"\d+", "N", path)


def own_places(scratch: str, torch: str = "") -> list[tuple[str, str]]:
    """Return folders that lie elsewhere on each machine, the longest first."""
    import torchtune_sys

    found = {
        os.path.dirname(os.path.dirname(os.path.abspath(torchtune_sys.__file__))): "SITE-PACKAGES",
        sysconfig.get_paths()["purelib"]: "SITE-PACKAGES",
        sysconfig.get_paths()["stdlib"]: "PYTHON",
        sys.prefix: "ENVIRONMENT",
        sys.base_prefix: "PYTHON",
        os.path.dirname(os.path.realpath(sys.executable)): "PYTHON",
        f"{scratch}/given": "GIVEN",
        f"{scratch}/made": "MADE",
        scratch: "SCRATCH",
    }
    if torch:
        found |= {os.path.dirname(os.path.dirname(torch)): "TORCH"}
    both = {**found, **{os.path.realpath(place): word for place, word in found.items()}}
    usable = ((place, word) for place, word in both.items() if place not in ("/", "/usr", "/usr/bin"))
    return sorted(usable, key=lambda item: -len(item[0]))


def traced(commands: Commands, tool: tuple[str, ...], torch: str = "") -> set[str]:
    """Return what the commands do as root, one after the other in one stage."""
    with tempfile.TemporaryDirectory(prefix="trace-root-") as scratch:
        stage, log = Path(scratch, "stage"), Path(scratch, "log")
        for folder in (stage, Path(scratch, "given"), Path(scratch, "made")):
            folder.mkdir()
        Path(scratch, "given/train.log").write_text(LOG)
        named = [[word.replace("SCRATCH", scratch).replace("TORCH", torch) for word in words] for words in commands]
        script = "\n".join((STAGE, *(f"traced {shlex.join((*tool, *words))}" for words in named)))
        run = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash", str(stage), str(log)]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=300)
        if not log.exists() or re.search(r"^status [24]$", done.stdout, re.MULTILINE):
            sys.exit(f"trace_root: nothing was traced: {done.stdout}{done.stderr}")
        places = own_places(scratch, torch)
        return {one for call in lines_of(log) for one in touched(call, places)}


def unlisted(found: set[str], patterns: list[str]) -> list[str]:
    """Return what no pattern covers; in a pattern ``*`` stands for anything."""
    return sorted(one for one in found if not any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns))


def patterns_of(path: Path) -> dict[str, list[str]]:
    """Return the patterns of each group; under "" those of all."""
    found: dict[str, list[str]] = {"": []}
    group = ""
    for line in path.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            group = heading[1]
        elif line and not line.startswith("#"):
            found.setdefault(group, []).append(line)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, metavar="LIST", help="patterns, one a line; what none covers is printed")
    parser.add_argument("--only", metavar="GROUPS", default=",".join(COMMANDS), help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--torch", metavar="PYTHON", default="", help="a Python with torch: without it smoke is not run")
    parser.add_argument("command", nargs="*", help="in place of the tool's own commands")
    args = parser.parse_args()
    if os.geteuid() or shutil.which("strace") is None:
        sys.exit("trace_root: needs root that may mount, and strace")
    groups = [name for name in args.only.split(",") if name != "smoke" or args.torch]
    runs: dict[str, Commands] = {"": (tuple(args.command),)} if args.command else {name: COMMANDS[name] for name in groups}
    listed = patterns_of(args.compare) if args.compare else {}
    new, count = [], 0
    for group, commands in runs.items():
        found = traced(commands, () if args.command else TOOL, args.torch)
        count += len(found)
        rows = sorted(found) if args.compare is None else unlisted(found, [*listed[""], *listed.get(group, ())])
        new += [*([f"[{group}]"] if rows and group else []), *rows]
    print("\n".join(new) or f"{count} lines, each covered by {args.compare}")
    return 1 if new and args.compare is not None else 0


if __name__ == "__main__":
    sys.exit(main())
