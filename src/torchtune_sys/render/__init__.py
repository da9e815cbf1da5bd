"""One module per output format. jinja2 lives here only, imported when a format needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtune_sys.render.report import Report


def machine(name: str, report: Report) -> str:
    """Return the report in one of the formats that take no options: json, junit, markdown, github or prometheus."""
    if name == "json":
        from torchtune_sys.render import as_json

        return as_json.report(report)
    if name == "junit":
        from torchtune_sys.render import junit

        return junit.render(report)
    if name == "markdown":
        from torchtune_sys.render import markdown

        return markdown.render(report)
    if name == "github":
        from torchtune_sys.render import github

        return github.render(report)
    if name == "prometheus":
        from torchtune_sys.render import prometheus

        return prometheus.render(report)
    raise ValueError(f"no such format: {name}")
