"""One node that lies in every text of its own: nothing of it reaches a terminal, a CI log or a launcher's list as it was said, and no secret does."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from preflight.joint.a_cluster import gathered
from torchtune_sys.cli.joint_run import _verdict_of_all, _weighed, write_lists
from torchtune_sys.model import codec
from torchtune_sys.model.preflight import (
    Blame,
    Cause,
    Go,
    Heat,
    IsolationReport,
    IsolationRound,
    Link,
    NodeVerdict,
    Preflight,
    Scale,
    Weight,
)
from torchtune_sys.preflight.joint.compared import compared
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, LinkTest, taken
from torchtune_sys.preflight.joint.judge import judged
from torchtune_sys.preflight.joint.judge.whole import Whole
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.preflight.verdict import without_secrets
from torchtune_sys.render import as_json
from torchtune_sys.render import preflight as render
from torchtune_sys.render.layout import Style

SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"
SAID = [
    "\x1b]0;owned\x07\x9b31m\u202e\u2066\u200f\u2028\x85\x00\r\n::error::x\n##[error]y\n--all",
    f"password: {SECRET}",
    SECRET,
    "x" * (1 << 20),
]
CAUSES = [
    {"cause": f"c{at}", "seen": "x", "weight": weight, "blame": "node", "rule": "r"}
    for at, weight in enumerate(("fatal", "warning", "unknown"))
]
FACTS = {
    "name": "n1",
    "interfaces": {"eth0": {"kind": "ethernet", "mtu": 1500, "addresses": [["10.0.0.2", 24]]}},
    "own_name_addresses": ["10.0.0.2"],
    "env": {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "q0"},
    "families": {"driver": {"version": "1"}, "session": {"env": {"NCCL_ALGO": "x"}}},
}
TOLD: dict[str, Any] = {
    "notes": {"facts": FACTS, "node": CAUSES, "worker/0": {"torch": "2.13.0", "error": "e"}, "name": "n1", "master": ["10.9.9.9"],
              "silent": "10.0.0.3", "unable": {"errno": 24, "words": "w"}, "hardware": ["aa:bb"]},
    "link": {"connect": "no route", "small_s": 1e-4, "beyond": True, "rates": [1e9], "sent": 200, "error": "e", "cut": "reset"},
    "compute": {"hardware": "h", "class": "x", "kernel_s": [1.0], "weights": "zz", "wrong": "1 of 3", "error": "e", "signal": "SIGSEGV"},
    "sum": {"wrong": "1 of 3", "error": "e"},
    "unreached": {"word": "no-greeting", "master": ["10.9.9.9"]},
}  # fmt: skip


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a text stands."""
    if isinstance(value, str):
        yield path
    for at, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(each, (*path, at))


def with_lie(path: tuple[Any, ...], words: str) -> Gathered:
    told = json.loads(json.dumps(TOLD))
    within = told
    for part in path[:-1]:
        within = within[part]
    within[path[-1]] = words
    found = gathered(3)
    if path[0] == "notes":
        notes = {**found.members[1].notes, "facts": told["notes"]["facts"], path[1]: told["notes"][path[1]]}
        found.members[1] = msgspec.structs.replace(found.members[1], notes=notes)
    elif path[0] == "link":
        found.links.update({way: [LinkTest.of(told["link"])] * 2 for way in found.links if way[0] == 1})
    elif path[0] == "compute":
        computed = taken(told["compute"], Compute)
        found.computes[1, 0] = [] if computed is None else [computed] * 2
    elif path[0] == "unreached":
        found = gathered(3, missing={1: "ok"}, unreached={1: (told["unreached"]["word"], tuple(told["unreached"]["master"]))})
    else:
        found.collectives = [{**found.collectives[0], (1, 0): told["sum"]}]
    return found


def shown(found: Gathered, lists: Path) -> Iterator[str]:
    found.differing = compared(found.members)
    whole = codec.convert(msgspec.json.decode(msgspec.json.encode(judged(found))), Whole)
    own = (NodeVerdict(node="n0", verdict=Go.GO),)
    base = Preflight(
        version="0", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=Go.GO, nodes=own, scale=Scale(nodes=3, ranks=3)
    )  # fmt: skip
    result = without_secrets(_weighed(base, whole, Policy(), 3))
    assert not {"n0", "n2"} & {node.node for node in result.nodes if node.verdict is Go.NO_GO}
    yield from (render.text(result, Style()), render.prometheus(result), render.reason_of_all(result), as_json.preflight(result))
    write_lists(str(lists), result)
    for file in lists.iterdir():
        names = file.read_text()
        assert re.fullmatch(r"(--exclude=)?(n[0-2][,\n])*", names), names
        yield names


@pytest.mark.parametrize("path", [*texts(TOLD)], ids=lambda path: ".".join(map(str, path)))
def test_no_word_of_a_lying_node_is_shown_as_it_was_said(path: tuple[Any, ...], tmp_path: Path) -> None:
    for words in SAID:
        for text in shown(with_lie(path, words), tmp_path):
            assert SECRET not in text
            assert {unicodedata.category(sign) for sign in text if sign != "\n"}.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
            assert not re.search(r"(?m)^\s*(?:::\w|##\[)", text) and len(text) < 100_000


def test_no_secret_is_a_name_in_what_the_one_that_coordinates_says() -> None:
    found = gathered(3)
    found.differing = compared(found.members)
    own = NodeVerdict(node="n1", verdict=Go.GO)
    way = IsolationReport(
        outcome="named", nodes=(SECRET,), links=((SECRET, "n2"),), parts=(SECRET,), suspects=(SECRET,), exclude=(SECRET,), why=SECRET,
        rounds=(IsolationRound(number=1, purpose=SECRET, groups=1, nodes=3, seconds=1.0, failed=(SECRET,)),),
        heat=Heat(labels=("n0", SECRET), ms=((1.0, 1.0), (1.0, 1.0))),
    )  # fmt: skip
    said = Preflight(
        version="0", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=Go.NO_GO, scale=Scale(nodes=3, ranks=3),
        nodes=(own, NodeVerdict(node=SECRET, verdict=Go.NO_GO)), links=(Link(from_=SECRET, to="n1", cause=SECRET, seen="x"),),
        suspects=(SECRET,), absent=(SECRET,), isolation=way,
    )  # fmt: skip
    shown = [
        form(without_secrets(said)) for form in (lambda found: render.text(found, Style()), render.prometheus, as_json.preflight)
    ]
    assert SECRET in as_json.preflight(said) and not any(SECRET in text for text in shown)


@pytest.mark.parametrize("told", ["as well", "not at all"])
def test_a_node_that_judged_itself_bad_is_not_made_well_by_the_one_that_coordinates(told: str) -> None:
    found = gathered(3)
    found.differing = compared(found.members)
    answer = judged(found)
    answer["nodes"] = [node for node in answer["nodes"] if told == "as well" or node["node"] != "n1"]
    cause = Cause(cause="no-gpu", rule="r", blame=Blame.NODE, weight=Weight.FATAL, seen="x")
    own = NodeVerdict(node="n1", verdict=Go.NO_GO, causes=(cause,))
    base = Preflight(
        version="0", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=Go.NO_GO, nodes=(own,), scale=Scale(nodes=1, ranks=1)
    )  # fmt: skip
    joint: Any = SimpleNamespace(job=SimpleNamespace(nodes=3, agents=None), node=1)
    result = _verdict_of_all(joint, answer, own, base, Policy())
    assert result.verdict is Go.NO_GO and own in result.nodes and len(result.nodes) == 3
