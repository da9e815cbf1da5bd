"""The exit status of ``plan``: 1 where there are changes, 3 where what decides them could not be seen, else 0."""

from __future__ import annotations

import pytest
from driven import HOSTS, run


@pytest.mark.parametrize(
    ("host", "select", "status"),
    [
        ("swappiness-high.fail", "swappiness-high", 1),
        ("swappiness-high.unknown", "swappiness-high", 3),
        ("healthy", "sysctl", 0),
        ("hugepages-hoard-memory.unknown", "hugepages-hoard-memory", 0),  # only a person could do something about it
    ],
)
def test_status(host: str, select: str, status: int) -> None:
    done = run("plan", "--from", str(HOSTS / f"{host}.json"), "--select", select)
    assert done.returncode == status, done.stdout + done.stderr
    assert (f"not judged: {select}: " in done.stderr) == (status == 3)


def test_another_host_is_not_changed_from_here() -> None:
    done = run("plan", "--from", str(HOSTS / "swappiness-high.fail.json"), "--select", "swappiness-high")
    assert "makes the safe changes on that host, generate script" in " ".join(done.stdout.split())
