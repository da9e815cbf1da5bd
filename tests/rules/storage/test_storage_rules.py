"""Boundaries of the storage rules."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import HOSTS, judge_one, load
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.actions import Advice, text
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.rules import storage
from torchtune_sys.rules.storage.tuning import mount_without_barriers

GIB = 1 << 30
MIB = 1 << 20
BY_ID = {rule.id: rule for rule in storage.RULES}


def result(rule_id: str, name: str = "healthy", **overlay: Any) -> Result:
    return judge_one(load(name, **overlay), rule_id)


def space(size: int, free: int, inodes: int = 1_000_000, inodes_free: int = 900_000) -> dict[str, Any]:
    return {"spaces": {"/data/train": {"size": size, "free": free, "inodes": inodes, "inodes_free": inodes_free}}}


@pytest.mark.parametrize(
    ("size", "free", "full", "low"),
    [
        (100 * GIB, 1 * GIB - MIB, True, True),  # below 1 GiB
        (100 * GIB, 1 * GIB, False, True),  # exactly 1 GiB, exactly 1 %
        (1500 * GIB, 14 * GIB, False, True),  # 0.93 %, and most checkpoints still fit
        (400 * GIB, 3 * GIB, True, True),  # 0.75 %
        (100_000 * GIB, 900 * GIB, False, False),  # 0.9 % of 100 TB is plenty
        (5000 * GIB, 30 * GIB, False, True),  # 0.6 %, but more than 5 GiB
        (100 * GIB, 10 * GIB, False, False),
        (100 * GIB, 10 * GIB - MIB, False, True),
        (1900 * GIB, 99 * GIB, False, False),  # 5.2 %
        (2100 * GIB, 99 * GIB, False, True),  # 4.7 %
        (GIB // 2, GIB // 2 - MIB, False, False),  # small, and nearly empty
        (3 * GIB // 2, 3 * GIB // 4, False, False),  # small, exactly half empty
        (3 * GIB // 2, 3 * GIB // 4 - MIB, True, True),
        (4000 * GIB, 5 * GIB, False, True),  # exactly 5 GiB
        (4000 * GIB, 5 * GIB - MIB, True, True),
        (4000 * GIB, 100 * GIB, False, False),  # 2.5 %, exactly 100 GiB
        (2100 * GIB, 101 * GIB, False, False),  # 4.8 %, but more than 100 GiB
    ],
)
def test_room(size: int, free: int, full: bool, low: bool) -> None:
    assert (result("disk-full", **space(size, free)).verdict is Verdict.FAIL) == full
    assert (result("disk-space-low", **space(size, free)).verdict is Verdict.FAIL) == (low and not full)  # one finding is enough


def test_small_file_system_is_no_place_for_checkpoints_even_if_empty() -> None:
    seen = {"/data/checkpoints": {"size": GIB // 2, "free": GIB // 2 - MIB, "inodes": 0, "inodes_free": 0}}
    assert result("disk-full", spaces=seen, intent={"checkpoints": ["/data/checkpoints"]}).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("inodes", "free", "exhausted", "low"),
    [
        (32_000_000, 99, True, True),
        (32_000_000, 100, False, True),
        (32_000_000, 319_999, False, True),
        (32_000_000, 320_000, False, False),
        (4_000_000_000, 1_000_000, False, False),  # a server's billions: a million are plenty
        (4_000_000_000, 999_999, False, True),
        (0, 0, False, False),  # btrfs has no fixed number
        (30_000, 10_000, False, False),
        (30_000, 9_999, False, True),
        (200, 100, False, False),  # half of few is left
        (200, 99, True, True),
        (500, 450, False, False),  # a small tmpfs, hardly used
        (60, 50, False, False),
    ],
)
def test_inodes(inodes: int, free: int, exhausted: bool, low: bool) -> None:
    seen = space(500 * GIB, 300 * GIB, inodes, free)
    assert (result("inodes-exhausted", **seen).verdict is Verdict.FAIL) == exhausted
    assert (result("inodes-low", **seen).verdict is Verdict.FAIL) == (low and not exhausted)


def test_no_inode_for_a_temporary_file() -> None:
    seen = {"spaces": {"/tmp": {"size": 2 * GIB, "free": 2 * GIB - MIB, "inodes": 24, "inodes_free": 0}}}
    (worst,) = (item for item in result("inodes-exhausted", **seen).evidence if item.verdict is Verdict.FAIL)
    assert worst.subject.startswith("temporary files")
    assert result("inodes-low", **seen).verdict is not Verdict.FAIL


def test_what_is_wanted_is_the_room_that_would_do() -> None:
    petabyte = result("disk-full", **space(50_000 * GIB, GIB // 2)).evidence[0]
    assert petabyte.wanted == ">= 5 GiB"  # not a hundredth of it
    assert result("disk-full", **space(50 * GIB, GIB // 2)).evidence[0].wanted == ">= 1 GiB"


def test_a_full_disk_is_not_reported_again_for_temporary_files() -> None:
    full = {"size": 500 * GIB, "free": GIB // 2, "inodes": 0, "inodes_free": 0}
    assert result("temporary-space-low", spaces={"/tmp": full}).verdict is Verdict.FAIL
    same = {"cwd": "/tmp"}
    assert result("temporary-space-low", spaces={"/tmp": full}, answers=same).verdict is Verdict.NA


def test_a_read_only_image_is_not_full() -> None:
    line = "51 30 259:3 / /data ro,relatime - squashfs /dev/nvme1n1 ro"
    for rule_id in ("disk-full", "disk-space-low", "inodes-exhausted", "inodes-low"):
        found = result(rule_id, **space(5 * GIB, 0, 30_000, 0), files=mounted(line))
        assert found.verdict is (Verdict.PASS if rule_id == "inodes-exhausted" else Verdict.NA)  # /tmp is another file system


@pytest.mark.parametrize(
    ("overlay", "wanted"),
    [
        ("checkpoints-not-writable.fail.read-only", "xfs on /data is mounted read-only"),
        ("checkpoints-not-writable.fail", "this user may not write to /data/checkpoints"),
        ("checkpoints-not-writable.fail.new-directory", "this user may not write to /data"),
        ("data-path-unreadable.fail", "no such path below /data"),
        ("data-path-unreadable.fail.denied", "this user may not read it"),
        ("data-path-unreadable.fail.closed-files", "this user may read none of the first 4 files in it"),
        ("data-path-unreadable.fail.pointer-files", "3 of the first 4 files in it are pointers of Git LFS, and none is large"),
        ("data-path-unreadable.fail.circle", "its symbolic links lead in a circle"),
        ("filesystem-not-answering.fail", "nfs4 10.0.0.5:/export/data on /data: no answer within 2 s"),
    ],
)
def test_what_is_said(overlay: str, wanted: str) -> None:
    assert [item.seen for item in result(overlay.partition(".")[0], overlay).evidence if item.verdict is Verdict.FAIL] == [wanted]


@pytest.mark.parametrize(("free", "verdict"), [(4 * GIB, Verdict.PASS), (4 * GIB - 1, Verdict.FAIL)])
def test_room_for_temporary_files(free: int, verdict: Verdict) -> None:
    spaces = {"/tmp": {"size": 100 * GIB, "free": free, "inodes": 0, "inodes_free": 0}}
    assert result("temporary-space-low", spaces=spaces).verdict is verdict


def mounted(line: str, **files: Any) -> dict[str, Any]:
    root = "30 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw"
    return {"/proc/self/mountinfo": [root, line], **files}


def test_virtual_disk_is_unknown_and_says_how_to_find_out() -> None:
    seen = result("data-on-spinning-disk", "data-on-spinning-disk.unknown")
    assert seen.why_unknown is not None
    assert "a virtual disk does not say whether it spins" in seen.why_unknown.detail
    assert seen.why_unknown.remedy.startswith("fio ")


def test_spinning_disk_shows_the_way_down() -> None:
    seen = result("data-on-spinning-disk", "data-on-spinning-disk.fail.lvm-on-luks-on-md").evidence[0]
    assert seen.seen == "lvm vg0-data > dm-crypt luks-7c1d > md127 raid1 > sda (hdd), sdb (hdd)"


def test_spinning_and_solid_disks_in_one_file_system_are_not_told_apart() -> None:
    sda = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
    files = mounted(
        "51 30 0:40 / /data rw,noatime - btrfs /dev/nvme1n1 rw", **{f"{sda}/size": "99", f"{sda}/queue/rotational": "1"}
    )
    dirs = {"/sys/fs/btrfs": ["1-2"], "/sys/fs/btrfs/1-2/devices": ["nvme1n1", "sda"]}
    links = {"/sys/class/block/sda": "../.." + sda.removeprefix("/sys")}
    seen = result("data-on-spinning-disk", files=files, dirs=dirs, links=links)
    assert seen.verdict is Verdict.UNKNOWN
    assert seen.why_unknown is not None and "sda (hdd) spin" in seen.why_unknown.detail


def test_tmpfs_is_no_spinning_disk() -> None:
    seen = result("data-on-spinning-disk", files=mounted("51 30 0:71 / /data rw,relatime - tmpfs tmpfs rw"))
    assert seen.verdict is Verdict.PASS


@pytest.mark.parametrize(("kib", "verdict"), [("1023", Verdict.FAIL), ("1024", Verdict.PASS), ("15360", Verdict.PASS)])
def test_read_ahead_of_nfs(kib: str, verdict: Verdict) -> None:
    files = mounted("51 30 0:55 / /data rw,relatime - nfs4 f:/x rw,vers=4.2", **{"/sys/class/bdi/0:55/read_ahead_kb": kib})
    assert result("read-ahead-small", files=files).verdict is verdict


def test_read_ahead_of_a_partition_is_set_at_its_disk() -> None:
    """A partition has no bdi of its own: /sys/class/bdi/8:1 does not exist."""
    spinning = load_recording(str(HOSTS / "data-on-spinning-disk.fail.json"))["files"]
    kib = next(name for name in spinning if name.endswith("sda/queue/read_ahead_kb"))
    (found,) = result("read-ahead-small", "data-on-spinning-disk.fail", files={kib: "128"}).evidence
    assert [text(action) for action in found.fix] == ["echo 4096 | sudo tee /sys/block/sda/queue/read_ahead_kb (or more)"]


def test_read_ahead_of_nvme_is_not_judged() -> None:
    assert result("read-ahead-small").verdict is Verdict.NA


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ("vers=3,rsize=1024,proto=udp", "rsize=1024, proto=udp"),
        ("vers=4.1,rsize=131072,proto=tcp", ""),
        ("vers=4.1,rsize=131071,proto=tcp", "rsize=131071"),
        ("vers=4.1,rsize=1048576,proto=tcp,noac", "no attribute cache (noac)"),
        ("vers=4.1,rsize=1048576,proto=tcp,actimeo=0", "no attribute cache (noac)"),
        ("vers=4.1,rsize=1048576,proto=tcp,acregmax=0", "no attribute cache (noac)"),
        ("vers=4.1,rsize=1048576,proto=tcp,actimeo=1", ""),
        ("vers=4.1,rsize=1048576,proto=rdma", ""),
    ],
)
def test_nfs_options(options: str, faults: str) -> None:
    seen = result("nfs-mount-untuned", files=mounted(f"51 30 0:55 / /data rw,relatime - nfs4 f:/x rw,{options}"))
    assert seen.verdict is (Verdict.FAIL if faults else Verdict.PASS)
    assert not faults or seen.evidence[0].seen == faults


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("51 30 259:3 / /data rw,relatime - ext4 /dev/nvme1n1 rw", Verdict.PASS),
        ("51 30 259:3 / /data rw - ext4 /dev/nvme1n1 rw", Verdict.FAIL),
        ("51 30 259:3 / /data rw - ext4 /dev/nvme1n1 rw,lazytime", Verdict.PASS),
        ("51 30 259:3 / /data ro - ext4 /dev/nvme1n1 ro", Verdict.PASS),
        ("51 30 0:55 / /data rw - lustre x@tcp:/d rw", Verdict.PASS),  # what others print is not known to mean strictatime
        ("51 30 259:3 / /data rw,noatime,dirsync - ext4 /dev/nvme1n1 rw", Verdict.FAIL),
    ],
)
def test_mount_options(line: str, verdict: Verdict) -> None:
    assert result("mount-options-slow", files=mounted(line)).verdict is verdict


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rw,noatime - ext4 /dev/nvme1n1 rw,data=journal", ["take data=journal out"]),
        ("rw,noatime,sync - ext4 /dev/nvme1n1 rw,data=journal", ["remount without sync", "take data=journal out"]),
        ("rw - ext4 /dev/nvme1n1 rw,data=journal", ["remount without sync", "take data=journal out"]),
        ("rw - xfs /dev/nvme1n1 rw", ["remount without sync"]),
    ],
)
def test_the_mode_of_a_journal_is_not_changed_by_a_remount(options: str, said: list[str]) -> None:
    (seen,) = result("mount-options-slow", files=mounted(f"51 30 259:3 / /data {options}")).evidence[:1]
    texts = [action.text for action in seen.fix if isinstance(action, Advice)]
    assert len(texts) == len(said)
    assert all(text.startswith(start) for text, start in zip(texts, said, strict=True))


def test_barriers_come_back_on_file_systems_that_know_no_barrier_1() -> None:
    (fix,) = mount_without_barriers.fix
    assert isinstance(fix, Advice)
    assert "remount,barrier," in fix.text


def test_barriers() -> None:
    for option, verdict in (("barrier=0", Verdict.FAIL), ("barrier=1", Verdict.PASS), ("nobarrier", Verdict.FAIL)):
        line = f"51 30 259:3 / /data rw,noatime - ext4 /dev/nvme1n1 rw,{option}"
        seen = result("mount-without-barriers", files=mounted(line))
        assert seen.verdict is verdict
        assert verdict is Verdict.PASS or seen.evidence[0].seen == f"{option} on /data"


@pytest.mark.parametrize(
    ("mount", "nodes", "verdict"),
    [
        ("lustre f:/h rw,flock", 1, Verdict.PASS),
        ("lustre f:/h rw,localflock", 1, Verdict.PASS),
        ("lustre f:/h rw,noflock", 1, Verdict.FAIL),
        ("nfs f:/h rw,vers=3,nolock,local_lock=all", 1, Verdict.PASS),  # local locks do for one host
        ("nfs f:/h rw,vers=3,nolock,local_lock=all", 2, Verdict.FAIL),
        ("nfs f:/h rw,vers=3,local_lock=none", 2, Verdict.PASS),
        ("nfs f:/h rw,vers=3,local_lock=flock", 2, Verdict.FAIL),
    ],
)
def test_locks(mount: str, nodes: int, verdict: Verdict) -> None:
    files = mounted(f"51 30 0:55 / /home rw,relatime - {mount}")
    seen = result("cache-without-file-locks", files=files, intent={"ranks": 8, "nodes": nodes, "workers": 4})
    assert seen.verdict is verdict


def test_cache_variable_moves_the_judgement() -> None:
    files = mounted("51 30 0:55 / /scratch rw,relatime - lustre f:/s rw")
    seen = result("cache-without-file-locks", files=files, env={"HF_HOME": "/scratch/hf"}, dirs={"/scratch": []})
    assert seen.verdict is Verdict.FAIL
    assert [item.subject for item in seen.evidence if item.verdict is Verdict.FAIL] == ["cache /scratch/hf"]


@pytest.mark.parametrize(
    ("source", "filesystem", "verdict"),
    [("drvfs", "9p", Verdict.FAIL), ("D:\\134", "9p", Verdict.FAIL), ("share", "9p", Verdict.PASS), ("C:", "ext4", Verdict.PASS)],
)
def test_windows_drives(source: str, filesystem: str, verdict: Verdict) -> None:
    files = mounted(f"51 30 0:70 / /data rw,noatime - {filesystem} {source} rw")
    assert result("data-on-windows-drive", files=files).verdict is verdict


def test_overlay_on_a_disk_that_is_seen_keeps_checkpoints() -> None:
    files = mounted("51 30 0:80 / /data rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/srv/up,workdir=/srv/w")
    seen = result(
        "checkpoints-on-volatile-storage", files=files, dirs={"/srv/up": []}, intent={"checkpoints": ["/data/checkpoints"]}
    )
    assert seen.verdict is Verdict.PASS


def test_every_place_of_a_job_gets_its_own_evidence() -> None:
    intent = {"data": ["/data/train", "/home/ubuntu/set"], "ranks": 8, "nodes": 1, "workers": 4}
    seen = result("data-on-spinning-disk", intent=intent)
    assert [item.subject for item in seen.evidence] == ["data /data/train", "data /home/ubuntu/set"]


def test_a_disk_that_cannot_be_judged_does_not_hide_the_next() -> None:
    first = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/nvme/nvme0/nvme0n1/queue/scheduler"
    second = "/sys/devices/pci0000:80/0000:80:03.0/0000:82:00.0/nvme/nvme1/nvme1n1/queue/scheduler"
    seen = result("nvme-scheduler-not-none", files={first: {"error": "denied"}, second: "none [bfq]"})
    assert [item.verdict for item in seen.evidence] == [Verdict.UNKNOWN, Verdict.FAIL]
    assert result("nvme-scheduler-not-none", files={first: None, second: "none [bfq]"}).verdict is Verdict.FAIL


def test_a_path_outside_every_mount_does_not_hide_the_next() -> None:
    table = ["51 1 259:3 / /data rw - xfs /dev/nvme1n1 rw"]  # a chroot whose own root is not in the table
    intent = {"data": ["/elsewhere", "/data/train"], "checkpoints": ["/elsewhere", "/data/checkpoints"]}
    for rule_id in ("mount-options-slow", "data-on-spinning-disk", "checkpoints-on-volatile-storage", "md-array-degraded"):
        seen = result(rule_id, files={"/proc/self/mountinfo": table}, intent=intent)
        assert "/elsewhere" in seen.evidence[0].subject and seen.evidence[0].verdict is Verdict.UNKNOWN
    assert result("mount-options-slow", files={"/proc/self/mountinfo": table}, intent=intent).verdict is Verdict.FAIL


def test_a_home_outside_every_mount_does_not_hide_the_cache() -> None:
    table = ["51 1 0:55 / /scratch rw - lustre f:/s rw", "52 1 259:3 / /data rw - xfs /dev/nvme1n1 rw"]
    env = {"HOME": "/elsewhere", "HF_HOME": "/scratch/hf"}
    assert result("cache-without-file-locks", files={"/proc/self/mountinfo": table}, env=env).verdict is Verdict.FAIL


def test_read_ahead_asks_for_what_tuned_sets() -> None:
    assert text(BY_ID["read-ahead-small"].fix[0]) == "echo 4096 | sudo tee /sys/class/bdi/MAJOR:MINOR/read_ahead_kb (or more)"
