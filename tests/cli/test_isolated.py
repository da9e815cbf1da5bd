"""What lies in the working directory, on PYTHONPATH or in the user's site directory is no part of the tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torchtune_sys
from torchtune_sys.host import isolation
from two_users import Scene, as_root, needs_root

SHADOWED = ("random", "queue", "signal", "selectors", "click", "msgspec", "tempfile", "json", "msvcrt", "psutil", "distro")
SMALL = str(Path(__file__).resolve().parent.parent / "hosts" / "base-system.json")
CONSOLE = [str(Path(sys.executable).with_name("torchtune-sys"))]
MODULE = [sys.executable, "-m", "torchtune_sys"]
COMMANDS = (
    ["--version"],
    ["check", "--from", SMALL, "--fail-on", "never"],
    ["plan", "--from", SMALL],
    ["generate", "script", "--from", SMALL],
    ["rules"],
    ["snapshot", "--from", SMALL],
    ["smoke", "--list"],
)


@pytest.fixture
def false_modules(tmp_path: Path) -> Path:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was taken from here')\n")
    return tmp_path


def started(argv: list[str], folder: Path, *, on_path: bool) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHONPATH": str(folder)} if on_path else {}
    return subprocess.run(argv, cwd="/" if on_path else folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.sampled(4, 6)
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize(
    ("program", "on_path"),
    [(CONSOLE, True), (MODULE, True), (MODULE, False)],
    ids=["console-path", "module-path", "module-directory"],
)
def test_no_module_is_taken_from_the_caller(false_modules: Path, program: list[str], on_path: bool, arguments: list[str]) -> None:
    plain = [sys.executable, "-m", "random"] if not on_path else [sys.executable, "-c", "import random"]
    assert "was taken from here" in started(plain, false_modules, on_path=on_path).stderr
    found, usual = (started([*program, *arguments], folder, on_path=on_path) for folder in (false_modules, Path("/")))
    assert (found.returncode, found.stderr) == (usual.returncode, usual.stderr) and usual.returncode in (0, 3)


def test_what_starts_us_takes_no_package_of_our_name_from_the_working_directory(false_modules: Path) -> None:
    """torchrun's handler does, where the folder may be a project's, in which others write; torchrun itself takes nothing from there."""
    (false_modules / "torchtune_sys").mkdir()
    for name in ("__init__", "__main__"):
        (false_modules / "torchtune_sys" / f"{name}.py").write_text("print('was taken from here')\n")
    assert "was taken from here" in started([*MODULE, "--version"], false_modules, on_path=False).stdout, "it could"
    found = started([sys.executable, "-c", isolation.START_APART, "--version"], false_modules, on_path=False)
    assert (found.returncode, found.stderr) == (0, "") and found.stdout.startswith("torchtune-sys"), found


def test_the_examined_interpreter_s_path_is_as_the_session_has_it(false_modules: Path) -> None:
    """Not as the tool left it, also where both are one and the same."""
    env = {**os.environ, "PYTHONPATH": str(false_modules)}
    (false_modules / "random.py").unlink()
    argv = [*MODULE, "snapshot", "--format", "json", "--python", sys.executable]
    facts = json.loads(subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, timeout=120).stdout)["facts"]
    asked = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"], cwd="/", env=env, capture_output=True, text=True
    )
    assert facts["python"]["sys_path"] == [entry for entry in asked.stdout.split("\n") if entry]
    assert facts["python"]["sys_path"][0] == facts["session"]["env"]["PYTHONPATH"] == str(false_modules)


def test_it_runs_where_pythonpath_is_how_it_was_installed(tmp_path: Path) -> None:
    """As environment modules on clusters do it; what hides the standard library there does not."""
    packages = Path(sysconfig.get_paths()["purelib"])
    there = tmp_path / "packages"
    there.mkdir()
    source = Path(torchtune_sys.__file__).parent
    (there / "torchtune_sys").symlink_to(source)
    for folder in packages.iterdir():
        if folder.name in ("click", "msgspec"):
            (there / folder.name).symlink_to(folder)
    (there / "queue.py").write_text("raise SystemExit('queue was taken from here')\n")
    bare = tmp_path / "bare"
    (bare / "bin").mkdir(parents=True)
    (bare / "bin" / "python3").symlink_to(sys.executable)
    (bare / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    assert subprocess.run([bare / "bin" / "python3", "-I", "-c", "import click"], capture_output=True).returncode == 1
    argv = [str(bare / "bin" / "python3"), "-m", "torchtune_sys", "check", "--from", SMALL, "--fail-on", "never"]
    found = subprocess.run(
        argv, cwd="/", env={**os.environ, "PYTHONPATH": str(there)}, capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("program", [CONSOLE, [sys.executable, "-X", "utf8", "-m", "torchtune_sys"]], ids=["command", "module"])
def test_a_python_that_checks_itself_is_the_session_s_and_slows_nothing_of_ours(program: list[str], tmp_path: Path) -> None:
    """With PYTHONDEVMODE a healthy node's network looked narrow: each buffer was filled, each step of the loop was timed."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stderr.write(f'{sys.flags.dev_mode} {[*sys._xoptions]} ')\n")
    env = {**os.environ, "PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1", "PYTHONPATH": str(tmp_path)}
    words = ["check", "--select", "memory-debugging-on", "--format", "json"]
    done = subprocess.run([*program, *words], cwd="/", env=env, capture_output=True, text=True, timeout=120)
    (found,) = json.loads(done.stdout)["results"]
    assert (found["verdict"], found["evidence"][0]["seen"]) == ("fail", "PYTHONDEVMODE=1"), done.stderr
    options = program[2:3]
    assert done.stderr == f"True {options} False {options} "  # a new start, as the first was but for that


