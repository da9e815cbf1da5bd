"""On a whole Debian: fourteen settings detuned by hand are found, cured and put back; what was applied holds over a reboot, what was
undone is gone after one. Three boots of one machine serve all tests; systemd, udev, PAM, modprobe and GRUB read the files themselves.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import guest
import power_guest
import pytest
import remedy_guest

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

TO_COME_BACK = {
    "vm.swappiness": ("/proc/sys/vm/swappiness", "100", "swappiness-high"),
    "vm.zone_reclaim_mode": ("/proc/sys/vm/zone_reclaim_mode", "1", "zone-reclaim-enabled"),
    "kernel.numa_balancing": ("/proc/sys/kernel/numa_balancing", "1", "numa-balancing-enabled"),
    "THP": ("/sys/kernel/mm/transparent_hugepage/enabled", "never", "thp-never"),
    "read-ahead": ("/sys/block/sda/queue/read_ahead_kb", "64", "read-ahead-small"),
    "scheduler of the spinning disk": ("/sys/block/sda/queue/scheduler", "none", "hdd-scheduler-none"),
    "scheduler of NVMe": ("/sys/block/nvme2n1/queue/scheduler", "mq-deadline", "nvme-scheduler-not-none"),
    "vm.dirty_bytes": ("/proc/sys/vm/dirty_bytes", "214748364800", "dirty-limit-huge"),
    "vm.overcommit_memory": ("/proc/sys/vm/overcommit_memory", "2", "overcommit-strict"),
    "vm.max_map_count": ("/proc/sys/vm/max_map_count", "30000", "max-map-count-low"),
    "kernel.pid_max": ("/proc/sys/kernel/pid_max", "4096", "task-table-small"),
    "net.core.somaxconn": ("/proc/sys/net/core/somaxconn", "128", "somaxconn-low"),
    "net.ipv4.tcp_slow_start_after_idle": ("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1", "tcp-slow-start-after-idle"),
    "net.ipv4.tcp_wmem": ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536", "tcp-buffer-ceiling-low"),
}
"""What is detuned → its file, the bad value, the rule that finds it."""
ALSO = {"clock-of-node-not-synchronised", "nofile-limit-too-low"}
"""Found besides: timesyncd is stopped, and the tool runs with few open files."""

DERIVED = {"/var/lib/systemd/timesync/clock", "/proc/sys/vm/min_free_kbytes"}
"""What others write: timesyncd; the kernel, which computes it anew from free memory whenever THP goes on or off (mm/khugepaged.c)."""

DISKS = """
mkdir -p /data /spin
mount /dev/sda /spin
mount /dev/nvme2n1 /data
cd /run
echo Samsung PM9A3 >model && mount --bind model /sys/block/nvme2n1/device/model # not one that a hypervisor made up
echo 0x10de >vendor && echo 0x030200 >class && echo 0x2330 >device # what automatic NUMA balancing is judged for: a GPU
for card in /sys/bus/pci/devices/*; do
    [ "$(cat $card/class)" = 0x0c0330 ] || continue
    sed 's/^PCI_CLASS=.*/PCI_CLASS=30200/; s/^PCI_ID=.*/PCI_ID=10DE:2330/' $card/uevent >uevent
    for file in vendor class device uevent; do mount --bind $file $card/$file; done
