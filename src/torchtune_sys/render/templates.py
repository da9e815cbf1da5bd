"""Where the templates lie: beside the package in a wheel, at the top of the repository in a checkout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = (
    os.path.normpath(os.path.join(_HERE, "..", "templates")),
    os.path.normpath(os.path.join(_HERE, "..", "..", "..", "templates")),
)


def made_from(origin: str) -> str:
    """Return what a script or file was made from, in words.

    >>> made_from("live"), made_from("recording x.json")
    ('this host', 'recording x.json')
    """
    return "this host" if origin == "live" else origin


def environment(filters: Mapping[str, Callable[..., str]]) -> Environment:
    """Return jinja2's environment, strict about names. Nothing is escaped by itself: what a host says goes through one of ``filters``."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PLACES),
        undefined=jinja2.StrictUndefined,
        comment_start_string="<#--",  # jinja's own "{#" is what bash writes for a length: ${#name}
        comment_end_string="--#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update({"made_from": made_from, **filters})
    return made
