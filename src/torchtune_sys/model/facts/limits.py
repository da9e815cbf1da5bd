"""Resource limits of this session."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "limits", "not read")


NAMES = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack")
"""Of limits.conf(5)."""


class SessionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Soft and hard limit; None is unlimited. Bytes for memory sizes, seconds for ``cpu``, counts for the rest."""

    soft: int | None
    hard: int | None


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A running service that starts jobs or containers."""

    unit: str
    """Without ``.service``: ``slurmd``, ``containerd`` …"""
    pid: int
    """0 where its process was not seen, and its unit file tells."""
    memlock: Fact[SessionLimit]
    """RLIMIT_MEMLOCK of its process, bytes; what it starts inherits it."""
    nofile: Fact[SessionLimit] = _NOT_READ
    """RLIMIT_NOFILE, descriptors."""
    tasks_max: Fact[float] = _NOT_READ
    """pids.max of its control group, ``inf`` if unlimited; NOT_SUPPORTED where its jobs run outside of it (Slurm on cgroup v2)."""
    source: str = ""
    """Where the limits were read: /proc/PID/limits, or the unit file."""


class LimitsFacts(msgspec.Struct, frozen=True, kw_only=True):
    limits: dict[str, Fact[SessionLimit]]
    """By :data:`NAMES`."""
    pids_max: Fact[float]
    """The cgroup's pids.max, the minimum over all ancestors; ``inf`` if unlimited."""
    pids_current: Fact[int]
    pids_source: str
    pids_refused: Fact[int] = _NOT_READ
    """How often that group refused a task (pids.events, of cgroup version 2); NOT_SUPPORTED where no group limits their number, or none counts."""
    ipc_lock: Fact[bool]
    """Whether this session holds CAP_IPC_LOCK, which lifts the limit on locked memory."""
    remove_ipc: Fact[bool]
    """logind's RemoveIPC in effect; ABSENT where systemd-logind is not installed."""
    remove_ipc_source: str
    """The file and line that sets it, or that it is logind's built-in choice."""
    slurm: Fact[bool]
    """Whether Slurm is set up here: its jobs are no login sessions for logind."""
    aio_requests: Fact[tuple[int, int]] = _NOT_READ
    """Requests that programs have reserved for asynchronous I/O (libaio), and how many all may (fs.aio-nr, fs.aio-max-nr)."""
    user_tasks: Fact[int] = _NOT_READ
    """Threads that the user has already, on which the limit nproc counts; ABSENT where that limit is high."""
    kills_at_logout: Fact[str] = _NOT_READ
    """The file and line that sets logind's KillUserProcesses to yes, or names this user in KillOnlyUsers, ``""`` where none does for this user; ABSENT where systemd-logind is not installed."""
    services: Fact[tuple[ServiceLimits, ...]] = _NOT_READ
    """Services that jobs inherit their limits from; ABSENT where there is no RDMA device, which alone needs much locked memory."""
    pinning_failed: Fact[str] = _NOT_READ
    """The verbs call that a report shows to have failed with "Cannot allocate memory"."""
    slurm_propagates_memlock: Fact[bool] = _NOT_READ
    """Whether Slurm hands on the submitting shell's limit; ABSENT without a slurm.conf, or without an RDMA device."""
