"""What a plan says to do next, and what stands first where a container's host is out of reach."""

from __future__ import annotations

import msgspec
import pytest
from simulate import Seen, recording

from conftest import judge_one, load
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.values import Missing
from torchtune_sys.render.layout import Style
from torchtune_sys.render.plan import headline, text
from torchtune_sys.rules import by_id


def told(host: str, *rules: str) -> str:
    plan = Seen(recording(host), [by_id()[rule] for rule in rules]).plan
    return " ".join(text(plan, Style(width=80, color=False)).split())


@pytest.mark.parametrize(
    ("rules", "next_step"),
    [
        (("numa-balancing-enabled",), "sudo torchtune-sys apply --unsafe makes them"),
        (("swappiness-high",), "sudo torchtune-sys apply makes the safe changes"),
        (("swappiness-high", "numa-balancing-enabled"), "sudo torchtune-sys apply makes the safe changes"),
        (("disk-full",), ""),
    ],
)
def test_the_next_step_does_something(rules: tuple[str, ...], next_step: str) -> None:
    """``apply`` alone leaves out what needs a decision: where there is nothing else, it would change nothing."""
    host = f"{rules[0]}.fail"
    shown = told(host, *rules)
    assert next_step in shown if next_step else "Next" not in shown, shown
    assert ("nothing to change, 1 finding to fix by hand" in shown) == (not next_step)  # which "apply" shows as its answer, too


@pytest.mark.parametrize(("container", "first"), [("docker", "in a container: docker run --ulimit memlock"), ("", "limit")])
def test_in_a_container_the_flag_stands_first(container: str, first: str) -> None:
    seen = load("memlock-limit-too-low.fail")
    assert not isinstance(seen.system, Missing)
    inside = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, container=container))
    action = judge_one(inside, "memlock-limit-too-low").rule.fix[0]
    assert (action.text if isinstance(action, Advice) else type(action).__name__.lower()).startswith(first)


@pytest.mark.parametrize(
    ("host", "origin", "name"),
    [("", "live", "this host"), ("", "recording x.json", "the given host"), ("node7", "recording x.json", "node7")],
)
def test_the_head_names_whose_plan_it_is(host: str, origin: str, name: str) -> None:
    """A recording that does not hold its host's name was headed *this host*."""
    empty = Plan(host=host, origin=origin, changes=(), files=(), refused=(), by_hand=())
    assert headline(empty) == f"{name}: nothing to change"
