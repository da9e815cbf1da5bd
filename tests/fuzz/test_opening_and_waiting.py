"""What the mere opening of a file does, whose it is by the time that it is opened, and how a child ended that nobody was told of (docs/attacks.md)."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import struct
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

IN_OPEN = 0x20
"""Source: inotify(7)."""


@contextmanager
def openings(*places: Path) -> Iterator[list[str]]:
    """What of these is opened meanwhile: there at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle, found = libc.inotify_init1(os.O_NONBLOCK), []
    names = {libc.inotify_add_watch(handle, os.fsencode(place), IN_OPEN): place.name for place in places}
    assert handle >= 0 and min(names) >= 0, os.strerror(ctypes.get_errno())
    try:
        yield found
        with suppress(BlockingIOError):
            data = os.read(handle, 1 << 20)
            while data:
                watched, _, _, length = struct.unpack_from("iIII", data)
                found.append(names[watched])
                data = data[16 + length :]
    finally:
        os.close(handle)


@pytest.fixture
def acting(scene: Scene) -> tuple[Path, Path]:
    """A device of root's and a FIFO, in a directory of root's: the kernel tells of each that it was opened."""
    own = scene.folder / "own"
    own.mkdir(mode=0o700)
    os.mkfifo(own / "fifo", 0o600)
    try:
        os.mknod(own / "watchdog", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (own / "watchdog").read_bytes()
    except PermissionError:
        pytest.skip("no device can be made and opened here")
    return own / "watchdog", own / "fifo"


@needs_root
def test_links_of_a_user_s_have_no_device_of_root_s_opened(scene: Scene, acting: tuple[Path, Path]) -> None:
    """Opening /dev/watchdog once, and closing it, has the host reset a minute later: pyvenv.cfg was a link to it."""
    device, fifo = acting
    venv, logs = scene.alice.venv(), scene.alice.home / "logs"
    (venv / "pyvenv.cfg").unlink()
    scene.alice.link(venv / "pyvenv.cfg", device)
    for name in ("x.pth", "torch/version.py", "torch-2.4.0.dist-info/METADATA", "torch/lib/libtorch_cuda.so"):
        place = scene.alice.packages(venv) / name
        scene.alice.write(place, "").unlink()
        scene.alice.link(place, device)
    scene.alice.write(logs / "train.log", "RuntimeError: CUDA error: out of memory\n")
    named = [str(logs / "train.log"), *(str(scene.alice.link(logs / place.name, place)) for place in acting)]
    conf = {"NCCL_CONF_FILE": named[1], "SUDO_UID": str(scene.alice.uid), "SUDO_USER": scene.alice.name}
    with openings(device, fifo) as opened:
        for name in named[1:]:
            os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))
    assert opened == ["watchdog", "fifo"], "seen where it is done"
    with openings(device, fifo) as opened:
        for argv in (["check", "-q", "--live"], ["record"], ["preflight"]):
            assert as_root(*argv, "--python", str(venv)).returncode in (0, 1, 3)
        as_root("check", "-q", **conf)
        found = as_root("diagnose", *named)
        as_root("check", "--from", named[1])
        as_root("compare", named[1], named[2])
    assert not opened
    assert "out of memory" in found.stdout, "the log beside them is read"


@needs_root
def test_of_a_tree_no_device_is_opened(scene: Scene, acting: tuple[Path, Path]) -> None:
    """In a container's own file system its root may make any."""
    tree = scene.folder / "tree"
    for name in ("proc", "sys", "etc"):
        (tree / name).mkdir(parents=True)
    (tree / "proc" / "cpuinfo").write_text("processor: 0\n")
    os.link(acting[0], tree / "proc" / "meminfo")
    os.link(acting[1], tree / "etc" / "os-release")
    with openings(*acting) as opened:
        for option in ("--root", "--from"):
            assert as_root("check", "-q", option, str(tree)).returncode in (0, 1, 3)
    assert not opened


_EXCHANGED = """
import ctypes, sys
libc = ctypes.CDLL(None)
names = [name.encode() for name in sys.argv[1:]]
print(flush=True)
while True:
    libc.renameat2(-100, names[0], -100, names[1], 2)
    for _ in range(200): pass
"""


