"""What a report tells, read a second time and apart from the product: lines cut at their labels, no expression shared with the readers.

``tests/evidence/test_fidelity.py`` compares the two over reports of every known layout, ``scripts/reader_fidelity.py`` over a folder of
real ones. Every field is a plain value (text, number, tuple); what the text does not tell is not in the answer. ``OF_SNAPSHOT`` names
where the product keeps each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchtune_sys.model.facts.python import normalised
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing

Told = dict[str, Any]
NO_VALUE = ("", "n/a", "none", "could not collect", "no cuda", "unknown", "not available", "no relevant packages", "<not-set>")


def second_reading(text: str) -> Told:
    """The fields that are told, by name."""
    lines = [_bare(part) for line in text.replace("\r", "").split("\n") for part in _unpadded(line)]
    found: Told = {}
    for read in (
        _torch_report,
        _sglang_report,
        _detectron_report,
        _huggingface_report,
        _deepspeed_report,
        _lscpu,
        _listed_gpus,
        _packages,
        _matrix,
        _table,
    ):
        for name, value in read(lines):
            if value is not None and name not in found:
                found[name] = value
    if "gpu.names" in found and len(found["gpu.names"]) != found.get("matrix.gpus", len(found["gpu.names"])):
        del found["matrix.gpus"]
        found.pop("matrix.nvlinks", None)  # a container that sees some of the host's GPUs
    return found


_PADDING = " " * 48
"""No report has so many blanks within a line, but for the table of nvidia-smi: a terminal filled the line before the next one."""


def _unpadded(line: str) -> list[str]:
    return [line] if "|" in line else [part for part in line.split(_PADDING) if part.strip()] or [""]


def _bare(line: str) -> str:
    """Without quote marks, colours and what a log collector put before it."""
    while "\x1b[" in line:
        before, _, after = line.partition("\x1b[")
        line = before + after.partition("m")[2]
    line = line.replace("\ufffd", "").replace("[4m", "").replace("[0m", "").replace("\xa0", " ")
    while line[:1] == ">":
        line = line[1:].removeprefix(" ")
    words = line.split(" ", 2)
    if words[0] == "INFO" and len(words) == 3 and words[1][:2] == "20" and words[1].endswith("Z"):
        line = words[2]
    return line.strip("`").rstrip()


def _value(lines: list[str], label: str) -> str | None:
    """What follows ``label`` and a colon at the beginning of a line."""
    for line in lines:
        bare = line.strip()
        if bare.startswith(label):
            rest = bare[len(label) :].lstrip()
            if rest.startswith(":"):
                return rest[1:].strip()
    return None


def _told(value: str | None) -> str | None:
    return None if value is None or value.strip().lower() in NO_VALUE else value.strip()


def _torch_report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """torch.utils.collect_env and vLLM's copy of it."""
    if _value(lines, "Is debug build") is None and _value(lines, "CUDA used to build PyTorch") is None:
        return
    version = _told(_value(lines, "PyTorch version"))
    yield "torch.version", version.split()[0] if version and version[0].isdigit() else None
    cuda, hip = _told(_value(lines, "CUDA used to build PyTorch")), _told(_value(lines, "ROCM used to build PyTorch"))
    yield "torch.cuda", ".".join(cuda.split(".")[:2]) if cuda and version else None
    yield "torch.hip", hip if version else None
    os = _told(_value(lines, "OS"))
    yield "os.name", os.rsplit(" (", 1)[0] if os and os.split()[0] in ("Ubuntu", "Debian", "CentOS", "Rocky", "Red") else None
    libc = _told(_value(lines, "Libc version"))
    yield "glibc", libc.removeprefix("glibc-") if libc else None
    python = _told(_value(lines, "Python version"))
    yield "python.version", python.split()[0] if python else None
    platform = _told(_value(lines, "Python platform"))
    if platform and platform.startswith("Linux-") and "-x86_64-with" in platform:
        yield "kernel", platform[len("Linux-") : platform.index("-x86_64-with")]
    available = _told(_value(lines, "Is CUDA available"))
    yield "cuda.available", {"true": True, "yes": True, "false": False, "no": False}.get((available or "").lower())
    nvcc = _told(_value(lines, "CUDA runtime version"))
    yield "nvcc", nvcc if nvcc and nvcc[0].isdigit() else None
    driver = _told(_value(lines, "Nvidia driver version")) or _told(_value(lines, "NVIDIA driver version"))
    yield "driver.version", driver.split()[0] if driver and driver[0].isdigit() else None


