"""Real mounts and devices of this machine, made for the test and removed after it (needs root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import StoragePath
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.storage import probe as storage


def sh(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def room(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    return tmp_path


def quietly(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, timeout=30, check=False)


def mount(undo: ExitStack, *argv: str, at: Path) -> Path:
    at.mkdir(exist_ok=True)
    sh("mount", *argv, str(at))
    undo.callback(quietly, "umount", "-l", str(at))
    return at


def loop(undo: ExitStack, image: Path, size: int = 64 << 20) -> str:
    with image.open("wb") as file:
        file.truncate(size)
    if shutil.which("losetup") is None:
        pytest.skip("losetup is not installed")
    device = sh("losetup", "--find", "--show", str(image))
    undo.callback(quietly, "losetup", "-d", device)
    return device


def look(path: Path | str) -> StoragePath:
    return storage.probe(LiveHost(), Workload(data=(str(path),))).places[0]


def under(path: Path) -> list[str]:
    """Whole disks below a path, as the kernel's own tools name them."""
    disks = look(path).disks
    return [] if isinstance(disks, Missing) else [disk.name for disk in disks]


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_file_system_in_a_loop_device_on_this_disk(room: Path, undo: ExitStack, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    image = room / "disk image"
    device = loop(undo, image, 320 << 20)
    sh(f"mkfs.{kind}", "-q", device)
    place = look(mount(undo, "-o", "noatime", device, at=room / "mounted here"))
    assert (place.filesystem, place.carrier, place.mount_source) == (kind, "disk", device)
    assert not isinstance(place.options, Missing) and "noatime" in place.options
    assert place.layers[0] == f"{device.removeprefix('/dev/')} {image}"
    assert under(room / "mounted here") == under(room)
    wanted = os.statvfs(room / "mounted here")
    assert (place.size_bytes, place.free_bytes) == (wanted.f_blocks * wanted.f_frsize, wanted.f_bavail * wanted.f_frsize)
    assert place.writable is True


def test_device_mapper_on_a_loop_device(room: Path, undo: ExitStack) -> None:
    if shutil.which("dmsetup") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("dmsetup or mkfs.ext4 is not installed")
    device = loop(undo, room / "disk")
    name = f"torchtune-test-{os.getpid()}"
    sh("dmsetup", "create", name, "--uuid", f"LVM-{os.getpid()}", "--table", f"0 {64 << 11} linear {device} 0")
    undo.callback(quietly, "dmsetup", "remove", "-f", name)
    sh("dmsetup", "mknodes", name)
    sh("mkfs.ext4", "-q", f"/dev/mapper/{name}")
    place = look(mount(undo, f"/dev/mapper/{name}", at=room / "dm"))
    assert place.layers[0] == f"lvm {name}"
    assert under(room / "dm") == under(room)


def test_tmpfs_and_what_is_mounted_over_it(room: Path, undo: ExitStack) -> None:
    at = mount(undo, "-t", "tmpfs", "-o", "size=16m,nr_inodes=500", "under", at=room / "m")
    place = look(at / "not" / "there")
    assert (place.carrier, place.size_bytes, place.inodes, place.exists) == ("memory", 16 << 20, 500, False)
    mount(undo, "-t", "tmpfs", "-o", "size=32m", "over", at=at)
    assert (look(at).mount_source, look(at).size_bytes) == ("over", 32 << 20)


def test_bind_mount_keeps_the_disk_and_read_only_is_seen(room: Path, undo: ExitStack) -> None:
    (room / "source").mkdir()
    at = mount(undo, "--bind", str(room / "source"), at=room / "bound")
    assert look(at).mount_point == str(at)
    assert under(at) == under(room)
    assert look(at).writable is True
    sh("mount", "-o", "remount,bind,ro", str(at))
    assert look(at).writable is False


def test_overlay_leads_to_the_disk_of_its_upper_directory(room: Path, undo: ExitStack) -> None:
    for name in ("lower", "upper", "work"):
        (room / name).mkdir()
    options = f"lowerdir={room}/lower,upperdir={room}/upper,workdir={room}/work"
    place = look(mount(undo, "-t", "overlay", "overlay", "-o", options, at=room / "merged"))
    assert place.carrier == "layers"
    assert under(room / "merged") == under(room)


def test_symbolic_link_to_another_file_system(room: Path, undo: ExitStack) -> None:
    at = mount(undo, "-t", "tmpfs", "far", at=room / "far")
    (room / "near").symlink_to("far/deep")
    (at / "deep").mkdir()
    place = look(room / "near" / "x")
    assert (place.mount_source, place.real_path) == ("far", str(at / "deep"))


def test_spinning_flag_of_a_loop_device_does_not_count_but_that_of_the_disk_below() -> None:
    disks = storage.probe(LiveHost(), Workload()).disks
    if isinstance(disks, Missing):
        pytest.skip(str(disks))
    names = {name for name in os.listdir("/sys/block") if not name.startswith(("loop", "ram", "zram", "dm-", "md"))}
    assert {disk.name for disk in disks} <= names


def test_unreadable_directory_for_an_ordinary_user() -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    assert look("/root").readable is False
