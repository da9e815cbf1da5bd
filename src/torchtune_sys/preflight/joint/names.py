"""Names of a job's nodes: as launchers list them, and how nodes are called."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

_NAMES_AT_MOST = 100_000
_SIGNS_AT_MOST = 16 << 20
"""Of all names of a list together: a few bytes may stand for a long name a hundred thousand times."""


def as_listed(name: str, names: Sequence[str]) -> str:
    """Return the one of ``names`` that a host means which calls itself so: in a list of short names a full one, or the other way round; else its own.

    >>> as_listed("n1.example", ("n1", "n2")), as_listed("n1", ("n1.a", "n2.a")), as_listed("n3", ("n1", "n2"))
    ('n1', 'n1.a', 'n3')
    """
    listed, by_short = _listed(tuple(names))
    if name in listed:
        return name
    short = name.partition(".")[0]
    alike = [*by_short.get(name, ()), *([short] if short in listed else ())]
    return alike[0] if len(alike) == 1 else name


@functools.lru_cache(maxsize=2)
def _listed(names: tuple[str, ...]) -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return the names, and the full ones by their short form: each of a thousand nodes is looked up among a thousand."""
    by_short: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        short = name.partition(".")[0]
        if short != name:
            by_short.setdefault(short, []).append(name)
    return frozenset(names), by_short


def numbered(node: int, locals_: int) -> str:
    """Return how a node is called that never said its name.

    >>> numbered(3, 1), numbered(1, 8)
    ('node 3 (rank 3)', 'node 1 (ranks 8-15)')
    """
    first, last = node * locals_, (node + 1) * locals_ - 1
    return f"node {node} (rank {first})" if first == last else f"node {node} (ranks {first}-{last})"


def expanded(text: str) -> tuple[str, ...]:
    """Return the names of a Slurm node list; empty where it cannot be read.

    >>> expanded("tt[1-3,07],login"), expanded("r[1-2]n[1-2]x"), expanded("bad["), expanded("a[1-99999],b[1-99999]")
    (('tt1', 'tt2', 'tt3', 'tt07', 'login'), ('r1n1x', 'r1n2x', 'r2n1x', 'r2n2x'), (), ())
    """
    found: list[str] = []
    left = _SIGNS_AT_MOST
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        pieces = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            named = (name for item in ranges.split(",") for name in _range(item))
            ends = [plain] if plain else list(itertools.islice(named, _NAMES_AT_MOST + 1))
            signs = sum(map(len, pieces)) * len(ends) + sum(map(len, ends)) * len(pieces)
            if len(found) + len(pieces) * len(ends) > _NAMES_AT_MOST or signs > left:
                return ()
            pieces = [piece + end for piece in pieces for end in ends]
        found += pieces
        left -= sum(map(len, pieces))
    return tuple(found) if text.count("[") == text.count("]") else ()


def _range(text: str) -> list[str]:
    first, _, last = text.partition("-")
    if not last:
        return [first]
    if (
        not re.fullmatch(r"[0-9]{1,18}", first)
        or not re.fullmatch(r"[0-9]{1,18}", last)
        or int(last) - int(first) > _NAMES_AT_MOST
    ):
        return []
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def hosts_of(text: str) -> tuple[str, ...]:
    """Return the names in a hostfile of mpirun or a PBS node file: one a line, each once; ``slots=8``, comments and the mark that editors of Windows put at
    the start are left out.

    >>> hosts_of("\\ufeffa slots=8\\r\\n# b\\nc:4\\na\\nfd00::1\\n")
    ('a', 'c', 'fd00::1')
    """
    words = (line.partition("#")[0].split() for line in text.encode("utf-8", "replace").decode("utf-8-sig").splitlines())
    names = (found[0] for found in words if found)
    return tuple(dict.fromkeys(name if name.count(":") > 1 else name.partition(":")[0] for name in names))


def switches_of(text: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes behind each leaf switch, or in each block, of Slurm's topology.conf(5). Switches that only join others have none.

    >>> switches_of("# a\\nSwitchName=s0 Nodes=tux[0-2] \\nswitchname=s1 LinkSpeed=4 nodes=tux3,\\\\\\ntux4\\nSwitchName=top Switches=s[0-1]\\nBlockName=b Nodes=x")
    {'s0': ('tux0', 'tux1', 'tux2'), 's1': ('tux3', 'tux4'), 'b': ('x',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    count = 0
    for row in text.replace("\\\n", "").splitlines():
        pairs = (word.partition("=") for word in row.partition("#")[0].split())
        fields = {key.lower(): value for key, _, value in pairs}
        name = fields.get("switchname") or fields.get("blockname")
        nodes = expanded(fields.get("nodes", "")) if name and count < _NAMES_AT_MOST else ()
        if name and nodes:
            found[name] = nodes
            count += len(nodes)
    return found
