"""The head of the text report: host, GPUs, Python and session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from torchtune_sys.formats.pci_paths import is_gpu
from torchtune_sys.knowledge.gpus import name_by_device
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.facts.limits import LimitsFacts, SessionLimit
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.numa import NumaFacts
from torchtune_sys.model.facts.python import PythonFacts, Torch
from torchtune_sys.model.facts.session import SessionFacts, Workload
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import Missing, Why, absent, known
from torchtune_sys.render.accelerators import accelerators
from torchtune_sys.render.layout import Line, line
from torchtune_sys.render.report import why_text

_HANG = 8


def head(seen: Snapshot) -> list[Line]:
    """Return three lines: GPUs with their driver; the machine; the interpreter and the session that were judged."""
    named = {"GPU": gpu_parts(seen), "Host": host_parts(seen), "Python": [*python_parts(seen), *session_parts(seen)]}
    return [line(", ".join(parts), label=(name, "bold"), hang=_HANG) for name, parts in named.items()]


def size(count: float) -> str:
    """Return the bytes as people say them, in binary units.

    >>> size(80 << 30), size(1 << 40), size(67108864)
    ('80 GiB', '1 TiB', '64 MiB')
    """
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            value = count / factor
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count:.0f} B"


def gpu_parts(seen: Snapshot) -> list[str]:
    facts, driver = seen.gpu, seen.driver
    devices: Fact[tuple[Gpu, ...]] = facts if isinstance(facts, Missing) else facts.devices
    if not isinstance(devices, Missing) and devices:
        models = _models(devices) if isinstance(facts, Missing) or not facts.some_only else _one_of_them(devices)
        return [*models, *_driver(facts, driver)]
    on_bus = _on_bus(driver)
    others = accelerators(seen)
    if others and not _nvidia_on_bus(driver):
        return others
    if on_bus is None and (listed := _listed_on_bus(seen)):
        return listed
    if on_bus is not None and not on_bus:
        return ["none on the PCI bus"]
    if on_bus:
        seen_there = f"{len(on_bus)} on the PCI bus ({', '.join(on_bus[:4])})"
        untold = isinstance(devices, Missing) and devices.why in (Why.NOT_SUPPORTED, Why.HIDDEN, Why.NOT_RECORDED)
        return [
            seen_there,
            f"{'not asked' if untold else 'not visible to the driver'}: {_reason(devices)}",
            *_driver(facts, driver),
        ]
    if isinstance(devices, Missing) and not absent(devices):
        return [_untold(devices, _reason(devices))]
    return ["none found"]


def _on_bus(driver: Fact[DriverFacts]) -> tuple[str, ...] | None:
    """PCI addresses of GPUs; None where the bus could not be seen."""
    if isinstance(driver, Missing):
        return None
    if isinstance(driver.nvidia_devices, Missing) and isinstance(driver.amd_devices, Missing):
        return () if absent(driver.nvidia_devices) and absent(driver.amd_devices) else None
    return known(driver.nvidia_devices, ()) + known(driver.amd_devices, ())


def _listed_on_bus(seen: Snapshot) -> list[str]:
    """Return NVIDIA's GPUs of a report that lists the bus (lspci) and says nothing of the driver."""
    devices = () if isinstance(seen.pci, Missing) else known(seen.pci.devices, ())
    numbers = [known(device.device, "") for device in devices if device.vendor == "0x10de" and is_gpu(device)]
    names = Counter(name_by_device(number.removeprefix("0x")) or "NVIDIA GPU" for number in numbers)
    return [*(f"{count} x {name}" for name, count in names.items()), *["as the PCI bus lists them"] * bool(names)]


def _nvidia_on_bus(driver: Fact[DriverFacts]) -> bool:
    return not isinstance(driver, Missing) and bool(known(driver.nvidia_devices, ()))


def _reason(devices: object) -> str:
    return why_text(devices) if isinstance(devices, Missing) else "none listed"


def _models(devices: tuple[Gpu, ...]) -> Iterator[str]:
    kinds = Counter((known(gpu.name, "unnamed GPU"), known(gpu.memory_total_bytes, 0)) for gpu in devices)
    for (name, memory), count in kinds.items():
        shown = name if not memory or _tells_memory(name) else f"{name} ({size(memory)})"
        yield f"{count} x {shown}"


def _one_of_them(devices: tuple[Gpu, ...]) -> Iterator[str]:
    yield from (f"{known(gpu.name, 'unnamed GPU')} (number not stated)" for gpu in devices)


def _tells_memory(name: str) -> bool:
    return any(word.endswith("GB") and word[:-2].isdigit() for word in name.replace("-", " ").split())


def _driver(facts: Fact[GpuFacts], driver: Fact[DriverFacts]) -> Iterator[str]:
    version: Fact[str] = Missing(Why.ABSENT, "driver")
    if not isinstance(facts, Missing):
        version = facts.driver_version
    if isinstance(version, Missing) and not isinstance(driver, Missing):
        version = driver.module_version
    flavour = "" if isinstance(driver, Missing) else known(driver.module_flavour, "")
    if not isinstance(version, Missing):
        yield f"driver {version}" + (f" ({flavour} module)" if flavour else "")
    if not isinstance(facts, Missing) and not isinstance(facts.cuda_driver_version, Missing):
        yield f"CUDA up to {facts.cuda_driver_version}"


