"""Plays over real sshd: hosts that are out of tune are judged, changed and taken back; one that cannot be stops no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fleet
import pytest
from controller import Played, Plays
from ssh_machines import NOBODY_THERE, Machine, machines

from conftest import TIER

SUITES = {"bookworm": "bookworm", "trixie": "trixie", "bullseye": "bullseye", "as-user": "bookworm", "no-python": "bookworm"}
GOOD = ["bookworm", "trixie", "as-user"]
FEW = ["as-user"]
"""What CI has time for: one host, that what needs root is done on by a user who becomes it."""
APPLY, UNDO = (
    "torchtune.sys.site",
    [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [{"import_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "undo"}}],
        }
    ],
)

pytestmark = [pytest.mark.long, pytest.mark.turn(0)]


@dataclass
class Lab:
    plays: Plays
    machines: dict[str, Machine]
    good: list[str]
    """Names of those that the tool runs on."""
    first: Played
    """The check that put the tool there."""

    def play(self, playbook: Any, *options: str, **variables: Any) -> Played:
        """On the hosts that the tool runs on."""
        return self.plays.play(playbook, "--limit", ",".join(self.good), *options, **variables)

    def each(self, what: Any) -> dict[str, Any]:
        return {name: what(self.machines[name]) for name in self.good}


@pytest.fixture(scope="module")
def lab(work: Path, bundle: Path) -> Iterator[Lab]:
    names = list(SUITES) if TIER == "all" else FEW
    with machines(work, {name: SUITES[name] for name in names}) as (controller, made):
        hosts = fleet.inventory(controller, made)
        fleet.admin(made["as-user"])
        hosts["as-user"] |= fleet.login(controller, fleet.ADMIN)
        if "no-python" in made:
            made["no-python"].sh("rm -f /usr/bin/python3* /usr/bin/python*")
        hosts["away"] = {"ansible_host": NOBODY_THERE, **fleet.login(controller)}
        good = [name for name in GOOD if name in made]
        for name in good:
            fleet.detune(made[name])
        plays = Plays(work, hosts, controller)
        first = plays.play("torchtune.sys.check", torchtune_sys_source=str(bundle))
        yield Lab(plays, made, good, first)


@pytest.fixture
def untuned(lab: Lab) -> Lab:
    """Hosts out of tune, with nothing applied."""
    for name in lab.good:
        lab.machines[name].sh("torchtune-sys undo --all --yes >/dev/null 2>&1; rm -rf /var/lib/torchtune-sys /etc/ansible")
        fleet.detune(lab.machines[name])
    return lab


def actions(played: Played, host: str) -> list[str]:
    return [
        change["key"]
        for result in played.of(host, "torchtune_apply")
        for change in result["changes"]
        if change["state"] not in ("left", "refused")
    ]


def test_every_host_is_in_the_report(lab: Lab) -> None:
    document = json.loads(Path(lab.plays.work, "torchtune-report/fleet.json").read_text())
    told = {one["host"]: one for one in document["hosts"]}
    assert set(told) == set(lab.plays.inventory) and lab.first.status != 0
    assert told["away"]["state"] == "unreachable" and NOBODY_THERE in told["away"]["reason"]
    for name in lab.good:
        assert told[name]["state"] == "findings", told[name]
        assert {"task-table-small", "max-map-count-low", "thp-never"} <= {one["rule"] for one in told[name]["findings"]}
        assert told[name]["user"] == (fleet.ADMIN if name == "as-user" else "root")
    markdown = Path(lab.plays.work, "torchtune-report/fleet.md").read_text()
    assert [name for name in told if f"| {name} |" not in markdown] == []
    print(document["summary"])
    assert len(lab.first.of(lab.good[0], "torchtune_check")) == 1, "the check is one task"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"torchtune_sys_unsafe": "maybe"}, "'maybe' is not a valid boolean"),
        ({"torchtune_sys_selct": ["sysctl"]}, "no variable of this role: torchtune_sys_selct"),
    ],
)
def test_a_variable_of_the_wrong_type_or_name_changes_nothing_and_fails(untuned: Lab, wrong: Any, says: str) -> None:
    played = untuned.play(APPLY, **wrong)
    assert played.status != 0, played.output
    for name in untuned.good:
        assert says in played.failed(name)[-1].result["msg"], played.failed(name)
        assert played.of(name, "torchtune_apply") == []


@pytest.mark.exhaustive
def test_hosts_that_the_tool_cannot_run_on_say_why(lab: Lab) -> None:
    document = json.loads(Path(lab.plays.work, "torchtune-report/fleet.json").read_text())
    told = {one["host"]: one for one in document["hosts"]}
    assert told["bullseye"]["state"] == "not-judged"
    assert "Python 3.9" in told["bullseye"]["reason"] and "needs a CPython 3.11 to 3.13" in told["bullseye"]["reason"]
    assert told["no-python"]["state"] == "failed" and "python" in told["no-python"]["reason"].lower()


def test_some_hosts_alone_are_reported_and_each_that_is_bad_fails(lab: Lab) -> None:
    played = lab.plays.play("torchtune.sys.check", "--limit", f"{lab.good[0]},away", torchtune_sys_report_directory="of-some")
    told = json.loads(Path(lab.plays.work, "of-some/fleet.json").read_text())["hosts"]
    assert {one["host"] for one in told} == {lab.good[0], "away"} and played.status != 0
    assert played.failed(lab.good[0]) == [] and [one.state for one in played.failed("away")][-1] == "failed", played.output
    assert played.failed("away")[-1].result["msg"].startswith("not reached: "), played.failed("away")[-1].result


@pytest.mark.exhaustive
def test_the_user_who_trains_is_judged_though_somebody_else_connects(lab: Lab) -> None:
    """Neither is root: Ansible hands its module over by pipelining, since the host has no setfacl."""
    lab.machines["as-user"].sh(
        "id alice >/dev/null 2>&1 || useradd -m -s /bin/bash alice; echo 'alice - nofile 512' >/etc/security/limits.d/alice.conf"
    )
    play = [
        {
            "hosts": "as-user",
            "gather_facts": False,
            "tasks": [{"import_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "check"}}],
        }
    ]
    try:
        played = lab.plays.play(play, torchtune_sys_user="alice", ansible_pipelining=True)
    finally:
        lab.machines["as-user"].sh("rm /etc/security/limits.d/alice.conf")
    assert played.status == 0, played.output
    (result,) = played.of("as-user", "torchtune_check")
    print(result["headline"])
    assert result["user"] == "alice" and "judged as alice" in result["headline"]


@pytest.mark.exhaustive
def test_what_differs_between_the_hosts_is_in_the_report(lab: Lab) -> None:
    """Two are Debian 12, the third is not; the tool on the controller is the file that was copied to them."""
    report = Path(lab.plays.work, "torchtune-report")
    told = json.loads((report / "fleet.json").read_text())["differences"]
    assert told.get("why") is None and told["hosts"] == len(lab.good), told
    print([(one["host"], one["fact"], one["value"], one["usual"]) for one in told["odd"]][:6])
    assert {one["host"] for one in told["odd"]} >= {"trixie"}
    page = (report / "fleet.md").read_text().partition("## What differs between hosts")[2]
    assert "trixie" in page and {path.stem for path in report.glob("facts/*")} == set(lab.good)


@pytest.mark.exhaustive
def test_check_mode_tells_with_a_diff_and_changes_nothing(untuned: Lab) -> None:
    before = untuned.each(lambda one: (fleet.disk(one), fleet.values(one)))
    played = untuned.play(APPLY, "--check", "--diff")
    assert played.status == 0, played.output
    for name, (files, values) in before.items():
        machine = untuned.machines[name]
        assert fleet.differing(files, fleet.disk(machine)) == {}
        assert fleet.differing(values, fleet.values(machine)) == {}
        (result,) = played.of(name, "torchtune_apply")
        told = {one["before_header"]: (one["before"], one["after"]) for one in result["diff"]}
        print(f"{name}: {len(result['changes'])} actions; {len(files)} files and {len(values)} values as before")
        assert result["changed"] and told["/proc/sys/vm/max_map_count"] == ("1000\n", "65530\n"), told
        assert "vm.max_map_count = 65530" in told["/etc/sysctl.d/99-torchtune-sys.conf"][1]
        assert "+65530" in played.output


def test_applied_twice_it_changes_nothing_and_undone_it_is_as_before(untuned: Lab) -> None:
    before = untuned.each(lambda one: (fleet.disk(one), fleet.values(one)))
    sys_before = untuned.each(fleet.sys_values)
    played = untuned.play(APPLY)
    assert played.status == 0, played.output
    for name in untuned.good:
        print(f"{name}: {len(actions(played, name))} actions: {' '.join(actions(played, name))}")
        assert len(actions(played, name)) == len(fleet.WRONG)
        assert untuned.machines[name].sh("cat /proc/sys/vm/max_map_count").strip() == "65530"
    again = untuned.play(APPLY)
    assert again.status == 0 and {name: again.changed(name) for name in untuned.good} == {name: [] for name in untuned.good}, (
        again.output
    )
    for name in untuned.good:
        fleet.detune(untuned.machines[name], {"/proc/sys/kernel/threads-max": "5000"})
    once = untuned.play(APPLY)
    assert {name: actions(once, name) for name in untuned.good} == {name: ["kernel.threads-max"] for name in untuned.good}, (
        once.output
    )
    undone = untuned.play(UNDO)
    assert undone.status == 0, undone.output
    for name, (files, values) in before.items():
        left = fleet.differing(files, fleet.disk(untuned.machines[name]))
        assert [path for path in left if not path.startswith(("/var/lib/torchtune-sys/", "/etc/ansible/"))] == []
        kept = fleet.differing(values, fleet.values(untuned.machines[name]))
        assert {path: kept[path] for path in kept if not path.startswith("/sys")} == {}
        written = fleet.sys_values(untuned.machines[name])
        was = {path: sys_before[name].get(path) or fleet.untouched(path) for path in written}
        print(f"{name}: undone; {len(values)} values as before, and {len(written)} below /sys: {' '.join(written)}")
        assert written == was and "/sys/kernel/mm/transparent_hugepage/enabled" in written


@pytest.mark.exhaustive
def test_a_tool_that_is_no_tool_gives_no_verdict_and_the_next_run_mends(untuned: Lab, bundle: Path) -> None:
    """One of the faults of test_faults.py, for CI."""
    name = untuned.good[-1]
    untuned.machines[name].sh("printf '#!/bin/sh\\necho hello\\n' >/usr/local/bin/torchtune-sys")
    check = [{"hosts": name, "gather_facts": False, "tasks": [{"torchtune.sys.torchtune_check": {}}]}]
    (failure,) = untuned.plays.play(check).failed(name)
    assert failure.result["why"] == "garbage" and "hello" in failure.result["msg"] and "findings" not in failure.result
    mended = untuned.plays.play(APPLY, "--limit", f"{name},localhost", torchtune_sys_source=str(bundle))
    assert mended.status == 0 and len(actions(mended, name)) == len(fleet.WRONG), mended.output


@pytest.mark.exhaustive
def test_a_host_that_fails_stops_no_other(untuned: Lab) -> None:
    """The site's play on all hosts, those that cannot be changed included."""
    played = untuned.plays.play(APPLY)
    told = {one["host"]: one for one in json.loads(Path(untuned.plays.work, "torchtune-report/fleet.json").read_text())["hosts"]}
    assert played.status != 0 and set(told) == set(untuned.plays.inventory)
    assert {name: (told[name]["state"], len(told[name]["findings"])) for name in untuned.good} and not [
        one["rule"] for name in untuned.good for one in told[name]["findings"] if one["rule"] in ("task-table-small", "thp-never")
    ], "judged again after the changes"
    assert {name: len(actions(played, name)) for name in untuned.good} == dict.fromkeys(untuned.good, len(fleet.WRONG)), (
        played.output
    )
    bad = [name for name in untuned.plays.inventory if name not in untuned.good]
    assert {name: bool(played.failed(name)) for name in bad} == dict.fromkeys(bad, True)


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize(
    ("options", "done"),
    [
        (("--tags", "torchtune_sys_check"), {"torchtune_check": 1, "torchtune_apply": 0, "torchtune_report": 1}),
        (("--skip-tags", "torchtune_sys_apply"), {"torchtune_check": 1, "torchtune_apply": 0, "torchtune_report": 1}),
        (("--tags", "torchtune_sys_apply"), {"torchtune_check": 1, "torchtune_apply": 1, "torchtune_report": 1}),
        (("--tags", "check"), {"torchtune_check": 0, "torchtune_apply": 0, "torchtune_report": 0}),
    ],
)
def test_tags_choose_what_is_done(untuned: Lab, options: tuple[str, ...], done: dict[str, int]) -> None:
    """A tag that no task has does nothing, and that is said."""
    played = untuned.play(APPLY, *options)
    assert played.status == 0, played.output
    first = untuned.good[0]
    assert {module: len(played.of(first, module)) for module in done} == done
    assert bool(actions(played, first)) is bool(done["torchtune_apply"])
    assert ("no task has one of the tags check" in played.output) is (options[1] == "check")
