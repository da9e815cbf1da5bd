"""What one change does on a host: never lower what is better, only what the kernel offers, targets that satisfy every rule."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st
from simulate import Seen, after, recording

from conftest import load
from torchtune_sys.model.actions import Limit, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, FileLine, Refusal, Value
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.run import CommentOut
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target, met
from torchtune_sys.model.values import need
from torchtune_sys.remediation.plan import change_requests, persistence, precedence, steps
from torchtune_sys.rules import by_id

SEEN = load("healthy")
NUMBERS = st.integers(-5, 50)
WORDS = st.sampled_from(["0", "1", "7", "none", "bfq", "always"])
TARGETS = st.one_of(
    NUMBERS.map(AtLeast),
    NUMBERS.map(AtMost),
    WORDS.map(Exactly),
    st.lists(WORDS, min_size=1, unique=True).map(lambda words: OneOf(tuple(words))),
)


def satisfied(target: Target, value: str) -> bool:
    try:
        return met(target, value)
    except ValueError:
        return False


@given(TARGETS, TARGETS, NUMBERS.map(str) | WORDS)
def test_where_targets_meet_both_are_satisfied(one: Target, other: Target, value: str) -> None:
    """And where they do not, no value satisfies both."""
    both = change_requests.meet(one, other)
    if both is None:
        assert not (satisfied(one, value) and satisfied(other, value))
    elif satisfied(both, value):
        assert satisfied(one, value) and satisfied(other, value)
    assert (both is None) == (change_requests.meet(other, one) is None)


@given(st.one_of(NUMBERS.map(AtLeast), NUMBERS.map(AtMost)), st.lists(NUMBERS, min_size=1, max_size=3))
def test_directed_targets_never_lower_what_is_better(target: Target, running: list[int]) -> None:
    found = [int(word) for word in steps.chosen(target, " ".join(map(str, running))).split()]
    assert found[:-1] == running[:-1] and satisfied(target, str(found[-1]))
    if satisfied(target, str(running[-1])):
        assert found == running


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_limits_in_kib_are_never_lowered(present: int, wanted: int) -> None:
    assert int(steps._limit_word("memlock", max(present, wanted))) * 1024 >= present
    assert steps._limit_word("nofile", present) == str(present)


def planned(action: SysfsWrite | Sysctl | Limit, ground: PlanContext) -> Change | Refusal | None:
    wish = change_requests.ChangeRequest(rule="a-rule", why="A test", seen="", wanted="", action=action)
    return steps.change(SEEN, ground, next(iter(change_requests.grouped([wish]))))


PATTERN = "/sys/made/up*/depth"


def written(values: dict[str, str], target: Target) -> list[tuple[str, str, bool]]:
    there = {f"/sys/made/{name}/depth": value for name, value in values.items()}
    made = planned(SysfsWrite(path=PATTERN, target=target), PlanContext(values={PATTERN: dict(there)}))
    assert made is None or isinstance(made, Change)
    return [(step.path, step.value, step.is_pattern) for step in made.steps if isinstance(step, Value)] if made else []


def test_a_pattern_is_written_as_one_where_all_end_alike() -> None:
    assert written({"up0": "64", "up1": "32"}, AtLeast(128)) == [(PATTERN, "128", True)]
    assert written({"up0": "a [b]", "up1": "[a] b"}, Exactly("a")) == [(PATTERN, "a", True)]
    assert written({"up0": "128", "up1": "4096"}, AtLeast(128)) == []


def test_of_a_pattern_what_is_better_already_is_left() -> None:
    assert written({"up0": "64", "up1": "4096"}, AtLeast(128)) == [("/sys/made/up0/depth", "128", False)]
    made = planned(
        SysfsWrite(path=PATTERN, target=AtLeast(128)),
        PlanContext(values={PATTERN: {"/sys/made/up0/depth": "64", "/sys/made/up1/depth": "4096"}}),
    )
    assert isinstance(made, Change)
    assert [step.text for step in made.steps if isinstance(step, FileLine)] == ["w /sys/made/up0/depth - - - - 128"]


def test_a_word_that_is_not_offered_is_refused() -> None:
    path = "/sys/block/nvme0n1/queue/scheduler"
    made = planned(SysfsWrite(path=path, target=Exactly("none")), PlanContext(values={path: {path: "[mq-deadline] kyber"}}))
    assert isinstance(made, Refusal) and made.reason == f"{path} offers mq-deadline kyber, not none"


def test_a_key_that_the_kernel_lacks_is_refused() -> None:
    made = planned(Sysctl(key="vm.no_such_key", target=Exactly("0")), PlanContext())
    assert isinstance(made, Refusal) and made.reason == "this kernel has no vm.no_such_key"


def test_two_rules_that_want_different_values_are_refused_with_both_reasons() -> None:
    found = [
        change_requests.ChangeRequest(
            rule=f"rule-{value}", why="", seen="", wanted="", action=Sysctl(key="vm.swappiness", target=Exactly(value))
        )
        for value in ("0", "1")
    ]
    group = next(iter(change_requests.grouped(found)))
    assert (
        group.merged
        == "two rules want different values: rule-0: sudo sysctl -w vm.swappiness=0; rule-1: sudo sysctl -w vm.swappiness=1"
    )


@given(st.integers(0, 30), st.integers(0, 30))
def test_order_of_rules_does_not_matter(one: int, other: int) -> None:
    assume(one != other)
    assert change_requests.meet(AtLeast(one), AtLeast(other)) == AtLeast(max(one, other))


def test_disks_that_spin_and_that_do_not_keep_each_its_own_value() -> None:
    """A rule for spinning disks alone was written for an SSD, and took the place of the spinning disk's own."""
    storage = need(SEEN.storage)
    one = need(storage.disks)[0]
    disks = tuple(msgspec.structs.replace(one, name=name, rotational=spins) for name, spins in (("sda", True), ("sdb", False)))
    seen = msgspec.structs.replace(SEEN, storage=msgspec.structs.replace(storage, disks=disks))
    found = [
        line
        for disk, value in (("sda", "4096"), ("sdb", "128"), ("sdc", "4096"))
        for line in persistence.lines(seen, PlanContext(), f"/sys/block/{disk}/queue/read_ahead_kb", value)
    ]
    assert [line.key for line in found] == [f'KERNEL=="sd*" {words}read_ahead_kb' for words in ("", "not rotational ", "")]
    assert [f'ATTR{{queue/rotational}}=="{spins}"' in line.text for line, spins in zip(found, "101", strict=True)] == [True] * 3


