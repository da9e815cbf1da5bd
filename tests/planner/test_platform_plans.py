"""A plan of every platform: it raises nothing, every output takes it, and where somebody else owns the host nothing is written."""

from __future__ import annotations

import subprocess
from functools import cache

import msgspec
import pytest
from simulate import Seen

import platforms
import platforms_more
from machines_libraries import with_libraries
from platforms_troubled import TROUBLED
from torchtune_sys.model.plan import Plan
from torchtune_sys.remediation.plan import change_requests
from torchtune_sys.render import as_json
from torchtune_sys.render import plan as shown
from torchtune_sys.render.generate.script import script
from torchtune_sys.render.layout import Style

PLATFORMS = {**platforms.PLATFORMS, **platforms_more.MORE, **TROUBLED}


@cache
def seen(name: str) -> Seen:
    return Seen(with_libraries(PLATFORMS[name]()))


@pytest.mark.sampled(16, 30)
@pytest.mark.parametrize("name", PLATFORMS)
def test_every_output_takes_the_plan(name: str) -> None:
    plan = seen(name).plan
    assert msgspec.json.decode(as_json.plan(plan))
    assert msgspec.convert(msgspec.to_builtins(plan), Plan) == plan
    for text in (shown.text(plan, Style(width=80, color=False), verbose=True), shown.markdown(plan), shown.diff(plan)):
        assert text.isprintable() or "\n" in text
    made = script(plan)
    assert subprocess.run(["bash", "-n"], input=made, text=True, capture_output=True, check=False).stderr == ""


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_wish_is_planned_or_refused_with_a_way(name: str) -> None:
    plan, results = seen(name).plan, seen(name).results
    told = {change.key for change in (*plan.changes, *plan.waiting)} | {refusal.key for refusal in plan.refused}
    assert told <= {change_requests.key(wish.action) for wish in change_requests.asked(results)}
    assert all(refusal.reason and refusal.way for refusal in plan.refused)
    assert {step.path for change in plan.changes for step in change.steps if hasattr(step, "key")} == {f.path for f in plan.files}


def contained(name: str) -> bool:
    system = seen(name).facts.system
    return bool(getattr(system, "container", "")) and isinstance(getattr(system, "container", ""), str)


def test_in_a_container_everything_is_the_hosts() -> None:
    """And on WSL Windows': nothing is written there, whatever is asked for."""
    owned = [name for name in PLATFORMS if contained(name) or "wsl" in name]
    refused = {name: [refusal.key for refusal in seen(name).plan.refused] for name in owned}
    print(f"{len(owned)} hosts that somebody else owns, {sum(map(len, refused.values()))} refusals, {len(PLATFORMS)} platforms")
    assert len(owned) > 5 and sum(map(len, refused.values())) > 5
    assert {name: seen(name).plan.changes for name in owned} == dict.fromkeys(owned, ())
