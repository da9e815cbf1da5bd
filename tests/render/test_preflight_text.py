"""The text of a pre-flight of one node."""

from __future__ import annotations

from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.render import preflight
from torchtune_sys.render.layout import Style


def shown(verdict: Go, *causes: Cause) -> str:
    nodes = (NodeVerdict(node="n1", verdict=verdict, causes=causes),)
    found = Preflight(
        version="0",
        time="",
        epoch_s=0.0,
        where="alone",
        level="standard",
        seconds=1.0,
        verdict=verdict,
        nodes=nodes,
        scale=Scale(nodes=1, ranks=1),
        proof="training proven just now",
    )
    return preflight.text(found, Style(width=200))


def stage(name: str, seen: str, weight: Weight = Weight.UNKNOWN) -> Cause:
    return Cause(cause=f"smoke-{name}", rule=f"smoke:{name}", blame=Blame.CHECKER, weight=weight, seen=seen)


def test_stages_that_were_not_reached_take_one_line_and_failed_ones_a_line_each() -> None:
    failed = [stage(name, "wrong sum", Weight.FATAL) for name in ("gemm", "conv")]
    text = shown(Go.NO_GO, *failed, stage("train", "died"), *(stage(name, "not reached") for name in ("ddp", "fsdp", "join")))
    assert "smoke-gemm: wrong sum" in text and "smoke-conv: wrong sum" in text
    assert "smoke-train: died" in text and "smoke-ddp and 2 more stages: not reached" in text and "smoke-fsdp" not in text


def test_figures_that_are_slower_take_one_line_and_a_no_go_says_what_helps() -> None:
    slow = [
        Cause(cause="straggler-compute", rule=f"smoke:{name}", blame=blame, weight=Weight.WARNING, seen=f"{name} 30% worse")
        for name, blame in (("gemm", Blame.HARDWARE), ("conv", Blame.HARDWARE), ("dataloader", Blame.NODE))
    ]
    missing = Cause(cause="torch-not-installed", rule="smoke:import", blame=Blame.USER, weight=Weight.FATAL, seen="no torch")
    text = shown(Go.NO_GO, missing, *slow)
    assert "straggler-compute and 2 more figures: gemm 30% worse" in text and "conv" not in text
    assert "  next     torch-not-installed: use the interpreter that has torch" in text
    assert "next" not in shown(Go.GO, *slow)


def test_beside_a_no_go_no_proof_is_shown() -> None:
    assert "proven" in shown(Go.GO) and "proven" not in shown(Go.NO_GO, stage("gemm", "wrong sum", Weight.FATAL))


def test_the_first_line_names_the_cause_and_the_last_what_to_do() -> None:
    torch = Cause(cause="torch-not-installed", rule="smoke:import", blame=Blame.NODE, weight=Weight.FATAL, seen="no torch")
    page = shown(Go.NO_GO, torch, stage("gemm", "wrong sum", Weight.FATAL)).splitlines()
    assert page[0].startswith("NO-GO n1: torch-not-installed and 1 more: no job should start here")
    assert any(row.split()[:2] == ["next", "torch-not-installed:"] for row in page)
    assert "may start here: smoke-gemm (alone" in shown(Go.UNKNOWN, stage("gemm", "not reached")).splitlines()[0]
