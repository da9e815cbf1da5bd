"""Processes of users that outlived what started them, and the memory they hold (proc_pid_stat(5), proc_pid_statm(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from torchtune_sys.host import processes
from torchtune_sys.host.trust import user_name

FIRST_USER = 1000
"""Below it are the system's own accounts (UID_MIN, login.defs(5))."""
_NOBODY = 65534


class LeftProcess(NamedTuple):
    parent: int
    name: str


class Left(NamedTuple):
    """One process whose parent is gone, with all that descends from it."""

    pid: int
    user: str
    name: str
    processes: int
    anonymous_bytes: int


def left_processes() -> list[Left]:
    """Return what users' processes without a parent hold, the most first.

    A process of a job that still runs here is none, also where it left its parent; nor is a service, a login's program or a
    container's, which descend from a process of root's or of the user's own systemd.
    """
    found = _processes()
    jobs = _running_jobs(found)
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    left = []
    for pid, process in found.items():
        uid = (
            processes.real_user(pid) if process.parent == 1 else -1
        )  # its directory is root's where it keeps its memory to itself
        if uid < FIRST_USER or uid == _NOBODY or process.name == "systemd":
            continue
        if _job_of(pid) in jobs or _is_service(pid):
            continue
        tree = _below(pid, children)
        left.append(Left(pid, user_name(uid), process.name, len(tree), sum(map(_anonymous_bytes, tree))))
    return sorted(left, key=lambda one: -one.anonymous_bytes)


def at_work(pids: Iterable[int]) -> frozenset[int]:
    """Return those of these processes that belong to a job that still runs here."""
    asked = tuple(pids)
    if not asked:
        return frozenset()
    jobs = _running_jobs(_processes())
    return frozenset(pid for pid in asked if _job_of(pid) in jobs)


def _processes() -> dict[int, LeftProcess]:
    found = {}
    for pid in processes.pids():
        name, closed, rest = processes.text(pid, "stat").partition("(")[2].rpartition(")")
        if closed:  # else it has ended
            found[pid] = LeftProcess(int(rest.split()[1]), name)
    return found


def _anonymous_bytes(pid: int) -> int:
    pages = processes.text(pid, "statm").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 2 else 0


def _running_jobs(found: dict[int, LeftProcess]) -> set[str]:
    """Return the jobs that have a step here: Slurm's step daemon names its own in its title, ``slurmstepd: [123.batch]``. A user's program may call
    itself so, too."""
    daemons = [pid for pid, process in found.items() if process.name.startswith("slurmstepd") and _is_system(pid)]
    titles = [processes.text(pid, "cmdline") for pid in daemons]
    return {title.partition("[")[2].partition(".")[0] for title in titles if "[" in title}


def _is_system(pid: int) -> bool:
    """By who started it: the step daemon takes the rights of the job's user for a while."""
    uid = processes.real_user(pid)
    return 0 <= uid < FIRST_USER or uid == os.getuid()


def _job_of(pid: int) -> str:
    """Return the job that Slurm keeps it for, else the one that started it: who came by ssh (pam_slurm_adopt) has the job's control group alone."""
    job = job_in(processes.text(pid, "cgroup"))
    if job:
        return job
    for entry in processes.text(pid, "environ").split("\0"):
        name, _, value = entry.partition("=")
        if name == "SLURM_JOB_ID":
            return value
    return "none"


def job_in(cgroup: str) -> str:
    """Return the job in the path of a control group (Slurm's cgroup plug-ins, both versions); ``""`` for none.

    >>> job_in("0::/system.slice/slurmstepd.scope/job_17/step_extern/user/task_0"), job_in("4:memory:/slurm/uid_1000/job_18/step_0")
    ('17', '18')
    >>> job_in("0::/system.slice/ssh.service")
    ''
    """
    found = re.search(r"/job_(\d{1,20})(?:/|$)", cgroup, re.MULTILINE)
    return found[1] if found else ""


def _is_service(pid: int) -> bool:
    """Whether systemd keeps it as a service of its own; what slurmd, sshd and cron start, and left behind, is in theirs."""
    text = processes.text(pid, "cgroup")
    units = {part for line in text.split("\n") for part in line.split("/") if part.endswith(".service")}
    return bool(units - {"slurmd.service", "ssh.service", "sshd.service", "cron.service", "crond.service", "atd.service"})


def _below(pid: int, children: dict[int, list[int]]) -> list[int]:
    tree = [pid]
    for one in tree:
        tree += children.get(one, ())
    return tree
