"""``./run`` from a clone, with interpreters that only pretend: what it calls, where it puts things, how it ends."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / "run"

INTERPRETER = """#!/bin/sh
# Pretends to be a Python: writes down each call, makes environments that hold a copy of itself.
if [ -n "${PYTHONHOME:-}" ] && [ "$1" != -I ]; then echo "Fatal Python error: init_fs_encoding" >&2; exit 1; fi
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
    *version_info*) [ "${OLD:-}" != yes ] ;;
    *ensurepip*) : ;;
    '-m venv '*) [ "${FULL:-}" != yes ] || { echo 'No space left on device' >&2; exit 1; }; mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    '-m pip --version') [ -e "${0%/*}/../pip" ] || : >"${0%/*}/../pip" ;;
    '-m pip install '*) sleep "${SLOW:-0}" ;;
    '-I -m torchtune_sys '*) shift 3; echo "tool: $*; PYTHONPATH=${PYTHONPATH:-}"; [ "$1" != plan ] || echo "called as $TORCHTUNE_SYS_CALLED_AS" ;;
    *) exit 9 ;;
esac
"""


class Clone:
    def __init__(self, place: Path) -> None:
        self.here = place / "a clone"
        (self.here / "src").mkdir(parents=True)
        (self.here / "templates").mkdir()
        for name in ("src/x.py", "pyproject.toml"):
            (self.here / name).write_text("")
        shutil.copy(RUN, self.here / "run")
        self.path = place / "bin"
        self.path.mkdir()
        for name in [
            "sh",
            "awk",
            "env",
            "id",
            "cat",
            "cksum",
            "find",
            "sort",
            "readlink",
            "rm",
            "mkdir",
            "cp",
            "sleep",
            "stat",
            "tr",
            "flock",
        ]:
            found = shutil.which(name)
            if found:
                (self.path / name).symlink_to(found)
        self.python = self.path / "python3"
        self.python.write_text(INTERPRETER)
        self.python.chmod(0o755)
        self.calls = place / "calls"
        self.env = {"PATH": str(self.path), "CALLS": str(self.calls), "HOME": str(place / "home")}
        (place / "home").mkdir()

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.here / "run"), *(arguments or ("check", "-q"))],
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )

    def run(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        child = self.start(*arguments, **env)
        out, err = child.communicate(timeout=120)
        return child.returncode, out.strip(), err.strip()

    def installed(self) -> int:
        return sum(call.startswith("-m pip install") for call in self.calls.read_text().splitlines())


GOOD = "tool: check -q; PYTHONPATH="


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_tool_is_told_how_it_was_called_so_that_what_it_says_to_run_can_be_pasted(clone: Clone) -> None:
    assert clone.run("plan")[1].endswith(f"called as {clone.here}/run")


def test_the_tests_environment_is_made_anew_for_other_packages_and_not_for_a_tool_s_settings(clone: Clone) -> None:
    packages, settings = '[dependency-groups]\ntest = ["pytest"]\n', "[tool.ruff]\nline-length = 132\n"
    held = []
    for text in (packages + settings, packages + settings.replace("132", "100"), packages.replace("pytest", "nose") + settings):
        (clone.here / "pyproject.toml").write_text(text)
        clone.run("bundle")
        held.append(clone.installed())
    assert 0 < held[0] == held[1] < held[2]


def test_the_usage_fits_on_a_terminal(clone: Clone) -> None:
    code, out, _ = clone.run("--help")
    assert code == 0 and max(map(len, out.splitlines())) <= 80, out


def test_the_first_run_sets_up_and_the_second_does_not(clone: Clone) -> None:
    code, out, err = clone.run()
    assert (code, out) == (0, GOOD)
    assert err.startswith(f"run: setting up {clone.here}/.venv-run, once for each state of the sources:") and err.endswith(
        "ready"
    )
    assert "nothing outside that directory is changed" in err
    assert max(map(len, err.replace(str(clone.here), "").splitlines())) < 80
    assert clone.run() == (0, GOOD, "")
    assert clone.installed() == 1


def test_an_environment_of_the_person_s_own_in_the_clone_is_left_alone(clone: Clone) -> None:
    """``bash install.sh`` of ``generate install`` makes .venv where it is run: torch must not end up in the tool's own environment."""
    (clone.here / ".venv").mkdir()
    assert clone.run()[:2] == (0, GOOD)
    assert list((clone.here / ".venv").iterdir()) == []


