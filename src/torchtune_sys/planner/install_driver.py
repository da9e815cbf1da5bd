"""Which driver serves these GPUs, and the steps that bring it onto a distribution."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Action, Driver, File, Refused, Step
from torchtune_sys.model.version import Version, version
from torchtune_sys.planner.install_host import Card, generations, unknown_architectures
from torchtune_sys.planner.install_repository import headers, repository
from torchtune_sys.planner.install_site import Site, install, root
from torchtune_sys.planner.install_torch import show_driver

_PROPRIETARY_REMOVED = 620
"""Driver guide 620, "Proprietary Kernel Modules Removed"."""
_FIRST_WITHOUT_BRANCH_NAMES = 590
"""From it on the packages of NVIDIA's repositories for Debian and Ubuntu have no branch in their names."""


_AUR = "https://aur.archlinux.org/packages/nvidia-580xx-dkms"


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """The driver branches that serve all of a host's GPUs."""

    first: int
    last: int | None
    modules: tuple[str, ...]
    """The kernel modules that serve all of them: ``open``, ``proprietary``."""


def range_for(cards: tuple[Card, ...]) -> Range | Refused:
    strange = unknown_architectures(cards)
    if strange:
        return _refused(f"no table knows {strange[0].name}", f"look up its driver at {known.LEGACY_DRIVERS}")
    archs = generations(cards)
    announced = [arch.name for arch in archs if arch.first_branch is None]
    if announced:
        return _refused(f"no driver branch is on record for {announced[0]}", f"see {known.DRIVER_GUIDE}")
    newest = max(archs, key=lambda arch: arch.first_branch or 0)
    oldest = min(archs, key=lambda arch: arch.last_branch or 9999)
    first = newest.first_branch or 0
    if oldest.last_branch is not None and oldest.last_branch < first:
        reason = f"{newest.name} needs R{first} or newer, and no driver after R{oldest.last_branch} serves {oldest.name}"
        return _refused(reason, f"take the {oldest.name} or the {newest.name} GPU out of this host")
    closed = [arch.name for arch in archs if arch.open_module == "no"]
    opened = [arch.name for arch in archs if arch.open_module == "only"]
    if closed and opened:
        reason = f"{closed[0]} needs the proprietary kernel module, {opened[0]} the open one, and a host has one of them"
        return _refused(reason, f"take the {closed[0]} or the {opened[0]} GPU out of this host")
    modules = ("proprietary",) if closed else ("open",) if opened else ("open", "proprietary")
    return Range(first=first, last=oldest.last_branch, modules=modules)


def _refused(reason: str, way: str, newest: str = "") -> Refused:
    return Refused(
        key="driver",
        what="an NVIDIA driver",
        reason=reason,
        blocked_by=("gpu",),
        newest=newest,
        way=way,
        source=known.DRIVER_GUIDE,
    )


def serves(found: Range, installed: Version, flavour: str) -> bool:
    """Whether a driver that is installed already serves every GPU of the host."""
    if not installed or installed[0] < found.first or (found.last is not None and installed[0] > found.last):
        return False
    return flavour in ("", *found.modules)


def choose(cards: tuple[Card, ...], needed: Version = (), wish: int | None = None) -> Driver | Refused:
    """The branch to install: the wished one, else the first of the table that serves all GPUs and is new enough."""
    found = range_for(cards)
    if isinstance(found, Refused):
        return found
    offered = known.driver_branches()
    fitting = [
        item
        for item in offered
        if found.first <= item.branch <= (found.last or item.branch)
        and item.first >= needed
        and (item.branch < _PROPRIETARY_REMOVED or "open" in found.modules)
    ]
    chosen = next((item for item in fitting if wish in (None, item.branch)), None)
    newest = f"driver branch {max(item.branch for item in fitting)}" if fitting else ""
    if chosen is None and wish is not None:
        names = " ".join(str(item.branch) for item in fitting) or "none"
        served = f"R{found.first} to {f'R{found.last}' if found.last else 'the newest'}"
        floor = f", and torch asks for {show_driver(needed)}" if needed else ""
        return _refused(f"branch {wish} is none of those that fit: {names} (these GPUs: {served}{floor})", "leave it out", newest)
    if chosen is None:
        last = f"R{found.last}" if found.last else f"R{found.first}"
        reason = f"the last branch for these GPUs is {last}, and no repository of a current distribution on record has it"
        return _refused(reason, f"NVIDIA's installer of {last}, by hand: {known.LEGACY_DRIVERS}")
    # Turing to Hopper run with either; NVIDIA's default has been the open one since R560.
    why = f"{chosen.kind}, until {chosen.end}"
    return Driver(branch=chosen.branch, module=found.modules[0], why=why)


