"""Whether an environment has pip, and whether its system manages it: what is seen in files against what real environments do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.probes.python import probe as python


def probe(interpreter: Path | str) -> PythonFacts:
    return python.probe(LiveHost(), Workload(python=str(interpreter)))


@pytest.mark.parametrize("flag", ["--without-pip", "--clear"])
def test_an_environment_with_and_without_pip(flag: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", flag, tmp_path / "env"], check=True, timeout=120)
    seen = probe(tmp_path / "env/bin/python3")
    runs = (
        subprocess.run([tmp_path / "env/bin/python3", "-m", "pip", "--version"], capture_output=True, timeout=60).returncode == 0
    )
    assert (seen.has_pip, runs) == (flag == "--clear", flag == "--clear")
    assert seen.externally_managed is False  # an environment of its own is nobody's but the user's


@pytest.mark.parametrize("interpreter", ["/usr/bin/python3", str(Path(sys.base_prefix, "bin/python3"))])
def test_a_python_that_its_system_manages(interpreter: str) -> None:
    code = "import os, sys, sysconfig; print(sys.prefix, os.path.join(sysconfig.get_path('stdlib'), 'EXTERNALLY-MANAGED'))"
    prefix, marker = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert Path(marker).is_relative_to(prefix)
    seen = probe(interpreter)
    assert seen.externally_managed is Path(marker).is_file()
