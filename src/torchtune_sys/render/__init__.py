"""One module per output format. jinja2 lives here only, imported when a format needs it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtune_sys.render.report import Report


def machine(name: str, report: Report) -> str:
    """Return the report in one of the formats that take no options: by the module of that name, ``as_<name>`` where the standard library has one of the same."""
    module = f"as_{name}" if name in sys.stdlib_module_names else name
    rendered: str = import_module(f"{__name__}.{module}").render(report)
    return rendered
