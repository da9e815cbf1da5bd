"""``generate tuned``: the real tuned applies what all failing hosts ask for, and rolls it back."""

from __future__ import annotations

from typing import Any

import pytest
from pieces_tuned import BASE, RULES
from simulate import Seen, recording

from torchtune_sys.errors import UserError
from torchtune_sys.model.actions import SysfsWrite
from torchtune_sys.model.plan_context import PlanContext, TunedOption, TunedProfile
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.target import Exactly
from torchtune_sys.probes.plan_context import tuned as probe
from torchtune_sys.remediation.plan.tuned import PlannedOption, options
from torchtune_sys.render.generate import tuned

PROFILE = """[main]
include=site-base
[sysctl]
vm.swappiness=60
[vm]
transparent_hugepages=never
"""
ACTIVE = {
    "/etc/tuned/active_profile": "site\n",
    "/run/tuned/tuned.pid": "12\n",
    "/etc/tuned/site/tuned.conf": PROFILE,
    "/usr/lib/tuned/site-base/tuned.conf": "[main]\nsummary=x\n[vm]\ntransparent_hugepage=always\n",
}


def as_dict(made: tuple[PlannedOption, ...]) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for option in made:
        sections.setdefault(option.section, {})[option.name] = option.value
    return sections


def seen_with(name: str, files: dict[str, Any]) -> tuple[Seen, TunedProfile]:
    seen = Seen(recording(name, files=files), [RULES[name.split(".")[0]]])
    return seen, probe.base(seen.host)


def test_what_planning_refuses_for_tuned_is_in_the_profile() -> None:
    for name, section, option, value in (
        ("swappiness-high.fail", "sysctl", "vm.swappiness", "10"),
        ("thp-never.fail", "vm", "transparent_hugepages", "madvise"),
    ):
        seen, base = seen_with(name, ACTIVE)
        assert [refusal.way.startswith("torchtune-sys generate tuned") for refusal in seen.plan.refused] == [True]
        assert base.include == ("site",) and base.is_active
        made = as_dict(options(seen.facts, seen.results, seen.ground, base).options)
        assert made[section][option] == value


def test_an_alias_in_the_included_profile_is_overruled_too() -> None:
    seen, base = seen_with("thp-never.fail", ACTIVE)
    made = as_dict(options(seen.facts, seen.results, seen.ground, base).options)
    assert made == {"vm": {"transparent_hugepage": "madvise", "transparent_hugepages": "madvise"}}


def test_our_active_profile_includes_what_it_included_and_keeps_its_options() -> None:
    own = "# x\n[main]\ninclude=site\n[sysctl]\nvm.swappiness=10\n[bootloader]\ncmdline_torchtune_sys=+quiet\n"
    files = {**ACTIVE, "/etc/tuned/active_profile": "torchtune-sys\n", "/etc/tuned/torchtune-sys/tuned.conf": own}
    seen, base = seen_with("iommu-translates-gpu-traffic.fail", files)
    assert base.include == ("site",)
    made = as_dict(options(seen.facts, seen.results, seen.ground, base).options)
    assert made == {"sysctl": {"vm.swappiness": "10"}, "bootloader": {"cmdline_torchtune_sys": "+quiet iommu=pt"}}


def test_where_newer_releases_look() -> None:
    _, base = seen_with("swappiness-high.fail", {"/usr/lib/tuned/profiles/throughput-performance/tuned.conf": "[main]\n"})
    assert (base.path, base.include, base.is_active) == (
        "/etc/tuned/profiles/torchtune-sys/tuned.conf",
        ("throughput-performance",),
        False,
    )


def test_a_disk_gets_a_section_of_its_own_with_what_the_others_get() -> None:
    base = TunedProfile(
        path="p",
        include=("a",),
        options=(
            TunedOption(option="disk.readahead", value=">4096", source="s", section="disk"),
            TunedOption(option="disk.elevator", value="none", source="s", section="disk"),
        ),
    )
    seen = Seen(recording("hdd-scheduler-none.fail"), [RULES["hdd-scheduler-none"]])
    made = as_dict(options(seen.facts, seen.results, seen.ground, base).options)
    (disk,) = made
    assert made[disk].pop("devices") == disk.removeprefix("disk.")
    assert made[disk] == {"type": "disk", "priority": "-10", "readahead": ">4096", "elevator": "mq-deadline"}


def test_the_pairs_of_a_share_of_memory_and_of_bytes() -> None:
    held = ("vm.dirty_ratio", "vm.dirty_background_ratio")
    base = TunedProfile(
        path="p",
        include=("a",),
        options=tuple(TunedOption(option=option, value="40", source="s", section="vm") for option in held),
        is_active=True,
    )
    seen = Seen(recording("dirty-limit-huge.fail"), [RULES["dirty-limit-huge"]])
    made = as_dict(options(seen.facts, seen.results, seen.ground, base).options)
    assert sorted(made["vm"]["drop"].split(",")) == ["dirty_background_ratio", "dirty_ratio"]
    assert set(made["sysctl"]) == {"vm.dirty_bytes", "vm.dirty_background_bytes"}


@pytest.mark.parametrize("name", ["a b", "$(x)", "a\nb", "", "a/b", "${f:exec:x}"])
def test_names_that_tuned_would_not_load(name: str) -> None:
    with pytest.raises(UserError):
        tuned.profile([name], [])


@pytest.mark.parametrize("disk", ["s d", "s[da", "${f:exec:reboot}", "s\nd", 's"d', "s=d", "s%d", "s\\d"])
def test_a_disk_whose_name_a_profile_cannot_hold(disk: str) -> None:
    path = f"/sys/block/{disk}/queue/scheduler"

    def judge(s: object, p: object) -> tuple[()]:
        return ()

    rule = Rule(id="r", title="t", severity=Severity.ADVICE, judge=judge, family="storage", doc="")
    wish = SysfsWrite(path=path, target=Exactly("none"))
    evidence = Evidence(subject=disk, seen="bfq", wanted="none", source=path, fix=(wish,))
    result = Result(rule=rule, verdict=Verdict.FAIL, evidence=(evidence,))
    seen = Seen(recording("healthy"), [])
    made = options(seen.facts, [result], PlanContext(values={path: {path: "none [bfq]"}}), BASE)
    assert made.options == () and made.left_out
