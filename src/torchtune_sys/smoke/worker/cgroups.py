"""Limits of this process's cgroups, of either version (cgroups(7))."""

from __future__ import annotations

import contextlib
from typing import List, Optional


def cgroup_folders(controller: str) -> List[str]:
    """Return where a controller's files may lie: at the root of what a container sees, or with the host's namespace at its path. Version 1 mounts each controller
    below a name."""
    found = ["/sys/fs/cgroup", "/sys/fs/cgroup/" + controller]
    with contextlib.suppress(OSError, ValueError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers or controller in controllers.split(","):
                found.append(found[1 if controllers else 0] + path)
    return found


def number_in(path: str) -> Optional[int]:
    """Return the first number of a file; None where there is none: no such file, or the word max."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
        return int(file.read().split()[0])
    return None
