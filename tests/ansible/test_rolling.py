"""A few hosts at a time: where one fails the rest is left alone, or not, as the limit says; jobs are taken off first, by a real Slurm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import pytest
import slurm_here
from controller import Plays
from ssh_machines import Machine, machines

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

NAMES = ("first", "second", "third")
RUNS = "/var/lib/torchtune-sys"


@pytest.fixture(scope="module")
def lab(work: Path, bundle: Path) -> Iterator[tuple[Plays, dict[str, Machine]]]:
    with machines(work, dict.fromkeys(NAMES, "bookworm")) as (controller, made):
        yield Plays(work, fleet.inventory(controller, made), controller), made


@pytest.mark.parametrize(
    ("serial", "limit", "reached"),
    [(1, 0, ["first"]), (1, 100, ["first"]), (3, 0, []), (3, 50, ["first", "third"])],
)
def test_a_host_that_fails_stops_the_rest_or_not(
    serial: int, limit: int, reached: list[str], lab: tuple[Plays, dict[str, Machine]], bundle: Path, tmp_path: Path
) -> None:
    """The second one's journals cannot be written. With three at once, all stop after the task in which it failed."""
    plays, made = lab
    for name, machine in made.items():
        machine.sh(
            f"torchtune-sys undo --all --yes >/dev/null 2>&1; umount {RUNS} 2>/dev/null; rm -rf {RUNS} /etc/ansible /var/order; true"
        )
        fleet.detune(machine)
        if name == "second":
            machine.sh(f"mkdir -p {RUNS}; mount -t tmpfs -o ro none {RUNS}")
    for name in ("drain", "resume"):
        task = {"ansible.builtin.shell": f"echo {name} >>/var/order"}
        (tmp_path / f"{name}.json").write_text(json.dumps([task]))
    played = plays.play(
        "torchtune.sys.rolling_apply",
        torchtune_sys_source=str(bundle),
        torchtune_sys_serial=serial,
        torchtune_sys_max_fail_percentage=limit,
        torchtune_sys_drain=str(tmp_path / "drain.json"),
        torchtune_sys_resume=str(tmp_path / "resume.json"),
    )
    assert played.status != 0 and [name for name in NAMES if played.failed(name)] == ["second"], played.output
    whole = [name for name in NAMES if played.of(name, "assert")]
    print(serial, limit, whole)
    assert whole == reached, played.output
    begun = [name for name in NAMES if played.of(name, "torchtune_apply")]
    assert begun == (["first", "second"] if serial == 1 else list(NAMES)), (
        "a batch of which nothing is left ends the play, whatever the limit"
    )


def test_slurm_lets_jobs_end_and_what_somebody_else_drained_stays_so(work: Path, tmp_path: Path) -> None:
    try:
        with slurm_here.cluster(tmp_path, "task/none", 2) as env:
            plays = Plays(work, {"here": {"ansible_connection": "local"}}, env=env)

            def slurm(*argv: str) -> str:
                return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

            def state() -> str:
                return slurm("sinfo", "-h", "-N", "-n", "here", "-o", "%T %E")

            job = slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 15")
            until = time.monotonic() + 60
            while slurm("squeue", "-h", "-j", job, "-o", "%T") != "RUNNING" and time.monotonic() < until:
                time.sleep(0.2)
            drained = plays.play(role("drain"), torchtune_sys_drain="slurm")
            assert drained.status == 0, drained.output
            print(state(), "; jobs:", slurm("squeue", "-h"))
            assert slurm("squeue", "-h") == "" and state().startswith("drained torchtune-sys")
            back = plays.play(role("give_back"), torchtune_sys_drain="slurm")
            assert back.status == 0 and state().startswith("idle"), back.output

            slurm("scontrol", "update", "nodename=here", "state=drain", "reason=fan is loud")
            for tasks in ("drain", "give_back"):
                played = plays.play(role(tasks), torchtune_sys_drain="slurm")
                assert played.status == 0 and played.changed("here") == [], played.output
            assert state() == "drained fan is loud"
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


def role(tasks: str) -> list[dict[str, Any]]:
    include = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": tasks}}
    return [{"hosts": "here", "gather_facts": False, "tasks": [include]}]
