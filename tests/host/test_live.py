"""The live machine: what hangs, what is refused, what is asked twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torchtune_sys.host import live, live_queries, queries, remote
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.remote import Remotes, remote_mounts
from torchtune_sys.model.values import Missing, Why


def why(found: object) -> Why:
    assert isinstance(found, Missing), found
    return found.why


def test_strange_files_are_answers(tmp_path: Path) -> None:
    host = LiveHost()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "big").write_bytes(b"x" * (live.TEXT_LIMIT + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tmp_path / "fifo")
    assert why(host.text(str(tmp_path))) is Why.FAILED
    assert why(host.text(str(tmp_path / "none"))) is Why.ABSENT
    assert why(host.text(str(tmp_path / "big" / "below"))) is Why.ABSENT
    assert why(host.text(str(tmp_path / "loop"))) is Why.FAILED
    assert why(host.text(str(tmp_path / "big"))) is Why.UNPARSED
    assert why(host.text(str(tmp_path / "fifo"))) is Why.FAILED
    assert why(host.text("/dev/zero")) is Why.FAILED
    assert host.text(str(tmp_path / "binary")) == "\ufffd\ufffd\0"
    assert why(host.names(str(tmp_path / "big"))) is Why.ABSENT
    assert why(host.link(str(tmp_path / "big"))) is Why.NOT_SUPPORTED
    assert why(host.real(str(tmp_path / "loop"))) is Why.FAILED
    assert why(host.space(str(tmp_path / "none"))) is Why.ABSENT
    for look in (host.text, host.names, host.link, host.real, host.stat, host.space):
        assert why(look("/no\0name")) is Why.ABSENT
        assert why(look("/" + "x" * 5000)) is Why.FAILED


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_refusal_names_the_privilege() -> None:
    code = (
        "import os; from torchtune_sys.host.live import LiveHost; host = LiveHost(); host.text('/proc/self/mountinfo')\n"
        "os.setgid(65534); os.setuid(65534); found = host.text('/proc/1/environ'); print(found.why.value, found.remedy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "denied run as root"


def test_the_deadline_bounds_commands_and_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(live_queries, "answer", lambda _question, timeout_s: asked.append(timeout_s))
    host = LiveHost(deadline=time.monotonic() + 1.0)
    host.ask("nvml", timeout_s=60)
    assert 0 < asked[0] <= 1.0
    started = time.monotonic()
    assert why(host.run(("sleep", "60"), timeout_s=60)) is Why.TIMEOUT
    assert time.monotonic() - started < 30
    assert why(host.run(("true",))) is Why.TIMEOUT
    assert why(host.ask("interpreter")) is Why.TIMEOUT
    assert len(asked) == 1


def test_a_question_is_asked_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slow(question: str, _timeout_s: float) -> str:
        asked.append(question)
        time.sleep(0.1)
        return "x"

    monkeypatch.setattr(live_queries, "answer", slow)
    host = LiveHost()
    threads = [threading.Thread(target=host.ask, args=("nvml",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == ["nvml"]


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:44 / /data rw,noatime shared:1 - nfs4 10.0.0.5:/x rw
31 30 8:1 / /data/local\\040disk rw - xfs /dev/sda1 rw
32 22 0:50 / /home rw - autofs systemd-1 rw
33 22 0:51 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw
34 22 0:52 / /bucket rw - fuse.s3fs s3fs rw
garbage
"""


def test_which_mounts_are_remote() -> None:
    assert {place for place, kind in remote_mounts(MOUNTS).items() if kind} == {"/data", "/home", "/bucket"}
    assert remote_mounts("22 1 0:30 / / rw - nfs4 10.0.0.5:/root rw") == {}  # the root itself
    assert remote_mounts("22 1 254:0 / / rw - ext4 /dev/vda rw") == {}
    assert remote_mounts("") == {}


def test_one_child_per_remote_mount_and_none_for_local_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(remote, "_answers", lambda place: looked.append(place) or place != "/bucket")
    remotes = Remotes(MOUNTS)
    for path in ("/etc/x", "/database", "/var/lib/lxcfs/proc"):
        assert remotes.refuse(path) is None
    assert looked == []
    for path in ("/data/a", "/data/b", "/data", "/data/local disk/x"):
        assert remotes.refuse(path) is None
    assert looked == ["/data"]
    for path in ("/bucket/a", "/bucket/b"):
        assert why(remotes.refuse(path)) is Why.TIMEOUT
    assert looked == ["/data", "/bucket"]
    assert remotes.refuse("/home/alice") is None and looked[-1] == "/home/alice"


def test_a_link_to_a_dead_server_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "to-bucket").symlink_to("/bucket/deep")
    monkeypatch.setattr(remote, "_answers", lambda _place: False)
    assert why(Remotes(MOUNTS).refuse(f"{tmp_path}/to-bucket/file")) is Why.TIMEOUT


def test_the_child_that_looks_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_LOOK", "import time; time.sleep(60)")
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.3)
    host = LiveHost()
    host._remotes = Remotes(MOUNTS)
    started = time.monotonic()
    for look in (host.space, host.stat, host.names, host.real, host.link, host.text):
        assert why(look("/bucket/x")) is Why.TIMEOUT
    assert time.monotonic() - started < 30


_FUSE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, (1 << 18) | 16384, None): sys.exit(77)
try: handle = os.open("/dev/fuse", os.O_RDWR)
except OSError: sys.exit(77)
options = f"fd={handle},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse.dead", 0, options): sys.exit(77)
from torchtune_sys.host import remote
from torchtune_sys.host.live import LiveHost
remote.TIMEOUT_S = 0.5
host = LiveHost()
started = time.monotonic()
for look in (host.space, host.stat, host.names): print(look(sys.argv[1] + "/x").why.value)
print(time.monotonic() - started < 10)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_fuse_daemon_that_never_answers(tmp_path: Path) -> None:
    """A real one: /dev/fuse is opened and mounted, and nobody reads from it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FUSE, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("hung")
    if done.returncode == 77:
        pytest.skip("this kernel or container allows no FUSE mount")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["timeout", "timeout", "timeout", "True"]


def test_pointers_of_git_lfs_are_no_data_unless_something_beside_them_is(tmp_path: Path) -> None:
    """As a clone without git-lfs leaves them (git-lfs, docs/spec.md)."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 19332096\n"
    for number in range(3):
        (tmp_path / f"train-{number}.parquet").write_text(pointer)
    (tmp_path / "README.md").write_text(pointer * 20)  # tells of pointers, and is none
    asked = f"{queries.FIRST_FILES}:{tmp_path}"
    assert LiveHost().ask(asked) == [0, 4, 3]
    tmp_path.chmod(0o1777)  # as /tmp, whose files root's hooks do not open
    assert LiveHost().ask(asked) == [0, 4, 0]
    tmp_path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "train-0.parquet", 65534, -1)
        assert LiveHost().ask(asked) == [0, 4, 2]
    (tmp_path / "whole.parquet").write_bytes(bytes(1 << 20))
    assert LiveHost().ask(asked) == [0, 5, 0]
