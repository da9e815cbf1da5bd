"""A service that is not installed is refused alone: the other changes of the plan are made."""

from __future__ import annotations

import msgspec
import pytest
from simulate import Seen, recording

from torchtune_sys.model.actions import Service, Sysctl
from torchtune_sys.model.plan import Plan, Unit
from torchtune_sys.model.target import Exactly
from torchtune_sys.probes.plan_context import probe as ground
from torchtune_sys.remediation import plan as planner
from torchtune_sys.remediation.plan import steps
from torchtune_sys.rules import by_id

RULE = "clock-not-synchronised"
UNIT = "/usr/lib/systemd/system/systemd-timesyncd.service"


def plan(files: dict[str, str], origin: str = "live") -> Plan:
    seen = Seen(recording(f"{RULE}.fail", files={**dict.fromkeys(steps.unit_files(SERVICE)), **files}), [by_id()[RULE]])
    return planner.plan(msgspec.structs.replace(seen.facts, origin=origin), seen.results, seen.ground)


SERVICE = Service(unit="systemd-timesyncd", state="enabled")


def test_an_installed_service_is_planned() -> None:
    made = [step for change in plan({UNIT: "[Service]\n[Install]\nWantedBy=sysinit.target\n"}).changes for step in change.steps]
    assert made == [Unit(unit="systemd-timesyncd", enabled=True)]


def test_one_that_cannot_be_enabled_is_refused() -> None:
    """As Ubuntu's nvidia-persistenced; a unit of /etc goes before that of the package."""
    static = {UNIT: "[Unit]\nStopWhenUnneeded=true\n[Service]\nExecStart=/usr/bin/x\n"}
    found = plan(static)
    assert found.changes == () and "has no [Install] section" in found.refused[0].reason
    copied = "/etc/systemd/system/systemd-timesyncd.service"
    assert plan({**static, copied: "[Service]\n[Install]\nWantedBy=multi-user.target\n"}).changes


def test_one_that_is_not_installed_is_refused() -> None:
    found = plan({})
    assert found.changes == ()
    assert [(refusal.key, refusal.reason) for refusal in found.refused] == [
        ("service systemd-timesyncd", "systemd-timesyncd is not installed here")
    ]


def test_one_that_is_masked_is_refused() -> None:
    mask = {"links": {"/etc/systemd/system/systemd-timesyncd.service": "/dev/null"}}
    seen = Seen(recording(f"{RULE}.fail", files={UNIT: "[Service]\n"}, **mask), [by_id()[RULE]])
    found = planner.plan(seen.facts, seen.results, ground.probe(seen.host, (), tuple(steps.unit_files(SERVICE))))
    assert found.changes == () and "systemd-timesyncd is masked" in found.refused[0].reason


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ("UnitFileState=enabled\nActiveState=active\n", 0),
        ("UnitFileState=static\nActiveState=activating\n", 0),
        ("UnitFileState=disabled\nActiveState=active\n", 1),
        ("UnitFileState=enabled\nActiveState=inactive\n", 1),
        ("System has not been booted with systemd as init system (PID 1). Can't operate.\n", 1),
    ],
)
def test_a_service_that_is_as_asked_for_is_not_planned_again(told: str, changes: int) -> None:
    command = "systemctl show --property=UnitFileState,ActiveState systemd-timesyncd"
    seen = Seen(recording(f"{RULE}.fail", files={UNIT: ""}, commands={command: {"rc": 0, "stdout": told}}), [by_id()[RULE]])
    found = planner.plan(seen.facts, seen.results, ground.probe(seen.host, (), (UNIT,), planner.service_units(seen.results)))
    assert len(found.changes) == changes
    assert (len(found.refused) == 1 - changes and "already" in "".join(refusal.reason for refusal in found.refused)) or changes


def test_a_recording_does_not_tell_what_is_installed() -> None:
    assert len(plan({}, origin="recording").changes) == 1


@pytest.mark.parametrize(
    ("unit", "file"),
    [
        ("chrony", "chrony.service"),
        ("nvidia-imex.service", "nvidia-imex.service"),
        ("fstrim.timer", "fstrim.timer"),
        ("nvsm@0.service", "nvsm@.service"),
        ("getty@tty1", "getty@.service"),
    ],
)
def test_where_a_unit_is_defined(unit: str, file: str) -> None:
    places = list(steps.unit_files(Service(unit=unit, state="enabled")))
    assert f"/usr/lib/systemd/system/{file}" in places and f"/etc/systemd/system/{file}" in places
    assert list(steps.unit_files(Sysctl(key="vm.swappiness", target=Exactly("1")))) == []
