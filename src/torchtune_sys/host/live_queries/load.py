"""Measure each service's processor time, wake-ups and memory over a short window (proc_pid_stat(5))."""

from __future__ import annotations

import os
import time
from typing import Any

from torchtune_sys.host import processes
from torchtune_sys.host.base import missing_from
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why

WINDOW_S = 1.0
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD (include/linux/sched.h)."""
_TRAINING = ("python", "torchrun", "pt_", "accelerate", "deepspeed", "mpirun", "ray::")
_WORKLOADS = ("/kubepods", "/docker/", "/docker-", "/slurm", "/lxc", "/machine.slice", "/libpod")
_UNITS = (".service", ".scope", ".slice")


def services(argument: str, timeout_s: float) -> Fact[Any]:
    """Return ``{"window_s", "units": [{"name", "cores", "wakeups_per_s", "rss_bytes", "processes"}]}``, the busiest first; without this
    tool and its session, jobs (by their program and their control group) and the kernel's threads."""
    window_s = min(WINDOW_S, timeout_s / 3)
    try:
        before, start = sample(), time.monotonic()
        time.sleep(window_s)
        after, passed_s = sample(), time.monotonic() - start
        tick_s, page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError) as error:
        return missing_from(error, "/proc") if isinstance(error, OSError) else Missing(Why.UNPARSED, "/proc", str(error)[:80])
    units: dict[str, dict[str, Any]] = {}
    for pid, (name, began, ticks, pages, switches) in after.items():
        old = before.get(pid)
        unit = _unit(pid, name) if old is not None and old[1] == began else ""
        if old is None or not unit:
            continue
        load = units.setdefault(unit, {"name": unit, "cores": 0.0, "wakeups_per_s": 0.0, "rss_bytes": 0, "processes": 0})
        load["cores"] += max(ticks - old[2], 0) * tick_s / passed_s
        load["wakeups_per_s"] += max(switches - old[4], 0) / passed_s
        load["rss_bytes"] += pages * page
        load["processes"] += 1
    busiest = sorted(units.values(), key=lambda unit: (-unit["cores"], -unit["rss_bytes"]))[:200]
    return {"window_s": round(passed_s, 3), "units": [_rounded(unit) for unit in busiest]}


def _rounded(unit: dict[str, Any]) -> dict[str, Any]:
    return {**unit, "cores": round(unit["cores"], 3), "wakeups_per_s": round(unit["wakeups_per_s"], 1)}


def user_tasks(_argument: str, _timeout_s: float) -> Fact[Any]:
    """Return the number of threads of all processes of this user (proc(5): num_threads in stat)."""
    uid, threads = os.getuid(), 0
    try:
        found = processes.pids()
    except OSError as error:
        return missing_from(error, "/proc")
    for pid in found:
        words = processes.text(pid, "stat").rpartition(")")[2].split() if processes.owner(pid) == uid else []
        threads += natural(words[17]) or 0 if len(words) > 17 else 0
    return threads


def parse_stat(text: str) -> tuple[str, int, int, int, int, int] | None:
    """Name, session, flags, start, processor ticks and resident pages; None where it is not such a line.

    >>> parse_stat("7 (a) b) S 1 7 5 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0 99 1000 250 1")
    ('a) b', 5, 4194560, 99, 42, 250)
    """
    name, closed, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    if not closed or len(words) < 22:
        return None
    try:
        return name, int(words[3]), int(words[6]), int(words[19]), int(words[11]) + int(words[12]), int(words[21])
    except ValueError:
        return None


def unit_of(text: str) -> str:
    r"""Return the unit that a /proc/PID/cgroup names, ``""`` for the root and where a batch system or container runtime keeps its jobs,
    which are not services. What runs in a user's slice bears the name that the user chose, and is told with whose it is.

    >>> unit_of("0::/user.slice/user-7.slice/user@7.service/app.slice/sshd.service")
    'sshd.service of user 7'
    >>> unit_of("0::/system.slice/snapd.service\n"), unit_of("3:cpu:/mine\n1:name=systemd:/\n"), unit_of("0::/")
    ('snapd.service', '/mine', '/')
    >>> unit_of("0::/kubepods.slice/x.scope")
    ''
    """
    paths = [
        line.split(":", 2)[2] for line in text.split("\n") if line.count(":") >= 2
    ]  # a group may have a name with other ends of a line
    path = max(paths, key=lambda path: (any(path.endswith(end) for end in _UNITS), len(path)), default="/")
    if any(word in other for other in paths for word in _WORKLOADS):
        return ""
    parts = [part for part in path.split("/") if part.endswith(_UNITS[:2])]
    user = path.partition("/user-")[2].partition(".slice")[0]
    whose = f" of user {user}" if user.isascii() and user.isdigit() and len(user) < 11 else ""
    return (parts[-1] if parts else path)[:100] + whose


def sample() -> dict[int, tuple[str, int, int, int, int]]:
    """Name, start, processor ticks, resident pages and wake-ups of each process that may belong to a service, by its id."""
    own, found = os.getsid(0), {}
    for pid in processes.pids():
        stat = parse_stat(processes.text(pid, "stat"))
        if stat is None or stat[2] & _KERNEL_THREAD or stat[1] == own or stat[0].startswith(_TRAINING):
            continue
        found[pid] = (stat[0], stat[3], stat[4], stat[5], _switches(pid))
    return found


def _switches(pid: int) -> int:
    """Count the times that the main thread went to sleep of its own: each ends in a wake-up."""
    value = processes.text(pid, "status").partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0].strip()
    return natural(value) or 0


def _unit(pid: int, name: str) -> str:
    text = processes.text(pid, "cgroup")
    unit = unit_of(text) if text else ""
    return f"{name} (no unit)" if unit == "/" else unit
