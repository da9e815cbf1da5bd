"""The names of the stages, without importing the worker (which imports torch)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from importlib.resources import files

from torchtune_sys.errors import UserError, nearest

_PACKAGE = "torchtune_sys.smoke.worker"
IMPORT = "import"
"""The first stage: it comes before the worker's table can."""
_IMPORT_PROOF = "Check that torch can be imported and that all ranks have the same version."


@functools.cache
def stages() -> dict[str, str]:
    """Return the names and what each proves, in the order in which they run.

    >>> next(iter(stages().items()))
    ('import', 'Check that torch can be imported and that all ranks have the same version.')
    """
    proofs = {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for package in (_PACKAGE, f"{_PACKAGE}.stages")
        for module in files(package).iterdir()
        if module.name.endswith(".py")
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    return {IMPORT: _IMPORT_PROOF, **{name: proofs.get(function, "") for name, function in _table()}}


def _table() -> Iterator[tuple[str, str]]:
    """Name and function of each row of the worker's table."""
    for node in ast.walk(ast.parse((files(_PACKAGE) / "table.py").read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="Stage"), args=[ast.Constant(value=str(name)), ast.Name(id=function), *_]):
                yield name, function
            case _:
                pass


@functools.cache
def stage_names() -> tuple[str, ...]:
    """Return the names alone, by the table; what each proves stands in 50 modules."""
    return (IMPORT, *(name for name, _ in _table()))


def named(words: Iterable[str]) -> tuple[str, ...]:
    """Return the stages that options name. Raises UserError for a name that there is not."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in stage_names():
            hint = nearest(name, stage_names(), "there are: " + ", ".join(stage_names()))
            raise UserError(f"no stage is called {name!r}", hint)
    return tuple(dict.fromkeys(names))
