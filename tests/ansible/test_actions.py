"""What the role does by Ansible's own modules: a reboot, and only one; files, notes, draining; smoke and install, as far as a host without GPU and torch can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import pytest
from controller import Played, Plays
from ssh_machines import Machine, machines

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

TOOL = "/usr/local/bin/torchtune-sys"
HARDWARE = """
gpu=/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0
mkdir -p $gpu /sys/bus/pci/devices
echo 0x10de >$gpu/vendor; echo 0x2330 >$gpu/device; echo 0x030200 >$gpu/class
printf 'DRIVER=nouveau\\nPCI_CLASS=30200\\nPCI_ID=10DE:2330\\nPCI_SUBSYS_ID=10DE:16C1\\nPCI_SLOT_NAME=0000:1b:00.0\\n' >$gpu/uevent
ln -sfn ../../../devices/pci0000:17/0000:17:01.0/0000:1b:00.0 /sys/bus/pci/devices/0000:1b:00.0
echo 'nouveau 3096576 1 - Live 0x0000000000000000' >/run/modules; mount --bind /run/modules /proc/modules
"""
"""A GPU that nouveau has taken, at each start: the kernel's arguments are this host's own, so what is set there never takes effect."""
BOOT_LOADER = "#!/bin/sh\ncat /etc/default/grub.d/*.cfg >/boot/grub.cfg 2>/dev/null\nexit 0\n"


class Host:
    def __init__(self, plays: Plays, machine: Machine) -> None:
        self.plays, self.machine = plays, machine

    def role(self, tasks: str, *options: str, **variables: Any) -> Played:
        role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": tasks}}
        return self.plays.play([{"hosts": "host", "gather_facts": False, "tasks": [role]}], *options, **variables)

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.machine.sh(f"{TOOL} history --format json"))["runs"]
        return found


@pytest.fixture(scope="module")
def host(work: Path, bundle: Path) -> Iterator[Host]:
    with machines(work, {"host": "bookworm"}) as (controller, made):
        machine = made["host"]
        machine.work.joinpath("machine/hardware").write_text(HARDWARE)
        loader = machine.root / "usr/sbin/update-grub"
        loader.write_text(BOOT_LOADER)
        loader.chmod(0o755)
        machine.sh("mkdir -p /etc/default/grub.d")
        machine.restart()
        plays = Plays(work, fleet.inventory(controller, made), controller)
        one = Host(plays, machine)
        first = one.role("tool", torchtune_sys_source=str(bundle))
        assert first.status == 0, first.output
        yield one


def test_a_reboot_is_made_where_it_is_allowed_and_once(host: Host) -> None:
    change = {"torchtune_sys_select": ["nouveau-loaded"], "torchtune_sys_unsafe": True}
    started = host.machine.boot()
    first = host.role("apply", **change)
    assert first.status == 0, first.output
    (result,) = first.of("host", "torchtune_apply")
    (key,) = result["waits"]["reboot"]
    again = host.role("apply", **change)
    assert again.changed("host") == [] and again.of("host", "torchtune_apply")[0]["waits"]["reboot"] == [key], again.output
    assert host.machine.boot() == started, "it was not allowed"

    allowed = host.role("apply", **change, torchtune_sys_reboot=True)
    assert allowed.status == 0, allowed.output
    restarted = host.machine.boot()
    assert restarted not in ("", started)
    assert [run["elsewhere"] for run in host.runs()] == [[f"host rebooted by Ansible for {key}"]]

    still = host.role("apply", **change, torchtune_sys_reboot=True)
    assert still.status == 0 and still.changed("host") == [], still.output
    (result,) = still.of("host", "torchtune_apply")
    assert result["waits"]["reboot"] == result["rebooted"] == [key] and "rebooted already" in still.output
    assert host.machine.boot() == restarted, "a reboot at every run"

    undone = host.role("undo")
    assert undone.status == 0, undone.output
    (result,) = undone.of("host", "torchtune_undo")
    assert [one["key"] for one in result["left"]] == [f"host rebooted by Ansible for {key}"] and "not undone" in undone.output
    assert not host.machine.root.joinpath("etc/default/grub.d/99-torchtune-sys.cfg").exists()


def test_jobs_are_taken_off_before_what_disrupts_and_the_host_is_given_back(host: Host, tmp_path: Path) -> None:
    for name in ("drain", "resume"):
        task = {"ansible.builtin.shell": f"echo {name} $(cat /boot/grub.cfg | wc -l) >>/var/order"}
        (tmp_path / f"{name}.json").write_text(json.dumps([task]))
    files = {"torchtune_sys_drain": str(tmp_path / "drain.json"), "torchtune_sys_resume": str(tmp_path / "resume.json")}
    change = {"torchtune_sys_select": ["nouveau-loaded"], "torchtune_sys_unsafe": True, **files}
    host.machine.sh("rm -f /boot/grub.cfg; touch /boot/grub.cfg")
    played = host.role("apply", torchtune_sys_reboot=True, **change)
    assert played.status == 0, played.output
    order = host.machine.root.joinpath("var/order")
    assert [line.split()[0] for line in order.read_text().splitlines()] == ["drain", "resume"]
    assert order.read_text().splitlines()[0] == "drain 0", "before the change"
    order.unlink()
    assert host.role("apply", torchtune_sys_reboot=True, **change).status == 0 and not order.exists(), "nothing disrupts"
    host.role("undo")


def test_a_smoke_test_that_cannot_train_fails_and_says_why(host: Host) -> None:
    played = host.role("smoke")
    (failure,) = played.failed("host")
    print(failure.result["msg"])
    assert "torch" in failure.result["msg"] and "rc" not in failure.result
    assert host.role("smoke", "--check").status == 0


def test_what_ansible_did_is_entered_and_its_steps_are_taken_once(host: Host) -> None:
    action = {"type": "file", "path": "/etc/motd.d/trainer", "text": "trains\n", "root": True}
    step = {"title": "Say it", "actions": [action], "by_hand": "", "reboot": False}
    given = {"torchtune_sys_step": step, "torchtune_sys_applied": {"run": None, "rebooted": [], "identity": "- -"}}
    host.machine.sh("mkdir -p /etc/motd.d")
    first, second = host.role("step", **given), host.role("step", **given)
    assert first.status == second.status == 0, first.output + second.output
    assert host.machine.root.joinpath("etc/motd.d/trainer").read_text() == "trains\n"
    assert sum("written by Ansible: /etc/motd.d/trainer" in run["elsewhere"] for run in host.runs()) == 1
    assert "Write /etc/motd.d/trainer" in " ".join(first.changed("host")) and second.changed("host") == []
    told = host.role("undo").of("host", "torchtune_undo")[0]["left"]
    assert "written by Ansible: /etc/motd.d/trainer" in [one["key"] for one in told]


def test_what_to_install_is_told_in_steps(host: Host) -> None:
    played = host.role("install", "--check", torchtune_sys_install_cpu=True)
    (result,) = played.of("host", "torchtune_install_info")
    print([step["title"] for step in result["steps"]], result["refused"])
    assert result["steps"] or result["refused"]
