"""The self-contained file under each interpreter that is here, and under those that it is not for."""

from __future__ import annotations

import io
import json
import platform
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from bundled import OLDEST, REPO, built, dotted, good, interpreters, old, start, surroundings

from conftest import TIER

pytestmark = pytest.mark.long

GOOD, OLD = (good(), old()) if TIER != "default" else ([OLDEST], [])
"""Asking each interpreter of this machine takes long, and each worker would do it."""


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize("version", GOOD, ids=dotted)
def test_every_python_that_will_do(version: tuple[int, int], bundle: Path, tmp_path: Path) -> None:
    python = interpreters()[version]
    done = start(python, bundle, "check", "--format=json", "--python", python, env=surroundings(HOME=str(tmp_path)))
    assert done.returncode in (0, 1, 3), done.stderr
    assert json.loads(done.stdout)["host"]
    (folder,) = (tmp_path / ".cache/torchtune-sys").glob("0*")
    assert folder.name.endswith("-cp" + dotted(version).replace(".", ""))


@pytest.mark.parametrize("version", OLD, ids=dotted)
def test_an_old_python_gets_one_readable_line(version: tuple[int, int], bundle: Path) -> None:
    done = start(interpreters()[version], bundle, "check", env=surroundings())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"Python {dotted(version)}." in done.stderr
    assert "needs a CPython 3." in done.stderr
    assert ": run: /" in done.stderr  # the one that these tests run in is on PATH


