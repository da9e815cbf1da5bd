"""Read a snapshot from the JSON of ``snapshot --format json``, of this release or an earlier one."""

from __future__ import annotations

import enum
import types
import typing
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec

from torchtune_sys.model import codec
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why

_SOURCE = "snapshot"
_NEWER = Missing(Why.NOT_RECORDED, _SOURCE, "the snapshot was made by a release that did not look for it")


def from_json(document: dict[str, Any]) -> Snapshot:
    """Return the snapshot. What a later release added is left out, what an earlier one did not know is not recorded.

    Raises ValueError for what is no snapshot.
    """
    facts = document.get("facts")
    if not isinstance(facts, dict):
        raise ValueError("has no facts")
    hints = _hints(Snapshot)
    found: dict[str, Any] = {
        family: _as(hints[family], facts.get(family), family) if family in facts else _NEWER for family in FAMILIES
    }
    intent = document.get("intent")
    return Snapshot(
        **found,
        intent=_as(Workload, intent, "intent") if isinstance(intent, dict) else Workload(),
        origin=str(document.get("origin", "snapshot")),
    )


@lru_cache(None)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@lru_cache(None)
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return a struct's fields; msgspec evaluates each annotation anew when it is asked."""
    return msgspec.structs.fields(kind)


def _as(kind: Any, value: Any, path: str) -> Any:
    """``value`` as what the codec made it of."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, value, path)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, _checked(value, dict, path), path)
    if origin is tuple and inner[-1] is not Ellipsis:
        if len(_checked(value, list, path)) != len(inner):
            raise ValueError(f"{path} is not of {len(inner)} parts")
        return tuple(_as(item, part, path) for item, part in zip(inner, value, strict=True))
    if origin in (tuple, frozenset):
        return origin(_as(inner[0], item, path) for item in _checked(value, list, path))
    if origin in (dict, typing.get_origin(typing.Mapping[str, str])):
        return {key: _as(inner[1], item, f"{path}[{key}]") for key, item in _checked(value, dict, path).items()}
    return _scalar(kind, value, path)


def _one_of(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    if Missing in kinds and isinstance(value, dict) and "$missing" in value:
        return codec.convert(value, Missing)
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind not in (Missing, type(None))]
    return _as(rest[0], value, path)


def _struct(kind: type[msgspec.Struct], value: dict[str, Any], path: str) -> Any:
    hints = _hints(kind)
    found: dict[str, Any] = {}
    for field in _fields(kind):
        if field.encode_name in value:
            found[field.name] = _as(hints[field.name], value[field.encode_name], f"{path}.{field.encode_name}")
        elif field.required:
            found[field.name] = _unknown(hints[field.name], f"{path}.{field.encode_name}")
    return kind(**found)


def _unknown(kind: Any, path: str) -> Any:
    if Missing in typing.get_args(kind):
        return _NEWER
    empty = {str: "", bool: False, int: 0, float: 0.0, tuple: (), dict: {}}
    plain = typing.get_origin(kind) or kind
    if plain in empty:
        return empty[plain]
    raise ValueError(f"lacks {path}")


_BITS = 128
"""Of a whole number, at most: what is counted with, and told, in floats ends beyond 1,024."""


def _number(kind: type[int] | type[float], value: Any, path: str) -> int | float:
    found = int(value) if kind is int or isinstance(value, int) else value
    if isinstance(found, int) and found.bit_length() > _BITS:
        raise ValueError(f"{path} is too large a number")
    number = kind(found)
    if not isfinite(number):  # "nan", "-inf": what has no bound is written as null
        raise ValueError(f"{path} is no number")
    return number


def _scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is CpuSet:
        return CpuSet.parse(_checked(value, str, path))
    if kind is float:
        return float("inf") if value is None else _number(float, _checked(value, (int, float, str), path), path)
    if kind is int:  # those above 2**53 are written as text
        return _number(int, _checked(value, (int, str), path), path)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return _checked(value, kind, path)


def _checked(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{path} is not what it should be")
    return value
