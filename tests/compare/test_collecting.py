"""What one host's answer becomes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from torchtune_sys.fleet.collecting import Answer, collect, line
from torchtune_sys.fleet.over_clustershell import ClusterShell, answers
from torchtune_sys.fleet.over_slurm import Slurm
from two_users import PROGRAM

FACTS = '{"schema": "torchtune-sys/facts/1", "facts": {}, "volatile": {"epoch_s": 1000.5}}'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(host="h", why="no answer within 9 s"), "no answer within 9 s"),
        (Answer(host="h", status=255, error="ssh: no route\n"), "exit status 255: ssh: no route"),
        (Answer(host="h", status=0, out="hello\n"), "answered no JSON of ours, but: hello"),
        (Answer(host="h", status=0), "answered nothing"),
        (Answer(host="h", status=0, out='{"a": 1}'), 'answered no JSON of ours, but: {"a": 1}'),
        (Answer(host="h", status=0, out="[" * 9999), "answered no JSON of ours, but: [[["),
    ],
)
def test_a_host_without_a_document_is_told_with_the_reason(answer: Answer, why: str) -> None:
    assert line(answer)["why"].startswith(why)


@pytest.mark.parametrize("noise", ["", "Last login: today\n{oops\n", "{}\n"])
def test_what_a_login_prints_before_is_left_out(noise: str) -> None:
    assert line(Answer(host="h", status=1, out=f"{noise}{FACTS}\nbye\n"))["document"]["schema"] == "torchtune-sys/facts/1"


def test_a_document_of_many_lines_is_read() -> None:
    assert "document" in line(
        Answer(host="h", status=0, out='hello\n{\n "schema": "torchtune-sys/report/1",\n "results": []\n}\n')
    )


@pytest.mark.parametrize(("begun", "ended", "offset"), [(999, 1003, 0), (1001.9, 1003, 0), (1300, 1310, -300), (500, 510, 490)])
def test_a_clock_is_wrong_by_as_much_as_it_is_outside_of_the_time_of_asking(begun: float, ended: float, offset: int) -> None:
    answer = Answer(host="h", status=0, out=FACTS, begun_s=begun, ended_s=ended)
    assert abs(line(answer)["clock_offset_s"] - offset) <= 1


def test_what_clush_says_of_each_host() -> None:
    found = answers(
        ["a", "b", "c", "d"],
        f"a: {FACTS}\nb: motd\nb: {FACTS}\nnobody: x\n",
        "c: no route\nclush: c: exited with exit code 255\nclush: d: command timeout\n",
        9,
    )
    assert [(one.host, one.status, one.why) for one in found] == [
        ("a", 0, ""),
        ("b", 0, ""),
        ("c", 255, ""),
        ("d", None, "no answer within 9 s"),
    ]
    assert line(found[2])["why"] == "exit status 255: no route"


def test_a_name_that_is_an_option_of_ssh_is_given_to_no_transport() -> None:
    """``fleet --nodes 'n1,-oProxyCommand=…'``: ssh ran it, as whoever called."""
    asked: list[str] = []

    class Listed:
        width = 9

        def hosts(self) -> tuple[list[str], list[Answer]]:
            return ["n1", "-oProxyCommand=touch${IFS}x", "../../etc/passwd", "ada@n2", "n3;x", "ada@-oProxyCommand=x"], []

        def run(self, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> list[Answer]:
            asked.extend(hosts)
            return [Answer(host=host, status=0, out=FACTS) for host in hosts]

    rows: list[str] = []
    collect(Listed(), ("x",), 5.0, 9, rows.append, lambda count: None)
    assert asked == ["n1", "ada@n2"]
    refused = [row["host"] for row in map(json.loads, rows) if row.get("why") == "not asked: this is no name of a host"]
    assert len(rows) == 6 and len(refused) == 4


@pytest.mark.skipif(shutil.which("clush") is None, reason="clustershell is not installed")
def test_clush_starts_nothing_that_a_node_set_names(tmp_path: Path) -> None:
    def said(nodes: str) -> str:
        words = [*PROGRAM, "fleet", "--timeout", "5", "--nodes", nodes, "--", "true"]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=120).stderr

    subprocess.run(
        ["clush", "-w", "nowhere.invalid,-oProxyCommand=touch${IFS}plain", "true"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert os.listdir(tmp_path) == ["plain"], "clush by itself hands it to ssh, which runs it"
    said("-oProxyCommand=touch${IFS}ran"), said("nowhere.invalid,-oProxyCommand=touch${IFS}ran")
    assert os.listdir(tmp_path) == ["plain"]


def test_a_host_that_prints_without_end_costs_no_other_its_answer(tmp_path: Path) -> None:
    """clush asks several at once, and all of them had no answer."""
    script = 'for host in $(echo "$3" | tr , " "); do case $host in evil) yes evil: x | head -c 40m ;; *) echo "$host: {}" ;; esac; done'
    (tmp_path / "clush").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "clush").chmod(0o755)
    names = [f"n{number}" for number in range(7)]
    shell = ClusterShell("", {"PATH": f"{tmp_path}:/usr/bin:/bin"}, 64)
    found = {answer.host: answer for answer in shell.run([*names[:3], "evil", *names[3:]], ("x",), 30.0)}
    assert all(found[name].out.strip() == "{}" for name in names) and "printed more than" in found["evil"].why


def test_a_host_that_hangs_holds_up_few_others(tmp_path: Path) -> None:
    """All 64 that are asked at once waited for it, and after them the next 64 for theirs."""
    script = 'case ,$3, in *,n7,*) sleep 3;; esac; for host in $(echo "$3" | tr , " "); do echo "$host: $FACTS"; done'
    (tmp_path / "clush").write_text(f"#!/bin/sh\nFACTS='{FACTS}'\n{script}\n")
    (tmp_path / "nodeset").write_text("#!/bin/sh\nseq -f n%g 64\n")
    for name in ("clush", "nodeset"):
        (tmp_path / name).chmod(0o755)
    shell, began_s, after_s = ClusterShell("n[1-64]", {"PATH": f"{tmp_path}:/usr/bin:/bin"}, 64), time.monotonic(), []
    collect(shell, ("x",), 30.0, 64, lambda row: after_s.append(time.monotonic() - began_s), lambda count: None)
    assert len(after_s) == 64 and sum(seconds < 3 for seconds in after_s) == 56, after_s


STATES = {
    "n1": "idle",
    "n2": "drained",
    "n3": "allocated",
    "n4": "mixed",
    "n5": "idle~",
    "n6": "draining",
    "n7": "down*",
    "n8": "maint",
}


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, ["n1", "n4"]),
        ({"SLURM_JOB_ID": "7"}, ["n1", "n2", "n3", "n4", "n6", "n8"]),
        ({"SLURM_RESERVATION": "mine"}, ["n1", "n2", "n3", "n4", "n6", "n8"]),
    ],
)
def test_srun_waits_for_no_node_on_which_slurm_starts_no_job(tmp_path: Path, variables: dict[str, str], asked: list[str]) -> None:
    rows = "".join(f"{name}|{state}|{'bad fan' if state == 'drained' else 'none'}\n" for name, state in STATES.items())
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat <<'E'\n{rows}E\n")
    (tmp_path / "sinfo").chmod(0o755)
    hosts, told = Slurm("", {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}).hosts()
    assert list(hosts) == asked
    why = {one.host: one.why for one in told}
    assert sorted([*why, *asked]) == sorted(STATES)
    assert variables or (
        why["n2"].startswith("Slurm calls it drained: bad fan; no job can start there now") and "ssh" in why["n3"]
    )


def test_a_step_on_one_node_is_not_asked_for_what_the_whole_job_has(tmp_path: Path) -> None:
    """srun of Slurm 22.05 in ``sbatch -N2 -G4``: Unable to create step: Invalid generic resource (gres) specification."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$*"; env\n')
    (tmp_path / "srun").chmod(0o755)
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS": "4",
        "SLURM_NTASKS_PER_GPU": "1",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_GPUS_ON_NODE": "2",
    }
    (answer,) = Slurm("n1", {"PATH": f"{tmp_path}:/usr/bin:/bin", **job}).run(["n1"], ("true",), 20)
    told = dict(row.split("=", 1) for row in answer.out.splitlines() if row.startswith("SLURM_"))
    assert told == {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "2"}
    assert answer.out.startswith("--quiet --nodes=1 --ntasks=1 --nodelist=n1 --input=none --overlap --gpus-per-node=2 true\n")
    (answer,) = Slurm("n1", {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}).run(
        ["n1"], ("true",), 20
    )
    assert "--gpus" not in answer.out
