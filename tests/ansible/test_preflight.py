"""The hosts of a job judged together, started by Ansible without a scheduler, on machines with torch: who is to blame is named on all of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fleet
import pytest
from controller import Played, Plays
from ssh_machines import NOBODY_THERE, Machine, machines

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

NAMES = ("node1", "node2", "node3")
VENV = "/opt/torch"


def packages() -> str:
    """Where torch lies here, for the Python of the machines. Skips the test without it."""
    python = os.environ.get("TORCHTUNE_SYS_TEST_TORCH")
    if not python:
        pytest.skip("needs TORCHTUNE_SYS_TEST_TORCH: a Python 3.11 with torch")
    asked = "import os, sys, torch; print('%d.%d' % sys.version_info[:2], os.path.dirname(os.path.dirname(torch.__file__)))"
    version, place = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    if version != "3.11":
        pytest.skip(f"torch is for Python {version}, and the machines have 3.11")
    return place


@pytest.fixture(scope="module")
def nodes(work: Path, bundle: Path) -> Iterator[tuple[Plays, dict[str, Machine]]]:
    with machines(work, dict.fromkeys(NAMES, "bookworm"), f"--bind-ro={packages()}:/srv/torch") as (controller, made):
        for machine in made.values():
            machine.sh(f"python3 -m venv --without-pip {VENV} && echo /srv/torch >{VENV}/lib/python3.11/site-packages/torch.pth")
        hosts = fleet.inventory(controller, made)
        hosts["away"] = {"ansible_host": NOBODY_THERE, **fleet.login(controller)}
        yield Plays(work, hosts, controller), made


def together(plays: Plays, bundle: Path, *names: str) -> Played:
    """Whatever the machines' settings are, they are alike: only what is planted tells."""
    limit = ",".join([*names, "localhost"])
    return plays.play(
        "torchtune.sys.preflight",
        *("--limit", limit, "--forks", "2"),
        torchtune_sys_source=str(bundle),
        torchtune_sys_python=f"{VENV}/bin/python",
        torchtune_sys_preflight_budget=300,
    )


def told(plays: Plays) -> dict[str, dict[str, object]]:
    document = json.loads(Path(plays.work, "torchtune-report/fleet.json").read_text())
    print(Path(plays.work, "torchtune-report/fleet.md").read_text())
    return {one["host"]: one for one in document["hosts"]}


def test_good_hosts_are_good_and_a_bad_one_is_named(nodes: tuple[Plays, dict[str, Machine]], bundle: Path) -> None:
    plays, made = nodes
    played = together(plays, bundle, *NAMES)
    assert played.status == 0, played.output
    results = [played.of(name, "async_status")[-1] for name in NAMES]
    assert [(one["verdict"], one["job"], one["bad"], one["absent"]) for one in results] == [("go", "go", [], [])] * 3, results

    hosts = made["node2"].root / "etc/hosts"
    before = hosts.read_text()
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node2\n")
    try:
        played = together(plays, bundle, *NAMES)
    finally:
        hosts.write_text(before)
    assert played.status != 0 and [name for name in NAMES if played.failed(name)] == ["node2"], played.output
    results = [played.of(name, "async_status")[-1] for name in NAMES]
    assert [one["verdict"] for one in results] == ["go", "no-go", "go"], results
    assert {(one["job"], *one["bad"]) for one in results} == {("no-go", "node2")}
    report = told(plays)
    assert report["node2"]["state"] == "no-go" and "hostname-resolves-to-loopback" in str(report["node2"]["reason"])
    assert Path(plays.work, "torchtune-report/good_hosts.txt").read_text() == "node1\nnode3\n"


def test_a_host_that_is_not_reached_is_named_as_one_that_never_came(
    nodes: tuple[Plays, dict[str, Machine]], bundle: Path
) -> None:
    """It would have been the one that the others meet at."""
    plays, _ = nodes
    played = together(plays, bundle, "away", "node1", "node3")
    report = told(plays)
    assert played.status != 0 and report["away"]["state"] == "unreachable", played.output
    results = [played.of(name, "async_status")[-1] for name in ("node1", "node3")]
    told_ = [(one["verdict"], one["job"], one["absent"] or one["bad"]) for one in results]
    assert told_ == [("go", "no-go", ["away"])] * 2, results
