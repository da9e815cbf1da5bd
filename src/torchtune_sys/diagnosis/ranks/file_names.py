"""Tell ranks and hosts by the names of several files: those that are called alike but for a number that is the rank's, or are called like nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.lines import LogLine
from torchtune_sys.diagnosis.symptoms import Symptom

_NUMBER = re.compile(r"\d{1,6}(?=\D*$)")
_NO_RANKS = re.compile(r"(?i)node|host|server|machine|gpu|nid|rack|part|chunk|dmesg|attempt|step|epoch|run|job|restart|day")
"""What numbers count beside ranks."""
_NODE = re.compile(
    r"(?i)^(?:.{0,40}[_.-])?(?P<host>(?:node|host|server|machine|gpu|dgx|hgx|compute|worker|master|nid|cn)[-_]?\d[\w-]{0,40})$"
)
_SUFFIX = re.compile(r"(?:\.(?:log|out|err|txt|gz|xz|zst|bz2))+$")
_FEW = 3


def attributed(
    lines: Mapping[str, Sequence[LogLine]], symptoms: Sequence[Symptom]
) -> tuple[dict[str, Sequence[LogLine]], list[Symptom]]:
    """Return both with the rank or the host of their file, where their own lines do not tell one."""
    ranks, hosts = _ranks(lines), _hosts(lines)
    if not ranks and not hosts:
        return dict(lines), list(symptoms)

    def of(source: str, line: LogLine) -> LogLine:
        rank = ranks.get(source) if line.rank is None else line.rank
        host = line.host or hosts.get(source, "")
        return line if (rank, host) == (line.rank, line.host) else replace(line, rank=rank, host=host)

    return (
        {source: tuple(of(source, line) for line in part) for source, part in lines.items()},
        [replace(each, line=of(each.source, each.line)) for each in symptoms],
    )


def _ranks(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, int]:
    """Return the number of each file that lies beside others from 0 on, where no line belongs to another rank.

    >>> line = LogLine(number=1, text="x", printed="x")
    >>> _ranks({"a/train-0.out": [line], "a/train-1.out": [], "a/train-2.out": [line], "b/x.log": [line]})
    {'a/train-0.out': 0, 'a/train-1.out': 1, 'a/train-2.out': 2}
    """
    alike: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for source in lines:
        number = _NUMBER.search(source)
        if number is not None:
            alike[source[: number.start()] + "#" + source[number.end() :]][source] = int(number[0])
    found: dict[str, int] = {}
    for shape, group in alike.items():
        told = {source: {line.rank for line in lines[source] if line.rank is not None} for source in group}
        known = any(told.values())
        if len(group) < (2 if known else _FEW) or sorted(group.values()) != list(range(len(group))):
            continue
        if any(of - {group[source]} for source, of in told.items()) or (not known and _NO_RANKS.search(shape.rpartition("/")[2])):
            continue
        found |= group
    return found


def _hosts(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, str]:
    """Return the host that each file is called by, where several are called so.

    >>> _hosts({"x/gpu-1.err": [], "x/gpu-2.err": [], "x/notes.txt": []})
    {'x/gpu-1.err': 'gpu-1', 'x/gpu-2.err': 'gpu-2'}
    """
    named = {source: _NODE.match(_SUFFIX.sub("", source.rpartition("/")[2])) for source in lines}
    found = {source: match["host"] for source, match in named.items() if match is not None}
    return found if len(set(found.values())) > 1 else {}
