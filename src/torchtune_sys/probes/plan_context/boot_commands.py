"""Kernel settings that a command sets once the host is up: enabled units, /etc/rc.local, and cron's ``@reboot``.

They run after the files of sysctl.d and tmpfiles.d were read, and so have the last word. Only units below /etc/systemd/system are
read, where administrators put theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.host.base import Host
from torchtune_sys.model.plan_context import BootSetting
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.sysctl.files import SYSCTL_CONF, key_path, parse_lines

_UNITS = "/etc/systemd/system"
_CRON = ("/etc/crontab", "/var/spool/cron/crontabs/root", "/var/spool/cron/root")
_ENDS = (";", "&&", "||", "|", "&")
_MOST = 200
"""Units that are read at most."""
_WORDS, _LOADS = 2000, 16
"""Of a command line, which is searched from each sysctl on; and how often one unit or script has files loaded, each of 4 MiB at most."""


def probe(host: Host) -> tuple[BootSetting, ...]:
    found: list[BootSetting] = []
    for unit, text in _units(host):
        commands = [line.partition("=")[2] for line in text.splitlines() if line.strip().startswith("Exec")]
        found += _settings(host, commands, unit, unit)
    local = host.text("/etc/rc.local")
    found += [] if isinstance(local, Missing) else _settings(host, local.splitlines(), "/etc/rc.local", "")
    for place in (*_CRON, *(f"/etc/cron.d/{name}" for name in _names(host, "/etc/cron.d"))):
        table = host.text(place)
        lines = [] if isinstance(table, Missing) else [line for line in table.splitlines() if line.lstrip().startswith("@reboot")]
        found += _settings(host, lines, place, "")
    return tuple(found)


def _names(host: Host, folder: str) -> tuple[str, ...]:
    names = host.names(folder)
    return () if isinstance(names, Missing) else tuple(names)


def _units(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units that something wants at boot, and that were written on this host."""
    wanted = {
        name
        for folder in _names(host, _UNITS)
        if folder.endswith((".wants", ".requires"))
        for name in _names(host, f"{_UNITS}/{folder}")
        if name.endswith(".service")
    }
    for unit in sorted(wanted & set(_names(host, _UNITS)))[:_MOST]:
        text = host.text(f"{_UNITS}/{unit}")
        if not isinstance(text, Missing):
            yield unit, text


def _settings(host: Host, commands: Iterable[str], source: str, unit: str) -> list[BootSetting]:
    found = []
    loads = 0
    for command in commands:
        if command.lstrip().startswith("#"):
            continue
        for path, value, loaded in assignments(command):
            if path:
                found.append(BootSetting(path=path, value=value, source=source, unit=unit))
            elif loads < _LOADS:
                loads += 1
                text = host.text(loaded)
                lines = [] if isinstance(text, Missing) else parse_lines(text, loaded)
                found += [
                    BootSetting(
                        path=f"/proc/sys/{line.path}",
                        value=" ".join(line.value.split()),
                        source=f"{source} (loads {loaded}, line {line.number})",
                        unit=unit,
                    )
                    for line in lines
                    if line.value is not None and not line.is_pattern
                ]
    return found


def assignments(command: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a command line sets, as (path, value, ""), and the files that it loads, as ("", "", file).

    >>> list(assignments("/sbin/sysctl -q -w vm.swappiness=60 net.core.somaxconn=128"))
    [('/proc/sys/vm/swappiness', '60', ''), ('/proc/sys/net/core/somaxconn', '128', '')]
    >>> list(assignments("/usr/sbin/sysctl -p")), list(assignments("sysctl -p /etc/my.conf; true"))
    ([('', '', '/etc/sysctl.conf')], [('', '', '/etc/my.conf')])
    >>> list(assignments("/bin/sh -c 'echo never > /sys/kernel/mm/transparent_hugepage/enabled'"))
    [('/sys/kernel/mm/transparent_hugepage/enabled', 'never', '')]
    >>> list(assignments('sh -c "echo never | tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null"'))
    [('/sys/kernel/mm/transparent_hugepage/enabled', 'never', '')]
    """
    plain = command.replace("'", " ").replace('"', " ").replace(">", " > ").replace(";", " ; ").replace("|", " | ")
    words = plain.split()[:_WORDS]
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "sysctl":
            yield from _of_sysctl(_until_end(words[place + 1 :]))
        elif word in (">", "tee") and place + 1 < len(words) and words[place + 1].startswith(("/proc/sys/", "/sys/")):
            settings = _echoed(words[:place])
            if settings:
                yield words[place + 1], settings, ""


def _until_end(words: list[str]) -> list[str]:
    end = next((place for place, word in enumerate(words) if word in _ENDS or word == ">"), len(words))
    return words[:end]


def _of_sysctl(words: list[str]) -> Iterator[tuple[str, str, str]]:
    loads = any(word.startswith(("-p", "--load")) for word in words)
    files = [word.partition("=")[2] for word in words if word.startswith("--load=")]
    files += [word for word in words if loads and not word.startswith("-")]
    if loads:
        yield from (("", "", file) for file in files or [SYSCTL_CONF])
    elif "--system" in words:
        yield "", "", SYSCTL_CONF  # which it reads last
    else:
        for word in words:
            key, sign, value = word.partition("=")
            if sign and not key.startswith("-"):
                yield f"/proc/sys/{key_path(key)}", value, ""


def _echoed(words: list[str]) -> str:
    """Return what the last echo or printf before it says."""
    starts = [place for place, word in enumerate(words) if word.rpartition("/")[2] in ("echo", "printf")]
    return " ".join(word for word in words[starts[-1] + 1 :] if word not in ("|", "-n", "-e")) if starts else ""
