"""Find the ranks that failed, that only waited, and that were absent: from timeouts, keys, stacks and dumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from torchtune_sys.diagnosis.ranks import file_names
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, joined
from torchtune_sys.formats.flight_recorder import RankDump, absences
from torchtune_sys.knowledge.sentences import tells_of_wait
from torchtune_sys.model.patterns import pattern


def of_dumps(dumps: Sequence[RankDump]) -> Iterator[Symptom]:
    """Yield the ranks that did not come to a collective that the others are in."""
    for absence in absences(dumps):
        late = absence.missing or absence.silent
        how = f"called {absence.differs} instead" if absence.differs else "did not join" if absence.missing else "left no dump"
        at = f" at {absence.frame}" if absence.frame else ""
        text = f"ranks {_some(absence.waiting)} wait in {absence.name} #{absence.sequence}{at}; ranks {_some(late)} {how}"
        yield _hung(
            absence.source, LogLine(number=0, text=text, printed=text), late, "torch FlightRecorder.hpp", gone=not absence.missing
        )


def _hung(source: str, line: LogLine, ranks: Sequence[int], words: str, *, gone: bool = False) -> Symptom:
    causes = ("rank-killed", "rank-hung") if gone else ("rank-hung",)
    return Symptom(
        source=source,
        line=line,
        candidates=tuple(Candidate(cause=cause, weight=LIKELY) for cause in causes),
        program="torch",
        ranks=tuple(ranks),
        words=words,
    )


_TIMED_OUT = pattern(
    r"[Rr]ank (\d{1,6})\].{0,80}Watchdog caught collective operation timeout: Work\w+\(SeqNum=(\d{1,12}), OpType=(\w{1,40})"
)
_ENQUEUED = pattern(
    r"[Rr]ank (\d{1,6})\].{0,200}last enqueued (?:NCCL )?work: (\d{1,12}), last completed (?:NCCL )?work: (\d{1,12})"
)
_WORLD = pattern(r"(?:world[_ ]size|nranks|WORLD_SIZE|number of ranks)[\"']?[ :=]{1,4}(\d{1,6})\b")
_BARRIER = pattern(r"Ranks? (\d{1,6}(?:, ?\d{1,6}){0,400}) failed to pass monitoredBarrier")
_UNWRITTEN = pattern(
    r"wait timeout after \d{1,9}ms, keys: /default_pg/0/{1,2}(?:cpu|cuda)\S{0,8}//\d{1,4}/(?P<rank>\d{1,6})(?=$|\s)"
)
"""gloo's context writes one key for each rank, of which others wait for the lowest that is not there (torch ProcessGroupGloo.cpp)."""


class _Group(msgspec.Struct):
    """What the watchdogs of one process group say: in which collective a rank waits, and the last one that it had enqueued."""

    waited: dict[int, _Wait] = {}
    reached: dict[int, int] = {}


class _Wait(NamedTuple):
    sequence: int
    name: str
    source: str
    line: LogLine


