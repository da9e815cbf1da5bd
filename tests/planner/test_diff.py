"""The diff of a plan: what ``git apply`` makes of it is what the plan writes, and no change is missing from it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from simulate import Seen, after, recording
from test_catalogue_plans import DOABLE
from test_platform_plans import PLATFORMS
from test_platform_plans import seen as platform

from conftest import TIER
from torchtune_sys.host.recorded import merged
from torchtune_sys.model.plan import CommandStep, Plan, Unit, Value
from torchtune_sys.render import plan as shown


@cache
def plans(when: str) -> dict[str, Plan]:
    """Of failing hosts and platforms, every third unless all is run; ``detuned``: as they are once the files stand and somebody sets the values back."""
    step = 1 if TIER == "all" else 3
    seen = {
        **{name: Seen(recording(name)) for name in DOABLE[::step]},
        **{name: platform(name) for name in list(PLATFORMS)[::step]},
    }
    return {name: one.plan if when == "untouched" else Seen(detuned(one)).plan for name, one in seen.items()}


def detuned(seen: Seen) -> dict[str, object]:
    files = {file.path: file.content for file in seen.plan.files}
    return merged(seen.data, {"files": {path: text for path, text in after(seen)["files"].items() if path in files}})


def written(plan: Plan) -> dict[str, str]:
    values = [step for change in plan.changes for step in change.steps if isinstance(step, Value)]
    lines = {path: f"{step.value}\n" for step in values for path in step.now}
    return lines | {file.path: file.content for file in plan.files}


@pytest.mark.parametrize("when", ["untouched", "detuned"])
def test_applied_it_writes_what_the_plan_writes(tmp_path: Path, when: str) -> None:
    values = alone = 0
    for name, plan in plans(when).items():
        root = tmp_path / name
        differences = shown.differences(plan)
        lies_there = [(one.path, one.before) for one in (*differences, *plan.files)]
        for path, text in lies_there:
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                place.write_text(text)
        if differences:
            argv = ["git", "apply", "-p1"]
            done = subprocess.run(argv, input=shown.diff(plan), cwd=root, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stderr}"
        wanted = written(plan)
        assert {path: (root / path.lstrip("/")).read_text() for path in wanted} == wanted, name
        values += len(wanted) - len(plan.files)
        alone += bool(differences) and not {one.path for one in differences} & {file.path for file in plan.files}
    print(f"{len(plans(when))} plans, {values} values; values alone in {alone} plans")
    assert values > 20 and (when == "untouched" or alone > 6)


def test_no_change_is_missing_from_it() -> None:
    for name, plan in plans("untouched").items():
        text = shown.diff(plan)
        for step in (step for change in plan.changes for step in change.steps):
            match step:
                case Value(path=path, value=value, now=now, is_pattern=is_pattern):
                    assert now and (is_pattern or set(now) == {path}), (name, step)
                    rows = [f"+++ b{place}\n@@ -1 +1 @@\n-{seen}\n+{value}\n" for place, seen in now.items()]
                    assert [row for row in rows if row not in text] == [], name
                case Unit(unit=unit):
                    assert unit in text
                case CommandStep(argv=argv):
                    assert " ".join(argv) in text
