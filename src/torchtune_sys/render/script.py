"""A plan as one bash script that needs no Python: the same values, and the same files byte for byte."""

from __future__ import annotations

import shlex
from typing import Any

from torchtune_sys import __version__
from torchtune_sys.model.actions import Action, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, Command, Line, Plan, Unit, Value
from torchtune_sys.model.target import AtLeast, AtMost
from torchtune_sys.planner import files
from torchtune_sys.render.layout import clean


def script(plan: Plan) -> str:
    from torchtune_sys.render.templates import environment

    template = environment({"quote": shlex.quote, "comment": clean, "path": path}).get_template("script/provision.sh.j2")
    steps = [(change, step) for change in plan.changes for step in change.steps]
    return template.render(
        version=__version__,
        host=plan.host or "a host without a name",
        origin=plan.origin,
        head=files.HEAD,
        changes=plan.changes,
        values=[_value(change, step) for change, step in steps if isinstance(step, Value)],
        lines=[_line(change, step) for change, step in steps if isinstance(step, Line)],
        files=[{"path": f.path, "mode": f.mode, "refresh": [" ".join(argv) for argv in f.refresh]} for f in plan.files],
        units=[step for _, step in steps if isinstance(step, Unit)],
        commands=[step for _, step in steps if isinstance(step, Command)],
    )


def _value(change: Change, step: Value) -> dict[str, Any]:
    return {
        "key": files.one_line(change.key),
        "direction": direction(change.action),
        "value": step.value,
        "counterpart": step.counterpart,
        "path": step.path,
        "is_pattern": step.is_pattern,
    }


def direction(action: Action) -> str:
    """Which way the target points: a host whose value is better already keeps it."""
    target = action.target if isinstance(action, Sysctl | SysfsWrite) else None
    return "at-least" if isinstance(target, AtLeast) else "at-most" if isinstance(target, AtMost) else "exactly"


def _line(change: Change, step: Line) -> dict[str, Any]:
    text = files.block(step, change)
    return {"path": step.path, "key": files.one_line(step.key), "text": text, "mark": _mark(text)}


def _mark(text: str) -> str:
    """An end mark that no line of the text is."""
    rows = set(text.split("\n"))
    return next(mark for number in range(len(rows) + 1) if (mark := f"END{number or ''}") not in rows)


def path(value: str, is_pattern: bool) -> str:
    """A quoted path, the stars of a pattern left to the shell.

    >>> path("/sys/a b/policy*/x", True), path("/sys/a*", False)
    ("'/sys/a b/policy'*/x", "'/sys/a*'")
    """
    return "*".join(shlex.quote(part) if part else "" for part in value.split("*")) if is_pattern else shlex.quote(value)
