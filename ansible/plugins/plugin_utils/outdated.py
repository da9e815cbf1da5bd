# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Find the files of an earlier report about hosts that are no longer in the inventory, or that returned nothing this time."""

from __future__ import annotations

import json
import os
import typing as t

_LONGEST = 4 << 20


def outdated(folder: str, current: t.Container[str]) -> list[str]:
    """Return the paths of reports and facts of hosts below ``folder`` whose file names are not ``current``. Other files are not ours."""
    found = []
    for kind in ("facts", "hosts"):
        place = os.path.join(folder, kind)
        names = sorted(os.listdir(place)) if os.path.isdir(place) and not os.path.islink(place) else []
        paths = [os.path.join(place, name) for name in names if name.endswith(".json") and f"{kind}/{name}" not in current]
        found += [path for path in paths if _is_ours(path, kind)]
    return found


def _is_ours(path: str, kind: str) -> bool:
    try:
        if os.path.islink(path) or os.path.getsize(path) > _LONGEST:
            return False
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(held, dict):
        return False
    return held.get("schema") == "torchtune-sys/facts/1" if kind == "facts" else {"host", "state"} <= held.keys()
