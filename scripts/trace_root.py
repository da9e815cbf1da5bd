"""Print what a run as root reads, executes, writes, and listens on, from strace; compare it with the committed list.

    python scripts/trace_root.py                        # the set, one normalised line each
    python scripts/trace_root.py --compare LIST         # exit 1, and print what is not in LIST
    python scripts/trace_root.py --compare LIST -- CMD  # of another command

``check``, ``plan`` and ``apply`` of one change are run. The change is made in a mount namespace of its own: /etc is an overlay, the
kernel setting is a copy, the journal lies on a tmpfs. Needs root that may mount, and strace.
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
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check", "--quiet"),
    ("plan", "--format", "json", "--only", CHANGE),
    ("apply", "--yes", "--only", CHANGE),
    ("undo", "--yes"),
)
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
    strace -f -qq -y -s 512 -A -o "$log" -e trace=%file,bind,listen,connect,ftruncate,fchmod,fchown "$@" || echo "status $?"
}
log=$2
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
            yield f"{name} {address[1]} {normal(re.sub(r'[^ -~]', '', address[2] or ''), places)}".strip()
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
    return re.sub(r"\d+", "N", path)


def own_places(scratch: str) -> list[tuple[str, str]]:
    """Return folders that lie elsewhere on each machine, the longest first."""
    import torchtune_sys

    found = {
        os.path.dirname(os.path.dirname(os.path.abspath(torchtune_sys.__file__))): "SITE-PACKAGES",
        sysconfig.get_paths()["purelib"]: "SITE-PACKAGES",
        sysconfig.get_paths()["stdlib"]: "PYTHON",
        sys.prefix: "ENVIRONMENT",
        sys.base_prefix: "PYTHON",
        os.path.dirname(os.path.realpath(sys.executable)): "PYTHON",
        scratch: "SCRATCH",
    }
    both = {**found, **{os.path.realpath(place): word for place, word in found.items()}}
    usable = ((place, word) for place, word in both.items() if place not in ("/", "/usr", "/usr/bin"))
    return sorted(usable, key=lambda item: -len(item[0]))


def traced(commands: tuple[tuple[str, ...], ...], tool: tuple[str, ...]) -> set[str]:
    """Return what the commands do as root, one after the other in one stage."""
    with tempfile.TemporaryDirectory(prefix="trace-root-") as scratch:
        stage, log = Path(scratch, "stage"), Path(scratch, "log")
        stage.mkdir()
        script = "\n".join((STAGE, *(f"traced {shlex.join((*tool, *words))}" for words in commands)))
        run = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash", str(stage), str(log)]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
        if not log.exists() or "status 4" in done.stdout:
            sys.exit(f"trace_root: nothing was traced: {done.stdout}{done.stderr}")
        places = own_places(scratch)
        return {one for call in lines_of(log) for one in touched(call, places)}


def unlisted(found: set[str], patterns: list[str]) -> list[str]:
    """Return what no pattern covers; in a pattern ``*`` stands for anything."""
    return sorted(one for one in found if not any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns))


def patterns_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, metavar="LIST", help="patterns, one a line; what none covers is printed")
    parser.add_argument("command", nargs="*", help="in place of the tool's own commands")
    args = parser.parse_args()
    if os.geteuid() or shutil.which("strace") is None:
        sys.exit("trace_root: needs root that may mount, and strace")
    found = traced((tuple(args.command),), ()) if args.command else traced(COMMANDS, TOOL)
    if args.compare is None:
        print("\n".join(sorted(found)))
        return 0
    new = unlisted(found, patterns_of(args.compare))
    print("\n".join(new) or f"{len(found)} lines, each covered by {args.compare}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
