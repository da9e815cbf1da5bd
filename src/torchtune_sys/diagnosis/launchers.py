"""Give lines the rank and host that launchers name in what they say of one process, and that the name of a file tells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.text.lines import LogLine

_IN_NAME = re.compile(
    r"rank[_-]?(\d{1,6})(?!\d)|[/:](\d{1,6})/(?:stdout|stderr|error)(?:\.\w{1,5})?$|slurm-\d+[_.](\d{1,6})\.(?:out|err)$"
)
_BLOCK = re.compile(
    r"^\s*rank {1,12}: (?P<rank>\d{1,6}) \(local_rank: \d{1,4}\)|^= {1,4}RANK (?P<process>\d{1,6}) PID \d{1,9} RUNNING AT (?P<host>[\w.-]{1,64})|^= {1,4}PID \d{1,9} RUNNING AT (?P<where>[\w.-]{1,64})"
)
"""torch/distributed/elastic/multiprocessing/errors/__init__.py; Hydra (MPICH, Intel MPI) tools/bootstrap: the lines of one failure follow each other."""
_LOCAL = re.compile(r"failed \(exitcode: -?\d{1,3}\) local_rank: (?P<local>\d{1,4}) \(pid: \d{1,9}\)")
_BOTH = re.compile(r"^\s*rank {1,12}: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,4})\)")
"""torch/distributed/elastic/multiprocessing/api.py; errors/__init__.py: an agent counts its own ranks, and its summary tells both numbers."""
_BLOCK_LINES = 5
_BLOCK_LINE = re.compile(r"^\s*(?:rank|exitcode|error_file|traceback) {1,12}: |^= {1,4}(?:RANK|PID|KILLED|EXIT)\b")
"""What is of the block's rank whoever printed it."""
_BLOCK_HOST = re.compile(r"^\s*host {1,12}: (?P<host>[\w.-]{1,64})$")
_SRUN = "srun: "
_OF_ONE = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        (_SRUN, r"^srun: error: (?P<host>[\w.-]{1,64}): task (?P<rank>\d{1,6}): "),
        (_SRUN, r"^srun: error: (?P<host>[\w.-]{1,64}): tasks \d"),
        ("on node ", r"^srun: error: (?:Task launch for \S{1,40} failed|Prolog failure) on node (?P<host>[\w.-]{1,64})"),
        ("ON ", r"\*\*\* (?:JOB|STEP) \S{1,40} (?:STEPD TERMINATED )?ON (?P<host>[\w.-]{1,64}) "),
        ("Node failure", r"^(?:srun|salloc|sattach): error: Node failure on (?P<host>[\w.-]{1,64})$"),
        ("reachable via ssh", r"\bhost=(?P<host>[\w.-]{1,64}) was not reachable via ssh\b"),
        ("ssh", r"\bssh: connect to host (?P<host>[\w.:-]{1,64}) port \d"),
        ("ssh", r"\bssh: Could not resolve hostname (?P<host>[\w.-]{1,64}): "),
        ("ssh", r"^pdsh@[\w.-]{1,64}: (?P<host>[\w.-]{1,64}): ssh exited with exit code 255\b"),
        (
            "non-zero exit status 255",
            r"Command .{0,3}ssh (?:-[a-zA-Z]{1,3} \S{1,80} ){0,6}(?P<host>[A-Za-z0-9][\w.-]{0,63}) [^']{1,200}'",
        ),
        ("emote daemon", r"Remote daemon: {1,8}\S{1,40} on node (?P<host>[\w.-]{1,64})"),
        ("process rank", r"noticed that process rank (?P<rank>\d{1,6}) with PID \d{1,9} on node (?P<host>[\w.-]{1,64})"),
        ("due to process rank", r"has exited due to process rank (?P<rank>\d{1,6}) with PID \d{1,9} on\b"),
        ("reported by process", r"^\[(?P<host>[\w.-]{1,64}):\d{1,9}\] \*\*\* reported by process \[\d{1,12},(?P<rank>\d{1,6})\]"),
        ("Process name", r"^\s*Process name: \[\[\d{1,9},\d{1,6}\],(?P<rank>\d{1,6})\]"),
        ("Process name", r"^\s*Process name: \[[\w.@-]{1,80},(?P<rank>\d{1,6})\]"),
        ("MPI_", r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) "),
        ("(rank ", r"\bAbort\(-?\d{1,12}\) (?:on node \d{1,6} )?\(rank (?P<rank>\d{1,6}) in comm "),
        ("mpi_rank_", r"^\[(?P<host>[\w.-]{1,64}):mpi_rank_(?P<rank>\d{1,6})\]"),
        ("(rank: ", r"MPI process \(rank: (?P<rank>\d{1,6}), pid: \d{1,9}\) (?:terminated|exited)"),
        ("Process ", r"^Process (?P<rank>\d{1,6}) exit with status code \d"),
        (" kernel: ", r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(?P<host>[A-Za-z][\w.-]{0,63}) kernel: "),
        ("WorkerProc rank=", r"WorkerProc rank=\[(?P<rank>\d{1,6})\] died\b"),
        ("Worker proc ", r"\bWorker proc VllmWorker-(?P<rank>\d{1,6}) died\b"),
        ("RankMonitorServer:", r"^\[(?:WARNING|ERROR)\] \[RankMonitorServer:(?P<rank>\d{1,6})\] "),
        ("Affected ranks: ", r"\bAffected ranks: [\[{](?P<rank>\d{1,6})[\]}]"),
        ("Score=", r"\bRank=(?P<rank>\d{1,6}) Node=(?P<host>[\w.-]{1,64}) Score="),
        ("marked dead", r"\baddress: (?P<host>[\w.:-]{1,64}) and node name: \S{1,64} has been marked dead\b"),
        ("Setting node ", r"\bSetting node (?P<host>[\w.-]{1,64}) state to [A-Z]"),
        ("registration node=", r"_slurm_rpc_node_registration node=(?P<host>[\w.-]{1,64}): "),
        (
            "ode ",
            r"\b[Nn]ode (?P<host>[\w.-]{1,64}) (?:is |was |has been )?(?:marked|set) (?:as )?(?:down|offline|lost|dead|unreachable)\b",
        ),
        ("status is now: NodeNotReady", r"\bNode (?P<host>[\w.-]{1,64}) status is now: NodeNotReady\b"),
        ("Hang detected on rank", r"\bHang detected on rank (?P<rank>\d{1,6})\b"),
        ("not responding, setting DOWN", r"\bNodes (?P<host>[\w.-]{1,64}) not responding, setting DOWN\b"),
    )
)
"""Slurm src/srun, src/salloc, src/slurmctld; the kernel's lines in syslog; vLLM v1/executor; nvidia-resiliency-ext; Ray gcs_node_manager.cc; OpenSSH sshconnect.c; pdsh; Open MPI help-orte-odls-base.txt, PRRTE; MPICH; MVAPICH2; Horovod runner/gloo_run.py; DeepSpeed launcher/runner.py."""
_FORWARDED = re.compile(
    r"^(?:Traceback \(most recent call last\): \(RANK (?P<sharded>\d{1,6})\)|-- Process (?P<spawned>\d{1,6}) terminated with the following error:"
    r"|torch\.multiprocessing\.spawn\.ProcessExitedException: process (?P<ended>\d{1,6}) terminated with )"
)
"""torch/distributed/checkpoint/api.py, torch/multiprocessing/spawn.py: another process says what happened in this one."""
_TRACE = re.compile(r"^(?:\s|Traceback |During handling of the above|The above exception was)")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z]\w{2,60}(?:: |:?$)")
_CHAINED = re.compile(r"^(?:During handling of the above|The above exception was)")
_LONGEST = 400