def first_version(branch: int) -> Version:
    """The oldest version that installing this branch may give."""
    return next(item.first for item in known.driver_branches() if item.branch == branch)


def steps(site: Site, driver: Driver, cards: tuple[Card, ...]) -> Iterator[Step]:
    """In order: the repository, headers, the branch, the driver with what must have its version, the hold, the daemons."""
    if site.system.repository and not site.native:
        yield from repository(site)
    yield from headers(site)
    yield _pinned(site, driver, cards)
    yield _held(site, driver)
    yield _daemons(driver, cards)


def _pinned(site: Site, driver: Driver, cards: tuple[Card, ...]) -> Step:
    """The branch first, then driver and fabric manager in one go, so that both are the newest of one branch."""
    family, branch = site.system.family, str(driver.branch)
    purpose = f"{'native-' if site.native else ''}driver-{driver.module}"
    found = known.packages(family, purpose, branch=branch)
    kind = "open" if driver.module == "open" else "proprietary"
    title = f"the driver, branch {branch}, {kind} kernel module"
    why = f"{driver.why}; {_module_reason(driver, cards)}" if driver.why else _module_reason(driver, cards)
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
        actions=(*_pin(site, driver), install(site, *_of_branch(site, driver, found.names), *fabric)),
        why=why,
        source=f"{found.source} ({found.confidence})",
        by_hand=by_hand,
    )


def _of_branch(site: Site, driver: Driver, names: tuple[str, ...]) -> tuple[str, ...]:
    """zypper has no pin that comes before the package: it is asked for a version below the next branch."""
    if site.system.manager != "zypper":
        return names
    return tuple(f"{name}<{driver.branch + 1}" for name in names)


def _module_reason(driver: Driver, cards: tuple[Card, ...]) -> str:
    archs = generations(cards)
    closed = next((arch for arch in archs if arch.open_module == "no"), None)
    opened = next((arch for arch in archs if arch.open_module == "only"), None)
    if closed is not None:
        return f"{closed.name} is served by the proprietary module alone, up to R{closed.last_branch}"
    if opened is not None:
        return f"{opened.name} is served by the open module alone"
    return f"the {driver.module} module serves these GPUs"


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
        plugin = None if family == "fedora" else known.packages(family, "version-lock")
        lock = root("dnf", "versionlock", "add", f"*nvidia*{branch}*")
        return (*((install(site, *plugin.names),) if plugin else ()), lock)
    return ()


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
        plugin = None if site.system.family == "fedora" else known.packages(site.system.family, "version-lock")
        lock = root("dnf", "versionlock", "add", "*nvidia*")
        return Step(
            key="hold",
            title=title,
            actions=(*((install(site, *plugin.names),) if plugin else ()), lock),
            why=f"{why}; it locks what is installed now (dnf versionlock delete '*nvidia*' takes it back)",
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


def _daemons(driver: Driver, cards: tuple[Card, ...]) -> Step:
    """Enabled before the reboot, which starts them."""
    units = ["nvidia-persistenced"]
    if needs_fabric(cards):
        units.append("nvidia-fabricmanager")
    return Step(
        key="daemons",
        title=f"enable {' and '.join(units)}, and start the host again",
        actions=(root("systemctl", "enable", *units),),
        why="persistenced keeps the GPUs initialised between jobs"
        + ("; without the fabric manager CUDA ends in error 802" if len(units) > 1 else ""),
        source=known.DRIVER_GUIDE,
        reboot=True,
    )
