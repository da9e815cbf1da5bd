"""The programs that read what is generated: systemd-sysctl, sysctl --system, modprobe, systemd-tmpfiles, udev."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pieces_stage import needs, staged
from simulate import Seen, recording

from conftest import HOSTS, load
from torchtune_sys.model.actions import Limit, ModuleOption, OwnedFile, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, FileLine
from torchtune_sys.model.plan_context import LIMITS_FILE, MODPROBE_FILE, SYSCTL_FILE, TMPFILES_FILE, UDEV_FILE, PlanContext
from torchtune_sys.remediation.plan import files, persistence
from torchtune_sys.rules import by_id

KINDS = Sysctl | SysfsWrite | OwnedFile | Limit | ModuleOption
RULES = {name: rule for name, rule in by_id().items() if any(isinstance(action, KINDS) for action in rule.fix)}
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
SEEN = load("healthy")
"""A host whose disks are none of those named here."""
SYSTEMD_SYSCTL = "/lib/systemd/systemd-sysctl"


@cache
def union() -> tuple[dict[str, str], tuple[Change, ...]]:
    """Every owned file with the lines of all failing hosts, the last one of each key."""
    lines: dict[tuple[str, str], tuple[FileLine, Change]] = {}
    changes: dict[str, Change] = {}
    for name in FAILING:
        for change in Seen(recording(name), [RULES[name.split(".")[0]]]).plan.changes:
            changes[change.key] = change
            lines.update({(step.path, step.key): (step, change) for step in change.steps if isinstance(step, FileLine)})
    found: dict[str, list[str]] = {}
    for (path, _), (line, change) in sorted(lines.items()):
        found.setdefault(path, [files.HEAD]).append(files.block(line, change))
    return {path: "\n\n".join(blocks) + "\n" for path, blocks in found.items()}, tuple(changes.values())


def rows(path: str) -> list[str]:
    return [row for row in union()[0][path].splitlines() if row and row[0] != "#"]


def test_there_is_something_to_read() -> None:
    counts = {path: len(rows(path)) for path in union()[0]}
    print(f"{len(FAILING)} hosts, {counts}")
    assert counts[SYSCTL_FILE] >= 12 and counts[LIMITS_FILE] >= 20 and counts[TMPFILES_FILE] >= 4 and counts[UDEV_FILE] >= 2


def assigned() -> dict[str, str]:
    return {key.strip(): value.strip() for key, value in (row.split("=", 1) for row in rows(SYSCTL_FILE))}


def kernel(work: Path, keys: dict[str, str]) -> None:
    for key in keys:
        place = work / "proc" / key.replace(".", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("7\n")


READERS = [
    pytest.param(f"{SYSTEMD_SYSCTL}\n", marks=needs(SYSTEMD_SYSCTL), id="systemd-sysctl"),
    pytest.param("sysctl --system\n", marks=needs("sysctl"), id="procps"),
]


@pytest.mark.parametrize("reader", READERS)
def test_kernel_settings_arrive_key_by_key(tmp_path: Path, reader: str) -> None:
    wanted = assigned()
    kernel(tmp_path, wanted)
    done = staged(tmp_path, {SYSCTL_FILE: union()[0][SYSCTL_FILE]}, reader)
    assert done.returncode == 0, done.stderr
    for key, value in wanted.items():
        assert (tmp_path / "proc" / key.replace(".", "/")).read_text().split() == value.split(), (key, done.stderr)


RIVALS = {
    "/etc/sysctl.d/50-a.conf": "vm.swappiness = 51\n",
    "/etc/sysctl.d/99-zz.conf": "vm.swappiness = 52\n",
    "/etc/sysctl.conf": "vm.swappiness = 53\n",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("rival", ["", *RIVALS])
def test_who_wins_is_as_the_plan_says(tmp_path: Path, reader: str, rival: str) -> None:
    there = {rival: RIVALS[rival]} if rival else {}
    plan = Seen(recording("swappiness-high.fail", files=there), [RULES["swappiness-high"]]).plan
    (change,) = plan.changes
    by = "wins at boot" if "systemd" in reader else "wins under sysctl --system"
    predicted = [words for words in change.later if by in words]
    kernel(tmp_path, {"vm.swappiness": ""})
    (file,) = (file for file in plan.files if file.path == SYSCTL_FILE)
    done = staged(tmp_path, {**there, SYSCTL_FILE: file.content}, reader)
    got = (tmp_path / "proc/vm/swappiness").read_text().strip()
    ours = next(step.text.rpartition("= ")[2] for step in change.steps if isinstance(step, FileLine))
    if predicted:
        assert predicted[0].startswith(rival) and f"(= {got})" in predicted[0], (got, done.stderr)
    else:
        assert got == ours, done.stderr


@needs("modprobe")
def test_modprobe_takes_the_options(tmp_path: Path) -> None:
    text = f"{files.HEAD}\n\n# x\noptions nvidia NVreg_EnablePCIERelaxedOrderingMode=1\n"
    text = union()[0].get(MODPROBE_FILE, text)
    (tmp_path / "modprobe.d").mkdir()
    (tmp_path / "modprobe.d" / "a.conf").write_text(text)
    done = staged(tmp_path, {}, 'modprobe --showconfig -C "$work/modprobe.d"\n')
    wanted = [row for row in text.splitlines() if row and row[0] != "#"]
    print(f"{len(wanted)} options")
    assert wanted and all(row in done.stdout.splitlines() for row in wanted), done


HOSTILE = ("a b", 'q"x', "s'x", "$(touch hit)", "per%n", "back\\slash", "[a]", "?", "tab\tx", "ä")


@needs("systemd-tmpfiles")
def test_tmpfiles_writes_what_it_should_and_there_alone(tmp_path: Path) -> None:
    here = tmp_path / "sys/t"
    here.mkdir(parents=True)
    plain = rows(TMPFILES_FILE)
    expected = {}
    for row in plain:
        path, value = row.split()[1].replace("*", "0"), row.split()[-1]
        expected[path] = value
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text("")
    for name in (*HOSTILE, "hit", "xx", "perx"):
        (here / name).write_text("")
    made = [persistence.lines(SEEN, PlanContext(), f"/sys/t/{name}", f"value {name}")[0].text for name in HOSTILE]
    text = "\n".join([files.HEAD, *plain, *made]) + "\n"
    done = staged(tmp_path, {TMPFILES_FILE: text}, f"systemd-tmpfiles --create {TMPFILES_FILE}\n")
    assert done.returncode == 0 and len(expected) >= 4, done.stderr
    for path, value in expected.items():
        assert (tmp_path / path.lstrip("/")).read_text().strip() == value, (path, done.stderr)
    assert {name: (here / name).read_text().strip() for name in HOSTILE} == {name: f"value {name}" for name in HOSTILE}
    assert all((here / name).read_text() == "" for name in ("hit", "xx", "perx"))


DISKS = {
    "nvme0n1": ("disk", "0", True),
    "nvme0c1n1": ("disk", "0", False),
    "sda": ("disk", "1", True),
    "sdb": ("disk", "0", False),
    "vda": ("disk", "1", True),
    "md0": ("disk", "1", True),
    "md1": ("disk", "1", False),
    "dm-3": ("disk", "1", True),
    "loop9": ("disk", "1", False),
}


@needs("udevadm")
def test_udev_finds_the_disks_that_are_meant(tmp_path: Path) -> None:
    names = ("nvme0n1", "sda", "vda", "md0", "dm-3")
    made = [persistence.lines(SEEN, PlanContext(), f"/sys/block/{name}/queue/{attribute}", "4096")[0].text for name in names for attribute in ("read_ahead_kb", "scheduler")]  # fmt: skip
    minor = 0
    devices = []
    for name, (kind, rotational, _) in DISKS.items():
        for device, is_part in ((name, False), (f"{name}/{name}p1", True)):
            place = tmp_path / "sys/devices/virtual/block" / device
            (place / "queue").mkdir(parents=True)
            (place / "queue/read_ahead_kb").write_text("128\n")
            (place / "queue/scheduler").write_text("none\n")
            (place / "queue/rotational").write_text(f"{rotational}\n")
            minor += 1
            base = device.rpartition("/")[2]
            (place / "uevent").write_text(
                f"MAJOR=250\nMINOR={minor}\nDEVNAME={base}\nDEVTYPE={'partition' if is_part else kind}\n"
            )
            (place / "subsystem").symlink_to("/sys/class/block")
            devices.append(device)
    run = "".join(f"udevadm test -a add /sys/devices/virtual/block/{device} 2>&1\n" for device in devices)
    text = "\n".join([files.HEAD, *made, *rows(UDEV_FILE)]) + "\n"
    done = staged(tmp_path, {UDEV_FILE: text}, f"export SYSTEMD_DEVICE_VERIFY_SYSFS=0\n{run}")
    assert "Invalid" not in done.stdout and "unknown" not in done.stdout.lower(), done.stdout
    assert f"Reading rules file: {UDEV_FILE}" in done.stdout, done.stdout + done.stderr
    got = {
        device: (tmp_path / "sys/devices/virtual/block" / device / "queue/read_ahead_kb").read_text().strip()
        for device in devices
    }
    wanted = {name: "4096" if meant else "128" for name, (_, _, meant) in DISKS.items()}
    assert got == {**wanted, **{f"{name}/{name}p1": "128" for name in DISKS}}, done.stdout


UDEVD = "/lib/systemd/systemd-udevd"
DAEMON = """
set -e
cd "$1"
mkdir up upw usr
mount -t overlay o -o lowerdir=/etc,upperdir="$1/up",workdir="$1/upw" /etc
mount -t tmpfs none /run
mount --bind usr /usr/lib/udev/rules.d
for folder in /dev/block /dev/disk; do if [ -d "$folder" ]; then mount -t tmpfs none "$folder"; fi; done
mkdir -p /run/udev /etc/udev
rm -rf /etc/udev/rules.d
mkdir /etc/udev/rules.d
cp rules /etc/udev/rules.d/99-torchtune-sys.rules
/lib/systemd/systemd-udevd >log 2>&1 & pid=$!
for turn in $(seq 1200); do if [ -S /run/udev/control ]; then break; fi; sleep 0.05; done
for action in add change; do
    echo 128 >"$2/read_ahead_kb"
    udevadm trigger --action=$action --sysname-match="$3"
    udevadm settle --timeout=90
    cat "$2/read_ahead_kb" "$2/scheduler"
