"""File systems that say of a file what their owner wants, and hard links of root's files."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.target import TESTS
from torchtune_sys.host.files import PRIVATE, growing_file, write_atomically
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, User, as_root, needs_root

LYING = Path(__file__).with_name("lying_fuse.py")
STUB = Path(__file__).parents[2] / "bundle" / "stub"


@contextlib.contextmanager
def shown_as_root_s(user: User, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Mount a file system of the user's over their home, in which all that lies in the folder belongs to root."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    argv = [sys.executable, str(LYING), str(user.home), str(folder), str(user.uid), str(user.gid), *more]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None and serving.stderr is not None
        if serving.stdout.readline() != "mounted\n":
            pytest.skip(serving.stderr.read())
        try:
            yield serving
        finally:
            serving.kill()  # who waits for its answer can be killed only then
            subprocess.run(["umount", "--lazy", str(user.home)], check=True)


@contextlib.contextmanager
def home_that_lies(scene: Scene) -> Iterator[Path]:
    """What alice laid out in her home so far, shown as root's own at its place."""
    behind = scene.folder / f"behind-{scene.alice.name}"
    shutil.copytree(scene.alice.home, behind, symlinks=True)
    with shown_as_root_s(scene.alice, behind):
        assert all(place.lstat().st_uid == 0 for place in scene.alice.home.iterdir())
        yield scene.alice.home


@needs_root
@pytest.mark.parametrize("command", ["check -q", "check -q --live"])
def test_a_file_system_of_a_user_s_says_that_all_is_root_s(scene: Scene, command: str) -> None:
    """fusermount3(1) mounts it for anybody over a folder of theirs, and shows it to root where /etc/fuse.conf has user_allow_other."""
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "attack.pth", scene.payload() + "\n")
    with home_that_lies(scene):
        subprocess.run([str(venv / "bin" / "python3"), "-c", ""], check=True)
        assert scene.who_ran() == {0}, "it is no way in"
        as_root(*command.split(), "--python", str(venv))
        assert scene.who_ran() == set()


@needs_root
def test_a_link_on_a_user_s_file_system_is_not_followed(scene: Scene) -> None:
    kept = scene.folder / "root-s"
    kept.write_text("kept")
    scene.alice.link(scene.alice.home / "report.json", kept)
    with home_that_lies(scene) as home:
        done = as_root("check", "-q", "-o", str(home / "report.json"))
        assert done.returncode == 4 and f"symbolic link of user {scene.alice.name}" in done.stderr
        assert kept.read_text() == "kept"


@needs_root
def test_programs_and_libraries_on_a_user_s_file_system_are_left_out(scene: Scene) -> None:
    for name in ("nvidia-smi", "systemctl", "bin/uname", "bin/stat", "bin/python3"):
        scene.alice.write(scene.alice.home / name, scene.shell_payload(), 0o755)
    script = as_root("generate", "script", "--from", str(TESTS / "hosts" / "untuned.json")).stdout
    with home_that_lies(scene) as home:
        place = str(home)
        as_root("check", "-q", "--live", "--python", SYSTEM_PYTHON, PATH=f"{place}:{os.environ['PATH']}", LD_LIBRARY_PATH=place)
        assert scene.who_ran() == set()
        environment = {"PATH": f"{place}/bin:/usr/bin:/bin"}
        subprocess.run(["/bin/bash", "-c", "uname"], env=environment, capture_output=True)
        assert scene.who_ran() == {0}, "it is no way in"
        subprocess.run(
            ["/bin/bash", "-s", "--", "--dry-run"], input=script, text=True, env=environment, capture_output=True, timeout=60
        )
        assert scene.who_ran() == set()


@needs_root
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_bundle_takes_nothing_from_a_user_s_file_system(scene: Scene, shell: str) -> None:
    text = (STUB / "start.sh").read_text()
    function = text[text.index("only_roots() {") : text.index("refused=\n")]
    scene.alice.write(scene.alice.home / "a b" / "python3", scene.shell_payload(), 0o755)
    main = runpy.run_path(str(STUB / "__main__.py"), run_name="x")

    def judged(place: Path) -> tuple[bool, bool]:
        done = subprocess.run([shell, "-c", f'{function}only_roots "$1"', "x", str(place / "python3")])
        return done.returncode == 0, main["distrust"](str(place)) is None

    own = scene.folder / "own"
    shutil.copytree(scene.alice.home / "a b", own)
    own.chmod(0o755)
    assert judged(own) == (True, True)
    with home_that_lies(scene) as home:
        assert judged(home / "a b") == (False, False)


@needs_root
def test_a_second_name_of_a_file_of_root_s_is_not_written_to(scene: Scene) -> None:
    """Anybody may give it one in a folder of theirs where fs.protected_hardlinks is off."""
    kept = scene.folder / "root-s"
    kept.write_text("kept")
    kept.chmod(0o644)
    for name in ("answers", "report"):
        os.link(kept, scene.folder / name)
    with growing_file(str(scene.folder / "answers")) as (_, put):
        put("x")
    write_atomically(str(scene.folder / "report"), "x", by_root=PRIVATE)
    assert kept.read_text() == "kept" and (scene.folder / "answers").read_text() == "x"
    assert (scene.folder / "report").stat().st_mode & 0o777 == PRIVATE


