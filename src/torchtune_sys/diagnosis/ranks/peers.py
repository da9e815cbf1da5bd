"""Find who is gone or late from what the others say: of ranks that only tell that a peer is, the one that tells nothing is it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, OF_A_TEST, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, is_raised, unbroken
from torchtune_sys.model.patterns import pattern

_SAYS = pattern(
    r"(?P<gone>gloo/transport/\w{1,20}/\w{1,20}\.cc:\d{1,5}\] .{0,120}(?:Connection closed by peer|Connection reset by peer|Broken pipe)"
    r"|NCCL WARN .{0,60}Connection closed by remote peer (?P<peer>[\w.:-]{1,100})<)"
    r"|gloo/transport/\w{1,20}/\w{1,20}\.cc:\d{1,5}\] Timed out waiting \d{1,9}ms for"
)
_MARKS = ("gloo/transport", "closed by remote peer")
_TOLD = pattern(
    r"^[\w.<>]{0,80}(?<!ChildFailed)(?:Error|Exception)\b(?!.{0,300}(?:gloo/|NCCL|[Cc]onnection (?:closed|reset)|Broken pipe|(?<!DataLoader )[Tt]imed out|monitoredBarrier))"
    r"|exitcode {0,8}: -(?!(?:15|6)\b)|\bKilled\b|Fatal(?! Python error: Aborted)|Watchdog|death signal|failed to pass monitoredBarrier"
    r"|enforce fail at .{0,160}(?:preamble|nbytes|expected)|[Cc]ollective mismatch|Mismatched collective|Detected mismatch between collectives|Message truncated : received"
)
"""An error of another kind, how a process ended, or that the ranks' calls do not fit each other: who has it failed first."""
_ENDED = pattern(r"exitcode {0,8}: -15\b")
_CALL = pattern(r'distributed_c10d\.py", line \d{1,7}, in (?P<name>\w{1,60})')
_WORLD = pattern(r"(?:world[_ ]size|nranks|WORLD_SIZE|number of ranks)[\"']?[ :=]{1,4}(\d{1,6})\b")
_LONGEST, _MOST = 4000, 1 << 12


class _Said(msgspec.Struct, kw_only=True):
    """What is said of peers, and by whom."""

    source: str
    line: LogLine
    is_late: bool = False
    """Somebody waited until the time was over: who ends closes its connections at once."""
    speakers: set[int] = set()
    ended: set[int] = set()
    """Those that torchrun ended: they were alive."""
    last: dict[int, LogLine] = {}
    """Of each rank."""
    calls: dict[int, str] = {}
    """The collective that each was in."""
    peers: set[str] = set()
    hosts: set[str] = set()
    """Who they say is gone, and where they are."""


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield that a rank is gone or does not come, where nobody says another thing; with its number where only one of those that are known says nothing."""
    said = _said(lines)
    if said is None or any(_tells(line, begun, said.speakers) for part in lines.values() for line, begun in _telling(part)):
        return
    silent = _silent(said, world(lines)) or _elsewhere(said)
    peers = said.peers - said.hosts
    host = said.last[silent[0]].host if len(silent) == 1 and silent[0] in said.last else ""
    yield Symptom(
        source=said.source,
        line=replace(said.line, rank=None, host=host or (next(iter(peers)) if len(peers) == 1 else "")),
        candidates=_candidates(said, silent),
        program="gloo" if "gloo" in said.line.text else "NCCL",
        ranks=silent,
        words="gloo/transport/tcp/pair.cc, unbound_buffer.cc; NCCL src/misc/socket.cc",
        merely_told=not silent,
    )


def tells_of_peer(text: str) -> bool:
    """Return whether a line says that a peer is gone or late: another rank's error comes first."""
    return any(mark in text for mark in _MARKS) and _SAYS.search(text[:_LONGEST]) is not None


def speakers(lines: Mapping[str, Sequence[LogLine]]) -> frozenset[int]:
    """Return the ranks that say that a peer is gone or late: what ends them later follows from that."""
    said = _said(lines)
    return frozenset(said.speakers) if said is not None else frozenset()


def gone(lines: Mapping[str, Sequence[LogLine]]) -> tuple[int, ...]:
    """Return the rank that alone says nothing, while the others lost a peer; none where several say nothing."""
    said = _said(lines)
    silent = () if said is None or said.is_late else _silent(said, world(lines))
    return silent if len(silent) == 1 else ()


