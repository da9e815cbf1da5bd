"""One fault of a host: how it is made in namespaces of its own, and what ``check`` must say of it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    plant: str
    """Shell, run as root in namespaces of its own before ``check`` (``lab.PRELUDE`` has the words)."""
    must: str = ""
    """What must be said, all of it, separated by spaces; of words joined by | one is enough. A rule id is a finding, ``unknown:RULE``
    a check that could not be made, ``says:WORD`` a word of a finding or of what could not be checked; ``refused:WORD`` ends with status 2.
    Nothing: no finding that the host without the fault does not have."""
    may: str = ""
    """Rules that may speak as well, since the fault is theirs, too."""
    args: str = ""
    base: str = "host"
    """``host``: this machine with a network of its own. ``gpu``: two H100 beside it, played by a library with NVML's ABI and a tree of /sys."""
    user: int = 0
    severity: str = ""
    """Severities joined by |, one of which a finding that says it must have; nothing: whichever."""
    mistaken: str = ""
    """Why the expectation was wrong, which was found after the first run: nothing need be said."""
    left: str = ""
    """Why ``check`` does not say it yet."""
