"""Tell how processes ended by themselves from how others ended them: a launcher's kill, and the abort of a rank that lost its peer, explain nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from torchtune_sys.diagnosis.ranks import peers
from torchtune_sys.diagnosis.symptoms import FOLLOWS, LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.diagnosis import Confidence, NamedCause, Unexplained
from torchtune_sys.model.patterns import pattern

_FORCED = pattern(r"Unable to shutdown process (?P<pid>\d{1,9}) via \S{1,40}, forcefully exiting via")
"""torch/distributed/elastic/multiprocessing/api.py: the process did not end by SIGTERM, so it is killed."""
_PID = pattern(r"\bpid: (?P<pid>\d{1,9})\)|received by PID (?P<by>\d{1,9})\b")
_BY_SIGNAL = pattern(r"exitcode {0,8}: ?-\d|[Ss]ignal \d{1,2} \(SIG|exited on signal")
_BY_DEATH = frozenset(("rank-killed", "host-memory-oom", "dev-shm-too-small", "cpu-lacks-avx"))
_EXITED = pattern(
    r"exitcode {0,8}: [1-9]|: task \d{1,6}: Exited with exit code|^\s*Process name: \[|MPI_ABORT was invoked on rank|\bAbort\(-?\d{1,12}\)|^Process \d{1,6} exit with status"
    r"|^= {1,4}EXIT (?:CODE|STATUS): [1-9]|has exited due to process rank \d|\] \*\*\* reported by process \["
)
"""How launchers say which process ended first: the others they end themselves."""
_LONGEST = 400


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the one process of several that did not end when torchrun asked it to: it stood still before."""
    forced = _forced(lines)
    if len(forced) != 1:
        return
    (pid, (source, line)), *_ = forced.items()
    of = next((each for part in lines.values() for each in part if each.rank is not None and pid in _pids(each)), None)
    yield Symptom(
        source=source,
        line=line,
        candidates=(Candidate(cause="rank-hung", weight=LIKELY), Candidate(cause="rank-stopped", weight=POSSIBLE)),
        program="torchrun",
        ranks=(of.rank,) if of is not None and of.rank is not None else (),
        words="torch/distributed/elastic/multiprocessing/api.py",
    )


