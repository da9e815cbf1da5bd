"""Files of configuration that lie in several places, of which the first goes before the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why, known


def files_by_name(host: Host, folders: Iterable[str], suffix: str = ".conf") -> dict[str, str]:
    """Return the files' paths by their names, in the order of these, in which they are read; of one name the first folder's hides the others'."""
    found: dict[str, str] = {}
    for folder in folders:
        for name in known(host.names(folder), ()):
            if name.endswith(suffix):
                found.setdefault(name, f"{folder}/{name}")
    return dict(sorted(found.items()))


def first_text(host: Host, paths: Sequence[str]) -> Fact[str]:
    """Return the text of the first file that is there, or why it cannot be read; ABSENT, named after the first, where none is."""
    for path in paths:
        text = host.text(path)
        if not isinstance(text, Missing) or text.why is not Why.ABSENT:
            return text
    return Missing(Why.ABSENT, paths[0], "not there")
