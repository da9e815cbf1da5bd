"""Something else in the place of Slurm's commands, and odd values in a job's variables: the generated scripts end in time, run nothing and drain nobody for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.slurm_node import generated
from torchtune_sys.render.generate.slurm import conf, parse_config

NO_GO = "torchtune-sys: [no-gpu] no GPU"
HUGE = "9" * 5000


def put(folder: Path, **bodies: str) -> None:
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)


def ran(script: Path, folder: Path, *words: str, limit_s: float = 60, **variables: str) -> tuple[int, str, float]:
    """The status, what was said, and how long it took; the commands of ``folder`` come first."""
    text = script.read_text().replace("export PATH=", f"export PATH={folder}:").replace("/run/torchtune-sys", f"{folder}/run")
    script.write_text(text)
    started = time.monotonic()
    with (folder / "said").open("wb") as output:
        process = subprocess.Popen(
            ["bash", script, *words],
            env={"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "tt1", **variables},
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"still runs after {limit_s} s")
    return process.returncode, (folder / "said").read_bytes().decode(errors="replace"), time.monotonic() - started


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    put(
        tmp_path,
        scontrol='[ "$3" = "tt[1-11]" ] && printf "tt%s\\n" 1 2 3 4 5 6 7 8 9 10 11',
        srun='case "$*" in *preflight*) for n in 1 2 3 4 5 6 7 8 9 10 11; do echo "preflight tt$n 0 "; done ;; *) printf "<%s>" "$@" ;; esac',
    )
    return generated(tmp_path / "batch.sh", "batch", "--tool", "/opt/tool")


@pytest.mark.parametrize(("asked", "nodes", "tasks"), [("08", 8, 64), ("010", 10, 80), ("8", 8, 64), ("11", 11, None)])
def test_a_number_of_nodes_is_decimal(batch: Path, asked: str, nodes: int, tasks: int | None) -> None:
    status, said, _ = ran(
        batch,
        batch.parent,
        "x",
        SLURM_JOB_NODELIST="tt[1-11]",
        TORCHTUNE_SYS_NODES=asked,
        SLURM_NTASKS="088",
        SLURM_GPUS="a100:088",
    )
    assert status == 0 and f"<--nodes={nodes}>" in said, said
    assert tasks is None or (f"<--ntasks={tasks}>" in said and f"<--gpus=a100:{tasks}>" in said), said


@pytest.mark.sampled(10, 20)
@pytest.mark.parametrize("value", ["a[$(touch ran)]", "nodes[$(touch ran)]", HUGE, "-1", "0", "00", "1 2", "0x8", "8#7", "*"])
@pytest.mark.parametrize(
    "name", ["TORCHTUNE_SYS_NODES", "SLURM_NTASKS", "SLURM_GPUS", "SLURM_JOB_NODELIST", "TORCHTUNE_SYS_EXCLUDE"]
)
def test_no_variable_of_a_job_is_run(batch: Path, name: str, value: str) -> None:
    variables = {"SLURM_JOB_NODELIST": "tt[1-11]", "TORCHTUNE_SYS_NODES": "8", name: value}
    status, said, _ = ran(batch, batch.parent, "x", **variables)
    assert not (batch.parent / "ran").exists()
    assert not re.search(r"line \d+:", said) and len(said) < 8000, said
    assert status == {"TORCHTUNE_SYS_NODES": 64, "SLURM_JOB_NODELIST": 75}.get(name, 0), said


@pytest.mark.parametrize(
    "name", ["a[$(touch ran)]", "$(touch ran)", "x;touch ran", "*", "--nodelist=x", "]", "", "a b", "\x1b[31m", HUGE]
)
def test_no_name_that_scontrol_tells_is_run_or_an_option(batch: Path, name: str) -> None:
    (batch.parent / "names").write_text(f"tt1\n{name}\ntt2\n")
    put(batch.parent, scontrol='[ "$3" = x ] && printf "tt1\\n" || cat names')
    _, said, _ = ran(batch, batch.parent, "x", SLURM_JOB_NODELIST="tt[1-2]", TORCHTUNE_SYS_EXCLUDE="x")
    assert not (batch.parent / "ran").exists()
    assert not re.search(r"line \d+:", said) and (not name or name not in said), said
    assert "1 of 2 nodes are fit" in said, said


@pytest.mark.parametrize("body", ["exit 1", "yes tt1", "trap '' TERM; while :; do sleep 1; done", "head -c 300000000 /dev/zero"])
def test_a_scontrol_that_tells_no_nodes_starts_nothing(batch: Path, body: str) -> None:
    put(batch.parent, scontrol=body)
    batch.write_text(batch.read_text().replace("--kill-after=2 60", "--kill-after=1 3"))
    status, said, _ = ran(batch, batch.parent, "x", SLURM_JOB_NODELIST="tt1", TORCHTUNE_SYS_NODES="70000")
    assert status == 75 and "<" not in said, said


UNENDING = {
    "ignores SIGTERM": "trap '' TERM; while :; do sleep 1; done",
    "never ends and prints": "yes 'State=IDLE x'",
    "1 GB": "head -c 1000000000 /dev/zero",
    "a child holds the pipe": "setsid sh -c 'echo $$ >>left; trap \"\" TERM HUP; exec sleep 100' & exit 0",
    "nothing": "exit 0",
    "fails with an answer": "echo 'NodeName=tt1 State=IDLE Reason=torchtune-sys: [x] y'; exit 1",
    "commands": "echo 'NodeName=$(touch ran) State=a[$(touch ran)] Reason=;touch ran'",
}


@pytest.mark.sampled(6, 9)
@pytest.mark.parametrize("body", UNENDING)
@pytest.mark.parametrize("hook", ["health-check", "prolog", "epilog"])
def test_a_false_scontrol_holds_no_hook_and_takes_no_node_back(tmp_path: Path, hook: str, body: str) -> None:
    put(tmp_path, tool="exit 0", scontrol=f'echo "$*" >>asked; {UNENDING[body]}', sinfo=UNENDING[body], logger="exit 0")
    (tmp_path / "run-drained-tt1").write_text("12\nx\n")
    try:
        status, said, took = ran(generated(tmp_path / "hook.sh", hook, "--tool", f"{tmp_path}/tool"), tmp_path)
    finally:
        ended(tmp_path)
    assert status == 0 and took < 35, said
    assert not (tmp_path / "ran").exists()
    assert "state=resume" not in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "ALLOCATED+DRAIN", "DOWN", "MIXED+FAIL"])
@pytest.mark.parametrize(("hook", "status"), [("prolog", 1), ("epilog", 0), ("health-check", 0)])
def test_a_node_that_somebody_takes_out_while_it_is_checked_keeps_their_reason(
    tmp_path: Path, hook: str, status: int, state: str
) -> None:
    """With ours in its place the health check would resume a node that somebody drained for another reason."""
    put(
        tmp_path,
        tool=f"touch judged; echo '{NO_GO}'; exit 1",
        scontrol=f'echo "$*" >>asked; [ -e {tmp_path}/judged ] && echo "x State={state} Reason=fan broken" || echo "x State=IDLE "',
        logger="exit 0",
    )
    (tmp_path / "tool").write_text((tmp_path / "tool").read_text().replace("judged", f"{tmp_path}/judged"))
    ended_with, said, _took = ran(generated(tmp_path / "hook.sh", hook, "--tool", f"{tmp_path}/tool"), tmp_path)
    assert ended_with == status and "its reason stays" in said, said
    assert "update" not in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(("verdicts", "resumed"), [("00", True), ("0 0", False), ("0 00", True), ("010", False), ("0d0", False)])
def test_a_node_is_resumed_after_two_good_checks_in_a_row(tmp_path: Path, verdicts: str, resumed: bool) -> None:
    """``0``: well; ``1``: not; blank: no verdict; ``d``: somebody resumed it, and it was drained again before the next check."""
    put(
        tmp_path,
        tool=f"read -r verdict <{tmp_path}/verdict; [ $verdict != 1 ] || echo '{NO_GO}'; exit $verdict",
        scontrol=f'echo "$*" >>asked; [ "$1" = update ] && exit; cat {tmp_path}/state',
        sinfo='date "+%FT%T|tt1|torchtune-sys: [x] y"',
        logger="exit 0",
    )
    hooks = {name: generated(tmp_path / f"{name}.sh", name, "--tool", f"{tmp_path}/tool") for name in ("prolog", "health-check")}
    for verdict in verdicts:
        state = "IDLE" if verdict == "d" else "IDLE+DRAIN Reason=torchtune-sys: [x] y"
        (tmp_path / "state").write_text(f"x State={state}\n")
        (tmp_path / "verdict").write_text({"0": "0", " ": "3"}.get(verdict, "1") + "\n")
        ran(hooks["prolog" if verdict == "d" else "health-check"], tmp_path)
    assert ("state=resume" in (tmp_path / "asked").read_text()) == resumed


def test_slurm_ends_no_check_before_it_ends_itself(tmp_path: Path) -> None:
    """slurmd drains the node of a Prolog that it ends (PrologEpilogTimeout), and gives a HealthCheckProgram 60 s."""
    for budget_s in (15.0, 60.0, 100.0):
        timeout = next(line for line in conf(None, budget_s).split("\n") if line.startswith("PrologEpilogTimeout="))
        assert int(timeout.partition("=")[2]) >= budget_s + 45
    assert "PrologEpilogTimeout=60 sec is set already" in conf({"PrologEpilogTimeout": "60 sec"}, 15)
    assert "now 60 sec\nPrologEpilogTimeout=105" in conf({"PrologEpilogTimeout": "60 sec"}, 60)
    hook = generated(tmp_path / "hook.sh", "health-check", "--tool", "/opt/tool", "--level", "standard").read_text()
    assert "--kill-after=2 33 " in hook and "--budget 30" in hook


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("hook", ["prolog", "task-prolog"])
def test_a_tool_on_a_server_that_does_not_answer_holds_no_job(tmp_path: Path, hook: str) -> None:
    """bash's own test of the file hung as long as the server."""
    put(tmp_path, scontrol='echo "x State=IDLE "', logger="exit 0")
    place = tmp_path / "shared"
    script = generated(tmp_path / "hook.sh", hook, "--tool", f"{place}/tool", "--budget", "1")
    inner = f"{sys.executable} {Path(__file__).with_name('hung_mount.py')} {place} && exec bash {script}"
    begun = time.monotonic()
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", inner], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0 and time.monotonic() - begun < 20, done.stderr


