"""Drift: a snapshot in which one fact is another one, for each fact that it has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why


def planted(seen: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """Each fact by name, once (of a list's rows in the last one that has it), with the snapshot in which it drifted."""
    found: dict[str, Snapshot] = {}
    for family in FAMILIES:
        for path, value in _drifted(getattr(seen, family), family):
            found[path] = msgspec.structs.replace(seen, **{family: value})
    yield from found.items()


def _drifted(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Missing):
        if value.why in (Why.ABSENT, Why.NOT_SUPPORTED):  # what nobody could see on any host cannot drift
            why = Why.NOT_SUPPORTED if value.why is not Why.NOT_SUPPORTED else Why.ABSENT
            yield path, msgspec.structs.replace(value, why=why)
    elif isinstance(value, msgspec.Struct):
        for name, shown in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            for below, other in _drifted(getattr(value, name), f"{path}.{shown}"):
                yield below, msgspec.structs.replace(value, **{name: other})
    elif isinstance(value, Mapping):
        yield path, {**value, "drift": next(iter(value.values()), "new")}
        for key, item in value.items():
            for below, other in _drifted(item, f"{path}[{key}]" if not isinstance(item, msgspec.Struct) else path):
                yield below, {**value, key: other}
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        yield path, value[:-1]
        for place, row in enumerate(value):
            for below, other in _drifted(row, path):
                yield below, (*value[:place], other, *value[place + 1 :])
    else:
        yield path, another(value)


def another(value: Any) -> Any:
    """Another value of the same type, so far away that it is no noise."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 + 1 if value >= 0 else 0
    if isinstance(value, float):
        return 1.5 if math.isinf(value) else value * 2 + 1
    if isinstance(value, str):
        return f"{value}-drift"
    if isinstance(value, CpuSet):
        return CpuSet([*value, 1023])
    if isinstance(value, frozenset):
        return value | {"drift"}
    if isinstance(value, tuple):
        return (*value, another(value[0]) if value else "drift")  # the last mount options are those that are left out
    assert value is None, value
    return 1
