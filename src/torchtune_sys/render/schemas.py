"""The JSON Schemas of snapshots, plans, installations, images and smoke tests, made from their own types; those of reports and recordings are written by hand."""

from __future__ import annotations

import enum
import os
import types
import typing
from typing import Any

import msgspec

from torchtune_sys.model import codec
from torchtune_sys.model.comparison import Comparison
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.image import Image
from torchtune_sys.model.install import Installation
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.preflight import Preflight
from torchtune_sys.model.run import RunReport
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.render.as_json import COMPARE, DIAGNOSIS, FACTS, IMAGE, INSTALL, PLAN, PREFLIGHT, RUN, SMOKE, SNAPSHOT

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
"""Where the schemas are shipped."""
_TOOL = {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}}
_LOOKED_WITH = {
    "type": "object",
    "required": ["version"],
    "properties": {
        "version": {"type": "string"},
        "env": {"type": "string", "description": "Fingerprint of the names of the variables that were looked for."},
    },
}


def schemas() -> dict[str, str]:
    """Return the text of each schema that is made from types, by the file's name: ``NAME.schema.json``."""
    return {
        "snapshot": _snapshot(),
        "plan": _of_one(PLAN, "plan", "What would be changed on one host, and what not.", "plan", Plan),
        "run": _whole(RUN, "apply --format json, torchtune-sys undo", "What became of each setting.", RunReport),
        "install": _of_one(
            INSTALL, "generate install", "What to install on one host, and what cannot be had there.", "install", Installation
        ),
        "image": _of_one(IMAGE, "generate dockerfile", "A container image, and what it must be started with.", "image", Image),
        "smoke": _whole(SMOKE, "smoke", "One run of the training smoke test.", SmokeReport),
        "preflight": _whole(PREFLIGHT, "preflight", "Whether a job may start on one node, or on several.", Preflight),
        "compare": _whole(COMPARE, "compare", "What differs between hosts, the heaviest first.", Comparison),
        "diagnosis": _whole(DIAGNOSIS, "diagnose", "What is wrong with training, the likeliest cause first.", Diagnosis),
        "facts": _facts(),
    }


def _snapshot() -> str:
    """Return the text of ``snapshot.schema.json``: every fact is its value or an object that says why there is none."""
    parts: dict[str, Any] = {}
    facts = {field.encode_name: _of(field.type, parts) for field in msgspec.structs.fields(Snapshot) if field.name in FAMILIES}
    return codec.dumps(
        {
            "$schema": DIALECT,
            "$id": SNAPSHOT,
            "title": "torchtune-sys snapshot --format json",
            "description": "The facts of one host. Keys may be added; none changes its meaning.",
            "type": "object",
            "required": ["schema", "facts"],
            "properties": {
                "schema": {"const": SNAPSHOT},
                "tool": _TOOL,
                "time": {"type": "string", "format": "date-time"},
                "origin": {"type": "string"},
                "intent": _of(Workload, parts),
                "facts": {"type": "object", "required": list(FAMILIES), "properties": facts},
            },
            "$defs": parts,
        }
    )


def _of_one(schema: str, command: str, says: str, key: str, kind: type[msgspec.Struct]) -> str:
    """Return a document that holds one value below ``key``."""
    parts: dict[str, Any] = {}
    return codec.dumps(
        {
            "$schema": DIALECT,
            "$id": schema,
            "title": f"torchtune-sys {command} --format json",
            "description": f"{says} Keys may be added; none changes its meaning.",
            "type": "object",
            "required": ["schema", "tool", key],
            "properties": {"schema": {"const": schema}, "tool": _TOOL, key: _of(kind, parts)},
            "$defs": parts,
        }
    )


def _facts() -> str:
    """Return the text of ``facts.schema.json``: how lists are written, not each fact; ``snapshot.schema.json`` has those."""
    return codec.dumps(
        {
            "$schema": DIALECT,
            "$id": FACTS,
            "title": "torchtune-sys snapshot --compact",
            "description": "The facts of one host in short. The same host has the same facts; all that may differ is volatile.",
            "type": "object",
            "required": ["schema", "tool", "facts", "volatile"],
            "properties": {
                "schema": {"const": FACTS},
                "tool": _LOOKED_WITH,
                "facts": {
                    "type": "object",
                    "properties": {family: {"$ref": "#/$defs/value"} for family in FAMILIES},
                    "additionalProperties": {"$ref": "#/$defs/value"},
                },
                "volatile": {
                    "type": "object",
                    "properties": {
                        "host": {"type": "string"},
                        "time": {"type": "string", "format": "date-time"},
                        "epoch_s": {"type": "number"},
                        "origin": {"type": "string"},
                        "findings": {
                            "type": "object",
                            "description": "Severity to the rules that fail.",
                            "additionalProperties": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                },
            },
            "$defs": {
                "value": {
                    "description": "A fact as in the snapshot, without the fields that were not recorded. An object may hold: "
                    "$missing, why there is no value, or the names of its fields that have none, by why; "
                    "$words, many words in one text, .b after net.a standing for net.b; "
                    "$rows, the keys of a list's rows. Each other key of an object with $rows is a column: one value for all rows; "
                    "or $list, a value for each row; or $each, pairs of a value and the positions of the rows that have it (0-3,7).",
                }
            },
        }
    )


def _whole(schema: str, command: str, says: str, kind: type[msgspec.Struct]) -> str:
    """Return a document that is one value, with the name of its schema beside its keys."""
    parts: dict[str, Any] = {}
    _of(kind, parts)
    root = parts.pop(kind.__name__)
    return codec.dumps(
        {
            "$schema": DIALECT,
            "$id": schema,
            "title": f"torchtune-sys {command} --format json",
            "description": f"{says} Keys may be added; none changes its meaning.",
            **root,
            "required": ["schema", *root["required"]],
            "properties": {"schema": {"const": schema}, **root["properties"]},
            "$defs": parts,
        }
    )


_PLAIN: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    # The codec writes integers above 2**53 as strings, and infinity as null.
    int: {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    CpuSet: {"type": "string", "pattern": "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"},
}


def _of(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one type; structs go to ``parts`` under their names."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, parts)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(item, parts) for item in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(inner[1], parts)}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_of(item, parts) for item in inner], "items": False, "minItems": len(inner)}
    if origin in (tuple, frozenset, list):
        return {"type": "array", "items": _of(inner[0], parts)}
    raise TypeError(f"no schema for {kind}")


def _struct(kind: type[msgspec.Struct], parts: dict[str, Any]) -> dict[str, Any]:
    # What is installed has commands and files of its own, beside those of a change.
    name = f"Install{kind.__name__.removeprefix('Install')}" if kind.__module__ == Installation.__module__ else kind.__name__
    if name not in parts:
        parts[name] = {}  # for types that hold themselves
        fields, config = msgspec.structs.fields(kind), kind.__struct_config__
        tag = {} if config.tag_field is None else {config.tag_field: {"const": config.tag}}
        parts[name] = {
            "type": "object",
            "required": [*tag, *(field.encode_name for field in fields if field.required)],
            "properties": {**tag, **{field.encode_name: _of(field.type, parts) for field in fields}},
        }
    return {"$ref": f"#/$defs/{name}"}
