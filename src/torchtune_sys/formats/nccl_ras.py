"""Parse what NCCL's RAS client prints (``ncclras``, text and JSON): ranks that are behind the others, and ranks that do not answer.

NCCL src/ras/client_support.cc. Both forms are read line by line, so that a JSON document that is not well formed (2.28.9), one that was
cut, and one among other lines tell the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class RasRank(msgspec.Struct, kw_only=True):
    rank: int = -1
    """-1: not told."""
    host: str = ""
    pid: int = -1
    line: int = 0
    """Where it stands among the lines, counted from 0."""
    operations: dict[str, int] = {}
    """How many collectives of each kind it has launched."""
    is_missing: bool = False
    is_dead: bool = False


class RasCommunicator(msgspec.Struct, kw_only=True):
    name: str
    ranks: list[RasRank] = []

    def missing(self) -> list[RasRank]:
        return [rank for rank in self.ranks if rank.is_missing]

    def behind(self) -> tuple[list[RasRank], int]:
        """Return the ranks that launched fewer operations than the others, and by how many the furthest of them is behind."""
        most: dict[str, int] = {}
        for rank in self.ranks:
            for kind, count in rank.operations.items():
                most[kind] = max(most.get(kind, 0), count)
        gaps: dict[int, int] = {}
        for at, rank in enumerate(self.ranks):
            gap = max((most[kind] - count for kind, count in rank.operations.items()), default=0)
            if gap > 0:
                gaps[at] = gap
        return [self.ranks[at] for at in sorted(gaps) if self.ranks[at].rank >= 0], max(gaps.values(), default=0)


_HEADING = re.compile(r"^\s*(#\d+-\d+) \([0-9a-fx:]+\) (?:MISMATCH|INCOMPLETE|ERROR|TIMEOUT)")
_KIND = re.compile(r"ranks have different (\w+) operation counts")
_COUNT = re.compile(
    r"^\s*(?:Rank (?P<rank>\d{1,7}) has|\d{1,7} ranks? (?:have|has)) launched up to operation (?P<count>\d{1,15})"
)
_RANK = re.compile(r"\bRank (?P<rank>\d{1,7})\b.{0,80}?\bprocess (?P<pid>\d{1,9}) on node (?P<host>\S{1,64})")
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d{1,9}) on node (?P<host>\S{1,64}) managing GPU")
_GONE = re.compile(r"Missing communicator data from|considered dead|unreachable via the RAS network")
_FIELD = re.compile(r'^\s*"(?P<name>\w{1,40})": ?(?:"(?P<text>[^"]{0,200})"|(?P<number>-?\d{1,15})|(?P<flag>true|false))?')
_NO_COUNTS = frozenset(("pid", "cuda_dev", "nvml_dev", "init_state", "async_error", "size", "ranks_count", "missing_ranks_count"))


def communicators(lines: Iterable[str]) -> list[RasCommunicator]:
    """Return the communicators of which the lines report something wrong, or (JSON) all.

    >>> found = communicators(['#0-0 (78db921d1c117b4a) MISMATCH', '  Communicator ranks have different AllReduce operation counts',
    ...     '  7 ranks have launched up to operation 64',
    ...     '  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1'])
    >>> late, gap = found[0].behind()
    >>> [(rank.rank, rank.host) for rank in late], gap
    ([(7, 'node1')], 4)
    """
    found: list[RasCommunicator] = []
    reader = _Reader(found)
    for number, line in enumerate(lines):
        reader.take(number, line)
    return found


class _Reader:
    """Where in a report the next line stands."""

    def __init__(self, found: list[RasCommunicator]) -> None:
        self._found = found
        self._kind, self._count = "collective", -1
        self._gone = self._in_json = False

    def take(self, number: int, line: str) -> None:
        if heading := _HEADING.match(line):
            self._open(heading[1], in_json=False)
        elif field := _FIELD.match(line):
            self._field(number, field)
        elif self._found and not self._in_json:
            self._text(number, line)

    def _open(self, name: str, *, in_json: bool) -> None:
        self._found.append(RasCommunicator(name=name, ranks=[]))
        self._kind, self._count, self._gone, self._in_json = "collective", -1, False, in_json

    def _text(self, number: int, line: str) -> None:
        if kind := _KIND.search(line):
            self._kind = kind[1]
        self._gone = self._gone or _GONE.search(line) is not None
        ranks = self._found[-1].ranks
        if count := _COUNT.match(line):
            self._count, self._gone = int(count["count"]), False
            if count["rank"] is None:
                ranks.append(RasRank(line=number, operations={self._kind: self._count}))
        if place := _RANK.search(line) or _PROCESS.match(line):
            fields = place.groupdict()
            rank = RasRank(
                rank=int(fields.get("rank") or -1), host=place["host"].rstrip(",;"), pid=int(place["pid"]), line=number
            )
            if self._gone:
                rank.is_missing, rank.is_dead = True, "dead" in line
            elif self._count >= 0:
                rank.operations = {self._kind: self._count}
            ranks.append(rank)

    def _field(self, number: int, field: re.Match[str]) -> None:
        name = field["name"]
        if name == "hash":
            self._open(field["text"] or "", in_json=True)
        elif not self._in_json:
            return
        elif name == "missing_ranks":
            self._gone = True
        elif name == "rank" and field["number"]:
            self._found[-1].ranks.append(RasRank(rank=int(field["number"]), line=number, operations={}, is_missing=self._gone))
        elif self._found[-1].ranks:
            _tell(self._found[-1].ranks[-1], name, field)


def _tell(rank: RasRank, name: str, field: re.Match[str]) -> None:
    if name == "host":
        rank.host = field["text"] or ""
    elif name == "pid":
        rank.pid = int(field["number"] or -1)
    elif name == "considered_dead":
        rank.is_dead = field["flag"] == "true"
    elif field["number"] and name not in _NO_COUNTS:
        rank.operations = {**rank.operations, name: int(field["number"])}
