"""The real tuned: it applies a generated profile, verifies it, notices a change, and takes it back; who wins beside our sysctl file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from pieces_tuned import BASE, RULES, union
from simulate import Seen, recording

from torchtune_sys.render.generate import tuned

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
for turn in $(seq 900); do grep -q "profile 'torchtune-sys' applied" log 2>/dev/null && break; sleep 0.1; done
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
for turn in $(seq 900); do busctl --list 2>/dev/null | grep -q com.redhat.tuned && break; sleep 0.1; done
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


REAPPLY = """
set -e
work=$1
cd "$work"
mkdir up upw
mount --bind "$work/vm" /proc/sys/vm
mount -t overlay o -o lowerdir=/etc,upperdir="$work/up",workdir="$work/upw" /etc
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
mkdir -p /var/lib/tuned /run/tuned /etc/tuned/site
rm -f /etc/sysctl.conf /etc/sysctl.d/*
printf 'reapply_sysctl = %s\n' "$2" >/etc/tuned/tuned-main.conf
printf '[main]\nsummary=x\n[sysctl]\nvm.swappiness=60\n' >/etc/tuned/site/tuned.conf
cp ours /etc/sysctl.d/99-torchtune-sys.conf
tuned --no-dbus --profile site --log "$work/log" --pid /run/tuned/tuned.pid >/dev/null 2>&1 & pid=$!
for turn in $(seq 900); do grep -q "profile 'site' applied" log 2>/dev/null && break; sleep 0.1; done
sleep 0.2
cat vm/swappiness
kill -TERM $pid
wait $pid || :
"""


@pytest.mark.skipif(not shutil.which("tuned") or os.geteuid() != 0, reason="needs root and tuned")
@pytest.mark.parametrize(("reapply", "wins"), [("1", "10"), ("0", "60")])
def test_who_wins_between_tuned_and_our_file(tmp_path: Path, reapply: str, wins: str) -> None:
    """As docs/remedy.md says. The plan refuses the key either way, and names the profile."""
    (tmp_path / "vm").mkdir()
    (tmp_path / "vm/swappiness").write_text("7\n")
    (file,) = Seen(recording("swappiness-high.fail"), [RULES["swappiness-high"]]).plan.files
    (tmp_path / "ours").write_text(file.content)
    argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", REAPPLY, "stage", str(tmp_path), reapply]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    if "wrong fs type" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    assert done.stdout.split() == [wins], done.stderr
