"""A container image for training: its contents and the flags to start it with."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.install import InstallRefused, Wheel
from torchtune_sys.model.version import Version


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What stands after FROM."""

    image: str
    """With its tag: ``docker.io/library/python:3.13-slim-trixie``."""
    system: str
    """``Debian 13``"""
    manager: str
    """``apt`` or ``dnf``."""
    family: str
    """As the table of packages calls it: ``debian``, ``el9`` …"""
    python: str
    """``3.13``"""
    program: str
    """What environments are made with."""
    packages: tuple[str, ...] = ()
    """That bring the interpreter; empty where it is in the image."""
    headers: tuple[str, ...] = ()
    """That bring Python.h; empty where it is in the image."""
    glibc: Version
    machines: tuple[str, ...]
    source: str
    confidence: str

    @property
    def abi(self) -> str:
        """Return the ABI tag, ``cp313``."""
        return f"cp{self.python.replace('.', '')}"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Packages of the distribution, for one purpose."""

    names: tuple[str, ...]
    why: str
    source: str
    programs: tuple[str, ...] = ()
    """That are there afterwards; a build without a network looks for them."""
    libraries: tuple[str, ...] = ()
    """That the loader finds afterwards: ``ibverbs``. (jemalloc cannot be loaded late: its thread-local storage is static.)"""


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a container of the image must be started with."""

    key: str
    """``gpus``, ``shm``, ``nofile``, ``tasks``, ``memlock``, ``infiniband``, ``numa``, ``network``"""
    amount: int = 0
    """GPUs, MiB of /dev/shm, files, tasks: what the key counts."""
    docker: tuple[str, ...]
    podman: tuple[str, ...]
    why: str
    source: str
    promise: str = ""
    """As the smoke test's ``--promised`` takes it: ``shm=8192``; ``""`` for what it cannot see."""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    origin: str
    system: str
    base: Base | None = None
    """None where no base can be had for what was asked."""
    why_base: str = ""
    wheel: Wheel | None = None
    specifiers: tuple[str, ...] = ()
    """``torch==2.14.1`` first: from the wheel's index."""
    partners: tuple[str, ...] = ()
    """What torch works with, from PyPI."""
    content: tuple[Content, ...] = ()
    required_driver: int = 0
    """The oldest driver branch that runs the wheel; 0 for a CPU build."""
    offline: str = ""
    """A folder of the build context with wheels and packages; ``""`` builds from the network."""
    flags: tuple[Flag, ...] = ()
    refused: tuple[InstallRefused, ...] = ()
    notes: tuple[str, ...] = ()


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asks for; ``""`` leaves it to the host."""

    torch: str = ""
    """``2.14``, ``2.14.0+cu126``"""
    python: str = ""
    """``3.12``"""
    cpu: bool = False
    base: str = ""
    """``ubuntu:24.04``"""
    base_system: str = ""
    """``ubuntu:24.04`` for a base whose name does not tell."""
    offline: str = ""
    compiler: bool = True
    extras: tuple[str, ...] = ()
    """``jemalloc``, ``numactl``, ``rdma``, ``torchvision``"""