done
cd /run/out
"""
LOOK = "--timeout 300 --data /data --data /spin --nnodes 200 --nproc-per-node 2"
NO_CLOCK = "--ignore clock-of-node-not-synchronised"
"""Here nobody answers timesyncd, so starting it cures nothing; a run of its own shows it."""
TOOL = "prlimit --nofile=1024:1024 /opt/tool"
CLOCK = f"{TOOL} apply {LOOK} --yes --unsafe --select clock-of-node-not-synchronised"
SEE = "see() { /opt/python -S /run/todo/fingerprint.py all >$1; }"
TWICE = f"""
see applied
{TOOL} apply {LOOK} --yes --unsafe {NO_CLOCK} >again.told; echo $? >again.status
see again
/opt/tool undo --yes >undo; echo $? >undo.status
see undone
{TOOL} apply {LOOK} --yes --unsafe {NO_CLOCK}
/opt/tool history >history
"""
"""A second apply, and undo before a reboot."""
FIRST = f"""
{DISKS}
{SEE}
systemctl disable --now systemd-timesyncd
sh /run/todo/readers >readers.fresh
echo 100 >/proc/sys/vm/overcommit_ratio
{chr(10).join(f"echo {value} >{path}" for path, value, _ in TO_COME_BACK.values())}
see idle
see idle.again
{TOOL} check {LOOK} --format json >check
{TOOL} apply {LOOK} --yes --unsafe {NO_CLOCK} >apply; echo $? >apply.status
{TOOL} check {LOOK} --format json >check.after
{TWICE}
{CLOCK} >clock; echo $? >clock.status
{CLOCK} >clock.again; echo $? >clock.again.status
/opt/python /run/todo/kinds.py >kinds 2>&1; echo $? >kinds.status
"""
SECOND = f"""
{DISKS}
{SEE}
sh /run/todo/readers >readers.applied
/opt/tool undo --all --yes >undo; echo $? >undo.status
see undone
"""
THIRD = "sh /run/todo/readers >readers.undone; /opt/tool undo --yes >undo"

READERS = {
    "sysctl": "sysctl -n vm.swappiness net.core.somaxconn vm.dirty_bytes",
    "sysctl --system": "sysctl --system 2>/dev/null | grep torchtune -A30 | grep swappiness",
    "tmpfiles": "cat /sys/kernel/mm/transparent_hugepage/enabled",
    "udev": "cat /sys/block/sda/queue/read_ahead_kb",
    "pam_limits": "su -s /bin/sh nobody -c 'ulimit -Hn'",
    "modprobe": "modprobe null_blk && ls -d /sys/block/nullb* | wc -l; modprobe -r null_blk",
    "drop-in": "systemctl show -p LimitMEMLOCK systemd-timesyncd",
    "unit": "systemctl is-enabled systemd-timesyncd; systemctl is-active systemd-timesyncd",
    "kernel argument": "grep -o 'iommu=pt' /proc/cmdline",
}
"""One reader of each kind of file."""
SCRIPT = "".join(f"echo '== {name}'\n{command}\n" for name, command in READERS.items())


class Story(NamedTuple):
    first: dict[str, bytes]
    second: dict[str, bytes]
    third: dict[str, bytes]

    def readers(self) -> dict[str, tuple[str, str, str]]:
        """What each reader said: fresh, after apply and a reboot, after undo and another reboot."""
        said = (self.first["readers.fresh"], self.second["readers.applied"], self.third["readers.undone"])
        parts = [dict(block.split("\n", 1) for block in text.decode().split("== ")[1:]) for text in said]
        return {name: (parts[0][name].strip(), parts[1][name].strip(), parts[2][name].strip()) for name in READERS}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("remedy")
    try:
        machine = remedy_guest.Machine(folder, remedy_guest.system(folder), remedy_guest.tool(folder))
        files = {"readers": SCRIPT.encode(), "kinds.py": (guest.HERE / "remedy_kinds.py").read_bytes()}
        files["fingerprint.py"] = (guest.HERE / "fingerprint.py").read_bytes()
        told = Story(*(machine.do(script, files, deadline_s=1500) for script in (FIRST, SECOND, THIRD)))
    except guest.Unavailable as why:
        pytest.skip(f"no virtual machine here: {why}")
    print("boots and their work:", [f"{took:.0f} s" for took in machine.boots_s])
    return told


def differs(one: bytes, other: bytes) -> dict[str, tuple[str | None, str | None]]:
    a, b = power_guest.seen(one.decode()), power_guest.seen(other.decode())
    return {path: (a.get(path), b.get(path)) for path in {*a, *b} if a.get(path) != b.get(path)}


def failing(report: bytes) -> dict[str, Any]:
    return {result["rule"]: result for result in json.loads(report)["results"] if result["verdict"] == "fail"}


def test_each_detuned_setting_is_found_and_cured(story: Story) -> None:
    before, after = failing(story.first["check"]), failing(story.first["check.after"])
    rules = {rule for _, _, rule in TO_COME_BACK.values()}
    assert rules | ALSO <= set(before)
    assert not rules & set(after), story.first["apply"].decode()
    assert story.first["apply.status"] == b"0\n", story.first["apply"].decode()


def test_a_service_that_cures_nothing_is_told(story: Story) -> None:
    assert story.first["clock.status"] == b"1\n", "nobody answers timesyncd: that was not told"
    assert story.first["clock.again.status"] == b"1\n", "it runs already and the clock is still not set: not all done"
    assert b"enabled and runs already" in b" ".join(story.first["clock.again"].split()), story.first["clock.again"].decode()


def test_a_second_apply_changes_nothing(story: Story) -> None:
    assert story.first["again.status"] == b"0\n"
    assert b"safe change" not in story.first["again.told"], story.first["again.told"].decode()
    assert story.first["history"].count(b"applied: ") == 2, story.first["history"].decode()
    assert set(differs(story.first["applied"], story.first["again"])) <= moving(story)


def moving(story: Story) -> set[str]:
    """What changes between two looks while nobody does anything."""
    return set(differs(story.first["idle"], story.first["idle.again"])) | DERIVED


def test_undo_restores_every_byte_and_value(story: Story) -> None:
    changed = differs(story.first["idle"], story.first["applied"])
    left = {path: pair for path, pair in differs(story.first["idle"], story.first["undone"]).items() if path not in moving(story)}
    count = len(power_guest.seen(story.first["idle"].decode()))
    print(f"{count} names and values compared, {len(changed)} changed by apply, moving by themselves: {sorted(moving(story))}")
    untouched = [path for path, _, _ in TO_COME_BACK.values() if not any(name.endswith(_end(path)) for name in changed)]
    assert untouched == []
    assert len(changed) > len(TO_COME_BACK)
    assert story.first["undo.status"] == b"0\n", story.first["undo"].decode()
    assert left == {}


def _end(path: str) -> str:
    """Below /sys/block stand links; the files themselves lie elsewhere."""
    return path.removeprefix("/sys/block")


def test_each_kind_of_file_is_read_after_a_reboot_and_gone_after_another(story: Story) -> None:
    assert story.first["kinds.status"] == b"0\n", story.first["kinds"].decode()
    said = story.readers()
    for name, row in said.items():
        print(f"{name}: {row}")
    applied = {name: row[1] for name, row in said.items()}
    assert applied == {
        "sysctl": "10\n4096\n34359738368",
        "sysctl --system": "vm.swappiness = 10",
        "tmpfiles": "always [madvise] never",
        "udev": "4096",
        "pam_limits": "524288",  # nobody else's is lowered below systemd's
        "modprobe": "3",
        "drop-in": "LimitMEMLOCK=infinity",
        "unit": "enabled\nactive",
        "kernel argument": "iommu=pt",
    }
    assert {name for name, row in said.items() if row[0] == row[1]} <= {"unit"}, "a reader that says so anyway"
    assert {name: row[2] for name, row in said.items() if name != "unit"} == {
        name: row[0] for name, row in said.items() if name != "unit"
    }
    assert said["unit"][2] == "disabled\ninactive"


def test_undo_after_a_reboot_restores_every_byte_of_etc(story: Story) -> None:
    assert story.second["undo.status"] == b"0\n", story.second["undo"].decode()
    left = differs(story.first["idle"], story.second["undone"])
    print({path: pair for path, pair in left.items() if not path.startswith(("/sys/", "/proc/"))})
    assert [path for path in left if path.startswith(("/etc/", "/boot/"))] == []