def attributed(lines: Sequence[LogLine], name: str) -> tuple[LogLine, ...]:
    """Return the lines with the rank that the name of their file, a launcher's words for one failure, or a forwarded traceback gives to them.

    >>> [line.rank for line in attributed([LogLine(number=1, text="  rank      : 3 (local_rank: 3)", printed=""),
    ...                                    LogLine(number=2, text="  exitcode  : -9 (pid: 7)", printed="")], "x")]
    [3, 3]
    """
    named = _IN_NAME.search(name)
    block = _Block(int(next(filter(None, named.groups()))) if named is not None else None)
    found: list[LogLine] = []
    teller: int | None = None
    told: int | None = None
    forwarding: dict[tuple[str, int | None], int] = {}
    before = _before(lines)
    are_agents = any(both["local"] != "0" for line in lines if (both := _BOTH.match(line.text)) is not None)
    hosts = {line.host for line in lines}
    for line in lines:
        forwarded, teller_of = _FORWARDED.match(line.text), (line.host, line.rank)
        if forwarded is not None:
            forwarding[teller_of], teller = int(next(filter(None, forwarded.groups()))), None
        if teller_of in forwarding:
            rank = forwarding[teller_of]
            is_elsewhere = len(hosts) > 1 and line.rank != rank
            found.append(replace(line, rank=rank, host="" if is_elsewhere else line.host))
            goes_on = forwarded["ended"] is None if forwarded is not None else _TRACE.match(line.text)
            told = None if goes_on else forwarding.pop(teller_of)
            continue
        if teller is None and line.rank is None and _TRACE.match(line.text) and found:
            teller = told if _CHAINED.match(line.text) else _of_record(line, found[-1])
        elif line.rank is not None or line.time:
            teller = None
        told = None
        if teller is not None:
            found.append(replace(line, rank=teller))
            goes_on = _TRACE.match(line.text) or not _RAISED.match(line.text)
            teller, told = (teller, None) if goes_on else (None, teller)
        elif before is not None and (local := _LOCAL.search(line.text[:_LONGEST])) is not None:
            found.append(replace(line, rank=before + int(local["local"])))
        else:
            found.append(_of_one(line, is_agent=are_agents) or block.of(line))
    return tuple(found)


