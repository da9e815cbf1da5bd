"""``plan --format json``: any plan follows the schema that is shipped, and reads back as it was."""

from __future__ import annotations

import enum
import json
import types
import typing
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.model.actions import Action
from torchtune_sys.model.plan import Change, Plan, Step
from torchtune_sys.model.target import Target
from torchtune_sys.render import as_json, schemas

SCHEMA = json.loads(Path(schemas.DATA, "plan.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the plan."""
    if kind is str:
        return TEXT
    if kind is int:
        return st.integers(-(1 << 70), 1 << 70)
    if kind is bool:
        return st.booleans()
    if kind is type(None):
        return st.none()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{field.name: any_of(field.type) for field in msgspec.structs.fields(kind)})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([any_of(item) for item in inner])
    if origin is dict:
        return st.dictionaries(*map(any_of, inner), max_size=2)
    assert origin is tuple, kind
    if inner[-1] is Ellipsis:
        return st.lists(any_of(inner[0]), max_size=2).map(tuple)
    return st.tuples(*map(any_of, inner))


@settings(max_examples=150)
@given(any_of(Plan))
def test_any_plan_reads_back_and_follows_the_schema(made: Plan) -> None:
    said = json.loads(as_json.plan(made))
    VALIDATOR.validate(said)
    assert msgspec.convert(said["plan"], Plan, strict=False) == made  # integers above 2**53 are strings


@settings(max_examples=60)
@given(any_of(Change))
def test_bytes_that_are_no_utf_8_are_shown_as_escapes(change: Change) -> None:
    """A device or a file may be called anything (PEP 383); JSON cannot hold that."""
    odd = msgspec.structs.replace(change, key="/sys/block/sd\udcff/queue", seen="\udc80")
    made = Plan(host="", origin="", changes=(odd,), files=(), refused=(), by_hand=())
    said = json.loads(as_json.plan(made))
    VALIDATOR.validate(said)
    assert (said["plan"]["changes"][0]["key"], said["plan"]["changes"][0]["seen"]) == ("/sys/block/sd\\udcff/queue", "\\udc80")


@pytest.mark.parametrize("kind", [*typing.get_args(Action), *typing.get_args(Target), *typing.get_args(Step)])
def test_every_kind_is_named(kind: type[msgspec.Struct]) -> None:
    """One schema per struct: two of the same name would hide one another."""
    made = SCHEMA["$defs"][kind.__name__]
    assert made["properties"]["type"] == {"const": kind.__struct_config__.tag}
    assert set(made["properties"]) == {"type", *(field.encode_name for field in msgspec.structs.fields(kind))}


def example() -> dict[str, Any]:
    sysctl = msgspec.convert({"type": "sysctl", "key": "vm.swappiness", "target": {"type": "AtMost", "value": 10}}, Action)
    step = msgspec.convert({"type": "value", "path": "/proc/sys/vm/swappiness", "value": "10"}, Step)
    change = Change(
        key="vm.swappiness", action=sysctl, rules=("r",), why="w", seen="60", wanted="<= 10",
        safety=sysctl.safety, needs=sysctl.needs, steps=(step,),
    )  # fmt: skip
    found = json.loads(as_json.plan(Plan(host="h", origin="live", changes=(change,), files=(), refused=(), by_hand=())))
    assert isinstance(found, dict)
    return found


def test_the_example_is_valid() -> None:
    VALIDATOR.validate(example())


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    found = example()
    place: Any = found
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


CHANGE = ("plan", "changes", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "torchtune-sys/plan/2"),
        (("tool",), KeyError),
        (("plan", "host"), None),
        (("plan", "files"), KeyError),
        ((*CHANGE, "steps"), KeyError),
        ((*CHANGE, "safety"), "harmless"),
        ((*CHANGE, "needs"), "luck"),
        ((*CHANGE, "action", "type"), "bash"),
        ((*CHANGE, "action", "key"), KeyError),
        ((*CHANGE, "action", "target", "type"), "About"),
        ((*CHANGE, "action", "target", "value"), "ten"),
        ((*CHANGE, "steps", 0, "type"), "command"),
        ((*CHANGE, "steps", 0, "path"), 7),
    ],
)
def test_what_breaks_the_contract_is_not_valid(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(changed(path, value))
