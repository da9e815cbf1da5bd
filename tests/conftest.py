"""Shared by all tests: recorded hosts by name."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import CATALOGUE

hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")  # how long an example takes is the machine's affair: speed is held by benchmarks/

HOSTS = Path(__file__).parent / "hosts"


def load(name: str, **overlay: Any) -> Snapshot:
    """Snapshot of tests/hosts/<name>.json with sections laid over it (``files={"/proc/meminfo": None}``)."""
    recording = merged(load_recording(str(HOSTS / f"{name}.json")), overlay)
    intent = Intent(**{key: tuple(v) if isinstance(v, list) else v for key, v in recording.get("intent", {}).items()})
    return engine.snapshot(RecordedHost(recording, f"recording {name}.json"), intent, timeout_s=20)


def judge(seen: Snapshot) -> dict[str, Result]:
    """Results of the whole catalogue, by rule id."""
    return {result.rule.id: result for result in engine.judge(seen, CATALOGUE)}


@contextmanager
def alone_with(program: str) -> Iterator[None]:
    """One at a time on this machine: the control groups that ``program`` makes have the same names each time."""
    with open(program, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def healthy() -> Snapshot:
    return load("healthy")


LONGEST = (
    "smoke/test_faults.py",
    "vm/test_remedy.py",
    "smoke/test_faults_joint.py",
    "vm/test_power.py",
    "smoke/test_faults_hosting.py",
    "smoke/test_nodes.py",
    "render/test_dockerfile_built.py",
    "smoke/test_driver.py",
    "vm/test_launch_guest.py",
    "network/test_wheels_exist.py",
    "vm/test_provision.py",
    "cli/test_prove.py",
    "vm/test_scenarios.py",
)
"""Begun first, so that nobody waits for them in the end; those that compute between those that wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {str(Path(__file__).parent / name): at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(str(item.path), len(first)))
    if os.environ.get("TORCHTUNE_SYS_TEST_LONG", "0") in ("", "0"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="takes minutes: TORCHTUNE_SYS_TEST_LONG=1 runs it, as CI does"))
