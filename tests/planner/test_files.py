"""The files of ours: what a person wrote into them stays, whatever stands where; ours is found again by its heading."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import load
from torchtune_sys.model.actions import Action, KernelArgument, Limit, ModuleOption, OwnedFile, Safety, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, FileLine, Plan, PlannedFile, Refusal
from torchtune_sys.model.plan_context import (
    GRUB_FILE,
    LIMITS_FILE,
    MODPROBE_FILE,
    SYSCTL_FILE,
    TMPFILES_FILE,
    UDEV_FILE,
    PlanContext,
)
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.target import AtLeast, Exactly
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation import plan as planner
from torchtune_sys.remediation.plan import files

HEALTHY = load("healthy")
DROP_IN = "/etc/systemd/system/x.service.d/90-torchtune-sys.conf"
SCHEDULER = "/sys/block/sda/queue/scheduler"
DEPTH = "/sys/made/up/depth"


def planned(action: Action, ground: PlanContext) -> Plan:
    """What is planned for one failing rule that asks for this."""
    rule = Rule(id="a-rule", title="A title", severity=Severity.WARNING, judge=lambda s, p: (), family="made", doc="")
    found = Evidence(subject="it", seen="bad", wanted="good", source="/it", verdict=Verdict.FAIL, fix=(action,))
    return planner.plan(HEALTHY, (Result(rule=rule, verdict=Verdict.FAIL, evidence=(found,)),), ground)


def written(action: Action, present: str | None = None, path: str = SYSCTL_FILE) -> PlannedFile:
    ground = PlanContext(files={} if present is None else {path: present}, values={DEPTH: {DEPTH: "1"}}, tools=("update-grub",))
    (file,) = planned(action, ground).files
    return file


SWAPPINESS = Sysctl(key="vm.swappiness", target=Exactly("10"))
OURS = "# vm.swappiness (a-rule): A title\nvm.swappiness = 10\n"


def test_two_paragraphs_that_begin_alike_are_both_kept() -> None:
    theirs = "# mine\nvm.a = 1\n\n# mine\nvm.b = 2\n"
    assert written(SWAPPINESS, theirs).content == f"{files.HEAD}\n\n{OURS}\n{theirs}"


def test_the_order_of_what_a_person_added_is_kept() -> None:
    """In all these files the last one wins."""
    theirs = "vm.z = 1\n\nvm.a = 1\n\nvm.z = 2\n"
    assert written(SWAPPINESS, theirs).content == f"{files.HEAD}\n\n{OURS}\n{theirs}"


def test_a_line_under_our_block_is_kept_when_the_block_is_replaced() -> None:
    present = f"{files.HEAD}\n\n# vm.swappiness (a-rule): Once\nvm.swappiness = 1\nvm.mine = 3\n# and why\n"
    assert written(SWAPPINESS, present).content == f"{files.HEAD}\n\n{OURS}\nvm.mine = 3\n# and why\n"


def test_a_paragraph_that_is_headed_by_the_name_alone_is_not_ours() -> None:
    theirs = "# vm.swappiness\nvm.swappiness = 1\n"
    assert written(SWAPPINESS, theirs).content == f"{files.HEAD}\n\n{OURS}\n{theirs}"


def test_what_reads_like_a_heading_twice_is_kept_twice() -> None:
    theirs = "# note (jo): look\nvm.a = 1\n\n# note (jo): look\nvm.b = 2\n"
    content = written(SWAPPINESS, theirs).content
    assert "vm.a = 1\n" in content and "vm.b = 2\n" in content


@pytest.mark.parametrize(
    ("line", "wins"), [("vm.swappiness=1", True), ("-vm/swappiness = 1", True), ("# vm.swappiness = 1", False)]
)
def test_who_wins_is_told_where_a_line_by_hand_sets_the_same(line: str, wins: bool) -> None:
    (change,) = planned(SWAPPINESS, PlanContext(files={SYSCTL_FILE: line + "\n"})).changes
    told = [words for words in change.later if "by hand" in words]
    assert bool(told) == wins
    assert not wins or (told and "(= 1) wins at boot" in told[0])


LIMIT = Limit(item="nofile", target="1048576")


def test_a_block_of_several_lines_is_replaced_whole() -> None:
    first = written(LIMIT, path=LIMITS_FILE).content
    assert first.count(" nofile 1048576\n") == 4
    before = first.replace("1048576", "100") + "* soft core 0\n"
    assert written(LIMIT, before, LIMITS_FILE).content == first + "\n* soft core 0\n"


def test_a_name_with_a_bracket_is_found_again() -> None:
    wish, depth = "/sys/made (x)/depth", "/sys/made (y)/depth"
    ground = PlanContext(values={wish: {wish: "1"}, depth: {depth: "1"}})
    (first,) = planned(SysfsWrite(path=wish, target=Exactly("2")), ground).files
    present = PlanContext(values=ground.values, files={TMPFILES_FILE: first.content})
    (both,) = planned(SysfsWrite(path=depth, target=Exactly("2")), present).files
    assert both.content.count("\nw ") == 2
    again = PlanContext(values=ground.values, files={TMPFILES_FILE: both.content})
    (same,) = planned(SysfsWrite(path=depth, target=Exactly("2")), again).files
    assert same.content == both.content


SECTIONS = OwnedFile(path=DROP_IN, content="[Service]\nLimitMEMLOCK=infinity\n\n[Install]\n# x (y): z\nWantedBy=a\n", mode=0o600)


def test_a_file_of_several_paragraphs_is_one_block() -> None:
    first = written(SECTIONS, path=DROP_IN)
    assert first.content.count("\n\n") == 1 and "[Install]\n" in first.content
    assert written(SECTIONS, first.content, DROP_IN).content == first.content
    lines = [step for change in planned(SECTIONS, PlanContext()).changes for step in change.steps if isinstance(step, FileLine)]
    assert files.stands(lines[0], PlanContext(files={DROP_IN: first.content}))
    assert not files.stands(lines[0], PlanContext(files={DROP_IN: first.content.replace("infinity", "0")}))


def test_the_mode_that_is_asked_for() -> None:
    assert written(SECTIONS, path=DROP_IN).mode == 0o600
    assert written(SWAPPINESS).mode == 0o644


UNSEEN = {
    SYSCTL_FILE: SWAPPINESS,
    LIMITS_FILE: LIMIT,
    MODPROBE_FILE: ModuleOption(module="m", option="a=1", safety=Safety.SAFE),
    GRUB_FILE: KernelArgument(argument="iommu=pt"),
    TMPFILES_FILE: SysfsWrite(path=DEPTH, target=AtLeast(5)),
    UDEV_FILE: SysfsWrite(path=SCHEDULER, target=Exactly("none")),
    DROP_IN: SECTIONS,
}


@pytest.mark.parametrize("path", UNSEEN)
def test_a_file_that_cannot_be_read_is_not_written(path: str) -> None:
    """Nobody would know which lines of it to keep."""
    values = {DEPTH: {DEPTH: "1"}, SCHEDULER: {SCHEDULER: "[bfq] none"}}
    denied = Missing(Why.DENIED, path, "permission denied", "run as root")
    plan = planned(UNSEEN[path], PlanContext(files={path: denied}, values=values, tools=("update-grub",)))
    assert plan.changes == () and plan.files == ()
    assert [(type(refusal), path in refusal.reason) for refusal in plan.refused] == [(Refusal, True)]
    there = planned(UNSEEN[path], PlanContext(files={path: ""}, values=values, tools=("update-grub",)))
    assert [file.path for file in there.files] == [path]


LINES = st.sampled_from(
    [
        *(files.HEAD, "", "", "# vm.b (rule): why", "vm.b = 2", "# vm.a (x): y", "vm.a = 60", "#  (x): y", "# l (x; 2 lines): y"),
        *(" ", "\t", "# by hand", "vm.c=3", "# l (x; 0 lines): y", "# l (x; many lines): y", "#", "\r", "# (x): y", "# a (B): y"),
    ]
)


@given(st.lists(LINES, max_size=14).map("\n".join) | st.text(max_size=60))
@example("# a (x; 2 lines): y\n1\n# b (x): y\n2")
@example(f"# a (x): y\n{files.HEAD}\n{files.HEAD}\nz")
def test_nothing_is_lost_and_a_second_time_changes_nothing(content: str) -> None:
    block = {"vm.a": "# vm.a (x): y\nvm.a = 1"}
    found = files.composed(content, block)
    assert files.composed(found, block) == found
    replaced = {"# vm.a (x): y", "vm.a = 60"}
    before = [line for line in content.split("\n") if line.strip(" \t\v\f\r") and line not in {files.HEAD, *replaced}]
    after = found.split("\n")
    if "# vm.a (x): y" not in content:  # else a line of the block that was replaced is gone, and ought to be
        assert all(after.count(line) >= before.count(line) for line in before)


def test_change_and_file_agree() -> None:
    (change,) = planned(SWAPPINESS, PlanContext()).changes
    assert isinstance(change, Change)
    assert files.parse(written(SWAPPINESS).content).ours == {"vm.swappiness": files.block(change.steps[1], change)}  # type: ignore[arg-type]
