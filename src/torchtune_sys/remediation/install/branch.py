"""Which driver branch and which kernel module serve all of a host's GPUs."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, InstallRefused
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import Version, version
from torchtune_sys.remediation.install.builds import show_driver
from torchtune_sys.remediation.install.gpus import Card, generations, unknown_architectures
from torchtune_sys.remediation.install.host import owner, running_driver

_PROPRIETARY_REMOVED = 620
"""Driver guide 620, "Proprietary Kernel Modules Removed"."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """The driver branches that serve all of a host's GPUs."""

    first: int
    last: int | None
    modules: tuple[str, ...]
    """The kernel modules that serve all of them: ``open``, ``proprietary``."""


def range_for(cards: tuple[Card, ...]) -> Range | InstallRefused:
    strange = unknown_architectures(cards)
    if strange:
        return _refused(f"{strange[0].name} is in no table", f"look up its driver at {known.LEGACY_DRIVERS}")
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


def _refused(reason: str, way: str, newest: str = "") -> InstallRefused:
    return InstallRefused(
        key="driver",
        what="an NVIDIA driver",
        reason=reason,
        blocked_by=("gpu",),
        newest=newest,
        way=way,
        source=known.DRIVER_GUIDE,
    )


def serves(found: Range, installed: Version, flavour: str) -> bool:
    """Return whether a driver that is installed already serves every GPU of the host."""
    if not installed or installed[0] < found.first or (found.last is not None and installed[0] > found.last):
        return False
    return flavour in ("", *found.modules)


def current_driver(s: Snapshot, here: tuple[Card, ...]) -> Driver | None:
    """Return the driver that is installed, if it serves every GPU."""
    installed = running_driver(s)
    if not version(installed):
        return None
    flavour = "" if isinstance(s.driver, Missing) else value(s.driver.module_flavour, "")
    kept = Driver(branch=version(installed)[0], module=flavour, installed=installed)
    found = range_for(here) if here else None
    if found is None or isinstance(found, InstallRefused) or owner(s) is not None:
        return kept  # nothing to hold against it
    return kept if serves(found, version(installed), flavour) else None


def choose(cards: tuple[Card, ...], needed: Version = (), wanted: int | None = None) -> Driver | InstallRefused:
    """Return the branch to install: the one that was asked for, else the first of the table that serves all GPUs and is new enough."""
    found = range_for(cards)
    if isinstance(found, InstallRefused):
        return found
    offered = known.driver_branches()
    fitting = [
        item
        for item in offered
        if found.first <= item.branch <= (found.last or item.branch)
        and item.first >= needed
        and (item.branch < _PROPRIETARY_REMOVED or "open" in found.modules)
    ]
    chosen = next((item for item in fitting if wanted in (None, item.branch)), None)
    if chosen is None and wanted is not None:
        newest = f"driver branch {fitting[0].branch}" if fitting else ""
        names = " ".join(f"{item.branch}{f' (ended in {item.end})' if item.has_ended else ''}" for item in fitting) or "none"
        served = f"R{found.first} to {f'R{found.last}' if found.last else 'the newest'}"
        way = f"leave --driver-branch out, which takes {fitting[0].branch}" if fitting else f"see {known.LEGACY_DRIVERS}"
        floor = f", and torch asks for {show_driver(needed)}" if needed else ""
        return _refused(f"branch {wanted} is none of those that fit: {names} (these GPUs: {served}{floor})", way, newest)
    if chosen is None:
        last = f"R{found.last}" if found.last else f"R{found.first}"
        reason = f"the last branch for these GPUs is {last}, which gets no updates any more, and no repository of a current distribution on record has it"
        return _refused(reason, f"NVIDIA's installer of {last}, by hand: {known.LEGACY_DRIVERS}")
    # Turing to Hopper run with either; NVIDIA's default has been the open one since R560.
    why = f"{chosen.kind}, {'which ended in' if chosen.has_ended else 'until'} {chosen.end}"
    return Driver(branch=chosen.branch, module=found.modules[0], why=why)


def ended(driver: Driver, cards: tuple[Card, ...]) -> str:
    """Return that its branch gets no updates any more, and which one does; ``""`` where it gets them, or no table tells."""
    offered = known.driver_branches()
    here = next((item for item in offered if item.branch == driver.branch), None)
    if here is None and not driver.branch < min(item.branch for item in offered):
        return ""
    if here is not None and not here.has_ended:
        return ""
    other = choose(cards) if cards else None
    if here is None:
        kept = " ".join(str(item.branch) for item in offered if not item.has_ended)
        serves = "" if isinstance(other, Driver) or other is None else "; none of them serves these GPUs"
        return (
            f"driver branch {driver.branch} is none of those that get updates ({kept}): no security update comes any more{serves}"
        )
    instead = f"; branch {other.branch}: {other.why}" if isinstance(other, Driver) and other.branch != driver.branch else ""
    return f"driver branch {here.branch} ended in {here.end}: no security update comes any more{instead}"


def first_version(branch: int) -> Version:
    """Return the oldest version that installing this branch may give."""
    return next(item.first for item in known.driver_branches() if item.branch == branch)


def module_reason(driver: Driver, cards: tuple[Card, ...]) -> str:
    archs = generations(cards)
    closed = next((arch for arch in archs if arch.open_module == "no"), None)
    opened = next((arch for arch in archs if arch.open_module == "only"), None)
    if closed is not None:
        return f"{closed.name} is served by the proprietary module alone, up to R{closed.last_branch}"
    if opened is not None:
        return f"{opened.name} is served by the open module alone"
    return f"the {driver.module} module serves these GPUs"
