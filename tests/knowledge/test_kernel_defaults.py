"""The kernel's own defaults: sourced, in order, and there for the keys that findings alone name.

For those in a rule's fix: tests/rules/test_catalogue.py.
"""

from __future__ import annotations

import pytest

from torchtune_sys.knowledge.kernel_defaults import default
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import version


def test_every_row_has_a_source_and_later_kernels_come_later() -> None:
    assert [row for row in rows("kernel_defaults") if not row["source"]] == []
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for row in rows("kernel_defaults"):
        by_key.setdefault(row["key"], []).append(version(row["since"]))
    assert all(releases == sorted(set(releases)) for releases in by_key.values())


@pytest.mark.parametrize("key", ["kernel.shmmax", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"])
def test_key_of_a_findings_fix_is_there(key: str) -> None:
    assert default(key, "6.8.0-45-generic")


@pytest.mark.parametrize(
    ("key", "release", "value"),
    [
        ("net.core.somaxconn", "5.3.18", 128),
        ("net.core.somaxconn", "5.4.0", 4096),
        ("net.ipv4.tcp_rmem", "6.15.2", 6291456),
        ("net.ipv4.tcp_rmem", "6.16.0", 33554432),
        ("kernel.shmmax", "3.10.0", None),
        ("kernel.pid_max", "6.8.0", 32768),
    ],
)
def test_the_kernel_decides(key: str, release: str, value: int | None) -> None:
    assert default(key, release) == value


def test_no_more_tasks_than_there_are_numbers() -> None:
    assert default("kernel.pid_max", "6.8.0", cpus=8192) == 4194304
