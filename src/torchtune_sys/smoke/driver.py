"""Runs the smoke test: writes the worker's script, starts the ranks, watches them, and starts new ones for what is left when a stage
ended the old ones. torch is never imported here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from torchtune_sys.errors import UserError
from torchtune_sys.host import scratch
from torchtune_sys.host.gang import Gang
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, RankEnd, StageResult, Team
from torchtune_sys.smoke import blame
from torchtune_sys.smoke.merge import merged
from torchtune_sys.smoke.places import innermost
from torchtune_sys.smoke.script import source
from torchtune_sys.smoke.watch import Trouble, Watch
from torchtune_sys.smoke.worker.channel import SOCKET_VARIABLE

_GANGS = 6
"""After so many that ended early the rest is left unknown."""
_JOB_VARIABLES = frozenset(
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ]
)
"""What an outer job set for its own ranks; ours get their own."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    python: str
    ranks: int
    gpus: int = 0
    """That this host has: what is said where the ranks do not come to say what they run on."""
    cpus: int
    """That this process may use: shared among the ranks as threads, where nobody set OMP_NUM_THREADS."""
    level: str = "default"
    stages: tuple[str, ...] = ()
    device: str = "auto"
    backend: str = ""
    scratch: str = ""
    """Where checkpoints go; "" for the directory of temporary files."""
    master_port: int = 0
    timeout_s: float = 600.0
    expected: Mapping[str, Mapping[str, float]] = {}
    """Plausible rates, by stage and figure."""


class Run(msgspec.Struct, kw_only=True):
    """What all gangs together found."""

    plan: list[str] = []
    ends: dict[str, dict[int, RankEnd]] = {}
    figures: dict[str, dict[int, list[Figure]]] = {}
    places: dict[str, tuple[str, ...]] = {}
    about: dict[str, dict[str, object]] = {}
    output: str = ""


def smoke(
    asked: Asked, env: Mapping[str, str], found: Collection[str], told: Callable[[str, int, int], None]
) -> tuple[Team, tuple[StageResult, ...], str]:
    """Run the test. ``found``: the causes that the rules name on this host; ``told(stage, rank, ranks)`` shows progress.

    Returns who ran, the stages in their order, and the end of what was printed where something failed. Raises UserError
    (CannotWrite) where not even the script can be written.
    """
    run = Run()
    until_s = time.monotonic() + asked.timeout_s
    # Not beside the checkpoints: where these find no room, the script must say so.
    with scratch.directory("", "/dev/shm") as home, scratch.directory(asked.scratch, home) as folder:
        script = os.path.join(home, "smoke.py")
        scratch.write(script, source())
        own, left = _environment(env, asked), list(asked.stages)
        for _ in range(_GANGS):
            trouble = _one_gang(asked, own, script, folder, left, run, found, until_s, told)
            before, left = left, [stage for stage in run.plan if stage not in run.ends]
            over = trouble is not None and (trouble.stage == "import" or trouble.kind in ("not-started", "out-of-time"))
            if not left or over or left == before:
                break
    for stage in left:
        run.ends[stage] = {-1: RankEnd(rank=-1, verdict=Verdict.UNKNOWN, seconds=0.0, seen="not reached")}
    stages = [
        msgspec.structs.replace(
            merged(stage, run.ends[stage], run.figures.get(stage, {}), found), places=run.places.get(stage, ())
        )
        for stage in run.plan or list(run.ends)
    ]
    failed = any(stage.verdict is not Verdict.PASS and stage.verdict is not Verdict.NA for stage in stages)
    return _team(asked, run), tuple(stages), run.output if failed else ""


