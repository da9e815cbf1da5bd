"""Drive the smoke test: pass the worker's script on, start the ranks, watch them, and start new ranks for the remaining stages after a
failure. torch is never imported here."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from torchtune_sys.errors import Terminated, UserError
from torchtune_sys.host import scratch
from torchtune_sys.host.account import Account
from torchtune_sys.host.children.rank_processes import RankProcesses
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.model.launchers import JOB_VARIABLES, VARIABLES
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, RankEnd, StageResult, Team
from torchtune_sys.smoke import attribution
from torchtune_sys.smoke.merge import merged
from torchtune_sys.smoke.script import SCRIPT, source
from torchtune_sys.smoke.stack_traces import innermost
from torchtune_sys.smoke.watch import RunFailure, Watch
from torchtune_sys.smoke.worker.channel import SOCKET_VARIABLE
from torchtune_sys.smoke.worker.interfaces import STRANGER, strangers, strangers_told
from torchtune_sys.smoke.worker.oom_kills import killed_for_memory, memory_kills

_STARTS_AT_MOST = 6
"""After this many early ends the remaining stages are left unknown."""
_JOB_VARIABLES = (VARIABLES - {*JOB_VARIABLES}) | {"ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""What an outer job set for its own ranks; ours get their own. What begins with PET_ are options of torch's launcher
(torch/distributed/argparse_util.py), which Kubeflow sets for its nodes."""


_REFUSED = (errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES, errno.ENOSYS)


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    python: str
    ranks: int
    gpus: int = 0
    """GPUs of this host; reported if the ranks cannot say what they run on."""
    visible: int = 0
    """GPUs that the ranks must find; 0 if that is uncertain (MIG, no GPU, an unknown device)."""
    cpus: int
    """CPUs that this process may use; divided among the ranks as threads unless OMP_NUM_THREADS is set."""
    level: str = "default"
    stages: tuple[str, ...] = ()
    device: str = "auto"
    backend: str = ""
    scratch: str = ""
    """Where checkpoints go; "" for the directory of temporary files."""
    master_port: int = 0
    timeout_s: float = 600.0
    user: Account | None = None
    """Who the ranks run as; None is who we are."""
    expected: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    """Plausible rates, by the GPU's name, stage and figure."""


