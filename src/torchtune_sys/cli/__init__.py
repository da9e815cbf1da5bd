"""The command line. click lives here only; each command is imported when it is called.

click imports the module inspect at its beginning, with Python's own tokenizer and syntax trees. That costs more than all of click's modules, and of
it most runs need one function.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def cleandoc(text: str) -> str:
    r"""Return the text without the indentation of its lines, as :func:`inspect.cleandoc` does.

    >>> cleandoc("  Of one line."), cleandoc("Of\n    several:\n\n      x\n    ")
    ('Of one line.', 'Of\nseveral:\n\n  x')
    """
    first, *rest = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in rest)]).strip("\n")


class _Inspect(ModuleType):
    """What click takes for the module, and which imports that where more is asked of it."""

    cleandoc = staticmethod(cleandoc)

    def __getattr__(self, name: str) -> object:
        _give_way()
        return getattr(import_module("inspect"), name)


def _give_way() -> None:
    if isinstance(sys.modules.get("inspect"), _Inspect):
        del sys.modules["inspect"]


if "inspect" not in sys.modules:
    sys.modules["inspect"] = _Inspect("inspect")
    try:
        import click  # noqa: F401
    finally:
        _give_way()  # all others import the module itself