def of_time_outs(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield, of the ranks whose watchdogs gave up, those that were behind; of the others, those that never came."""
    groups: dict[str, _Group] = {_ALL: _Group()}
    waits: list[tuple[int, _Wait]] = []
    named: dict[tuple[int | None, int], tuple[str, int]] = {}
    world, seen, elsewhere = 0, set[int](), set[int]()
    for source, part in lines.items():
        for line in part:
            seen |= {line.rank} if line.rank is not None else set()
            if "failed to pass monitoredBarrier" in line.text and (barrier := _BARRIER.search(line.text)):
                yield _hung(source, line, [int(rank) for rank in barrier[1].split(",")], "torch ProcessGroupGloo.cpp")
            if "orld" in line.text or "nranks" in line.text or "WORLD_SIZE" in line.text:
                world = max([world, *(int(size) for size in _WORLD.findall(line.text[:4000]))])
            if (found := _ENQUEUED.search(line.text[:4000])) and (at := _member(line, int(found[1]))):
                groups.setdefault(at[0], _Group()).reached[at[1]] = int(found[2])
                if work := _AT_WORK.search(line.text[:4000]):
                    named[line.rank, int(work[1])] = at
            if found := _TIMED_OUT.search(line.text[:4000]):
                waits.append((int(found[1]), _Wait(int(found[2]), found[3], source, line)))
    for rank, wait in waits:
        if at := named.get((wait.line.rank, wait.sequence)) or _member(wait.line, rank):
            groups.setdefault(at[0], _Group()).waited.setdefault(at[1], wait)
        elif wait.line.rank is not None:
            elsewhere.add(wait.line.rank)
    waited = groups[_ALL].waited
    known = range(max([world, *(rank + 1 for rank in waited if len(waited) > 1)]))
    everybody = set(known) if 0 < len(known) <= _MOST else seen
    for name, group in groups.items():
        yield from _behind(group, everybody - elsewhere if name == _ALL else set())  # those wait, too


_WHO = (
    "find the rank that did not come, which is not the one that prints this: give the logs of all ranks, or the dumps of a run with"
    " TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
)


def of_waits(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the first rank that gave up waiting, where nothing tells for whom: for one that goes nowhere, or one that is not there; nothing where all did."""
    waits = [(source, line) for source, part in lines.items() for line in part if tells_of_wait(line.text[:4000])]
    ranks = {line.rank for _, line in waits if "from another rank" not in line.text}
    if not waits or (len(ranks) > 1 and ranks == {*range(len(ranks))}):
        return
    source, line = waits[0]
    candidates = tuple(Candidate(cause=cause, weight=POSSIBLE, fix=_WHO) for cause in ("rank-hung", "ranks-missing"))
    waited = replace(line, rank=None, host="")  # who waited is not to blame
    yield Symptom(source=source, line=waited, candidates=candidates, program="torch", words="torch ProcessGroupNCCL.cpp; gloo")


def _member(line: LogLine, rank: int) -> tuple[str, int] | None:
    """Return the process group of a watchdog's line, "" for the one of all ranks, and the rank in the job; None where the line tells only the rank within another group.

    torch prints the rank within the group, which is never above that in the job, and in some lines the group (``PG GUID 3(tp) Rank 0``, ``PG 1 Rank 0``).
    """
    found = _GROUP.search(line.text[:4000])
    if found is None:
        return None if line.rank is not None and rank < line.rank else (_ALL, rank)
    if (found["guid"] or found["id"]) == "0" or found["what"] == "default_pg":
        return _ALL, rank
    return (found["guid"], line.rank) if line.rank is not None and found["guid"] else None


_GROUP = pattern(r"\[PG (?:ID )?(?P<id>\d{1,6})(?: PG GUID (?P<guid>[^\s(\]]{1,60}))?(?: ?\((?P<what>[^()\n]{0,80})\))? Rank \d")
_AT_WORK = pattern(r"\bat work(?: sequence id)?: (\d{1,12})")
_ALL = ""
_MOST = 1 << 17


def of_unwritten_keys(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the ranks that others wait for in torch's store as gloo connects them, and that are in no log; or the one that counts more ranks than there are."""
    waited: dict[int, list[tuple[str, LogLine]]] = {}
    for source, part in lines.items():
        if any("/default_pg" in line.text for line in part):
            whole = [replace(pieces[0], text=words) for pieces, words in joined(part)]
            for line in (*part, *whole):
                if (key := _UNWRITTEN.search(line.text[:4000])) is not None:
                    waited.setdefault(int(key["rank"]), []).append((source, line))
    if not waited:
        return
    here = set(file_names.numbered(lines).values())
    here |= {line.rank for part in lines.values() for line in part if line.rank is not None}
    here |= {0 for part in lines.values() for line in part if "seconds waiting for clients" in line.text}
    for rank, said in waited.items():
        speakers = {line.rank for _, line in said if line.rank is not None}
        more = len(here) > _FEW and rank == max(here) + 1 and len(speakers) * 2 < len(here)
        if rank not in here:
            yield _awaited(*said[0], sorted(speakers) if more else [rank], _COUNTS_MORE if more else _NOT_HERE)


_FEW = 2
_NOT_HERE = ("ranks-missing", "job-launch-nested-wrongly", "node-never-came")
_COUNTS_MORE = ("job-launch-nested-wrongly", "ranks-missing")


def _awaited(source: str, line: LogLine, ranks: Sequence[int], causes: Sequence[str]) -> Symptom:
    return Symptom(
        source=source,
        line=replace(line, rank=None, host=""),
        candidates=tuple(Candidate(cause=cause, weight=POSSIBLE) for cause in causes),
        program="torch",
        ranks=tuple(ranks),
        words="torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    )


_HEAD = pattern(r"^\s*(?:USER|UID|F|PID|PPID)\b.{0,200}\b(?P<state>STAT|S)\b.{0,200}\b(?:COMMAND|CMD|ARGS)\s*$")
_STOPPED = pattern(r"^[Tt][sl+<NL]{0,4}$")
_OF_RANK = pattern(r"--(?:local[_-])?rank[ =](\d{1,6})\b")
_ROWS = 512


def of_processes(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the Python process that ps(1) shows as stopped: by a signal, a terminal or a debugger."""
    for source, part in lines.items():
        column, rows = -1, 0
        for line in part:
            head = _HEAD.match(line.text[:400]) if "PID" in line.text else None
            if head is not None:
                column, rows = len(line.text[: head.start("state")].split()), 0
                continue
            words = line.text[:400].split() if column >= 0 else []
            if len(words) <= column + 1 or rows > _ROWS:
                column = -1
                continue
            rows += 1
            if _STOPPED.match(words[column]) and any("python" in word or "torchrun" in word for word in words[column + 1 :]):
                rank = _OF_RANK.search(line.text[:400])
                yield Symptom(
                    source=source,
                    line=line,
                    candidates=(Candidate(cause="rank-stopped", weight=LIKELY),),
                    program="ps",
                    ranks=(int(rank[1]),) if rank is not None else (),
                    words="ps(1): process state codes",
                )


def _behind(group: _Group, ranks: set[int]) -> Iterator[Symptom]:
    """Yield the ranks that are behind in a group, or that are among ``ranks``, all that it has, and did not wait."""
    waited, reached = group.waited, group.reached
    if not waited:
        return
    count = Counter(wait.sequence for wait in waited.values())
    usual = max(count, key=lambda sequence: (count[sequence], sequence))
    furthest = max(reached.values(), default=0)
    late = {rank for rank, last in reached.items() if last < furthest} | {
        rank for rank, wait in waited.items() if wait.sequence != usual and rank not in reached
    }
    late = late or ranks - set(waited)
    if not late or len(late) * 2 > len(ranks | set(waited) | set(reached)):
        return
    stays = [waited[rank] for rank in sorted(late) if rank in waited]
    wait = stays[0] if stays else next(wait for wait in waited.values() if wait.sequence == usual)
    how = f"did not {'finish' if stays else 'reach'} {wait.name} #{wait.sequence}"
    text = f"{wait.line.text[:300]} (rank{'s' if len(late) > 1 else ''} {_some(sorted(late))} {how})"
    yield _hung(wait.source, replace(wait.line, text=text, rank=None, host=""), sorted(late), "torch ProcessGroupNCCL.cpp")


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16]))
    return f"{shown}, and {len(ranks) - 16} more" if len(ranks) > 16 else shown


class _Stack(msgspec.Struct, kw_only=True):
    source: str
    line: LogLine
    rank: int | None
    frames: list[str]
    dump: tuple[object, int] = (None, 0)
    """Whose it is, and after how many heads of a dump: one process printed it with what else has the same."""


_THREAD_HEAD = r"Thread 0x[0-9a-f]{1,16}\b.*most recent call first"
_THREAD = pattern(f"^{_THREAD_HEAD}")
_DUMP = pattern(r"^(?:Fatal Python error: |Timeout \(\d)")
_PROCESS = pattern(r"^Process (\d{1,9}): ")
_MAIN = pattern(
    rf'^(?:Thread \S{{1,40}} \((?:idle|active|active\+gil)\): "MainThread"|Current thread 0x[0-9a-f]+|{_THREAD_HEAD})'
)
_FRAME = pattern(
    r'^\s{2,8}(?:(?P<spy>[\w<>.:]{1,120}) \((?P<place>[^()\n]{1,300}:\d{1,7})\)|File "(?P<file>[^"\n]{1,300})", line (?P<line>\d{1,7}) in (?P<name>[\w<>.]{1,120}))'
)
_WAITS = pattern(
    r"\b(?:all_?reduce|_?all_gather\w*|broadcast\w*|reduce_scatter\w*|barrier|monitored_barrier|all_to_all\w*|synchronize|_store_based_barrier|recv|wait_for_tensor"
    r"|wait|_engine_run_backward|backward|item|rendezvous|gather\w*|scatter\w*|TCPStore)\b"
)
_TOP = 12


def of_stacks(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield, of several processes' stacks, those that are elsewhere while the others wait for them (py-spy dump, faulthandler)."""
    stacks = [stack for source, part in lines.items() for stack in _stacks(source, part)]
    waiting = [stack for stack in stacks if _waits(stack)]
    odd = [stack for stack in stacks if not _waits(stack)]
    if not waiting or not odd or len(odd) >= len(waiting) + 1:
        return
    for stack in odd:
        text = f"is in {stack.frames[0]}, while {len(waiting)} other{'s wait' if len(waiting) > 1 else ' waits'} in {waiting[0].frames[0]}"
        ranks = [stack.rank] if stack.rank is not None else []
        yield _hung(stack.source, replace(stack.line, text=text), ranks, "py-spy dump; CPython faulthandler")


def _waits(stack: _Stack) -> bool:
    return any(_WAITS.search(frame) for frame in stack.frames[:_TOP])


def _stacks(source: str, lines: Sequence[LogLine]) -> list[_Stack]:
    """One for each process: its main thread's."""
    found: list[_Stack] = []
    open_: dict[object, _Stack] = {}
    heads: Counter[object] = Counter()
    for line in lines:
        key = line.rank if line.rank is not None else line.pid
        heads[key] += _DUMP.match(line.text) is not None
        if _PROCESS.match(line.text):
            open_.pop(key, None)
        if _MAIN.match(line.text):
            open_[key] = _Stack(source=source, line=line, rank=line.rank, frames=[], dump=(key, heads[key]))
            found.append(open_[key])
        elif key in open_ and (frame := _FRAME.match(line.text)):
            open_[key].frames.append(f"{frame['name'] or frame['spy']} ({frame['place'] or frame['file'] + ':' + frame['line']})")
        elif key in open_ and open_[key].frames:
            open_.pop(key)
    return _of_main_threads([stack for stack in found if stack.frames])


def _of_main_threads(found: Sequence[_Stack]) -> list[_Stack]:
    """Return those without the other threads of one process: faulthandler prints all, the current one as such, else the main one last."""
    current = {stack.dump for stack in found if stack.line.text.startswith("Current thread")}
    last = {stack.dump: stack for stack in found}
    return [
        stack
        for stack in found
        if not _THREAD.match(stack.line.text) or (stack.dump not in current and last[stack.dump] is stack)
    ]
