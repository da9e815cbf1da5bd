"""Print everything below some directories and every value that is set: one JSON pair a line.

Runs in guests that are emulated, a call of the kernel at a time: it makes as few as it can.
"""

import glob
import hashlib
import os
import stat
import sys
from json.encoder import encode_basestring_ascii as quoted

SOME = (
    *("/proc/sys/vm/*", "/proc/sys/net/core/*", "/proc/sys/net/ipv4/tcp_*", "/proc/sys/kernel/*"),
    "/sys/kernel/mm/transparent_hugepage/*",
)
ALL = ("/proc/sys", "/sys/block", "/sys/bus", "/sys/class", "/sys/devices", "/sys/kernel/mm", "/sys/module")
MOVING = ("/proc/sys/kernel/random", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/cad_pid")
OURS = "/var/lib/torchtune-sys"


def state(path: str) -> str:
    about = os.lstat(path)
    attributes = {
        name: os.getxattr(path, name, follow_symlinks=False).hex() for name in os.listxattr(path, follow_symlinks=False)
    }
    content = ""
    if stat.S_ISLNK(about.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(about.st_mode):
        content = hashlib.sha256(read(path)).hexdigest()
    return f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {attributes} {content}"


def value(path: str) -> str:
    try:
        return read(path).decode("utf-8", "replace")
    except OSError as error:
        return str(error)


def read(path: str) -> bytes:
    handle, parts = os.open(path, os.O_RDONLY), []
    try:
        while part := os.read(handle, 1 << 16):
            parts.append(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def tell(path: str, what: str) -> None:
    print(f"SEEN [{quoted(path)}, {quoted(what)}]")


def writable(top: str) -> list[str]:
    """The files below that may be written, links not followed."""
    found = []
    for place, _, files in os.walk(top):
        for name in files:
            mode = os.lstat(f"{place}/{name}").st_mode
            if mode & 0o200 and mode & 0o444 and stat.S_ISREG(mode):
                found.append(f"{place}/{name}")
    return found


def main() -> None:
    for top in ("/etc", "/boot/grub/grub.cfg", "/var/lib") if "all" in sys.argv else ("/etc", "/var/lib"):
        if os.path.isfile(top):
            tell(top, state(top))
        for place, folders, files in os.walk(top):
            folders[:] = [name for name in folders if f"{place}/{name}" != OURS]
            for name in (*folders, *files):
                tell(f"{place}/{name}", state(f"{place}/{name}"))
    if "all" in sys.argv:
        values = sorted({path for top in ALL for path in writable(top)})
    else:
        values = sorted(path for pattern in SOME for path in glob.glob(pattern) if os.path.isfile(path))
    for path in values:
        if path not in MOVING:
            tell(path, value(path))


main()
