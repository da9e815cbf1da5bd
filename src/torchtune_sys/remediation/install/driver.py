"""The steps that install a driver on a distribution, with what must have the same version."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, InstallStep
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.branch import module_reason
from torchtune_sys.remediation.install.fabric import FabricPackages, fabric_packages
from torchtune_sys.remediation.install.gpus import Card
from torchtune_sys.remediation.install.pin import hold, of_branch, pin, unlocked
from torchtune_sys.remediation.install.repository import headers, repository
from torchtune_sys.remediation.install.site import Site, install, root

_FIRST_WITH_THESE_NAMES = 570
"""Driver guide, "Kernel Modules": older branches were packaged under other names, and have no package that pins them."""
_LAST_OF_UBUNTU = 615
"""packages.ubuntu.com, nvidia-driver-615-server-open, read on 2026-11-29: no package of a later branch is there."""
_OF_UBUNTU = "Ubuntu's udev rule starts persistenced at each boot, with persistence mode off (sudo nvidia-smi -pm 1)"
_AUR = "https://aur.archlinux.org/packages/nvidia-580xx-dkms"


def steps(
    site: Site, driver: Driver, cards: tuple[Card, ...], there: str = "", *, secure_boot: bool = False
) -> Iterator[InstallStep]:
    """Yield the steps in order: the repository, headers, the branch, the driver with what must have its version, the hold, the key that
    the firmware must know, the daemons.

    ``there`` is the version of a driver that does not do.
    """
    if there and version(there)[0] > driver.branch:
        yield _taken_away(there, driver)
    if site.system.repository and not site.native:
        yield from repository(site)
    yield from headers(site)
    packages = _packages(site, driver)
    others = fabric_packages(site, driver, cards) if packages is not None else FabricPackages()
    yield _driver(site, driver, cards, packages, others, bool(there))
    yield hold(site, driver)
    if secure_boot:
        yield from _enrolment(site)
    yield _daemons(site, bool(others.manager))


def _taken_away(there: str, driver: Driver) -> InstallStep:
    return InstallStep(
        key="old-driver",
        title=f"remove driver {there}",
        why=f"no package manager puts branch {driver.branch} in place of a newer one by itself (apt-get --yes ends, dnf leaves it)",
        source=known.DRIVER_GUIDE,
        by_hand=f"remove driver {there} the way it was installed (its packages, or nvidia-uninstall): {known.DRIVER_GUIDE}",
    )


def _packages(site: Site, driver: Driver) -> known.PackageNames | None:
    family = site.system.family
    if site.native and driver.branch > _LAST_OF_UBUNTU:
        return None
    if not site.native and family != "arch" and driver.branch < _FIRST_WITH_THESE_NAMES:
        return None
    return known.packages(family, f"{'native-' if site.native else ''}driver-{driver.module}", branch=str(driver.branch))


def _driver(
    site: Site,
    driver: Driver,
    cards: tuple[Card, ...],
    packages: known.PackageNames | None,
    others: FabricPackages,
    replaces: bool,
) -> InstallStep:
    """Return the branch first, then driver and fabric manager in one go, so that both are the newest of one branch."""
    is_arch = site.system.family == "arch"
    title = f"the driver, branch {driver.branch}, {driver.module} kernel module"
    if is_arch:
        title = f"the driver as it is today, {driver.module} kernel module (a rolling release keeps no branch)"
    reason = module_reason(driver, cards)
    why = f"{driver.why}; {reason}" if driver.why else reason
    if packages is None:
        page = _AUR if is_arch and driver.branch == 580 else known.DRIVER_GUIDE
        by_hand = f"{page} (no source names this distribution's packages)"
        return InstallStep(key="driver", title=title, why=why, source=known.DRIVER_GUIDE, by_hand=by_hand)
    fabric = (*others.manager, *others.subnet_manager)
    return InstallStep(
        key="driver",
        title=title + (", and the fabric manager in the same version" if fabric else ""),
        actions=(
            *(unlocked(site) if replaces else ()),
            *pin(site, driver),
            install(site, *of_branch(site, driver, packages.names), *fabric),
        ),
        why=why,
        source=f"{packages.source} ({packages.confidence})",
        by_hand=others.by_hand,
    )


_DKMS_KEYS = {"ubuntu": "/var/lib/shim-signed/mok/MOK.der"}
"""Where dkms keeps the key that it signs modules with, if not where its own releases do. Sources: dkms(8), mok_certificate; Ubuntu's shim-signed,
update-secureboot-policy, which enrols the key by debconf's questions alone, so not where packages are installed without any."""
_BUILT_BY_DKMS = ("apt", "dnf")


def key_of_modules(site: Site) -> str:
    """Return the file of the key that dkms signs modules with; ``""`` where the driver's packages bring modules that are built already."""
    return _DKMS_KEYS.get(site.system.family, "/var/lib/dkms/mok.pub") if site.system.manager in _BUILT_BY_DKMS else ""


def _enrolment(site: Site) -> Iterator[InstallStep]:
    key = key_of_modules(site)
    if not key:
        return
    yield InstallStep(
        key="secure-boot",
        title="enrol the key that the kernel module is signed with",
        why="Secure Boot is on: a module that was built here loads only once the firmware knows its key, and an installation without questions enrols none",
        source="dkms(8), mokutil(1)",
        by_hand=f"sudo mokutil --import {key}, which asks for a password; at the next start MokManager asks for it on the console (Enroll MOK)",
    )


def _daemons(site: Site, fabric: bool) -> InstallStep:
    """Return enabled before the reboot, which starts them. A fabric manager that is a person's is not there yet."""
    units = ["nvidia-persistenced", *(["nvidia-fabricmanager"] if fabric else [])]
    return InstallStep(
        key="daemons",
        title=f"enable {' and '.join(units)}, and reboot",
        actions=(root("systemctl", "enable", *units),),
        why=(_OF_UBUNTU if site.native else "persistenced keeps the GPUs initialised between jobs")
        + ("; without the fabric manager CUDA ends in error 802" if fabric else ""),
        source=known.DRIVER_GUIDE,
        reboot=True,
    )