SILENT = (
    "check -q --timeout 20 --python HOME/venv",
    "check -q --timeout 20",
    "check -q --timeout 20 --root HOME",
    "check -q --from HOME/venv/pyvenv.cfg --timeout 5",
    "diagnose HOME/venv/pyvenv.cfg --timeout 5",
    "preflight --budget 20 --site-checks HOME",
    "preflight --budget 20 --policy HOME/x",
    "smoke --quick --device cpu --timeout 20 --scratch HOME",
    "check -q --timeout 20 --python OURS/wrapper",
    "preflight --budget 20 --site-checks OURS",
)


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("command", SILENT)
@pytest.mark.parametrize("depth", ["0", "1"])
def test_a_user_s_file_system_that_does_not_answer_holds_nobody(scene: Scene, command: str, depth: str) -> None:
    """Who waits for it in the kernel cannot be killed. At depth 1 its first folder answers, and what lies there does not."""
    home = scene.alice.home
    behind = scene.folder / "behind"
    (behind / "venv").mkdir(parents=True)
    ours = scene.folder / "ours"
    ours.mkdir()
    (ours / "wrapper").write_text(f"#!{home}/venv/bin/python3\n")
    (ours / "wrapper").chmod(0o755)
    with shown_as_root_s(scene.alice, behind, depth) as serving:
        pythons = {"PATH": f"{home}/venv/bin:{os.environ['PATH']}", "HF_HOME": f"{home}/x", "TRITON_CACHE_DIR": f"{home}/y"}
        argv = [*PROGRAM, *command.replace("HOME", str(home)).replace("OURS", str(ours)).split()]
        with subprocess.Popen(
            argv, cwd="/", env={**os.environ, **pythons}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as run:
            try:
                run.wait(40)
            except subprocess.TimeoutExpired:
                serving.kill()
                pytest.fail(f"held: {argv}")


@needs_root
@pytest.mark.parametrize("where", ["its usual name", "a name like it", "a link", "TMPDIR"])
def test_the_bundle_starts_beside_what_never_answers(scene: Scene, where: str) -> None:
    """In a directory like /tmp anybody may make what root's start of the self-contained file looks at, also below a Prolog."""
    shared = scene.folder / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    place = {"its usual name": shared / "torchtune-sys-0", "a name like it": shared / "torchtune-sys-0-x"}.get(
        where, scene.alice.home
    )
    user = User(scene.alice.name, place)
    if place.parent == shared:
        place.mkdir()
        os.chown(place, user.uid, user.gid)
    elif where == "a link":
        scene.alice.link(shared / "torchtune-sys-0", place)
    env = {"TMPDIR": str(place)} if where == "TMPDIR" else {}
    code = f"import runpy, sys; sys.path.insert(0, {str(STUB)!r}); m = runpy.run_path({str(STUB / '__main__.py')!r}, run_name='x'); m['SHARED'][:] = [{str(shared)!r}]; m['unpacked']('x')"
    with (
        shown_as_root_s(user, scene.folder, "0") as serving,
        subprocess.Popen([SYSTEM_PYTHON, "-IS", "-c", code], env=env) as started,
    ):
        try:
            assert started.wait(20) == 0
        finally:
            serving.kill()


@needs_root
def test_the_bundle_unpacks_for_root_nowhere_that_root_s_group_may_write(tmp_path: Path) -> None:
    """Somebody may be in it, and where there is an access list, the group's bit stands for whom the list names (acl(5))."""
    place = tmp_path / "cache"
    place.mkdir(mode=0o755)
    judge = runpy.run_path(str(STUB / "__main__.py"), run_name="x")["distrust"]
    tmp_path.chmod(0o755)
    assert judge(str(place)) is None
    for writable in (place, tmp_path):
        writable.chmod(0o775)
        assert "others may write" in str(judge(str(place)))
        writable.chmod(0o755)


@needs_root
def test_what_fstab_lets_a_user_mount_is_hers(scene: Scene) -> None:
    """A disk or an image of hers holds files of any owner's; mount(8) notes who mounted it in /run/mount/utab."""
    image, place, top = scene.alice.home / "image", scene.folder / "mounted", scene.folder / "top"
    for folder in (place, top, top / "bin"):
        folder.mkdir()
    python = top / "bin" / "python3"
    python.write_text(f'{scene.shell_payload()}exec {SYSTEM_PYTHON} "$@"\n')
    python.chmod(0o755)
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-F", "-d", str(top), str(image)]).returncode:
        pytest.skip("no image could be made")
    os.chown(image, scene.alice.uid, scene.alice.gid)
    table = scene.folder / "fstab"
    table.write_text(f"{image} {place} ext4 user,loop,exec,noauto 0 0\n")
    mounts = f"mount --bind {table} /etc/fstab && mkdir -p /run/mount && mount -t tmpfs none /run/mount && su {scene.alice.name} -c 'mount {place}'"
    words = f"{mounts} || exit 77; {place}/bin/python3 -c '' && cd / && {shlex.join(PROGRAM)} check -q --python {place}/bin/python3; umount {place}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", words], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    ran = [row["uid"] for row in scene.what_ran()]
    assert ran.count(0) == 1, "by hand alone"
    assert scene.alice.uid in ran, done