done
kill $pid
wait $pid || :
"""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A disk of this kernel's, that nobody else uses."""
    (tmp_path / "disk").write_bytes(bytes(1 << 20))
    done = subprocess.run(["losetup", "--find", "--show", str(tmp_path / "disk")], capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    yield done.stdout.strip().rpartition("/")[2]
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True, timeout=20)


@needs("udevadm", UDEVD, "losetup")
def test_the_daemon_sets_a_real_disk_when_it_is_triggered(tmp_path: Path, loop: str) -> None:
    queue = f"/sys/block/{loop}/queue"
    none, *offered = Path(f"{queue}/scheduler").read_text().split()
    if none != "[none]" or "mq-deadline" not in offered:
        pytest.skip("this kernel has no second scheduler")
    wanted = {"read_ahead_kb": "4096", "scheduler": "mq-deadline"}
    made = [persistence.lines(SEEN, PlanContext(), f"{queue}/{name}", value)[0].text for name, value in wanted.items()]
    work = tmp_path / "work"
    for name, lines in (("ours", made), ("others", [])):
        (work / name).mkdir(parents=True)
        (work / name / "rules").write_text("\n".join([files.HEAD, *rows(UDEV_FILE), *lines]) + "\n")
    argv = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "bash", "-c", DAEMON, "stage"]
    others, ours = (
        subprocess.run([*argv, str(work / name), queue, loop], capture_output=True, text=True, timeout=100)
        for name in ("others", "ours")
    )
    if "wrong fs type" in ours.stderr or "Operation not permitted" in ours.stderr:
        pytest.skip(f"no udev here: {ours.stderr.strip()}")
    assert (ours.returncode, others.returncode) == (0, 0), ours
    assert [row.split() for row in others.stdout.splitlines()] == [["128"], ["[none]", *offered]] * 2
    changed = [f"[{word}]" if word == "mq-deadline" else word for word in offered]
    assert [row.split() for row in ours.stdout.splitlines()] == [["4096"], ["none", *changed]] * 2


