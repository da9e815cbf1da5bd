"""generate install as a program: what it prints, what it says beside, how it exits; and the script when it is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from install_hosts import NEWEST
from install_plans import H100, RTX4090, bare

import warm
from conftest import HOSTS
from torchtune_sys.model.install import Installation, InstallCommand, InstallFile, InstallOptions, InstallStep
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.render.generate.install import shell

PROGRAM = [*warm.PROGRAM, "generate", "install"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60)


def test_on_this_machine() -> None:
    done = run("--cpu")
    assert done.returncode in (0, 1) and done.stdout.startswith("#!/usr/bin/env bash\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_from_a_recording() -> None:
    done = run("--from", str(HOSTS / "healthy.json"), "--torch", "2.14", "--python", "3.12", "--tool", "uv")
    assert done.returncode == 0 and "uv pip install" in done.stdout and "'torch==2.14.1'" in done.stdout
    told = run("--from", str(HOSTS / "healthy.json"), "--format", "json")
    found = msgspec.json.decode(told.stdout)
    assert found["schema"] == "torchtune-sys/install/1"
    assert found["install"]["driver"]["installed"] == "580.95.05"


def test_a_refusal_is_told_and_exits_with_1() -> None:
    done = run("--from", str(HOSTS / "typical/rocky8-v100.json"), "--torch", "2.15")
    assert done.returncode == 1
    assert "refused: torch 2.15: torch 2.15.0+cu132 holds no code for sm_70" in done.stderr
    assert "can be had: torch 2.14.1+cu126" in done.stderr and "# refused: torch 2.15" in done.stdout


@pytest.mark.parametrize(
    "words",
    [("--torch", "newest"), ("--torch", "2.14; rm -rf /"), ("--tool", "easy_install"), ("--cpu", "--torch", "2.14+cu126")],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert run("--from", str(HOSTS / "healthy.json"), *words).returncode == 2


def test_an_interpreter_that_does_not_start_is_not_replaced() -> None:
    for words in (("--python", "/no/such/python"), ("--python", "/etc/passwd")):
        done = run("--cpu", *words)
        assert done.returncode == 2 and done.stdout == "" and words[1] in done.stderr


def test_a_report_that_tells_little(tmp_path: Path) -> None:
    report = tmp_path / "smi.txt"
    report.write_text("PyTorch version: 2.0.1+cu117\nIs debug build: False\nCUDA used to build PyTorch: 11.7\n")
    done = run("--from", str(report))
    assert done.returncode == 1 and "Traceback" not in done.stderr and "refused" in done.stderr


def stage(tmp_path: Path, found: Installation) -> tuple[Path, dict[str, str], Path]:
    """The script with every program replaced by one that writes down how it was called."""
    log, programs = tmp_path / "log", tmp_path / "bin"
    programs.mkdir()
    for name in ("sudo", "env", "apt-get", "dpkg", "curl", "dnf", "systemctl", "install", "python3.12", "uv"):
        place = programs / name
        place.write_text(
            f'#!/bin/bash\n[[ "${{0##*/}}" != sudo ]] || shift\nprintf "%s " "${{0##*/}}" "$@" >>{log}\necho >>{log}\n'
        )
        place.chmod(0o755)
    script = tmp_path / "install.sh"
    script.write_text(shell(found))
    return script, {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}, log


def test_the_script_stops_for_the_reboot_and_goes_on_after_it(tmp_path: Path) -> None:
    found = plan(bare([H100] * 8), InstallOptions(tool="uv", python="3.12"))
    script, env, log = stage(tmp_path, found)
    first = subprocess.run(["/bin/bash", script], env=env, capture_output=True, text=True, check=False)
    number = next(index for index, step in enumerate(found.steps, 1) if step.reboot)
    assert first.returncode == 0 and first.stdout.endswith(f"Then: bash {script} {number + 1}\n"), first.stderr
    before = log.read_text()
    assert "nvidia-driver-pinning-580" in before and "uv " not in before
    assert before.index("pinning") < before.index("nvidia-open nvidia-fabricmanager") < before.index("systemctl enable")
    log.unlink()
    second = subprocess.run(["/bin/bash", script, str(number + 1)], env=env, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    after = log.read_text()
    assert "pinning" not in after and after.rstrip().endswith(
        f"uv pip install --python .venv/bin/python torch=={NEWEST} torchvision>=0.29.1"
    )
    end = "torchtune-sys {} --python .venv/bin/python "  # without it another Python would be judged, which still has no torch
    assert f"done: {end.format('check')}looks" in second.stdout and f"{end.format('smoke')}proves" in second.stdout


@pytest.mark.parametrize("words", [("--dry-run",), ("08",), ("0",), ("a[$(touch made)]",), ("2", "3")])
def test_the_script_refuses_what_is_no_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Bash computes what stands in a comparison of numbers: --dry-run ended with "dry: unbound variable", and a command in an index ran."""
    script, env, log = stage(tmp_path, plan(bare([H100] * 8), InstallOptions(tool="uv")))
    done = subprocess.run(["/bin/bash", script, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: bash THIS [STEP]\n")
    assert not log.exists() and not Path(tmp_path, "made").exists()


def test_a_step_of_a_person_stops_the_script(tmp_path: Path) -> None:
    found = plan(bare([("", "1db1", None)], "arch", ""), InstallOptions(tool="uv"))
    script, env, log = stage(tmp_path, found)
    done = subprocess.run(["/bin/bash", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "by hand: https://" in done.stderr
    assert not log.exists()


def test_a_failing_command_ends_the_script(tmp_path: Path) -> None:
    script, env, log = stage(tmp_path, plan(bare([RTX4090]), InstallOptions(tool="uv")))
    failing = tmp_path / "bin/curl"
    failing.write_text("#!/bin/bash\nexit 7\n")
    (tmp_path / "bin/env").write_text('#!/bin/bash\nshift\nexec "$@"\n')
    sudo = tmp_path / "bin/sudo"
    sudo.write_text('#!/bin/bash\nshift\nexec "$@"\n')
    done = subprocess.run(["/bin/bash", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7 and "pinning" not in log.read_text()


def test_hostile_values_stay_data(tmp_path: Path) -> None:
    """Whatever a host calls itself, the script runs nothing of it, and a word stays one word."""
    bad = "x\n$(touch /tmp/torchtune-sys-owned) `id` 'q' \"q\" \\ \x1b[2J \x85 \u2028 END"
    step = InstallStep(
        key="k",
        title=bad,
        why=bad,
        source=bad,
        actions=(
            InstallCommand(words=("printf", "%s|", bad, bad)),
            InstallFile(path=str(tmp_path / "file"), text=f"END\n{bad}\n"),
        ),
    )
    made = shell(Installation(host=bad, origin=bad, system=bad, steps=(step,), notes=(bad,)))
    done = subprocess.run(["/bin/bash", "-c", made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{bad}|{bad}|" in done.stdout
    assert (tmp_path / "file").read_text() == f"END\n{bad}\n"
    assert not Path("/tmp/torchtune-sys-owned").exists()


def test_a_host_that_is_only_described() -> None:
    done = run("--system", "rocky-9", "--gpu", "NVIDIA H100 80GB HBM3", "--gpus", "8")
    assert done.returncode == 0 and "from described: Rocky Linux 9 x86_64, 8 x NVIDIA H100 80GB HBM3, no driver" in done.stdout
    assert "dnf install --assumeyes python3.12\n" in done.stdout and "nvidia-fabricmanager" in done.stdout
    refused = run("--system", "rocky-9", "--from", str(HOSTS / "healthy.json"))
    assert refused.returncode == 2 and "--from" in refused.stderr


@pytest.mark.parametrize(
    ("error", "status", "asked"),
    [
        ("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 612 (apt-get)", 0, 3),
        ("E: The repository 'https://example.org noble Release' does not have a Release file.", 100, 1),
    ],
)
def test_the_lists_of_apt_are_waited_for(tmp_path: Path, error: str, status: int, asked: int) -> None:
    """After the first start of a cloud image apt-daily holds them; every other error ends the script at once."""
    step = InstallStep(
        key="k", title="lists", why="", source="", actions=(InstallCommand(words=("apt-get", "update"), root=True),)
    )
    found = msgspec.structs.replace(plan(bare([RTX4090]), InstallOptions(tool="uv")), steps=(step,), refused=())
    script, env, log = stage(tmp_path, found)
    (tmp_path / "bin/apt-get").write_text(
        f'#!/bin/bash\necho "$@" >>{log}\n[[ $(wc -l <{log}) -ge 3 ]] || {{ echo "{error}" >&2; exit 100; }}\n'
    )
    for name, text in {"sudo": 'shift; exec "$@"', "env": 'shift; exec "$@"', "sleep": ":"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(["/bin/bash", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, len(log.read_text().splitlines())) == (status, asked), done.stderr
    assert status == 0 or error in done.stderr
