"""What ``smoke`` prints: text, JSON by its schema, JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, FigureComparison, SmokeReport, StageResult, Team
from torchtune_sys.render import as_json, schemas
from torchtune_sys.render import smoke as render
from torchtune_sys.render.layout import Style

SCHEMA = json.loads(Path(schemas.DATA, "smoke.schema.json").read_text())
FIGURE = Figure(name="bfloat16 GEMM", value=612.3, unit="TFLOP/s", expected=395.6)
PASSED = StageResult(stage="gemm", verdict=Verdict.PASS, seconds=0.4, figures=(FIGURE,))
HUNG = StageResult(
    stage="ddp",
    verdict=Verdict.FAIL,
    seconds=61.0,
    ranks=(3,),
    cause="rank-stopped",
    seen="rank 3 is stopped <&> \x1b[2J",
    remedy="look who stops it",
    places=("rank 3 (pid 7 on trainer, GPU 3): stopped in stage ddp",),
)
UNTRIED = StageResult(stage="compile", verdict=Verdict.UNKNOWN, seconds=0.0, seen="not reached")
IDLE = StageResult(stage="copy", verdict=Verdict.NA, seconds=0.0, seen="the device is the CPU")


def report(*stages: StageResult, device: str = "cuda", slower: tuple[FigureComparison, ...] = ()) -> SmokeReport:
    worst = next(
        verdict for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS) if any(stage.verdict is verdict for stage in stages)
    )
    team = Team(
        python="/p", torch="2.13.0", ranks=4, backend="nccl", device=device, gpus=("H100 GPU-1",) if device == "cuda" else ()
    )
    return SmokeReport(
        version="1",
        time="2026-11-21T00:00:00Z",
        host="trainer",
        team=team,
        verdict=worst,
        seconds=12.0,
        stages=stages,
        slower=slower,
    )


def text(made: SmokeReport, *, quiet: bool = False, verbose: bool = False) -> str:
    return render.text(made, Style(width=100), quiet=quiet, verbose=verbose)


def test_the_first_line_is_the_verdict() -> None:
    assert text(report(PASSED, IDLE)).splitlines()[0] == "trainer: training works: 1 stage passed, 12 s"
    assert text(report(PASSED, HUNG)).splitlines()[0] == "trainer: training does not work: ddp: rank-stopped, 12 s"
    assert text(report(PASSED, UNTRIED)).splitlines()[0] == "trainer: not proven: 1 of 2 stages could not be checked, 12 s"


@pytest.mark.parametrize("stage", [PASSED, UNTRIED])
def test_without_a_gpu_the_first_line_says_first_what_was_not_verified(stage: StageResult) -> None:
    assert text(report(PASSED, stage, device="cpu")).startswith("trainer: no GPU was tested (CPU only); ")


def test_stages_that_were_not_tried_for_one_reason_share_a_line() -> None:
    untried = [msgspec.structs.replace(UNTRIED, stage=name) for name in ("fsdp", "compile", "stress")]
    rows = [row for row in text(report(PASSED, HUNG, *untried)).splitlines() if "not reached" in row]
    assert [row.split() for row in rows] == [["unknown", "3", "stages", "not", "reached:", "fsdp,", "compile,", "stress"]]
    assert text(report(HUNG, *untried), verbose=True).count("not reached") == 3
    assert text(report(HUNG, *untried[:2])).count("not reached") == 2


def test_what_fails_comes_before_what_was_not_verified() -> None:
    shown = text(report(PASSED, HUNG, device="cpu")).splitlines()[0]
    assert shown == "trainer: training does not work: ddp: rank-stopped; no GPU was tested (CPU only), 12 s"


@pytest.mark.parametrize(("here", "said"), [(0, ""), (1, ""), (8, "1 of 8 GPUs took part; ")])
def test_a_pass_on_some_of_the_gpus_says_on_how_many(here: int, said: str) -> None:
    made = report(PASSED)
    made = msgspec.structs.replace(made, team=msgspec.structs.replace(made.team, gpus_here=here))
    assert text(made).splitlines()[0] == f"trainer: {said}training works: 1 stage passed, 12 s"


def test_a_failure_tells_cause_remedy_and_places() -> None:
    said = text(report(PASSED, HUNG))
    assert "cause: rank-stopped" in said and "fix: look who stops it" in said
    assert "rank 3 (pid 7 on trainer, GPU 3): stopped in stage ddp" in said
    assert "rank 3: rank 3" not in said
    assert "\x1b" not in said  # what a rank says cannot steer the terminal


def test_quiet_leaves_what_failed() -> None:
    said = text(report(PASSED, HUNG, IDLE), quiet=True)
    assert "gemm" not in said and "copy" not in said and "ddp" in said


def test_what_got_slower_here_is_told() -> None:
    slow = FigureComparison(stage="gemm", figure="bfloat16 GEMM", unit="TFLOP/s", now=450.0, before=600.0, proofs=5)
    assert "450 TFLOP/s, 25 % worse than 600 TFLOP/s (median of 5 earlier runs here)" in " ".join(
        text(report(PASSED, slower=(slow,))).split()
    )


def test_json_follows_its_schema() -> None:
    slow = FigureComparison(stage="gemm", figure="x", unit="s", now=2.0, before=1.0, proofs=3)
    said = json.loads(as_json.smoke(report(PASSED, HUNG, UNTRIED, IDLE, slower=(slow,))))
    jsonschema.Draft202012Validator(SCHEMA).validate(said)
    assert said["schema"] == "torchtune-sys/smoke/1" and [stage["verdict"] for stage in said["stages"]] == [
        "pass",
        "fail",
        "unknown",
        "na",
    ]
    del said["stages"]
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(said)


def test_junit_counts_and_escapes() -> None:
    suite = ElementTree.fromstring(render.junit(report(PASSED, HUNG, UNTRIED, IDLE))).find("testsuite")
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "2"]
    failure = suite.find("testcase[@name='ddp']/failure")
    assert failure is not None and failure.get("type") == "rank-stopped" and "<&>" in (failure.get("message") or "")


def _slow(figure: str, now: float) -> FigureComparison:
    return FigureComparison(stage="ddp", figure=figure, unit="s", now=now, before=1.0, proofs=4)


def test_where_others_hold_the_cpus_what_is_slower_is_a_line_that_says_so() -> None:
    crowd = msgspec.structs.replace(
        PASSED, stage="device", figures=(Figure(name="processes for each CPU before the test", value=12.2, unit=""),)
    )
    many = tuple(_slow(f"figure {number}", 2.0 + number) for number in range(6))
    said = text(report(crowd, PASSED, slower=many))
    assert "figure 5" in said
    assert "figure 4" not in said
    assert "other work used the CPUs: 12 processes per CPU" in said
    assert "and 5 more figures (--verbose)" in said
    assert "figure 0" in text(report(crowd, PASSED, slower=many), verbose=True)
    calm = text(report(PASSED, slower=many))
    assert "others held" not in calm
    assert "figure 3" in calm
    assert "and 3 more figures" in calm
