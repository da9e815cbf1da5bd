"""left_behind.py MIB FILE [UID]: a process of a user (12345) that holds MIB and has no parent; FILE gets its id once it holds all."""

from __future__ import annotations

import os
import sys
import time

amount, file, uid = int(sys.argv[1]) << 20, sys.argv[2], int((sys.argv[3:] or ["12345"])[0])
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    held = b"\1" * amount
    os.write(write_end, str(os.getpid()).encode())
    os.close(write_end)
    time.sleep(120)
    os._exit(len(held) & 0)
os.close(write_end)
with open(file, "wb") as told:
    told.write(os.read(read_end, 100))
