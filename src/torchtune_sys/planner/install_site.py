"""Where packages are installed, and the distribution's own way to do it."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.install import Command, Packages
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where the driver is installed."""

    system: known.System
    os_id: str
    os_version: str
    codename: str
    machine: str
    kernel: str
    """``uname -r``; ``""`` where it could not be seen."""
    native: bool = False
    """The driver comes from the distribution's own packages already: it stays with them."""

    @property
    def base(self) -> str:
        return f"{known.REPOSITORIES}/{self.system.repository}/{known.architecture(self.machine)}"


def is_native(s: Snapshot) -> bool:
    """Whether the driver's packages are Ubuntu's own."""
    packages: tuple[Package, ...] = () if isinstance(s.software, Missing) else value(s.software.packages, ())
    return any(item.name.startswith("nvidia-driver-") and item.origin == "ubuntu.com" for item in packages)


def root(*words: str) -> Command:
    return Command(words=words, root=True)


def install(site: Site, *names: str) -> Packages:
    """Packages by the distribution's own program."""
    return Packages(manager=site.system.manager, names=names)