def _one_gang(
    asked: Asked,
    env: dict[str, str],
    script: str,
    folder: str,
    stages: list[str],
    run: Run,
    found: Collection[str],
    until_s: float,
    told: Callable[[str, int, int], None],
) -> Trouble | None:
    """One start of all ranks, for the stages that are left (all of the level where none is named)."""
    oom_before = scratch.memory_kills()
    with Gang(_argv(asked, script, folder, stages), env, os.path.dirname(script), SOCKET_VARIABLE) as gang:
        watch = Watch(gang, asked.ranks, until_s, told)
        trouble = watch.run()
        crash = "".join(gang.crash_reports(trouble.pids).values()) if trouble is not None else ""
        run.output = gang.output if trouble is not None or not run.output else run.output
        if gang.failure is not None:
            raise UserError(f"{asked.python}: {gang.failure.detail}", "--python names the interpreter you train with")
    run.plan = run.plan or list(watch.plan or watch.ends) or ["import"]
    run.about.update(watch.about)
    run.places.update(watch.places)
    for stage, figures in watch.figures.items():
        run.figures.setdefault(stage, {}).update(figures)
    unfinished = {trouble.stage} if trouble is not None else set()
    for stage, ends in watch.ends.items():
        if stage not in run.ends and (stage in unfinished or _complete(ends, watch, trouble)):
            run.ends[stage] = ends
    if trouble is not None and not (trouble.kind == "not-started" and trouble.stage in run.ends):
        _blame(run, trouble, gang.output, crash, scratch.memory_kills() > oom_before, found)
    return trouble


def _complete(ends: Mapping[int, RankEnd], watch: Watch, trouble: Trouble | None) -> bool:
    """Whether all ranks that take part are through a stage: else the next gang does it again."""
    if trouble is None or -1 in ends or any(end.verdict is Verdict.FAIL for end in ends.values()):
        return True
    return len(ends) >= len(watch.ranks)


def _blame(run: Run, trouble: Trouble, output: str, crash: str, oom: bool, found: Collection[str]) -> None:
    """The stage that ended the gang fails, with the cause; what single ranks said of it by themselves goes first."""
    ends = run.ends.setdefault(trouble.stage, {})
    run.places[trouble.stage] = trouble.places or run.places.get(trouble.stage, ())
    if trouble.kind == "died":
        for rank in [rank for rank, end in ends.items() if rank not in trouble.ranks and blame.is_consequence(end)]:
            del ends[rank]
    if any(end.verdict is Verdict.FAIL for end in ends.values()):
        return
    blamed = blame.of_trouble(trouble, output, crash, oom, found)
    verdict = Verdict.UNKNOWN if trouble.kind == "out-of-time" else Verdict.FAIL
    for rank in trouble.ranks or (-1,):
        ends[rank] = RankEnd(
            rank=rank,
            verdict=verdict,
            seconds=0.0,
            cause=blamed.cause,
            seen=blamed.seen,
            remedy=blamed.remedy,
            trace=innermost(crash),
        )


def _argv(asked: Asked, script: str, folder: str, stages: list[str]) -> tuple[str, ...]:
    words = [asked.python, script, "--launch", "--level", asked.level]
    words += ["--nproc-per-node", str(asked.ranks), "--world", str(asked.ranks), "--device", asked.device, "--scratch", folder]
    words += ["--stages", ",".join(stages)] if stages else []
    words += ["--backend", asked.backend] if asked.backend else []
    words += ["--master-port", str(asked.master_port)] if asked.master_port else []
    return (*words, "--expect", msgspec.json.encode(asked.expected).decode())


def _environment(env: Mapping[str, str], asked: Asked) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if name not in _JOB_VARIABLES}
    kept.setdefault("OMP_NUM_THREADS", str(max(1, asked.cpus // asked.ranks)))
    return kept


def _team(asked: Asked, run: Run) -> Team:
    abouts = [run.about[rank] for rank in sorted(run.about, key=int)]
    first = abouts[0] if abouts else {}
    gpus = dict.fromkeys(f"{about.get('gpu')} {about.get('uuid')}".strip() for about in abouts if about.get("gpu"))
    return Team(
        python=asked.python,
        torch=str(first.get("torch", "")),
        ranks=asked.ranks,
        backend=str(first.get("backend", "")),
        device=str(first.get("kind", "cuda" if asked.device == "cuda" or (asked.device == "auto" and asked.gpus) else "cpu")),
        gpus=tuple(gpus),
        level=asked.level,
    )
