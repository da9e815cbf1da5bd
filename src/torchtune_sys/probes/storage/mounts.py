"""The mount table of a host."""

from __future__ import annotations

from torchtune_sys.formats.mounts import Mount, parse_mountinfo, parse_mounts
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


def read_mounts(host: Host) -> Fact[tuple[Mount, ...]]:
    """Return the mounts of this process's namespace, in the order in which they were made."""
    first: Missing | None = None
    for path, parse in (
        ("/proc/self/mountinfo", parse_mountinfo),
        ("/proc/self/mounts", parse_mounts),
        ("/proc/mounts", parse_mounts),
    ):
        text = host.text(path)
        if isinstance(text, Missing):
            first = text if first is None else first
            continue
        mounts = parse(text)
        if mounts:
            return mounts
        first = Missing(Why.UNPARSED, path, "no line describes a mount") if first is None else first
    return Missing(Why.ABSENT, "/proc/self/mountinfo") if first is None else first
