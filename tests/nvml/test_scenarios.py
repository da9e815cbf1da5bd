"""The whole ``check`` with a stub of NVIDIA's library on the loader path: what is said of each scenario, of which GPU, and how soon.

A scenario (``scenarios/*.txt``, see ``stub.c``) names all that is to be said: ``expect RULE: SUBJECT, …`` for each finding on GPUs,
``unknown RULE[: SUBJECT CALL]`` for what could not be checked, ``lacks FUNCTION …`` for what the driver does not have.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from library import COMPILER, build

import warm

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
TIMEOUT_S = 8.0
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the NVML stub"),
    pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has an NVIDIA driver"),
]


class Scenario:
    def __init__(self, path: Path) -> None:
        self.expected: dict[str, set[str]] = {}
        self.unknown: dict[str, tuple[str, str]] = {}
        self.lacks: list[str] = []
        for line in path.read_text().splitlines():
            word, _, rest = line.partition(" ")
            rule_id, _, subjects = rest.partition(": ")
            if word == "expect":
                self.expected[rule_id] = set(subjects.split(", "))
            elif word == "unknown":
                subject, _, call = subjects.rpartition(" ")
                self.unknown[rule_id] = (subject, call)
            elif word == "lacks":
                self.lacks += rest.split()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stub"))


def check(folder: Path, path: Path) -> tuple[dict[str, dict[str, object]], float]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVIDIA_STUB_FILE": str(path)}
    argv = [*warm.PROGRAM, "check", "--format", "json", "--timeout", str(TIMEOUT_S)]
    started = time.monotonic()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    spent = time.monotonic() - started
    found = json.loads(done.stdout)["results"]
    return {result["rule"]["id"] if isinstance(result["rule"], dict) else result["rule"]: result for result in found}, spent


def bare(subject: str) -> str:
    return re.sub(r" \([0-9a-f:.]+\)", "", subject)


@pytest.mark.essential
@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_is_said(path: Path, library: Path, tmp_path: Path) -> None:
    scenario = Scenario(path)
    results, spent = check(build(tmp_path, scenario.lacks) if scenario.lacks else library, path)
    said: dict[str, set[str]] = {}
    for rule_id, result in results.items():
        if not rule_id.startswith(("gpu-", "nvlink-", "fabric-", "mig-", "exclusive-", "compute-mode-", "nvml-")):
            continue
        for item in result["evidence"]:  # type: ignore[attr-defined]
            if item["verdict"] == "fail" and "GPU" in item["subject"]:
                said.setdefault(rule_id, set()).add(bare(item["subject"]))
    print(f"{path.stem:30} {spent:5.2f} s  {'; '.join(f'{name}: {sorted(who)}' for name, who in said.items()) or 'nothing'}")
    assert said == scenario.expected
    for rule_id, (subject, call) in scenario.unknown.items():
        text = json.dumps(results[rule_id])
        assert '"unknown"' in text and call in text
        items = results[rule_id]["evidence"]
        assert not subject or [bare(item["subject"]) for item in items if item["verdict"] == "unknown"] == [subject]  # type: ignore[attr-defined]
    assert not [rule_id for rule_id, result in results.items() if result["verdict"] == "crashed"]
    assert spent < TIMEOUT_S + 2.0
