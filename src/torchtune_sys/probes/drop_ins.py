"""Files of configuration that lie in several folders, of which the first goes before the others."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.host.base import Host
from torchtune_sys.model.values import Missing


def files_by_name(host: Host, folders: Iterable[str], suffix: str = ".conf") -> dict[str, str]:
    """Return the files' paths by their names, in the order of these, in which they are read; of one name the first folder's hides the others'."""
    found: dict[str, str] = {}
    for folder in folders:
        names = host.names(folder)
        for name in () if isinstance(names, Missing) else names:
            if name.endswith(suffix):
                found.setdefault(name, f"{folder}/{name}")
    return dict(sorted(found.items()))
