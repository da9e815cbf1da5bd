"""The matrix of ``nvidia-smi topo -m`` (``-mp``): NVLinks between GPUs, ways over PCIe, NUMA nodes, network cards by name."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice, PciDistance, PciFacts, PciLink
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_PATHS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "SOC": "SYS"}
"""NCCL has no class between host bridges of one node, and knows but SYS for another socket (SOC: drivers before R390)."""
_CELL = pattern(r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|[A-Z]{3,4}")
_GLUED = pattern(r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC")
_COLUMN = pattern(r"GPU\d{1,3}|NIC\d{1,3}|[a-z]\w{2,20}")
_GLUED_COLUMN = pattern(r"(?:GPU|NIC)\d{1,3}")
"""Terminals broke lines between two columns, and pastes lost the break: cells and names of a fixed form can be told apart again."""
_AFTER = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LONGEST = 4000
_MOST = 256


class Matrix:
    """Rows and columns are called ``GPU0``, ``NIC0`` (or, by old drivers, ``mlx5_0``)."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.cells: dict[tuple[str, str], str] = {}
        self.rows: list[str] = []
        self.nodes: dict[str, str] = {}
        """NUMA affinity by GPU."""
        self.names: dict[str, str] = {}
        """RDMA device of each NIC."""

    def gpus(self) -> list[str]:
        return [column for column in self.columns if _gpu(column)]

    def cards(self) -> list[str]:
        return [column for column in self.columns if not _gpu(column)]

    def whole(self) -> bool:
        """Return whether the row of each GPU was read; of a cut matrix nothing but the number of GPUs is believed."""
        return set(self.rows) == set(self.gpus())


def _gpu(name: str) -> bool:
    return name.startswith("GPU") and name[3:].isascii() and name[3:].isdigit() and len(name) < 7


def parse_matrix(text: str) -> Matrix | None:
    """Return the first matrix of the text; None where there is none, or where its rows do not belong to its columns.

    >>> found = parse_matrix("\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\tNV4\\t0-15\\t0\\nGPU1\\tNV4\\t X \\t16-31\\t1\\n")
    >>> found.cells["GPU0", "GPU1"], found.nodes
    ('NV4', {'GPU0': '0', 'GPU1': '1'})
    """
    if "GPU0" not in text:
        return None
    found = Matrix()
    if not any(_header(line)[0] for line in text.split("\n")):
        found.columns = _columns_of_rows(text)
    seen: set[str] = set()
    after = len(_AFTER)
    for line in text.split("\n"):
        words = line[:_LONGEST].strip().lstrip("> ").split()
        if not words or len(words) > _MOST:
            continue
        if not found.columns:
            found.columns, after = _header(line)
        elif _gpu(words[0]) and words[0] not in seen and words[0] != words[-1]:
            if _header(line)[0]:
                break  # the matrix was printed again
            seen.add(words[0])
            if not _read(found, words, after):
                return None
        elif re.fullmatch(r"NIC\d{1,3}:", words[0]) and len(words) == 2:
            found.names[words[0][:-1]] = words[1][:32]
    return found if found.rows else None


_ROW = pattern(r"(GPU\d{1,3}|NIC\d{1,3})[ \t]{1,8}\S.{0,3000}")


def _columns_of_rows(text: str) -> list[str]:
    """Return the columns of a matrix whose first line was not pasted: each row has its X in its own column, GPUs in their order, then network cards.

    >>> _columns_of_rows("GPU0\\t X \\tNV4\\tSYS\\nGPU1\\tNV4\\t X \\tSYS\\nNIC0\\tSYS\\tSYS\\t X \\n")
    ['GPU0', 'GPU1', 'NIC0']
    >>> _columns_of_rows("GPU0\\t X \\tNV4\\nGPU2\\tNV4\\tSYS\\tX\\n")
    []
    """
    rows = [found[0].split() for line in text.split("\n") if (found := _ROW.fullmatch(line.strip().lstrip("> ")))][:_MOST]
    names = [row[0] for row in rows]
    gpus = sum(map(_gpu, names))
    if gpus < 2 or names != [f"GPU{at}" for at in range(gpus)] + [f"NIC{at}" for at in range(len(names) - gpus)]:
        return []
    if any(_CELL.fullmatch(word) for row in rows for word in row[len(names) + 1 :]):
        return []  # a row or a card was lost
    own = all(row[at + 1 : at + 2] == ["X"] and "X" not in row[1 : at + 1] for at, row in enumerate(rows))
    return names if own else []


