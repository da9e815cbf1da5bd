"""What became of each setting: lost at the next boot, as JSON, foretold, and told to a person who said no."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_apply import MAPS, OURS, STAGE, TOOL, can_mount, staged

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.probes.plan_context import boot_commands
from torchtune_sys.render import schemas

needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root that may mount")
SCHEMA = json.loads(Path(schemas.DATA, "run.schema.json").read_text())
APPLY = "$TOOL apply --yes --select max-map-count-low"


def document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert isinstance(found, dict)
    return found


def changes(text: str) -> list[tuple[str, str, str]]:
    return [(item["key"], item["rule"], item["state"]) for item in document(text)["changes"]]


LOSES = {
    "a later file": ("echo vm.max_map_count=4000 >/etc/sysctl.d/zz-site.conf", "/etc/sysctl.d/zz-site.conf:1 sets it to 4000"),
    "an exclusion": ("echo -vm.max_map_count >/etc/sysctl.d/zz-site.conf", "excluded in /etc/sysctl.d/zz-site.conf:1"),
    "a unit": (
        "mkdir -p /etc/systemd/system/multi-user.target.wants; echo vm.max_map_count=4000 >/etc/my.conf; "
        "printf '[Service]\\nExecStart=/sbin/sysctl -p /etc/my.conf\\n' >/etc/systemd/system/late.service; "
        "ln -s ../late.service /etc/systemd/system/multi-user.target.wants/late.service",
        "late.service (loads /etc/my.conf, line 1) sets it to 4000 then: systemctl disable late.service",
    ),
    "rc.local": (
        "printf '#!/bin/sh\\nsysctl -w vm.max_map_count=4000\\n' >/etc/rc.local; chmod 755 /etc/rc.local",
        "/etc/rc.local sets it to 4000",
    ),
}


@needs_mounts
@pytest.mark.parametrize("name", LOSES)
def test_what_the_next_boot_takes_back_is_not_called_cured(name: str, tmp_path: Path) -> None:
    before, words = LOSES[name]
    done = staged(f"{before}\n{APPLY}; echo status $?; cat {MAPS}", tmp_path / "stage")
    said = " ".join(done.stdout.split())
    assert "status 5 65530" in said and "1 lost-at-boot" in said and words in said, done.stdout + done.stderr


@needs_mounts
def test_what_a_daemon_reads_when_it_starts_is_not_cured_before(tmp_path: Path) -> None:
    """The rule judges by the file, and logind goes on as before: "cured" was said of it."""
    before = "mkdir -p /etc/slurm /etc/systemd; echo ClusterName=x >/etc/slurm/slurm.conf"
    done = staged(f"{before}\n$TOOL apply --yes --select logind-removes-ipc; echo status $?", tmp_path / "stage")
    if "1 safe change" not in done.stdout:
        pytest.skip("needs systemd-logind, outside of a container")
    said = " ".join(done.stdout.partition("Run 1")[2].split())
    assert "1 waits" in said and "takes effect after: service restart" in said and said.endswith("status 0"), done.stdout


@needs_mounts
def test_what_fails_wins_over_what_is_lost(tmp_path: Path) -> None:
    """Both are lost at the next boot; once one of them cannot be written, the status is that of the failure."""
    both = "$TOOL apply --yes --unsafe --select max-map-count-low,task-table-small --format json >/etc/out.json; echo status $?; cat /etc/out.json"
    site = "printf 'vm.max_map_count=4000\\nkernel.pid_max=2000\\n' >/etc/sysctl.d/zz-site.conf"
    small = "echo 2000 >/etc/pids; mount --bind /etc/pids /proc/sys/kernel/pid_max"
    keys = ("vm.max_map_count", "kernel.pid_max")
    done = staged(f"{site}; {small}; {both}", tmp_path / "lost")
    first, _, text = done.stdout.partition("\n")
    assert (first, {key: state for key, _, state in changes(text)}) == ("status 5", dict.fromkeys(keys, "lost-at-boot"))
    lines = [{"action": "comment-out", "path": "/etc/sysctl.d/zz-site.conf", "line": line} for line in (1, 2)]
    assert [item["remedy"] for item in document(text)["changes"]] in (lines, lines[::-1])
    done = staged(f"{site}; {small}; mount -o remount,ro,bind /proc/sys/kernel/pid_max; {both}", tmp_path / "failed")
    first, _, text = done.stdout.partition("\n")
    assert first == "status 1"
    states = {key: state for key, _, state in changes(text)}
    assert states["vm.max_map_count"] == "lost-at-boot" and states["kernel.pid_max"] in ("failed", "refused")


@needs_mounts
def test_apply_and_undo_as_json(tmp_path: Path) -> None:
    done = staged(
        f"""
        $TOOL apply --dry-run --select max-map-count-low --format json >/etc/a; {APPLY} --format json >/etc/b; echo "apply $?" >&2
        {APPLY} --format json >/etc/c
        $TOOL undo --dry-run --format json >/etc/d; $TOOL undo --yes --format json >/etc/e; echo "undo $?" >&2
        $TOOL undo --yes --format json >/etc/f
        for one in a b c d e f; do cat /etc/$one; echo ---; done; cat {MAPS}
        """,
        tmp_path / "stage",
    )
    dry, made, again, foretold, undone, nothing, maps = done.stdout.split("---\n")
    key, rule = "vm.max_map_count", "max-map-count-low"
    assert "apply 0" in done.stderr and "undo 0" in done.stderr and maps == "3000\n"
    assert (document(dry)["run"], changes(dry)) == (None, [(key, rule, "left")])
    assert (document(made)["run"], changes(made)) == (1, [(key, rule, "cured")])
    assert document(made)["changes"][0]["seen"] == "3000"
    assert (document(again)["run"], changes(again)) == (None, [])
    assert document(foretold) == document(undone)
    assert (document(undone)["run"], changes(undone)) == (1, [(key, rule, "restored")])
    assert document(undone)["changes"][0]["wanted"] == "3000"
    assert document(nothing)["changes"] == []


@needs_mounts
def test_refused_and_left_out_are_entries_too(tmp_path: Path) -> None:
    done = staged(f"mkdir {OURS}; {APPLY} --format json; echo; ls -d {OURS}", tmp_path / "stage")
    text = done.stdout[: done.stdout.rindex("}") + 1]
    assert changes(text) == [("vm.max_map_count", "max-map-count-low", "refused")] and OURS in text


@needs_mounts
def test_undo_keeps_what_a_person_added_to_our_file(tmp_path: Path) -> None:
    done = staged(
        f"""
        {APPLY} >/dev/null; printf '\\nvm.mine = 1\\n' >>{OURS}
        $TOOL undo --dry-run; $TOOL undo --yes; echo "undo $?"; cat {OURS} {MAPS}
        """,
        tmp_path / "stage",
    )
    assert done.stdout.endswith("undo 0\nvm.mine = 1\n3000\n"), done.stdout


@needs_mounts
def test_undo_gives_back_the_file_that_was_there_and_keeps_the_new_line(tmp_path: Path) -> None:
    done = staged(
        f"""
        echo 'vm.old = 1' >{OURS}; {APPLY} >/dev/null; printf '\\nvm.mine = 1\\n' >>{OURS}
        $TOOL undo --yes; echo "undo $?"; cat {OURS}
        """,
        tmp_path / "stage",
    )
    assert done.stdout.endswith("undo 0\nvm.old = 1\n\nvm.mine = 1\n"), done.stdout


@needs_mounts
@pytest.mark.parametrize("change", [f"echo 70000 >{MAPS}", f"rm {OURS}", f"sed -i 's/^vm.*/&0/' {OURS}", "true"])
def test_a_dry_run_of_undo_says_what_undo_does(change: str, tmp_path: Path) -> None:
    done = staged(
        f"{APPLY} >/dev/null; {change}; $TOOL undo --dry-run --format json; echo ---; $TOOL undo --yes --format json",
        tmp_path / "stage",
    )
    foretold, undone = done.stdout.split("---\n")
    assert document(foretold) == document(undone)


@needs_mounts
def test_a_stray_journal_hides_nothing_and_floods_nothing(tmp_path: Path) -> None:
    state = "/var/lib/torchtune-sys"
    done = staged(
        f"""
        {APPLY} >/dev/null; echo nonsense >{state}/9999.journal; : >{state}/5000.journal
        $TOOL history; echo "history $?"; $TOOL undo --yes; echo "undo $?"; cat {MAPS}
        """,
        tmp_path / "stage",
    )
    assert "history 0" in done.stdout and done.stdout.endswith("undo 0\n3000\n")
    assert done.stderr.count("is not the journal of a run") == 2 and "missing" not in done.stderr


@needs_mounts
def test_a_person_who_says_no_is_not_interrupted(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    leader, follower = pty.openpty()
    script = f"{STAGE}\n{TOOL} apply --select max-map-count-low; echo status $?; cat {MAPS}"
    child = subprocess.Popen(
        ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(stage)),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "NO_COLOR": "1"},
    )
    os.close(follower)
    os.write(leader, b"n\n")
    said = b""
    while b"3000" not in said.partition(b"status")[2]:
        said += os.read(leader, 65536)
    child.wait(60)
    os.close(leader)
    assert b"nothing was changed, as you answered" in said and b"interrupted" not in said and b"status 1" in said


def test_only_enabled_units_and_reboot_lines_of_cron_set_something_at_boot() -> None:
    files = {
        "/etc/systemd/system/off.service": "[Service]\nExecStart=/sbin/sysctl -w vm.swappiness=60\n",
        "/etc/systemd/system/on.service": "[Service]\nExecStart=/bin/sh -c 'echo never > /sys/kernel/mm/x/enabled'\n",
        "/etc/systemd/system/multi-user.target.wants/on.service": "",
        "/etc/cron.d/tune": "@reboot root sysctl -w vm.swappiness=40\n0 0 * * * root sysctl -w vm.swappiness=50\n",
    }
    found = boot_commands.probe(RecordedHost({"files": files}, "made"))
    assert [(item.path, item.value, item.source) for item in found] == [
        ("/sys/kernel/mm/x/enabled", "never", "on.service"),
        ("/proc/sys/vm/swappiness", "40", "/etc/cron.d/tune"),
    ]


CLOSED = {
    "a read-only value": (f"mount -o remount,ro,bind {MAPS}", f"{MAPS} is on a read-only mount"),
    "a read-only folder": (
        "mount --bind /etc/sysctl.d /etc/sysctl.d; mount -o remount,ro,bind /etc/sysctl.d",
        "read-only file system",
    ),
    "an immutable folder": (
        "mount -t tmpfs none /etc/sysctl.d; chattr +i /etc/sysctl.d 2>/dev/null || mount -o remount,ro /etc/sysctl.d",
        "/etc/sysctl.d",
    ),
    "a full disk": ("mount -t tmpfs -o size=128k none /etc/sysctl.d; head -c 131072 /dev/zero >/etc/sysctl.d/big", "is full"),
    "a link to nowhere": ("rm -rf /etc/sysctl.d; ln -s /nowhere /etc/sysctl.d", "/etc/sysctl.d is a link to /nowhere"),
    "a file in the way": ("rm -rf /etc/sysctl.d; : >/etc/sysctl.d", "/etc/sysctl.d is no directory"),
}


@pytest.mark.sampled(2, 3)
@needs_mounts
@pytest.mark.parametrize("name", CLOSED)
def test_the_plan_knows_what_cannot_be_written_and_offers_the_rest(name: str, tmp_path: Path) -> None:
    made, words = CLOSED[name]
    done = staged(
        f"""
        echo 2000 >/etc/pids; mount --bind /etc/pids /proc/sys/kernel/pid_max; ulimit -n 512
        {made}
        $TOOL plan --select max-map-count-low,nofile-limit-too-low --format json; echo ---
        $TOOL apply --yes --select max-map-count-low,nofile-limit-too-low --format json
        """,
        tmp_path / "stage",
    )
    planned, _, applied = done.stdout.partition("---\n")
    plan = json.loads(planned)["plan"]
    assert [item["key"] for item in plan["refused"]] == ["vm.max_map_count"] and words in plan["refused"][0]["reason"], done
    assert "limit nofile" in {item["key"] for item in plan["changes"]}
    states = {key: state for key, _, state in changes(applied)}
    assert states["vm.max_map_count"] == "refused" and states["limit nofile"] in ("waits", "cured")


@needs_mounts
@pytest.mark.parametrize("place", [MAPS, "/etc/sysctl.d"])
def test_undo_foretells_what_it_cannot_put_back(place: str, tmp_path: Path) -> None:
    done = staged(
        f"""
        {APPLY} >/dev/null; mount --bind {place} {place}; mount -o remount,ro,bind {place}
        $TOOL undo --dry-run --format json >/etc/foretold; $TOOL undo --yes --format json >/etc/found
        cat /etc/foretold; echo ---; cat /etc/found
        """,
        tmp_path / "stage",
    )
    foretold, _, found = done.stdout.partition("---\n")
    assert document(foretold) == document(found) and changes(found)[0][2] == "failed", done