def _sglang_report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """sglang.check_env; mmcv's and detectron2's reports begin alike."""
    available = _told(_value(lines, "CUDA available")) or _told(_value(lines, "ROCM available"))
    if available is None:
        return
    yield "cuda.available", {"true": True, "false": False}.get(available.lower())
    version = _told(_value(lines, "PyTorch"))
    version = version if version and version[0].isdigit() else None
    yield "torch.version", version.split()[0] if version else None
    if version and "+rocm" in version:
        yield "torch.hip", version.partition("+rocm")[2]
    python = _told(_value(lines, "Python"))
    yield "python.version", python.split()[0] if python and python[0].isdigit() else None
    driver = _told(_value(lines, "CUDA Driver Version"))
    yield "driver.version", driver.split()[0] if driver and driver[0].isdigit() else None
    nvcc = _told(_value(lines, "NVCC"))
    release = nvcc.rpartition("V")[2].strip(" '\"`") if nvcc and ", V" in nvcc else ""
    yield "nvcc", release if release[:1].isdigit() else None
    capabilities: dict[int, tuple[int, int]] = {}
    for line in lines:
        head, mark, rest = line.strip().partition(" Compute Capability: ")
        major, _, minor = rest.strip().partition(".")
        if mark and head.startswith("GPU ") and major.isdigit() and minor.isdigit():
            for number in head[4:].split(","):
                capabilities.setdefault(int(number), (int(major), int(minor)))
    yield "gpu.capability", tuple(capabilities[number] for number in sorted(capabilities)) or None


def _huggingface_report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """transformers, accelerate and diffusers: ``- PyTorch version (GPU?): 2.4.1+cu121 (True)``."""
    for line in lines:
        words = line.strip().split()
        if words[:2] == ["-", "PyTorch"] and words[2:3] in (["version"], ["version:"]):
            rest = [word for word in words[3:] if word != "(GPU?):"]
            if rest and rest[0][0].isdigit():
                yield "torch.version", rest[0]
                yield "cuda.available", {"(True)": True, "(False)": False}.get(rest[1]) if len(rest) > 1 else None
        if words[:2] == ["-", "Platform:"] and len(words) == 3 and "-x86_64-with" in words[2] and words[2].startswith("Linux-"):
            yield "kernel", words[2][len("Linux-") : words[2].index("-x86_64-with")]
        if words[:3] == ["-", "Python", "version:"] and len(words) == 4:
            yield "python.version", words[3]
        if words[:3] == ["-", "GPU", "type:"] or words[:2] == ["-", "Accelerator:"]:
            name = line.partition(":")[2].partition(",")[0].strip()
            yield "gpu.names", (name,) if name.startswith("NVIDIA") else None


def _detectron_report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """Labels and values in two columns."""
    if not any(line.startswith("sys.platform  ") for line in lines):
        return
    rows = [[part.strip() for part in line.strip().split("  ", 1)] for line in lines if "  " in line.strip()]
    values = {row[0]: row[1] for row in rows if len(row) == 2}
    yield "torch.version", values["PyTorch"].split()[0] if "PyTorch" in values else None
    yield "python.version", values["Python"].split()[0] if "Python" in values else None
    yield "cuda.available", {"Yes": True, "No": False}.get(values.get("GPU available", ""))
    yield "driver.version", values.get("Driver version")
    names = {
        int(number): name
        for head, name in values.items()
        if head[:4] == "GPU " and head[4:5].isdigit()
        for number in head[4:].split(",")
    }
    yield "gpu.names", tuple(names[number].partition(" (arch=")[0] for number in sorted(names)) or None