_COMMAND = pattern(r"^.{0,200}?\bnvidia-smi topo (?:-m|--matrix)\s+(?=GPU0\b)")
"""What was typed, where a web page or a mail lost the end of that line."""


def _header(line: str) -> tuple[list[str], int]:
    """Names of the columns of the matrix, and how many columns stand behind it."""
    line = _COMMAND.sub("", line)
    head, behind, _ = line[:_LONGEST].strip().lstrip("> ").partition("CPU Affinity")
    names = [part for word in head.split() for part in _apart(word, _COLUMN, _GLUED_COLUMN)]
    good = names[:1] == ["GPU0"] and all(_COLUMN.fullmatch(name) for name in names) and len(set(names)) == len(names)
    return (names, sum(name in line for name in _AFTER)) if good and (len(names) > 1 or behind) else ([], 0)


def _apart(word: str, one: re.Pattern[str], glued: re.Pattern[str]) -> list[str]:
    """Return a word, or the parts that make it up without a rest."""
    if one.fullmatch(word):
        return [word]
    parts = glued.findall(word)
    return parts if "".join(parts) == word else [word]


def _read(found: Matrix, words: list[str], after: int) -> bool:
    """Read a row; one that was cut is left out. False where it is no row of this matrix: its columns were cut."""
    if words[0] not in found.columns:
        return False
    parts = [part for word in words[1:] for part in _apart(word, _CELL, _GLUED)]
    size = len(found.columns)
    cells, rest = parts[:size], parts[size:]
    if rest and _CELL.fullmatch(rest[0]) and len(rest) > after:
        return False
    own = found.columns.index(words[0])
    if len(cells) < size or not all(_CELL.fullmatch(cell) for cell in cells) or cells[own] != "X" or cells.count("X") != 1:
        return True
    if len(rest) > after:
        return True
    found.rows.append(words[0])
    for column, cell in zip(found.columns, cells, strict=True):
        found.cells[words[0], column] = cell
    node = rest[1].removesuffix("N/A") if len(rest) >= 2 and after > 1 else ""
    if node.isascii() and node.isdigit() and len(node) < 5 and len(rest) >= min(after, 2):
        found.nodes[words[0]] = node
    return True


def pairs(matrix: Matrix) -> list[dict[str, Any]]:
    """Return the NVLinks between each two GPUs. A matrix without any may be that of ``-mp``, which leaves them out, and says nothing; a cut one neither."""
    gpus = matrix.gpus()
    if not matrix.whole() or not any(matrix.cells[gpu, other].startswith("NV") for gpu in gpus for other in gpus):
        return []
    found = []
    for at, gpu in enumerate(gpus):
        for other in gpus[at + 1 :]:
            cell = matrix.cells[gpu, other]
            if cell.startswith("NV") or cell in _PATHS:
                links = int(cell[2:]) if cell.startswith("NV") else 0
                found.append({"first": int(gpu[3:]), "second": int(other[3:]), "nvlinks": links})
    return found


def pci_facts(text: str) -> PciFacts | None:
    """Return GPUs and network cards, called by the matrix's names in place of addresses, and how far they are from each other.

    Which cards are for storage or logins does not show, so that nothing is said of how many a node has.
    """
    matrix = parse_matrix(text)
    if matrix is None or not matrix.whole():
        return None
    gpus, cards = matrix.gpus(), matrix.cards()
    rdma = {card: matrix.names.get(card, card) for card in cards}
    devices = [_device(gpu, "0x030200", "0x10de", _number(matrix.nodes.get(gpu, ""))) for gpu in gpus]
    devices += [_device(card, _not_reported(), _not_reported(), _not_reported(), rdma[card]) for card in cards]
    ways = []
    for at, gpu in enumerate(gpus):
        for other in (*gpus[at + 1 :], *cards):
            path = _PATHS.get(matrix.cells.get((gpu, other), ""), "")
            if path:
                ways.append(PciDistance(gpu=gpu, other=other, path=path, rdma=rdma.get(other, "")))
    return PciFacts(devices=tuple(devices), distances=tuple(ways))


def _number(words: str) -> Fact[int]:
    return int(words) if words else _not_reported()


def _not_reported() -> Missing:
    return Missing(Why.NOT_RECORDED, "nvidia-smi topo", "not stated")


def _device(name: str, class_: Fact[str], vendor: Fact[str], node: Fact[int], rdma: str = "") -> PciDevice:
    nothing = _not_reported()
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
