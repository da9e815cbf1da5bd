"""The CPython packages and the C library of each distribution release."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import Version, version

_SAME = {"rocky": "rhel", "almalinux": "rhel", "ol": "rhel"}
"""Rebuilds of RHEL have its packages by the same names."""


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """One CPython of one distribution release."""

    version: str
    """``3.12``"""
    packages: tuple[str, ...]
    """The interpreter, and what makes environments with it."""
    headers: tuple[str, ...]
    program: str
    by_hand: str
    """What must be enabled before; ``""`` where nothing must."""
    source: str
    confidence: str

    @property
    def abi(self) -> str:
        """Return the ABI tag, ``cp312``."""
        return f"cp{self.version.replace('.', '')}"


def packaged(os_id: str, version_id: str) -> tuple[Python, ...]:
    """Return the Pythons that a release (``ID`` and ``VERSION_ID`` of os-release) packages, the one to take by default first; empty where none is known.

    >>> [(item.version, item.packages) for item in packaged("debian", "12")]
    [('3.11', ('python3', 'python3-venv'))]
    >>> [item.version for item in packaged("rocky", "9.4")], packaged("centos", "7")
    (['3.12', '3.11', '3.9'], ())
    """
    return tuple(
        Python(
            version=row["python"],
            packages=tuple(row["packages"].split()),
            headers=tuple(row["headers"].split()),
            program=row["program"],
            by_hand=row["by_hand"],
            source=row["source"],
            confidence=row["confidence"],
        )
        for row in _of_release("install_pythons", os_id, version_id)
    )


def glibc_of(os_id: str, version_id: str) -> Version:
    """Return the C library of a release, the oldest of its line; ``()`` where no table tells.

    >>> glibc_of("centos", "7"), glibc_of("rocky", "9.4"), glibc_of("arch", "1")
    ((2, 17), (2, 34), (2, 42))
    """
    return next((version(row["glibc"]) for row in _of_release("glibc", os_id, version_id)), ())


_MUSL = ("alpine", "postmarketos", "chimera", "adelie")
"""``ID`` of distributions whose C library is musl alone (wiki.musl-libc.org/projects-using-musl.html)."""


def has_musl(os_id: str) -> bool:
    return os_id in _MUSL


def _of_release(table: str, os_id: str, version_id: str) -> list[dict[str, str]]:
    name, releases = _SAME.get(os_id, os_id), ("", version_id, version_id.partition(".")[0])
    return [row for row in rows(table) if row["id"] == name and row["version"] in releases]
