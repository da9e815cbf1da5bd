"""Which of the planned changes ``apply`` makes: nothing that disturbs a job on the GPUs, and of a named rule why not."""

from __future__ import annotations

from typing import Any

import pytest
from simulate import Seen, recording

from torchtune_sys.cli import selection
from torchtune_sys.cli.planning import Planned
from torchtune_sys.rules import by_id

SERVICE, OFF = "service nvidia-persistenced", "gpu-persistence-mode-off"
JOB = {"pid": 4711, "user": "ubuntu", "name": "python3", "used_bytes": 70 << 30}
UNSEEN = {"$missing": "denied", "source": "NVML", "detail": "no permission", "remedy": "run as root"}


def found(rule: str = OFF, processes: Any = None, **overlay: Any) -> Planned:
    """A recorded host on which the rule fails, with processes on its last GPU."""
    data = recording(f"{rule}.fail", **overlay)
    nvml = data["answers"]["nvml"]
    if processes is not None:
        devices = [*nvml["devices"][:-1], {**nvml["devices"][-1], "processes": processes}]
        data = {**data, "answers": {**data["answers"], "nvml": {**nvml, "devices": devices}}}
    seen = Seen(data, [by_id()[rule]])
    return Planned(plan=seen.plan, context=seen.ground, seen=seen.facts, results=seen.results)


def options(**given: Any) -> dict[str, Any]:
    return {"only": (), "force": False, "safe_only": True, **given}


@pytest.mark.parametrize(
    ("processes", "force", "made"),
    [([], False, True), ([JOB], False, False), ([JOB], True, True), (UNSEEN, False, False)],
    ids=["idle", "busy", "busy, forced", "not to be seen"],
)
def test_what_disturbs_a_job_needs_force(processes: Any, force: bool, made: bool) -> None:
    plan, left_out = selection.selected_changes(found(processes=processes), options(force=force))
    assert [change.key for change in plan.changes] == ([SERVICE] if made else [])
    assert [SERVICE in key and "--force" in why for key, why in left_out.items()] == ([] if made else [True])


def test_what_disturbs_nobody_is_made_beside_a_job() -> None:
    host = found("max-map-count-low", processes=[JOB])
    plan, left_out = selection.selected_changes(host, options())
    assert [change.key for change in plan.changes] == ["vm.max_map_count"] and left_out == {}


def test_a_named_rule_whose_change_is_refused_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    host = found("max-map-count-low", files={"/etc/NIXOS": ""})
    plan, _ = selection.selected_changes(host, options())
    assert selection.not_made(host, plan, options(only=("max-map-count-low",)))
    said = capsys.readouterr().err
    assert "not made: vm.max_map_count: NixOS owns" in said and "configuration.nix" in said
    assert not selection.not_made(host, plan, options(only=("swappiness-high",)))


def test_what_is_refused_or_waits_for_a_job_is_not_all_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody named a rule: all that could be made is asked for, but not what needs a decision."""
    refused = found("max-map-count-low", files={"/etc/NIXOS": ""})
    assert selection.not_made(refused, selection.selected_changes(refused, options())[0], options())
    assert "not made: what is refused above" in capsys.readouterr().err
    busy, free = found(processes=[JOB]), found(processes=[])
    assert selection.not_made(busy, selection.selected_changes(busy, options())[0], options())
    assert not selection.not_made(free, selection.selected_changes(free, options())[0], options())
    unsafe = found("overcommit-strict")
    plan, left_out = selection.selected_changes(unsafe, options())
    assert left_out and not selection.not_made(unsafe, plan, options())


def test_a_named_rule_that_is_left_out_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    host = found(processes=[JOB])
    plan, _ = selection.selected_changes(host, options(only=(OFF,)))
    assert selection.not_made(host, plan, options(only=(OFF,))) and not capsys.readouterr().err  # why was said above the question
    forced, _ = selection.selected_changes(host, options(only=(OFF,), force=True))
    assert not selection.not_made(host, forced, options(only=(OFF,)))


def test_a_named_rule_that_is_for_a_person_or_was_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    host = found("hugepages-hoard-memory")
    plan, _ = selection.selected_changes(host, options())
    assert selection.not_made(host, plan, options(only=("hugepages-hoard-memory",)))
    assert "only a person can do it" in capsys.readouterr().err
    unseen = Seen(recording("swappiness-high.unknown"), [by_id()["swappiness-high"]])
    planned = Planned(plan=unseen.plan, context=unseen.ground, seen=unseen.facts, results=unseen.results)
    assert selection.not_made(planned, unseen.plan, options(only=("swappiness-high",)))
    assert "swappiness-high: could not be checked: " in capsys.readouterr().err


def test_what_other_rules_want_of_a_person_is_not_shown_beside_a_named_one() -> None:
    host = found("nofile-limit-too-low")
    assert [item.rule for item in host.plan.by_hand] == ["nofile-limit-too-low"]
    asked, _ = selection.selected_changes(host, options(only=("nofile-limit-too-low",)))
    other, _ = selection.selected_changes(host, options(only=("swappiness-high",)))
    assert asked.by_hand == host.plan.by_hand and asked.changes == host.plan.changes
    assert not other.by_hand and not other.changes
