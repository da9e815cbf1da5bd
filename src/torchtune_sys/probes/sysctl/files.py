"""Find what sets a kernel parameter at boot: sysctl.d as systemd-sysctl reads it, and as procps' ``sysctl --system`` does.

Both take a file name once (the directory with the higher rank holds it), read the files in the order of their names, and
let a line with the very key beat every pattern. They part where it hurts: procps reads /etc/sysctl.conf after everything else,
while systemd knows that file only through a link such as 99-sysctl.conf; and for systemd ``-key`` without a value takes back an
earlier assignment, for procps it only shields the key from patterns.
Sources: sysctl.d(5), sysctl(8) of procps-ng 4, and both programs, run on the layouts in tests/probes/sysctl/test_sysctl_tools.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.values import Missing, Why

DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
SYSCTL_CONF = "/etc/sysctl.conf"


class SettingLine(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The key as a path below /proc/sys, or a pattern of such paths."""
    value: str | None
    """None for ``-key`` without ``=``: not to be set by a pattern."""
    file: str
    number: int
    rank: int = 0
    """Position of its file in the order of reading."""

    @property
    def is_pattern(self) -> bool:
        return "*" in self.path or "?" in self.path or "[" in self.path


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one program, in its order."""

    lines: tuple[SettingLine, ...]
    unread: tuple[tuple[int, Missing], ...]
    """What could not be read, with the position it would have had."""


def key_path(key: str) -> str:
    """Return the key as a path below /proc/sys: the first separator decides which one separates.

    >>> key_path("net.ipv4.conf.enp3s0/200.forwarding")
    'net/ipv4/conf/enp3s0.200/forwarding'
    >>> key_path("net/ipv4/conf/enp3s0.200/forwarding")
    'net/ipv4/conf/enp3s0.200/forwarding'
    """
    first = next((sign for sign in key if sign in "./"), "/")
    path = key.translate({ord("."): "/", ord("/"): "."}) if first == "." else key
    return "/".join(part for part in path.split("/") if part)


def parse_lines(text: str, file: str, rank: int = 0) -> list[SettingLine]:
    r"""Return the lines of a sysctl.d file that name a key; anything else is skipped, as both programs do.

    >>> [(line.path, line.value, line.number) for line in parse_lines("# x\n-vm.swappiness = 10 \n-kernel.a\nnonsense", "f")]
    [('vm/swappiness', '10', 2), ('kernel/a', None, 3)]
    """
    found = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        shield = key.startswith("-")
        if not equals and not shield:
            continue
        path = key_path(key.removeprefix("-"))
        if path:
            found.append(SettingLine(path=path, value=value.strip() if equals else None, file=file, number=number, rank=rank))
    return found


def matches(pattern: str, path: str) -> bool:
    """Return whether a key matches as in glob(7): a wildcard does not cross a slash.

    >>> matches("net/ipv4/conf/*/rp_filter", "net/ipv4/conf/eth0/rp_filter"), matches("net/*/rp_filter", "net/a/b/rp_filter")
    (True, False)
    """
    import re
    from fnmatch import fnmatchcase

    parts, wanted = path.split("/"), pattern.split("/")
    try:
        return len(parts) == len(wanted) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))
    except (re.error, RecursionError, OverflowError):  # a range such as [z-a] is an error of Python 3.10's fnmatch
        return False


def readings(host: Host) -> tuple[Reading, Reading]:
    """Return what systemd-sysctl reads, and what ``sysctl --system`` reads. Each file is read once."""
    names, unlisted = _candidates(host)
    files = [names[name] for name in sorted(names)]
    texts = {path: _content(host, path) for path in (*files, SYSCTL_CONF)}
    return _reading(files, texts, unlisted), _reading([*files, SYSCTL_CONF], texts, unlisted)


def _candidates(host: Host) -> tuple[dict[str, str], list[Missing]]:
    names: dict[str, str] = {}
    unlisted = []
    for directory in DIRECTORIES:
        listing = host.names(directory)
        if isinstance(listing, Missing):
            if listing.why is not Why.ABSENT:
                unlisted.append(listing)
            continue
        for name in listing:
            if name.endswith(".conf"):
                names.setdefault(name, f"{directory}/{name}")  # even a dangling link holds the name
    return names, unlisted


def _content(host: Host, path: str) -> Fact[str]:
    """Return the file's text; a link to /dev/null, a directory or a socket says nothing."""
    content = host.text(path)
    if not isinstance(content, Missing):
        return content
    if content.detail == "not a regular file" or host.link(path) == "/dev/null":
        return ""
    return content


def _reading(files: list[str], texts: dict[str, Fact[str]], unlisted: list[Missing]) -> Reading:
    lines: list[SettingLine] = []
    unread = [(len(files), missing) for missing in unlisted]
    for rank, path in enumerate(files):
        content = texts[path]
        if not isinstance(content, Missing):
            lines += parse_lines(content, path, rank)
        elif content.why is not Why.ABSENT:
            unread.append((rank, content))
    return Reading(lines=tuple(lines), unread=tuple(unread))


class Systemd:
    """What systemd-sysctl ends up with for each key."""

    def __init__(self, reading: Reading) -> None:
        self._unread = reading.unread
        self._options: dict[str, SettingLine] = {}
        for line in reading.lines:
            before = self._options.get(line.path)
            if before is not None and before.value == line.value:
                continue  # an equal assignment keeps its place in the queue, which decides between patterns
            self._options.pop(line.path, None)
            self._options[line.path] = line
        self._patterns = [line for line in self._options.values() if line.is_pattern and line.value is not None]

    def winner(self, path: str) -> Fact[SettingLine]:
        if path in self._options:
            return _sure(self._options[path], self._unread)
        return _sure(_last(self._patterns, path), self._unread)


class Procps:
    """What ``sysctl --system`` of procps-ng 4 ends up with for each key."""

    def __init__(self, reading: Reading) -> None:
        self._unread = reading.unread
        self._explicit = {line.path: line for line in reading.lines if line.value is not None and not line.is_pattern}
        # 4.0.2 takes a pattern after "-" literally; releases from 2025 match it
        self._shields = {line.path for line in reading.lines if line.value is None}
        self._patterns = [line for line in reading.lines if line.is_pattern and line.value is not None]

    def winner(self, path: str) -> Fact[SettingLine]:
        if path in self._explicit:
            return _sure(self._explicit[path], self._unread)
        if path in self._shields:
            return _sure(None, self._unread)
        return _sure(_last(self._patterns, path), self._unread)


def _last(patterns: Iterable[SettingLine], path: str) -> SettingLine | None:
    found = None
    for line in patterns:
        if matches(line.path, path):
            found = line
    return found


def _sure(line: SettingLine | None, unread: tuple[tuple[int, Missing], ...]) -> Fact[SettingLine]:
    """Return the winner, unless a file that could not be read may say otherwise."""
    for rank, missing in unread:
        if line is None or line.is_pattern or rank > line.rank:
            return missing
    if line is None or line.value is None:
        return Missing(Why.ABSENT, "sysctl.d", "no file sets it" if line is None else f"excluded in {line.file}:{line.number}")
    return line


def assignment(host: Host, line: Fact[SettingLine]) -> Fact[Assignment]:
    """Return the line as evidence: a linked file is named by what it is."""
    if isinstance(line, Missing):
        return line
    source = f"{line.file}:{line.number}"
    if isinstance(host.link(line.file), str):
        real = host.real(line.file)
        source = f"{real}:{line.number} (read as {line.file})" if isinstance(real, str) else source
    return Assignment(value=" ".join((line.value or "").split()), source=source, is_pattern=line.is_pattern)
