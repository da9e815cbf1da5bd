"""A cable with a delay, in user space: two TAP devices, one in a host, one at the switch.
``delay_link.py OUTER BRIDGE NAMESPACE INNER DELAY_S [JITTER_S]``

For kernels without netem. Says "ready" once both ends are there.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000


def tap(name: str) -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return handle


def main() -> None:
    outer, bridge, space, inner, *figures = sys.argv[1:]
    delay, jitter = [*map(float, figures), 0.0][:2]
    ends = tap(outer), tap(outer + "i")
    subprocess.run(["ip", "link", "set", outer + "i", "netns", space, "name", inner], check=True)
    subprocess.run(["ip", "link", "set", outer, "master", bridge, "up"], check=True)
    subprocess.run(["ip", "-n", space, "link", "set", inner, "up"], check=True)
    print("ready", flush=True)
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        left = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        ready, _, _ = select.select(ends, [], [], left)
        for handle in ready:
            other = ends[1] if handle == ends[0] else ends[0]
            due, frame = time.monotonic() + delay + random.random() * jitter, os.read(handle, 65536)
            due = max([due, *(before for before, to, _frame in waiting if to == other)])  # none overtakes another
            waiting.append((due, other, frame))
        waiting = deque(sorted(waiting, key=lambda each: each[0]))
        while waiting and waiting[0][0] <= time.monotonic():
            _due, handle, frame = waiting.popleft()
            try:
                os.write(handle, frame)
            except OSError:
                continue


main()
