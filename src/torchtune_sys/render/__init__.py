"""One module per output format. jinja2 lives here only, imported when a format needs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtune_sys.render.report import Report


def machine(name: str, report: Report) -> str:
    """Return the report in one of the formats that take no options."""
    if name == "json":
        from torchtune_sys.render import as_json

        return as_json.report(report)
    rendered: str = import_module(f"{__name__}.{name}").render(report)
    return rendered
