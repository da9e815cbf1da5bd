"""Resource limits of this session, the cgroup's limit on tasks, and logind's RemoveIPC."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import NAMES, LimitsFacts, ServiceLimits, SessionLimit
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import cgroup
from torchtune_sys.probes.limits import logind

_PROC = "/proc/self/limits"
_CAP_IPC_LOCK = 14
"""Number of the capability in linux/capability.h."""


def probe(host: Host, intent: Workload) -> LimitsFacts:
    files = logind.files(host)
    remove, remove_source = logind.remove_ipc(host, files)
    services, propagates = _services(host)
    limits = _limits(host)
    return LimitsFacts(
        limits=limits,
        user_tasks=_user_tasks(host, limits.get("nproc")),
        **_pids(host),
        aio_requests=_aio_requests(host),
        ipc_lock=_ipc_lock(host),
        remove_ipc=remove,
        remove_ipc_source=remove_source,
        kills_at_logout=logind.kills_at_logout(files, _user(host)),
        slurm=_slurm(host),
        services=services,
        slurm_propagates_memlock=propagates,
    )


def _user(host: Host) -> str:
    who = host.ask(queries.UID)
    name = who.get("user") if isinstance(who, dict) else None
    return name if isinstance(name, str) else ""


def _aio_requests(host: Host) -> Fact[tuple[int, int]]:
    used, most = host.number("/proc/sys/fs/aio-nr"), host.number("/proc/sys/fs/aio-max-nr")
    if isinstance(used, Missing):
        return used
    return most if isinstance(most, Missing) else (used, most)


_MANY_TASKS = 32_768
"""A limit above it, as systemd has it on hosts with 8 GB and more, is not counted against: reading all of /proc takes time."""


def _user_tasks(host: Host, limit: Fact[SessionLimit] | None) -> Fact[int]:
    if limit is None or isinstance(limit, Missing) or limit.soft is None or limit.soft > _MANY_TASKS:
        return Missing(Why.ABSENT, "RLIMIT_NPROC", "no low limit on the user's tasks")
    found = host.ask(queries.USER_TASKS)
    if isinstance(found, (Missing, int)):
        return found
    return Missing(Why.UNPARSED, queries.USER_TASKS, "not a number")


def _services(host: Host) -> tuple[Fact[tuple[ServiceLimits, ...]], Fact[bool]]:
    devices = host.names("/sys/class/infiniband")
    if isinstance(devices, Missing):
        return devices, devices
    from torchtune_sys.probes.limits import services as service_limits  # its time to load is for hosts with RDMA alone

    found = service_limits.look(host)
    return found, found if isinstance(found, Missing) else service_limits.slurm_propagates(host)


def _limits(host: Host) -> dict[str, Fact[SessionLimit]]:
    """From the system call on a live host, from /proc/self/limits of a recorded tree."""
    answer = host.ask(queries.RLIMITS)
    if not isinstance(answer, Missing):
        return parse_answer(answer)
    text = host.text(_PROC)
    if isinstance(text, Missing):
        return dict.fromkeys(NAMES, answer)
    from torchtune_sys.formats.process_limits import of_kernel

    found = of_kernel(text)
    return {name: found[name] if name in found else Missing(Why.UNPARSED, _PROC, f"no line for {name}") for name in NAMES}


def parse_answer(answer: object) -> dict[str, Fact[SessionLimit]]:
    """Parse ``{"nofile": [soft, hard]}`` with null for unlimited.

    >>> parse_answer({"nofile": [1024, None]})["nofile"]
    SessionLimit(soft=1024, hard=None)
    """
    found: dict[str, Fact[SessionLimit]] = {}
    for name in NAMES:
        pair = answer.get(name) if isinstance(answer, dict) else None
        good = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(value is None or _is_count(value) for value in pair)
        if good and isinstance(pair, (list, tuple)):
            found[name] = SessionLimit(soft=pair[0], hard=pair[1])
        elif isinstance(answer, dict) and name not in answer:
            found[name] = Missing(Why.NOT_RECORDED, "getrlimit", f"an older release did not ask for {name}")
        else:
            found[name] = Missing(Why.UNPARSED, "getrlimit", f"no pair of numbers for {name}")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parse_capability(status: str, number: int) -> bool:
    r"""Return whether the effective set in /proc/<pid>/status holds a capability. Raises ValueError without a CapEff line.

    >>> parse_capability("CapEff:\t000001ffffffffff\n", 14), parse_capability("CapEff:\t00000000a80425fb\n", 14)
    (True, False)
    """
    for line in status.split("\n"):
        if line.startswith("CapEff:"):
            return bool(int(line[7:].strip(), 16) >> number & 1)
    raise ValueError("no line CapEff")


def _ipc_lock(host: Host) -> Fact[bool]:
    status = "/proc/self/status"
    return interpreted(host.text(status), lambda text: parse_capability(text, _CAP_IPC_LOCK), status)


def _slurm(host: Host) -> Fact[bool]:
    seen = [host.exists(path) for path in ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")]
    return True if True in seen else seen[0]


def _pids(host: Host) -> dict[str, Any]:
    """Return the tightest pids.max, how many tasks that very group holds now, and how many it refused."""
    files = ("pids.max",)
    limit, source = cgroup.tightest(host, "pids", {1: files, 2: files}, lambda texts: cgroup.parse_max(texts[0]))
    if not source:
        nothing = Missing(Why.ABSENT, "pids.current", "no cgroup limits the number of tasks")
        return {"pids_max": limit, "pids_current": nothing, "pids_source": "", "pids_refused": nothing}
    folder = source.removesuffix("pids.max")
    events = interpreted(host.text(f"{folder}pids.events"), lambda text: cgroup.counter(text, "max") or 0, f"{folder}pids.events")
    return {
        "pids_max": limit,
        "pids_current": host.number(f"{folder}pids.current"),
        "pids_source": source,
        "pids_refused": events,
    }
