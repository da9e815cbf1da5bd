"""What the tables say of PyPI, asked of PyPI: here, and not beside the other tests of the planner, since it mostly waits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_install_builds import case_at, place_of, recorded, size

from conftest import TIER
from torchtune_sys.model.install import Wheel
from torchtune_sys.model.version import show, version
from torchtune_sys.remediation.install.builds import choose

COUNT = int(os.environ.get("TORCHTUNE_SYS_TEST_WHEELS", "8" if TIER == "all" else "2"))


@pytest.mark.long
def test_pip_agrees_that_the_wheel_exists() -> None:
    """Metadata only: pip's own resolver finds a file of this release, ABI and platform on PyPI."""
    if not os.environ.get("TORCHTUNE_SYS_TEST_NETWORK", "1").strip("0"):
        pytest.skip("TORCHTUNE_SYS_TEST_NETWORK=0")
    drawn = (case_at(number) for number in random.Random(20).sample(range(size()), 20_000))
    chosen = (choose(place_of(case), case[-1]) for case in drawn)
    on_pypi = (found for found in chosen if isinstance(found, Wheel) and not found.index)
    sample: dict[tuple[str, str, str], Wheel] = {}
    while len(sample) < COUNT:
        found = next(on_pypi)
        sample[found.torch, found.abi, found.machine] = found
    with ThreadPoolExecutor(4) as pool:  # pip reads parts of large files where PyPI has no metadata apart
        names = list(pool.map(_agree, sample.values()))
    print("\n".join(names))


def _agree(found: Wheel) -> str:
    tag = recorded(found.torch)[f"pypi_{found.machine}_tag"]
    interpreter = found.abi.rstrip("t").removeprefix("cp")
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    words += ["--only-binary=:all:", "--target", "/nonexistent", "--report", "-", "--disable-pip-version-check"]
    words += ["--implementation", "cp", "--python-version", f"3.{interpreter[1:]}", "--abi", found.abi, "--platform", tag]
    env = {**os.environ, "PIP_CONSTRAINT": os.devnull}  # of this machine's own configuration
    done = subprocess.run([*words, f"torch=={found.torch}"], capture_output=True, text=True, check=False, timeout=300, env=env)
    if "Name or service not known" in done.stderr or "Connection" in done.stderr or "Temporary failure" in done.stderr:
        pytest.skip("no network")
    assert done.returncode == 0, (found, done.stderr)
    (item,) = json.loads(done.stdout)["install"]
    name = item["download_info"]["url"].rpartition("/")[2]
    assert item["metadata"]["version"] == found.torch
    assert f"-{found.abi}-{tag}" in name and show(version(found.torch)) in name
    return str(name)
