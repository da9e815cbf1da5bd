"""Ways in that a second look found, through what the examined interpreter and root's programs load: environments, packages, libraries, keys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchtune_sys.host.children.child_environment import for_root
from torchtune_sys.host.children.examined import runner
from torchtune_sys.host.isolation import _is_foreign
from torchtune_sys.model.values import Missing, Why
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root, system_minor


def environment_of_root(scene: Scene) -> tuple[Path, Path]:
    """A virtual environment that is root's, and its directory of packages, with a torch."""
    venv = scene.folder / "roots"
    packages = venv / "lib" / f"python{system_minor()}" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text("")
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return venv, packages


def package_of_theirs(scene: Scene, packages: Path) -> None:
    shutil.rmtree(packages / "torch")
    scene.alice.write(packages / "torch" / "__init__.py", scene.payload())


def linked_package(scene: Scene, packages: Path) -> None:
    shutil.rmtree(packages / "torch")
    scene.alice.write(scene.alice.home / "torch" / "__init__.py", scene.payload())
    (packages / "torch").symlink_to(scene.alice.home / "torch")


def editable_installation(scene: Scene, packages: Path) -> None:
    (packages / "torch" / "__init__.py").write_text("import numpy\n")
    scene.alice.write(scene.alice.home / "project" / "numpy.py", scene.payload())
    (packages / "__editable__.project.pth").write_text(f"{scene.alice.home}/project\n")


def found_by_a_module(scene: Scene, packages: Path) -> None:
    """As setuptools, editables, scikit-build-core and meson-python install what is not laid out as it is imported (PEP 660)."""
    shutil.rmtree(packages / "torch")
    scene.alice.write(scene.alice.home / "project" / "__init__.py", scene.payload())
    (packages / "__editable___torch_2_9_0_finder.py").write_text(
        "import importlib.util, sys\n"
        f"MAPPING: dict = {{'torch': {str(scene.alice.home / 'project')!r}}}\n"
        "class Finder:\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        place = MAPPING.get(name)\n"
        "        return place and importlib.util.spec_from_file_location(name, place + '/__init__.py')\n"
        "def install():\n"
        "    sys.meta_path.append(Finder)\n"
    )
    line = "import __editable___torch_2_9_0_finder; __editable___torch_2_9_0_finder.install()\n"
    (packages / "__editable__.torch-2.9.0.pth").write_text(line)


@needs_root
@pytest.mark.parametrize(
    "attack", [package_of_theirs, linked_package, editable_installation, found_by_a_module], ids=lambda each: each.__name__
)
def test_one_package_of_another_user_s_in_an_environment_of_root_s(scene: Scene, attack) -> None:  # type: ignore[no-untyped-def]
    venv, packages = environment_of_root(scene)
    attack(scene, packages)
    subprocess.run([venv / "bin" / "python3", "-B", "-c", "import torch"], capture_output=True, timeout=60)
    assert scene.who_ran() == {0}
    as_root("check", "-q", "--live", "--python", str(venv))
    assert scene.who_ran() == {scene.alice.uid}


@needs_root
def test_a_directory_that_anybody_could_make_is_not_one_of_packages(scene: Scene) -> None:
    venv, packages = environment_of_root(scene)
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert runner(str(venv / "bin" / "python3")) is None
    (packages / "gone.pth").write_text(f"import sys\n# a comment\n{shared}/gone\n")
    found = runner(str(venv / "bin" / "python3"))
    assert isinstance(found, Missing) and found.why is Why.DENIED and "shared" in found.detail


@needs_root
def test_a_group_named_as_its_owner_may_be_another_user_s_first(scene: Scene) -> None:
    if shutil.which("usermod") is None:
        pytest.skip("usermod is not installed")
    place = scene.alice.write(scene.alice.home / "bin" / "python3", scene.shell_payload(), 0o755)
    place.parent.chmod(0o775)
    found = runner(str(place))
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid
    subprocess.run(["usermod", "--gid", str(scene.alice.gid), scene.bob.name], check=True, capture_output=True)
    try:
        written = subprocess.run(
            ["/bin/sh", "-c", f"echo : > {place.parent}/theirs"],
            user=scene.bob.uid, group=scene.alice.gid, extra_groups=[], timeout=60,
        )  # fmt: skip
        assert written.returncode == 0
        refused = runner(str(place))
        assert isinstance(refused, Missing) and refused.why is Why.DENIED
    finally:
        subprocess.run(["usermod", "--gid", str(scene.bob.gid), scene.bob.name], check=True, capture_output=True)


