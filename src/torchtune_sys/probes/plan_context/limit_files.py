"""Lines of limits.conf(5) that others wrote: which of them win over ours is pam_limits' to say, and the planner's to foresee."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.host.base import Host
from torchtune_sys.model.plan_context import LIMITS_FILE, LimitLine
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.drop_ins import files_by_name

_FIRST = ("/etc/security/limits.conf", "/usr/etc/security/limits.conf")
_FOLDERS = ("/etc/security/limits.d", "/usr/etc/security/limits.d")
"""The first holds what an administrator wrote, the second what the distribution ships (pam_limits(8))."""
_MEMBERS_AT_MOST = 1 << 20
"""Of all groups together: many groups may have one number, and each all its users."""
_KINDS = ("soft", "hard", "-")
_OURS = LIMITS_FILE.rpartition("/")[2]


def probe(host: Host) -> tuple[LimitLine, ...]:
    """Return the lines in the order in which they are read, without our own file's."""
    found = [line for path in _files(host) for line in _lines(host, path)]
    groups = {line.who[1:] for line in found if line.who.startswith("@")}
    members = _members(host, groups) if groups else {}
    return tuple(found if not groups else (_with_members(line, members) for line in found))


_SSHD = "/etc/ssh/sshd_config"


_PAM = "/etc/pam.d"
_PAM_FILES_AT_MOST = 16


def unread(host: Host) -> str:
    """Return why sshd's logins read none of these files; ``""`` where they do, or it cannot be seen."""
    return _pam_is_off(host) or _pam_without_limits(host)


def _pam_without_limits(host: Host) -> str:
    """Follow what sshd's file of PAM includes (pam.conf(5))."""
    left, seen = ["sshd"], set[str]()
    while left and len(seen) < _PAM_FILES_AT_MOST:
        name = left.pop()
        seen.add(name)
        text = host.text(f"{_PAM}/{name}")
        if isinstance(text, Missing):
            return ""
        for row in text.splitlines():
            words = row.split("#")[0].split()
            if any(word.endswith("pam_limits.so") for word in words):
                return ""
            named = words[1:2] if words[:1] == ["@include"] else words[2:3] if words[1:2] in (["include"], ["substack"]) else []
            left += [other for other in named if other not in seen]
    return f"no file of PAM that a login by ssh reads names pam_limits.so: add session required pam_limits.so to {_PAM}/sshd"


def _pam_is_off(host: Host) -> str:
    """Return where PAM is switched off; the first line of a key holds (sshd_config(5))."""
    for path in (*files_by_name(host, (f"{_SSHD}.d",)).values(), _SSHD):
        text = host.text(path)
        for number, line in enumerate([] if isinstance(text, Missing) else text.split("\n"), 1):
            words = line.replace("=", " ").lower().split()
            if words[:1] == ["match"]:
                break
            if words[:1] == ["usepam"]:
                off = f"{path}:{number} has UsePAM no: logins by ssh read no limits (UsePAM yes, then restart sshd)"
                return off if words[1:2] == ["no"] else ""
    return ""


def _files(host: Host) -> Iterator[str]:
    """Yield the main file, then those of the folders by name; of one name, the first folder's hides the other's."""
    first = next((path for path in _FIRST if host.exists(path) is True), "")
    if first:
        yield first
    yield from (path for name, path in files_by_name(host, _FOLDERS).items() if name != _OURS)


def _lines(host: Host, path: str) -> Iterator[LimitLine]:
    text = host.text(path)
    for number, row in enumerate(() if isinstance(text, Missing) else text.splitlines(), 1):
        words = parse_line(row)
        if words:
            who, kind, item, value = words
            is_after = path not in _FIRST and path.rpartition("/")[2] > _OURS
            yield LimitLine(source=f"{path}:{number}", who=who, kind=kind, item=item, value=value, is_after=is_after)


def parse_line(row: str) -> tuple[str, str, str, str] | None:
    """Return the four fields of a line; None where it is none.

    >>> parse_line("@ml  -  nofile 4096  # few"), parse_line("# * soft core 0"), parse_line("* soft")
    (('@ml', '-', 'nofile', '4096'), None, None)
    """
    words = row.partition("#")[0].split()
    if len(words) != 4 or words[1].lower() not in _KINDS:
        return None
    return words[0], words[1].lower(), words[2].lower(), words[3].lower()


def _members(host: Host, groups: set[str]) -> dict[str, tuple[str, ...]]:
    """Who belongs to the groups, as far as the files of the host tell; a directory service's members are not known."""
    rows = [row.split(":") for row in _rows(host, "/etc/group")]
    found = {row[0]: (row[2], row[3].split(",")) for row in rows if len(row) == 4 and row[0] in groups}
    of_number: dict[str, list[str]] = {}
    for row in _rows(host, "/etc/passwd"):
        user, *fields = row.split(":")
        if len(fields) > 2:
            of_number.setdefault(fields[2], []).append(user)
    members: dict[str, tuple[str, ...]] = {}
    left = _MEMBERS_AT_MOST
    for name, (number, others) in found.items():
        first = of_number.get(number, [])
        left -= len(others) + len(first)
        if left < 0:
            break
        members[name] = tuple(filter(None, (*others, *first)))
    return members


def _rows(host: Host, path: str) -> list[str]:
    text = host.text(path)
    return [] if isinstance(text, Missing) else text.splitlines()


def _with_members(line: LimitLine, members: dict[str, tuple[str, ...]]) -> LimitLine:
    import msgspec

    return msgspec.structs.replace(line, members=members.get(line.who[1:], ())) if line.who.startswith("@") else line
