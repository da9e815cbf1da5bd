"""Watch one group of ranks until all have finished or one fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from torchtune_sys.host.children.rank_processes import Disconnected, Exited, RankMessage, RankProcesses
from torchtune_sys.host.secrets.filter import scrubbed_answer
from torchtune_sys.model import codec
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, RankEnd
from torchtune_sys.smoke.stack_traces import place, waits_for_others
from torchtune_sys.smoke.worker.measures import patience

TICK_S = 0.25
_MEETING_DEADLINE_S = 180.0
"""Time from the launcher's start to the last rank's first message: two cold imports of torch."""
_AS_IT_IS = ("seen", "trace", "remedy", "kills")
"""Of what a rank tells: texts that are filtered once their cause was found, and the name of a file."""
NO_ANSWER = "did not answer within"
"""How a rank reports that it waited for another one (agreement.word_of)."""
_STOPPED_S = 3.0
"""How long a rank may be stopped (SIGSTOP, a debugger) before it is a finding; long enough for Ctrl-Z and fg."""
_PARTING_S = 60.0
"""Time for the ranks to shut down after all stages."""
_STARVED = 0.5
"""Share of its stage for which a rank may wait for a CPU before it counts as slow, not as hung."""
_LAST_WORDS_S = 3.0
"""Time for the launcher to report how a rank ended."""


class WatchedRank:
    """What one rank has reported so far."""

    def __init__(self, pid: int, fields: dict[str, Any]) -> None:
        self.pid = pid
        self.rank = int(fields.get("rank", -1))
        self.host = str(fields.get("host", ""))
        self.kills: object = None
        """Its cgroup's file that counts OOM kills, and the count at the start."""
        self.device = ""
        self.stage = ""
        self.begun_s = time.monotonic()
        self.waited_s = 0.0
        """For a CPU, when it began its stage."""
        self.deadline_s = _MEETING_DEADLINE_S
        self.through = False
        self.stopped_since_s: float | None = None


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the ranks had to be ended before they were through."""

    kind: str
    """not-started, died, stopped, launcher-stopped, launcher-killed, hung, blocked (in the kernel), not-ended, died-at-end, out-of-time,
    starved (of a CPU)."""
    stage: str
    ranks: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    seconds: float = 0.0
    """How long the ranks had been running, where one died."""
    status: int | None = None
    """Exit status of the rank that died, as in subprocess; None if its launcher did not report it. If the launcher was killed, its own."""
    seen: str = ""
    """What else was seen of the ranks."""


class Watch:
    """Collects what ranks report, and notices when one makes no progress."""

    def __init__(self, processes: RankProcesses, wanted: int, until_s: float, on_stage: Callable[[str, int, int], None]) -> None:
        """``until_s``: time.monotonic() at which there is no time left; ``on_stage(stage, rank, ranks)`` shows progress."""
        self.processes = processes
        self.ranks: dict[int, WatchedRank] = {}
        self.ends: dict[str, dict[int, RankEnd]] = {}
        self.figures: dict[str, dict[int, list[Figure]]] = {}
        self.plan: tuple[str, ...] = ()
        self.about: dict[str, Any] = {}
        self.places: dict[str, tuple[str, ...]] = {}
        """By stage: where the other ranks were when one gave up waiting."""
        self._wanted = wanted
        self._until_s = until_s
        self._on_stage = on_stage
        self._started_s = time.monotonic()
        self._gone_since_s: float | None = None
        self._all_through_since_s: float | None = None
        self._first_gone: WatchedRank | None = None
        self._launcher_stopped_since_s: float | None = None
        self._statuses: dict[int, int] = {}
        """Exit statuses of ranks by process id, as the launcher reported them."""

    def run(self) -> RunFailure | None:
        """Watch until the ranks are through, or one is in trouble."""
        if self.processes.failure is not None:
            return RunFailure(kind="not-started", stage="import")
        while True:
            for event in self.processes.wait(TICK_S):
                if isinstance(event, RankMessage):
                    with contextlib.suppress(
                        TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError
                    ):  # not what a rank of ours says
                        self._receive(event)
                        self._ask_whom_it_waited_for(event.fields)
                elif isinstance(event, Disconnected):
                    self._lost(event.pid)
                elif isinstance(event, Exited):
                    return self._over(event.rc)
            if self._parted(time.monotonic()):
                return self._left_over()
            found = self._judge(time.monotonic())
            if found is not None:
                return found

    def left_behind(self) -> tuple[str, ...]:
        """Return the stages that every rank has gone on from: what becomes of a rank now is of a later one."""
        if len(self.ranks) < self._wanted:
            return ()
        alive = [self._index(rank.stage) for rank in self.ranks.values() if not rank.through]
        return self.plan[: max(min(alive, default=len(self.plan)), 0)]

    def _parted(self, now_s: float) -> bool:
        """Return whether all ranks finished their stages, but do not exit in time."""
        if len(self.ranks) < self._wanted or not all(rank.through for rank in self.ranks.values()):
            return False
        self._all_through_since_s = self._all_through_since_s or now_s
        return now_s - self._all_through_since_s > _PARTING_S * patience()

    def _left_over(self) -> RunFailure | None:
        """Return the ranks that finished but do not exit; a job with such ranks would hold its hosts until its time limit."""
        states = {rank.pid: self.processes.state(rank.pid) for rank in self.ranks.values()}
        staying = [rank for rank in self.ranks.values() if states[rank.pid] not in ("", "Z", "X")]
        if not staying:
            return None
        return RunFailure(
            kind="not-ended",
            stage=self._stage_of_end(),
            ranks=tuple(sorted(rank.rank for rank in staying)),
            places=_places(staying, states, self.processes.stacks(rank.pid for rank in staying)),
            pids=tuple(rank.pid for rank in staying),
        )

    def _receive(self, event: RankMessage) -> None:
        """Take in a message of the launcher or of a rank."""
        plain = {name: value for name, value in event.fields.items() if _is_flat(value)}
        fields = {name: value if name in _AS_IT_IS else scrubbed_answer(value) for name, value in plain.items()}
        kind = fields.get("event")
        if kind == "hello":
            if fields.get("role") == "rank":
                self.ranks[event.pid] = WatchedRank(event.pid, fields)
            return
        if kind == "exited":
            self._statuses[int(fields.get("pid", 0))] = int(fields.get("status", 0))
            return
        rank = self.ranks.get(event.pid)
        if kind == "end" and fields.get("verdict") == "fail" and rank is None:  # the launcher itself cannot go on
            self._end_of(fields, -1)
        if rank is not None:
            self._receive_from(rank, fields)

    def _receive_from(self, rank: WatchedRank, fields: dict[str, Any]) -> None:
        kind = fields.get("event")
        if kind == "begin":
            rank.stage, rank.begun_s = str(fields.get("stage")), time.monotonic()
            rank.waited_s = self.processes.wait_for_cpus(rank.pid)[0]
            rank.deadline_s = float(fields.get("deadline_s", 60.0))
            self._on_stage(rank.stage, rank.rank, len(self.ranks))
        elif kind == "measure":
            figure = codec.convert({name: value for name, value in fields.items() if name not in ("event", "stage")}, Figure)
            self.figures.setdefault(str(fields.get("stage")), {}).setdefault(rank.rank, []).append(figure)
        elif kind == "end":
            self._end_of(fields, rank.rank)
        elif kind == "about":
            rank.device = str(fields.get("device", ""))
            rank.kills = fields.get("kills", rank.kills)
            self.plan = tuple(fields.get("stages", ()))
            self.about[str(rank.rank)] = fields
        elif kind == "bye":
            rank.through = True
            if rank is self._first_gone:  # it was gone before its last word was read
                self._first_gone = None

    def _ask_whom_it_waited_for(self, fields: dict[str, Any]) -> None:
        """Ask the other ranks where they are when one gave up waiting; soon they notice that it is gone, and leave that place."""
        stage = str(fields.get("stage"))
        if fields.get("event") == "end" and NO_ANSWER in str(fields.get("seen")) and stage not in self.places:
            alive = [rank for rank in self.ranks.values() if rank.stage == stage and rank.rank not in self.ends.get(stage, {})]
            states = {rank.pid: self.processes.state(rank.pid) for rank in alive}
            self.places[stage] = _places(alive, states, self.processes.stacks(states))

    def _end_of(self, fields: dict[str, Any], rank: int) -> None:
        end = RankEnd(
            rank=rank,
            verdict=Verdict(fields.get("verdict", "unknown")),
            seconds=float(fields.get("seconds", 0.0)),
            cause=str(fields.get("cause", "")),
            seen=str(fields.get("seen", "")),
            remedy=str(fields.get("remedy", "")),
            trace=str(fields.get("trace", "")),
        )
        self.ends.setdefault(str(fields.get("stage")), {})[rank] = end

    def _lost(self, pid: int) -> None:
        """Remember the first rank that is gone; the others end because of it."""
        rank = self.ranks.get(pid)
        if rank is not None and not rank.through and self._first_gone is None:
            self._gone_since_s = time.monotonic()
            self._first_gone = rank

    def _over(self, status: int) -> RunFailure | None:
        """Return what the launcher's end means: well if every rank had said good-bye. Ranks whose launcher is killed are killed by the kernel."""
        for stage, ends in self.ends.items():
            if -1 in ends:
                return RunFailure(kind="not-started", stage=stage)
        everyone = [*self.ranks.values()]
        if status < 0 and everyone and not self._statuses:
            return RunFailure(kind="launcher-killed", stage=self._stage_of(everyone) or "import", status=status)
        if self._first_gone is not None:
            return self._died(self._first_gone)
        if len(self.ranks) < self._wanted or not all(rank.through for rank in self.ranks.values()):
            return RunFailure(kind="not-started", stage=self._stage_of(list(self.ranks.values())) or "import")
        return self._crashed_at_end()

    def _crashed_at_end(self) -> RunFailure | None:
        """Return the first rank that a signal ended after its last stage: what runs at the end of a program ran then."""
        for rank in sorted(self.ranks.values(), key=lambda one: one.rank):
            status = self._statuses.get(rank.pid, 0)
            if status < 0:
                return RunFailure(
                    kind="died-at-end", stage=self._stage_of_end(), ranks=(rank.rank,), pids=(rank.pid,), status=status
                )
        return None

    def _stage_of_end(self) -> str:
        return "rendezvous" if "rendezvous" in self.plan else "import"

    def _died(self, dead: WatchedRank) -> RunFailure:
        seconds = time.monotonic() - self._started_s
        stage = self._stage_of([dead]) or "import"
        return RunFailure(
            kind="died", stage=stage, ranks=(dead.rank,), pids=(dead.pid,), seconds=seconds, status=self._statuses.get(dead.pid)
        )

    def _stage_of(self, ranks: Sequence[WatchedRank]) -> str:
        """Return the earliest stage that one of them is in."""
        stages = [rank.stage for rank in ranks if rank.stage]
        return min(stages, key=self._index, default="")

    def _index(self, stage: str) -> int:
        return self.plan.index(stage) if stage in self.plan else -1

    def _judge(self, now_s: float) -> RunFailure | None:
        """Return the failure of ranks that died, are stopped or hang; None while all make progress."""
        if self._first_gone is not None and self._gone_since_s is not None:
            patience_s = TICK_S if self._first_gone.pid in self._statuses else _LAST_WORDS_S
            return self._died(self._first_gone) if now_s - self._gone_since_s > patience_s else None
        alive = [rank for rank in self.ranks.values() if not rank.through]
        for rank in alive:
            state = self.processes.state(rank.pid)
            if state in ("", "Z", "X"):
                self._lost(rank.pid)
            elif state in ("T", "t"):
                rank.stopped_since_s = rank.stopped_since_s or now_s
                if now_s - rank.stopped_since_s > _STOPPED_S:
                    return self._hung("stopped", alive)
            else:
                rank.stopped_since_s = None
        if now_s > self._until_s:
            return self._hung("out-of-time", alive)
        if self._launcher_is_stopped(now_s):
            return RunFailure(kind="launcher-stopped", stage=self._stage_of(alive) or "import")
        if len(self.ranks) < self._wanted and now_s - self._started_s > _MEETING_DEADLINE_S * patience():
            return self._hung("hung", alive)
        return self._late(alive, now_s)

    def _launcher_is_stopped(self, now_s: float) -> bool:
        """Tell whether the launcher is stopped: the ranks go on without it, but nobody would learn how they end."""
        if self.processes.state(self.processes.launcher) not in ("T", "t"):
            self._launcher_stopped_since_s = None
            return False
        self._launcher_stopped_since_s = self._launcher_stopped_since_s or now_s
        return now_s - self._launcher_stopped_since_s > _STOPPED_S

    def _late(self, alive: list[WatchedRank], now_s: float) -> RunFailure | None:
        """Return which ranks are late: the others wait for those in the earliest stage; its time counts from when the last of them began it."""
        if not alive:
            return None
        earliest = min(self._index(rank.stage) for rank in alive)
        behind = [rank for rank in alive if self._index(rank.stage) == earliest]
        taken_s, deadline_s = now_s - max(rank.begun_s for rank in behind), max(rank.deadline_s for rank in behind)
        return self._hung("hung", alive) if taken_s > deadline_s and taken_s > deadline_s * patience() else None

    def _hung(self, kind: str, alive: list[WatchedRank]) -> RunFailure:
        states = {rank.pid: self.processes.state(rank.pid) for rank in alive}
        stacks = self.processes.stacks(rank.pid for rank in alive)
        stopped = [rank for rank in alive if states[rank.pid] in ("T", "t")]
        blocked = [rank for rank in alive if states[rank.pid] == "D"]
        earliest = min((self._index(rank.stage) for rank in alive), default=-1)
        behind = [rank for rank in alive if self._index(rank.stage) == earliest]
        behind = [rank for rank in behind if rank.pid in stacks and not waits_for_others(stacks[rank.pid])] or behind
        guilty = stopped or (blocked if kind != "out-of-time" else []) or behind
        if kind == "hung":
            kind = "stopped" if stopped else "blocked" if blocked else "hung"
        starved = self._starved(guilty) if kind == "hung" else ""
        kind = "starved" if starved else kind
        alike = kind in ("hung", "starved") and len(guilty) == len(self.ranks)
        return RunFailure(
            kind=kind,
            stage=self._stage_of(guilty) or "import",
            ranks=() if alike else tuple(sorted(rank.rank for rank in guilty)),
            places=_places(alive, states, stacks),
            pids=tuple(rank.pid for rank in guilty),
            seen=starved,
        )

    def _starved(self, ranks: Sequence[WatchedRank]) -> str:
        """Return how long those that all waited for a CPU for most of their stage did; "" where one of them did not: it waits for something else."""
        told = []
        for rank in ranks:
            waited_s, how = self.processes.wait_for_cpus(rank.pid)
            taken_s = time.monotonic() - rank.begun_s
            if waited_s - rank.waited_s < _STARVED * taken_s:
                return ""
            told.append(
                f"rank {rank.rank} could have run for {waited_s - rank.waited_s:.0f} of {taken_s:.0f} s while others had the CPUs ({how})"
            )
        return "; ".join(told)


def _is_flat(value: object) -> bool:
    """Return whether a value is one that ranks of ours tell: a text, a number, or a list of these."""
    return not isinstance(value, dict) and not (isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value))


def _places(ranks: Sequence[WatchedRank], states: Mapping[int, str], stacks: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(
        place(rank.rank, rank.pid, rank.host, rank.device, rank.stage, states[rank.pid], stacks.get(rank.pid, ""))
        for rank in sorted(ranks, key=lambda one: one.rank)
    )