def test_a_counterpart_that_a_later_file_sets_takes_the_value_away() -> None:
    """Writing vm.dirty_ratio makes vm.dirty_bytes 0: "cured" was said, and the next boot took it back."""
    later = {"/etc/sysctl.d/zz-site.conf": "# theirs\nvm.dirty_ratio = 80\n"}
    seen = Seen(recording("dirty-limit-huge.fail", files=later), [by_id()["dirty-limit-huge"]])
    then = Seen(after(seen), [by_id()["dirty-limit-huge"]])
    found = {change.key: precedence.lost_at_boot(then.facts, seen.ground, change) for change in seen.plan.changes}
    lost = found.pop("vm.dirty_bytes")
    assert lost is not None and lost.remedy == CommentOut(path="/etc/sysctl.d/zz-site.conf", line=2)
    assert found == {"vm.dirty_background_bytes": None}
    told = {change.key: change.later for change in seen.plan.changes}
    assert "zz-site.conf:2 sets dirty_ratio, which takes it away, to 80 at boot" in told["vm.dirty_bytes"][0]


def test_a_counterpart_of_0_takes_nothing_away() -> None:
    """The kernel finds vm.dirty_ratio unchanged, and takes no 0 for vm.dirty_bytes; what sets vm.dirty_background_ratio makes the other 0 in any case."""
    later = {"/etc/sysctl.d/zz-site.conf": "vm.dirty_ratio = 0\nvm.dirty_background_ratio = 0\n"}
    seen = Seen(recording("dirty-limit-huge.fail", files=later), [by_id()["dirty-limit-huge"]])
    then = Seen(after(seen), [by_id()["dirty-limit-huge"]])
    lost = {change.key: precedence.lost_at_boot(then.facts, seen.ground, change) for change in seen.plan.changes}
    assert [key for key, who in lost.items() if who] == ["vm.dirty_background_bytes"]
