"""Where packages are installed, and the distribution's own way to do it."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import eol
from torchtune_sys.knowledge import install as known
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.install import InstallCommand, InstallRefused, Packages
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.remediation.install.host import machine_of, os_of


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
    """Return whether the driver's packages are Ubuntu's own."""
    packages: tuple[Package, ...] = () if isinstance(s.software, Missing) else value(s.software.packages, ())
    return any(item.name.startswith("nvidia-driver-") and item.origin == "ubuntu.com" for item in packages)


def site_of(s: Snapshot) -> Site | InstallRefused:
    """Return where this host gets its packages; a Refused where NVIDIA has none for it that are known here."""
    os = os_of(s)
    page = known.DRIVER_GUIDE
    if os is None:
        return _no_system("which distribution this is could not be seen", f"follow {page}")
    name = os.pretty_name or os.id
    found, end = known.system(os.id, os.version), over(s)
    if end is not None and (found is None or not end.extended):
        reason = f"{ended(name, end)}, and today's packages of the driver are not made for it"
        return _no_system(reason, f"install a release that gets security updates{_others(os.id)}, and come back")
    if found is None:
        others = _others(os.id)
        way = f"follow {page}, or take {f'another release{others}' if others else 'a release that it lists'}"
        return _no_system(f"NVIDIA's packages for {name} are not on record here", way)
    kernel = "" if isinstance(s.system, Missing) else value(s.system.kernel, "")
    return Site(
        system=found,
        os_id=os.id,
        os_version=os.version,
        codename=os.codename,
        machine=machine_of(s),
        kernel=kernel,
        native=found.family == "ubuntu" and is_native(s),
    )


def ended(name: str, end: eol.EndOfLife) -> str:
    sold = f"; {end.extended_by} sells updates until {end.extended}" if end.extended else ""
    return f"{name} ended on {end.date}{sold}"


def over(s: Snapshot) -> eol.EndOfLife | None:
    """Return the end of the distribution's release, where that has passed."""
    os = os_of(s)
    today = "" if isinstance(s.system, Missing) else value(s.system.today, "")
    return None if os is None else eol.over(os.id, os.version, os.pretty_name, today)


_SUCCESSORS = {"centos": "rocky"}
"""A distribution without any release that gets updates, and one that is built of the same sources."""


def _others(os_id: str) -> str:
    """Return the releases of this distribution that packages of the driver are made for."""
    wanted = _SUCCESSORS.get(os_id, os_id)
    found = [(name, release) for name, release in known.releases_of(wanted) if release and not _is_over(wanted, release)]
    return f" ({found[0][0]} {' or '.join(release for _, release in found)})" if found else ""


def _is_over(os_id: str, release: str) -> bool:
    """Of a row that stands for point releases the newest counts."""
    points = [row for row in eol.releases(os_id) if row == release or row.startswith(f"{release}.")]
    return bool(points) and all(eol.over(os_id, point) is not None for point in points)


def _no_system(reason: str, way: str) -> InstallRefused:
    return InstallRefused(
        key="packages", what="the system's packages", reason=reason, blocked_by=("system",), way=way, source=known.DRIVER_GUIDE
    )


def root(*words: str) -> InstallCommand:
    return InstallCommand(words=words, root=True)


def install(site: Site, *names: str) -> Packages:
    """Return the packages that the distribution's own program installs."""
    return Packages(manager=site.system.manager, names=names)
