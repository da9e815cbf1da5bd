"""``torchtune-sys/facts/1``: a snapshot in a tenth of its size, the same bytes whenever the host is the same.

Lists of things are written as rows: the keys once, then what all rows share once, then what differs as values with the
positions of their rows. What names one host (its name, addresses, identifiers) is replaced by a word, what changes by itself
(:mod:`torchtune_sys.fleet.left_out`) is left out, and a fact that is missing keeps why.
"""

from __future__ import annotations

import posixpath
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from torchtune_sys.fleet.left_out import left_out, mount_option_left_out, variable_left_out
from torchtune_sys.fleet.own_names import OwnNames, comes_and_goes, own_names
from torchtune_sys.host.environment import looked_for
from torchtune_sys.model import codec
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.gpu import Peers
from torchtune_sys.model.facts.network import Interface
from torchtune_sys.model.facts.pci import PciDistance
from torchtune_sys.model.facts.python import LoaderChoice
from torchtune_sys.model.facts.storage import Disk, StoragePath
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render.as_json import FACTS

SCHEMA = FACTS
ROWS, EACH, LIST, WORDS, MISSING = "$rows", "$each", "$list", "$words", "$missing"
_MOUNT_OPTIONS = "storage.places.options"
_OMITTED = object()


def facts(seen: Snapshot, families: Iterable[str] = FAMILIES) -> dict[str, Any]:
    """Return the facts by family: plain JSON data with sorted keys."""
    own = own_names(seen)
    found = {family: _value(getattr(seen, family), family, own) for family in sorted(families)}
    return {family: value for family, value in found.items() if value is not _OMITTED}


def host_name(seen: Snapshot) -> str:
    """Return the host's name; ``""`` where it is not known."""
    name = None if isinstance(seen.system, Missing) else seen.system.hostname
    return name if isinstance(name, str) else ""


def document(seen: Snapshot, *, version: str, volatile: Mapping[str, Any]) -> str:
    """Return the facts file, one line of JSON. All that may differ between two looks at an unchanged host stands below ``volatile``."""
    return codec.line(
        {"schema": SCHEMA, "tool": {"env": looked_for(), "version": version}, "facts": facts(seen), "volatile": volatile}
    )


def _value(value: Any, path: str, own: OwnNames) -> Any:
    """``_OMITTED`` for what is left out or was not recorded."""
    if left_out(path):
        return _OMITTED
    if isinstance(value, Missing):
        return _OMITTED if value.why is Why.NOT_RECORDED else {MISSING: value.why.value}
    if isinstance(value, msgspec.Struct):
        return _by_reason(_fields(value, path, own))
    if isinstance(value, Mapping):
        return _mapping(value, path, own)
    if isinstance(value, tuple) and any(isinstance(item, msgspec.Struct) for item in value):
        return _rows(_keyed(value, own), path, own)
    if path == _MOUNT_OPTIONS:
        value = [option for option in value if not mount_option_left_out(option)]
    if value is None or isinstance(value, (bool, int)):
        return codec.to_builtins(value) if isinstance(value, int) and abs(value) >> 53 else value
    return _words(own.plain(codec.to_builtins(sorted(value) if isinstance(value, frozenset) else value)))


def _words(value: Any) -> Any:
    """Many words in one text; ``.b`` after ``net.a`` stands for ``net.b``.

    >>> _words(["net.core.rmem_max", "net.core.wmem_max", "vm.a", "vm.b"])
    {'$words': 'net.core.rmem_max .wmem_max vm.a .b'}
    """
    if not isinstance(value, list) or len(value) < 4 or not all(isinstance(item, str) for item in value):
        return value
    if any(not word or " " in word or word.startswith(".") for word in value):
        return value
    before = ["", *value]
    return {WORDS: " ".join(_shortened(word, last) for word, last in zip(value, before, strict=False))}


def _shortened(word: str, last: str) -> str:
    head, dot, tail = word.rpartition(".")
    return f".{tail}" if dot and head == last.rpartition(".")[0] and tail else word


def _fields(value: msgspec.Struct, path: str, own: OwnNames) -> dict[str, Any]:
    fields = sorted(zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True), key=lambda names: names[1])
    found = {shown: _value(getattr(value, name), f"{path}.{shown}", own) for name, shown in fields}
    for name, shown in fields:
        if found[shown] == [] and name in _of_structs(type(value)):
            found[shown] = {ROWS: []}
    return {name: item for name, item in found.items() if item is not _OMITTED}