def at_the_one_named(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Return the symptoms; where several hosts name one peer in a failed transfer, and it names none, they are the peer's and not theirs."""
    named = [
        (host.partition(".")[0], found[1].partition(".")[0])
        for each in symptoms
        if (host := each.line.host) and (found := _COMPLETION.search(each.line.text[:_LONGEST])) is not None
    ]
    by_peer = {peer: {host for host, other in named if other == peer} for _, peer in named}
    alone = {peer for peer, hosts in by_peer.items() if len(hosts) >= _TWO and peer not in {host for host, _ in named}}
    return [
        replace(each, line=replace(each.line, host=found[1], rank=None), ranks=())
        if (found := _COMPLETION.search(each.line.text[:_LONGEST])) is not None and found[1].partition(".")[0] in alone
        else each
        for each in symptoms
    ]


_COMPLETION = pattern(r"Got completion from peer ([A-Za-z][\w.-]{0,99})<")
"""Of NCCL, src/transport/net_ib.cc; an address is not known by its host."""


def own_errors(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[tuple[str, LogLine]]:
    """Yield the errors of ranks that are not of a peer or of a connection, each with its source."""
    for source, part in lines.items():
        for line, begun in _telling(part):
            if line.rank is not None and line.text.startswith(begun) and not _OF_CONNECTION.search(line.text[:_LONGEST]):
                yield source, line


def _telling(lines: Sequence[LogLine]) -> Iterator[tuple[LogLine, str]]:
    """Yield the lines that say more than that a peer is gone, each with the words that do."""
    before: dict[int | None, LogLine] = {}
    for line in unbroken(lines):
        found = _TOLD.search(line.text[:_LONGEST])
        if found is not None:
            yield line, found[0]
        elif is_raised(line, before.get(line.rank)) and not _NAMED_ERROR.match(line.text[:_LONGEST]):
            yield line, line.text
        before[line.rank] = line


_NAMED_ERROR = pattern(r"[\w.<>]{0,80}(?:Error|Exception)\b")
_OF_CONNECTION = pattern(
    r"(?i)Dist(?:Network|Store|Backend)Error|socket|connect|rendezvous|TCPStore|got 0 bytes|address|timeout|host"
)


def _tells(line: LogLine, begun: str, waited: set[int]) -> bool:
    """Whether it says more than that a peer is gone; how a process ended that said so before does not."""
    return not (begun.startswith("exitcode") and line.rank in waited)


def _candidates(said: _Said, silent: Sequence[int]) -> tuple[Candidate, ...]:
    if not said.is_late:
        return (Candidate(cause="rank-killed", weight=POSSIBLE),)
    if silent or len(said.hosts) < 2:
        return (Candidate(cause="rank-hung", weight=LIKELY if silent else POSSIBLE),)
    return tuple(Candidate(cause=cause, weight=POSSIBLE) for cause in ("port-dropped", "link-down", "rank-hung"))


def _said(lines: Mapping[str, Sequence[LogLine]]) -> _Said | None:
    said: _Said | None = None
    ranks: dict[int, LogLine] = {}
    ended: set[int] = set()
    calls: dict[int, str] = {}
    for source, part in lines.items():
        for line in unbroken(part):
            words = line.text[:_LONGEST]
            if line.rank is not None:
                ranks[line.rank] = line
                ended |= {line.rank} if _ENDED.search(words) else set()
                if "distributed_c10d.py" in line.text and (call := _CALL.search(line.text[:_LONGEST])) is not None:
                    calls[line.rank] = call["name"]
            if not tells_of_peer(words) or OF_A_TEST.search(words) or (found := _SAYS.search(words)) is None:
                continue
            said = said or _Said(source=source, line=line)
            said.is_late |= found["gone"] is None
            said.peers |= {found["peer"].partition(".")[0]} if found["peer"] else set()
            said.hosts |= {line.host.partition(".")[0]} if line.host else set()
            said.speakers |= {line.rank} if line.rank is not None else set()
    if said is not None:
        said.last, said.ended, said.calls = ranks, ended, calls
    return said


def _elsewhere(said: _Said) -> tuple[int, ...]:
    """Return the one rank that waits in another collective than all others."""
    calls = Counter(said.calls.get(rank, "") for rank in said.speakers)
    if not said.is_late or len(calls) != _TWO or min(calls.values()) > 1 or len(said.speakers) == _TWO:
        return ()
    odd = min(calls, key=lambda call: calls[call])
    return tuple(rank for rank in said.speakers if said.calls.get(rank, "") == odd)


_TWO = 2


def world(lines: Mapping[str, Sequence[LogLine]]) -> int:
    """Return how many ranks the job says that it has; 0 where it does not."""
    return max((_world(line.text) for part in lines.values() for line in part), default=0)


def _world(text: str) -> int:
    if "orld" not in text and "nranks" not in text and "WORLD_SIZE" not in text:
        return 0
    return max((int(size) for size in _WORLD.findall(text[:_LONGEST])), default=0)


def _silent(said: _Said, size: int) -> tuple[int, ...]:
    """Return the ranks that say nothing of others; none where so many do that it tells nothing."""
    known = max(size, max(said.last, default=-1) + 1)
    if not said.speakers or known > _MOST:
        return ()
    others = said.speakers if said.is_late else said.speakers | said.ended
    silent = tuple(rank for rank in range(known) if rank not in others)
    one_of_two = known == _TWO and len(silent) == len(said.speakers) == 1
    return silent if one_of_two or len(silent) * 2 <= len(said.speakers) else ()
