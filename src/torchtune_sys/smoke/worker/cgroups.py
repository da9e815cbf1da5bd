"""Limits of this process, and of its cgroups, of either version (cgroups(7))."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Iterable, List, Optional, Tuple

NO_LIMIT = resource.RLIM_INFINITY


def limits_of(name: str) -> Tuple[int, int]:
    """Return the soft and the hard limit; none where a filter refuses to tell them, which training does not need."""
    try:
        return resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    except OSError:
        return NO_LIMIT, NO_LIMIT


def cgroup_folders(controller: str) -> List[str]:
    """Return where a controller's files may lie: at the root of what a container sees, or with the host's namespace at its path. Version 1 mounts each controller
    below a name."""
    found = ["/sys/fs/cgroup", "/sys/fs/cgroup/" + controller]
    with contextlib.suppress(OSError, ValueError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers or controller in controllers.split(","):
                root, parts = found[1 if controllers else 0], [part for part in path.split("/") if part]
                found += [
                    os.path.join(root, *parts[:count]) for count in range(1, len(parts) + 1)
                ]  # what holds one holds those in it
    return found


def cpus_of_quota() -> Optional[float]:
    """Return the CPUs that a quota leaves this process, the least of all its cgroups; None where there is none. Each has a period of its own."""
    found: List[float] = []
    for folder in cgroup_folders("cpu"):
        with contextlib.suppress(OSError, ValueError, IndexError), open("%s/cpu.max" % folder) as file:
            quota, period = map(int, file.read().split()[:2])
            found.append(quota / period)
        old, period_of_old = number_in("%s/cpu.cfs_quota_us" % folder), number_in("%s/cpu.cfs_period_us" % folder)
        if old is not None and old > 0 and period_of_old:
            found.append(old / period_of_old)
    return min(found, default=None)


def told_of_quota(ranks: int) -> str:
    """Return that a quota leaves the ranks of this host less than a CPU each; "" where it does not."""
    quota = cpus_of_quota()
    if quota is None or quota >= ranks:
        return ""
    return "a quota of their cgroup leaves the %d ranks of this host %.3g CPUs" % (ranks, quota)


def told_of_memory(folders: Iterable[str]) -> str:
    """Return the least that these cgroups allow, where it is less than the machine has; "" where it is not."""
    paths = ["%s/%s" % (folder, name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    found = [(most, path) for path in paths for most in [number_in(path)] if most is not None]
    least, path = min(found, default=(0, ""))
    if not path or least >= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return ""
    return " (its cgroup allows %.4g MiB: %s)" % (least / 2**20, path)


def number_in(path: str) -> Optional[int]:
    """Return the first number of a file; None where there is none: no such file, or the word max."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
        return int(file.read().split()[0])
    return None


def times_throttled() -> int:
    """Count how often a quota of any of this process's cgroups has held it back; 0 where nobody tells."""
    found = 0
    for folder in {*cgroup_folders("cpu")}:
        with contextlib.suppress(OSError, ValueError, IndexError), open("%s/cpu.stat" % folder) as file:
            found += sum(int(line.split()[1]) for line in file if line.startswith("nr_throttled "))
    return found
