"""Open what ``--from`` and ``--root`` name: a recording, a tree of files, a mounted system, or pasted text."""

from __future__ import annotations

import os

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host
from torchtune_sys.host.input import limits
from torchtune_sys.host.input.limits import TIMEOUT_S
from torchtune_sys.host.input.text_bytes import as_utf8, is_binary, is_utf16


class PastedText(msgspec.Struct, frozen=True, kw_only=True):
    """Input that is not a host but a report about one: give it to ``torchtune_sys.evidence.read(text, name)``."""

    text: str
    name: str


_HOST = "give a recording (torchtune-sys record), or a directory or tarball with a copied /proc and /sys"


def open_input(
    from_: str | None = None, root: str | None = None, timeout_s: float = TIMEOUT_S, deadline: float | None = None
) -> Host | PastedText:
    """Return the host to judge, of which no answer holds a secret: live without arguments, below the directory ``root``, or what the file ``from_`` holds (``-``: standard input).
    ``deadline``: the time.monotonic() after which a live host waits for no command.

    Raises UnreadableInput: what was seen, and what to do.
    """
    found = _named(from_, root, timeout_s, deadline)
    from torchtune_sys.host.scrubbed import ScrubbedHost
    from torchtune_sys.host.secrets.filter import scrubbed

    return ScrubbedHost(found) if isinstance(found, Host) else PastedText(text=scrubbed(found.text), name=found.name)


def _named(from_: str | None, root: str | None, timeout_s: float, deadline: float | None) -> Host | PastedText:
    if "" in (from_, root):
        raise UnreadableInput("--from or --root is empty", "name a file or directory; . is this directory")
    if from_ is not None and root is not None:
        raise UnreadableInput("--from and --root name two different hosts", "give one of them")
    if root is not None:
        from torchtune_sys.host.tree import below

        return below(root)
    if from_ is None:
        from torchtune_sys.host.live import LiveHost

        return LiveHost(deadline)
    if os.path.isdir(from_):
        from torchtune_sys.host.tree import folder

        return folder(from_)
    return _opened(from_, timeout_s)


def open_host(from_: str | None = None, root: str | None = None) -> Host:
    """Open as :func:`open_input`, for commands that need a host: pasted text is refused."""
    return as_host(open_input(from_, root))


def as_host(found: Host | PastedText) -> Host:
    """Return what was opened. Raises UnreadableInput if it is pasted text."""
    if isinstance(found, PastedText):
        raise UnreadableInput(f"{found.name}: is text, and this needs a host", _HOST)
    return found


def _opened(path: str, timeout_s: float) -> Host | PastedText:
    from torchtune_sys.host.input.reading import opened_input, whole
    from torchtune_sys.host.input.tarball import is_tar

    with opened_input(path, timeout_s) as source:
        name = source.name
        if is_tar(source.look(512)):
            from torchtune_sys.host.input.archive import archive

            return archive(source)
        data = _as_utf8(whole(source), name)
    if _is_json(data) and not _printed(data):
        from torchtune_sys.host.recorded import RecordedHost, parse_recording

        found = parse_recording(data, name, None if path == "-" else path)
        return RecordedHost(found, f"recording {os.path.basename(name)}")
    return PastedText(text=_text(data, name), name=name)


def _is_json(data: bytes) -> bool:
    """Whether the file is meant as JSON. A log may begin with a bracket, too: ``[2026-07-09 00:57:25] …``, ``[pip3] torch==2.11.0``.

    >>> _is_json(b' {"files": {}}'), _is_json(b"[1, 2]"), _is_json(b"[    1.5] NVRM: Xid"), _is_json(b"[0] NCCL INFO")
    (True, True, False, False)
    >>> _is_json(b'{"level": "warn"}\\n{"level": "info"}\\n'), _is_json(b'{"files": {}}\\n')
    (False, True)
    """
    start = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] != b"[":
        return start[:1] == b"{" and not _an_object_a_line(start)
    if start[1:64].lstrip()[:1] in (b"{", b"[", b'"', b"]"):
        return True
    from torchtune_sys.model import codec

    if len(data) > 1 << 20:
        return False
    try:
        codec.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _an_object_a_line(data: bytes) -> bool:
    """Whether more follows the object that fills the first line: a program's log."""
    first, _, rest = data.partition(b"\n")
    if not first.rstrip().endswith(b"}") or not rest.strip() or len(first) > 1 << 16:
        return False
    from torchtune_sys.model import codec

    try:
        codec.loads(first)
    except (ValueError, RecursionError):
        return False
    return True


def _printed(data: bytes) -> bool:
    """Whether lsblk -J, findmnt -J, docker inspect or rocm-smi --json wrote this: a report, no recording.

    >>> _printed(b'{"blockdevices": []}'), _printed(b'[{"Id": "a", "HostConfig": {}}]'), _printed(b'{"schema": 1, "files": {}}')
    (True, True, False)
    """
    start = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    within = start[1:].lstrip()
    return within.startswith((b'"blockdevices"', b'"filesystems"', b'"card0"')) or (start[:1] == b"[" and b'"HostConfig"' in data)


def _as_utf8(data: bytes, name: str) -> bytes:
    if is_utf16(data):
        _limit_text(data, name)
    return as_utf8(data)


def _limit_text(data: bytes, name: str) -> None:
    if len(data) > limits.TEXT_LIMIT:
        raise UnreadableInput(
            f"{name}: is text of more than {limits.TEXT_LIMIT >> 20} MiB", "give the part that matters: tail -c 16M"
        )
    if data.count(b"\n") + data.count(b"\r") > limits.LINE_LIMIT:
        raise UnreadableInput(
            f"{name}: has more than {limits.LINE_LIMIT:,} lines", f"give the part that matters: tail -n {limits.LINE_LIMIT}"
        )


def _text(data: bytes, name: str) -> str:
    from torchtune_sys.formats import nvidia_bug_report

    data = nvidia_bug_report.reduced(data) if nvidia_bug_report.is_one(data) else data
    _limit_text(data, name)
    if is_binary(data):
        raise UnreadableInput(f"{name}: is neither text nor a known archive", f"{_HOST}, or a report's text")
    text = data.replace(b"\0", b"").decode("utf-8-sig", "replace")
    if text.startswith("origin ") and "\nintent\n  ranks " in text[:1000]:
        raise UnreadableInput(f"{name}: is a snapshot as text, not a recording", "make one with: torchtune-sys record")
    if len(max(text.split("\n"), key=len)) > limits.LINE_LENGTH:
        text = "\n".join(line[: limits.LINE_LENGTH] for line in text.split("\n"))
    return text
