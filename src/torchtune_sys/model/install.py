"""An installation plan for one host: ordered steps, and what is not available there."""

from __future__ import annotations

import msgspec


class InstallCommand(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """One program with its arguments, as the kernel gets them: nothing in it is read by a shell."""

    words: tuple[str, ...]
    root: bool = False


class InstallFile(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """A file of ours that is written whole."""

    path: str
    text: str
    root: bool = False


class Packages(msgspec.Struct, frozen=True, kw_only=True, tag="packages"):
    """Packages of the distribution, with what they depend on; always as root."""

    manager: str
    """``apt``, ``dnf``, ``zypper`` or ``pacman``."""
    names: tuple[str, ...]
    """As the manager takes them: ``gcc``, ``nvidia-fabricmanager-580=580.95.05*`` (apt), ``nvidia-open<581`` (zypper), a URL (dnf)."""


class Key(msgspec.Struct, frozen=True, kw_only=True, tag="key"):
    """The key of a repository of rpm packages: fetched, and trusted only if it is the one that is meant; always as root.

    apt needs none: it is told the fingerprint with the repository, and checks it itself.
    """

    path: str
    """Where it is kept."""
    url: str
    fingerprint: str
    """Hexadecimal digits at the end of the primary key's fingerprint; all 40, where a source tells them."""


RUNNING = "$(uname -r)"
"""What the shell makes the release of the kernel that runs."""
RUNNING_VERSION = "$(uname -r | sed 's/-[^-]*$//')"
"""The same without its flavour: SUSE's 6.4.0-150600.23.25-default is of the packages 6.4.0-150600.23.25."""


class KernelPackages(msgspec.Struct, frozen=True, kw_only=True, tag="kernel-packages"):
    """Packages that are called after the kernel that runs when they are installed."""

    manager: str
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    """The first whose pattern (of a shell's ``case``) the release matches; in the names :data:`RUNNING` and :data:`RUNNING_VERSION` stand for it."""


class PythonEnvironment(msgspec.Struct, frozen=True, kw_only=True, tag="environment"):
    """A virtual environment with wheels in it."""

    venv: str
    program: str
    """What it is made with: a Python, or for uv also a version."""
    tool: str
    """``pip`` or ``uv``."""
    specifiers: tuple[str, ...]
    """``torch==2.14.1`` first."""
    local: str
    """``torch.__version__`` once it is done."""
    index: str = ""
    """URL of the index; ``""`` for PyPI."""


Action = InstallCommand | InstallFile | Packages | KernelPackages | PythonEnvironment | Key


class InstallStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do. A later step needs the earlier ones."""

    key: str
    """``driver``, ``fabric-manager``, ``torch`` …"""
    title: str
    actions: tuple[Action, ...] = ()
    why: str
    source: str
    """Where the commands and names are from."""
    reboot: bool = False
    """The host must be started again before the next step."""
    by_hand: str = ""
    """What no source tells in commands: the page that does, ``""`` where the actions are all."""
    optional: bool = False
    """Only for those who use what the reason names."""


class InstallRefused(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, or would be needed, and cannot be had on this host."""

    key: str
    what: str
    """``torch 2.15``"""
    reason: str
    blocked_by: tuple[str, ...] = ()
    """``driver``, ``gpu``, ``python``, ``glibc``, ``machine``, ``build``, ``release``, ``system``, ``owner``: what stands in the way."""
    newest: str = ""
    """The newest that can be had as the host is; ``""`` if nothing can."""
    way: str = ""
    """What would have to change."""
    source: str = ""


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """One build of torch, for one interpreter."""

    torch: str
    build: str
    """``cu130``, ``cpu``"""
    index: str
    """URL of the index; ``""`` for PyPI."""
    abi: str
    """``cp312``, ``cp313t``"""
    machine: str
    torchvision: str
    """A specifier: ``==0.26.0``, ``>=0.29.1``; ``""`` where none is recorded."""
    driver: str
    """The oldest driver that runs it; ``""`` for a CPU build."""
    glibc: str
    source: str
    not_pypi: str = ""
    """Why it is not PyPI's build of the release; ``""`` where it is."""

    @property
    def local(self) -> str:
        """Return the version as torch.__version__ has it: ``2.14.1+cu130``."""
        return f"{self.torch}+{self.build}"


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that will run after the steps."""

    branch: int
    module: str
    """``open`` or ``proprietary``."""
    installed: str = ""
    """Version that runs already and stays; ``""`` for one that is to be installed."""
    why: str = ""


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    origin: str
    system: str
    """``Ubuntu 24.04.1 LTS (x86_64)``"""
    wheel: Wheel | None = None
    driver: Driver | None = None
    steps: tuple[InstallStep, ...] = ()
    refused: tuple[InstallRefused, ...] = ()
    notes: tuple[str, ...] = ()
    """What is there already, and what could not be seen."""


class InstallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asks for; ``""`` leaves it to the host."""

    torch: str = ""
    """``2.14``, ``2.14.0``, ``2.14.0+cu126``"""
    python: str = ""
    """``3.12``, ``3.14t``"""
    cpu: bool = False
    tool: str = "pip"
    """``pip``, ``uv``, ``conda`` or ``pixi``."""
    venv: str = ".venv"
    branch: int | None = None
    """Driver branch."""
    extras: tuple[str, ...] = ()
    """``container-toolkit``, ``cuda-toolkit``, ``jemalloc``, ``rdma``: wanted though the host does not show the need."""
