"""Where a run's own files go: never where another user could put theirs in the place of these."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torchtune_sys.errors import UserError
from torchtune_sys.host import scratch
from two_users import Scene, needs_root


def _temporary(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place))


def _steal(scene: Scene, folder: Path) -> None:
    """Alice puts a directory of hers in the place of one that is not hers, with a file of the same name in it."""
    script = 'cd "$1" && mv "$2" stolen && mkdir "$2" && echo hers >"$2/smoke.py"'
    done = scene.alice.run(["sh", "-c", script, "-", str(folder.parent), folder.name])
    assert done.returncode == 0, done.stderr


@needs_root
def test_whose_directory_it_is_decides_what_lies_in_it(scene: Scene) -> None:
    """How scratch was made before. Root reads at its own path what alice wrote."""
    made = Path(tempfile.mkdtemp(dir=scene.alice.home))
    (made / "smoke.py").write_text("root's\n")
    _steal(scene, made)
    assert (made / "smoke.py").read_text() == "hers\n"


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o777], ids=oct)
def test_a_directory_for_temporary_files_that_another_user_owns_is_not_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    scene.alice.home.chmod(mode)
    for place in (scene.alice.home, scene.alice.home / "below"):
        place.mkdir(exist_ok=True)  # root's own, below hers
        _temporary(monkeypatch, place)
        with scratch.directory("") as made:
            assert Path(made).parent == Path("/tmp")
        with pytest.raises(UserError) as caught, scratch.directory(str(place)):
            pass
        assert f"belongs to user {scene.alice.name}" in caught.value.seen and "--scratch" in caught.value.todo


@needs_root
def test_a_link_of_another_user_is_not_followed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    link = scene.alice.link(scene.folder / "link", "/var/tmp")
    _temporary(monkeypatch, link)
    with scratch.directory("") as made:
        assert Path(made).parent == Path("/tmp")


@needs_root
def test_what_all_may_write_to_is_taken_only_where_nobody_may_rename(scene: Scene) -> None:
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UserError, match="others may write to"), scratch.directory(str(shared)):
        pass
    shared.chmod(0o1777)
    with scratch.directory(str(shared)) as made:
        assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
        script = 'mv "$1" "$1.stolen" || rm -r "$1"'
        assert scene.alice.run(["sh", "-c", script, "-", made]).returncode != 0
    assert list(shared.iterdir()) == []


def test_a_user_who_names_a_directory_trusts_who_may_write_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with scratch.directory(str(tmp_path)) as made:
        assert Path(made).parent == tmp_path
    _temporary(monkeypatch, tmp_path)
    with scratch.directory("") as made:
        assert Path(made).parent == Path("/tmp")


def test_a_nameless_file_is_at_no_path_and_cannot_be_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _temporary(monkeypatch, tmp_path)
    with scratch.nameless("folder/smoke.py", "print(1)\n") as handle:
        place = Path(f"/proc/self/fd/{handle}")
        assert place.read_text() == "print(1)\n"
        assert os.readlink(place) == "/memfd:folder/smoke.py (deleted)"
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(OSError), place.open("w") as file:
            file.write("changed\n")
        with pytest.raises(OSError, match="not permitted"):
            os.write(handle, b"changed\n")
        assert place.read_text() == "print(1)\n"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def _refused(*_asked: object) -> int:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("there", [False, True])
def test_a_nameless_file_where_there_is_none_in_memory(there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Python built for glibc before 2.27 (conda), and where a filter of system calls refuses it."""
    if there:
        monkeypatch.setattr(os, "memfd_create", _refused)
    else:
        monkeypatch.delattr(os, "memfd_create")
    _temporary(monkeypatch, tmp_path)
    with scratch.nameless("folder/smoke.py", "print(1)\n") as handle:
        assert Path(f"/proc/self/fd/{handle}").read_text() == "print(1)\n"
        assert list(tmp_path.iterdir()) == [] and os.fstat(handle).st_nlink == 0


_HOLDER = "import sys, time\nfrom torchtune_sys.host import scratch\nwith scratch.directory(sys.argv[1]) as made:\n print(made, flush=True)\n time.sleep(60)\n"


def _held(place: Path) -> tuple[subprocess.Popen[str], Path]:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(place)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    made = Path(holder.stdout.readline().strip())
    (made / "checkpoint").write_text("x")
    return holder, made


def _kill(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate(timeout=10)


def test_what_a_killed_run_left_is_removed_at_the_next_start_and_nothing_else(tmp_path: Path) -> None:
    """Each run that SIGKILL ended left its folder for good."""
    killed, lived, young = (_held(tmp_path) for _ in range(3))
    strange = tmp_path / lived[1].name.rpartition("-")[0].replace("-", "_")
    strange.mkdir()
    link = tmp_path / f"{killed[1].name}x"
    link.symlink_to(strange)
    try:
        for holder, made in (killed, lived):
            os.utime(made, (0, 0))
            if made == killed[1]:
                _kill(holder)
        _kill(young[0])
        with scratch.directory(str(tmp_path)) as mine:
            assert not killed[1].exists()
            assert lived[1].exists(), "its owner lives"
            assert young[1].exists(), "it may not be locked yet"
            assert strange.exists() and link.is_symlink() and Path(mine).exists()
    finally:
        _kill(lived[0])


@needs_root
def test_what_another_user_left_is_theirs(scene: Scene) -> None:
    scene.folder.chmod(0o1777)
    with scratch.directory(str(scene.folder)) as made:
        name = f"{Path(made).name}0"
    assert scene.alice.run(["mkdir", str(scene.folder / name)]).returncode == 0
    os.utime(scene.folder / name, (0, 0))
    with scratch.directory(str(scene.folder)):
        assert (scene.folder / name).exists()
