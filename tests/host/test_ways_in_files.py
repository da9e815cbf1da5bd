"""Ways in that a third look found: each first gets in by a plain start or the plain call, then fails against ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from torchtune_sys.model.install import Installation, InstallCommand, InstallStep, PythonEnvironment
from torchtune_sys.remediation.plan.kernel_arguments import Argument
from torchtune_sys.render.generate import install, kernel_args
from torchtune_sys.render.generate.commands import step_commands
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

REPO = Path(__file__).resolve().parent.parent.parent


@needs_root
@pytest.mark.parametrize("piece", ["install", "systemd-boot"])
def test_scripts_for_a_person_start_no_program_of_another_user_s(scene: Scene, piece: str) -> None:
    """Root's PATH begins with alice's folder; the script runs in a namespace where what it changes is nobody's."""
    folder = scene.alice.home / "bin"
    for tool in ("cat", "readlink", "sync", "sed", "kernel-install", "apt-get", "env", "cp", "mv", "stat"):
        scene.alice.write(folder / tool, scene.shell_payload() + "exit 1\n", 0o755)
    if piece == "install":
        greeting = InstallCommand(words=("env", "printf", "a greeting\n"), root=True)
        step = InstallStep(key="x", title="x", why="", source="", actions=(greeting,))
        text = install.shell(Installation(host="h", origin="o", system="s", steps=(step,)))
    else:
        text = kernel_args.systemd_boot([Argument(argument="iommu=pt", key="x", rules=(), why="")])
    script = scene.folder / "piece.sh"
    script.write_text(text)
    cmdline = scene.folder / "cmdline"
    cmdline.write_text("quiet\n")
    env = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TORCHTUNE_SYS_CMDLINE": str(cmdline),
        "TORCHTUNE_SYS_ROOT": str(scene.folder),
    }
    subprocess.run(["/bin/sh", "-c", "cat /dev/null"], cwd=folder, env=env, timeout=60)
    assert scene.who_ran() == {0}, "a plain script starts it"
    done = subprocess.run(["/bin/bash", str(script)], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert scene.who_ran() == set(), done
    assert (piece == "install" and "a greeting" in done.stdout) or "iommu=pt" in cmdline.read_text(), done


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("module", ["venv", "pip"])
def test_what_generated_scripts_ask_of_python_is_not_taken_from_the_working_directory(scene: Scene, module: str) -> None:
    """``python -m pip`` looks for pip where one stands: root in alice's folder, or in /tmp."""
    scene.alice.write(scene.alice.home / f"{module}.py", scene.payload())
    wanted = PythonEnvironment(
        venv=str(scene.folder / "venv"), program=SYSTEM_PYTHON, tool="pip", specifiers=("--version",), local="x", index=""
    )
    step = InstallStep(key="torch", title="", why="", source="", actions=(wanted,))
    make, put = (item.words for item in step_commands(step) if isinstance(item, InstallCommand))
    words = make if module == "venv" else (SYSTEM_PYTHON, *put[1:])
    subprocess.run([word for word in words if word != "-I"], cwd=scene.alice.home, capture_output=True, timeout=100)
    assert scene.who_ran() == {0}, "a plain start takes hers"
    subprocess.run(words, cwd=scene.alice.home, capture_output=True, timeout=100)
    assert scene.who_ran() == set()
    for template in ("provision/environment.sh.j2", "dockerfile/Dockerfile.j2"):
        text = (REPO / "templates" / template).read_text()
        assert re.findall(r"(?<!-I) -m (?:pip|venv)\b(?! ended)", text) == [] and " -I -m pip" in text


@needs_root
@pytest.mark.parametrize("link", ["site-packages", "nvidia"])
def test_root_tells_a_user_no_names_that_they_may_not_list(scene: Scene, link: str) -> None:
    """What root's recording holds is given away; a link in an environment of theirs would put the names of what root keeps into it."""
    safe = scene.folder / "safe"
    for name in ("payroll_2026-1.0.dist-info", "nvidia", "payroll_2026", "payroll_2026/lib"):
        (safe / name).mkdir(parents=True)
    (safe / "payroll_2026-1.0.dist-info" / "METADATA").write_text("Name: payroll-2026\nVersion: 1.0\n")
    safe.chmod(0o700)
    venv = scene.alice.venv()
    packages = scene.alice.packages(venv)
    place = packages if link == "site-packages" else packages / link
    if link == "site-packages":
        (packages / "README").unlink()
        packages.rmdir()
    scene.alice.link(place, safe)
    assert "payroll" in " ".join(os.listdir(place)) and scene.alice.run(["ls", str(place)]).returncode
    for words in (("record",), ("snapshot", "--format", "json"), ("check", "--format", "json")):
        assert "payroll" not in as_root(*words, "--python", str(venv)).stdout, words


LINE = "RuntimeError: the words of root's own file, CUDA error: out of memory"


def linked(scene: Scene, roots: Path) -> Path:
    scene.alice.link(scene.alice.home / "train.log", roots)
    return scene.alice.home / "train.log"


def linked_folder(scene: Scene, roots: Path) -> Path:
    scene.alice.link(scene.alice.home / "logs", roots.parent)
    return scene.alice.home / "logs" / roots.name


def second_name(scene: Scene, roots: Path) -> Path:
    """As where fs.protected_hardlinks is 0: alice needs no right on the file."""
    os.link(roots, scene.alice.home / "train.log")
    return scene.alice.home / "train.log"


@needs_root
@pytest.mark.parametrize("trick", [linked, linked_folder, second_name], ids=lambda each: each.__name__)
def test_root_diagnoses_no_file_that_its_user_may_not_read(scene: Scene, trick) -> None:  # type: ignore[no-untyped-def]
    """A bundle for a bug report holds whole texts."""
    private = scene.folder / "private"
    private.mkdir(mode=0o700)
    roots = private / "secret.log"
    roots.write_text(LINE + "\n")
    roots.chmod(0o600)
    place = trick(scene, roots)
    assert LINE in place.read_text() and scene.alice.run(["/bin/cat", str(place)]).returncode != 0
    share = scene.folder / "share.md"
    done = as_root("diagnose", str(place), "--share", str(share))
    assert "own file" not in done.stdout + done.stderr + share.read_text() and "may not read what is there" in done.stdout
    for command in ("check", "compare"):
        told = as_root(command, *(["--from"] if command == "check" else []), str(place))
        assert "own file" not in told.stdout + told.stderr


@needs_root
def test_root_reads_its_own_file_in_a_user_s_folder(scene: Scene) -> None:
    """As ``sudo torchtune-sys record -o ~/x.json`` leaves it, and what links of root's lead to."""
    (scene.alice.home / "ours.log").write_text(LINE + "\n")
    (scene.alice.home / "ours.log").chmod(0o600)
    (scene.folder / "link.log").symlink_to(scene.alice.home / "ours.log")
    scene.alice.write(scene.alice.home / "hers.log", LINE + "\n", 0o600)
    scene.alice.link(scene.alice.home / "to-hers.log", "hers.log")
    for place in (scene.alice.home / "ours.log", scene.folder / "link.log", scene.alice.home / "to-hers.log"):
        assert "own file" in as_root("diagnose", str(place)).stdout, place


@needs_root
@pytest.mark.parametrize("there", ["a link", "a file", "a FIFO"])
def test_answers_of_a_fleet_are_kept_where_nobody_else_says(scene: Scene, there: str) -> None:
    from torchtune_sys.errors import CannotWrite
    from torchtune_sys.host.files import growing_file

    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    precious = scene.folder / "precious"
    precious.write_text("root's")
    place = shared / "answers.jsonl"
    if there == "a link":
        scene.alice.link(place, precious)
        with pytest.raises(CannotWrite, match="not followed"), growing_file(str(place)):
            pass
    elif there == "a FIFO":
        os.mkfifo(place)
        os.chown(place, scene.alice.uid, scene.alice.gid)
        with pytest.raises(CannotWrite, match="not a regular file"), growing_file(str(place)):
            pass
    else:
        scene.alice.write(place, "", 0o777)
        with growing_file(str(place)) as (_, put):
            put("x\n")
        assert (os.stat(place).st_uid, os.stat(place).st_mode & 0o777, place.read_text()) == (0, 0o600, "x\n")
    assert precious.read_text() == "root's"


HOSTILE = "RuntimeError: CUDA error: out of memory \x1b]0;owned\x07 \x9b31m \u202e ::set-output name=x::y ##[group] ##vso[x]"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", [("diagnose",), ("diagnose", "--format", "json"), ("diagnose", "--symptoms"), ("diagnose", "--share", "-"), ("compare", "--all"),
                                     *(("compare", "--format", form) for form in ("json", "markdown", "csv"))], ids=" ".join)  # fmt: skip
def test_no_escapes_in_what_diagnose_and_compare_print(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(f"{HOSTILE}\n::error::x\n```\n# heading\n")
    facts = {"schema": "torchtune-sys/facts/1", "facts": {"system": {"kernel": "1"}}, "volatile": {"host": f"h{HOSTILE}"}}
    for name in ("a", "b", "c"):
        facts["facts"]["system"]["kernel"] = HOSTILE + name  # type: ignore[index]
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    given = [str(tmp_path / "x.log")] if command[0] == "diagnose" else [str(tmp_path / f"{name}.json") for name in "abc"]
    share = command[-1] == "-"
    words = [*command[:-1], str(tmp_path / "s.md")] if share else list(command)
    done = subprocess.run([*PROGRAM, *words, *given], capture_output=True, timeout=100)
    said = (done.stdout + done.stderr + ((tmp_path / "s.md").read_bytes() if share else b"")).decode()
    assert done.returncode in (0, 1, 3), said
    assert [sign for sign in "\x1b\x07\x9b\u202e" if sign in said] == []
    if command[0] != "compare" or command[-1] not in ("json", "csv"):
        assert not re.search(r"(?m)^\s*(?:::|##\[|##vso)", said), said
