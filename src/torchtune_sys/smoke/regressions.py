"""Find what a change made worse: stages that passed before and fail now, rates that fell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.smoke.proof import NOISE, figures, loss


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is worse than before."""

    stage: str
    words: str
    broke: bool
    """The stage passed before and fails now; else a figure got worse."""


def broken(before: SmokeReport, after: SmokeReport) -> list[Regression]:
    """Return the stages that passed before and fail, or could not be tried, after."""
    passed = {stage.stage for stage in before.stages if stage.verdict is Verdict.PASS}
    return [
        Regression(stage=stage.stage, words=f"{stage.verdict.value}: {stage.cause or stage.seen}", broke=True)
        for stage in after.stages
        if stage.stage in passed and stage.verdict not in (Verdict.PASS, Verdict.NA)
    ]


def slowed(before: Sequence[SmokeReport], after: Sequence[SmokeReport]) -> list[Regression]:
    """Return the figures of which the best run after is worse than the worst before, by more than a tenth and more than the runs of either side
    differ among themselves."""
    earlier, later = ([figures(report) for report in side] for side in (before, after))
    found = []
    for name in earlier[0]:
        stage, figure, unit = name.split("/", 2)
        was = [one[name] for one in earlier if one.get(name, 0.0) > 0.0]
        now = [one[name] for one in later if one.get(name, 0.0) > 0.0]
        if not was or not now:
            continue
        least = min(loss(one, other, unit) for one in now for other in was)
        spread = max(abs(loss(one, other, unit)) for side in (was, now) for one in side for other in side)
        if least > max(NOISE, spread):
            words = f"{figure}: {_row(now)} {unit}, where it was {_row(was)} {unit}"
            found.append(Regression(stage=stage, words=words, broke=False))
    return found


def _row(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.3g}" for value in values)
