"""What the role decides by a host's answers: whether it resumes it, which services it restarts, when it judges again, and what a report calls good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from answering_host import lying, played, step_of
from controller import Played, Plays
from test_fleet_report import module

pytestmark = pytest.mark.long

TOOL = Path(sys.executable).with_name("torchtune-sys")
HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
DROP_IN = "/etc/systemd/system/{}.service.d/90-torchtune-sys.conf"
COMMAND = {"type": "command", "words": ["true"], "root": False}


def applied(**more: Any) -> dict[str, Any]:
    waits = {"service": [], "reboot": [], "login": [], "job": []}
    return {"waits": waits, "disrupts": [], "install": [], "rebooted": [], "identity": "- -", "run": None, **more}


def commands(found: Played) -> list[str]:
    return [one.task for one in found.tasks if one.action.endswith("command")]


@pytest.mark.parametrize(("tasks", "is_stopped"), [("apply", False), ("apply", True), ("rolling", True)])
def test_a_host_that_waits_for_a_manual_step_stays_drained(work: Path, tmp_path: Path, tasks: str, is_stopped: bool) -> None:
    """The playbook provision stopped before a reboot, kept the host drained, and resumed it by the next entry point."""
    (tmp_path / "drain.yml").write_text("[]")
    (tmp_path / "resume.yml").write_text('[{"name": "Resume", "ansible.builtin.command": {"argv": ["true"]}}]')
    given: dict[str, Any] = {
        "torchtune_sys_drain": str(tmp_path / "drain.yml"),
        "torchtune_sys_resume": str(tmp_path / "resume.yml"),
        "torchtune_sys_drained": True,
        "torchtune_sys_stopped": is_stopped,
        "torchtune_sys_applied": applied(),
        "torchtune_sys_checked": {"judged": True, "headline": "x"},
        "torchtune_sys_local_facts": False,
    }
    found = played(work, tmp_path, tasks, {}, [], **given)
    assert ("Resume" in [name.rpartition(" : ")[2] for name in commands(found)]) is not is_stopped, found.output
    assert (found.status != 0) == is_stopped, "a drained host must not end green"
    assert ("stays drained until a step is done" in found.output) == (is_stopped and tasks == "apply"), found.output


def test_a_host_that_could_not_be_judged_ends_a_rolling_change(work: Path, tmp_path: Path) -> None:
    checked = {"judged": False, "headline": "not all could be judged"}
    given = {"torchtune_sys_applied": applied(), "torchtune_sys_checked": checked, "torchtune_sys_local_facts": False}
    found = played(work, tmp_path, "rolling", {}, **given)
    assert found.status == 2 and "not all could be judged" in found.output, found.output


def test_a_file_of_tasks_that_drains_needs_one_that_resumes(work: Path, tmp_path: Path) -> None:
    """The host was recorded as resumed, and stayed drained."""
    (tmp_path / "drain.yml").write_text('[{"name": "Drain", "ansible.builtin.command": {"argv": ["true"]}}]')
    found = played(work, tmp_path, "drain", {}, torchtune_sys_drain=str(tmp_path / "drain.yml"))
    assert found.status == 2 and "torchtune_sys_resume must name one" in found.output and not commands(found)


@pytest.mark.parametrize(
    ("step", "may_reboot", "drains"),
    [
        ({**step_of(), "by_hand": "see a page"}, True, False),
        ({**step_of(), "reboot": True}, False, False),
        ({**step_of(), "reboot": True}, True, True),
        ({**step_of(COMMAND), "by_hand": "see a page"}, False, True),
    ],
)
def test_a_host_on_which_nothing_will_be_done_is_not_drained(
    work: Path, tmp_path: Path, step: dict[str, Any], may_reboot: bool, drains: bool
) -> None:
    """It was, for a step that only a person takes, and stayed so: a fleet with such a finding was drained by one green play."""
    (tmp_path / "drain.yml").write_text('[{"name": "Drain", "ansible.builtin.command": {"argv": ["true"]}}]')
    given = {
        "torchtune_sys_drain": str(tmp_path / "drain.yml"),
        "torchtune_sys_resume": str(tmp_path / "drain.yml"),
        "torchtune_sys_packages": True,
        "torchtune_sys_reboot": may_reboot,
        "torchtune_sys_local_facts": False,
    }
    found = played(work, tmp_path, "change", {}, [], torchtune_sys_applied=applied(install=[step]), **given)
    assert ("Drain" in [name.rpartition(" : ")[2] for name in commands(found)]) is drains, found.output


def test_a_service_that_no_change_waits_for_is_not_restarted(work: Path, tmp_path: Path) -> None:
    """It was at every run, for the change of another one."""
    allowed = ["slurmd", "systemd-logind", "containerd.service", "docker.service"]
    keys = [DROP_IN.format("docker"), "/etc/systemd/logind.conf.d/90-torchtune-sys.conf"]
    given = {
        "torchtune_sys_applied": applied(waits={"service": keys, "reboot": []}),
        "torchtune_sys_restart_services": allowed,
        "torchtune_sys_local_facts": False,
    }
    found = played(work, tmp_path, "change", {}, **given)
    assert found.status == 0, found.output
    restarted = [name for name in allowed if f"(item={name})" in found.output]
    assert restarted == ["systemd-logind", "docker.service"], found.output


def test_what_ansible_itself_changed_is_judged_again(work: Path, tmp_path: Path) -> None:
    """The report told what was found before packages were installed."""
    steps = [step_of(COMMAND)]
    host = {"ansible_connection": "local", "ansible_python_interpreter": str(lying(tmp_path, {}, steps))}
    given = {
        "torchtune_sys_become": False,
        "torchtune_sys_packages": True,
        "torchtune_sys_applied": applied(install=steps),
        "torchtune_sys_local_facts": False,
        "torchtune_sys_report_fail": False,
        "torchtune_sys_report_directory": str(tmp_path / "report"),
        "ansible_become_method": "ansible.builtin.su",
    }
    found = Plays(work, {"evil": host}).play("torchtune.sys.site", **given)
    assert len(found.of("evil", "torchtune_check")) == 2, found.output


def test_where_nothing_could_be_read_nothing_to_change_is_no_answer(work: Path) -> None:
    role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "apply"}}
    given = {"torchtune_sys_path": str(TOOL), "torchtune_sys_select": ["swappiness-high"], "torchtune_sys_timeout": 0.0001}
    found = Plays(work, {"here": HERE}).play([{"hosts": "here", "gather_facts": False, "tasks": [role]}], **given)
    (failure,) = found.failed("here")
    assert (failure.result["why"], failure.result["status"], failure.result["changed"]) == ("unread", 3, False), found.output
    assert "swappiness-high" in failure.result["msg"] and "not read within" in failure.result["msg"]


def test_what_follows_a_change_comes_where_other_facts_could_not_be_read(work: Path, tmp_path: Path) -> None:
    """A restart, a reboot: the next run has nothing to change any more, and would fail before them."""
    change = '{"key": "vm.swappiness", "state": "cured", "needs": "nothing", "made_already": false}'
    document = f'{{"schema": "torchtune-sys/run/1", "run": 1, "changes": [{change}]}}'
    tool = tmp_path / "torchtune-sys"
    tool.write_text(f"#!/bin/sh\necho 'torchtune-sys: not judged: disk-full' >&2\necho '{document}'\nexit 3\n")
    tool.chmod(0o755)
    task = {"torchtune.sys.torchtune_apply": {"path": str(tool)}}
    found = Plays(work, {"here": HERE}).play([{"hosts": "here", "gather_facts": False, "tasks": [task]}])
    (result,) = found.of("here", "torchtune_apply")
    assert found.status == 0 and result["changed"] and result["status"] == 3
    assert "could not be read: torchtune-sys: not judged: disk-full" in found.output


def test_a_host_that_was_not_judged_is_not_good_for_a_finding() -> None:
    """An advice, which most hosts have, hid that an error could not be looked for."""
    fleet = module("plugin_utils/fleet.py")
    counts = {"error": 0, "warning": 0, "advice": 1}
    told = {"headline": "h", "user": "u", "version": "1", "can_train": "gpu", "counts": counts, "passed": 1, "not_applicable": 0}
    finding = {"rule": "r", "severity": "advice", "cause": "c", "title": "t", "fix": []}
    for is_judged, state in ((True, "findings"), (False, "not-judged")):
        one = fleet.host("a", {**told, "proof": "", "findings": [finding], "unknown": [], "judged": is_judged, "status": 0}, "")
        assert one["state"] == state and bool(fleet.reasons([one])) is not is_judged
    failed = {"judged": True, "status": 0, "failed": True, "why": "findings", "msg": "1 advice: r"}
    one = fleet.host("a", {**told, "proof": "", "findings": [finding], "unknown": [], **failed}, "Check the host: 1 advice: r")
    assert fleet.reasons([one]) == {"a": "failed: 1 advice: r"}, "fail_on had no effect on a play with a report"
