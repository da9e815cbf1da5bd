"""What a report tells, read a second time and apart from the product: lines cut at their labels, no expression shared with the readers.

``tests/fidelity.py`` compares the two. Every field is a plain value (text, number, tuple); what the text does not tell is not in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchtune_sys.model.facts.python import normalised

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
    nodes: dict[int, str] = {}
    for line in lines:
        words = line.strip().split()
        if (
            words[:1] == ["NUMA"]
            and len(words) in (3, 4)
            and words[1][:4] == "node"
            and words[2] == "CPU(s):"
            and words[1][4:].isdigit()
        ):
            nodes.setdefault(int(words[1][4:]), "".join(words[3:]))
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
    memory: list[Any] = []
    addresses: list[Any] = []
    names: list[Any] = []
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
