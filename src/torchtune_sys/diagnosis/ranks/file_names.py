"""Tell ranks and hosts by the names of several files: those that are called alike but for a number that is the rank's, or are called like nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_NUMBER = pattern(r"\d{1,6}(?=\D*$)")
_NO_RANKS = pattern(r"(?i)node|host|server|machine|gpu|nid|rack|part|chunk|dmesg|attempt|step|epoch|run|job|restart|day")
"""What numbers count beside ranks."""
_NODE = pattern(
    r"(?i)^(?:.{0,40}?[_.-])??(?P<host>(?:(?:gpu|compute|dgx|hgx)-)?(?:node|host|server|machine|gpu|dgx|hgx|compute|worker|master|nid|cn)[-_]?\d[\w-]{0,40})$"
)
_SUFFIX = pattern(r"(?:\.(?:log|out|err|txt|gz|xz|zst|bz2|dmesg|kern|journal|syslog|messages))+$")
_KERNEL = pattern(r"(?i)dmesg|kern|journal|syslog|messages")
_FEW = 3


def attributed(
    lines: Mapping[str, Sequence[LogLine]], symptoms: Sequence[Symptom]
) -> tuple[dict[str, Sequence[LogLine]], list[Symptom]]:
    """Return both with the rank or the host of their file, where their own lines do not tell one."""
    ranks, hosts, pods = numbered(lines), _hosts(lines), _pods(lines) or _of_one_each(lines)
    if not ranks and not hosts and not pods:
        return dict(lines), list(symptoms)

    def of(source: str, line: LogLine) -> LogLine:
        rank = ranks.get(source, pods.get(line.host)) if line.rank is None else line.rank
        host = line.host or hosts.get(source, "")
        return line if (rank, host) == (line.rank, line.host) else replace(line, rank=rank, host=host)

    return (
        {source: tuple(of(source, line) for line in part) for source, part in lines.items()},
        [replace(each, line=of(each.source, each.line)) for each in symptoms],
    )


def numbered(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, int]:
    """Return the number in the name of each file that lies beside others from 0 on, where no line belongs to another rank.

    >>> line = LogLine(number=1, text="x", printed="x")
    >>> numbered({"a/train-0.out": [line], "a/train-1.out": [], "a/train-2.out": [line], "b/x.log": [line]})
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


_WORLD = pattern(r"(?:[Ww]orld[_ ]?[Ss]ize|WORLD_SIZE|nranks|size)[\"']?[ =:]{1,3}(\d{1,6})\b|\b\d{1,6}/(\d{1,6}) clients joined")
_INDEX = pattern(r"^(.{1,200}[a-z]-)(\d{1,5})$")


def _pods(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, int]:
    """Return the rank of each pod or host whose name ends in its index, where no line tells a rank and the job has about as many ranks as there are pods.

    >>> told = [LogLine(number=1, text="Timed out after 13 seconds waiting for clients. 2/3 clients joined.", printed="", host=f"llm-worker-{at}") for at in (0, 2)]
    >>> _pods({"x": told})
    {'llm-worker-0': 0, 'llm-worker-2': 2}
    """
    named = {line.host for part in lines.values() for line in part if line.host}
    indexed = {name: found for name in named if (found := _INDEX.match(name)) is not None}
    if not indexed or len({found[1] for found in indexed.values()}) > 1:
        return {}
    if any(line.rank is not None for part in lines.values() for line in part):
        return {}
    sizes = [
        int(size)
        for part in lines.values()
        for line in part
        for told in _WORLD.findall(line.text[:_LONGEST])
        for size in told
        if size
    ]
    ranks = {name: int(found[2]) for name, found in indexed.items()}
    world = max(sizes, default=0)
    return dict(sorted(ranks.items())) if max(ranks.values()) < world < 2 * len(ranks) else {}


_LONGEST = 4000


def _of_one_each(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, int]:
    """Return the rank of each host where some of its lines tell it, and each host has one, from 0 on.

    >>> _of_one_each({"x": [LogLine(number=1, text="", printed="", host=f"w{at}", rank=at) for at in range(3)]})
    {'w0': 0, 'w1': 1, 'w2': 2}
    """
    told: defaultdict[str, set[int]] = defaultdict(set)
    for part in lines.values():
        for line in part:
            if line.host and line.rank is not None:
                told[line.host].add(line.rank)
    ranks = {host: min(of) for host, of in told.items() if len(of) == 1}
    is_each = len(ranks) == len(told) >= _FEW and sorted(ranks.values()) == list(range(len(ranks)))
    return ranks if is_each else {}


def _hosts(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, str]:
    """Return the host that each file is called by, where several are called so.

    >>> _hosts({"x/gpu-1.err": [], "x/gpu-2.err": [], "x/notes.txt": []})
    {'x/gpu-1.err': 'gpu-1', 'x/gpu-2.err': 'gpu-2'}
    """
    named = {source: _NODE.match(_SUFFIX.sub("", source.rpartition("/")[2])) for source in lines}
    found = {source: match["host"] for source, match in named.items() if match is not None}
    several = len(set(found.values())) > 1
    return {source: host for source, host in found.items() if several or _KERNEL.search(source.rpartition("/")[2])}
