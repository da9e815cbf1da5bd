"""Limits of a process as shells and ``prlimit`` print them: names, units and which of the two limits it is.

Of bash, dash, zsh, ksh93, mksh, yash, fish, BusyBox and tcsh, each of which has an own table. Units were seen at a limit of 1 GiB on files: bash counts it in blocks of
1024 bytes (in its POSIX mode of 512), all others that count blocks in blocks of 512 bytes.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torchtune_sys.formats.process_limits import amount, of_kernel
from torchtune_sys.model.facts.limits import NAMES, SessionLimit

_OPTIONS = {
    "l": "memlock", "n": "nofile", "u": "nproc", "s": "stack", "c": "core", "v": "as", "d": "data", "m": "rss", "f": "fsize", "t": "cpu",
}  # fmt: skip
"""By the option of ``ulimit``, which all shells have in common."""
_OF_DASH = {
    "time": "cpu", "file": "fsize", "data": "data", "stack": "stack", "coredump": "core", "memory": "rss", "locked memory": "memlock",
    "process": "nproc", "nofiles": "nofile", "vmemory": "as",
}  # fmt: skip
_OF_CSH = {
    "cputime": "cpu", "filesize": "fsize", "datasize": "data", "stacksize": "stack", "coredumpsize": "core", "memoryuse": "rss", "resident": "rss",
    "vmemoryuse": "as", "addressspace": "as", "descriptors": "nofile", "openfiles": "nofile", "memorylocked": "memlock", "maxproc": "nproc",
}  # fmt: skip
_UNITS = {
    "kbytes": 1024, "Kibytes": 1024, "kb": 1024, "kB": 1024, "KiB": 1024, "bytes": 1, "blocks": 512, "seconds": 1, "cpu-seconds": 1,
    "descriptors": 1, "processes": 1,
}  # fmt: skip
_COUNTS = frozenset(("nofile", "nproc"))
"""What has no unit."""
_VALUE = r"(?P<value>\d{1,20}|unlimited)[ \t]*$"
_UNIT = r"(?P<unit>kbytes|Kibytes|kb|kB|KiB|bytes|blocks|seconds|cpu-seconds|descriptors|processes)"
_OPTION_LAST = re.compile(
    rf"(?<=[a-z ])(?:\({_UNIT}\)[ \t]{{0,60}})?\((?:(?P<inner>kbytes|blocks|bytes|kB|seconds), )?-(?P<option>[lnuscvdmft])\)[ \t]{{1,4}}{_VALUE}",
    re.MULTILINE,
)
_OPTION_FIRST = re.compile(
    rf"^[ \t>]{{0,8}}-(?P<option>[lnuscvdmftp]): (?P<title>[A-Za-z][A-Za-z -]{{2,40}}?) ?(?:\({_UNIT}\))?[ \t]{{1,40}}{_VALUE}",
    re.MULTILINE,
)
_DASH = re.compile(rf"^[ \t>]{{0,8}}(?P<title>[a-z][a-z ]{{3,13}}?)(?:\({_UNIT}\))?[ \t]{{1,24}}{_VALUE}", re.MULTILINE)
_CSH = re.compile(
    r"^[ \t>]{0,8}(?P<title>[a-z]{7,12})[ \t]{1,12}(?:(?P<value>\d{1,20}|unlimited)(?: ?(?P<unit>kbytes|kB|MB|GB|TB))?|(?P<hours>\d{1,9}):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?)[ \t]*$",
    re.MULTILINE,
)
_LARGE = {"kbytes": 1 << 10, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_PRLIMIT = re.compile(
    rf"^[ \t>]{{0,8}}(?P<title>{'|'.join(name.upper() for name in NAMES)})[ \t]{{1,12}}[a-zA-Z][a-zA-Z -]{{5,44}}?[ \t]{{1,24}}(?P<soft>\d{{1,20}}|unlimited)[ \t]{{1,24}}(?P<hard>\d{{1,20}}|unlimited)[ \t]{{1,4}}(?:bytes|files|processes|seconds)[ \t]*$",
    re.MULTILINE,
)
_ONE = re.compile(
    r"(?:^|[$#%>!] ?)ulimit (?P<options>-[SHlnutsvdm]{1,3}(?: -[lnutsvdm])?)[ \t]*\n(?P<value>\d{1,20}|unlimited)[ \t]*$",
    re.MULTILINE,
)
_HARD = re.compile(r"\b(?:ulimit[ \t]+(?:-[a-zS]{0,2}[ \t]+)?-[a-zS]{0,2}H|limit[ \t]+-h)\w{0,2}\b[^\n]{0,40}$", re.MULTILINE)
_CALL = re.compile(r"\bu?limit\b[^\n]{0,40}$", re.MULTILINE)
_OF_ANOTHER = re.compile(r"/proc/\d{1,10}/limits\b")
_ENOUGH = 4
"""Rows that make a table of dash or csh, whose words may stand anywhere."""


class _Row(NamedTuple):
    at: int
    name: str
    value: int | None


class ShellLimits(NamedTuple):
    """The limits that a text tells by name; of a name that only one of the two has, the other was not printed."""

    soft: dict[str, int | None]
    hard: dict[str, int | None]


def reported_limits(text: str) -> ShellLimits:
    """Return the limits in what shells print, of each name the first; a table below ``ulimit -Ha`` or ``limit -h`` tells the hard ones.

    >>> found = reported_limits("max locked memory           (kbytes, -l) 256\\nfile size                   (blocks, -f) 1048576\\nopen files                          (-n) 2000\\n")
    >>> found.soft["memlock"], found.soft["fsize"] >> 30, found.soft["nofile"], found.hard
    (262144, 1, 2000, {})
    >>> reported_limits("$ ulimit -Hn\\n5000\\n$ ulimit -S -n\\n2000\\n")
    ShellLimits(soft={'nofile': 2000}, hard={'nofile': 5000})
    """
    both = list(_both(text))
    soft: dict[str, int | None] = {name: pair.soft for name, pair in both}
    hard: dict[str, int | None] = {name: pair.hard for name, pair in both}
    rows = [row for reader in _READERS for row in reader(text)]
    calls = [call.start() for call in _CALL.finditer(text)] if rows else []
    for row in rows:
        above = bisect(calls, row.at)
        is_hard = above > 0 and _HARD.match(text, calls[above - 1]) is not None
        (hard if is_hard else soft).setdefault(row.name, row.value)
    for name, value, is_hard in _single(text):
        (hard if is_hard else soft).setdefault(name, value)
    return ShellLimits(soft, hard)


def _both(text: str) -> Iterator[tuple[str, SessionLimit]]:
    """Tables of both limits, prlimit's and the kernel's. A process by its number may be a daemon, which opens few files by design."""
    another = _OF_ANOTHER.search(text)
    yield from ((name, pair) for name, pair in of_kernel(text).items() if name == "memlock" or not another)
    if "RESOURCE" in text and "SOFT" in text:
        yield from ((row["title"].lower(), _pair(row)) for row in _PRLIMIT.finditer(text))


def _pair(row: re.Match[str]) -> SessionLimit:
    return SessionLimit(soft=amount(row["soft"]), hard=amount(row["hard"]))


def _in_unit(row: re.Match[str], name: str, unit: str | None) -> Iterator[_Row]:
    """Yield the row's limit; nothing for a size without a unit, which a text may have lost."""
    factor = _UNITS.get(unit or "", 1 if name in _COUNTS else 0)
    if factor:
        yield _Row(row.start(), name, amount(row["value"], factor))


