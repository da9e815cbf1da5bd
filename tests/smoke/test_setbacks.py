"""What a change took away, and what is only noise."""

from __future__ import annotations

import pytest

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, SmokeReport, StageResult, Team
from torchtune_sys.smoke.regressions import broken, slowed


def report(rate: float = 100.0, seconds: float = 1.0, *, ddp: Verdict = Verdict.PASS, cause: str = "") -> SmokeReport:
    figures = (Figure(name="GEMM", value=rate, unit="TFLOP/s"), Figure(name="epoch", value=seconds, unit="s"))
    return SmokeReport(
        version="1",
        time="",
        host="trainer",
        team=Team(python="/p"),
        verdict=ddp,
        seconds=1.0,
        stages=(
            StageResult(stage="gemm", verdict=Verdict.PASS, seconds=1.0, figures=figures),
            StageResult(stage="ddp", verdict=ddp, seconds=1.0, cause=cause, seen="seen"),
        ),
    )


def test_a_stage_that_passed_and_fails_now_broke() -> None:
    (found,) = broken(report(), report(ddp=Verdict.FAIL, cause="rank-hung"))
    assert (found.stage, found.words, found.broke) == ("ddp", "fail: rank-hung", True)
    (found,) = broken(report(), report(ddp=Verdict.UNKNOWN))
    assert found.words == "unknown: seen"


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA])
def test_a_stage_that_did_not_pass_before_cannot_break(verdict: Verdict) -> None:
    assert broken(report(ddp=verdict), report(ddp=Verdict.FAIL)) == []
    assert broken(report(), report(ddp=Verdict.NA)) == []


def test_every_run_after_is_slower_than_every_run_before() -> None:
    (found,) = slowed([report(100.0), report(97.0)], [report(80.0), report(79.0)])
    assert (found.stage, found.broke) == ("gemm", False)
    assert found.words == "GEMM: 80 and 79 TFLOP/s, where it was 100 and 97 TFLOP/s"
    (longer,) = slowed([report(seconds=1.0), report(seconds=1.02)], [report(seconds=1.5)])
    assert longer.words.startswith("epoch: 1.5 s")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ((100.0, 97.0), (92.0,), "within a tenth"),
        ((100.0, 60.0), (55.0,), "the runs before differ by more"),
        ((100.0, 97.0), (80.0, 99.0), "one of the runs after is as good"),
        ((100.0, 97.0), (130.0,), "faster"),
        ((100.0, 97.0), (80.0, 40.0), "the runs after differ by more than the loss"),
        ((0.0, 0.0), (50.0,), "nothing was measured before"),
    ],
)
def test_noise_is_no_setback(before: tuple[float, ...], after: tuple[float, ...], why: str) -> None:
    assert slowed([report(rate) for rate in before], [report(rate) for rate in after]) == [], why
