"""What ``--from`` and ``--root`` name: a recording, a tree of files, a mounted system, or text that somebody pasted."""

from __future__ import annotations

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host


class PastedText(msgspec.Struct, frozen=True, kw_only=True):
    """Input that is no host but a report about one: give it to ``torchtune_sys.evidence.read(text, name)``."""

    text: str
    name: str


def open_input(from_: str | None = None, root: str | None = None) -> Host | PastedText:
    """The host to judge: live without arguments, below the directory ``root``, or what the file ``from_`` holds (``-``: standard input).

    Raises UnreadableInput: what was seen, and what to do.
    """
    if from_ is not None and root is not None:
        raise UnreadableInput("--from and --root name two different hosts", "give one of them")
    if from_ is None and root is None:
        from torchtune_sys.host.live import LiveHost

        return LiveHost()
    if root is not None:
        from torchtune_sys.host.tree import below

        return below(root)
    from torchtune_sys.host.recorded import RecordedHost

    assert from_ is not None
    return RecordedHost.load(from_)


def open_host(from_: str | None = None, root: str | None = None) -> Host:
    """As :func:`open_input`, for commands that need a host: pasted text is refused."""
    found = open_input(from_, root)
    if isinstance(found, PastedText):
        raise UnreadableInput(
            f"{found.name}: is text, and this command needs a host", "give a recording (torchtune-sys record) or a tarball"
        )
    return found
