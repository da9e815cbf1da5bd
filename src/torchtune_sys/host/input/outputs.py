"""What commands printed, kept in files beside a recorded /proc and /sys: below ``sos_commands/`` in a sosreport, or where a person put them."""

from __future__ import annotations

import stat as modes
from collections.abc import Callable, Iterator

import msgspec

from torchtune_sys.host.base import Host, Stat
from torchtune_sys.host.input.limits import DEPTH_LIMIT, SOURCES_LIMIT, TEXT_LIMIT
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.host.tree import OF_THE_SYSTEM
from torchtune_sys.model.values import Missing

_OF_SOS = {"sos_logs", "sos_reports", "sos_strings", "version.txt"}
"""What sos writes of itself, and the ends of logs that it cut (sos/report/__init__.py)."""
_SAMPLE = 4096
"""Characters at either end by which a file is known."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Texts without secrets, by file; and the files that are not read."""

    texts: dict[str, str]
    unread: tuple[str, ...]


def outputs_of(host: Host, tells: Callable[[str], bool]) -> Outputs:
    """Return the files that are not the system's own and of which ``tells`` says, by both ends, that they tell of the host. Beside a /proc those alone of who
    recorded it, or of root: of a whole system's tree other users own a part (/scratch, /data)."""
    inner = host.inner if isinstance(host, ScrubbedHost) else host  # most files are not read, and need no filter
    owners = {0, *(found.uid for place in ("/", "/proc") if not isinstance(found := inner.stat(place), Missing))}
    is_anybodys = isinstance(inner.stat("/proc"), Missing)
    texts: dict[str, str] = {}
    unread: list[str] = []
    left = TEXT_LIMIT
    for count, (path, found) in enumerate(_files(inner)):
        size = found.size
        is_read = size <= left and count < SOURCES_LIMIT and (is_anybodys or found.uid in owners)
        text = inner.text(path) if is_read else ""
        if isinstance(text, Missing) or not text or "\0" in text or not tells(_ends(text)):
            unread.append(path[1:])
        else:
            texts[path[1:]] = scrubbed(text)
            left -= size
    return Outputs(texts=texts, unread=tuple(unread))


def apart(found: Outputs) -> tuple[str, ...]:
    """Return the folders at the top that hold the same outputs, of several hosts or looks, of which one alone can be judged.

    >>> apart(Outputs(texts={"n1/free": "", "n2/timedatectl": "", "logs/rank0": ""}, unread=("n2/free", "how.txt")))
    ('n1', 'n2')
    >>> apart(Outputs(texts={"sos_commands/block/lsblk": "", "sos_commands/cpu/lscpu": ""}, unread=()))
    ()
    """
    holders: dict[str, set[str]] = {}
    for path in (*found.texts, *found.unread):
        top, _, rest = path.partition("/")
        if rest:
            holders.setdefault(rest, set()).add(top)
    read = {path.partition("/")[2] for path in found.texts}
    return tuple(sorted({top for rest, tops in holders.items() if rest in read and len(tops) > 1 for top in tops}))


def _ends(text: str) -> str:
    """
    >>> _ends("ab" * 9), len(_ends("x" * 90 + "\\n" + "y" * 9000 + "\\nz"))
    ('ababababababababab', 92)
    """
    if len(text) <= 2 * _SAMPLE:
        return text
    return text[: text.rfind("\n", 0, _SAMPLE) + 1] + text[text.find("\n", len(text) - _SAMPLE) + 1 :]


def _files(host: Host) -> Iterator[tuple[str, Stat]]:
    """Yield path and state of regular files that hold something, in order; links aside, which in a sosreport repeat a file that lies deeper."""
    todo = [f"/{name}" for name in reversed(_names(host, "/")) if name not in OF_THE_SYSTEM | _OF_SOS]
    while todo:
        path = todo.pop()
        found = host.stat(path)
        if path.rpartition("/")[2].startswith(".") or isinstance(found, Missing) or isinstance(host.link(path), str):
            continue
        if modes.S_ISDIR(found.mode) and path.count("/") < DEPTH_LIMIT:
            todo += [f"{path}/{name}" for name in reversed(_names(host, path))]
        elif modes.S_ISREG(found.mode) and found.size:
            yield path, found


def _names(host: Host, folder: str) -> tuple[str, ...]:
    names = host.names(folder)
    return () if isinstance(names, Missing) else names