def _deepspeed_report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """ds_report: ``torch version .................... 2.3.0+cu121``."""
    labels = {
        "torch version": "torch.version",
        "torch cuda version": "torch.cuda",
        "torch hip version": "torch.hip",
        "nvcc version": "nvcc",
    }
    for line in lines:
        label, dots, rest = line.strip().partition(" ...")
        value = _told(rest.strip(". "))
        if dots and label in labels and value and value[0].isdigit():
            yield labels[label], value
        if dots and label == "shared memory (/dev/shm) size" and value and value.endswith(" GB"):
            yield "shm.gib", round(float(value.split()[0]))


def _lscpu(lines: list[str]) -> Iterator[tuple[str, Any]]:
    if (
        sum(_value(lines, label) is not None for label in ("CPU(s)", "Socket(s)", "Vendor ID", "Flags", "On-line CPU(s) list"))
        > 1
    ):
        yield "cpu.model", _told(_value(lines, "Model name"))
    yield "cpu.online", _told(_value(lines, "On-line CPU(s) list"))
    sockets, cores, threads = (_told(_value(lines, label)) for label in ("Socket(s)", "Core(s) per socket", "Thread(s) per core"))
    if sockets and cores and sockets.isdigit() and cores.isdigit() and "0" not in (sockets, cores):
        yield "cpu.sockets", int(sockets)
        yield "cpu.cores", int(cores) * int(sockets)
    if threads and threads.isdigit() and threads != "0":
        yield "cpu.smt", threads != "1"
    vendor = _told(_value(lines, "Hypervisor vendor"))
    kinds = {"kvm": "kvm", "xen": "xen", "microsoft": "microsoft", "vmware": "vmware"}
    kernel = _told(_value(lines, "Python platform")) or ""
    yield "hypervisor", None if not vendor or "icrosoft" in kernel else kinds.get(vendor.strip(": ").lower(), "other")
    nodes = {}
    for line in lines:
        words = line.strip().split()
        if (
            words[:1] == ["NUMA"]
            and len(words) == 4
            and words[1][:4] == "node"
            and words[2] == "CPU(s):"
            and words[1][4:].isdigit()
        ):
            nodes.setdefault(int(words[1][4:]), words[3])
    yield "numa.nodes", tuple(sorted(nodes.items())) or None


