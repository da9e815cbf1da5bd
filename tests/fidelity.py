"""What the product read of a report, beside what the second reading found in it: ``tests/evidence/test_fidelity.py`` over reports of every known
layout, ``scripts/reader_fidelity.py`` over a folder of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from second_reading import second_reading
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


def _each(values: Any, read: Callable[[Any], Any]) -> Any:
    found = tuple(map(read, values)) if isinstance(values, tuple) else ()
    return None if not found or any(isinstance(value, Missing) or value is None for value in found) else found


def _capability(gpu: Any) -> Any:
    return gpu.compute_capability if isinstance(gpu.compute_capability, Missing) else tuple(gpu.compute_capability)


def _nodes(nodes: Any) -> Any:
    return tuple((node.id, str(node.cpus)) for node in nodes)


def _matrix_nodes(devices: Any) -> Any:
    return _each(tuple(device for device in devices if device.address.startswith("GPU")), lambda device: device.numa_node)


def _distributions(s: Snapshot) -> Any:
    return s.python.distributions  # type: ignore[union-attr]


def _first_links(pairs: Any) -> Any:
    found = [pair.nvlinks for pair in pairs if (pair.first, pair.second) == (0, 1)]
    return found[0] if found else None


OF_SNAPSHOT: dict[str, Callable[[Snapshot], Any]] = {
    "torch.version": lambda s: s.python.torch.version,  # type: ignore[union-attr]
    "torch.cuda": lambda s: s.python.torch.cuda,  # type: ignore[union-attr]
    "torch.hip": lambda s: s.python.torch.hip,  # type: ignore[union-attr]
    "python.version": lambda s: s.python.version,  # type: ignore[union-attr]
    "cuda.available": lambda s: s.python.live.cuda_available,  # type: ignore[union-attr]
    "nvcc": lambda s: s.python.nvcc,  # type: ignore[union-attr]
    "packages": lambda s: tuple(sorted({(each.name, each.version) for each in _distributions(s) if "[" not in each.location})),
    "os.name": lambda s: s.system.os.pretty_name,  # type: ignore[union-attr]
    "kernel": lambda s: s.system.kernel,  # type: ignore[union-attr]
    "glibc": lambda s: s.system.glibc,  # type: ignore[union-attr]
    "hypervisor": lambda s: s.system.hypervisor,  # type: ignore[union-attr]
    "cpu.model": lambda s: s.cpu.model,  # type: ignore[union-attr]
    "cpu.online": lambda s: s.cpu.online,  # type: ignore[union-attr]
    "cpu.sockets": lambda s: s.cpu.sockets,  # type: ignore[union-attr]
    "cpu.cores": lambda s: s.cpu.cores,  # type: ignore[union-attr]
    "cpu.smt": lambda s: s.cpu.smt,  # type: ignore[union-attr]
    "numa.nodes": lambda s: _nodes(s.numa.nodes),  # type: ignore[union-attr]
    "shm.gib": lambda s: s.memory.shm_size_bytes / (1 << 30),  # type: ignore[union-attr, operator]
    "driver.version": lambda s: s.gpu.driver_version,  # type: ignore[union-attr]
    "driver.cuda": lambda s: s.gpu.cuda_driver_version,  # type: ignore[union-attr]
    "gpu.names": lambda s: _each(s.gpu.devices, lambda gpu: gpu.name),  # type: ignore[union-attr]
    "gpu.capability": lambda s: _each(s.gpu.devices, _capability),  # type: ignore[union-attr]
    "matrix.gpus": lambda s: len(s.gpu.devices),  # type: ignore[union-attr, arg-type]
    "matrix.nvlinks": lambda s: _first_links(s.gpu.p2p),  # type: ignore[union-attr]
    "matrix.nodes": lambda s: _matrix_nodes(s.pci.devices),  # type: ignore[union-attr]
    "table.addresses": lambda s: _each(s.gpu.devices, lambda gpu: gpu.pci_address),  # type: ignore[union-attr]
    "table.memory_mib": lambda s: _each(s.gpu.devices, lambda gpu: gpu.memory_total_bytes >> 20),  # type: ignore[union-attr]
    "table.names": lambda s: _each(s.gpu.devices, lambda gpu: gpu.name),  # type: ignore[union-attr]
}
"""Where the product keeps each field."""


def first_reading(seen: Snapshot | None, field: str) -> Any:
    """The product's value of a field; None where it has none."""
    if seen is None:
        return None
    try:
        value = OF_SNAPSHOT[field](seen)
    except (AttributeError, TypeError, KeyError):
        return None
    return None if isinstance(value, Missing) else value


def same(field: str, told: Any, read: Any) -> bool:
    """Whether both readings mean the same: sets of processors however written, a name as a table cut it."""
    if read is None:
        return False
    if field in ("cpu.online", "numa.nodes"):
        from torchtune_sys.model.cpuset import CpuSet

        if field == "cpu.online":
            return bool(CpuSet.parse(told) == read)
        return bool(tuple((number, str(CpuSet.parse(cpus))) for number, cpus in told) == read)
    if field == "table.names":
        cuts = [cut.removesuffix("...").strip() for cut in told]
        return len(told) == len(read) and all(name.startswith(cut) for cut, name in zip(cuts, read, strict=True))
    if field == "packages":  # the product reads other lists of packages, too
        return bool(set(told) <= set(read))
    if field == "shm.gib":
        return bool(abs(told - read) < 2)
    if field == "driver.version":
        return str(told).startswith(str(read)) or str(read).startswith(str(told))
    return bool(told == read)


def compared(text: str) -> list[tuple[str, str, Any, Any]]:
    """(field, ``equal``, ``lost`` or ``differs``, what the second reading found, what the product read) of each field that is told."""
    from torchtune_sys import evidence

    seen = evidence.read(text, "report")
    found = []
    for field, told in second_reading(text).items():
        read = first_reading(seen, field)
        word = "equal" if same(field, told, read) else "lost" if read is None else "differs"
        found.append((field, word, told, read))
    return found
