"""What a run at level standard leaves for those at level fast."""

from __future__ import annotations

import time

import msgspec
import pytest

from conftest import load
from torchtune_sys.cli import standard_level
from torchtune_sys.cli.privilege import boot_id
from torchtune_sys.host import kernel_speed
from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.model.smoke import FigureComparison
from torchtune_sys.preflight import last_standard
from torchtune_sys.preflight.last_standard import LastStandard
from torchtune_sys.preflight.policy import Policy, PolicyTable, parse_policy
from torchtune_sys.rules import CATALOGUE

BAD = Cause(cause="gemm-wrong", rule="smoke:gemm", blame=Blame.NODE, weight=Weight.FATAL, seen="3 elements are wrong")
LATE = Cause(cause="checker-fault", rule="preflight", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen="no time")
RUN = LastStandard(epoch_s=1000.0, boot="b", fingerprint={"driver": "580"}, core_ms={"x": (1.0,)})


def test_what_the_last_run_found_counts_while_it_is_fresh_and_nothing_changed() -> None:
    kept = last_standard.parse(last_standard.encoded(last_standard.after(None, [BAD], RUN)))
    assert kept is not None
    (cause,) = last_standard.causes_that_count(kept, {"driver": "580", "gpus": "y"}, "b", 4600.0)
    assert (cause.cause, cause.weight) == ("gemm-wrong", Weight.FATAL)
    assert cause.seen.endswith("(level standard, an hour ago)")
    assert not last_standard.causes_that_count(kept, {"driver": "590"}, "b", 4600.0)
    assert not last_standard.causes_that_count(kept, {}, "another start", 4600.0)
    assert not last_standard.causes_that_count(kept, {}, "b", 1000.0 + last_standard.FRESH_S + 1)
    assert not last_standard.causes_that_count(kept, {}, "b", 999.0), "the clock was put back"


def test_a_run_that_could_not_judge_changes_no_verdict_and_a_good_one_clears_it() -> None:
    bad = last_standard.after(None, [BAD], RUN)
    assert last_standard.after(bad, [LATE], RUN).causes == (BAD,)
    assert last_standard.after(bad, [], RUN).causes == ()


def test_a_file_that_is_none_counts_for_nothing() -> None:
    for text in ("", "{", "[]", '{"schema": "torchtune-sys/standard/9", "epoch_s": 1, "boot": "", "fingerprint": {}}', "\udcff"):
        assert last_standard.parse(text) is None


def test_a_core_that_is_a_fifth_slower_is_named_and_a_twentieth_is_not() -> None:
    known = last_standard.after(last_standard.after(None, [], RUN), [], RUN)
    assert known.core_ms == {"x": (1.0, 1.0)}
    (cause,) = last_standard.of_core(known, "x", 1.2, Policy())
    assert (cause.cause, cause.blame, cause.weight) == ("straggler-compute", Blame.HARDWARE, Weight.WARNING)
    assert "20% worse than 1 in 2 earlier runs here" in cause.seen
    assert not last_standard.of_core(known, "x", 1.05, Policy())
    assert not last_standard.of_core(known, "another build", 9.0, Policy())
    fatal = parse_policy('fatal = ["straggler-compute"]', "p", CATALOGUE)
    assert last_standard.of_core(known, "x", 1.2, fatal)[0].weight is Weight.FATAL


def test_a_slow_run_is_no_measure_for_later_ones() -> None:
    slow = last_standard.of_core(RUN, "x", 2.0, Policy())
    later = msgspec.structs.replace(RUN, core_ms={"x": (2.0,)})
    assert last_standard.after(RUN, slow, later).core_ms == {"x": (1.0,)}


def test_kernels_of_gpus_are_fatal_those_of_a_shared_cpu_a_warning() -> None:
    slow = FigureComparison(stage="gemm", figure="bf16 GEMM", unit="TFLOP/s", now=80.0, before=100.0, proofs=5)
    gpu, cpu = (last_standard.of_slower([slow], device, Policy())[0] for device in ("cuda", "cpu"))
    assert (gpu.weight, cpu.weight, gpu.blame) == (Weight.FATAL, Weight.WARNING, Blame.HARDWARE)
    little = msgspec.structs.replace(slow, now=92.0)
    assert last_standard.of_slower([little], "cuda", Policy())[0].weight is Weight.WARNING


def test_the_worst_figure_comes_first_and_other_work_is_named() -> None:
    little, much = (
        FigureComparison(stage="gemm", figure=name, unit="TFLOP/s", now=now, before=100.0, proofs=3)
        for name, now in (("a", 90.0), ("b", 20.0))
    )
    found = last_standard.of_slower([little, much], "cpu", Policy(), crowd=8.7)
    assert [cause.seen[0] for cause in found] == ["b", "a"]
    assert all(cause.seen.endswith("; 9 processes per CPU were at work before the test") for cause in found)


def test_a_gpu_that_a_job_used_meanwhile_is_no_straggler_for_certain() -> None:
    slow = FigureComparison(stage="gemm", figure="bf16 GEMM", unit="TFLOP/s", now=50.0, before=100.0, proofs=5)
    assert last_standard.shares_gpus(load("gpu-memory-in-use.fail"))
    assert not last_standard.shares_gpus(load("healthy"))
    assert last_standard.of_slower([slow], "cuda", Policy(), alone=False)[0].weight is Weight.WARNING


def test_in_a_hook_a_training_speaks_against_the_hardware_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root tried a Python without torch on this node: no reason to refuse every job for a day."""
    no_torch = msgspec.structs.replace(BAD, cause="torch-not-installed", rule="smoke:import")
    no_gpu = msgspec.structs.replace(BAD, cause="no-gpu", rule="smoke:device")
    causes = (BAD, no_torch, no_gpu)
    last = msgspec.structs.replace(RUN, causes=causes, boot=boot_id(), epoch_s=time.time() - 60, fingerprint={})
    monkeypatch.setattr(standard_level, "_last", lambda place: last if place == standard_level._own() else None)
    monkeypatch.setattr(standard_level, "_of_core", lambda last, policy: [])
    seen = load("healthy")
    assert [cause.cause for cause in standard_level.causes_that_count(seen, Policy(), hook=True)] == ["gemm-wrong"]
    assert len(standard_level.causes_that_count(seen, Policy(), hook=False)) == 3
    ignoring = Policy(tables=(PolicyTable(ignore=("gemm-wrong",)),))
    assert standard_level.causes_that_count(seen, ignoring, hook=True) == [], "what the policy ignores since"


def test_the_kernel_is_short_and_says_the_same_twice() -> None:
    first, second = (min(kernel_speed.best_ms() for _ in range(5)) for _ in range(2))
    assert 0 < first < 50
    assert max(first, second) < 1.5 * min(first, second)
