"""What systemd-logind does when a user logs out (logind.conf(5))."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.drop_ins import files_by_name
from torchtune_sys.probes.system.os_release import read_os

_PROGRAMS = ("/usr/lib/systemd/systemd-logind", "/lib/systemd/systemd-logind")
_FILES = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
_DIRECTORIES = (
    "/etc/systemd/logind.conf.d",
    "/run/systemd/logind.conf.d",
    "/usr/local/lib/systemd/logind.conf.d",
    "/usr/lib/systemd/logind.conf.d",
    "/lib/systemd/logind.conf.d",
)


def files(host: Host) -> Fact[tuple[tuple[str, str], ...]]:
    """Return path and text of each of its files, in the order in which they are read: the main file, then drop-ins by name over all directories."""
    there = [host.exists(path) for path in _PROGRAMS]
    if True not in there:
        nowhere = Missing(Why.ABSENT, "systemd-logind", "not installed")
        return next((fact for fact in there if isinstance(fact, Missing)), nowhere)
    main = next((path for path in _FILES if host.exists(path) is not False), "")
    found = []
    for path in (*([main] if main else []), *files_by_name(host, _DIRECTORIES).values()):
        text = host.text(path)
        if not isinstance(text, Missing):
            found.append((path, text))
        elif text.why is not Why.ABSENT and host.link(path) != "/dev/null":
            return text
    return tuple(found)


_BUILT_IN = "built-in choice of systemd-logind"


def remove_ipc(host: Host, found: Fact[tuple[tuple[str, str], ...]]) -> tuple[Fact[bool], str]:
    """Return whether RemoveIPC is on, and what sets it. Where nothing says, it is upstream, and is not in Red Hat's builds (PostgreSQL's manual,
    section "systemd RemoveIPC")."""
    if isinstance(found, Missing):
        return found, "" if found.source == "systemd-logind" else found.source
    setting, source = _last(found, "RemoveIPC")
    return (_built_in(host) if setting is None else setting), source


def kills_at_logout(found: Fact[tuple[tuple[str, str], ...]], user: str) -> Fact[str]:
    """Return what ends this user's processes, "" where nothing does: KillUserProcesses, which distributions build with no, unless KillOnlyUsers names users, who alone
    are meant then, whatever KillUserProcesses says. KillExcludeUsers wins, and leaves root where it is not set (logind.conf(5); systemd
    src/login/logind-core.c, manager_shall_kill)."""
    if isinstance(found, Missing):
        return found
    setting, source = _last(found, "KillUserProcesses")
    only, left = (_users(found, name) for name in ("KillOnlyUsers", "KillExcludeUsers"))
    if user and user in (["root"] if left is None else left):
        return ""
    if user and only:
        return f"{only[user]} (KillOnlyUsers)" if user in only else ""
    return source if setting else ""


def _users(found: tuple[tuple[str, str], ...], name: str) -> dict[str, str] | None:
    """Return the users of all assignments, each with where it stands: an assignment adds some, an empty one takes them away; None where there is none."""
    users: dict[str, str] | None = None
    for path, value, number in ((path, *each) for path, text in found for each in _assignments(text, name)):
        users = {**(users or {}), **dict.fromkeys(value.split(), f"{path}:{number}")} if value else {}
    return users


def _last(found: tuple[tuple[str, str], ...], name: str) -> tuple[bool | None, str]:
    """Return the last assignment, which wins, and where it stands; else the built-in choice, which the file that is shipped shows in a comment."""
    last = [(each[0], f"{path}:{each[1]}") for path, text in found if (each := parse_switch(text, name))]
    shown = [parse_switch(text.replace(f"#{name}", name), name) for path, text in found if path in _FILES]
    return last[-1] if last else (next((each[0] for each in shown if each), None), _BUILT_IN)


def parse_switch(text: str, wanted: str) -> tuple[bool, int] | None:
    r"""Return the last value of a switch in the section [Login], with its line.

    >>> parse_switch("[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n", "RemoveIPC")
    (False, 3)
    """
    found = None
    for value, number in _assignments(text, wanted):
        word = value.lower()
        if word in ("1", "yes", "y", "true", "t", "on"):
            found = (True, number)
        elif word in ("0", "no", "n", "false", "f", "off"):
            found = (False, number)
    return found


def _assignments(text: str, wanted: str) -> Iterator[tuple[str, int]]:
    """Yield each value that the section [Login] gives a setting, with its line."""
    section = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("["):
            section = line
        name, equals, value = line.partition("=")
        if section == "[Login]" and equals and name.strip() == wanted:
            yield value.strip(), number


@fact
def _built_in(host: Host) -> Fact[bool]:
    system = need(read_os(host))
    return not {system.id, *system.id_like} & {"rhel", "centos", "rocky", "almalinux", "ol"}
