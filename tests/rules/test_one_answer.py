"""One piece of knowledge, one place: public names of rules mean one thing, and what rules read of the environment gets through to them."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import torchtune_sys.rules
from conftest import HOSTS, load
from torchtune_sys import engine
from torchtune_sys.host.environment import relevant
from torchtune_sys.model.launchers import LAUNCHERS
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE, gates
from torchtune_sys.rules.cpu import available

PLACE = Path(torchtune_sys.rules.__file__).parent
SAME_NAME = {
    "subject": "how a family names what it judges: a GPU, a place of storage",
    "gpu_name": "of an address in the log, of a PCI function",
    "glibc_too_old": "two rules: too old for this torch, too old for any wheel",
}
"""Public names with two definitions in rules, each with the reason why they are no twins."""


def test_a_public_name_of_the_rules_is_defined_once() -> None:
    """``ranks_here`` stood in two modules, and gave 8 in one and 1 in the other."""
    found = defaultdict(list)
    for path in PLACE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(PLACE).as_posix())
    assert {name for name, places in found.items() if len(places) > 1} == set(SAME_NAME)


def test_ranks_are_counted_alike_where_the_bus_was_denied() -> None:
    seen = load("healthy", intent={"ranks": None})
    denied = Missing(Why.DENIED, "test")
    assert not isinstance(seen.driver, Missing)
    blind = msgspec.structs.replace(seen, driver=msgspec.structs.replace(seen.driver, nvidia_devices=denied, amd_devices=denied))
    assert gates.ranks_here(blind) == gates.ranks_here(seen) == 8
    assert available.ranks_here is gates.ranks_here


class Asked(dict[str, str]):
    """An environment that remembers which names it was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def test_every_variable_that_a_rule_reads_is_let_through() -> None:
    """FLUX_JOB_ID and _CONDOR_SLOT were read and never let through: dead on every host."""
    names: set[str] = set()
    for path in sorted((HOSTS / "typical").glob("*.json")):
        seen = load(f"typical/{path.stem}")
        assert not isinstance(seen.session, Missing)
        env = Asked({} if isinstance(seen.session.env, Missing) else seen.session.env)
        seen = msgspec.structs.replace(seen, session=msgspec.structs.replace(seen.session, env=env))
        engine.judge(seen, CATALOGUE)
        names |= env.names
    assert len(names) > 60 and {"FLUX_JOB_ID", "_CONDOR_SLOT", "LOCAL_RANK", "OMP_NUM_THREADS"} <= names
    assert {name for name in names if not relevant({name: "1"})} == set()


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_what_a_launcher_sets_reaches_the_rules(launcher: Any) -> None:
    """Through the allow-list, as a live host's does; a rule's own test put the fact behind it."""
    env = relevant(dict.fromkeys(launcher.variables, "1"))
    assert set(env) == set(launcher.variables)
    if launcher.job:
        assert gates.scheduled(load("healthy", env=env))
