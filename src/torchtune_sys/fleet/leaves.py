"""A family of a facts file as single facts by name: ``network.interfaces[eth0].mtu`` → its value as JSON."""

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
KNOWN = b"true"
"""What stands for a thing that has facts of its own: that it is there."""
_encode = msgspec.json.Encoder(order="deterministic").encode


def leaves(value: Any, path: str) -> Leaves:
    """Return the leaves of a facts file. Raises ValueError for what no facts file holds."""
    found: Leaves = {}
    try:
        _walk(value, path, found)
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not as a facts file has it ({type(error).__name__})") from None
    return found


def _walk(value: Any, path: str, found: Leaves) -> None:
    if not isinstance(value, dict):
        found[path] = _encode(value)
    elif isinstance(value.get(MISSING), str):
        found[path] = _encode({MISSING: value[MISSING]})
    elif WORDS in value:
        found[path] = _encode(words(value))
    elif len(found) > _LEAVES_AT_MOST:
        raise ValueError(f"{path}: more facts than a host has")
    else:
        found[path] = KNOWN
        if ROWS in value:
            _rows(value, path, found)
        else:
            for name, item in _fields(value):
                _walk(item, f"{path}.{name}", found)


def _fields(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, item in value.items():
        if name == MISSING:
            for why, names in item.items():
                yield from ((gone, {MISSING: why}) for gone in names)
        elif name != ROWS:
            yield name, item


def _rows(value: dict[str, Any], path: str, found: Leaves) -> None:
    keys = [f"{path}[{key}]" for key in _keys(value[ROWS])]
    found.update(dict.fromkeys(keys, KNOWN))
    for name, column in _fields(value):
        below = f".{name}" if name else ""
        if len(found) > _LEAVES_AT_MOST:
            raise ValueError(f"{path}: more facts than a host has")
        for place, item in _cells(column, len(keys)):
            _walk(item, keys[place] + below, found)


def _cells(column: Any, rows: int) -> Iterable[tuple[int, Any]]:
    if isinstance(column, dict) and LIST in column:
        return enumerate(column[LIST])
    if isinstance(column, dict) and EACH in column:
        return ((place, item) for item, places in column[EACH] for place in CpuSet.parse(places, _ROWS_AT_MOST))
    return ((place, column) for place in range(rows))


def _keys(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        return CpuSet.parse(value, _ROWS_AT_MOST)
    return words(value) if isinstance(value, dict) else value


def words(value: dict[str, Any]) -> list[str]:
    """
    >>> words({"$words": "net.core.rmem_max .wmem_max vm.a .b"})
    ['net.core.rmem_max', 'net.core.wmem_max', 'vm.a', 'vm.b']
    """
    found: list[str] = []
    for word in value[WORDS].split(" "):
        found.append(found[-1].rpartition(".")[0] + word if word.startswith(".") else word)
    return found
