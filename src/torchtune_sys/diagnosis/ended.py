"""Tell how processes ended by themselves from how others ended them: a launcher's kill, and the abort of a rank that lost its peer, explain nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.lines import LogLine
from torchtune_sys.diagnosis.ranks import peers
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.model.diagnosis import NamedCause, Unexplained

_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d{1,9}) via \S{1,40}, forcefully exiting via")
"""torch/distributed/elastic/multiprocessing/api.py: the process did not end by SIGTERM, so it is killed."""
_PID = re.compile(r"\bpid: (?P<pid>\d{1,9})\)|received by PID (?P<by>\d{1,9})\b")
_BY_SIGNAL = re.compile(r"exitcode {0,8}: ?-\d|[Ss]ignal \d{1,2} \(SIG|exited on signal")
_BY_DEATH = frozenset(("rank-killed", "host-memory-oom", "dev-shm-too-small", "cpu-lacks-avx"))
_EXITED = re.compile(
    r"exitcode {0,8}: [1-9]|: task \d{1,6}: Exited with exit code|^\s*Process name: \[|MPI_ABORT was invoked on rank|\bAbort\(-?\d{1,12}\)|^Process \d{1,6} exit with status"
    r"|^= {1,4}EXIT (?:CODE|STATUS): [1-9]"
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
    if not deaths:
        return list(symptoms)
    forced, waited = _forced(lines), peers.speakers(lines)
    followed = {id(each) for each in deaths if each.line.rank in waited or _pids(each.line) & forced.keys()}
    return [replace(each, candidates=(), consequence=True) if id(each) in followed else each for each in symptoms]


def first_failed(lines: Mapping[str, Sequence[LogLine]]) -> LogLine | None:
    """Return what a launcher says of the one process that failed; None where it names several."""
    said = [line for part in lines.values() for line in part if line.rank is not None and _EXITED.search(line.text[:_LONGEST])]
    alone = len({line.rank for line in said}) == 1 and said[0].rank not in peers.speakers(lines)
    return said[0] if alone else None


def of_process(
    named: Sequence[NamedCause], unknown: Sequence[Unexplained], lines: Mapping[str, Sequence[LogLine]]
) -> tuple[tuple[NamedCause, ...], tuple[Unexplained, ...]]:
    """Return both; where no line tells whose the first one is, a launcher does."""
    told: list[NamedCause | Unexplained] = [*named, *unknown]
    line = first_failed(lines) if not any(each.ranks for each in told) else None
    if line is None or line.rank is None:
        return tuple(named), tuple(unknown)
    ranks, hosts = (line.rank,), (line.host,) if line.host else ()
    first = tuple(replace(each, ranks=ranks, hosts=each.hosts or hosts) for each in named[:1])
    others = tuple(replace(each, ranks=ranks, hosts=each.hosts or hosts) for each in (() if named else unknown[:1]))
    return first + tuple(named[1:]), others + tuple(unknown[len(others) :])


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
