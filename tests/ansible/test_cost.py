"""What the role's check costs on four hosts, in pairs with ``ansible.builtin.setup`` in the same run, by forks."""

from __future__ import annotations

import resource
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


def of_controller() -> float:
    """Processor time of the plays until now: ansible-playbook with its forks and ssh; what runs on the hosts is none of it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        work_s: dict[int, list[float]] = {1: [], 4: []}
        for forks, hosts in ((1, 1), (1, 4), (4, 4)):
            limit = ("--forks", str(forks), "--limit", ",".join(HOSTS[:hosts]))
            for pair in range(PAIRS + 1):
                for name, what in (("setup", SETUP), ("check", CHECK)):
                    began, worked = time.monotonic(), of_controller()
                    played = plays.play(what, *limit)
                    assert played.status == 0, played.output
                    if pair:  # the first one unpacks, connects, compiles
                        seconds.setdefault((name, forks, hosts), []).append(time.monotonic() - began)
                        if name == "check":
                            work_s[hosts].append(of_controller() - worked)
        middle = {key: statistics.median(values) for key, values in seconds.items()}
        ratios = {}
        for (name, forks, hosts), checks in seconds.items():
            if name == "check":
                setups = seconds["setup", forks, hosts]
                found = [one / other for one, other in zip(checks, setups, strict=True)]
                ratios[forks, hosts] = statistics.median(found)
                spread = f"{ratios[forks, hosts]:.2f} ({min(found):.2f} to {max(found):.2f})"
                times = f"setup {middle['setup', forks, hosts]:.1f} s, check {middle['check', forks, hosts]:.1f} s"
                print(f"hosts {hosts}, forks {forks}: check / setup {spread}; {times}")
        more = (middle["check", 1, 4] - middle["check", 1, 1]) / 3
        print(f"one host more at one fork: {more:.2f} s; 1,000 hosts at 50 forks, if nothing is scarce: {more * 1000 / 50:.0f} s")
        each = (statistics.median(work_s[4]) - statistics.median(work_s[1])) / 3
        print(
            f"processor time of the controller: {each:.2f} s a host; 1,000 hosts on 8 cores of its kind: {each * 1000 / 8:.0f} s"
        )
        assert max(ratios.values()) <= 1.5, ratios
