"""Pasted text about a host: what torch's collect_env, vLLM's and SGLang's variants of it, nvidia-smi and the kernel's log print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from torchtune_sys.evidence import (
    clock,
    collect_env,
    cuts,
    dmidecode,
    docker,
    driver,
    free_memory,
    ibstat,
    kernel_log,
    limits,
    links,
    lscpu,
    lspci,
    nccl_topology,
    numactl,
    pasted,
    pasted_files,
    proc_files,
    report_lines,
    rocm_smi,
    shared_memory,
    storage,
    sysctl,
)
from torchtune_sys.evidence.nvidia import bug_report, smi, topology
from torchtune_sys.evidence.partial import as_report, partly
from torchtune_sys.formats.failure_lines import failures
from torchtune_sys.knowledge import sentences
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.facts.session import SessionFacts, Workload
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why

OfFiles = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From what a paste holds of a recording to facts by family."""


def read(text: str, name: str, intent: Workload | None = None, of_files: OfFiles | None = None) -> Snapshot | None:
    """Return the host that a report tells of, everything that it does not tell NOT_RECORDED; None where nothing in the text is known.

    ``name`` says where the text comes from; ``intent`` names the paths that are looked for in it; ``of_files`` returns facts of the host's files
    that the text shows, by family. Never raises for what the text is.
    """
    intent = intent or Workload()
    paste = _Paste(pasted.unescaped(text), pasted.plain(text), intent)
    parts = {reader.kind: facts for reader in _READERS if (facts := reader.read(paste))}
    shown = {} if of_files is None else pasted_files.recording(paste.text)
    if of_files is not None and shown and (facts := of_files(shown)):
        parts = {"files": facts, **parts}
    if not parts and not paste.useful():
        return None
    parts = _without_container(parts, paste)
    found = _lines(paste)
    listed = found.pop("gpu")
    for facts in parts.values():
        found.update({family: filled(value, found.get(family)) for family, value in facts.items()})
    found["gpu"] = merged_gpus(found.get("gpu"), listed)
    found["driver"] = driver.driver_facts(found["gpu"], paste.module, paste.text, found.get("pci"))
    nothing = Missing(Why.NOT_RECORDED, name, "not in the report")
    families = {family: nothing if found.get(family) is None else as_report(found[family]) for family in FAMILIES}
    if paste.lines.recognised:
        parts = {"collect_env": {}, **{kind: facts for kind, facts in parts.items() if kind != "lscpu"}}  # it ends with lscpu
    if "kernel log" in parts and shown.get("files", {}).keys() <= pasted_files.OF_BOOT.keys():
        parts.pop("files", None)  # what the log repeats of them
    kinds = [*parts] or ["text"]
    cut = cuts.cuts(paste.text)
    origin = f"report ({', '.join(kinds)})" + (f", cut off: {cut}" if cut else "")
    failures = (*bug_report.of_earlier_boots(paste.text), *paste.failures)
    return Snapshot(**families, intent=intent, origin=origin, said=paste.said, failures=failures)


class _Paste:
    """The text as it came (a log may be long), the same as it was printed, and the single lines in it that say something."""

    def __init__(self, raw: str, text: str, intent: Workload) -> None:
        self.raw, self.text, self.intent = raw, text, intent
        self.lines = report_lines.parse_lines(text)
        self.module = driver.module_version(text)
        self.has_driver = driver.driver_facts(None, self.module, text) is not None
        self.said = sentences.printed_messages(text)
        self.failures = failures(text)

    def useful(self) -> bool:
        lines = self.lines
        judged = any(words in line for line in lines.complaints for words in _JUDGED)
        return bool(lines.recognised or lines.env or lines.packages or self.has_driver or self.said or judged or self.failures)


def _lines(paste: _Paste) -> dict[str, Any]:
    """Return what single lines tell, wherever they stand."""
    lines = paste.lines
    found: dict[str, Any] = {"gpu": collect_env.gpu_facts(lines), "system": collect_env.system_facts(lines, paste.text)}
    if lines.env:
        found["session"] = _session(lines.env)
    if lines.recognised:
        found["cpu"] = lscpu.cpu_facts(lines)
    if lines.recognised or lines.packages or lines.complaints:
        found["python"] = collect_env.python_facts(lines)
    return found


def _lscpu(paste: _Paste) -> dict[str, Any]:
    """Alone, or at the end of another report, which then gives the paste its name."""
    cpu, nodes = lscpu.cpu_facts(paste.lines), lscpu.numa_facts(paste.text)
    found = {} if isinstance(cpu, Missing) else {"cpu": cpu, "system": _with_machine(paste)}
    return found if nodes is None else {**found, "numa": nodes}


