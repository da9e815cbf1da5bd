"""A machine of its own for applying and undoing: files laid over /proc/sys, /sys, /etc and /var, in a mount namespace.

Run as ``unshare --mount --propagation private python crash_machine.py COMMAND …``; the tests start it that way.
``points`` prints one JSON line per system call that writes or syncs: the process was killed there, undone, and compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from forked import in_child

CALLS = (
    *(
        "write",
        "pwrite64",
        "fsync",
        "fdatasync",
        "rename",
        "renameat",
        "renameat2",
        "unlink",
        "unlinkat",
        "rmdir",
        "mkdir",
        "mkdirat",
    ),
    *("ftruncate", "fchmod", "chmod", "fchmodat", "fchown", "chown", "setxattr", "fsetxattr", "fremovexattr"),
)
VALUES = {
    "/proc/sys/vm/max_map_count": "3000\n",
    "/proc/sys/vm/dirty_ratio": "20\n",
    "/proc/sys/vm/dirty_bytes": "0\n",
    "/proc/sys/vm/overcommit_memory": "2\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "never\n",
}
"""Laid over with plain files that hold this. dirty_ratio and dirty_bytes do not move each other here: see tests/vm for that."""
KEPT = "/etc/sysctl.d/99-torchtune-sys.conf"
OLD = (
    b"# Made by torchtune-sys; torchtune-sys undo takes it back.\n\n# vm.old (x): y\nvm.old = 1\n# by hand, no newline at the end"
)
FLAG = "/etc/torchtune-crash-flag"


def lay(root: Path) -> None:
    """Mount the stage: an overlay over /etc, an empty /var/lib, plain files over the values."""
    mount("-t", "tmpfs", "none", str(root))
    for name in ("upper", "work", "values", "state"):
        (root / name).mkdir()
    mount("-t", "overlay", "o", "-o", f"lowerdir=/etc,upperdir={root}/upper,workdir={root}/work", "/etc")
    os.makedirs("/var/lib/torchtune-sys", exist_ok=True)
    mount("--bind", str(root / "state"), "/var/lib/torchtune-sys")
    for path, content in VALUES.items():
        plain = root / "values" / path.replace("/", "_")
        plain.write_text(content)
        mount("--bind", str(plain), path)


def mount(*args: str) -> None:
    subprocess.run(("mount", *args), check=True)


def set_up() -> None:
    """The state that everything must come back to: a file of ours that is there already, with a mode, an owner and an attribute."""
    for path, content in VALUES.items():
        Path(path).write_text(content)
    Path(KEPT).write_bytes(OLD)
    os.chmod(KEPT, 0o640)
    os.chown(KEPT, 7, 8)
    os.setxattr(KEPT, "trusted.torchtune", b"\x00kept")
    for left in Path("/var/lib/torchtune-sys").iterdir():
        left.unlink()


def fingerprint() -> dict[str, str]:
    """Every file below the directories that are written, and every value."""
    found = {path: Path(path).read_text() for path in VALUES}
    for folder in ("/etc/sysctl.d", "/etc/tmpfiles.d", "/etc/systemd/system"):
        for place, folders, files in os.walk(folder):
            found |= {f"{place}/{name}/": "" for name in folders}
            found |= {f"{place}/{name}": state(f"{place}/{name}") for name in files}
    found[FLAG] = str(os.path.exists(FLAG))
    return found


def state(path: str) -> str:
    if os.path.islink(path):
        return os.readlink(path)
    about = os.stat(path)
    attributes = {name: os.getxattr(path, name).hex() for name in os.listxattr(path)}
    return f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {attributes} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def do(what: str, call: str = "", at: int = 0) -> int:
    """Run ``apply`` or ``undo`` in a child; with ``call``, kill it as it makes that system call for the ``at``-th time.

    Returns the child's status, negative if it was killed.
    """
    import crash_run  # which asks this module for the stage

    strace = ("-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}") if call else ()
    return in_child(lambda: (crash_run.main(what), ""), strace)[0]


def points(what: str, limit: int) -> None:
    """Kill ``what`` at each call's first, second, third … time until it survives; undo each time, and compare."""
    for call in CALLS:
        for at in range(1, limit + 1):
            set_up()
            before = fingerprint()
            if what == "undo" and do("apply"):
                raise SystemExit("apply failed")
            killed = do(what, call, at) != 0
            changed = fingerprint() != before
            undone = do("undo")
            now = fingerprint()
            wrong = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
            print(
                json.dumps({"at": f"{call} {at}", "killed": killed, "changed": changed, "undo": undone, "wrong": wrong}),
                flush=True,
            )
            if not killed:
                break


if __name__ == "__main__":
    lay(Path(sys.argv[1]))
    points(sys.argv[2], int(sys.argv[3]))