def test_a_python_that_is_told_to_check_itself_at_each_start_starts_anew_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['PYTHONDEVMODE'] = '1'\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*MODULE, "--version"], cwd="/", env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_tool_is_asked_for_before_it_is_isolated_cannot_be_taken_from_the_caller() -> None:
    """Up to ``isolate`` only what Python has loaded at its own start is imported."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import torchtune_sys.__main__, torchtune_sys.host.isolation\nprint(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == [
        "torchtune_sys", "torchtune_sys.__main__", "torchtune_sys.host", "torchtune_sys.host.isolation",
        "torchtune_sys.host.mounted", "torchtune_sys.host.trust"
    ], found  # fmt: skip


def test_a_session_that_was_set_aside_is_whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isolation.SET_ASIDE + "LD_LIBRARY_PATH", "/home/ada/lib")
    found = isolation.session()
    assert found["LD_LIBRARY_PATH"] == "/home/ada/lib"
    assert not [name for name in found if name.startswith(isolation.SET_ASIDE)]


@needs_root
@pytest.mark.parametrize(
    "program", [CONSOLE, MODULE, [sys.executable, "-I", "-m", "torchtune_sys"]], ids=["console", "module", "isolated"]
)
def test_root_starts_anew_without_what_others_can_change(scene: Scene, program: list[str]) -> None:
    """A process whose loader or Python was steered is left: what it loads later would come from there, too."""
    scene.alice.write(scene.alice.home / "lib" / "random.py", scene.payload())
    variables = {"LD_LIBRARY_PATH": str(scene.alice.home / "lib"), "PYTHONPATH": str(scene.alice.home / "lib")}
    subprocess.run([sys.executable, "-c", "import random"], env={**os.environ, **variables}, check=True)
    assert scene.who_ran() == {0}
    done = subprocess.run([*program, "check", "-q"], env={**os.environ, **variables}, cwd="/", capture_output=True, text=True)
    assert scene.who_ran() == set() and "internal error" not in done.stderr and done.returncode in (0, 1, 3), done


@needs_root
def test_root_in_another_user_s_directory(scene: Scene) -> None:
    for name in ("random", "queue", "click"):
        scene.alice.write(scene.alice.home / f"{name}.py", scene.payload())
    subprocess.run([sys.executable, "-c", "import random"], cwd=scene.alice.home, check=True)
    assert scene.who_ran() == {0}
    for arguments in (["check", "-q"], ["plan"], ["apply", "--dry-run"], ["history"]):
        done = as_root(*arguments, cwd=scene.alice.home)
        assert scene.who_ran() == set() and "internal error" not in done.stderr, done


@needs_root
def test_temporary_files_of_root_do_not_go_where_another_user_says(scene: Scene) -> None:
    code = "from torchtune_sys.host.isolation import isolate; isolate(); import tempfile; print(tempfile.gettempdir())"
    for folder, taken in ((scene.alice.home, False), (scene.folder, True), (scene.marks, True)):
        env = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert (done.stdout.strip() == str(folder)) is taken, done