def _kernel_log(paste: _Paste) -> dict[str, Any]:
    found = kernel_log.kernel_facts(paste.raw)
    if found is None:
        return {}
    hypervisor = kernel_log.hypervisor(found)
    return {"kernel": found, **({"system": partly(SystemFacts, hypervisor=hypervisor)} if hypervisor else {})}


def _lspci(paste: _Paste) -> dict[str, Any]:
    found = lspci.pci_facts(paste.text)
    if found is None:
        return {}
    return {"pci": found, "system": _with_kind_of_machine(collect_env.system_facts(paste.lines, paste.text), paste.text)}


def _nccl_topology(paste: _Paste) -> dict[str, Any]:
    """lspci, where it is there too, tells more."""
    found = nccl_topology.pci_facts(paste.text)
    return {} if found is None or lspci.pci_facts(paste.text) is not None else {"pci": found}


def _topology(paste: _Paste) -> dict[str, Any]:
    """nvidia-smi's matrix of distances; lspci and NCCL's own description tell more."""
    if lspci.pci_facts(paste.text) is not None or nccl_topology.pci_facts(paste.text) is not None:
        return {}
    found = topology.pci_facts(paste.text)
    return {} if found is None else {"pci": found}


def _clock(paste: _Paste) -> dict[str, Any]:
    """timedatectl asks a service of systemd's."""
    found = clock.hardware_facts(paste.text)
    if found is None:
        return {}
    systemd = {"system": partly(SystemFacts, init="systemd")} if "NTP s" in paste.text or "NTP e" in paste.text else {}
    return {"hardware": found, **systemd}


def _storage(paste: _Paste) -> dict[str, Any]:
    found = storage.storage_facts(paste.text, paste.intent)
    return {} if found is None else {"storage": found}


_INSPECTED = "docker inspect"


def _docker_inspect(paste: _Paste) -> dict[str, Any]:
    return docker.facts_of_container(paste.text) if '"HostConfig"' in paste.text else {}


def _without_container(parts: dict[str, dict[str, Any]], paste: _Paste) -> dict[str, dict[str, Any]]:
    """``docker inspect`` runs on the host: what stands beside it is the container's own output only where something else says so."""
    if _INSPECTED not in parts or (len(parts) == 1 and not paste.lines.recognised):
        return parts
    return {**parts, _INSPECTED: {family: facts for family, facts in parts[_INSPECTED].items() if family != "system"}}


class _Reader(NamedTuple):
    """What reads the facts of whole families in one kind of output; nothing where the text has none of the kind."""

    kind: str
    read: Callable[[_Paste], dict[str, Any]]
    printed_by: str
    """What a person runs, or pastes."""


def _family(family: str, read: Callable[[str], object]) -> Callable[[_Paste], dict[str, Any]]:
    """Return a reader of one family from a function of the text, which returns None where the text has none of it."""

    def read_family(paste: _Paste) -> dict[str, Any]:
        return {} if (found := read(paste.text)) is None else {family: found}

    return read_family


_READERS = (
    _Reader("free", _family("memory", free_memory.memory_facts), "free -h"),
    _Reader("files of /proc", lambda paste: proc_files.facts(paste.text), "/proc/cpuinfo, /proc/meminfo"),
    _Reader("nvidia-bug-report", lambda paste: bug_report.facts(paste.text), "nvidia-bug-report.sh"),
    _Reader("lscpu", _lscpu, "lscpu"),
    _Reader("numactl", _family("numa", numactl.numa_facts), "numactl -H"),
    _Reader("sysctl", _family("sysctl", sysctl.sysctl_facts), "sysctl -a"),
    _Reader("nvidia-smi", _family("gpu", smi.parse_nvidia_smi), "nvidia-smi"),
    _Reader("rocm-smi", _family("gpu", rocm_smi.gpu_facts), "rocm-smi, amd-smi, rocminfo"),
    _Reader("kernel log", _kernel_log, "dmesg"),
    _Reader("lspci", _lspci, "lspci"),
    _Reader("NCCL topology", _nccl_topology, "NCCL_TOPO_DUMP_FILE"),
    _Reader("nvidia-smi topo", _topology, "nvidia-smi topo -m"),
    _Reader("RDMA devices", _family("network", ibstat.network_facts), "ibstat, ibstatus, ibv_devinfo, rdma link"),
    _Reader("network links", _family("network", links.network_facts), "ip addr, ip route, ethtool NAME"),
    _Reader("clock", _clock, "timedatectl, chronyc tracking"),
    _Reader("docker info", lambda paste: docker.facts_of_host(paste.text), "docker info"),
    _Reader(_INSPECTED, _docker_inspect, "docker inspect"),
    _Reader("block devices and mounts", _storage, "lsblk, findmnt, mount"),
    _Reader("shared memory", _family("memory", shared_memory.memory_facts), "df"),
    _Reader("kind of machine", _family("system", kernel_log.detected), "systemd-detect-virt"),
    _Reader("limits", _family("limits", limits.limits_facts), "ulimit -a"),
    _Reader("dmidecode", _family("hardware", dmidecode.hardware_facts), "dmidecode -t memory"),
)
READ = ", ".join(
    (
        "python -m torch.utils.collect_env",
        *(reader.printed_by for reader in _READERS),
        "uname -a, env, /etc/os-release, /proc/cmdline",
        "the fabric manager's log",
    )
)
"""What may be pasted, for people."""


