"""The small facts file: small, the same for the same host, and no fact is lost."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from made_hosts import READERS
from planting import planted

from conftest import HOSTS, load
from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import document, facts
from torchtune_sys.fleet.leaves import leaves
from torchtune_sys.fleet.left_out import ASKED_FOR, INTERFACES_LEFT_OUT, LEFT_OUT, left_out, variable_left_out
from torchtune_sys.fleet.store import Store
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.model.values import Missing
from torchtune_sys.render import as_json, schemas

RECORDED = ["healthy", *sorted(f"typical/{path.stem}" for path in (HOSTS / "typical").glob("*.json"))]
SOME = ("healthy", "typical/laptop-cpu", "typical/mi300x", "typical/slurm-a100")
FEW = [*SOME, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in RECORDED if name not in SOME)]
AT_MOST = 20_000


def written(seen: Snapshot, host: str = "h") -> bytes:
    return document(seen, version="0", volatile={"host": host}).encode()


def encoded(found: dict[str, Any]) -> dict[str, bytes]:
    return {family: msgspec.json.encode(value) for family, value in found.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_small(name: str) -> None:
    assert len(written(load(name))) <= AT_MOST


def test_it_follows_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schemas.schemas()["facts"]))
    jsonschema.validate(json.loads(written(load("healthy"))), json.loads(schemas.schemas()["facts"]))


@pytest.mark.parametrize("name", FEW)
def test_a_snapshot_that_was_written_and_read_has_the_same_facts(name: str) -> None:
    seen = load(name)
    again = from_json(json.loads(as_json.snapshot(seen, version="0", time="2026-02-03T04:05:06Z")))
    assert written(again) == written(seen)


@pytest.mark.parametrize("name", FEW)
def test_each_fact_that_drifts_is_named_or_left_out_with_a_reason(name: str) -> None:
    """One comparison of as many hosts as there are facts: on each another fact drifted."""
    seen = load(name)
    drifted = dict(planted(seen))
    clean = encoded(facts(seen))
    store = Store()
    for number in range(3):
        store.add(f"clean {number}", "", clean)
    for path, other in drifted.items():
        family = path.partition(".")[0].partition("[")[0]
        store.add(path, "", clean | encoded(facts(other, [family])))
    found = Comparing(store, READERS).among_themselves()
    told: dict[str, list[str]] = {}
    for item in found.odd:
        told.setdefault(item.host, []).append(item.fact)
    for item in found.incomparable:
        told.setdefault(item.host, []).append("kind")
    assert not found.groups and not found.various
    lost = [path for path in drifted if path not in told and not reason(path, seen)]
    assert not lost, "these facts drifted, and nobody told"
    loud = {path: told[path] for path in told if path.startswith("clean") or left_out(plain(path))}
    assert not loud, "these are left out, and told all the same"


def plain(path: str) -> str:
    return path.partition("[")[0]


def reason(path: str, seen: Snapshot) -> str:
    if path.startswith("session.env["):
        return variable_left_out(path[len("session.env[") : -1])
    if path.startswith("network.interfaces") and not isinstance(seen.network, Missing):
        last = seen.network.interfaces[-1] if not isinstance(seen.network.interfaces, Missing) else None
        if last is not None and (last.kind == "veth" or INTERFACES_LEFT_OUT.fullmatch(last.name)):
            return "comes and goes"
    return left_out(plain(path)) or ASKED_FOR.get(path, "")


def test_the_list_of_what_is_left_out_names_facts_that_there_are() -> None:
    assert LEFT_OUT.keys() <= set(all_paths())
    assert all(LEFT_OUT.values())


def test_what_is_free_at_the_moment_is_not_compared() -> None:
    """Before, the free inodes of /dev/shm differed between any two hosts, and between two looks at one."""
    moving = re.compile(r"(?:^|_)free(?:_bytes)?$|_used_bytes$|^available_bytes$|_current$|^temperature_c$|^uptime_s$")
    told = {path for path in all_paths() if moving.search(path.rpartition(".")[2])}
    assert len(told) > 8
    assert told <= LEFT_OUT.keys()


def all_paths() -> Iterator[str]:
    hints = typing.get_type_hints(Snapshot)
    for family in FAMILIES:
        yield from below(hints[family], family)


def below(hint: Any, path: str) -> Iterator[str]:
    yield path
    for part in (hint, *typing.get_args(hint)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct) and part is not Missing:
            for field in msgspec.structs.fields(part):
                yield from below(typing.get_type_hints(part)[field.name], f"{path}.{field.encode_name}")
        elif part is not hint and typing.get_args(part):
            yield from below(part, path)


def test_names_and_addresses_of_a_host_are_no_facts() -> None:
    one = load("healthy")
    text = json.dumps(json.loads(written(one))["facts"])
    other = from_json(json.loads(as_json.snapshot(one, version="0", time="x").replace(hostname(one), "zz-99")))
    assert hostname(one) not in text
    assert facts(other) == facts(one)


def hostname(seen: Snapshot) -> str:
    assert not isinstance(seen.system, Missing)
    assert isinstance(seen.system.hostname, str)
    return seen.system.hostname


def test_the_layers_of_a_container_are_no_facts() -> None:
    """Each container has its own; their names would differ on every pod of a job."""
    one = as_json.snapshot(load("data-on-container-layer.fail"), version="0", time="x")
    layers = {*re.findall(r"(?:lowerdir|upperdir|workdir)=([^\s\",]+)", one)}
    assert layers
    other = one
    for number, layer in enumerate(layers):
        other = other.replace(layer, f"/another/{number}")
    assert facts(from_json(json.loads(other))) == facts(from_json(json.loads(one)))


def test_a_name_without_a_number_stays_in_the_facts() -> None:
    """A host that is called debian runs Debian."""
    seen = load("healthy")
    assert not isinstance(seen.system, Missing)
    called = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, hostname="noble"))
    assert facts(called) == facts(seen)


def test_leaves_are_the_facts_one_by_one() -> None:
    value = {
        "$rows": {"$words": "net.a .b vm.c d"},
        "running": {"$each": [["1", "0-2"], ["2", "3"]]},
        "$missing": {"absent": ["tuned"]},
        "list": {"$list": [1, 2, 3, {"$missing": "denied"}]},
    }
    found = leaves(value, "sysctl")
    assert found["sysctl[net.b].running"] == b'"1"'
    assert found["sysctl[d].running"] == b'"2"'
    assert found["sysctl[vm.c].tuned"] == b'{"$missing":"absent"}'
    assert found["sysctl[d].list"] == b'{"$missing":"denied"}'


def test_what_is_no_facts_file_is_refused() -> None:
    for value in ({"$rows": 3}, {"$rows": ["a"], "x": {"$each": 3}}, {"$missing": {"absent": 3}}):
        with pytest.raises(ValueError, match="not as a facts file"):
            leaves(value, "x")
