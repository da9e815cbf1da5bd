"""Writing where another user can lay links, files and FIFOs: each gets in by a plain write of root's first."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.files import write_atomically, write_below, write_in_new_folder
from torchtune_sys.host.mounted import mounted_by_users
from two_users import Scene, as_root, needs_root

SECRET = "root's own\n"


def refusal(path: Path, text: str = "new") -> str:
    with pytest.raises(CannotWrite) as caught:
        write_atomically(str(path), text)
    assert caught.value.todo
    return caught.value.seen


def plain_write(path: Path, text: str) -> None:
    """What open(2) and the former way do: the path's links are followed, a file's mode stays."""
    subprocess.run([sys.executable, "-c", _PLAIN, str(path), text], check=True, timeout=60)


_PLAIN = """import os, sys
target = os.path.realpath(sys.argv[1])
mode = os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o644
with open(target + ".draft", "w") as file: file.write(sys.argv[2])
os.chmod(target + ".draft", mode); os.replace(target + ".draft", target)"""


@needs_root
@pytest.mark.parametrize("sticky", [True, False], ids=["tmp", "their-directory"])
def test_a_link_of_another_user_s_is_not_followed(scene: Scene, sticky: bool) -> None:
    victim = scene.folder / "victim"
    folder = scene.marks if sticky else scene.alice.home
    for target, path in ((victim, folder / "report"), (scene.folder, folder / "out" / "victim")):
        victim.write_text(SECRET)
        link = scene.alice.link(path if path.name == "report" else path.parent, target)
        plain_write(path, "overwritten")
        assert victim.read_text() == "overwritten"
        victim.write_text(SECRET)
        assert f"{link} is a symbolic link of user {scene.alice.name}" in refusal(path)
        assert victim.read_text() == SECRET
        done = as_root("rules", "-o", str(path))
        assert done.returncode == 4 and "not followed" in done.stderr and victim.read_text() == SECRET
        link.unlink()


@needs_root
def test_links_of_root_s_and_of_one_s_own_are_followed(scene: Scene) -> None:
    real = scene.folder / "real"
    real.mkdir()
    (scene.folder / "link").symlink_to("real")
    (real / "file").symlink_to("../marks/../real/end")
    write_atomically(str(scene.folder / "link" / "file"), "text")
    assert (real / "end").read_text() == "text" and (real / "file").is_symlink()
    (scene.folder / "loop").symlink_to("loop")
    assert "symbolic links" in refusal(scene.folder / "loop")
    own = scene.alice.link(scene.alice.home / "own", "report")
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(scene.alice.gid)
            os.setuid(scene.alice.uid)
            write_atomically(str(own), "hers")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0 and (scene.alice.home / "report").read_text() == "hers"


@needs_root
def test_a_file_that_another_user_made_gives_them_no_way_into_root_s(scene: Scene) -> None:
    for mode in (0o777, 0o666):
        path = scene.alice.write(scene.marks / "tune.sh", "mine\n", mode)
        plain_write(path, "#!/bin/sh\n")
        assert stat.S_IMODE(path.stat().st_mode) == mode, "whoever reads it as root runs what its owner writes next"
        scene.alice.write(scene.marks / "tune.sh", "mine\n", mode)
        kept = os.open(path, os.O_WRONLY)  # as its owner may have kept it open
        done = as_root("rules", "-o", str(path))
        assert done.returncode == 0, done.stderr
        os.write(kept, b"and still mine\n")
        os.close(kept)
        info = path.stat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (0, 0o600) and "mine" not in path.read_text()


@needs_root
def test_modes(scene: Scene) -> None:
    own = scene.folder / "own"
    for before, after in ((0o777, 0o755), (0o666, 0o644), (0o640, 0o640), (0o400, 0o400)):
        own.write_text("old")
        own.chmod(before)
        write_atomically(str(own), "new")
        assert stat.S_IMODE(own.stat().st_mode) == after
        own.unlink()
    for arguments, mode in (
        (["rules"], 0o600),
        (["check", "--format", "json", "--fail-on", "never"], 0o600),
        (["check", "--format", "prometheus", "--fail-on", "never"], 0o644),
    ):
        done = as_root(*arguments, "-o", str(own))
        assert done.returncode in (0, 3), done.stderr
        assert stat.S_IMODE(own.stat().st_mode) == mode, "the collector of node_exporter is not root"
        own.unlink()


@needs_root
def test_a_fifo_of_another_user_s_gets_nothing(scene: Scene) -> None:
    path = scene.marks / "fifo"
    os.mkfifo(path, 0o666)
    os.chown(path, scene.alice.uid, scene.alice.gid)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        writer = os.open(path, os.O_WRONLY)
        os.write(writer, b"secret")
        os.close(writer)
        assert os.read(reader, 100) == b"secret"
        assert f"belongs to user {scene.alice.name}" in refusal(path)
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


@needs_root
def test_folders_are_not_made_through_another_user_s_link(scene: Scene) -> None:
    target = scene.folder / "target"
    target.mkdir()
    scene.alice.link(scene.marks / "out", target)
    os.makedirs(scene.marks / "out" / "etc")
    assert (target / "etc").is_dir()
    (target / "etc").rmdir()
    with pytest.raises(CannotWrite, match="not followed"):
        write_below(str(scene.marks / "out"), {"/etc/systemd/x.conf": "# ours"}, "# ours")
    with pytest.raises(CannotWrite, match="not followed"):
        write_in_new_folder(str(scene.marks / "out" / "state" / "proof"), "text")
    assert list(target.iterdir()) == []


def test_a_fifo_without_a_reader_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert "no program reads from it" in refusal(path)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.append(path.read_text()))
    reader.start()
    text = "line\n" * 100_000
    while True:
        try:
            write_atomically(str(path), text)
            break
        except CannotWrite as error:
            assert "no program reads" in error.seen
    reader.join(60)
    assert seen == [text]


def test_the_streams_one_was_started_with(tmp_path: Path) -> None:
    code = "import sys; from torchtune_sys.host.files import write_atomically; write_atomically(sys.argv[1], 'text')"
    for path, where in (
        ("/dev/stdout", "stdout"),
        ("/dev/fd/1", "stdout"),
        ("/dev/stderr", "stderr"),
        ("/proc/self/fd/2", "stderr"),
    ):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
        assert getattr(done, where) == "text", done
    with open(tmp_path / "out", "w") as file:
        subprocess.run([sys.executable, "-c", code + "; sys.stdout.write('s')", "/dev/stdout"], stdout=file, timeout=60)
    assert (tmp_path / "out").read_text() == "texts", "one file, not another in its place"
    assert (
        "Bad file descriptor"
        in subprocess.run([sys.executable, "-c", code, "/dev/fd/77"], capture_output=True, text=True, timeout=60).stderr
    )


@needs_root
@pytest.mark.parametrize("words", [("preflight", "--policy"), ("check", "--config")], ids=["policy", "config"])
def test_root_is_told_whose_file_it_obeys(scene: Scene, words: tuple[str, str]) -> None:
    """A policy of hers that ignores all made any node *go* in a Prolog, and nothing said so."""
    text = "[rules.swappiness-high]\nmax = 99\n"
    hers, own = scene.alice.write(scene.alice.home / "site.toml", text), scene.folder / "site.toml"
    own.write_text(text)
    recording = str(Path(__file__).parents[1] / "hosts" / "swappiness-high.pass.json")
    told = [as_root(*words, str(place), "--from", recording).stderr for place in (hers, own)]
    told += [as_root(*words, str(hers), "--from", recording, SUDO_UID=str(scene.alice.uid), SUDO_USER=scene.alice.name).stderr]
    assert f"{words[1]} {hers}: others decide" in told[0] and f"belongs to user {scene.alice.name}" in told[0], told
    assert told[1:] == ["", ""]


def test_a_mount_that_names_no_user_is_looked_for_in_no_user_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory service was asked for the user "", for each of a thousand mounts with _netdev."""
    asked: list[str] = []
    real = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: asked.append(name) or real(name))
    table = "SRC=a:/x TARGET=/x ROOT=/ OPTS=_netdev\nSRC=/dev/b TARGET=/y OPTS=user\nSRC=/dev/c TARGET=/z OPTS=user=nobody\n"
    assert list(mounted_by_users(table)) == ["/z"] and asked == ["nobody"]