COUNTS = {
    "commands": "echo '$(touch ran)|tt1|torchtune-sys: [a[$(touch ran)]] x'; echo 'a[$(touch ran)]|$(touch ran)|torchtune-sys: [x] y'",
    "huge": f"echo '{HUGE}|tt1|torchtune-sys: [x] y'",
    "negative": "echo '-1|tt1|torchtune-sys: [x] y'",
    "nothing": "exit 0",
    "fails with an answer": "date '+%FT%T|tt1|torchtune-sys: [x] y'; exit 1",
    "never ends and prints": 'yes "$(date +%FT%T)|tt1|torchtune-sys: [x] y"',
    "ignores SIGTERM": UNENDING["ignores SIGTERM"],
    "others' names": 'for n in 1 2 3 4 5 6 7 8 9; do date "+%FT%T|tt1$n|torchtune-sys: [x] y|tt1|"; done',
}


@pytest.mark.parametrize("body", COUNTS)
def test_a_false_sinfo_leaves_no_node_drained(tmp_path: Path, body: str) -> None:
    put(
        tmp_path,
        tool=f"echo '{NO_GO}'; exit 1",
        scontrol='echo "$*" >>asked; echo " State=IDLE "',
        sinfo=COUNTS[body],
        logger="exit 0",
    )
    _status, said, took = ran(generated(tmp_path / "hook.sh", "prolog", "--tool", f"{tmp_path}/tool"), tmp_path)
    asked = (tmp_path / "asked").read_text()
    assert not (tmp_path / "ran").exists() and took < 35, said
    assert "state=resume" in asked.splitlines()[-1], (said, asked)


@pytest.mark.parametrize(
    "said", ["PrologFlags = Contain Prolog=/x", "PrologFlags = Alloc\u2028Prolog = /x", "PrologFlags = Alloc\rProlog = /x"]
)
def test_what_scontrol_shows_is_no_second_parameter_in_a_line_of_slurm_conf(said: str) -> None:
    assert [*parse_config(said)] == ["PrologFlags"]
    lines = conf(parse_config(said), 15).split("\n")
    assert not [line for line in lines if "/x" in line and not line.startswith("#")]


def ended(folder: Path) -> None:
    """What escaped with a setsid of its own."""
    left = folder / "left"
    for number in left.read_text().split() if left.exists() else ():
        try:
            os.kill(int(number), signal.SIGKILL)
        except ProcessLookupError:
            continue
