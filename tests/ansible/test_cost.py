"""What the role's check costs on four hosts, in pairs with ``ansible.builtin.setup`` in the same run, by forks."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import fleet
import pytest
from controller import Plays
from ssh_machines import machines

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

PAIRS = 5
HOSTS = [f"host{number}" for number in range(1, 5)]


def play(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"hosts": "all", "gather_facts": False, "tasks": [task]}]


SETUP = play({"ansible.builtin.setup": {}})
CHECK = play({"ansible.builtin.include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "check"}})


def test_the_check_costs_little_more_than_gathering_facts(work: Path, bundle: Path) -> None:
    with machines(work, dict.fromkeys(HOSTS, "bookworm")) as (controller, made):
        plays = Plays(work, fleet.inventory(controller, made), controller, {"ANSIBLE_PIPELINING": "0"})
        tool = {"ansible.builtin.include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "tool"}}
        assert plays.play(play(tool), torchtune_sys_source=str(bundle)).status == 0
        seconds: dict[tuple[str, int, int], list[float]] = {}
        for forks, hosts in ((1, 1), (1, 4), (4, 4)):
            limit = ("--forks", str(forks), "--limit", ",".join(HOSTS[:hosts]))
            for pair in range(PAIRS + 1):
                for name, what in (("setup", SETUP), ("check", CHECK)):
                    began = time.monotonic()
                    played = plays.play(what, *limit)
                    assert played.status == 0, played.output
                    if pair:  # the first one unpacks, connects, compiles
                        seconds.setdefault((name, forks, hosts), []).append(time.monotonic() - began)
        middle = {key: statistics.median(values) for key, values in seconds.items()}
        for (name, forks, hosts), value in middle.items():
            print(f"{name}: {hosts} hosts, {forks} forks: {value:.2f} s")
        for forks, hosts in ((1, 1), (1, 4), (4, 4)):
            ratios = [
                one / other for one, other in zip(seconds["check", forks, hosts], seconds["setup", forks, hosts], strict=True)
            ]
            print(
                f"{hosts} hosts, {forks} forks: check / setup {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        per_host = (middle["check", 1, 4] - middle["check", 1, 1]) / 3
        print(
            f"one host more, at one fork: {per_host:.2f} s of the controller's time and the host's; 1,000 hosts at 50 forks: {per_host * 1000 / 50:.0f} s"
        )
        best = min(one / other for one, other in zip(seconds["check", 4, 4], seconds["setup", 4, 4], strict=True))
        assert best <= 1.5
