"""The kernel's own default values: a target "at least" must never end below them."""

from __future__ import annotations

from torchtune_sys.knowledge.tables import Row, rows
from torchtune_sys.model.version import version

_MOST_TASKS = 4_194_304
"""PID_MAX_LIMIT (include/linux/threads.h)."""


def default(key: str, release: str, cpus: int = 0, memory_bytes: int = 0) -> int | None:
    """Return a key's default (of several numbers the last) with this kernel on a host of this size; None where the table has no such key.

    The newest kernel's where the release is not known: more than needed does no harm, less would.

    >>> default("net.core.somaxconn", "6.8.0-45-generic"), default("net.core.somaxconn", "4.18.0-553.el8_10.x86_64")
    (4096, 128)
    >>> default("net.core.somaxconn", ""), default("vm.swappiness", "6.8")
    (4096, None)
    >>> default("kernel.pid_max", "6.8", cpus=64), default("kernel.threads-max", "6.8", memory_bytes=1 << 40)
    (65536, 8388608)
    """
    number = version(release)
    fitting = [row for row in rows("kernel_defaults") if row["key"] == key]
    known = [row for row in fitting if not number or version(row["since"]) <= number]
    return _sized(known[-1], cpus, memory_bytes) if known else None


def _sized(row: Row, cpus: int, memory_bytes: int) -> int:
    found = int(row["value"])
    if row["per_cpu"]:
        found = min(max(found, int(row["per_cpu"]) * cpus), _MOST_TASKS)
    if row["memory_bytes_each"]:
        found = max(found, memory_bytes // int(row["memory_bytes_each"]))
    return found
