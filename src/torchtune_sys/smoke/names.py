"""The names of the stages, without importing the worker (which imports torch)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from importlib.resources import files

from torchtune_sys.errors import UserError


@functools.cache
def stage_names() -> tuple[str, ...]:
    """In the order in which they run.

    >>> stage_names()[:2]
    ('device', 'gemm')
    """
    tree = ast.parse((files("torchtune_sys.smoke.worker") / "table.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return tuple(
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "Stage"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    )


def named(words: Iterable[str]) -> tuple[str, ...]:
    """The stages that options name. Raises UserError for a name that there is not."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in stage_names():
            import difflib

            close = difflib.get_close_matches(name, stage_names(), 1)
            hint = f"did you mean {close[0]}?" if close else "there are: " + ", ".join(stage_names())
            raise UserError(f"no stage is called {name!r}", hint)
    return tuple(dict.fromkeys(names))