@lru_cache(None)
def _of_structs(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that hold rows: an empty list of these is told from one of plain values."""
    return frozenset(name for name, hint in typing.get_type_hints(kind).items() if _holds_structs(hint))


def _holds_structs(hint: Any) -> bool:
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct)
    return any(_holds_structs(item) for item in inner)


def _by_reason(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same with the names of missing facts below the reason: there are many of them, and few reasons."""
    missing: dict[str, list[str]] = {}
    for name, item in found.items():
        if isinstance(item, dict) and isinstance(item.get(MISSING), str):
            missing.setdefault(item[MISSING], []).append(name)
    gone = {name for names in missing.values() for name in names}
    return {**{name: item for name, item in found.items() if name not in gone}, **({MISSING: missing} if missing else {})}


def _mapping(value: Mapping[str, Any], path: str, own: OwnNames) -> Any:
    if any(isinstance(item, msgspec.Struct) and not isinstance(item, Missing) for item in value.values()):
        if path == "sysctl.settings":
            value = {key: item for key, item in value.items() if not _of_interface(key, own)}
        return _rows(sorted(((own.text(key), item) for key, item in value.items()), key=lambda item: item[0]), path, own, ())
    kept = sorted((own.text(key), item) for key, item in value.items() if path != "session.env" or not variable_left_out(key))
    values = ((key, _value(item, path, own)) for key, item in kept)
    plain = {key: value for key, value in values if value is not _OMITTED}
    return {ROWS: _words(list(plain)), "": {LIST: list(plain.values())}} if plain else {}


def _keyed(rows: Iterable[Any], own: OwnNames) -> list[tuple[str, Any]]:
    """Each row with what it is called on every host alike."""
    named = [(own.text(_key(row)), row) for row in rows if not _comes_and_goes(row)]
    if any(isinstance(row, Disk) for _, row in named):
        named.sort(key=lambda item: (item[0], codec.dumps(msgspec.structs.replace(item[1], name=""))))
    counts: dict[str, int] = {}
    found = []
    for key, row in named:
        counts[key] = counts.get(key, 0) + 1
        found.append((key if counts[key] == 1 else f"{key} #{counts[key]}", row))
    return found


def _key(row: msgspec.Struct) -> str:
    if isinstance(row, Disk):  # which of two alike is nvme0n1 is chance
        return f"{row.kind} {row.model if isinstance(row.model, str) else ''}".rstrip()
    if isinstance(row, StoragePath):
        return row.role
    if isinstance(row, Peers):
        return f"{row.first}-{row.second}"
    if isinstance(row, PciDistance):
        return f"{row.gpu} {row.other}"
    return str(getattr(row, _key_field(row)))


def _key_field(row: msgspec.Struct) -> str:
    return "source" if isinstance(row, Assignment) else row.__struct_fields__[0]


def _in_key(row: msgspec.Struct) -> tuple[str, ...]:
    if isinstance(row, Disk):
        return ("kind", "model") if isinstance(row.model, str) else ("kind",)
    if isinstance(row, (StoragePath, PciDistance)):
        return ()
    return ("first", "second") if isinstance(row, Peers) else (_key_field(row),)


def _comes_and_goes(row: object) -> bool:
    return isinstance(row, Interface) and comes_and_goes(row)


def _of_interface(key: str, own: OwnNames) -> bool:
    """Whether a kernel setting is one of an interface that comes and goes: ``net.ipv4.conf.veth1a2b3c.rp_filter``."""
    parts = key.split(".")
    return len(parts) > 4 and parts[2] in ("conf", "neigh") and ".".join(parts[3:-1]).replace("/", ".") in own.passing


def _rows(rows: Iterable[tuple[str, Any]], path: str, own: OwnNames, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return what all rows share once; of the rest each value with the positions of the rows that have it."""
    keys, bodies = [], []
    for key, row in rows:
        keys.append(key)
        bodies.append(_body(row, path, own, in_key=known))
    columns: dict[str, dict[bytes, tuple[Any, list[int]]]] = {}
    for place, body in enumerate(bodies):
        for name, value in body.items():
            columns.setdefault(name, {}).setdefault(msgspec.json.encode(value), (value, []))[1].append(place)
    found: dict[str, Any] = {ROWS: _numbered(keys)}
    for name in sorted(columns):
        found[name] = _column([value for _, value in sorted(columns[name].items())], len(keys))
    return _by_reason(found)


def _column(values: list[tuple[Any, list[int]]], rows: int) -> Any:
    """One value for all rows; all different, in their order; or each value with the positions of its rows."""
    if len(values) == 1 and len(values[0][1]) == rows:
        return values[0][0]
    if len(values) == rows:
        return {LIST: [value for value, _ in sorted(values, key=lambda item: item[1])]}
    return {EACH: [[value, str(CpuSet(places))] for value, places in values]}


def _body(row: Any, path: str, own: OwnNames, in_key: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the fields of one row but for those that its key tells."""
    if isinstance(row, Missing) or not isinstance(row, msgspec.Struct):
        found = _value(row, path, own)
        return {} if found is _OMITTED else {"": found}
    body = _fields(row, path, own)
    for name in _in_key(row) if in_key is None else in_key:
        body.pop(name, None)
    if isinstance(row, LoaderChoice) and isinstance(row.path, str):
        path = posixpath.normpath(row.path)
        body["path"] = own.text(posixpath.dirname(path) + "/" if posixpath.basename(path) == row.name else path)
    return body


def _numbered(keys: list[str]) -> Any:
    """Numbers in order in the kernel's list format: ``0-7``."""
    if keys and all(key.isascii() and key.isdecimal() and len(key) < 5 for key in keys):
        text = str(CpuSet(int(key) for key in keys))
        if [str(number) for number in CpuSet.parse(text)] == keys:
            return text
    return _words(keys)