def _option_last(text: str) -> Iterator[_Row]:
    """bash, ksh93, BusyBox and fish."""
    for row in _OPTION_LAST.finditer(text) if "-" in text else ():
        name = _OPTIONS[row["option"]]
        unit = "kbytes" if row["inner"] == "blocks" else row["inner"] or row["unit"]  # bash has blocks of 1024 bytes
        yield from _in_unit(row, name, unit)


def _option_first(text: str) -> Iterator[_Row]:
    """zsh, mksh and yash."""
    for row in _OPTION_FIRST.finditer(text) if ": " in text else ():
        if row["option"] == "p" and row["title"] != "processes":
            continue
        name = "nproc" if row["option"] == "p" else _OPTIONS[row["option"]]
        yield from _in_unit(row, name, row["unit"])


def _dash(text: str) -> Iterator[_Row]:
    if "coredump(blocks)" not in text:
        return
    rows = [row for row in _DASH.finditer(text) if row["title"] in _OF_DASH]
    for row in rows if len(rows) >= _ENOUGH else ():
        name = _OF_DASH[row["title"]]
        yield from _in_unit(row, name, row["unit"])


def _csh(text: str) -> Iterator[_Row]:
    """tcsh, csh and zsh's ``limit``."""
    if "coredumpsize" not in text:
        return
    rows = [row for row in _CSH.finditer(text) if row["title"] in _OF_CSH]
    for row in rows if len(rows) >= _ENOUGH else ():
        name = _OF_CSH[row["title"]]
        if row["value"] is None:
            hours, minutes, seconds = (int(row[part] or 0) for part in ("hours", "minutes", "seconds"))
            yield _Row(row.start(), name, hours * 3600 + minutes * 60 + seconds)
        elif row["value"] == "unlimited" or name in _COUNTS or row["unit"]:
            yield _Row(row.start(), name, amount(row["value"], _LARGE.get(row["unit"] or "", 1)))


_READERS: tuple[Callable[[str], Iterator[_Row]], ...] = (_option_last, _option_first, _dash, _csh)


def _single(text: str) -> Iterator[tuple[str, int | None, bool]]:
    """``ulimit -l`` and its answer; sizes are in KiB in every shell, but for files and core dumps, whose blocks differ."""
    for row in _ONE.finditer(text) if "ulimit -" in text else ():
        options = row["options"].replace("-", "").replace(" ", "")
        kinds = [letter for letter in options if letter in _OPTIONS]
        if len(kinds) == 1:
            name = _OPTIONS[kinds[0]]
            yield name, amount(row["value"], 1 if name in _COUNTS or name == "cpu" else 1024), "H" in options
