"""``generate tuned``: the real tuned applies what all failing hosts ask for, and rolls it back."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulate import Seen, recording

from conftest import HOSTS
from torchtune_sys.errors import UserError
from torchtune_sys.model.actions import KernelArgument, Sysctl, SysfsWrite
from torchtune_sys.model.ground import Ground, Tuned, TunedProfile
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.target import Exactly
from torchtune_sys.planner.tuned import Option, options
from torchtune_sys.probes import tuned as probe
from torchtune_sys.render import tuned
from torchtune_sys.rules import by_id

KINDS = Sysctl | SysfsWrite | KernelArgument
RULES = {name: rule for name, rule in by_id().items() if any(isinstance(action, KINDS) for action in rule.fix)}
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
BASE = TunedProfile(path="/etc/tuned/torchtune-sys/tuned.conf", include=("throughput-performance",))
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


@cache
def union() -> tuple[tuple[Option, ...], int]:
    found: dict[tuple[str, str], Option] = {}
    hosts = 0
    for name in FAILING:
        rule = RULES[name.split(".")[0]]
        seen = Seen(recording(name), [rule])
        made = options(seen.facts, seen.results, seen.ground, BASE)
        hosts += bool(made.options)
        found.update({(option.section, option.name): option for option in made.options})
    return tuple(found.values()), hosts


def as_dict(made: tuple[Option, ...]) -> dict[str, dict[str, str]]:
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
            Tuned(option="disk.readahead", value=">4096", source="s", section="disk"),
            Tuned(option="disk.elevator", value="none", source="s", section="disk"),
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
        options=tuple(Tuned(option=option, value="40", source="s", section="vm") for option in held),
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
    made = options(seen.facts, [result], Ground(values={path: {path: "none [bfq]"}}), BASE)
    assert made.options == () and made.left_out


STAGE = """
set -e
work=$1
cd "$work"
mkdir up upw sys sysw
mount --bind "$work/proc/vm" /proc/sys/vm
mount --bind "$work/proc/net" /proc/sys/net
mount --bind "$work/proc/kernel" /proc/sys/kernel
mount --bind "$work/proc/fs" /proc/sys/fs
mount -t overlay o -o lowerdir=/etc,upperdir="$work/up",workdir="$work/upw" /etc
mount -t overlay o -o lowerdir=/sys,upperdir="$work/sys",workdir="$work/sysw" /sys
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
mkdir -p /var/lib/tuned /run/tuned /etc/tuned/torchtune-sys
rm -f /etc/sysctl.conf /etc/sysctl.d/*
echo 'always madvise [never]' >/sys/kernel/mm/transparent_hugepage/enabled
cp profile /etc/tuned/torchtune-sys/tuned.conf
tuned --no-dbus --profile torchtune-sys --log "$work/log" --pid /run/tuned/tuned.pid >/dev/null 2>&1 & pid=$!
for turn in $(seq 200); do grep -q "profile 'torchtune-sys' applied" log 2>/dev/null && break; sleep 0.1; done
cp -r proc during
cat /sys/kernel/mm/transparent_hugepage/enabled >thp-during
cat /etc/tuned/bootcmdline >bootcmdline 2>/dev/null || :
kill -TERM $pid
wait $pid || :
cat /sys/kernel/mm/transparent_hugepage/enabled >thp-after
"""


@pytest.mark.skipif(not shutil.which("tuned") or os.geteuid() != 0, reason="needs root and tuned")
def test_the_real_tuned_applies_the_union_and_rolls_back(tmp_path: Path) -> None:
    made, hosts = union()
    keys = {option.name: option.value for option in made if option.section == "sysctl"}
    print(f"{hosts} hosts, {len(made)} options, {len(keys)} sysctls, sections {sorted({option.section for option in made})}")
    assert hosts > 20 and len(keys) > 12 and {"vm", "sysctl", "bootloader", "cpu"} <= {option.section for option in made}
    work = tmp_path / "work"
    for family in ("vm", "net", "kernel", "fs"):
        (work / "proc" / family).mkdir(parents=True)
    for key in keys:
        place = work / "proc" / key.replace(".", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("7\n")
    (work / "profile").write_text(tuned.profile(BASE.include, made))
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", STAGE, "stage", str(work)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if "wrong fs type" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    log = (work / "log").read_text()
    for key, value in keys.items():
        place = key.replace(".", "/")
        assert (work / "during" / place).read_text().split() == value.split(), (key, log)
        assert (work / "proc" / place).read_text() in ("7", "7\n"), key
    assert (work / "thp-during").read_text().strip() == "madvise" and (work / "thp-after").read_text().strip() == "never"
    errors = [row for row in log.splitlines() if " ERROR " in row and "sysctl" in row and any(key in row for key in keys)]
    assert errors == []
    arguments = next(option.value for option in made if option.section == "bootloader")
    assert set(arguments.removeprefix("+").split()) <= set(
        (work / "bootcmdline").read_text().replace('"', " ").replace("=", " ", 1).split()
    )


ADM = """
set -e
work=$1
cd "$work"
mkdir up upw sys sysw
for family in vm net kernel fs; do mount --bind "$work/proc/$family" /proc/sys/$family; done
mount -t overlay o -o lowerdir=/etc,upperdir="$work/up",workdir="$work/upw" /etc
mount -t overlay o -o lowerdir=/sys,upperdir="$work/sys",workdir="$work/sysw" /sys
mount -t tmpfs none /var/lib
mount -t tmpfs none /var/log
mount -t tmpfs none /run
mkdir -p /var/lib/tuned /var/log/tuned /var/lib/dbus /run/dbus /run/tuned /etc/tuned/torchtune-sys
rm -f /etc/sysctl.conf /etc/sysctl.d/*
echo 'always madvise [never]' >/sys/kernel/mm/transparent_hugepage/enabled
cp profile /etc/tuned/torchtune-sys/tuned.conf
dbus-daemon --system --fork --nopidfile
tuned --log "$work/log" --pid /run/tuned/tuned.pid >/dev/null 2>&1 & pid=$!
for turn in $(seq 100); do busctl --list 2>/dev/null | grep -q com.redhat.tuned && break; sleep 0.1; done
set +e
tuned-adm profile torchtune-sys; echo "profile $?"
tuned-adm active
tuned-adm verify --ignore-missing; echo "verify $?"
cp -r proc during
echo 99 >/proc/sys/vm/swappiness
tuned-adm verify --ignore-missing; echo "verify $?"
echo 10 >/proc/sys/vm/swappiness
tuned-adm off; echo "off $?"
cat /sys/kernel/mm/transparent_hugepage/enabled
kill -TERM $pid
wait $pid
"""
LIVE = ("sysctl", "vm")
"""What can be verified at once, on any machine: the rest waits for a reboot, or is about hardware that may not be here."""


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("tuned-adm", "dbus-daemon", "busctl"))) or os.geteuid() != 0, reason="needs root, tuned and D-Bus"
)
def test_tuned_adm_verifies_the_profile_notices_a_change_and_takes_it_back(tmp_path: Path) -> None:
    made = tuple(option for option in union()[0] if option.section in LIVE)
    keys = {option.name: option.value for option in made if option.section == "sysctl"}
    assert keys.get("vm.swappiness") == "10" and len(keys) > 12
    work = tmp_path / "work"
    for family in ("vm", "net", "kernel", "fs"):
        (work / "proc" / family).mkdir(parents=True)
    for key in keys:
        place = work / "proc" / key.replace(".", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("7\n")
    (work / "profile").write_text(tuned.profile((), made).replace("include=\n", ""))
    argv = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "bash", "-c", ADM, "stage", str(work)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    if "wrong fs type" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    log = (work / "log").read_text()
    said = [row for row in done.stdout.splitlines() if row.startswith(("profile ", "verify ", "off ", "Current"))]
    assert said == ["profile 0", "Current active profile: torchtune-sys", "verify 0", "verify 1", "off 0"], done.stdout + log
    for key, value in keys.items():
        assert (work / "during" / key.replace(".", "/")).read_text().split() == value.split(), (key, log)
        assert (work / "proc" / key.replace(".", "/")).read_text().strip() == "7", key
    assert done.stdout.splitlines()[-1] == "never"
