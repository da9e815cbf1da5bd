"""NUMA nodes in what ``numactl -H`` (``--hardware``) prints: their CPUs, memory and distances."""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.numa import NumaFacts, NumaNode
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_FIRST = pattern(r"^[ \t>]{0,8}available: (\d{1,4}) nodes? \(", re.MULTILINE)
_NONE = pattern(r"^[ \t>]{0,8}No NUMA available on this system", re.MULTILINE)
_CPUS = pattern(r"^[ \t>]{0,8}node (\d{1,4}) cpus:((?: \d{1,5}){0,4096})[ \t]*$", re.MULTILINE)
_AMOUNT = pattern(r"^[ \t>]{0,8}node (\d{1,4}) (size|free): (\d{1,12}) MB", re.MULTILINE)
_ROW = pattern(r"^[ \t>]{0,8}(\d{1,4}):((?: +\d{1,3})+)[ \t]*$", re.MULTILINE)


def numa_facts(text: str) -> NumaFacts | None:
    """Return the facts of ``numactl --hardware``; None where the text has none of it. A node without a line of CPUs, or whose matrix is cut, keeps what is told of it.

    >>> text = '''available: 2 nodes (0-1)
    ... node 0 cpus: 0 1 2 3
    ... node 0 size: 94590 MB
    ... node 0 free: 44981 MB
    ... node 1 cpus:
    ... node 1 size: 0 MB
    ... node 1 free: 0 MB
    ... node distances:
    ... node   0   1
    ...   0:  10  21
    ...   1:  21  10
    ... '''
    >>> [(str(node.cpus), node.memory_bytes >> 20, node.distances) for node in numa_facts(text).nodes]
    [('0-3', 94590, (10, 21)), ('', 0, (21, 10))]
    """
    first = _FIRST.search(text)
    if first is None:
        absent = Missing(Why.ABSENT, "numactl", "No NUMA available on this system")
        return partly(NumaFacts, nodes=absent) if _NONE.search(text) else None
    cpus = {int(found[1]): CpuSet(map(int, found[2].split())) for found in _CPUS.finditer(text, first.start())}
    amounts = {(int(found[1]), found[2]): int(found[3]) << 20 for found in _AMOUNT.finditer(text, first.start())}
    numbers = sorted({*cpus, *(number for number, _ in amounts)})
    if len(numbers) != int(first[1]):
        return partly(NumaFacts, nodes=missing(f"numactl tells {first[1]} nodes, {len(numbers)} are in the report"))
    rows = _distances(text, first.start(), numbers)
    return partly(
        NumaFacts,
        nodes=tuple(
            NumaNode(
                id=number,
                cpus=cpus.get(number, missing()),
                memory_bytes=amounts.get((number, "size"), missing()),
                free_bytes=amounts.get((number, "free"), missing()),
                distances=rows.get(number, missing()),
            )
            for number in numbers
        ),
    )


def _distances(text: str, start: int, numbers: list[int]) -> dict[int, Fact[tuple[int, ...]]]:
    """Return the whole rows of the matrix, by node."""
    at = text.find("node distances:", start)
    rows = {int(found[1]): tuple(map(int, found[2].split())) for found in _ROW.finditer(text, at)} if at >= 0 else {}
    return {number: row for number, row in rows.items() if len(row) == len(numbers)}