@pytest.mark.skipif(not [version for version in OLD if version >= (3, 4)], reason="no Python 3.4 to 3.9 here")
def test_the_shell_finds_a_newer_one_behind_an_old_python3(bundle: Path, tmp_path: Path) -> None:
    version = max(old())
    (tmp_path / "python3").symlink_to(interpreters()[version])
    env = surroundings(HOME=str(tmp_path))
    done = start(bundle, "--version", env={**env, "PATH": f"{tmp_path}:{env['PATH']}"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_python_newer_than_all_in_the_file(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tt.pyz"
    copy.write_bytes(re.sub(rb"cpython-3..", rb"cpython-399", bundle.read_bytes()))
    done = start(interpreters()[good()[-1]], copy, "check", env={**surroundings(), "PATH": "/nonexistent"})
    assert done.returncode == 2
    assert f"Python {dotted(good()[-1])}." in done.stderr
    assert len(done.stderr.splitlines()) == 1
    monitored = start(interpreters()[good()[-1]], copy, "check", "--format=nagios", env=surroundings())
    assert (monitored.returncode, monitored.stderr) == (3, "")
    assert monitored.stdout.startswith("TORCHTUNE-SYS UNKNOWN - ")


def test_the_file_for_another_architecture(bundle: Path, tmp_path: Path) -> None:
    here = platform.machine()
    copy = tmp_path / "tt.pyz"
    copy.write_bytes(bundle.read_bytes().replace(here.encode(), b"z" * len(here)))
    copy.chmod(0o755)
    done = start(copy, "check", env=surroundings())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"(on {here}); this file needs a CPython 3." in done.stderr
    assert f"use the file made for {here}" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "elf_machine"), [("aarch64", 183)])
def test_libraries_are_of_the_architecture_and_for_every_python(arch: str, elf_machine: int, tmp_path: Path) -> None:
    made = built(tmp_path, f"--arch={arch}")
    with zipfile.ZipFile(made) as outer, zipfile.ZipFile(io.BytesIO(outer.read("payload.zip"))) as payload:
        libraries = [name for name in payload.namelist() if name.endswith(".so")]
        told = json.loads(outer.read("info.json"))
        assert {int.from_bytes(payload.read(name)[18:20], "little") for name in libraries} == {elf_machine}
    assert told["machine"] == arch
    assert {"3.10", "3.11", "3.12", "3.13", "3.14"} <= set(told["pythons"])
    for python in told["pythons"]:
        name = "cp" + python.replace(".", "")
        assert [library for library in libraries if library.startswith(f"{name}/msgspec/_core.cpython-{name[2:]}-{arch}")]
        assert [library for library in libraries if re.match(rf"({name}|common)/psutil/", library)]


def test_no_python_at_all(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tt.pyz"
    copy.write_bytes(re.sub(rb"(/usr/\S+/(platform-)?pytho)n", rb"\1X", bundle.read_bytes()))
    done = start("/bin/sh", copy, "check", env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "no python3 on PATH; this file needs a CPython 3." in done.stderr
    copy.write_bytes(copy.read_bytes().replace(b" wc -c ", b" wX -c "))  # as in the smallest containers
    assert "no python3 on PATH" in start("/bin/sh", copy, "check", env={"PATH": str(tmp_path)}).stderr


def test_what_the_environment_sets_does_not_steer_it(bundle: Path, tmp_path: Path) -> None:
    """For the file itself; what is set for the interpreter one trains with still reaches that one."""
    for name in ("click", "msgspec", "sitecustomize", "usercustomize", "signal", "gettext", "torchtune_sys"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('steered')\n")
    env = surroundings(HOME=str(tmp_path), PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "click.py"), PYTHONOPTIMIZE="2")
    shell = start(bundle, "rules", env={**env, "PYTHONHOME": "/nonexistent"}, cwd=tmp_path)
    assert (shell.returncode, shell.stderr) == (0, "")
    # By these a Python takes another's name and library, whatever its options.
    for name in ("PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"):
        (tmp_path / "other").write_text(f"#!/bin/sh\n: >{tmp_path}/ran\n")
        (tmp_path / "other").chmod(0o755)
        for argv in ([], *([path] for version, path in interpreters().items() if version in good())):
            another = start(*argv, bundle, "rules", env={**env, "PYTHONPATH": "", name: str(tmp_path / "other")}, cwd="/")
            assert (another.returncode, another.stdout, (tmp_path / "ran").exists()) == (0, shell.stdout, False), name
    (tmp_path / "sitecustomize.py").write_text("")
    (tmp_path / "usercustomize.py").write_text("")
    named = start(interpreters()[good()[-1]], bundle, "rules", env=env, cwd=tmp_path)
    assert (named.returncode, named.stderr) == (0, "")
    assert named.stdout == shell.stdout


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_no_function_that_a_caller_exported_stands_for_a_program_of_the_stub_s(shell: str, bundle: Path, tmp_path: Path) -> None:
    """bash takes them from its environment, whatever their names; as ``sh`` it is root's shell on many distributions."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    (tmp_path / shell).symlink_to(bash)
    text = (REPO / "bundle/stub/start.sh").read_text()
    words = set(re.findall(r"[a-z_]+", re.sub(r"'[^']*'|^#.*", "", text, flags=re.MULTILINE))) | {"[", ":", "."}
    mark, env = tmp_path / "mark", surroundings(HOME=str(tmp_path))
    steered = {f"BASH_FUNC_{word}%%": f"() {{ >'{mark}'; kill -9 $$; }}" for word in sorted(words - {"kill"})}
    assert start(tmp_path / shell, "-c", "read", env={**env, **steered}).returncode == -9 and mark.exists(), (
        "this bash takes none"
    )
    mark.unlink()
    done = start(tmp_path / shell, bundle, "--version", env={**env, **steered})
    assert (done.returncode, mark.exists()) == (0, False), done.stderr
    assert {"command", "printf", "read", "unset"} <= words


def test_options_of_the_interpreter_are_kept(bundle: Path, tmp_path: Path) -> None:
    done = start(interpreters()[good()[-1]], "-X", "importtime", bundle, "--version", env=surroundings(HOME=str(tmp_path)))
    assert done.returncode == 0
    assert "torchtune_sys.cli.main" in done.stderr
