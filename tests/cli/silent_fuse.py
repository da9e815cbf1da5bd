"""A FUSE whose server answers nothing but its own start and what the root is: what waits for it waits in the kernel, and is not ended by a kill.

The protocol: linux/fuse.h (fuse_in_header, fuse_init_out, fuse_attr_out).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = r"""
import ctypes, os, struct, sys
INIT, GETATTR = 26, 3
handle = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % handle
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 6, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
while True:
    request = os.read(handle, 1 << 20)
    size, opcode, unique = struct.unpack_from("<IIQ", request)
    if opcode == INIT:
        body = struct.pack("<IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0, *[0] * 7)
    elif opcode == GETATTR:
        body = struct.pack("<QII", 1, 0, 0) + struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096, 0)
    else:
        continue
    os.write(handle, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
"""


@contextlib.contextmanager
def silent_fuse(place: Path) -> Iterator[Path]:
    """The file system at ``place``. Skips where this machine allows none."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("a FUSE of one's own needs root and /dev/fuse")
    place.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stderr is not None
    try:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no FUSE can be mounted here: {server.stderr.read().strip()}")
        yield place
    finally:
        server.kill()  # whoever waits is let go: the connection is aborted when /dev/fuse is closed
        server.communicate()
        ctypes.CDLL(None).umount2(os.fsencode(place), 2)  # MNT_DETACH