@needs_root
@pytest.mark.parametrize("value", [":", "/opt/nothing:", "lib", "./lib", "/opt/a::/opt/b", "SHARED"])
def test_libraries_are_not_taken_from_the_working_directory(scene: Scene, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's own words say where it looks: as root in another user's directory, before and after the new start."""
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    value = value.replace("SHARED", str(shared))
    monkeypatch.chdir(scene.alice.home)
    assert _is_foreign("LD_LIBRARY_PATH", value) and _is_foreign("PYTHONPATH", value)
    told = subprocess.run(
        [*PROGRAM, "history"],
        env={**os.environ, "LD_LIBRARY_PATH": value, "LD_DEBUG": "libs"},
        cwd=scene.alice.home, capture_output=True, text=True, timeout=120,
    ).stderr  # fmt: skip
    starts = told.split("transferring control")
    if len(starts) < 3:
        pytest.skip("this loader does not tell where it looks")
    assert "(LD_LIBRARY_PATH)" in starts[0], "the first start obeys"
    assert "(LD_LIBRARY_PATH)" not in starts[-1]
    assert not _is_foreign("LD_LIBRARY_PATH", "/usr/lib:/opt") and not _is_foreign("LD_LIBRARY_PATH", "")


@needs_root
def test_variables_that_steer_and_name_no_place_are_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.alice.home)
    for name, value in (("PYTHONUNBUFFERED", "1"), ("MALLOC_ARENA_MAX", "2"), ("TMPDIR", "/tmp"), ("PYTHONHASHSEED", "0")):
        assert not _is_foreign(name, value), name
    assert _is_foreign("TMPDIR", "mine") and _is_foreign("PYTHONPYCACHEPREFIX", "cache")


@needs_root
def test_compiled_modules_are_not_taken_from_a_shared_directory(scene: Scene) -> None:
    """In /tmp nobody changes another's file, but everybody lays one where none is."""
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    made = (
        "import importlib.util, json, marshal, os, sys\n"
        "place, info = json.__file__, os.stat(json.__file__)\n"
        "cache = importlib.util.cache_from_source(place)\n"
        "os.makedirs(os.path.dirname(cache), exist_ok=True)\n"
        "code = compile(sys.argv[1] + chr(10) + open(place).read(), place, 'exec')\n"
        "head = importlib.util.MAGIC_NUMBER + bytes(4) + int(info.st_mtime).to_bytes(4, 'little') + info.st_size.to_bytes(4, 'little')\n"
        "open(cache, 'wb').write(head + marshal.dumps(code))\n"
    )
    env = {"PYTHONPYCACHEPREFIX": str(shared), "PYTHONDONTWRITEBYTECODE": "1"}
    done = scene.alice.run([SYSTEM_PYTHON, "-c", made, scene.payload()], env=env)
    assert done.returncode == 0, done.stderr
    subprocess.run([SYSTEM_PYTHON, "-c", "import json"], env={**os.environ, **env}, timeout=60)
    assert scene.who_ran() == {0}
    as_root("check", "-q", "--live", "--python", SYSTEM_PYTHON, **env)
    assert scene.who_ran() == set()


@needs_root
def test_a_shared_directory_is_for_temporary_files_only(scene: Scene) -> None:
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    env = {name: str(shared) for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NCCL_NET_PLUGIN")}
    assert {name for name in for_root(env) if name in env} == {"TMPDIR"}
    relative = os.path.relpath(scene.alice.home, "/")
    assert "NCCL_CONF_FILE" not in for_root({"NCCL_CONF_FILE": f"{relative}/nccl.conf"}), "children start in /"
    assert "NCCL_CONF_FILE" not in for_root({"NCCL_CONF_FILE": f"~{scene.alice.name}/nccl.conf"})


def test_an_empty_variable_reaches_what_runs_as_root() -> None:
    """CUDA_VISIBLE_DEVICES= hides every GPU; without it a job's environment is not the one that is tried."""
    told = for_root({"CUDA_VISIBLE_DEVICES": "", "NCCL_DEBUG": "", "LD_LIBRARY_PATH": "", "PYTHONPATH": ""})
    assert told["CUDA_VISIBLE_DEVICES"] == told["NCCL_DEBUG"] == ""
    assert not {"LD_LIBRARY_PATH", "PYTHONPATH"} & {*told}, "an empty entry of these is the working directory"


def test_what_the_c_library_allocates_by_reaches_training_as_root() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4096", "MALLOC_ARENA_MAX": "2", "LD_AUDIT": "/usr/lib/audit.so"}
    assert {name: for_root(given).get(name) for name in given} == {**given, "LD_AUDIT": None}


KEYCTL = """
import ctypes, os
libc, number = ctypes.CDLL(None, use_errno=True), {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280}[os.uname().machine]
def keyctl(*words):
    return libc.syscall(number, *words)
"""
READ_KEY = (
    KEYCTL
    + """
found = ctypes.create_string_buffer(64)
size = keyctl(11, keyctl(10, -3, b"user", b"ticket", 0), found, 64)
print("read", found.value[:max(size, 0)].decode())
"""
)
WITH_KEY = (
    KEYCTL
    + """
import subprocess, sys
from torchtune_sys.host.children import process
from torchtune_sys.host.account import account
alice = account(int(sys.argv[1]), int(sys.argv[2]))
if keyctl(1, None) < 0:
    sys.exit(77)
if libc.syscall({"x86_64": 248, "aarch64": 217, "ppc64le": 269, "s390x": 278}[os.uname().machine], b"user", b"ticket", b"of-root", 7, -3) < 0:
    sys.exit(77)
argv = (sys.argv[3], "-c", sys.argv[4])
print("plain:", subprocess.run(argv, user=alice.uid, group=alice.gid, extra_groups=[], capture_output=True, text=True, cwd="/").stdout)
print("ours:", process.run(argv, timeout_s=60, user=alice).stdout)
print("kept:", subprocess.run(argv, capture_output=True, text=True).stdout)
"""
)


@needs_root
def test_root_s_keys_are_not_handed_on(scene: Scene) -> None:
    """Who possesses a session keyring reads its keys, and children of another user inherit it."""
    if os.uname().machine not in ("x86_64", "aarch64", "ppc64le", "s390x"):
        pytest.skip("the test does not know this machine's numbers of system calls")
    argv = [sys.executable, "-c", WITH_KEY, str(scene.alice.uid), str(scene.alice.gid), SYSTEM_PYTHON, READ_KEY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd="/")
    if done.returncode == 77:
        pytest.skip("keyctl(2) is not allowed here")
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if answers.get("plain") != "read of-root":
        pytest.skip(f"a key of root's is not to be read by possession here: {done.stdout} {done.stderr}")
    assert answers["ours"] == "read "
    assert answers["kept"] == "read of-root", "our own keyring stays"
