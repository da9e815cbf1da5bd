"""What is wished for in words that cannot be meant is refused before anything is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from driven import run

HOST = ("--system", "debian-12", "--cpu")
STAGES = ("generate", "script", "--stages", "install", *HOST)


@pytest.mark.parametrize("folder", ["", " ", "/", "//usr/.", "/usr/local/bin", "/opt/", "/opt/x/../../usr", "/opt/a\nb"])
def test_a_system_folder_does_not_become_an_environment(folder: str) -> None:
    found = run(*STAGES, "--venv", folder)
    assert (found.returncode, found.stdout) == (2, "") and "--venv" in found.stderr


@pytest.mark.parametrize("folder", ["/opt/torch", "/data", "/home/ada/a b"])
def test_other_folders_do(folder: str) -> None:
    found = run(*STAGES, "--venv", folder)
    assert found.returncode == 0 and f"{folder}/bin/python" in found.stdout, found.stderr


@pytest.mark.parametrize("python", ["2.7", "3.12.4", "312", "/usr/bin/python3"])
def test_a_python_that_no_torch_is_for_is_not_left_out_in_silence(python: str) -> None:
    found = run("generate", "install", *HOST, "--python", python)
    assert (found.returncode, found.stdout) == (2, "") and "--python" in found.stderr


def test_the_script_and_what_fetches_it_are_two_files(tmp_path: Path) -> None:
    same = str(tmp_path / "file")
    found = run("generate", "cloud-init", *HOST, "--url", "https://example.org/x", "--script", same, "-o", same)
    assert found.returncode == 2 and "--script and --output" in found.stderr and not Path(same).exists()
    assert run("generate", "cloud-init", *HOST, "--url", "").returncode == 2
