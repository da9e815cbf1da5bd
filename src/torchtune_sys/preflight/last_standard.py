"""The stored result of the last pre-flight at level standard, used at level fast while it is fresh and nothing changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.model.smoke import FigureComparison, SmokeReport
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.preflight.hosts_now import STRAGGLER
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.preflight.verdict import own
from torchtune_sys.smoke.proof import ago, loss

SCHEMA = "torchtune-sys/standard/1"
FRESH_S = 86400.0
"""How long the last run counts."""
MUCH_SLOWER = 0.15
"""Slowdown of a kernel from which on it is no-go; less is a warning. A real slowdown of 20 % exceeds it despite measurement noise."""
_KEPT = 20
_KERNELS = ("gemm", "conv", "memory", "copy", "train")
"""Stages that measure only the hardware."""


class LastStandard(msgspec.Struct, frozen=True, kw_only=True):
    """The stored file. Without causes, the node was fit."""

    schema: str = SCHEMA
    epoch_s: float
    boot: str
    fingerprint: dict[str, str]
    causes: tuple[Cause, ...] = ()
    core_ms: dict[str, tuple[float, ...]] = {}
    """Time of a kernel on one core, by kernel build, in the last runs in which it was not slow."""


def parse(text: str) -> LastStandard | None:
    """Read the file; None for anything else."""
    try:
        last: LastStandard = codec.loads(text.encode("utf-8", "surrogateescape"), LastStandard)
    except ValueError:
        return None
    return last if last.schema == SCHEMA else None


def encoded(last: LastStandard) -> str:
    return msgspec.json.encode(last).decode() + "\n"


def after(before: LastStandard | None, causes: Iterable[Cause], run: LastStandard) -> LastStandard:
    """Return what is kept after ``run``, which found ``causes``. Where it could not judge, what was found before goes on counting."""
    found = tuple(causes)
    kept = tuple(cause for cause in found if cause.weight is Weight.FATAL)
    slow = any(cause.cause == STRAGGLER for cause in found)
    times = dict(before.core_ms) if before is not None else {}
    if not slow:
        times = {by: (*times.get(by, ()), *ms)[-_KEPT:] for by, ms in run.core_ms.items()}
    if before is not None and not kept and any(cause.weight is Weight.UNKNOWN for cause in found):
        return msgspec.structs.replace(before, core_ms=times)
    return msgspec.structs.replace(run, causes=kept, core_ms=times)


def of_core(last: LastStandard | None, by: str, now_ms: float, policy: Policy) -> list[Cause]:
    """Return a core that computes slower than in this node's earlier runs. A warning: a busy sibling of the core slows it, too."""
    earlier = [ms for ms in last.core_ms.get(by, ()) if ms > 0] if last is not None else []
    if not earlier:
        return []
    part = loss(now_ms, median(earlier), "ms")
    if part < MUCH_SLOWER:
        return []
    seen = (
        f"one core: {now_ms:.3g} ms for a kernel, {part:.0%} worse than {median(earlier):.3g} in {len(earlier)} earlier runs here"
    )
    return own(policy, STRAGGLER, "preflight:core", Blame.HARDWARE, Weight.WARNING, seen)


def causes_that_count(last: LastStandard, now: Mapping[str, str], boot: str, epoch_s: float) -> tuple[Cause, ...]:
    """Return the causes of the last run, if it was less than a day ago, since the last start of the host, and with the same hardware and
    software as far as both are known."""
    age_s = epoch_s - last.epoch_s
    changed = any(now[name] != value for name, value in last.fingerprint.items() if name in now)
    if not 0 <= age_s <= FRESH_S or last.boot != boot or changed:
        return ()
    when = f" (level standard, {ago(age_s)})"
    return tuple(msgspec.structs.replace(cause, seen=cause.seen + when) for cause in last.causes)


def shares_gpus(seen: Snapshot) -> bool:
    """Return whether other programs were on the GPUs when the look was made: those of a job that still runs."""
    if isinstance(seen.gpu, Missing) or isinstance(seen.gpu.devices, Missing):
        return False
    return any(not isinstance(gpu.processes, Missing) and gpu.processes for gpu in seen.gpu.devices)


def of_slower(
    slower: Iterable[FigureComparison], device: str, policy: Policy, *, alone: bool = True, crowd: float = 0.0
) -> list[Cause]:
    """Return the figures that fell behind this node's own earlier ones, beyond what they varied by, the worst first. Fatal on GPUs only, if nobody
    else used them. ``crowd``: processes per CPU before the test, where they were many."""
    causes = []
    busy = f"; {crowd:.0f} processes per CPU were at work before the test" if crowd else ""
    parts = ((loss(one.now, one.before, one.unit), one) for one in slower)
    for part, one in sorted(parts, key=lambda each: -each[0]):
        kernel = one.stage in _KERNELS
        default = Weight.FATAL if kernel and alone and device == "cuda" and part >= MUCH_SLOWER else Weight.WARNING
        seen = f"{one.figure}: {one.now:.4g} {one.unit}, {part:.0%} worse than {one.before:.4g} in {one.proofs} earlier runs here{busy}"
        blame = Blame.HARDWARE if kernel else Blame.NODE
        causes += own(policy, STRAGGLER, f"smoke:{one.stage}", blame, default, seen)
    return causes


def slow_stages(causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the stages that are worth a second run, for their speed alone."""
    return tuple(
        dict.fromkeys(
            cause.rule.removeprefix("smoke:")
            for cause in causes
            if cause.cause == STRAGGLER and cause.rule.removeprefix("smoke:") in _KERNELS
        )
    )


def better_of(one: SmokeReport, other: SmokeReport) -> SmokeReport:
    """Return ``one`` with the better figure of both runs: a neighbour slows one run, hardware both."""
    again = {(stage.stage, figure.name): figure for stage in other.stages for figure in stage.figures}
    stages = []
    for stage in one.stages:
        figures = []
        for figure in stage.figures:
            second = again.get((stage.stage, figure.name))
            better = second is not None and loss(second.value, figure.value, figure.unit) < 0
            figures.append(second if better and second is not None else figure)
        stages.append(msgspec.structs.replace(stage, figures=tuple(figures)))
    return msgspec.structs.replace(one, stages=tuple(stages))
