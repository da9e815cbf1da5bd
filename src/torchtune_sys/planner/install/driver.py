"""The steps that bring a driver onto a distribution, with what must have its version."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Action, Driver, File, Packages, Step
from torchtune_sys.model.version import version
from torchtune_sys.planner.install.branch import module_reason
from torchtune_sys.planner.install.host import Card
from torchtune_sys.planner.install.repository import headers, repository
from torchtune_sys.planner.install.site import Site, install, root

_FIRST_WITHOUT_BRANCH_NAMES = 590
"""From it on the packages of NVIDIA's repositories for Debian and Ubuntu have no branch in their names."""

_FIRST_WITH_THESE_NAMES = 570
"""Driver guide, "Kernel Modules": older branches were packaged under other names, and have no package that pins them."""

_AUR = "https://aur.archlinux.org/packages/nvidia-580xx-dkms"


def steps(site: Site, driver: Driver, cards: tuple[Card, ...], there: str = "") -> Iterator[Step]:
    """In order: the repository, headers, the branch, the driver with what must have its version, the hold, the daemons.

    ``there`` is the version of a driver that does not do.
    """
    if there and version(there)[0] > driver.branch:
        yield _taken_away(there, driver)
    if site.system.repository and not site.native:
        yield from repository(site)
    yield from headers(site)
    pinned = _pinned(site, driver, cards, there)
    yield pinned
    yield _held(site, driver)
    yield _daemons(needs_fabric(cards) and _brings_fabric(pinned))


def _taken_away(there: str, driver: Driver) -> Step:
    return Step(
        key="old-driver",
        title=f"driver {there} is taken away",
        why=f"no package manager puts branch {driver.branch} in place of a newer one by itself (apt-get --yes ends, dnf leaves it)",
        source=known.DRIVER_GUIDE,
        by_hand=f"remove driver {there} the way it was installed (its packages, or nvidia-uninstall): {known.DRIVER_GUIDE}",
    )


def _pinned(site: Site, driver: Driver, cards: tuple[Card, ...], there: str) -> Step:
    """The branch first, then driver and fabric manager in one go, so that both are the newest of one branch."""
    family, branch = site.system.family, str(driver.branch)
    purpose = f"{'native-' if site.native else ''}driver-{driver.module}"
    packaged = site.native or family == "arch" or driver.branch >= _FIRST_WITH_THESE_NAMES
    found = known.packages(family, purpose, branch=branch) if packaged else None
    kind = "open" if driver.module == "open" else "proprietary"
    title = f"the driver, branch {branch}, {kind} kernel module"
    why = f"{driver.why}; {module_reason(driver, cards)}" if driver.why else module_reason(driver, cards)
    if family == "arch":
        title = f"the driver as it is today, {kind} kernel module (a rolling release keeps no branch)"
    if found is None:
        page = _AUR if family == "arch" and branch == "580" else known.DRIVER_GUIDE
        return Step(
            key="driver",
            title=title,
            why=why,
            source=known.DRIVER_GUIDE,
            by_hand=f"{page} (no source tells this distribution's packages for it)",
        )
    fabric, by_hand = _fabric(site, driver, cards)
    return Step(
        key="driver",
        title=title + (", and the fabric manager in the same version" if fabric else ""),
        actions=(
            *(_unlocked(site) if there else ()),
            *_pin(site, driver),
            install(site, *_of_branch(site, driver, found.names), *fabric),
        ),
        why=why,
        source=f"{found.source} ({found.confidence})",
        by_hand=by_hand,
    )


def _of_branch(site: Site, driver: Driver, names: tuple[str, ...]) -> tuple[str, ...]:
    """zypper has no pin that comes before the package: it is asked for a version below the next branch."""
    if site.system.manager != "zypper":
        return names
    return tuple(f"{name}<{driver.branch + 1}" for name in names)


def _pin(site: Site, driver: Driver) -> tuple[Action, ...]:
    """What keeps the branch, before anything of it is installed."""
    branch, family = driver.branch, site.system.family
    if site.native:
        return ()
    if site.system.manager == "apt":
        found = known.packages(family, "pin", branch=str(branch))
        return (install(site, *found.names),) if found else ()
    if family in ("el8", "el9", "amzn"):
        stream = f"{branch}-{'open' if driver.module == 'open' else 'dkms'}"
        return (
            root("dnf", "module", "reset", "--assumeyes", "nvidia-driver"),
            root("dnf", "module", "enable", "--assumeyes", f"nvidia-driver:{stream}"),
        )
    if family in ("el10", "fedora"):
        return (*_lock_plugin(site), root("dnf", "versionlock", "add", f"*nvidia*{branch}*"))
    return ()


# dnf 4 adds no lock where one matches already (plugins/versionlock.py, _search_locklist), neither does dnf 5 for a version that is
# locked: what pins the branch would leave every version of it allowed. dnf 5 takes whole names alone (versionlock_delete.cpp).
_UNLOCK = root(
    "sh", "-c", "rpm --query --all --queryformat '%{NAME}\\n' '*nvidia*' | xargs --no-run-if-empty dnf versionlock delete"
)


def _lock_plugin(site: Site) -> tuple[Action, ...]:
    """dnf 5 has it built in."""
    plugin = None if site.system.family == "fedora" else known.packages(site.system.family, "version-lock")
    return (install(site, *plugin.names),) if plugin else ()


def _unlocked(site: Site) -> tuple[Action, ...]:
    """The hold of an earlier branch would keep this one away."""
    if site.system.manager == "zypper":
        return (root("zypper", "--non-interactive", "removelock", "*nvidia*"),)
    return (*_lock_plugin(site), _UNLOCK) if site.system.manager == "dnf" else ()


