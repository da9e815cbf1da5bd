"""From a host and wishes to what to install, in order: driver, reboot, torch, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, Install, Refused, Step, Wheel, Wishes
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import Version, version
from torchtune_sys.planner.install import branch, builds, companions, environment, rocm
from torchtune_sys.planner.install.branch import current_driver
from torchtune_sys.planner.install.builds import Place
from torchtune_sys.planner.install.driver import exact_fabric
from torchtune_sys.planner.install.driver import steps as driver_steps
from torchtune_sys.planner.install.host import (
    Card,
    capabilities_of,
    cards,
    fails,
    glibc,
    host_name,
    is_amd,
    is_nvidia,
    machine_of,
    on_chip,
    owner,
    running_driver,
    system_name,
)
from torchtune_sys.planner.install.interpreter import Interpreter, interpreter, with_way
from torchtune_sys.planner.install.notes import notes
from torchtune_sys.planner.install.site import Site, site_of


def plan(s: Snapshot, wishes: Wishes) -> Install:
    """Never raises: what cannot be had, or could not be seen, is a refusal or a note."""
    found = Install(host=host_name(s), origin=s.origin, system=system_name(s))
    python = interpreter(s, wishes)
    there = _stays(s, wishes)
    if there and isinstance(python, Interpreter):
        return _with_torch(s, wishes, found, python, there)
    place = python if isinstance(python, Refused) else _place(s, python)
    if isinstance(place, Refused) or isinstance(python, Refused):
        refused = place if isinstance(place, Refused) else python
        assert isinstance(refused, Refused)
        driver, more = (None, ()) if wishes.cpu or not is_nvidia(s) else _driver_alone(s, wishes)
        return _assemble(s, wishes, found, None, driver, None, (refused, *more))
    if not wishes.cpu and not is_nvidia(s) and is_amd(s):
        return _for_amd(s, wishes, found, python, place)
    if wishes.cpu or not is_nvidia(s):
        return _for_cpu(s, wishes, found, python, place)
    return _for_gpu(s, wishes, found, python, place)


def _place(s: Snapshot, python: Interpreter) -> Place | Refused:
    libc = glibc(s)
    if libc is None:
        return Refused(
            key="torch",
            what="torch",
            reason="this system has no glibc (musl), and the wheels are made for glibc",
            blocked_by=("glibc",),
            way="train in a container whose distribution has glibc",
            source="PEP 656",
        )
    return Place(machine=machine_of(s), abi=python.abi, glibc=libc)


def _with_torch(s: Snapshot, wishes: Wishes, found: Install, python: Interpreter, there: str) -> Install:
    """torch stays; the driver is looked after."""
    note = f"torch {there} is there, and no rule asks for another build; --torch names one"
    found = msgspec.structs.replace(found, notes=(note,))
    if wishes.cpu or not is_nvidia(s) or on_chip(cards(s)) is not None:
        return _assemble(s, wishes, found, None, None, python, ())
    driver, refused = _driver_alone(s, wishes)
    return _assemble(s, wishes, found, None, driver, python, refused)


def _for_cpu(s: Snapshot, wishes: Wishes, found: Install, python: Interpreter, place: Place) -> Install:
    chosen = builds.choose(place, wishes.torch, cpu=True)
    refused = (chosen,) if isinstance(chosen, Refused) else ()
    wheel = chosen if isinstance(chosen, Wheel) else None
    return _assemble(s, wishes, found, wheel, None, python, refused)


def _for_amd(s: Snapshot, wishes: Wishes, found: Install, python: Interpreter, place: Place) -> Install:
    chosen = rocm.choose(s, place, wishes)
    if isinstance(chosen, Refused):
        return _assemble(s, wishes, found, None, None, python, (chosen,))
    note = f"the wheel brings ROCm's libraries; whether amdgpu here is new enough for them: {rocm.DRIVERS}"
    found = msgspec.structs.replace(found, notes=(*found.notes, note))
    return _assemble(s, wishes, found, chosen, None, python, ())


def _for_gpu(s: Snapshot, wishes: Wishes, found: Install, python: Interpreter, place: Place) -> Install:
    here = cards(s)
    special = on_chip(here)
    if special is not None:
        return _assemble(s, wishes, found, None, None, python, (special,))
    capabilities = capabilities_of(here)
    place = msgspec.structs.replace(place, capabilities=capabilities)
    current = current_driver(s, here)
    if current is not None and (wishes.branch in (None, current.branch)):
        place = msgspec.structs.replace(place, driver=version(current.installed))
        chosen = builds.choose(place, wishes.torch)
        if isinstance(chosen, Wheel):
            return _assemble(s, wishes, found, chosen, current, python, ())
        if chosen.blocked_by != ("driver",):
            return _assemble(s, wishes, found, None, current, python, (chosen,))
        current_refusal: tuple[Refused, ...] = (chosen,)
    else:
        current_refusal = ()
    needed = builds.driver_needed(place, wishes.torch)
    driver = _new_driver(s, here, needed, wishes)
    if isinstance(driver, Refused):
        return _assemble(s, wishes, found, None, current, python, (*current_refusal, driver))
    after = msgspec.structs.replace(place, driver=branch.first_version(driver.branch))
    chosen = builds.choose(after, wishes.torch)
    refused = (chosen,) if isinstance(chosen, Refused) else ()
    return _assemble(s, wishes, found, chosen if isinstance(chosen, Wheel) else None, driver, python, refused)


def _new_driver(s: Snapshot, here: tuple[Card, ...], needed: Version, wishes: Wishes) -> Driver | Refused:
    owned = owner(s)
    if owned is not None:
        reason, way = owned
        blocked = ("owner",)
        return Refused(
            key="driver", what="an NVIDIA driver", reason=reason, blocked_by=blocked, way=way, source=known.DRIVER_GUIDE
        )
    return branch.choose(here, needed, wishes.branch)


def _driver_alone(s: Snapshot, wishes: Wishes) -> tuple[Driver | None, tuple[Refused, ...]]:
    """What the driver needs even where no wheel can be had."""
    here = cards(s)
    current = current_driver(s, here)
    if (current is not None and wishes.branch in (None, current.branch)) or on_chip(here) is not None:
        return current, ()
    made = _new_driver(s, here, (), wishes)
    return (None, (made,)) if isinstance(made, Refused) else (made, ())


def _assemble(
    s: Snapshot,
    wishes: Wishes,
    found: Install,
    wheel: Wheel | None,
    driver: Driver | None,
    python: Interpreter | None,
    refused: tuple[Refused, ...],
) -> Install:
    site = site_of(s)
    steps: list[Step] = []
    refusals = [with_way(item, s, wishes) for item in refused]
    if driver is not None and not driver.installed:
        if isinstance(site, Refused):
            refusals.append(site)
            wheel = None  # it would not run
        else:
            steps += driver_steps(site, driver, cards(s), running_driver(s))
    if isinstance(site, Site) and owner(s) is None:
        steps += _missing_fabric(s, site, driver)
        if python is not None:
            steps += companions.before(s, site, python, wishes, wheel)
        steps += companions.after(s, site, driver, wishes, wheel)
    if wheel is not None and python is not None:
        steps += environment.steps(wheel, python, wishes)
    return msgspec.structs.replace(
        found,
        wheel=wheel,
        driver=driver,
        steps=tuple(steps),
        refused=tuple(refusals),
        notes=(*found.notes, *notes(s, wishes, wheel, driver, site)),
    )


def _missing_fabric(s: Snapshot, site: Site, driver: Driver | None) -> Iterator[Step]:
    """The fabric manager beside a driver that stays."""
    facts = s.driver
    if driver is None or not driver.installed or isinstance(facts, Missing) or not value(facts.nvswitches, 0):
        return
    other = fails(s, "fabric-manager-version-mismatch")
    if not other and (facts.fabric_manager is not False or version(value(facts.fabric_manager_version, ""))):
        return  # it runs, or it did: what is wrong with it is for check to say
    step = exact_fabric(site, driver.installed, cards(s), runs=other)
    if step is not None:
        yield step


def _installed(s: Snapshot, wishes: Wishes) -> str:
    """torch as the interpreter that is meant has it."""
    if wishes.python or isinstance(s.python, Missing) or isinstance(s.python.torch, Missing):
        return ""
    return s.python.torch.version


_WRONG_BUILD = (
    "driver-too-old",
    "gpu-arch-not-in-wheel",
    "cpu-only-build",
    "rocm-build-on-nvidia-host",
    "cuda-build-on-amd-host",
    "glibc-too-old",
)


def _stays(s: Snapshot, wishes: Wishes) -> str:
    """The torch that is installed, where nothing else is asked for and no rule says that another build is needed."""
    there = _installed(s, wishes)
    if not there or wishes.torch or (wishes.cpu and "+cpu" not in there):
        return ""
    return "" if fails(s, *_WRONG_BUILD) else there