def without_consequences(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> list[Symptom]:
    """Return the symptoms, those of which another process is the cause as consequences."""
    deaths = [each for each in symptoms if _is_death(each)]
    followed: set[int] = set()
    if deaths:
        forced, waited = _forced(lines), peers.speakers(lines)
        ended_later = forced.keys() | _after_the_first(lines)
        followed = {id(each) for each in deaths if each.line.rank in waited or _pids(each.line) & ended_later}
    alone = [each for each in symptoms if _is_of_peers(each)]
    if alone and len(followed) == len(deaths):
        known = {(each.source, each.line.number) for each in symptoms}
        own = [(source, line) for source, line in peers.own_errors(lines) if (source, line.number) not in known]
        followed |= {id(each) for each in alone if any(_comes_first(source, line, each) for source, line in own)}
    elif alone:
        followed |= {id(each) for each in alone}
    found = [
        replace(each, candidates=(), consequence=True) if id(each) in followed else _for_want_of(each, lines) for each in symptoms
    ]
    found = _from_outside(found, lines)
    return (
        [replace(each, candidates=()) if _CRASHED.search(each.line.text[:_LONGEST]) else each for each in found]
        if _all_crashed(deaths, lines)
        else found
    )


_SIGNALLED = pattern(r"Received (?:Signals\.)?(?:SIG)?(?:15|TERM) death signal")
_MEETING = pattern(r'elastic/rendezvous/\w{1,40}\.py", line \d{1,6}, in ')
_AT_END = pattern(r'elastic/agent/server/api\.py", line \d{1,6}, in _exit_barrier')
"""Frames of torchrun's stack when it got the signal: its agent waited for those of other nodes, before the ranks began or after its own ended."""
_RAN = pattern(r"(?i)\b(?:step|iter|iteration|epoch|batch|loss)\b.{0,20}\d|\d ?(?:it/s|s/it|samples/s|tokens/s)")


def _from_outside(symptoms: list[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> list[Symptom]:
    """Return the symptoms, a signal from outside that ended agents as what it was: where they waited for one another, or their ranks had stood still,
    whoever sent it had seen that nothing went on; where a process had failed before, it follows."""
    signals = [each for each in symptoms if each.candidates and _SIGNALLED.search(each.line.text[:_LONGEST])]
    if not signals:
        return symptoms
    late = [each for each in signals if any(_FAILED.search(line.text[:_LONGEST]) for line in _above(each, lines))]
    if late:
        return [replace(each, candidates=(), consequence=True) if each in late else each for each in symptoms]
    frames = [line.text[:_LONGEST] for part in lines.values() for line in part if "/elastic/" in line.text]
    agents = {(each.source, each.line.host, each.line.pid) for each in signals}
    if any(map(_MEETING.search, frames)):
        waited_for = tuple(Candidate(cause=cause, weight=POSSIBLE) for cause in ("node-never-came", "ranks-missing"))
    elif any(map(_AT_END.search, frames)):
        waited_for = (Candidate(cause="rank-hung", weight=POSSIBLE),)
    elif len(agents) > 1 and not any(_RAN.search(line.text[:_LONGEST]) for part in lines.values() for line in part):
        waited_for = ()
    elif all(_stood_still(list(_above(each, lines)), each.line) for each in signals):
        waited_for = tuple(Candidate(cause=cause, weight=POSSIBLE) for cause in ("rank-hung", "job-preempted"))
    else:
        return symptoms
    return [replace(each, candidates=waited_for) if each in signals else each for each in symptoms]


def _above(symptom: Symptom, lines: Mapping[str, Sequence[LogLine]]) -> Iterator[LogLine]:
    return (line for line in lines.get(symptom.source, ()) if line.number < symptom.line.number)


_FAILED = pattern(r"exitcode {0,8}: ?-?[1-9]|^[\w.]{0,80}(?:Error|Exception): (?!Process \d)|NCCL WARN|CUDA error")
_CLOCK = pattern(r"(?<![\d:])(\d\d):(\d\d):(\d\d)(?![\d:])")
_STEPS, _STILL_S, _STILL_STEPS = 3, 120, 10


def _stood_still(before: Sequence[LogLine], signal: LogLine) -> bool:
    """Whether the last of several steps was much longer ago than steps take: the job had stopped before it was ended."""
    steps = [time for line in before if _RAN.search(line.text[:_LONGEST]) and (time := _clock(line)) is not None]
    end = _clock(signal)
    if len(steps) < _STEPS or end is None:
        return False
    longest = max((later - earlier) % _DAY_S for earlier, later in pairwise(steps))
    return (end - steps[-1]) % _DAY_S > max(_STILL_S, _STILL_STEPS * longest)


_DAY_S = 86400


def _clock(line: LogLine) -> int | None:
    found = _CLOCK.search(line.printed[:_LONGEST])
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) if found is not None else None


_KILLED_BY = ("rank-killed", "host-memory-oom")
_MEMORY = pattern(
    r"(?i)\b(?:RAM|OOM|swap|VmRSS|anon-rss)\b|\bMem ?:|\bMemoryError\b|\boom[-_ ]?kill|(?<!cuda )(?<!hip )\bout[ -]of[ -](?:\w{3,6} )?memory|--mem\b"
    r"|\b(?:host|system|cpu|main|physical|enough|more|less|much|free|available|all|insufficient|of|low) memory\b"
    r"|\bmemory (?:usage|use|limits?|leaks?|consum\w{1,8}|pressure|issues?|problems?|errors?|runs?|ran|is|was|grows?|exceeded|requirements?|cgroup)\b|内存|メモリ"
)
"""Somebody or something speaks of main memory: then it is the likelier reason for SIGKILL."""


def _for_want_of(symptom: Symptom, lines: Mapping[str, Sequence[LogLine]]) -> Symptom:
    """Return what SIGKILL ended with memory as its first cause where the text speaks of memory."""
    is_open = tuple(each.cause for each in symptom.candidates) == _KILLED_BY
    speaks = is_open and any(_MEMORY.search(line.text[:_LONGEST]) for part in lines.values() for line in part)
    return replace(symptom, candidates=symptom.candidates[::-1]) if speaks else symptom


_SUMMARY = pattern(
    r"^\s*(?:(?P<root>Root Cause \(first observed failure\):)|time {1,8}: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$|exitcode {1,8}: (?P<code>-?\d{1,3}) {1,2}\(pid: (?P<pid>\d{1,9})\))"
)
"""torch/distributed/elastic/multiprocessing/errors/__init__.py: the failures, and last the one that was seen first."""


def _after_the_first(lines: Mapping[str, Sequence[LogLine]]) -> frozenset[str]:
    """Return the processes that were killed later than the one that ended by itself: torchrun kills who does not end when it is asked to."""
    found: set[str] = set()
    for part in lines.values():
        killed: dict[str, str] = {}
        root, time = False, ""
        for line in part:
            told = _SUMMARY.match(line.text[:_LONGEST]) if line.text.lstrip()[:4] in _SUMMARY_WORDS else None
            if told is None:
                continue
            root, time = root or bool(told["root"]), told["time"] or time
            if told["code"] == "-9":
                killed[told["pid"]] = time
            if root and told["code"]:
                found |= {pid for pid, when in killed.items() if when > time and not told["code"].startswith("-")}
                killed, root = {}, False
    return frozenset(found)


_SUMMARY_WORDS = ("Root", "time", "exit")
_CRASHED = pattern(r"exitcode {0,8}: ?-(?:11|8)\b|[Ss]ignal (?:11|8)\b")


def _all_crashed(deaths: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> bool:
    """Whether each rank of several crashed by itself: then the program is at fault, not one rank or its host."""
    ranks = {line.rank for part in lines.values() for line in part if line.rank is not None}
    crashed = {each.line.rank for each in deaths if _CRASHED.search(each.line.text[:_LONGEST])}
    return len(ranks) > 1 and ranks <= crashed


_OF_PEERS = FOLLOWS | {
    "hostname-resolves-to-loopback",
    "gloo-wrong-interface",
    "nccl-wrong-interface",
    "link-down",
    "network-partition",
}
"""What a rank can say of another one that it does not reach: where that one has failed by itself, this follows."""


def _is_of_peers(symptom: Symptom) -> bool:
    return (
        bool(symptom.candidates)
        and not _is_death(symptom)
        and all(each.weight == POSSIBLE and each.cause in _OF_PEERS for each in symptom.candidates)
    )


def _comes_first(source: str, line: LogLine, symptom: Symptom) -> bool:
    """Whether another rank's error is not told after it; of a line without a rank that is known in the same text only."""
    is_before = line.number < symptom.line.number if source == symptom.source else symptom.line.rank is not None
    return is_before and line.rank != symptom.line.rank


def first_failed(lines: Mapping[str, Sequence[LogLine]]) -> LogLine | None:
    """Return what a launcher says of the one process that failed; None where it names several."""
    said = [line for part in lines.values() for line in part if line.rank is not None and _EXITED.search(line.text[:_LONGEST])]
    alone = len({line.rank for line in said}) == 1 and said[0].rank not in peers.speakers(lines)
    return said[0] if alone else None


def of_process(
    named: Sequence[NamedCause], unknown: Sequence[Unexplained], lines: Mapping[str, Sequence[LogLine]]
) -> tuple[tuple[NamedCause, ...], tuple[Unexplained, ...]]:
    """Return both; where no line tells whose the first one is, a launcher does."""
    named = [_of_another(each, lines) for each in named]
    told: list[NamedCause | Unexplained] = [*named, *unknown]
    if any(each.ranks for each in told):
        return tuple(named), tuple(unknown)
    line = first_failed(lines)
    ranks: tuple[int, ...] = (line.rank,) if line is not None and line.rank is not None else ()
    hosts = (line.host,) if line is not None and line.host else _lost(lines)
    if not ranks and named and named[0].cause in _BY_DEATH:
        ranks = _killed(named[0], lines) or peers.gone(lines)
    first = tuple(replace(each, ranks=ranks, hosts=each.hosts or hosts) for each in named[:1])
    others = tuple(replace(each, ranks=ranks, hosts=each.hosts or hosts) for each in (() if named else unknown[:1]))
    return first + tuple(named[1:]), others + tuple(unknown[len(others) :])


def _lost(lines: Mapping[str, Sequence[LogLine]]) -> tuple[str, ...]:
    """Return the one node whose daemon Open MPI lost."""
    hosts = {line.host for part in lines.values() for line in part if line.host and "Remote daemon:" in line.text[:_LONGEST]}
    return tuple(hosts) if len(hosts) == 1 else ()


_KILLED = pattern(r"\bKilled process (\d{1,9})\b|\boom-kill:.{0,300}\bpid=(\d{1,9})\b")
"""Linux mm/oom_kill.c."""


def _killed(cause: NamedCause, lines: Mapping[str, Sequence[LogLine]]) -> tuple[int, ...]:
    """Return the rank whose process a kernel's log says was killed, where another line tells that process and the rank."""
    pids = {pid for quote in cause.evidence for found in _KILLED.finditer(quote.text) for pid in found.groups() if pid}
    ranks = {
        line.rank
        for part in (lines.values() if pids else ())
        for line in part
        if line.rank is not None and (str(line.pid) in pids or _pids(line) & pids)
    }
    return tuple(ranks) if len(ranks) == 1 else ()


_VICTIM = pattern(r"\bKilled process (?P<pid>\d{1,9}),? \((?P<name>[^)]{1,40})\)")
_WORKER = pattern(r"DataLoader worker \(pid (?P<pid>\d{1,9})\) is killed by signal: Killed")
_OF_TRAINING = pattern(r"python|^pt_|^torchrun|^(?:data)?loader|^ray::")
"""How Linux calls Python, and torch and Ray what they start: a container counts processes from 1, so their numbers need not be those of the kernel's log."""


def _of_another(cause: NamedCause, lines: Mapping[str, Sequence[LogLine]]) -> NamedCause:
    """Return memory as the likely cause where the kernel's log has the kills of other programs only, not that of the process that was lost."""
    if cause.cause != "host-memory-oom" or cause.confidence is not Confidence.CERTAIN:
        return cause
    told = [line.text[:_LONGEST] for part in lines.values() for line in part if "illed" in line.text]
    victims = [found for text in told if (found := _VICTIM.search(text)) is not None]
    lost = {found["pid"] for text in told if (found := _WORKER.search(text)) is not None}
    are_others = bool(victims and lost) and not any(each["pid"] in lost or _OF_TRAINING.search(each["name"]) for each in victims)
    return replace(cause, confidence=Confidence.LIKELY) if are_others else cause


def _is_death(symptom: Symptom) -> bool:
    return any(each.cause in _BY_DEATH for each in symptom.candidates) and bool(_BY_SIGNAL.search(symptom.line.text[:_LONGEST]))


def _pids(line: LogLine) -> set[str]:
    return {found["pid"] or found["by"] for found in _PID.finditer(line.text[:_LONGEST])}


def _forced(lines: Mapping[str, Sequence[LogLine]]) -> dict[str, tuple[str, LogLine]]:
    return {
        found["pid"]: (source, line)
        for source, part in lines.items()
        for line in part
        if "Unable to shutdown" in line.text and (found := _FORCED.search(line.text[:_LONGEST]))
    }