@pytest.mark.parametrize("name", [*HOSTILE, "", 'sda", RUN+="/bin/x', "sd\nRUN"])
def test_a_disk_that_udev_cannot_name_gets_no_rule(name: str) -> None:
    assert persistence.lines(SEEN, PlanContext(device_names={"8:0": name}), "/sys/class/bdi/8:0/read_ahead_kb", "4096") == ()


def test_the_read_ahead_of_a_network_mount_lasts_as_long_as_the_mount() -> None:
    assert persistence.lines(SEEN, PlanContext(), "/sys/class/bdi/0:45/read_ahead_kb", "4096") == ()


@needs("runuser", "/etc/pam.d/runuser-l")
def test_a_login_gets_the_limits(tmp_path: Path) -> None:
    """Through the real pam_limits, where this process may raise none: the lines of the item are lowered."""
    text = union()[0][LIMITS_FILE]
    assert {row.split()[2] for row in rows(LIMITS_FILE)} >= {"memlock", "nofile", "nproc"}
    bad = "* hard nofil 7\nnobody soft\n"
    low = text.replace("65536", "777").replace("1048576", "778")
    commands = (
        'printf "session required pam_limits.so debug\\n" >/etc/pam.d/torchtune-limits\n'
        'cp /etc/pam.d/torchtune-limits /etc/pam.d/runuser-l; printf "auth sufficient pam_rootok.so\\naccount required pam_permit.so\\n" >>/etc/pam.d/runuser-l\n'
        'runuser -l nobody -s /bin/sh -c "ulimit -n; ulimit -Hn"\n'
    )
    done = staged(tmp_path / "good", {LIMITS_FILE: low}, commands)
    worse = staged(tmp_path / "bad", {LIMITS_FILE: bad}, commands)
    assert done.stdout.split() == ["777", "778"], done
    assert worse.stdout.split() not in ([], ["777", "778"])