def host_parts(seen: Snapshot) -> list[str]:
    parts = list(_system(seen.system)) if not isinstance(seen.system, Missing) else []
    if not isinstance(seen.cpu, Missing):
        parts.extend(_cpus(seen.cpu))
    if not isinstance(seen.numa, Missing):
        parts.extend(_nodes(seen.numa))
    if not isinstance(seen.memory, Missing):
        parts.extend(_memory(seen.memory))
    if not isinstance(seen.system, Missing):
        parts.extend(_surroundings(seen.system))
    return parts or ["not stated" if is_pasted(seen) else "unknown"]


def _system(facts: SystemFacts) -> Iterator[str]:
    if not isinstance(facts.os, Missing):
        yield facts.os.pretty_name or f"{facts.os.id} {facts.os.version}".strip()
    if not isinstance(facts.kernel, Missing):
        machine = known(facts.machine, "")
        yield f"Linux {facts.kernel}" + (f" {machine}" if machine and not facts.kernel.endswith(machine) else "")


def _cpus(facts: CpuFacts) -> Iterator[str]:
    if not isinstance(facts.model, Missing):
        sockets = known(facts.sockets, 1)
        # Hypervisors that were told nothing else make each virtual CPU a socket.
        several = 1 < sockets < (4 if isinstance(facts.online, Missing) else len(facts.online))
        yield (f"{sockets} x " if several else "") + facts.model
    total: int | None = None if isinstance(facts.online, Missing) else len(facts.online)
    usable: float | None = known(facts.effective, None)
    if usable is not None and total is not None and usable < total:
        yield f"{usable:g} of {total} CPUs usable"
    elif total is not None:
        yield f"{total} CPUs"


def _nodes(facts: NumaFacts) -> Iterator[str]:
    if isinstance(facts.nodes, Missing) or len(facts.nodes) < 2:
        return
    bare = sum(not isinstance(node.cpus, Missing) and not len(node.cpus) for node in facts.nodes)
    count = len(facts.nodes) - bare
    yield f"{count} NUMA node{'s' * (count != 1)}" + (f" and {bare} without CPUs" if bare else "")


def _memory(facts: MemoryFacts) -> Iterator[str]:
    total, limit = facts.total_bytes, facts.cgroup_limit_bytes
    if isinstance(total, Missing):
        return
    if not isinstance(limit, Missing) and math.isfinite(limit) and limit < total:
        yield f"{size(limit)} of {size(total)} memory allowed"
    else:
        yield f"{size(total)} memory"


def _surroundings(facts: SystemFacts) -> Iterator[str]:
    container, hypervisor = facts.container, facts.hypervisor
    if not isinstance(container, Missing) and container:
        yield f"in a container ({container})"
    if not isinstance(hypervisor, Missing) and hypervisor:
        yield "WSL2" if hypervisor == "wsl2" else f"virtual machine ({hypervisor})"
    if container == "" and hypervisor == "":
        yield "bare metal"


def python_parts(seen: Snapshot) -> list[str]:
    facts = seen.python
    if isinstance(facts, Missing):
        return [_untold(facts, why_text(facts))]
    return list(_python(facts))


def _python(facts: PythonFacts) -> Iterator[str]:
    version = known(facts.version, "")
    if isinstance(facts.executable, Missing):
        yield version or _untold(facts.executable, why_text(facts.executable))
    else:
        yield f"{version} {facts.executable}".strip()
    if isinstance(facts.torch, Missing):
        yield "no torch" if absent(facts.torch) else f"torch {_untold(facts.torch, why_text(facts.torch))}"
    else:
        yield _torch(facts.torch)
    if facts.judged_as:
        yield f"judged as user {facts.judged_as}"
    if facts.judged_without:
        yield f"judged without {', '.join(facts.judged_without)}"


def _untold(missing: Missing, reason: str) -> str:
    """Return what was not told: a report that does not speak of something is no failed look."""
    return "not stated" if missing.why is Why.NOT_RECORDED else f"unknown ({reason})"


def _torch(build: Torch) -> str:
    if not isinstance(build.cuda, Missing):
        return f"torch {build.version} (CUDA {build.cuda})"
    if not isinstance(build.hip, Missing):
        return f"torch {build.version} (ROCm {build.hip})"
    if not isinstance(build.xpu, Missing):
        return f"torch {build.version} (Intel GPU build)"
    if "+hpu" in build.version:
        return f"torch {build.version} (Gaudi build)"
    return f"torch {build.version}" + (" (CPU only)" if absent(build.cuda) else "")


def session_parts(seen: Snapshot) -> list[str]:
    parts = [] if isinstance(seen.session, Missing) else list(_session(seen.session))
    if not isinstance(seen.limits, Missing):
        parts.extend(_limits(seen.limits))
    return [*parts, *_job(seen.intent)]


def _session(facts: SessionFacts) -> Iterator[str]:
    user: Fact[str | int] = facts.user if not isinstance(facts.user, Missing) else facts.uid
    if isinstance(user, Missing):
        return
    name = f"user {user}"
    if not isinstance(facts.sudo_user, Missing) and facts.sudo_user:
        name += f" by sudo of {facts.sudo_user}"
    yield name


def _limits(facts: LimitsFacts) -> Iterator[str]:
    for name in ("nofile", "memlock"):
        found = facts.limits.get(name, Missing(Why.ABSENT, name))
        if isinstance(found, SessionLimit):
            soft = "unlimited" if found.soft is None else (size(found.soft) if name == "memlock" else str(found.soft))
            yield f"{name} {soft}"


def _job(intent: Workload) -> Iterator[str]:
    counts = (("node", intent.nodes), ("rank", intent.ranks), ("thread", intent.threads), ("worker", intent.workers))
    words = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts if count is not None]
    if words:
        yield "judged for " + ", ".join(words)
