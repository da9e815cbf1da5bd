"""hung_mount.py PLACE [dead]: mount a FUSE file system at PLACE whose server never answers, or is dead. Needs root and /dev/fuse."""

from __future__ import annotations

import ctypes
import os
import sys
import time

place, is_dead = sys.argv[1], "dead" in sys.argv
os.makedirs(place, exist_ok=True)
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"server:/scratch", place.encode(), b"fuse.sshfs", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
if is_dead:
    os.close(server)
elif os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    time.sleep(60)
    os._exit(0)
