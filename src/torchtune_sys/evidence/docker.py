"""What container engines print: how a container was started (``docker inspect``, ``podman inspect``), and the host that they run on (``docker info``).

Fields are those of the Engine API's HostConfig (moby/api/types/container/hostconfig.go); 0 and null mean that nothing is limited by the container itself,
which says nothing of the groups around it. The lines of ``docker info`` are docker/cli's (cli/command/system/info.go).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from torchtune_sys.evidence.collect_env import parse_os
from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.limits import NAMES, LimitsFacts, SessionLimit
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.patterns import pattern

_START = pattern(r'"HostConfig"\s{0,8}:\s{0,8}(?=\{)')
_SOURCE = "docker inspect"
_MOST = 1 << 60


def facts_of_container(text: str) -> dict[str, Any]:
    """Return the facts by family; empty where the text holds no container, or several that were started differently.

    >>> found = facts_of_container('[{"HostConfig": {"ShmSize": 67108864, "IpcMode": "private", "NanoCpus": 2500000000, "PidsLimit": 512}}]')
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


_INFO = pattern(
    r"^(?P<indent> {0,4})Kernel Version: (?P<kernel>\S{1,100})\n(?:[^\n]{0,200}\n){0,4}?(?P=indent)Operating System: (?P<os>[^\n]{1,100})\n"
    r"(?:(?P=indent)OSVersion: [^\n]{0,100}\n)?(?P=indent)OSType: linux\n(?P=indent)Architecture: (?P<machine>\S{1,20})\n"
    r"(?P=indent)CPUs: (?P<cpus>\d{1,5})\n(?P=indent)Total Memory: (?P<memory>\d[\d.]{0,10}) ?(?P<unit>[KMGT]iB)",
    re.MULTILINE,
)
_SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OF_ANOTHER_MACHINE = ("Docker Desktop", "linuxkit")
"""The engine runs in a virtual machine of its own, whatever the report's other parts come from."""


def facts_of_host(text: str) -> dict[str, Any]:
    """Return the host of ``docker info`` by family; empty where the text has none, or those of several.

    >>> info = " Kernel Version: 6.8.0-85-generic\\n Operating System: Ubuntu 24.04.3 LTS\\n OSType: linux\\n Architecture: x86_64\\n CPUs: 8\\n Total Memory: 31.27GiB\\n"
    >>> found = facts_of_host(info)
    >>> found["system"].kernel, found["system"].os.version, found["memory"].total_bytes >> 30
    ('6.8.0-85-generic', '24.04', 31)
    """
    kernels = {found.groupdict()["kernel"]: found for found in _INFO.finditer(text)} if "Kernel Version: " in text else {}
    if len(kernels) != 1:
        return {}
    (found,) = kernels.values()
    if any(words in found[0] for words in _OF_ANOTHER_MACHINE):
        return {}
    system = partly(SystemFacts, kernel=found["kernel"], os=parse_os(found["os"]), machine=found["machine"])
    return {"system": system, "memory": partly(MemoryFacts, total_bytes=int(float(found["memory"]) * _SIZES[found["unit"]]))}


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
    facts_read: dict[str, Any] = {}
    if str(config.get("IpcMode", "")) in ("", "private", "shareable") and (size := _number(config.get("ShmSize"))):
        facts_read |= {"shm_size_bytes": size, "shm_filesystem": "tmpfs"}
    if limit := _number(config.get("Memory")):
        facts_read |= {"cgroup_limit_bytes": float(limit), "cgroup_limit_source": f"{_SOURCE}, Memory"}
    return facts_read


def _cpu(config: dict[str, Any]) -> dict[str, Any]:
    facts_read: dict[str, Any] = {}
    quota, period = _number(config.get("CpuQuota")), _number(config.get("CpuPeriod")) or 100_000
    cpus = _number(config.get("NanoCpus")) / 1e9 or quota / period
    if cpus:
        facts_read |= {"quota": cpus, "quota_source": f"{_SOURCE}, {'NanoCpus' if config.get('NanoCpus') else 'CpuQuota'}"}
    with suppress(ValueError):
        if words := str(config.get("CpusetCpus") or "")[:1000]:
            facts_read["cpuset"] = CpuSet.parse(words, 1 << 14)
    return facts_read


def _limits(entries: object) -> dict[str, SessionLimit]:
    found = {}
    for entry in entries if isinstance(entries, list) else ():
        name = str(entry.get("Name", "")).removeprefix("RLIMIT_").lower() if isinstance(entry, dict) else ""
        if name in NAMES and isinstance(entry.get("Soft"), int) and isinstance(entry.get("Hard"), int):
            soft, hard = (value if 0 <= value < _MOST else None for value in (entry["Soft"], entry["Hard"]))
            found[name] = SessionLimit(soft=soft, hard=hard)
    return found