def needs_fabric(cards: tuple[Card, ...], switches: int = 0) -> bool:
    """Whether the host itself runs the fabric manager (racks of GB200 run it on their switch trays)."""
    boards = [card for card in cards if card.nvswitch]
    return bool(switches) or len(boards) > 1


def needs_subnet_manager(cards: tuple[Card, ...]) -> bool:
    """From the fourth generation of NVSwitch on (B200, B300)."""
    return any(card.nvswitch and card.architecture is not None and card.architecture.name == "Blackwell" for card in cards)


def _fabric(site: Site, driver: Driver, cards: tuple[Card, ...]) -> tuple[tuple[str, ...], str]:
    """The fabric manager's packages, and the page where no source tells their names."""
    if not needs_fabric(cards):
        return (), ""
    family, branch = site.system.family, str(driver.branch)
    purpose = "fabric-manager"
    if site.native:
        purpose = "native-fabric-manager"
    elif site.system.manager == "apt" and driver.branch < _FIRST_WITHOUT_BRANCH_NAMES:
        purpose = "fabric-manager-580"
    found = known.packages(family, purpose, branch=branch)
    subnet = known.packages(family, "nvlsm") if needs_subnet_manager(cards) else None
    names = (*(found.names if found else ()), *(subnet.names if subnet else ()))
    lacks = found is None or (needs_subnet_manager(cards) and (subnet is None or site.native))
    if site.native and subnet is not None:
        names = found.names if found else ()
    return names, f"{known.FABRIC_MANAGER_GUIDE} (the fabric manager or nvlsm is not in these packages)" if lacks else ""


def exact_fabric(site: Site, installed: str, cards: tuple[Card, ...], *, runs: bool = False) -> Step | None:
    """The fabric manager in exactly the version of a driver that is there already; ``runs``: in place of another version."""
    if not needs_fabric(cards):
        return None
    branch = version(installed)[0]
    title, why = f"the fabric manager in version {installed}", "it starts with a driver of exactly its own version alone"
    wanted: tuple[str, ...] = ()
    source = known.FABRIC_MANAGER_GUIDE
    if site.system.manager == "apt":
        purpose = "fabric-manager-580" if branch < _FIRST_WITHOUT_BRANCH_NAMES or site.native else "fabric-manager"
        found = known.packages(site.system.family, purpose, branch=str(branch))
        # apt takes a star at the end of a version, so that the packager's revision need not be known
        wanted, source = (tuple(f"{name}={installed}*" for name in found.names), found.source) if found else ((), source)
    elif site.system.manager == "dnf":
        found = known.packages(site.system.family, "fabric-manager-exact", version=installed)
        wanted, source = (found.names, found.source) if found else ((), source)
    if not wanted:
        page = f"{known.FABRIC_MANAGER_GUIDE} (no source tells this distribution's package)"
        return Step(key="fabric-manager", title=title, why=why, source=source, by_hand=page)
    subnet = known.packages(site.system.family, "nvlsm") if needs_subnet_manager(cards) else None
    return Step(
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


HOLD_FILE = "/etc/apt/apt.conf.d/99-torchtune-sys-driver"
_HOLD = """// Written by torchtune-sys generate install: the driver is upgraded by a person, when no job runs.
Unattended-Upgrade::Package-Blacklist {
  "nvidia-";
  "libnvidia-";
  "cuda-drivers";
  "linux-modules-nvidia-";
};
"""


def _held(site: Site, driver: Driver) -> Step:
    """Against upgrades that nobody watches: a library that is newer than the module that runs ends every new job."""
    title = "hold the driver against upgrades by themselves"
    why = "new libraries beside the module that still runs end in Driver/library version mismatch"
    if site.system.manager == "apt":
        return Step(
            key="hold",
            title=title,
            actions=(File(path=HOLD_FILE, text=_HOLD, root=True),),
            why=f"{why}; apt-get upgrade by hand still upgrades it within the branch",
            source="README of unattended-upgrades",
        )
    if site.system.manager == "dnf":
        return Step(
            key="hold",
            title=title,
            actions=(*_lock_plugin(site), _UNLOCK, root("dnf", "versionlock", "add", "*nvidia*")),
            why=f"{why}; it locks what is installed now; the command before it takes earlier locks away, and later this one",
            source="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/version-locking.html",
        )
    if site.system.manager == "zypper":
        return Step(
            key="hold",
            title=title,
            actions=(root("zypper", "--non-interactive", "addlock", "*nvidia*"),),
            why=f"{why} (zypper removelock '*nvidia*' takes it back)",
            source="zypper(8), Package Lock Management",
        )
    return Step(
        key="hold",
        title=title,
        why=f"{why}; branch {driver.branch} cannot be kept on a rolling release otherwise",
        source="pacman.conf(5)",
        by_hand="IgnorePkg = nvidia-open nvidia-utils in /etc/pacman.conf, or linux-lts with the driver's packages for it",
    )


def _brings_fabric(step: Step) -> bool:
    packages = [action for action in step.actions if isinstance(action, Packages)]
    return any("fabricmanager" in name for action in packages for name in action.names)


def _daemons(fabric: bool) -> Step:
    """Enabled before the reboot, which starts them. A fabric manager that is a person's is not there yet."""
    units = ["nvidia-persistenced", *(["nvidia-fabricmanager"] if fabric else [])]
    return Step(
        key="daemons",
        title=f"enable {' and '.join(units)}, and start the host again",
        actions=(root("systemctl", "enable", *units),),
        why="persistenced keeps the GPUs initialised between jobs"
        + ("; without the fabric manager CUDA ends in error 802" if fabric else ""),
        source=known.DRIVER_GUIDE,
        reboot=True,
    )