@needs_root
@pytest.mark.parametrize("part", ["etc", "."])
def test_a_directory_that_is_exchanged_for_a_link_leads_to_nothing_of_root_s(scene: Scene, part: str) -> None:
    """Of twenty looks at her tree two told what a file of root's holds. Hundreds are taken here at once."""
    from torchtune_sys.host.tree import folder

    own, tree = scene.folder / "own", scene.alice.home / "tree"
    own.mkdir(mode=0o700)
    hidden = own if part == "etc" else own / "etc"
    hidden.mkdir(exist_ok=True)
    (hidden / "os-release").write_text("NAME=s3cret\n")
    (hidden / "x").symlink_to("s3cret")
    scene.alice.write(tree / "etc" / "os-release", "NAME=x\n")
    scene.alice.write(tree / "proc" / "meminfo", "")
    scene.alice.write(tree / "sys" / "x", "")
    seen = folder(str(tree))
    place = tree / part
    link = scene.alice.link(scene.alice.home / "other", own)
    argv = [SYSTEM_PYTHON, "-c", _EXCHANGED, str(place), str(link)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, user=scene.alice.uid, group=scene.alice.gid) as swapping:
        assert swapping.stdout is not None
        swapping.stdout.readline()
        plain = told = 0
        for _ in range(3000):
            with suppress(OSError):
                plain += "s3cret" in (place / "etc" / "os-release" if part == "." else place / "os-release").read_text()
            told += "s3cret" in repr((seen.text("/etc/os-release"), seen.names("/etc"), seen.link("/etc/x")))
        swapping.kill()
    assert plain and not told


@needs_root
def test_a_tree_behind_a_user_s_link_is_one_that_they_may_read(scene: Scene) -> None:
    own = scene.folder / "own"
    for name in ("etc", "proc", "sys"):
        (own / name).mkdir(parents=True)
    (own / "etc" / "os-release").write_text("NAME=s3cret\n")
    own.chmod(0o700)
    link = scene.alice.link(scene.alice.home / "tree", own)
    for option in ("--root", "--from"):
        assert "s3cret" in as_root("snapshot", option, str(own)).stdout
        found = as_root("snapshot", option, str(link))
        assert found.returncode == 2 and scene.alice.name in found.stderr and "s3cret" not in found.stdout
    own.chmod(0o755)
    assert "s3cret" in as_root("snapshot", "--from", str(link)).stdout


@needs_root
def test_no_way_through_the_kernel_s_directories_leads_to_a_file_of_root_s(scene: Scene) -> None:
    """What a variable of who called sudo names is read as they may; below /proc, /sys and /dev it was taken for the kernel's."""
    own = scene.folder / "own"
    own.mkdir(mode=0o700)
    (own / "conf").write_text("NCCL_S3CRET=1\n")
    caller = {"SUDO_UID": str(scene.alice.uid), "SUDO_USER": scene.alice.name}
    mine = scene.alice.write(scene.alice.home / "conf", "NCCL_MINE=1\n")
    shared = scene.alice.link(Path("/dev/shm") / str(uuid.uuid4()), own / "conf")
    try:
        for place in (*(f"{way}{own}/conf" for way in ("/proc/self/root", "/proc/..", "/sys/..", "/dev/..")), str(shared)):
            if place != str(shared) or Path("/proc/sys/fs/protected_symlinks").read_text().strip() == "0":
                assert Path(place).read_text()
            assert "S3CRET" not in as_root("record", NCCL_CONF_FILE=place, **caller).stdout, place
    finally:
        shared.unlink()
    assert "MINE" in as_root("record", NCCL_CONF_FILE=f"/proc/self/root{mine}", **caller).stdout


def _ignoring() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def ignored(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *argv], cwd="/", capture_output=True, text=True, timeout=120, preexec_fn=_ignoring)


def test_how_a_child_ended_is_known_where_a_caller_ignores_that_children_end(tmp_path: Path) -> None:
    """A site's check that said *critical* let a job start, below a shell with ``trap '' CHLD``."""
    if os.getuid() == 0:
        tmp_path = Path("/root") / f"checks-{uuid.uuid4()}"
        tmp_path.mkdir(mode=0o700)
    (tmp_path / "disk").write_text("#!/bin/sh\necho the disk is broken\nexit 2\n")
    (tmp_path / "disk").chmod(0o755)
    try:
        found = ignored("preflight", "--site-checks", str(tmp_path))
    finally:
        (tmp_path / "disk").unlink()
        tmp_path.rmdir()
    assert found.returncode == 1 and "the disk is broken" in found.stdout, found


def test_that_a_session_ignores_it_is_still_told_and_handed_on() -> None:
    report = json.loads(ignored("snapshot", "--format", "json").stdout)
    assert "SIGCHLD" in report["facts"]["session"]["handed_down"]["ignored"]
    ask = "import signal; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)"
    assert ignored("launch", "-q", "--local-rank", "0", "--", SYSTEM_PYTHON, "-c", ask).stdout.strip() == "True"
