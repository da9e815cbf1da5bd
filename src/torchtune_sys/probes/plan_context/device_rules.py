"""Values below /sys that udev rules and tmpfiles.d lines of others set at boot, and that win over our files' lines.

udev reads rules in the order of their files' names, and the last assignment holds (udev(7)). systemd-tmpfiles takes, of several lines
for one path, that of the file whose name is first; lines whose globs merely match the same path are all done, in order (tmpfiles.d(5)).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torchtune_sys.host.base import Host
from torchtune_sys.model.plan_context import TMPFILES_FILE, UDEV_FILE, BootSetting
from torchtune_sys.model.values import Missing, known
from torchtune_sys.probes.drop_ins import files_by_name
from torchtune_sys.probes.plan_context.boot_commands import assignments

_UDEV = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")
_TMPFILES = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")
_OURS = UDEV_FILE.rpartition("/")[2], TMPFILES_FILE.rpartition("/")[2]
_TOKEN = re.compile(r'(?<![A-Z_])([A-Z_]{1,64}(?:\{[^}]{0,255}\})?)\s{0,64}(==|!=|\+=|-=|:=|=)\s{0,64}e?"((?:[^"\\]|\\.)*)"')
_ROW_AT_MOST = 16384
"""Bytes of a rule; udev leaves out what is longer (UDEV_LINE_SIZE in systemd's src/udev/udev-def.h)."""
_READ_AHEAD = ("bdi/read_ahead_kb", "queue/read_ahead_kb")


def probe(host: Host) -> tuple[BootSetting, ...]:
    found: dict[str, BootSetting] = {}
    for setting in (*_by_udev(host), *_by_tmpfiles(host)):
        found[setting.path] = setting
    return tuple(found.values())


def _by_udev(host: Host) -> Iterator[BootSetting]:
    disks = known(host.names("/sys/block"), ())
    for name, path in files_by_name(host, _UDEV, ".rules").items():
        text = host.text(path) if name > _OURS[0] else ""
        for number, row in enumerate(() if isinstance(text, Missing) else joined(text), 1):
            tokens = [match.groups() for match in _TOKEN.finditer(row)] if len(row) < _ROW_AT_MOST else []
            for disk in disks if tokens and not row.startswith("#") else ():
                if all(_holds(host, disk, key, sign, value) for key, sign, value in tokens if sign in ("==", "!=")):
                    yield from _set(disk, tokens, f"{path}:{number}")


def joined(text: str) -> list[str]:
    r"""Return the lines, those that a backslash continues put at the first one's place.

    >>> joined('A=="1", \\\n B="2"\nC="3"')
    ['A=="1",  B="2"', '', 'C="3"']
    """
    rows: list[list[str]] = []
    open_ = -1
    for number, line in enumerate(text.split("\n")):
        rows.append([])
        place = number if open_ < 0 else open_
        rows[place].append(line.rstrip("\\") if line.endswith("\\") else line)
        open_ = place if line.endswith("\\") else -1
    return ["".join(parts) for parts in rows]


def _holds(host: Host, disk: str, key: str, sign: str, value: str) -> bool:
    """Whether the disk matches; what cannot be derived from the kernel's own names and attributes does not."""
    attribute = key.partition("{")[2].rstrip("}")
    known: dict[str, str] = {"KERNEL": disk, "SUBSYSTEM": "block", "ENV{DEVTYPE}": "disk", "DEVTYPE": "disk"}
    if key == "ACTION":
        return any(fnmatchcase(action, word) for action in ("add", "change") for word in value.split("|")) is (sign == "==")
    if key.startswith("ATTR{"):
        found = host.word(f"/sys/block/{disk}/{attribute}")
        if isinstance(found, Missing):
            return False
        known[key] = found
    if key not in known:
        return False
    return any(fnmatchcase(known[key], word) for word in value.split("|")) is (sign == "==")


def _set(disk: str, tokens: list[tuple[str, ...]], source: str) -> Iterator[BootSetting]:
    for key, sign, value in tokens:
        attribute = key.partition("{")[2].rstrip("}")
        if key.startswith("ATTR{") and sign in ("=", ":="):
            name = _READ_AHEAD[1] if attribute in _READ_AHEAD else attribute
            yield BootSetting(path=f"/sys/block/{disk}/{name}", value=value, source=source)
        elif key.startswith("RUN") and sign in ("+=", "=", ":="):
            command = value.replace("%k", disk).replace("$kernel", disk)
            for path, word, loaded in assignments(command):
                if not loaded:
                    yield BootSetting(path=path, value=word, source=source)


def _by_tmpfiles(host: Host) -> Iterator[BootSetting]:
    for name, path in files_by_name(host, _TMPFILES, ".conf").items():
        text = host.text(path) if name != _OURS[1] else ""
        for number, row in enumerate(() if isinstance(text, Missing) else text.splitlines(), 1):
            fields = row.split(None, 6)
            if len(fields) == 7 and fields[0].rstrip("!+-=~^") == "w" and fields[1].startswith("/sys/"):
                value = fields[6].replace("\\n", "").strip()
                yield BootSetting(
                    path=fields[1].replace("%%", "%"),
                    value=value,
                    source=f"{path}:{number}",
                    beats="same" if name < _OURS[1] else "matching",
                )
