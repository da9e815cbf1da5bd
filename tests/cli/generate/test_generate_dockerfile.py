"""generate dockerfile as a program: what it writes where, what it says beside, how it exits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

import warm
from conftest import HOSTS
from torchtune_sys.smoke import script

PROGRAM = [*warm.PROGRAM, "generate", "dockerfile"]
HEALTHY = ("--from", str(HOSTS / "healthy.json"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60)


def test_a_folder_gets_all_that_the_build_reads(tmp_path: Path) -> None:
    folder = tmp_path / "new/image"
    done = run(*HEALTHY, "-o", str(folder))
    assert done.returncode == 0 and done.stdout == "" and "docker run --rm" in done.stderr and "--gpus all" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"Dockerfile", "smoke.py"}
    assert (folder / "smoke.py").read_text() == script.source()
    copied = [line.split()[-2] for line in (folder / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    assert copied == ["smoke.py"]
    assert run(*HEALTHY, "--cpu", "-o", str(folder)).returncode == 0  # ours is written anew
    assert "--gpus" not in (folder / "Dockerfile").read_text()


@pytest.mark.parametrize("name", ["Dockerfile", "smoke.py"])
def test_somebody_elses_files_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("FROM mine\n")
    done = run(*HEALTHY, "-o", str(tmp_path))
    assert done.returncode != 0 and "not made by torchtune-sys" in done.stderr
    assert (tmp_path / name).read_text() == "FROM mine\n"


def test_on_this_machine_and_for_one_that_is_not_there() -> None:
    done = run("--cpu")
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr and done.stdout.startswith("# Made by torchtune-sys")
    described = run("--system", "ubuntu-24.04", "--gpu", "H200", "--gpus", "8", "--nnodes", "2")
    assert described.returncode == 0 and "--network=host" in described.stdout and "gpus=8," in described.stdout


def test_a_refusal_is_told_and_exits_with_1(tmp_path: Path) -> None:
    done = run("--from", str(HOSTS / "typical/rocky8-v100.json"), "--torch", "2.15", "-o", str(tmp_path))
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert "refused: torch 2.15" in done.stderr and "can be had: torch 2.14.1+cu126" in done.stderr
    assert all(line.startswith("#") for line in done.stdout.splitlines())


def test_as_json(tmp_path: Path) -> None:
    assert run(*HEALTHY, "--format", "json", "--workers", "16", "-o", str(tmp_path / "image.json")).returncode == 0
    found = msgspec.json.decode((tmp_path / "image.json").read_bytes())
    assert found["schema"] == "torchtune-sys/image/1" and found["image"]["wheel"]["abi"] == "cp312"
    assert {"shm=32768"} < {flag["promise"] for flag in found["image"]["flags"]}


@pytest.mark.parametrize(
    "words",
    [
        ("--torch", "newest"),
        ("--cpu", "--torch", "2.14+cu126"),
        ("--python", "/usr/bin/python3"),
        ("--base", "debian"),
        ("--base", "debian:12\nRUN evil"),
        ("--base", "Debian:12; evil"),
        ("--base-system", "ubuntu:24.04"),
        ("--base", "x:1", "--base-system", "ubuntu"),
        ("--offline", "/wheels"),
        ("--offline", "../wheels"),
        ("--offline", "a b"),
        ("--offline", "a,target=/etc"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert run(*HEALTHY, *words).returncode == 2


def test_a_minimal_image_gets_dnf_by_microdnf_first() -> None:
    words = ("--cpu", "--base-system", "rocky:9.4", "--base")
    assert "RUN microdnf install --assumeyes dnf && dnf install" in run(*words, "rockylinux/rockylinux:9-minimal").stdout
    assert "microdnf" not in run(*words, "rockylinux/rockylinux:9").stdout
