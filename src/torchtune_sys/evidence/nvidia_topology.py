"""The matrix of ``nvidia-smi topo -m`` (``-mp``): NVLinks between GPUs, ways over PCIe, NUMA nodes, network cards by name."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice, PciDistance, PciFacts, PciLink
from torchtune_sys.model.values import Missing, Why

_PATHS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "SOC": "SYS"}
"""NCCL has no class between host bridges of one node, and knows but SYS for another socket (SOC: drivers before R390)."""
_CELL = re.compile(r"X|NV\d{1,2}|[A-Z]{3,4}")
_AFTER = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LONGEST = 4000
_MOST = 256


class Matrix:
    """Rows and columns are called ``GPU0``, ``NIC0`` (or, by old drivers, ``mlx5_0``)."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self.rows: list[str] = []
        self.nodes: dict[str, str] = {}
        """NUMA affinity by GPU."""
        self.names: dict[str, str] = {}
        """RDMA device of each NIC."""

    def gpus(self) -> list[str]:
        return [row for row in self.rows if _gpu(row)]

    def cards(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.cells if not _gpu(column)))


def _gpu(name: str) -> bool:
    return name.startswith("GPU") and name[3:].isascii() and name[3:].isdigit() and len(name) < 7


def parse_matrix(text: str) -> Matrix | None:
    """The first matrix of the text; None where there is none.

    >>> found = parse_matrix("\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\tNV4\\t0-15\\t0\\nGPU1\\tNV4\\t X \\t16-31\\t1\\n")
    >>> found.cells["GPU0", "GPU1"], found.nodes
    ('NV4', {'GPU0': '0', 'GPU1': '1'})
    """
    if "GPU0" not in text:
        return None
    found = Matrix()
    columns: list[str] = []
    after = 0
    for line in text.split("\n"):
        words = line[:_LONGEST].strip().lstrip("> ").split()
        if not words or len(words) > _MOST:
            continue
        if not columns:
            columns, after = _header(words, line)
        elif _gpu(words[0]) and words[0] not in found.rows:
            _read(found, words, columns, after)
        elif re.fullmatch(r"NIC\d{1,3}:", words[0]) and len(words) == 2:
            found.names[words[0][:-1]] = words[1][:32]
    return found if found.rows else None


def _header(words: list[str], line: str) -> tuple[list[str], int]:
    """Names of the columns of the matrix, and how many columns stand behind it."""
    names = words[: words.index("CPU")] if "CPU" in words else words
    good = names[:1] == ["GPU0"] and all(re.fullmatch(r"GPU\d{1,3}|NIC\d{1,3}|[a-z]\w{2,20}", name) for name in names)
    return (names, sum(name in line for name in _AFTER)) if good and (len(names) > 1 or "CPU" in words) else ([], 0)


def _read(found: Matrix, words: list[str], columns: list[str], after: int) -> None:
    """A row; one that a terminal has broken is left out."""
    cells, rest = words[1 : len(columns) + 1], words[len(columns) + 1 :]
    if len(cells) < len(columns) or not all(_CELL.fullmatch(cell) for cell in cells) or len(rest) > after:
        return
    own = columns.index(words[0]) if words[0] in columns else -1
    if own < 0 or cells[own] != "X" or cells.count("X") != 1:
        return
    found.rows.append(words[0])
    for column, cell in zip(columns, cells, strict=True):
        found.cells[words[0], column] = cell
    if len(rest) == after > 1 and rest[1].isascii() and rest[1].isdigit() and len(rest[1]) < 5:
        found.nodes[words[0]] = rest[1]


def pairs(matrix: Matrix) -> list[dict[str, Any]]:
    """NVLinks between each two GPUs. A matrix without any may be that of ``-mp``, which leaves them out, and says nothing."""
    gpus = matrix.gpus()
    if not any(matrix.cells[gpu, other].startswith("NV") for gpu in gpus for other in gpus if (gpu, other) in matrix.cells):
        return []
    found = []
    for at, gpu in enumerate(gpus):
        for other in gpus[at + 1 :]:
            cell = matrix.cells.get((gpu, other), "")
            if cell.startswith("NV") or cell in _PATHS:
                links = int(cell[2:]) if cell.startswith("NV") else 0
                found.append({"first": int(gpu[3:]), "second": int(other[3:]), "nvlinks": links})
    return found


def pci_facts(text: str) -> PciFacts | None:
    """GPUs and network cards, called by the matrix's names in place of addresses, and how far they are from each other.

    Which cards are for storage or logins does not show, so that nothing is said of how many a node has.
    """
    matrix = parse_matrix(text)
    if matrix is None:
        return None
    gpus, cards = matrix.gpus(), matrix.cards()
    rdma = {card: matrix.names.get(card, card) for card in cards}
    devices = [_device(gpu, "0x030200", "0x10de", _number(matrix.nodes.get(gpu, ""))) for gpu in gpus]
    devices += [_device(card, _told(), _told(), _told(), rdma[card]) for card in cards]
    ways = []
    for at, gpu in enumerate(gpus):
        for other in (*gpus[at + 1 :], *cards):
            path = _PATHS.get(matrix.cells.get((gpu, other), ""), "")
            if path:
                ways.append(PciDistance(gpu=gpu, other=other, path=path, rdma=rdma.get(other, "")))
    return PciFacts(devices=tuple(devices), distances=tuple(ways))


def _number(words: str) -> Fact[int]:
    return int(words) if words else _told()


def _told() -> Missing:
    return Missing(Why.NOT_RECORDED, "nvidia-smi topo", "not told")


def _device(name: str, class_: Fact[str], vendor: Fact[str], node: Fact[int], rdma: str = "") -> PciDevice:
    nothing = _told()
    return PciDevice(
        address=name,
        class_=class_,
        vendor=vendor,
        device=nothing,
        subsystem_vendor=nothing,
        subsystem_device=nothing,
        numa_node=node,
        driver=nothing,
        link=PciLink(current_gts=nothing, max_gts=nothing, current_width=nothing, max_width=nothing),
        parent="",
        iommu_group=nothing,
        errors=nothing,
        config=nothing,
        bars=nothing,
        iommu_type=nothing,
        rdma=rdma,
    )
