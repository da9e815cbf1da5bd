"""How a container was started, as ``docker inspect`` and ``podman inspect`` print it: its shared memory, and what it may use at most.

Fields are those of the Engine API's HostConfig (moby/api/types/container/hostconfig.go); 0 and null mean that nothing is limited by the container itself,
which says nothing of the groups around it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from torchtune_sys.evidence.limits import NAMES
from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.limits import LimitsFacts, SessionLimit
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.system import SystemFacts

_START = re.compile(r'"HostConfig"\s{0,8}:\s{0,8}(?=\{)')
_SOURCE = "docker inspect"
_MOST = 1 << 60


def facts(text: str) -> dict[str, Any]:
    """By family; empty where the text holds no container, or several that were started differently.

    >>> found = facts('[{"HostConfig": {"ShmSize": 67108864, "IpcMode": "private", "NanoCpus": 2500000000, "PidsLimit": 512}}]')
    >>> found["memory"].shm_size_bytes >> 20, found["cpu"].quota, found["limits"].pids_max
    (64, 2.5, 512.0)
    """
    configs = [config for start in list(_START.finditer(text))[:_TRIED] if (config := _object(text, start.end()))]
    if not configs or any(config != configs[0] for config in configs):
        return {}
    config = configs[0]
    found: dict[str, Any] = {"system": partly(SystemFacts, container="docker")}
    if memory := _memory(config):
        found["memory"] = partly(MemoryFacts, **memory)
    if cpu := _cpu(config):
        found["cpu"] = partly(CpuFacts, **cpu)
    limits = _limits(config.get("Ulimits"))
    pids = _number(config.get("PidsLimit"))
    if limits or pids:
        found["limits"] = partly(
            LimitsFacts,
            limits={name: limits.get(name, missing()) for name in NAMES},
            pids_max=float(pids) if pids else missing(),
            pids_source=f"{_SOURCE}, PidsLimit" if pids else "",
            remove_ipc_source="",
        )
    return found


_TRIED = 16


def _object(text: str, start: int) -> dict[str, Any] | None:
    from json import JSONDecoder

    try:
        found, _ = JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> int:
    """Return a positive number; 0 for all else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else 0


def _memory(config: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if str(config.get("IpcMode", "")) in ("", "private", "shareable") and (size := _number(config.get("ShmSize"))):
        told |= {"shm_size_bytes": size, "shm_filesystem": "tmpfs"}
    if limit := _number(config.get("Memory")):
        told |= {"cgroup_limit_bytes": float(limit), "cgroup_limit_source": f"{_SOURCE}, Memory"}
    return told


def _cpu(config: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    quota, period = _number(config.get("CpuQuota")), _number(config.get("CpuPeriod")) or 100_000
    cpus = _number(config.get("NanoCpus")) / 1e9 or quota / period
    if cpus:
        told |= {"quota": cpus, "quota_source": f"{_SOURCE}, {'NanoCpus' if config.get('NanoCpus') else 'CpuQuota'}"}
    with suppress(ValueError):
        if words := str(config.get("CpusetCpus") or "")[:1000]:
            told["cpuset"] = CpuSet.parse(words, 1 << 14)
    return told


def _limits(entries: object) -> dict[str, SessionLimit]:
    found = {}
    for entry in entries if isinstance(entries, list) else ():
        name = str(entry.get("Name", "")).removeprefix("RLIMIT_").lower() if isinstance(entry, dict) else ""
        if name in NAMES and isinstance(entry.get("Soft"), int) and isinstance(entry.get("Hard"), int):
            soft, hard = (value if 0 <= value < _MOST else None for value in (entry["Soft"], entry["Hard"]))
            found[name] = SessionLimit(soft=soft, hard=hard)
    return found
