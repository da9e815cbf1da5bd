"""The proof that a run leaves, how it ages, and what a later run is compared with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, SmokeReport, StageResult, Team
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.probes.proof import PROOF_LIMIT
from torchtune_sys.smoke import proof

DAY_S = 86400.0


def report(rate: float = 100.0, seconds: float = 2.0, *, verdict: Verdict = Verdict.PASS, level: str = "default") -> SmokeReport:
    figures = (
        Figure(name="GEMM", value=rate, unit="TFLOP/s"),
        Figure(name="cold", value=seconds, unit="s"),
        Figure(name="loss", value=rate, unit=""),
    )
    return SmokeReport(
        version="1", time="2026-11-01T00:00:00Z", host="trainer", team=Team(python="/p", torch="2.13.0", ranks=2, level=level),
        verdict=verdict, seconds=1.0, stages=(StageResult(stage="gemm", verdict=verdict, seconds=1.0, figures=figures),),
    )  # fmt: skip


NOW = {"kernel": "6.8", "driver": "580.95.05", "gpus": "abcd", "torch": "2.11.0", "nofile": "1024"}


def after(*reports: SmokeReport, now: dict[str, str] = NOW) -> proof.Proof:
    found = None
    for number, one in enumerate(reports):
        found = proof.parse(proof.grown(found, one, now, number * DAY_S))
        assert found is not None
    assert found is not None
    return found


def test_what_is_written_is_read_back() -> None:
    found = after(report(100.0), report(110.0))
    assert [run.figures["gemm/GEMM/TFLOP/s"] for run in found.runs] == [100.0, 110.0]
    assert found.runs[0].fingerprint["ranks"] == "2"
    assert not any("loss" in name for name in found.runs[0].figures)  # no rate: nothing to compare


def test_no_more_is_written_than_is_read() -> None:
    """Runs with names of hundreds of figures: the oldest go, and the last one stays."""
    many = tuple(Figure(name=f"{'n' * 4000}{number}", value=1.0, unit="s") for number in range(20))
    stage = StageResult(stage="gemm", verdict=Verdict.PASS, seconds=1.0, figures=many)
    found = None
    for number in range(9):
        text = proof.grown(found, msgspec.structs.replace(report(), stages=(stage,)), NOW, number * DAY_S)
        assert len(text) <= PROOF_LIMIT
        found = proof.parse(text)
        assert found is not None
    assert found is not None and found.runs[-1].epoch_s == 8 * DAY_S and len(found.runs) < 9


@pytest.mark.parametrize("harm", ["figure", "time", "digest", "schema", "no runs"])
def test_a_proof_that_was_changed_by_hand_is_none(harm: str) -> None:
    document: dict[str, Any] = json.loads(proof.grown(None, report(), NOW, 5.0))
    if harm == "figure":
        document["runs"][0]["figures"]["gemm/GEMM/TFLOP/s"] = 999.0
    elif harm == "time":
        document["runs"][0]["epoch_s"] = 1e9
    elif harm == "digest":
        document["digest"] = "0" * 64
    elif harm == "schema":
        document["schema"] = "torchtune-sys/proof/2"
    else:
        document["runs"] = []
    assert proof.parse(json.dumps(document)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": 3}', "\udcff", "null", '{"runs": [{}]}', "0" * 100000])
def test_garbage_is_no_proof(text: str) -> None:
    assert proof.parse(text) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kernel", "kernel changed since the smoke test last passed"),
        ("driver", "driver changed since the smoke test last passed"),
        ("gpus", "GPUs changed since the smoke test last passed"),
        ("torch", "torch changed since the smoke test last passed"),
        ("nofile", "limit nofile changed since the smoke test last passed"),
    ],
)
def test_each_thing_that_a_proof_rests_on_can_outdate_it(name: str, words: str) -> None:
    found = after(report())
    assert proof.standing(found, NOW, 2 * DAY_S) == "training proven 2 days ago"
    assert proof.standing(found, {**NOW, name: "other"}, 60.0) == words
    # What could not be read today is not said to have changed.
    assert proof.standing(found, {key: value for key, value in NOW.items() if key != name}, 60.0) == "training proven just now"


def test_the_last_twenty_runs_are_kept() -> None:
    found = after(*(report(float(rate)) for rate in range(1, 25)))
    assert [run.figures["gemm/GEMM/TFLOP/s"] for run in found.runs] == [float(rate) for rate in range(5, 25)]


def test_slower_than_ever_here_is_said() -> None:
    before = after(report(100.0), report(102.0), report(98.0))
    (found,) = proof.slower(before, report(70.0), NOW)
    assert (found.stage, found.figure, found.now, found.before, found.proofs) == ("gemm", "GEMM", 70.0, 100.0, 3)
    (longer,) = proof.slower(before, report(100.0, seconds=3.0), NOW)
    assert (longer.figure, longer.unit) == ("cold", "s")


@pytest.mark.parametrize(
    ("history", "rate", "why"),
    [
        ((100.0, 102.0), 10.0, "two runs say nothing of what is usual"),
        ((100.0, 102.0, 98.0), 92.0, "within a tenth"),
        ((100.0, 102.0, 98.0), 130.0, "faster"),
        ((100.0, 60.0, 140.0, 80.0, 120.0), 70.0, "it always varied so much"),
        ((100.0, 105.0, 95.0, 110.0, 90.0), 80.0, "one of forty figures is that far off in most runs"),
    ],
)
def test_noise_is_not_told_as_a_loss(history: tuple[float, ...], rate: float, why: str) -> None:
    assert proof.slower(after(*map(report, history)), report(rate), NOW) == (), why


@pytest.mark.parametrize("name", ["gpus", "torch"])
def test_only_runs_on_the_same_hardware_and_software_are_compared(name: str) -> None:
    before = after(report(100.0), report(102.0), report(98.0))
    assert proof.slower(before, report(50.0), NOW)
    assert proof.slower(before, report(50.0), {**NOW, name: "other"}) == ()
    assert proof.slower(before, report(50.0, level="quick"), NOW) == ()
    assert proof.slower(None, report(50.0), NOW) == ()


def test_the_fingerprint_of_a_host_hides_its_uuids(healthy: Snapshot) -> None:
    found = proof.fingerprint(healthy)
    assert found["driver"] == "580.95.05"
    assert found["kernel"] == "6.8.0-45-generic"
    assert found["torch"].startswith("2.11.0")
    assert set(found) == {"kernel", "driver", "gpus", "torch", "nccl", "python", "packages", "nofile", "memlock"}
    assert "GPU-" not in json.dumps(found)


def test_another_version_of_a_package_beside_torch_ends_a_proof(healthy: Snapshot) -> None:
    python = healthy.python
    assert isinstance(python, PythonFacts) and isinstance(python.distributions, tuple)
    held = proof.Proof(runs=(proof.Past(time="", epoch_s=0.0, fingerprint=proof.fingerprint(healthy), figures={}),))
    fewer = msgspec.structs.replace(healthy, python=msgspec.structs.replace(python, distributions=python.distributions[:-1]))
    assert proof.standing(held, proof.fingerprint(healthy), 60.0) == "training proven just now"
    assert (
        proof.standing(held, proof.fingerprint(fewer), 60.0) == "packages beside torch changed since the smoke test last passed"
    )
