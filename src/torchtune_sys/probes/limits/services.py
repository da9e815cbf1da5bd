"""Limits of the running services that start jobs: a job inherits from them, not from the shell that somebody looks into.

The process of a unit stands in its cgroup's ``cgroup.procs``, so that no walk over /proc is needed (a GPU host has thousands of kernel
threads). /proc/PID/limits may be read by everybody unless proc is mounted with hidepid.
"""

from __future__ import annotations

from torchtune_sys.formats.process_limits import of_kernel
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import ServiceLimits
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, known, need
from torchtune_sys.probes.drop_ins import first_text

UNITS = {
    "slurmd": ("slurmd",),
    "pbs": ("pbs_mom",),
    "lsfd": ("sbatchd", "res"),
    "jupyterhub": ("jupyterhub", "python", "python3"),
    "ray": ("raylet", "ray", "python", "python3"),
    "containerd": ("containerd",),
    "crio": ("crio",),
    "k3s": ("k3s-server",),
    "k3s-agent": ("k3s-agent",),
    "rke2-agent": ("rke2", "containerd"),
    "kubelet": ("kubelet",),
}
"""Unit without ``.service``, and the names (comm, fifteen characters at most) of the process that starts the jobs."""
_SLICES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""cgroup v2, and the hierarchy that systemd keeps for itself on v1."""
_PID_FILES = {
    "slurmd": ("/run/slurmd.pid", "/run/slurm/slurmd.pid", "/run/slurm-llnl/slurmd.pid"),
    "crio": ("/run/crio/crio.pid",),
}
_MOST_PROCESSES = 40
"""The service's own process is among the first of its cgroup: shims and children come later."""


@fact
def look(host: Host) -> Fact[tuple[ServiceLimits, ...]]:
    """Return the services that run here, with their limits. ABSENT where no RDMA device is there to register memory with."""
    devices = need(host.names("/sys/class/infiniband"))
    if not devices:
        return Missing(Why.ABSENT, "/sys/class/infiniband", "no RDMA device")
    listed = {place: host.names(place) for place in _SLICES}
    slices = [(place, names) for place, names in listed.items() if not isinstance(names, Missing)]
    unseen = [names for names in listed.values() if isinstance(names, Missing) and not absent_or_unrecorded(names)]
    if unseen and not slices:
        return unseen[0]
    found = []
    for unit, comms in UNITS.items():
        pid = _pid(host, unit, comms, slices)
        if pid or (not slices and _enabled(host, unit)):
            found.append(_service(host, unit, pid))
    return tuple(found)


def _enabled(host: Host, unit: str) -> bool:
    """Whether a recording without processes says that systemd starts it."""
    return not isinstance(host.link(f"/etc/systemd/system/multi-user.target.wants/{unit}.service"), Missing)


def _service(host: Host, unit: str, pid: int) -> ServiceLimits:
    path = f"/proc/{pid}/limits"
    text = host.text(path) if pid else Missing(Why.NOT_RECORDED, path, "no processes are recorded")
    tasks = _tasks_max(host, unit)
    if isinstance(text, Missing):
        from torchtune_sys.probes.limits import units as unit_limits

        memlock, nofile, place = unit_limits.look(host, unit)
        if isinstance(memlock, Missing) and isinstance(nofile, Missing):
            return ServiceLimits(unit=unit, pid=pid, memlock=text, nofile=text, tasks_max=tasks, source=path)
        return ServiceLimits(unit=unit, pid=pid, memlock=memlock, nofile=nofile, tasks_max=tasks, source=place)
    limits = of_kernel(text)
    memlock = limits.get("memlock", Missing(Why.UNPARSED, path, "no line Max locked memory"))
    nofile = limits.get("nofile", Missing(Why.UNPARSED, path, "no line Max open files"))
    return ServiceLimits(unit=unit, pid=pid, memlock=memlock, nofile=nofile, tasks_max=tasks, source=path)


def _tasks_max(host: Host, unit: str) -> Fact[float]:
    path = f"/sys/fs/cgroup/system.slice/{unit}.service/pids.max"
    word = host.word(path)
    if unit == "slurmd" and not isinstance(word, Missing):
        return Missing(Why.NOT_SUPPORTED, path, "the steps of its jobs run in a scope of their own")
    if absent_or_unrecorded(word):
        path = f"/sys/fs/cgroup/pids/system.slice/{unit}.service/pids.max"
        word = host.word(path)
    if isinstance(word, Missing):
        return word
    if word == "max":
        return float("inf")
    number = natural(word, 18)
    return Missing(Why.UNPARSED, path, f"not a number of tasks: {word[:40]!r}") if number is None else float(number)


def _pid(host: Host, unit: str, comms: tuple[str, ...], slices: list[tuple[str, tuple[str, ...]]]) -> int:
    places = [f"{place}/{unit}.service/cgroup.procs" for place, names in slices if f"{unit}.service" in names]
    for path in (*places, *_PID_FILES.get(unit, ())):
        pid = _first_of(host, known(host.text(path), ""), comms)
        if pid:
            return pid
    return 0


def _first_of(host: Host, procs: str, comms: tuple[str, ...]) -> int:
    """Return the first process with one of these names, or whose name is hidden; 0 if there is none (a left-over pid file, a unit of another's name)."""
    for pid in parse_pids(procs):
        name = host.word(f"/proc/{pid}/comm")
        if name.why is Why.HIDDEN if isinstance(name, Missing) else name in comms:
            return pid
    return 0


def parse_pids(text: str) -> tuple[int, ...]:
    r"""Process numbers, one a line; 0 stands for a process of another pid namespace and is left out.

    >>> parse_pids("812\n1034\n0\nx\n")
    (812, 1034)
    """
    words = text.split()[:_MOST_PROCESSES]
    return tuple(number for word in words if (number := natural(word, 10)))


SLURM_CONF = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


@fact
def slurm_propagates(host: Host) -> Fact[bool]:
    """Return whether Slurm gives jobs the limit on locked memory of the shell that submits them; ABSENT without a slurm.conf here."""
    return parse_propagation(need(first_text(host, SLURM_CONF)))


def parse_propagation(text: str) -> bool:
    r"""Return whether slurmd passes the limit on: PropagateResourceLimits (ALL by default) and PropagateResourceLimitsExcept in slurm.conf(5), for MEMLOCK. Names have no case.

    >>> parse_propagation("ClusterName=x\n"), parse_propagation("PropagateResourceLimitsExcept=MEMLOCK,STACK\n")
    (True, False)
    >>> parse_propagation("PropagateResourceLimits=NONE\n"), parse_propagation("propagateresourcelimits=CORE\n")
    (False, False)
    """
    found = {}
    for line in text.split("\n"):
        for word in line.partition("#")[0].split():
            name, equals, value = word.partition("=")
            if equals and name.lower() in ("propagateresourcelimits", "propagateresourcelimitsexcept"):
                found[name.lower()] = {part.upper() for part in value.strip("\"'").split(",")}
    if "propagateresourcelimitsexcept" in found:
        return "MEMLOCK" not in found["propagateresourcelimitsexcept"]
    return bool(found.get("propagateresourcelimits", {"ALL"}) & {"ALL", "MEMLOCK"})
