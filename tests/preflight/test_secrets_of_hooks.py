"""Two hundred secrets in what a site's checks, a job and its processes say: none is in Slurm's reason, in a hook's log or at a Kubernetes node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import slurm_here

import warm
from planted_secrets import Secrets
from preflight.slurm_node import MARKS, TOOL, Cluster, generated, marks_alone
from torchtune_sys.cli.joint_run import write_lists
from torchtune_sys.cli.node_patch import patched
from torchtune_sys.model.preflight import (
    Blame,
    Cause,
    Go,
    Heat,
    IsolationReport,
    Link,
    NodeVerdict,
    Preflight,
    Scale,
    Weight,
)
from torchtune_sys.preflight.verdict import without_secrets
from torchtune_sys.render import as_json, preflight
from torchtune_sys.render.layout import Style

FORMS = ("critical", "warning", "unknown", "another status", "JSON", "JSON with a cause", "JSON that is cut", "many lines")


def checks(folder: Path, secrets: Secrets) -> Path:
    """Programs of each form, until there are two hundred secrets."""
    folder.mkdir()
    while len(secrets.planted) < 200:
        number = len(list(folder.iterdir()))
        form = FORMS[number % len(FORMS)]
        said = folder.parent / f"said-{number}"
        words = f"/scratch is not mounted: {secrets.token()} {secrets.random()} {secrets.password()}"
        told = {"verdict": "fail", "seen": words, **({"cause": secrets.token()} if form == "JSON with a cause" else {})}
        text = json.dumps(told) if "JSON" in form else words
        if form == "many lines":
            text = "\n".join([words, *secrets.key(), secrets.token()])
        said.write_text(text[:-2] if "cut" in form else text)
        status = {"critical": 2, "many lines": 2, "warning": 1, "unknown": 3, "another status": 9}.get(form, 0)
        program = folder / f"check-{number:02}"
        program.write_text(f"#!/bin/sh\ncat {said}{' >&2' if status == 9 else ''}\nexit {status}\n")
        program.chmod(0o755)
    return folder


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[tuple[Cluster, Secrets]]:
    if not TOOL.exists():
        pytest.skip(f"the tool is not installed beside {sys.executable}")
    secrets = Secrets(12)
    words = ("--site-checks", str(checks(tmp_path / "checks", secrets)), "--budget", "100")
    for piece in ("prolog", "epilog", "health-check"):
        generated(tmp_path / f"{piece}.sh", piece, *words)
    more = f"Prolog={tmp_path}/prolog.sh\nPrologFlags=Alloc\nPrologEpilogTimeout=180\nSlurmdDebug=debug\n"
    root = tmp_path / "slurm"
    root.mkdir()
    with marks_alone():
        try:
            with slurm_here.cluster(root, "task/none", 1, more) as env:
                yield Cluster(root, env), secrets
        except slurm_here.Unavailable as why:
            pytest.skip(str(why))


def test_none_is_in_a_hook_s_log_or_in_slurm_s_reason(planted: tuple[Cluster, Secrets], tmp_path: Path) -> None:
    cluster, secrets = planted
    named = [f"--job-name=x {secrets.token()}", f"--comment={secrets.password()}"]
    told = {"NCCL_COMMENT": secrets.password(), "TORCH_NOTE": secrets.token()}
    done = cluster.run("env", *(f"{name}={value}" for name, value in told.items()), "srun", "-n1", *named, "true")
    assert done.returncode != 0
    state = cluster.until("DRAIN")
    reason = re.search(r"Reason=torchtune-sys: \[node\] .*hidden-by-torchtune-sys", state)
    assert reason, state
    kept = [mark.read_text() for mark in MARKS if mark.exists()]
    assert kept, "the mark says why the node was drained"
    own = [line for log in cluster.root.glob("*.log") for line in log.read_text().splitlines() if "torchtune" in line]
    assert own, "slurmd tells what the prolog said"
    said = [done.stdout, done.stderr, reason[0], *kept, *own]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": secrets.token(), "SLURM_JOB_COMMENT": secrets.password(), **told}
    for piece in ("prolog", "epilog", "health-check"):
        done = cluster.run("env", *(f"{name}={value}" for name, value in job.items()), tmp_path / f"{piece}.sh")
        said += [done.stdout, done.stderr]
    assert secrets.pieces_in("\n".join(said)) == []
    assert "torchtune-sys: " in "".join(said)


def test_none_is_in_a_condition_a_taint_or_another_form_of_a_verdict(tmp_path: Path) -> None:
    secrets = Secrets(13)
    folder = checks(tmp_path / "checks", secrets)
    lists = tmp_path / "lists"
    lists.mkdir()
    env = {**os.environ, "SLURM_JOB_NAME": secrets.token(), "NCCL_COMMENT": secrets.password()}
    for form in ("text", "json", "prometheus", "reason", "node-patch"):
        argv = [
            *warm.PROGRAM,
            "preflight",
            "--site-checks",
            str(folder),
            "--format",
            form,
            "--budget",
            "100",
            "--lists",
            str(lists),
        ]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done.stderr
        text = done.stdout + done.stderr + "".join(path.read_text() for path in lists.iterdir())
        assert secrets.pieces_in(text) == [], form
        assert "hidden-by-torchtune-sys" in text or form == "prometheus"


def test_none_is_in_any_form_of_a_verdict_whoever_said_it(tmp_path: Path) -> None:
    """Names of processes, errors of the pre-flight itself, words of other nodes: as they come, before they are rendered and written."""
    secrets = Secrets(14)

    def words() -> str:
        return f"{secrets.token()} {secrets.random()} {secrets.password()}"

    def causes() -> tuple[Cause, ...]:
        return tuple(Cause(cause="x", rule="y", blame=Blame.NODE, weight=weight, seen=words()) for weight in Weight)

    nodes = tuple(NodeVerdict(node=f"n{number}", verdict=Go.NO_GO, causes=causes()) for number in range(24))
    link = Link(from_="n1", to="n2", cause="link-delay", seen=words())
    heat = Heat(labels=("n1", "n2"), ms=((None, 1.0), (1.0, None)))
    isolation = IsolationReport(outcome="suspects", why=words(), nodes=("n1",), heat=heat)
    common = {
        "version": "1",
        "time": "2026-01-01T00:00:00Z",
        "epoch_s": 0.0,
        "where": "srun",
        "level": "standard",
        "seconds": 1.0,
    }
    said = Preflight(
        **common, verdict=Go.NO_GO, nodes=nodes, scale=Scale(nodes=24, ranks=24), links=(link,), causes=causes(), isolation=isolation, proof=words()
    )  # fmt: skip
    assert len(secrets.planted) >= 200

    def forms(found: Preflight) -> str:
        write_lists(str(tmp_path), found)
        alone = msgspec.structs.replace(found, nodes=found.nodes[:1], scale=Scale(nodes=1, ranks=1))
        shown = [preflight.text(one, Style(width=100, color=False)) for one in (found, alone)]
        shown += [
            as_json.preflight(found),
            preflight.prometheus(found),
            preflight.reason_of_all(found),
            preflight.reason(nodes[0]),
        ]
        shown += [patched(alone, act=False, at_most="1"), *(path.read_text() for path in tmp_path.iterdir())]
        return "\n".join(shown)

    assert len(secrets.pieces_in(forms(said))) > 100, "they would be seen"
    nodes = without_secrets(said).nodes
    assert secrets.pieces_in(forms(without_secrets(said))) == []