def _with_machine(paste: _Paste) -> SystemFacts:
    """Return what the first lines tell, and lscpu's architecture."""
    system = collect_env.system_facts(paste.lines, paste.text)
    architecture = report_lines.value_of(paste.lines, "Architecture")
    return msgspec.structs.replace(system, machine=architecture) if isinstance(system.machine, Missing) else system


def _with_kind_of_machine(system: SystemFacts, text: str) -> SystemFacts:
    """Whether it is a virtual machine, by its devices, where nothing else told."""
    return (
        msgspec.structs.replace(system, hypervisor=lspci.hypervisor(text)) if isinstance(system.hypervisor, Missing) else system
    )


_JUDGED = (
    "driver on your system is too old",
    "requirement error: unsatisfied condition: cuda",
    "forward compatibility was attempted",
    "GLIBC_2.",
    "GLIBCXX_",
    "CXXABI_",
    "libcusparseLt.so",
    "libnvshmem_host.so",
    "libcudart.so.",
    "nvJitLink",
    "libcublasLt",
    "cuDNN version incompatibility",
    "cannot find -lcuda",
    "libcuda.so cannot found!",
    "nvcc was not found",
    "CUDA_HOME does not exist, unable to compile",
    "version libcudnn_",
    "is not compatible with the current PyTorch installation",
    "no kernel image is available",
    "compiled with an unsupported toolchain",
    "Found no NVIDIA driver on your system",
    "CUDA initialization: CUDA unknown error",
    "CUDA initialization: Unexpected error from cudaGetDeviceCount",
)
"""Complaints that a rule understands without anything else of the report."""


def filled(facts: Any, other: Any) -> Any:
    """Return what one reader found of a family, and from another what it lacks.

    >>> from torchtune_sys.evidence.partial import partly
    >>> from torchtune_sys.model.facts.memory import MemoryFacts
    >>> one, other = partly(MemoryFacts, total_bytes=4, shm_size_bytes=2), partly(MemoryFacts, total_bytes=9, oom_kills=1)
    >>> both = filled(one, other)
    >>> both.total_bytes, both.shm_size_bytes, both.oom_kills
    (4, 2, 1)
    """
    if facts is None or other is None or isinstance(other, Missing):
        return facts
    if isinstance(facts, Missing):  # its probe failed
        return other
    gaps = [name for name in facts.__struct_fields__ if isinstance(getattr(facts, name), Missing)]
    filled = {name: getattr(other, name) for name in gaps}
    for name in facts.__struct_fields__:
        if isinstance(mine := getattr(facts, name), dict) and isinstance(its := getattr(other, name), dict):
            filled[name] = {key: _has_value(mine, its, key) for key in {**its, **mine}}
    return msgspec.structs.replace(facts, **filled)


def _has_value(mine: dict[str, Any], its: dict[str, Any], key: str) -> Any:
    """Return what the first tells of a key, or else the second; a value may have gaps of its own."""
    if key not in mine or isinstance(mine[key], Missing):
        return its.get(key, mine.get(key))
    return filled(mine[key], its[key]) if key in its and hasattr(mine[key], "__struct_fields__") else mine[key]


def merged_gpus(smi: GpuFacts | None, listed: GpuFacts | None) -> GpuFacts | None:
    """nvidia-smi tells more of the GPUs; what it lacks is filled out of the list, GPU by GPU."""
    if smi is None or listed is None:
        return smi if listed is None else listed
    if smi.error:
        return smi
    gaps = ("driver_version", "cuda_driver_version", "devices")
    lacking = [name for name in gaps if isinstance(getattr(smi, name), Missing)]
    fill = {name: getattr(listed, name) for name in lacking if not isinstance(getattr(listed, name), Missing)}
    if not isinstance(smi.devices, Missing) and not isinstance(listed.devices, Missing):
        same = len(smi.devices) == len(listed.devices)
        if same:
            fill["devices"] = tuple(filled(one, other) for one, other in zip(smi.devices, listed.devices, strict=True))
        elif all(isinstance(gpu.name, Missing) for gpu in smi.devices):  # the host's matrix; torch is shown some of its GPUs
            fill["devices"] = listed.devices
            fill["p2p"] = Missing(Why.NOT_RECORDED, "report", "the topology matrix numbers the GPUs differently from the list")
    return msgspec.structs.replace(smi, **fill)


def _session(env: dict[str, str]) -> SessionFacts:
    return partly(SessionFacts, env=env)