def _of_record(line: LogLine, before: LogLine) -> int | None:
    """Return the rank of the log record that the traceback belongs to: ``logging`` puts a head before its first line only."""
    is_record = before.rank is not None and bool(before.time) and _LOCAL.search(before.text[:_LONGEST]) is None
    return before.rank if is_record and line.text.startswith("Traceback ") and not line.time else None


def _before(lines: Sequence[LogLine]) -> int | None:
    """Return how many ranks are on the hosts before this agent's, where its summary tells it, and it is the only one in this text."""
    told = {int(both["rank"]) - int(both["local"]) for line in lines if (both := _BOTH.match(line.text)) is not None}
    return told.pop() if len(told) == 1 else None


def _of_one(line: LogLine, *, is_agent: bool) -> LogLine | None:
    """Return the line with the process that it names, and that one's host, whoever printed it. ``is_agent``: a task of srun's starts several ranks, and is none."""
    words = line.text[:_LONGEST]
    for mark, pattern in _OF_ONE:
        if mark in words and (found := pattern.search(words)) is not None:
            told = found.groupdict()
            rank = int(told["rank"]) if told.get("rank") and not (is_agent and mark == _SRUN) else line.rank
            return replace(line, host=told.get("host") or line.host, rank=rank)
    return None


class _Block:
    """The lines of one failure, of which the first ones say whose it is."""

    def __init__(self, of_file: int | None) -> None:
        self._of_file = self._rank = of_file
        self._host, self._left = "", 0

    def of(self, line: LogLine) -> LogLine:
        """Return the line with the rank and host of the block that it is in."""
        told = _BLOCK_HOST.match(line.text)
        begun = _BLOCK.match(line.text)
        if told is not None:
            self._host = "" if told["host"] == "localhost" else told["host"]
        if begun is not None:
            number = begun["rank"] or begun["process"]
            self._rank, self._left = int(number) if number else self._of_file, _BLOCK_LINES
            self._host = begun["host"] or begun["where"] or self._host
        elif not self._left:
            self._rank = self._of_file
        host = self._host if self._left else ""
        own = self._left > 0 and _BLOCK_LINE.match(line.text) is not None
        self._left = max(self._left - 1, 0)
        rank = self._rank if line.rank is None or own else line.rank
        return line if rank == line.rank and not host else replace(line, rank=rank, host=line.host or host)
