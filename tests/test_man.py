"""Manual pages: one for each command, which troff reads without a word."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from torchtune_sys.cli.main import cli
from torchtune_sys.gen import man

MADE = man.pages(cli, click.Context(cli, info_name="torchtune-sys"))
FOLDER = Path(__file__).resolve().parent.parent / "man"


def test_every_command_has_a_page_with_all_of_its_options() -> None:
    assert {path.partition("/")[2] for path in MADE} == {path.name for path in FOLDER.iterdir()}, "remove what is of no command"
    for path, text in MADE.items():
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"):
            assert f".SH {section}" in text, (path, section)
    assert "\\-\\-nproc\\-per\\-node" in MADE["man/torchtune-sys-check.1"]
    assert ".SH EXIT STATUS" in MADE["man/torchtune-sys-check.1"] and ".SH EXAMPLES" in MADE["man/torchtune-sys-check.1"]


def test_troff_reads_them_without_a_warning() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed (groff-base)")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *(str(FOLDER / path.partition("/")[2]) for path in MADE)],
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"torchtune-sys check" in done.stdout  # dashes stay what a shell takes
