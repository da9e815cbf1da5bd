"""Make the ordered steps of an installation: driver, reboot, torch, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.host.described import DESCRIBED
from torchtune_sys.model.install import Driver, Installation, InstallOptions, InstallRefused, InstallStep
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install import companions, environment
from torchtune_sys.remediation.install.choice import choose
from torchtune_sys.remediation.install.driver import steps as driver_steps
from torchtune_sys.remediation.install.fabric import exact_fabric
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.remediation.install.host import fails, host_name, owner, running_driver, system_name
from torchtune_sys.remediation.install.interpreter import with_way
from torchtune_sys.remediation.install.notes import notes
from torchtune_sys.remediation.install.site import Site, site_of


def plan(s: Snapshot, options: InstallOptions) -> Installation:
    """Plan an installation. Never raises: what cannot be had, or could not be seen, is a refusal or a note."""
    chosen, site = choose(s, options), site_of(s)
    python, wheel, driver = chosen.python, chosen.wheel, chosen.driver
    steps: list[InstallStep] = []
    refused = [with_way(item, s, options) for item in chosen.refused]
    if driver is not None and not driver.installed:
        if isinstance(site, InstallRefused):
            refused.append(site)
            wheel, driver = None, None  # it would not run
        else:
            secure_boot = not isinstance(s.driver, Missing) and value(s.driver.secure_boot, False)
            steps += driver_steps(site, driver, cards(s), running_driver(s), secure_boot=secure_boot)
    if isinstance(site, Site) and owner(s) is None:
        steps += _missing_fabric(s, site, driver)
        if python is not None:
            steps += companions.before(s, site, python, options, wheel)
        steps += companions.after(s, site, driver, options, wheel)
    if wheel is not None and python is not None:
        steps += environment.steps(wheel, python, options)
    return Installation(
        host=host_name(s),
        origin=s.origin,
        system=system_name(s),
        wheel=wheel,
        driver=driver,
        steps=tuple(steps),
        refused=tuple(refused),
        notes=(*chosen.notes, *notes(s, options, wheel, driver, site)),
    )


def _missing_fabric(s: Snapshot, site: Site, driver: Driver | None) -> Iterator[InstallStep]:
    """Yield the fabric manager beside a driver that stays."""
    facts = s.driver
    if driver is None or not driver.installed or isinstance(facts, Missing):
        return
    if s.origin.startswith(DESCRIBED):  # its driver is all that it has; the board tells whether there are switches
        step = exact_fabric(site, driver.installed, cards(s))
        if step is not None:
            yield step
        return
    if not value(facts.nvswitches, 0):
        return
    other = fails(s, "fabric-manager-version-mismatch")
    if not other and (facts.fabric_manager is not False or version(value(facts.fabric_manager_version, ""))):
        return  # it runs, or it did: what is wrong with it is for check to say
    step = exact_fabric(site, driver.installed, cards(s), runs=other)
    if step is not None:
        yield step