class ProgressListener(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks while the ranks run."""

    begun: Callable[[str, int, int], None] = lambda _stage, _rank, _ranks: None
    """Called with a stage, the rank that began it, and the number of ranks."""
    ended: Callable[[Team, StageResult], None] = lambda _team, _stage: None
    """Called with a stage that all ranks have finished."""
    cut_off: Callable[[Team, tuple[StageResult, ...]], None] = lambda _team, _stages: None
    """Called with the stages so far if a signal ends the test, before the ranks are ended."""


class SmokeRun(msgspec.Struct, kw_only=True):
    """State shared by all starts of the ranks, and their combined results."""

    asked: SmokeOptions
    env: dict[str, str]
    script: int
    """The descriptor of the worker's script: nobody can put another file in its place."""
    folder: str
    """Where the ranks write."""
    until_s: float
    found: Collection[str]
    """The causes that the rules name on this host."""
    progress: ProgressListener
    plan: list[str] = []
    ends: dict[str, dict[int, RankEnd]] = {}
    figures: dict[str, dict[int, list[Figure]]] = {}
    places: dict[str, tuple[str, ...]] = {}
    about: dict[str, dict[str, object]] = {}
    output: str = ""
    shown: set[str] = set()
    """Stages whose end was passed to ``progress``."""
    is_cut_off: bool = False

    def run_ranks(self, stages: list[str]) -> RunFailure | None:
        """Start all ranks once, for the stages that are left (all of the level where none is named)."""
        oom_before = memory_kills()
        user = self.asked.user
        try:
            started = RankProcesses(_argv(self, stages), self.env, self.folder, SOCKET_VARIABLE, (self.script,), user)
        except OSError as error:
            return self._without_sockets(error)
        with started as processes:
            watch = self._watched(processes)
            try:
                failure = watch.run()
            except (KeyboardInterrupt, Terminated):
                self._learn(watch, RunFailure(kind="cut-off", stage=""))
                self.cut_off()  # before the ranks are ended, which takes time
                raise
            crash = "".join(processes.crash_reports(failure.pids or processes.pids).values()) if failure is not None else ""
            found = self._strangers(watch, failure)
            self.output = processes.output if failure is not None or not self.output else self.output
            if processes.failure is not None:
                seen = processes.failure.detail.removeprefix(f"{self.asked.python} ")
                raise UserError(f"{self.asked.python}: {seen}", "use --python to name the interpreter you train with")
        self._learn(watch, failure)
        if failure is not None and not (failure.kind == "not-started" and failure.stage in self.ends):
            dead = [rank.kills for rank in watch.ranks.values() if rank.rank in failure.ranks or not failure.ranks]
            _blame(self, failure, processes.output, crash, killed_for_memory(oom_before, dead), found)
        return failure

    def _strangers(self, watch: Watch, failure: RunFailure | None) -> list[str]:
        """Return who of another user is connected with ranks that wait for each other, by their ends; none where no rank hangs."""
        at = {stage: number for number, stage in enumerate(watch.plan)}
        if failure is None or failure.kind != "hung" or at.get(failure.stage, -1) < at.get("rendezvous", len(at)):
            return []
        user = self.asked.user
        try:
            return strangers(0.0, [str(rank.pid) for rank in watch.ranks.values()], os.getuid() if user is None else user.uid)
        except OSError:
            return []

    def _without_sockets(self, error: OSError) -> RunFailure:
        """Fail the stage that needs what our own socket needs, too. Raises the error where no filter refused it."""
        if error.errno not in _REFUSED:
            raise error
        seen = (
            f"socket(AF_UNIX): {error.strerror}: workers of a DataLoader hand over what they loaded by such sockets (nothing else was tested:"
            " neither can the ranks report)"
        )
        remedy = "systemd: add AF_UNIX to the unit's RestrictAddressFamilies; a container: a profile that allows socket(AF_UNIX)"
        end = RankEnd(rank=-1, verdict=Verdict.FAIL, seconds=0.0, cause="system-calls-refused", seen=seen, remedy=remedy)
        self.plan, self.ends = self.plan or ["dataloader"], {**self.ends, "dataloader": {-1: end}}
        return RunFailure(kind="not-started", stage="dataloader")

    def _watched(self, processes: RankProcesses) -> Watch:
        def begun(stage: str, rank: int, ranks: int) -> None:
            self.progress.begun(stage, rank, ranks)
            self.about.update(watch.about)
            for name in watch.left_behind():
                if name in watch.ends and name not in self.shown | {*self.ends}:
                    self.shown.add(name)
                    self.progress.ended(_team(self), self._result(name, watch.ends[name], watch.figures.get(name, {})))

        watch = Watch(processes, self.asked.ranks, self.until_s, begun)
        return watch

    def lacks_the_gpu(self) -> bool:
        """Return whether no GPU can be used, and nothing else will do."""
        ends = self.ends.get("device", {}).values()
        return self.asked.device == "cuda" and any(end.verdict is Verdict.FAIL for end in ends)

    def cut_off(self) -> None:
        """Report the results so far when a signal ends the test, once."""
        if self.is_cut_off:
            return
        self.is_cut_off = True
        for stage in self.plan:
            self.ends.setdefault(stage, {-1: not_reached("the test was interrupted before it was finished")})
        self.progress.cut_off(_team(self), tuple(self.stages()))

    def _learn(self, watch: Watch, failure: RunFailure | None) -> None:
        self.plan = self.plan or list(watch.plan or watch.ends) or ["import"]
        self.about.update(watch.about)
        self.places.update(watch.places)
        for stage, figures in watch.figures.items():
            self.figures.setdefault(stage, {}).update(figures)
        for stage, ends in watch.ends.items():
            unfinished = failure is not None and stage == failure.stage
            if stage not in self.ends and (unfinished or _complete(ends, watch, failure)):
                self.ends[stage] = ends

    def stages(self) -> Iterator[StageResult]:
        before: list[str] = []
        for stage in self.plan or list(self.ends):
            result = self._result(stage, self.ends[stage], self.figures.get(stage, {}), before)
            yield result
            if result.cause and result.confidence is not Confidence.POSSIBLE:
                before.append(result.cause)

    def _result(
        self, stage: str, ends: Mapping[int, RankEnd], figures: Mapping[int, list[Figure]], before: Sequence[str] = ()
    ) -> StageResult:
        found = merged(stage, ends, figures, self.found, before)
        scrubbed_texts = {name: scrubbed(getattr(found, name)) for name in ("seen", "remedy", "trace")}
        return msgspec.structs.replace(found, places=tuple(map(scrubbed, self.places.get(stage, ()))), **scrubbed_texts)


def smoke(
    asked: SmokeOptions, env: Mapping[str, str], found: Collection[str], progress: ProgressListener
) -> tuple[Team, tuple[StageResult, ...], str]:
    """Run the test. ``found``: the causes that the rules name on this host.

    Returns who ran, the stages in their order, and the end of what was printed where something failed. Raises UserError
    (CannotWrite) where there is no place for temporary files.
    """
    if not os.path.exists("/proc/self/stat"):
        raise UserError("/proc is not mounted: neither torch nor its DataLoader goes without", "mount -t proc proc /proc")
    until_s = time.monotonic() + asked.timeout_s
    with scratch.directory(asked.scratch, asked.user, asked.timeout_s) as folder, scratch.nameless(SCRIPT, source()) as script:
        own, left = _environment(env, asked), list(asked.stages)
        run = SmokeRun(asked=asked, env=own, script=script, folder=folder, until_s=until_s, found=found, progress=progress)
        try:
            for _ in range(_STARTS_AT_MOST):
                failure = run.run_ranks(left)
                before, left = left, [stage for stage in run.plan if stage not in run.ends]
                over = failure is not None and (failure.stage == "import" or failure.kind in ("not-started", "out-of-time"))
                if not left or over or left == before or run.lacks_the_gpu():
                    break
        except (KeyboardInterrupt, Terminated):
            run.cut_off()
            raise
    for stage in left:
        run.ends[stage] = {-1: not_reached()}
    stages = tuple(run.stages())
    failed = any(stage.verdict is not Verdict.PASS and stage.verdict is not Verdict.NA for stage in stages)
    return _team(run), stages, scrubbed(run.output) if failed else ""


def not_reached(why: str = "not reached") -> RankEnd:
    return RankEnd(rank=-1, verdict=Verdict.UNKNOWN, seconds=0.0, seen=why)


def _complete(ends: Mapping[int, RankEnd], watch: Watch, failure: RunFailure | None) -> bool:
    """Return whether all participating ranks finished a stage; otherwise the next ranks repeat it."""
    if failure is None or -1 in ends or any(end.verdict is Verdict.FAIL for end in ends.values()):
        return True
    return len(ends) >= len(watch.ranks)


def _blame(run: SmokeRun, failure: RunFailure, output: str, crash: str, killed: str, others: Sequence[str]) -> None:
    """Fail the stage that ended the ranks, with the cause. What a rank itself reported takes precedence. Where ``others`` were connected with the ranks, it may be
    their doing."""
    ends = run.ends.setdefault(failure.stage, {})
    run.places[failure.stage] = failure.places or run.places.get(failure.stage, ())
    if failure.kind == "died":
        for rank in [rank for rank, end in ends.items() if rank not in failure.ranks and attribution.is_consequence(end)]:
            del ends[rank]
    if any(end.verdict is Verdict.FAIL for end in ends.values()):
        return
    blamed = attribution.with_environment(
        attribution.of_failure(failure, output, crash, killed, run.found), failure.stage, run.env, crash
    )
    if others:
        blamed = attribution.Attribution(cause=STRANGER, seen=f"{strangers_told(others)}; with it this failed: {blamed.seen}")
    verdict = Verdict.UNKNOWN if failure.kind == "out-of-time" or others else Verdict.FAIL
    for rank in failure.ranks or (-1,):
        ends[rank] = RankEnd(
            rank=rank,
            verdict=verdict,
            seconds=0.0,
            cause=blamed.cause,
            seen=blamed.seen,
            remedy=blamed.remedy,
            confidence=blamed.confidence,
            trace=innermost(crash),
        )


def _argv(run: SmokeRun, stages: list[str]) -> tuple[str, ...]:
    asked = run.asked
    words = [
        asked.python,
        f"/proc/self/fd/{run.script}",
        "--launch",
        "--level",
        asked.level,
        "--device",
        asked.device,
        "--scratch",
        run.folder,
    ]
    words += ["--nproc-per-node", str(asked.ranks), "--world", str(asked.ranks), "--cpus", str(asked.cpus)]
    words += ["--stages", ",".join(stages)] if stages else []
    words += ["--backend", asked.backend] if asked.backend else []
    words += ["--gpus", str(asked.visible)] if asked.visible else []
    words += ["--master-port", str(asked.master_port)] if asked.master_port else []
    return (*words, "--expect", msgspec.json.encode(asked.expected).decode())


def _environment(env: Mapping[str, str], asked: SmokeOptions) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if name not in _JOB_VARIABLES and not name.startswith("PET_")}
    kept.setdefault("OMP_NUM_THREADS", str(max(1, asked.cpus // asked.ranks)))
    return kept


def _team(run: SmokeRun) -> Team:
    return team_of(run.asked, [run.about[rank] for rank in sorted(run.about, key=int)])


def team_of(asked: SmokeOptions, abouts: Sequence[Mapping[str, object]] = ()) -> Team:
    """Return who runs, by what is asked and what the ranks told of themselves."""
    first = abouts[0] if abouts else {}
    gpus = dict.fromkeys(f"{about.get('gpu')} {about.get('uuid')}".strip() for about in abouts if about.get("gpu"))
    device = "cuda" if asked.device == "cuda" or (asked.device == "auto" and asked.gpus) else "cpu"
    return Team(
        python=asked.python,
        torch=str(first.get("torch", "")),
        ranks=asked.ranks,
        backend=str(first.get("backend", "")),
        device=str(first.get("kind", device)),
        gpus=tuple(gpus),
        gpus_here=asked.gpus,
        level=asked.level,
        user="" if asked.user is None else asked.user.name,
    )
