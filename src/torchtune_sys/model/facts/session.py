"""Whose session was judged: user, privilege, environment, and what the person asked about."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


class HandedDown(msgspec.Struct, frozen=True, kw_only=True):
    """What a session hands down to each program that it starts, beside its limits and its environment (/proc/self/status)."""

    ignored: tuple[str, ...] = ()
    """Signals that are ignored, of SIGINT, SIGTERM and SIGCHLD."""
    blocked: tuple[str, ...] = ()
    umask: Fact[int] = Missing(Why.NOT_SUPPORTED, "/proc/self/status", "told since Linux 4.7")
    huge_pages: Fact[bool] = Missing(Why.NOT_SUPPORTED, "/proc/self/status", "told since Linux 5.0")
    """Whether transparent huge pages may be used (prctl PR_SET_THP_DISABLE)."""
    personality: Fact[int] = Missing(Why.NOT_SUPPORTED, "/proc/self/personality", "not read")
    """What the session takes Linux for (personality(2)): its last byte is 8 where uname names a 32-bit machine."""
    timer_slack_ns: Fact[int] = Missing(Why.NOT_SUPPORTED, "/proc/self/timerslack_ns", "not read")
    """How late sleeps and time-outs may end (prctl PR_SET_TIMERSLACK)."""


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    user: Fact[str]
    uid: Fact[int]
    sudo_user: Fact[str]
    """Who called sudo; ``""`` if nobody did."""
    passwd_entry: Fact[bool]
    """Whether the UID has an entry in the user database."""
    env: Fact[dict[str, str]]
    """The environment variables that matter to training (never the whole environment)."""
    virtual_env: Fact[str]
    """The active virtual or conda environment, ``""`` if none."""
    cwd: Fact[str]
    preloads: dict[str, Fact[bool]] = {}
    """Libraries that LD_PRELOAD names by path (without the loader's ``$LIB`` …), and whether each is there."""
    system_preloads: dict[str, Fact[bool]] = {}
    """The same of /etc/ld.so.preload, which holds for each program of the host."""
    no_libraries: tuple[str, ...] = ()
    """Of both: what is there, and is no ELF file."""
    named_paths: dict[str, Fact[bool]] = {}
    """Variables that name a program, file or directory (``knowledge/path_variables``), and whether it is there."""
    handed_down: Fact[HandedDown] = Missing(Why.NOT_RECORDED, "/proc/self/status", "not read")
    refusals: Fact[dict[str, str]] = Missing(Why.NOT_RECORDED, "mmap, socket", "not read")
    """Why the kernel refuses this session memory that is written and executed (``code``) and netlink sockets (``netlink``); "" where it does not."""
    devices: Fact[dict[str, str]] = Missing(Why.NOT_RECORDED, "/dev", "not read")
    """Of /dev/null and its like: ``1:3`` (major and minor number), ``1:3 closed`` where this session may not use it, ``ordinary file``, or ``missing``."""
    user_namespace: Fact[bool] = Missing(Why.NOT_RECORDED, "/proc/self/uid_map", "not read")
    """Whether user ids are mapped (rootless and unprivileged containers): root and its capabilities are then those of an ordinary user
    to the kernel's limits (user_namespaces(7))."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What the person means to run here; everything optional, from the command line or the job's environment."""

    ranks: int | None = None
    """Training processes on this host (``--nproc-per-node``)."""
    nodes: int | None = None
    """Hosts in the job; None is unknown, 1 is this host alone."""
    threads: int | None = None
    """OMP threads per rank."""
    workers: int | None = None
    """DataLoader workers per rank."""
    data: tuple[str, ...] = ()
    """Paths of the training data."""
    checkpoints: tuple[str, ...] = ()
    python: str | None = None
    """The interpreter to judge (``--python``); None is the one that the session's environment gives."""
    live: bool = False
    """Whether to import torch in a child process (``--live``)."""