def _listed_gpus(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """``GPU 0: NVIDIA L4`` below the label, or ``GPU 0,1: NVIDIA L4`` of sglang and mmcv, or one name behind the label (ROCm)."""
    names: dict[int, str] = {}
    one = _told(_value(lines, "GPU models and configuration"))
    for line in lines:
        bare = line.strip()
        if bare.startswith("GPU models and configuration"):
            bare = bare.partition(":")[2].strip()
        head, _, rest = bare.partition(": ")
        numbers = head.removeprefix("GPU ").split(",")
        if (
            head.startswith("GPU ")
            and all(number.isdigit() and len(number) < 3 for number in numbers)
            and rest
            and rest[:3] != "X"
        ):
            for number in numbers:
                names.setdefault(int(number), rest.partition(" (UUID")[0].partition(" (arch=")[0].strip())
    if names:
        yield "gpu.names", tuple(names[number] for number in sorted(names))
    elif one and not one.startswith("GPU "):
        yield "gpu.names", (one,)


def _packages(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """``[pip3] torch==2.4.0`` and ``[conda] pytorch 2.4.0 …``."""
    found = set()
    for line in lines:
        words = line.strip().split()
        if len(words) == 2 and words[0] in ("[pip]", "[pip3]") and "==" in words[1]:
            name, _, version = words[1].partition("==")
            found.add((normalised(name), version))
        elif len(words) >= 3 and words[0] == "[conda]" and words[2][0].isdigit():
            found.add((normalised(words[1]), words[2]))
    yield "packages", tuple(sorted(found)) or None


_WAYS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


def _matrix(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """nvidia-smi topo -m: GPUs, NVLinks between the first two, NUMA affinity; only of a matrix all of whose rows are whole."""
    for at, line in enumerate(lines):
        head = line.split()
        if (
            head[:1] != ["GPU0"]
            or "CPU" not in head
            or not (len(head) > 2 and (head[1] in ("GPU1", "CPU") or head[1][:3] in ("NIC", "mlx")))
        ):
            continue
        names = head[: head.index("CPU")]
        gpus = [name for name in names if name[:3] == "GPU"]
        rows = [row.split() for row in lines[at + 1 : at + 1 + len(names) * 2]]
        rows = [row for row in rows if row and row[0] in names]
        cells = {row[0]: row[1 : len(names) + 1] for row in rows}
        good = [
            name
            for name in gpus
            if len(cells.get(name, ())) == len(names) and all(c in _WAYS or c[:2] == "NV" for c in cells[name])
        ]
        yield "matrix.gpus", len(gpus)
        if good == gpus and len(set(names)) == len(names) and all(name[:3] in ("GPU", "NIC", "mlx") for name in names):
            if len(gpus) > 1 and any(c[:2] == "NV" for gpu in gpus for c in cells[gpu]):
                cell = cells["GPU0"][names.index("GPU1")]
                yield "matrix.nvlinks", int(cell[2:]) if cell[:2] == "NV" else 0
            columns = " ".join(head).count("Affinity")
            nodes = [row[len(names) + 2] for row in rows if row[0] in gpus and len(row) > len(names) + 2 and columns == 2]
            yield "matrix.nodes", tuple(map(int, nodes)) if len(nodes) == len(gpus) and all(map(str.isdigit, nodes)) else None
        return


def _table(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """The table of plain nvidia-smi, by its bars."""
    memory, addresses, names = [], [], []
    for line in lines:
        if "NVIDIA-SMI" in line and "Driver Version:" in line:
            yield "driver.version", line.partition("Driver Version:")[2].split()[0]
            if "CUDA Version:" in line:
                cuda = line.partition("CUDA Version:")[2].split()
                yield "driver.cuda", cuda[0] if cuda and cuda[0][0].isdigit() else None
        cells = [cell.split() for cell in line.split("|")]
        if len(cells) == 5 and len(cells[1]) > 2 and cells[1][0].isdigit() and cells[2] and cells[2][0].count(":") == 2:
            if cells[2][0].lower() in addresses:
                break
            addresses.append(cells[2][0].lower())
            names.append(" ".join(cells[1][1:-1]))
        elif len(cells) == 5 and addresses and len(memory) < len(addresses) and "MiB" in line and "/" in line:
            total = "".join(cells[2]).partition("/")[2].removesuffix("MiB")
            memory.append(int(total) if total.isdigit() else None)
    yield "table.addresses", tuple(address[-12:].rjust(12, "0") for address in addresses) or None
    yield "table.memory_mib", tuple(memory) if memory and len(memory) == len(addresses) else None
    yield "table.names", tuple(names) or None


def _each(values: Any, read: Callable[[Any], Any]) -> Any:
    found = tuple(map(read, values)) if isinstance(values, tuple) else ()
    return None if not found or any(isinstance(value, Missing) or value is None for value in found) else found


def _capability(gpu: Any) -> Any:
    return gpu.compute_capability if isinstance(gpu.compute_capability, Missing) else tuple(gpu.compute_capability)


def _nodes(nodes: Any) -> Any:
    return tuple((node.id, str(node.cpus)) for node in nodes)


def _matrix_nodes(devices: Any) -> Any:
    return _each(tuple(device for device in devices if device.address.startswith("GPU")), lambda device: device.numa_node)


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
    "packages": lambda s: tuple(
        sorted({(each.name, each.version) for each in s.python.distributions if "[" not in each.location})
    ),  # type: ignore[union-attr]
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
        return tuple((number, str(CpuSet.parse(cpus))) for number, cpus in told) == read
    if field == "table.names":
        return len(told) == len(read) and all(
            name.startswith(cut.removesuffix("...").strip()) for cut, name in zip(told, read, strict=True)
        )
    if field == "packages":  # the product reads other lists of packages, too
        return set(told) <= set(read)
    if field == "shm.gib":
        return abs(told - read) < 2
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
