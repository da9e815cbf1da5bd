"""What others' udev rules and tmpfiles.d lines set at boot in place of ours."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import load
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.actions import Safety, SysfsWrite
from torchtune_sys.model.plan import Value
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.target import AtLeast, OneOf
from torchtune_sys.probes.plan_context import device_rules
from torchtune_sys.remediation.plan.precedence import rivals

HERE = load("healthy")
DISKS = {
    "/sys/block/sda/queue/rotational": "1",
    "/sys/block/sda/queue/scheduler": "[mq-deadline] none",
    "/sys/block/nvme0n1/queue/rotational": "0",
}
LATER = "/etc/udev/rules.d/99-zz-site.rules"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def settings(files: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = device_rules.probe(RecordedHost({"files": {**DISKS, **files}}, "made"))
    return [(item.path, item.value, item.source) for item in found]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ('KERNEL=="sd*", ATTR{queue/scheduler}="bfq"', [("/sys/block/sda/queue/scheduler", "bfq")]),
        ('ACTION=="add|change", KERNEL=="sd[a-z]", \\\n  ATTR{queue/rotational}=="1", ATTR{queue/scheduler}="bfq"',
         [("/sys/block/sda/queue/scheduler", "bfq")]),
        ('SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", ATTR{bdi/read_ahead_kb}="128"',
         [("/sys/block/nvme0n1/queue/read_ahead_kb", "128"), ("/sys/block/sda/queue/read_ahead_kb", "128")]),
        ('KERNEL=="sda", RUN+="/bin/sh -c \'echo none > /sys/block/%k/queue/scheduler\'"',
         [("/sys/block/sda/queue/scheduler", "none")]),
        ('KERNEL!="sd*", ATTR{queue/scheduler}="none"', [("/sys/block/nvme0n1/queue/scheduler", "none")]),
        ('# KERNEL=="sd*", ATTR{queue/scheduler}="bfq"', []),
        ('ACTION=="remove", KERNEL=="sd*", ATTR{queue/scheduler}="bfq"', []),
        ('SUBSYSTEM=="net", ATTR{queue/scheduler}="bfq"', []),
        ('KERNEL=="sd*", ATTRS{model}=="X", ATTR{queue/scheduler}="bfq"', []),
    ],
)  # fmt: skip
def test_rules_of_udev_that_are_read_after_ours(rule: str, found: list[tuple[str, str]]) -> None:
    assert settings({LATER: rule}) == [(path, value, f"{LATER}:1") for path, value in found]


def test_rules_that_are_read_before_ours_or_hidden_by_a_file_of_the_same_name_say_nothing() -> None:
    rule = 'KERNEL=="sd*", ATTR{queue/scheduler}="bfq"'
    assert settings({"/etc/udev/rules.d/60-site.rules": rule}) == []
    assert settings({"/usr/lib/udev/rules.d/99-zz-site.rules": rule, LATER: ""}) == []


def test_the_last_rule_holds() -> None:
    rules = 'KERNEL=="sda", ATTR{queue/scheduler}="bfq"\nKERNEL=="sda", ATTR{queue/scheduler}="none"'
    assert settings({LATER: rules}) == [("/sys/block/sda/queue/scheduler", "none", f"{LATER}:2")]


@pytest.mark.parametrize(
    ("file", "path", "wins"),
    [
        ("10-site.conf", THP, True),  # systemd-tmpfiles 252: "Duplicate line for path, ignoring", the first file's line is done
        ("zz-site.conf", THP, False),
        ("zz-site.conf", "/sys/kernel/mm/transparent_hugepage/en*", True),
        ("10-site.conf", "/sys/kernel/mm/transparent_hugepage/en*", False),
    ],
)
def test_of_lines_for_one_path_the_first_files_holds_and_of_globs_the_last(file: str, path: str, wins: bool) -> None:
    place = f"/etc/tmpfiles.d/{file}"
    found = device_rules.probe(RecordedHost({"files": {place: f"#\nw {path} - - - - never\n"}}, "made"))
    action = SysfsWrite(path=THP, target=OneOf(("madvise", "always")), safety=Safety.SAFE)
    told = list(rivals(HERE, PlanContext(boot_settings=found), action, (Value(path=THP, value="madvise"),)))
    assert [item.source for item in told] == ([f"{place}:2"] if wins else [])


def test_the_read_ahead_is_the_same_by_number_and_by_name() -> None:
    found = device_rules.probe(
        RecordedHost({"files": {**DISKS, LATER: 'KERNEL=="sda", ATTR{queue/read_ahead_kb}="128"'}}, "made")
    )
    path = "/sys/class/bdi/8:0/read_ahead_kb"
    ground = PlanContext(boot_settings=found, device_names={"8:0": "sda"})
    made = (Value(path=path, value="4096"),)
    action = SysfsWrite(path=path, target=AtLeast(4096), safety=Safety.SAFE)
    assert [item.value for item in rivals(HERE, ground, action, made)] == ["128"]
    assert not list(rivals(HERE, ground, SysfsWrite(path=path, target=AtLeast(64), safety=Safety.SAFE), made))
