"""Split a text by host (named in prefixes, prompts and headings) and by time (before and after).

A program's report that comes a second time with another version is another look: what the two tell is never put together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from torchtune_sys.diagnosis.text.lines import LogLine


class Part(msgspec.Struct, frozen=True, kw_only=True):
    lines: Sequence[LogLine]
    host: str = ""
    is_node: bool = False
    """The name is that of a machine, and no container's."""
    look: str = ""
    """What sets it apart from another look at the same host; empty where there is one."""
    is_past: bool = False
    """It was so before, and is no more."""


_PROMPT = re.compile(r"^(?:\([\w.-]{1,40}\) ?)?\[?(?P<user>[\w.-]{1,32})@(?P<host>[\w.-]{1,64})[: ][^\n]{0,200}?[$#](?: |$)")
_FEW = 3
_CONTAINER_ID = re.compile(r"^[0-9a-f]{12}$|^localhost$")


def parts_of(lines: Sequence[LogLine]) -> list[Part]:
    """Return the parts in the order of the text; one where it reports one host at one moment."""
    hosts = _by_host(lines)
    return [part for host, own in hosts for part in _looks(host, own, several=len(hosts) > 1)]


def _by_host(lines: Sequence[LogLine]) -> list[tuple[str, list[LogLine]]]:
    """Lines of hosts that prefixes or prompts name; one part without a name where they name fewer than two."""
    parts: dict[str, list[LogLine]] = {}
    host = ""
    for line in lines:
        prompt = _PROMPT.match(line.text)
        host = prompt["host"] if prompt is not None else host
        parts.setdefault(line.host or host, []).append(line)
    several = [name for name, part in parts.items() if name and len(part) >= _FEW]
    if len(several) < 2:
        return [(several[0] if several and len(parts[several[0]]) == len(lines) else "", list(lines))]
    return list(parts.items())


_HEADS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("nvidia-smi", r"^\W{0,8}NVIDIA-SMI +\S{1,20} +(?:KMD|Driver) Version: *(?P<value>[\w.]{1,20})"),
        ("nvidia-smi -q", r"^\W{0,8}Driver Version {2,}: (?P<value>[\w.]{1,20})"),
        ("collect_env", r"^\W{0,8}PyTorch version *: *(?P<value>[\w.+-]{1,40})"),
        ("module", r"^\W{0,8}NVRM version: NVIDIA UNIX .{0,60}Module\S* +(?P<value>[\w.]{1,20})"),
        ("kernel", r"^(?:\[ *\d{1,6}\.\d{1,6}\] )?Linux version (?P<value>[\w.+-]{1,60})"),
        ("uname", r"^\W{0,8}Linux [\w.-]{1,64} (?P<value>\d{1,2}\.\d{1,3}[\w.+-]{0,60}) "),
    )
)
"""What begins a report of which a host has one at a time, and what a second one of another host or day has otherwise."""
_NOT_NOW = r"not work\w*|n't work|does ?n.t|no longer|broken?|fail\w*|bad|error|crash\w*|hang\w*"
_NOW = re.compile(
    rf"(?i)\b(?:after(?:wards)?|now|new(?:er)?|current(?:ly)?|today|later|{_NOT_NOW}|up(?:grad|dat)ed|downgraded|since)\b"
)
_PAST = re.compile(
    r"(?i)\b(?:before|old(?:er)?|previous(?:ly)?|earlier|formerly|used to|work(?:s|ed|ing)|good|fine|yesterday|ok)\b"
)
_NODE = re.compile(
    r"(?i)^[\W_]{0,8}(?:(?:on|from|output (?:of|from|on)) )?(?:the )?(?:(?:first|second|third|other|head|gpu|compute|master|remote) )?"
    r"(?P<name>(?:node|machine|server|worker|host|box|computer)\b[ #:._-]{0,3}[\w.-]{0,40}|(?:node|machine|server|worker|host|gpu|dgx|hgx)[-_]?\w{0,8}\d[\w.-]{0,30})[\W_]{0,8}$"
)
_CONTAINER = re.compile(r"(?i)\b(?:container|docker|podman|pod|inside|singularity|apptainer|guest)\b")
_ABOVE, _SHORT = 6, 80


class _Look(msgspec.Struct, frozen=True):
    start: int
    words: str
    node: str
    is_past: bool
    is_now: bool


def _looks(host: str, lines: Sequence[LogLine], *, several: bool) -> list[Part]:
    found = _begun(lines)
    if len(found) < 2:
        named = found[0].node if found and not host and not several else ""
        return [Part(lines=lines, host=host or named, is_node=_is_node(host))]
    ends = [look.start for look in found[1:]] + [len(lines)]
    has_now = any(look.is_now or not look.is_past for look in found)
    return [
        Part(
            lines=lines[0 if at == 0 else look.start : end],
            host=host or look.node,
            is_node=_is_node(host or look.node),
            look="" if look.node else look.words or f"line {lines[look.start].number}",
            is_past=look.is_past and has_now,
        )
        for at, (look, end) in enumerate(zip(found, ends, strict=True))
    ]


def _is_node(host: str) -> bool:
    return bool(host) and host.lower() != "host" and not _CONTAINER_ID.match(host) and not _CONTAINER.search(host)


def _begun(lines: Sequence[LogLine]) -> list[_Look]:
    """Where each look begins: a report whose kind was there with another value, or above which a heading says another host or time."""
    looks: list[_Look] = []
    values: dict[str, str] = {}
    end = 0
    for at, line in enumerate(lines):
        head = next(((kind, match["value"]) for kind, pattern in _HEADS if (match := pattern.match(line.text))), None)
        if head is None:
            continue
        kind, value = head
        start, words = _heading(lines, at, end)
        node = _NODE.match(words)
        started = _Look(
            start, words, node["name"].strip(" :#_-*") if node else "", _is_past(words), _NOW.search(words) is not None
        )
        other = bool(words) and looks and words != looks[-1].words
        if not looks or other or values.get(kind, value) != value:
            looks.append(started)
            values = {}
        values[kind] = value
        end = at + 1
    return looks


def _is_past(words: str) -> bool:
    """
    >>> _is_past("Before the upgrade:"), _is_past("not working:"), _is_past("working setup"), _is_past("after")
    (True, False, True, False)
    """
    return _PAST.search(words) is not None and re.search(rf"(?i)\b(?:{_NOT_NOW}|after|now)\b", words) is None


def _heading(lines: Sequence[LogLine], at: int, end: int) -> tuple[int, str]:
    """Return the nearest short line above the report that says whose or of when it is, and where it stands; else where the report begins."""
    for above in range(at - 1, max(at - _ABOVE, end) - 1, -1):
        words = lines[above].text.strip(" #*_=-:`>")
        if 0 < len(words) <= _SHORT and (
            _NODE.match(words) or _NOW.search(words) or _PAST.search(words) or _CONTAINER.search(words)
        ):
            return above, words
    return at, ""
