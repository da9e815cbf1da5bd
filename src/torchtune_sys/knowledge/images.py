"""Images that a Dockerfile may begin with, and which distribution an image is by its name."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.knowledge import install
from torchtune_sys.knowledge.install_python import Python, glibc_of, packaged
from torchtune_sys.knowledge.install_torch import MACHINES
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.image import Base
from torchtune_sys.model.version import Version, version

OFFICIAL = "github.com/docker-library/official-images"
_NAMES = {
    "debian": "debian",
    "ubuntu": "ubuntu",
    "rockylinux": "rocky",
    "almalinux": "almalinux",
    "oraclelinux": "ol",
    "amazonlinux": "amzn",
    "fedora": "fedora",
    "ubi": "rhel",
}
"""Names of repositories, and the ID of os-release in their images."""
_SHOWN = {"debian": "Debian", "ubuntu": "Ubuntu", "rocky": "Rocky Linux", "almalinux": "AlmaLinux", "ol": "Oracle Linux"}
_SHOWN |= {"amzn": "Amazon Linux", "fedora": "Fedora", "rhel": "Red Hat UBI"}
_REFERENCE = re.compile(
    r"(?P<path>[a-z0-9][a-z0-9._/:-]*?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@sha256:[0-9a-f]{64})?"
)


def defaults(torch: Version) -> tuple[Base, ...]:
    """Return, of the official images of Python, those for a torch release, one for each Python, the one to take by default first.

    >>> [item.image.rpartition(":")[2] for item in defaults((2, 14, 1))][:2], defaults((2, 3, 0))[0].system
    (['3.13-slim-trixie', '3.12-slim-trixie'], 'Debian 12')
    """
    found: dict[str, Base] = {}
    for row in sorted(rows("images"), key=lambda row: not row["until"]):
        if not row["until"] or torch[:2] <= version(row["until"]):
            found.setdefault(row["python"], _official(row))
    order = [row["python"] for row in rows("images")]
    return tuple(sorted(found.values(), key=lambda item: order.index(item.python)))


def _official(row: dict[str, str]) -> Base:
    os_id, _, release = row["system"].partition(":")
    return Base(
        image=row["image"],
        system=f"{_SHOWN[os_id]} {release}",
        manager="apt",
        family=os_id,
        python=row["python"],
        program="python3",
        glibc=glibc_of(os_id, release),
        machines=tuple(row["machines"].split()),
        source=row["source"],
        confidence=row["confidence"],
    )


def parts(image: str) -> tuple[str, str] | None:
    """Return the repository and tag (``""`` without one) of a reference; None for what is none.

    >>> parts("nvcr.io:5000/nvidia/cuda:13.0.2-base-ubuntu24.04"), parts("debian"), parts("Debian; rm")
    (('nvcr.io:5000/nvidia/cuda', '13.0.2-base-ubuntu24.04'), ('debian', ''), None)
    """
    found = _REFERENCE.fullmatch(image)
    return (found["path"], found["tag"] or "") if found else None


def system_of(image: str) -> tuple[str, str] | None:
    """Return ID and VERSION_ID of the distribution that an image's name tells; None where it does not.

    >>> system_of("nvidia/cuda:13.0.2-base-ubuntu24.04"), system_of("rockylinux:9"), system_of("python:3.12-slim-bookworm")
    (('ubuntu', '24.04'), ('rocky', '9'), ('debian', '12'))
    >>> system_of("ubi9/ubi:9.6"), system_of("python:3.12-alpine"), system_of("registry.example/ours:latest")
    (('rhel', '9'), None, None)
    """
    path, tag = parts(image) or ("", "")
    name = path.rpartition("/")[2]
    words = re.split(r"[-_.]", tag)
    for row in rows("install_systems"):
        if row["codename"] and row["codename"] in words:
            return row["id"], row["version"]
    named = re.search(r"(ubuntu|debian|rockylinux|almalinux|oraclelinux|amazonlinux|fedora|ubi)-?(\d+(?:\.\d+)?)", tag)
    if named:
        return _NAMES[named[1]], named[2]
    if name in _NAMES and version(tag):
        numbers = re.match(r"\d+(?:\.\d+)?", tag)
        return (_NAMES[name], _release(_NAMES[name], numbers[0])) if numbers else None
    ubi = re.search(r"(?:^|/)ubi(\d+)(?:[-/]|$)", path)
    return ("rhel", ubi[1]) if ubi else None


def _release(os_id: str, number: str) -> str:
    return number if os_id == "ubuntu" else number.partition(".")[0]


def python_of(image: str) -> str:
    """Return the Python of an official image of it: ``3.12``; ``""`` for others.

    >>> python_of("docker.io/library/python:3.12.4-slim-bookworm"), python_of("python:slim"), python_of("debian:12")
    ('3.12', '', '')
    """
    path, tag = parts(image) or ("", "")
    found = re.match(r"(3\.\d+)(?:\.\d+)?(?:-|$)", tag) if path.rpartition("/")[2] == "python" else None
    return found[1] if found else ""


def named(image: str, os_id: str, release: str) -> tuple[Base, ...]:
    """Return a base of which the distribution is known, once for each Python that it can have; empty where none is on record."""
    system = install.system(os_id, release)
    known = packaged(os_id, release)
    if system is None or system.manager not in ("apt", "dnf") or not known:
        return ()
    common = Base(
        image=image,
        system=f"{_SHOWN.get(os_id, os_id)} {release}",
        manager=system.manager,
        family=system.family,
        python=python_of(image),
        program="python3",
        glibc=glibc_of(os_id, release),
        machines=MACHINES,
        source=OFFICIAL,
        confidence="medium",
    )
    if common.python:
        return (common,)
    return tuple(_with(common, item) for item in known if not item.by_hand)


def _with(base: Base, python: Python) -> Base:
    return msgspec.structs.replace(
        base,
        python=python.version,
        program=python.program,
        packages=python.packages,
        headers=python.headers,
        source=python.source,
        confidence=python.confidence,
    )


def packages(manager: str, purpose: str) -> tuple[tuple[str, ...], str]:
    """Return the names and source of what an image needs for a purpose.

    >>> packages("apt", "rdma")[0]
    ('libibverbs1', 'ibverbs-providers')
    """
    row = next(row for row in rows("image_packages") if (row["manager"], row["purpose"]) == (manager, purpose))
    return tuple(row["packages"].split()), row["source"]
