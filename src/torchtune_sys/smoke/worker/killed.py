"""Whether the kernel ended a process for lack of memory."""

from __future__ import annotations

import contextlib
from typing import Iterator, Tuple

OUT_OF_MEMORY = "the kernel killed a process for lack of memory"
MORE_MEMORY = "more memory, or a larger limit"


def memory_kills() -> int:
    """How often it did so far: in this cgroup (v2, v1), else on this machine."""
    for path, key in (*_cgroup_files(), ("/proc/vmstat", "oom_kill")):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == key:
                    return int(count)
    return 0


def _cgroup_files() -> Iterator[Tuple[str, str]]:
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file.read().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield "/sys/fs/cgroup%s/memory.events" % path, "oom_kill"
            elif "memory" in controllers.split(","):
                yield "/sys/fs/cgroup/memory%s/memory.oom_control" % path, "oom_kill"
