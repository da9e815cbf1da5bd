"""The fabric manager, which a board with NVSwitches needs in exactly the driver's version; and the subnet manager beside it."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, InstallStep
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.gpus import Card
from torchtune_sys.remediation.install.site import Site, install, root

_FIRST_WITHOUT_BRANCH_NAMES = 580
"""From it on the packages of NVIDIA's repositories for Debian and Ubuntu have no branch in their names (NVIDIA/gpu-driver-container, PR 451)."""


def needs_fabric(cards: tuple[Card, ...]) -> bool:
    """Return whether the host itself runs the fabric manager (racks of GB200 run it on their switch trays)."""
    return len([card for card in cards if card.nvswitch]) > 1


def needs_subnet_manager(cards: tuple[Card, ...]) -> bool:
    """Return whether the NVSwitches need a subnet manager: from the fourth generation of NVSwitch on (B200, B300)."""
    return any(card.nvswitch and card.architecture is not None and card.architecture.name == "Blackwell" for card in cards)


class FabricPackages(msgspec.Struct, frozen=True, kw_only=True):
    """What goes in with a driver, so that both have one version."""

    manager: tuple[str, ...] = ()
    subnet_manager: tuple[str, ...] = ()
    by_hand: str = ""
    """The page, where no source tells the name of a package that is needed."""


def fabric_packages(site: Site, driver: Driver, cards: tuple[Card, ...]) -> FabricPackages:
    if not needs_fabric(cards):
        return FabricPackages()
    family, branch = site.system.family, str(driver.branch)
    purpose = "fabric-manager"
    if site.native:
        purpose = "native-fabric-manager"
    elif site.system.manager == "apt" and driver.branch < _FIRST_WITHOUT_BRANCH_NAMES:
        purpose = "fabric-manager-by-branch"
    manager = known.packages(family, purpose, branch=branch)
    has_two = needs_subnet_manager(cards)
    subnet = known.packages(family, "nvlsm") if has_two and not site.native else None
    lacks = manager is None or (has_two and subnet is None)
    return FabricPackages(
        manager=manager.names if manager else (),
        subnet_manager=subnet.names if subnet else (),
        by_hand=f"{known.FABRIC_MANAGER_GUIDE} (the fabric manager or nvlsm is not in these packages)" if lacks else "",
    )


def exact_fabric(site: Site, installed: str, cards: tuple[Card, ...], *, runs: bool = False) -> InstallStep | None:
    """Return the fabric manager in exactly the version of a driver that is there already; ``runs``: in place of another version."""
    if not needs_fabric(cards):
        return None
    branch = version(installed)[0]
    title, why = f"the fabric manager in version {installed}", "it starts with a driver of exactly its own version alone"
    wanted: tuple[str, ...] = ()
    source = known.FABRIC_MANAGER_GUIDE
    if site.system.manager == "apt":
        purpose = "fabric-manager-by-branch" if branch < _FIRST_WITHOUT_BRANCH_NAMES or site.native else "fabric-manager"
        found = known.packages(site.system.family, purpose, branch=str(branch))
        # apt takes a star at the end of a version, so that the packager's revision need not be known
        wanted, source = (tuple(f"{name}={installed}*" for name in found.names), found.source) if found else ((), source)
    elif site.system.manager in ("dnf", "zypper"):
        found = known.packages(site.system.family, "fabric-manager-exact", version=installed)
        wanted, source = (found.names, found.source) if found else ((), source)
    if not wanted:
        page = f"{known.FABRIC_MANAGER_GUIDE} (no source names this distribution's package)"
        return InstallStep(key="fabric-manager", title=title, why=why, source=source, by_hand=page)
    subnet = known.packages(site.system.family, "nvlsm") if needs_subnet_manager(cards) else None
    return InstallStep(
        key="fabric-manager",
        title=title,
        actions=(
            install(site, *wanted, *(subnet.names if subnet else ())),
            root("systemctl", "enable", "--now", "nvidia-fabricmanager"),
            *((root("systemctl", "restart", "nvidia-fabricmanager"),) if runs else ()),
        ),
        why=why,
        source=source,
    )
