"""A file system of a user's that shows another folder as root's own: ``lying_fuse.py MOUNTPOINT FOLDER UID GID [DEPTH [SOURCE]]``. Of what lies
deeper than DEPTH it never answers; SOURCE is what the mount table calls it (fsname=).

Mounted with what fusermount3(1) passes for a user where /etc/fuse.conf has user_allow_other. Source: linux/fuse.h, fuse(4).
"""

import contextlib
import ctypes
import errno
import os
import struct
import sys

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, BATCH_FORGET = 25, 26, 27, 28, 29, 34, 42
NOSUID_NODEV = 2 | 4


class Lying:
    def __init__(self, folder: str) -> None:
        self.paths = {1: folder}
        self.numbers = {folder: 1}

    def attributes(self, path: str) -> bytes:
        info = os.lstat(path)
        mode = info.st_mode & ~0o022
        times = (int(info.st_atime), int(info.st_mtime), int(info.st_ctime))
        return struct.pack(
            "<QQQQQQIIIIIIIIII", info.st_ino, info.st_size, 1, *times, 0, 0, 0, mode, info.st_nlink, 0, 0, 0, 4096, 0
        )

    def number(self, path: str) -> int:
        return self.numbers.setdefault(path, self._new(path))

    def _new(self, path: str) -> int:
        number = self.numbers.get(path, len(self.paths) + 1)
        self.paths[number] = path
        return number

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        path = self.paths.get(node, "")
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 12, 10, 1 << 16, 1, 0, 0, 0, *[0] * 7)
        if operation == LOOKUP:
            here = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            told = self.attributes(here)
            return struct.pack("<QQQQII", self.number(here), 0, 1, 1, 0, 0) + told
        if operation == GETATTR:
            return struct.pack("<QII", 1, 0, 0) + self.attributes(path)
        if operation == READLINK:
            return os.fsencode(os.readlink(path))
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with open(path, "rb") as file:
                file.seek(offset)
                return file.read(size)
        if operation == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            told = b""
            for number, name in enumerate([".", "..", *sorted(os.listdir(path))]):
                one = os.fsencode(name)
                entry = struct.pack("<QQII", number + 1, number + 1, len(one), 0) + one
                entry += b"\0" * (-len(entry) % 8)
                if number >= offset and len(told) + len(entry) <= size:
                    told += entry
            return told
        if operation == STATFS:
            return struct.pack("<QQQQQIIII6I", 1 << 20, 1 << 19, 1 << 19, 1 << 16, 1 << 15, 4096, 255, 4096, 0, *[0] * 6)
        if operation in (FLUSH, RELEASE, RELEASEDIR, ACCESS):
            return b""
        raise OSError(errno.ENOSYS, "")


def main(place: str, folder: str, uid: str, gid: str, depth: str = "", source: str = "lying") -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    words = f"fd={device},rootmode=40000,user_id={uid},group_id={gid},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), os.fsencode(place), b"fuse", NOSUID_NODEV, words.encode()):
        raise SystemExit(f"mount: {os.strerror(ctypes.get_errno())}")
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    print("mounted", flush=True)
    served = Lying(folder)
    while True:
        try:
            asked = os.read(device, 1 << 18)
        except OSError:
            return
        _, operation, unique, node = struct.unpack_from("<IIQQ", asked)
        deep = operation != INIT and (node != 1 or operation == LOOKUP or depth == "0")
        if operation in (FORGET, BATCH_FORGET) or (depth and deep):
            continue
        try:
            told, error = served.answer(operation, node, asked[40:]), 0
        except OSError as failed:
            told, error = b"", -(failed.errno or errno.EIO)
        with contextlib.suppress(OSError):
            os.write(device, struct.pack("<IiQ", 16 + len(told), error, unique) + told)


if __name__ == "__main__":
    main(*sys.argv[1:])
