"""What goes wrong in the middle of plays (the table of docs/ansible.md): what the run says, what the host holds, and that the next run mends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fleet
import pytest
from controller import Plays
from faulty_host import CHECK, PASSWORD, PATIENCE_S, RUNS, TOOL, Host, mended, processes, sessions
from ssh_machines import Machine, machines, until

pytestmark = [pytest.mark.long, pytest.mark.exhaustive, pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")]


@pytest.fixture(scope="module")
def lab(work: Path, bundle: Path) -> Iterator[Host]:
    with machines(work, {"host": "bookworm", "beside": "bookworm"}) as (controller, made):
        fleet.admin(made["host"], sudo="")
        made["host"].sh(f"echo '{fleet.ADMIN}:{PASSWORD}' | chpasswd")
        for path, value in fleet.WRONG.items():  # what it starts with
            if path.startswith("/proc"):
                (made["host"].work / "machine/proc-sys" / path.removeprefix("/proc/sys/")).write_text(f"{value}\n")
        hosts = fleet.inventory(controller, made)
        hosts["by-password"] = {**hosts["host"], **fleet.login(controller, fleet.ADMIN)}
        host = Host(Plays(work, hosts, controller), made["host"], bundle)
        first = host.plays.play(CHECK, "--limit", "host,beside,localhost", torchtune_sys_source=str(bundle))
        assert first.status == 0, first.output
        yield host


@pytest.fixture
def host(lab: Host) -> Host:
    """Out of tune, with nothing applied. In the end the next run has mended it, and undoing gives what was before."""
    lab.machine.sh(
        f"{TOOL} undo --all --yes >/dev/null 2>&1; rm -rf {RUNS} /etc/ansible; ls {RUNS} 2>&1 | grep -c journal || true"
    )
    fleet.detune(lab.machine)
    return lab


def test_1_the_connection_is_cut_while_the_tool_applies(host: Host) -> None:
    running = host.begin_to_catch("--forks", "2", host="host,beside")
    tool = running.catch()
    for process in sessions(host.machine):
        os.kill(process, signal.SIGKILL)
    os.kill(tool, signal.SIGCONT)
    played = running.end()
    failure, *_ = played.failed("host")
    print(failure.state, failure.result.get("msg"))
    assert failure.state == "unreachable" and played.failed("beside") == []
    assert played.of("beside", "torchtune_apply")
    until(lambda: not Path(f"/proc/{tool}").exists(), PATIENCE_S)
    print("afterwards:", host.values(), host.history())
    mended(host)


def test_2_the_password_for_become_is_wrong(host: Host) -> None:
    played = host.apply(host="by-password", ansible_become_password="wrong")
    failure, *_ = played.failed("by-password")
    print(failure.result["msg"])
    assert "password" in failure.result["msg"] and host.is_untouched()
    mended(host, "by-password", ansible_become_password=PASSWORD)


def test_3_the_journals_file_system_is_full(host: Host) -> None:
    host.machine.sh(
        f"mkdir -p {RUNS}; mount -t tmpfs -o size=16k,mode=700 none {RUNS}; dd if=/dev/zero of={RUNS}/fill bs=4k 2>/dev/null || true"
    )
    try:
        played = host.apply()
        failure, *_ = played.failed("host")
        print(failure.result["msg"])
        assert "No space left" in failure.result["msg"] and RUNS in failure.result["msg"]
        assert host.is_untouched()
    finally:
        host.machine.sh(f"umount {RUNS}")
    mended(host)


def test_4_where_kernel_settings_lie_is_read_only(host: Host) -> None:
    host.machine.sh("mount --bind /etc/sysctl.d /etc/sysctl.d; mount -o remount,ro,bind /etc/sysctl.d")
    try:
        played = host.apply()
        failure, *_ = played.failed("host")
        print(failure.result["msg"], host.values())
        told = failure.result["msg"] + str(failure.result.get("failed_changes"))
        assert "/etc/sysctl.d" in told and "sysctl.d/99-torchtune-sys.conf" not in host.files()
        assert {path: value for path, value in host.values().items() if path.startswith("/proc")}.items() <= fleet.WRONG.items()
    finally:
        host.machine.sh("umount /etc/sysctl.d")
    mended(host)


def test_5_two_controllers_at_once(host: Host) -> None:
    both = [host.begin(), host.begin()]
    ended = [one.end() for one in both]
    assert [played.status for played in ended] == [0, 0], ended[0].output + ended[1].output
    made = [
        change["key"]
        for played in ended
        for result in played.of("host", "torchtune_apply")
        for change in result["changes"]
        if change["state"] in ("cured", "lost-at-boot", "waits")
    ]
    print(sorted(made), host.history())
    assert len(made) == len(set(made)) == len(fleet.WRONG) and host.is_tuned()
    mended(host)


@pytest.mark.parametrize("what", ["words", "bytes", "half"])
def test_6_the_tools_file_is_no_tool(host: Host, what: str) -> None:
    place = host.machine.root / TOOL.lstrip("/")
    whole = place.read_bytes()
    place.write_bytes({"words": b"#!/bin/sh\necho hello\n", "bytes": os.urandom(5000), "half": whole[: len(whole) // 2]}[what])
    played = host.check()
    result, *_ = [one.result for one in played.failed("host")]
    print(result["msg"])
    assert "findings" not in result and result["why"] in ("garbage", "cannot-start", "no-answer", "refused"), result
    assert host.is_untouched()
    mended(host)


def test_7_the_host_restarts_while_the_tool_applies(host: Host) -> None:
    running = host.begin_to_catch()
    running.catch()
    host.machine.restart()
    played = running.end()
    failure, *_ = played.failed("host")
    print(failure.state, failure.result.get("msg"), host.history(), host.files().keys(), host.values())
    assert failure.state == "unreachable"
    fleet.detune(host.machine, {path: value for path, value in fleet.WRONG.items() if path.startswith("/sys")})
    played = mended(host)
    assert played.of("host", "torchtune_apply")[-1]["recovered"] == [1]


def test_8_the_module_is_killed(host: Host) -> None:
    running = host.begin_to_catch()
    tool = running.catch()
    modules = processes(host.machine, "/AnsiballZ_torchtune_apply.py")
    assert modules
    for process in modules:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os.kill(tool, signal.SIGCONT)
    played = running.end()
    print([(one.state, one.result.get("msg")) for one in played.failed("host")])
    assert played.status != 0 and played.failed("host")
    until(lambda: not Path(f"/proc/{tool}").exists(), PATIENCE_S)
    print("afterwards:", host.values(), host.history())
    mended(host)


def test_9_a_banner_before_the_json_is_not_believed(host: Host) -> None:
    host.machine.sh(
        f"mv {TOOL} {TOOL}.real; printf '#!/bin/sh\\necho Welcome to node 7\\nexec {TOOL}.real \"$@\"\\n' >{TOOL}; chmod 755 {TOOL}"
    )
    (result,) = host.check().of("host", "torchtune_check")
    print(result["msg"])
    assert result["why"] == "garbage" and "Welcome to node 7" in result["msg"] and "findings" not in result
    mended(host)


def test_9_login_scripts_that_print_do_no_harm(host: Host) -> None:
    lines = "echo Welcome to node 7; echo noise >&2"
    host.machine.sh(f"cp /root/.bashrc /root/.bashrc.kept 2>/dev/null; echo {json.dumps(lines)} >/root/.bashrc")
    try:
        mended(host)
    finally:
        host.machine.sh("mv /root/.bashrc.kept /root/.bashrc || rm /root/.bashrc")


def test_10_the_tool_is_killed_while_it_applies(host: Host) -> None:
    running = host.begin_to_catch()
    os.kill(running.catch(), signal.SIGKILL)
    failure, *_ = running.end().failed("host")
    print(failure.result["msg"], host.history())
    assert failure.result["why"] == "killed" and "signal 9" in failure.result["msg"]
    assert mended(host).of("host", "torchtune_apply")[-1]["recovered"] == [1]


def test_11_ansible_playbook_is_killed_while_the_tool_applies(host: Host) -> None:
    running = host.begin_to_catch()
    tool = running.catch()
    os.killpg(running.process.pid, signal.SIGKILL)
    running.end()
    os.kill(tool, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{tool}").exists(), PATIENCE_S)
    print("afterwards:", host.values(), host.history())
    mended(host)


def test_12_the_places_for_ansibles_own_files_are_full(host: Host) -> None:
    places = ("/root/.ansible", "/tmp", "/var/tmp")
    for place in places:
        host.machine.sh(
            f"mkdir -p {place}; mount -t tmpfs -o size=16k none {place}; dd if=/dev/zero of={place}/fill bs=4k 2>/dev/null || true"
        )
    try:
        played = host.apply(host="host,beside")
        failure, *_ = played.failed("host")
        print(failure.state, failure.result.get("msg"))
        assert played.status != 0 and host.is_untouched()
        assert played.failed("beside") == [] and played.of("beside", "torchtune_apply")
    finally:
        host.machine.sh(f"umount {' '.join(places)}")
    mended(host)


def test_13_a_journal_is_damaged(host: Host) -> None:
    assert host.apply().status == 0
    journal = host.machine.root / RUNS.lstrip("/") / "0001.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b"max_map_count", b"max_map_cOunt", 1))
    fleet.detune(host.machine)
    played = host.apply()
    failure, *_ = played.failed("host")
    print(failure.result["msg"])
    assert "0001.journal" in failure.result["msg"] and host.values() == fleet.WRONG
    journal.write_bytes(whole)
    mended(host)


def test_14_the_interpreter_that_is_named_is_not_there(host: Host) -> None:
    played = host.apply(torchtune_sys_interpreter="/opt/nowhere/python3")
    failure, *_ = played.failed("host")
    print(failure.result["msg"])
    assert "/opt/nowhere/python3" in failure.result["msg"] and host.is_untouched()
    mended(host)


def test_15_the_connection_is_cut_while_the_tool_is_copied(host: Host) -> None:
    """Over a slow link, so that there is a while to cut it in; nothing is reached again until the play has ended."""
    host.machine.sh(f"mv {TOOL} {TOOL}.real; printf '#!/bin/sh\\nexec {TOOL}.real \"$@\"\\n' >{TOOL}; chmod 755 {TOOL}")
    place = host.machine.root / TOOL.lstrip("/")
    older = place.read_bytes()
    link = host.machine.controller.inside("tc", "qdisc", "{}", "dev", "port1", "root")
    slow = ["tbf", "rate", "2mbit", "burst", "32kbit", "latency", "400ms"]
    subprocess.run([word.format("add") for word in link] + slow, check=True)
    try:
        running = host.begin()
        until(lambda: running.process.poll() is not None or half_copied(host.machine), PATIENCE_S)
        host.machine.sh("systemctl stop ssh")
        for process in sessions(host.machine):
            os.kill(process, signal.SIGKILL)
        played = running.end()
    finally:
        subprocess.run([word.format("del") for word in link], check=True)
        host.machine.sh("systemctl start ssh")
    failure, *_ = played.failed("host")
    print(failure.task, failure.state, failure.result.get("msg"))
    assert failure.state == "unreachable" and played.of("host", "torchtune_apply") == [], played.output
    assert place.read_bytes() == older and "torchtune-sys" in host.machine.sh(f"{TOOL} --version") and host.is_untouched()
    until(host.machine.is_up, PATIENCE_S)
    mended(host)


def half_copied(machine: Machine) -> bool:
    """Whether part of the tool's file has come."""
    found = (machine.root / "root/.ansible/tmp").glob("*/*")
    return any(path.stat().st_size > 200_000 for path in found if path.is_file())