@pytest.mark.parametrize(("typed", "installs"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_a_person_at_the_terminal_is_asked_before_a_system_package(clone: Clone, typed: str, installs: bool) -> None:
    """A Debian without python3-venv: the package is installed only after a yes, and never before the question."""
    clone.python.write_text(INTERPRETER.replace("*ensurepip*) : ;;", "*ensurepip*) exit 1 ;;"))
    for name in ("apt-get", "sudo"):
        (clone.path / name).write_text(f'#!/bin/sh\nprintf "{name} %s\\n" "$*" >>"$CALLS"\n')
        (clone.path / name).chmod(0o755)
    leader, follower = pty.openpty()
    os.write(leader, typed.encode())
    child = subprocess.Popen(
        [clone.here / "run", "check", "-q"],
        env=clone.env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    said = b""
    with suppress(OSError):  # EIO once the other side is closed
        while part := os.read(leader, 4096):
            said += part
    os.close(leader)
    child.wait(120)
    assert b"[y/N]" in said, said
    assert ("apt-get -q -y install" in clone.calls.read_text()) is installs


def test_changed_sources_are_installed_again(clone: Clone) -> None:
    clone.run()
    (clone.here / "src" / "x.py").write_text("changed")
    assert clone.run()[0] == 0
    assert clone.installed() == 2


def test_it_may_be_called_through_links(clone: Clone, tmp_path: Path) -> None:
    clone.run()
    (tmp_path / "elsewhere").symlink_to(clone.here)
    (tmp_path / "tool").symlink_to("elsewhere/run")
    for place in (tmp_path / "elsewhere" / "run", tmp_path / "tool"):
        found = subprocess.run([place, "check", "-q"], env=clone.env, capture_output=True, text=True, timeout=120)
        assert (found.returncode, found.stdout.strip(), found.stderr) == (0, GOOD, "")


def test_what_steers_the_training_python_does_not_steer_the_tools(clone: Clone) -> None:
    code, out, err = clone.run(PYTHONHOME="/nowhere", PYTHONPATH="/mine", PIP_TARGET="/mine", PIP_USER="1")
    assert (code, out) == (0, "tool: check -q; PYTHONPATH=/mine"), err


def test_two_at_once_set_up_one_after_the_other(clone: Clone) -> None:
    children = [clone.start(SLOW="2") for _ in range(3)]
    ends = [child.communicate(timeout=120) for child in children]
    assert [(child.returncode, out.strip()) for child, (out, _) in zip(children, ends, strict=True)] == [(0, GOOD)] * 3
    assert clone.installed() == 1
    assert sum("waiting for another run" in err for _, err in ends) == 2


def test_an_interrupted_installation_is_done_again(clone: Clone) -> None:
    child = clone.start(SLOW="100")
    for _ in range(5000):
        if clone.calls.exists() and "-m pip install" in clone.calls.read_text():
            break
        time.sleep(0.02)
    until = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < until:  # a shell that has not yet started what it waits for goes on (bash)
        os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.2)
    assert child.wait(timeout=1) != 0
    child.communicate()
    assert clone.run()[:2] == (0, GOOD)
    assert clone.installed() == 2


def test_an_environment_whose_interpreter_is_gone_is_made_again(clone: Clone) -> None:
    clone.run()
    python = clone.here / ".venv-run" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert clone.run()[:2] == (0, GOOD)
    assert not python.is_symlink()


def test_the_active_environment_is_not_made_again_by_its_own_interpreter(clone: Clone) -> None:
    clone.run()
    inside = clone.here / ".venv-run" / "bin"
    for name in ("python3", "python"):
        (inside / name).write_text(INTERPRETER.replace("'-m pip --version')", "'-m pip --version') exit 1 ;; x)"))
        (inside / name).chmod(0o755)
    (clone.here / ".venv-run/.stamp").unlink()
    assert clone.run(PATH=f"{inside}:{clone.path}")[:2] == (0, GOOD)
    assert not (inside / "python3").exists(), "the environment was made again"


def test_an_environment_whose_interpreter_was_replaced_is_completed_again(clone: Clone, tmp_path: Path) -> None:
    clone.run()
    python = clone.here / ".venv-run" / "bin" / "python"
    python.rename(tmp_path / "python3.99")
    python.symlink_to(tmp_path / "python3.99")
    assert clone.run()[:2] == (0, GOOD)
    assert clone.installed() == 2, "its modules may lie in a folder that the new one does not read"


@pytest.mark.parametrize("python", ["", "python3"])
def test_too_old_an_interpreter_is_told(clone: Clone, python: str) -> None:
    code, out, err = clone.run(OLD="yes", **({"PYTHON": python} if python else {}))
    assert (code, out) == (2, "")
    assert "Python 3.10 or newer" in err.splitlines()[-1]


def test_no_interpreter_is_told(clone: Clone) -> None:
    clone.python.unlink()
    code, out, err = clone.run()
    assert (code, out) == (2, "")
    assert "no Python 3.10 or newer found; install one" in err


def test_a_full_disk_is_not_taken_for_a_missing_module(clone: Clone) -> None:
    code, out, err = clone.run(FULL="yes")
    assert (code, out) == (2, "")
    assert "No space left on device" in err
    assert "python3-venv" not in err


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_a_checkout_that_may_not_be_written_uses_the_cache(clone: Clone) -> None:
    home = Path(clone.env["HOME"])
    if os.geteuid() == 0:
        os.chown(home, 54321, 54321)
        for folder in (clone.here, *clone.here.parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                if folder.name and "pytest" in str(folder):
                    folder.chmod(0o755)
                else:
                    pytest.skip(f"{folder} is not open to other users")
        (clone.path / "setpriv").symlink_to(str(shutil.which("setpriv")))
        clone.calls.touch()
        clone.calls.chmod(0o666)
        before = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    else:
        clone.here.chmod(0o555)
        before = []
    for first in (True, False):
        found = subprocess.run(
            [*before, clone.here / "run", "check", "-q"], env=clone.env, capture_output=True, text=True, timeout=120
        )
        assert (found.returncode, found.stdout.strip()) == (0, GOOD), found.stderr
        assert ("setting up" in found.stderr) is first
    assert clone.installed() == 1
    assert list(home.glob(".cache/torchtune-sys/*/.venv-run/.stamp"))
    assert not (clone.here / ".venv-run").exists()
