"""A tuned profile (tuned.conf)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchtune_sys.errors import UserError
from torchtune_sys.remediation.plan.tuned import PlannedOption
from torchtune_sys.render.generate.units import HEAD
from torchtune_sys.render.layout import clean


def profile(include: Iterable[str], options: Iterable[PlannedOption]) -> str:
    """Return the profile. Raises UserError for an include that tuned would not load."""
    names = tuple(include)
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):  # tuned's own Loader.safe_name
            raise UserError(f"{clean(name)!r} is not the name of a tuned profile", "tuned-adm list shows them")
    sections: dict[str, list[PlannedOption]] = {}
    for option in options:
        sections.setdefault(option.section, []).append(option)
    rows = [HEAD, "", "[main]", "summary=What torchtune-sys asks for on this host", f"include={','.join(names)}"]
    for section, found in sections.items():
        rows += ["", f"[{section}]"]
        for option in found:
            rows += [f"# {clean(option.why)}"] if option.why else []
            rows += [f"{option.name}={option.value}"]
    return "\n".join(rows) + "\n"
