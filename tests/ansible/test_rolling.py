"""A few hosts at a time: where one fails the rest is left alone, or not, as the limit says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fleet
import pytest
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
            machine.sh(f"mkdir -p {RUNS}; mount -t tmpfs -o ro,mode=0755 none {RUNS}")
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
    whole = [
        one.host
        for one in played.tasks
        if one.task.endswith("Fail if a step is still to be done, or the host could not be checked")
    ]
    print(serial, limit, whole)
    assert whole == reached, played.output
    begun = [name for name in NAMES if played.of(name, "torchtune_apply")]
    assert begun == (["first", "second"] if serial == 1 else list(NAMES)), (
        "a batch of which nothing is left ends the play, whatever the limit"
    )
