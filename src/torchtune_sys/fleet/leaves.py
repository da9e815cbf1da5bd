"""Flatten a family of a facts file into single facts by name: ``network.interfaces[eth0].mtu`` → its value as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from torchtune_sys.fleet.facts_file import EACH, LIST, MISSING, ROWS, WORDS
from torchtune_sys.model.cpuset import CpuSet

Leaves = dict[str, bytes]
_ROWS_AT_MOST = 65536
_LEAVES_AT_MOST = 500_000
"""A host has some thousands; a few bytes of a list format could stand for millions."""
_CHARACTERS_AT_MOST = 64 << 20
"""Of all names and values: each fact's name holds those that it stands below, so that a long one may be there many times."""
_NAME_AT_MOST = 4096
"""Characters of a fact's name: patterns look for brackets within brackets in it."""
_DEEP = 32
"""Levels of lists and objects in one value: what is printed of it is read and written level by level."""
KNOWN = b"true"
"""What stands for a thing that has facts of its own: that it is there."""
_encode = msgspec.json.Encoder(order="deterministic").encode


def leaves(value: Any, path: str) -> Leaves:
    """Return the leaves of a facts file. Raises ValueError for what no facts file holds."""
    found = _Found(path)
    try:
        _walk(value, path, found)
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not as a facts file has it ({type(error).__name__})") from None
    return found.leaves


class _Found:
    """What was found so far, and how much more there may be."""

    def __init__(self, path: str) -> None:
        self.leaves: Leaves = {}
        self._path, self._left = path, _CHARACTERS_AT_MOST

    def put(self, path: str, value: bytes) -> None:
        """Keep a leaf. Raises ValueError where there are more than a host has."""
        self._left -= len(path) + len(value)
        if self._left < 0 or len(path) > _NAME_AT_MOST or len(self.leaves) > _LEAVES_AT_MOST:
            raise ValueError(f"{self._path}: more facts than a host has")
        self.leaves[path] = value


def _walk(value: Any, path: str, found: _Found) -> None:
    if not isinstance(value, dict):
        if isinstance(value, list) and _is_deeper(value, _DEEP):
            raise ValueError("lists within lists, deeper than any host tells")
        found.put(path, _encode(value))
    elif isinstance(value.get(MISSING), str):
        found.put(path, _encode({MISSING: value[MISSING]}))
    elif WORDS in value:
        found.put(path, _encode(words(value)))
    else:
        found.put(path, KNOWN)
        if ROWS in value:
            _rows(value, path, found)
        else:
            for name, item in _fields(value):
                _walk(item, f"{path}.{name}", found)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other on more levels than so many."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(item, levels - 1) for item in inner)


def _fields(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, item in value.items():
        if name == MISSING:
            for why, names in item.items():
                yield from ((gone, {MISSING: why}) for gone in names)
        elif name != ROWS:
            yield name, item


def _rows(value: dict[str, Any], path: str, found: _Found) -> None:
    keys = []
    for key in _keys(value[ROWS]):
        keys.append(f"{path}[{key}]")
        found.put(keys[-1], KNOWN)
    for name, column in _fields(value):
        below = f".{name}" if name else ""
        for place, item in _cells(column, len(keys)):
            _walk(item, keys[place] + below, found)


def _cells(column: Any, rows: int) -> Iterable[tuple[int, Any]]:
    if isinstance(column, dict) and LIST in column:
        return enumerate(column[LIST])
    if isinstance(column, dict) and EACH in column:
        return _named_once(column[EACH], rows)
    return ((place, column) for place in range(rows))


def _named_once(groups: Iterable[tuple[Any, str]], rows: int) -> Iterable[tuple[int, Any]]:
    """Yield rows and their value. Raises ValueError where more are named than there are: a few bytes name 65,536."""
    for item, places in groups:
        named = CpuSet.parse(places, _ROWS_AT_MOST)
        rows -= len(named)
        if rows < 0:
            raise ValueError("a column tells of more rows than there are")
        yield from ((place, item) for place in named)


def _keys(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        return CpuSet.parse(value, _ROWS_AT_MOST)
    return words(value) if isinstance(value, dict) else value


def words(value: dict[str, Any]) -> list[str]:
    """Return the words of a list in its short form. Raises ValueError where they are more than any host has.

    A word that begins with a dot continues the prefix of the one before it.

    >>> words({"$words": "net.core.rmem_max .wmem_max vm.a .b"})
    ['net.core.rmem_max', 'net.core.wmem_max', 'vm.a', 'vm.b']
    """
    found: list[str] = []
    left = _CHARACTERS_AT_MOST
    for word in value[WORDS].split(" "):
        found.append(found[-1].rpartition(".")[0] + word if word.startswith(".") else word)
        left -= len(found[-1])
        if left < 0:
            raise ValueError("a list in short form of more than any host tells")
    return found
