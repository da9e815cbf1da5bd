"""Choose torch, driver and Python for a host, before the steps that install them."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, InstallOptions, InstallRefused, Wheel
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as known_value
from torchtune_sys.model.version import Version, version
from torchtune_sys.remediation.install import branch, builds, rocm
from torchtune_sys.remediation.install.branch import current_driver
from torchtune_sys.remediation.install.builds import BuildTarget
from torchtune_sys.remediation.install.gpus import Card, capabilities_of, cards, on_chip
from torchtune_sys.remediation.install.host import fails, glibc, is_amd, is_nvidia, machine_of, owner
from torchtune_sys.remediation.install.interpreter import Interpreter, interpreter


class InstallChoice(msgspec.Struct, frozen=True, kw_only=True):
    python: Interpreter | None = None
    wheel: Wheel | None = None
    """None where torch stays as it is, or cannot be had."""
    driver: Driver | None = None
    """The one that stays, or is to be installed; None where there is no NVIDIA GPU, or none can be had."""
    refused: tuple[InstallRefused, ...] = ()
    notes: tuple[str, ...] = ()


def choose(s: Snapshot, options: InstallOptions) -> InstallChoice:
    python = interpreter(s, options)
    if isinstance(python, InstallRefused):
        return _without_torch(s, options, python)
    there = _stays(s, options)
    if there:
        return _with_torch(s, options, python, there)
    place = _place(s, python)
    if isinstance(place, InstallRefused):
        return _without_torch(s, options, place)
    if not options.cpu and is_nvidia(s):
        return _for_nvidia(s, options, python, place)
    if not options.cpu and is_amd(s):
        return _for_amd(s, options, python, place)
    chosen = _choice(python, builds.choose(place, options.torch, cpu=True))
    of_windows = not options.cpu and not isinstance(s.driver, Missing) and known_value(s.driver.wsl, False)
    return msgspec.structs.replace(chosen, notes=(_UNSEEN,)) if of_windows else chosen


_UNSEEN = (
    "Windows gives this WSL guest a GPU (/dev/dxg), and nothing tells which: torch is for the CPU. With NVIDIA's driver in Windows run this in the "
    "guest again, or describe it: --system, --gpu NAME"
)


def _choice(python: Interpreter, chosen: Wheel | InstallRefused, driver: Driver | None = None) -> InstallChoice:
    if isinstance(chosen, InstallRefused):
        return InstallChoice(python=python, driver=driver, refused=(chosen,))
    return InstallChoice(python=python, driver=driver, wheel=chosen)


def _without_torch(s: Snapshot, options: InstallOptions, reason: InstallRefused) -> InstallChoice:
    """Return the driver alone."""
    if options.cpu or not is_nvidia(s):
        return InstallChoice(refused=(reason,))
    driver = _driver_alone(s, options)
    return (
        InstallChoice(refused=(reason, driver))
        if isinstance(driver, InstallRefused)
        else InstallChoice(driver=driver, refused=(reason,))
    )


def _place(s: Snapshot, python: Interpreter) -> BuildTarget | InstallRefused:
    libc = glibc(s)
    if libc is None:
        return InstallRefused(
            key="torch",
            what="torch",
            reason="the C library of this system is musl, and no release of torch has a wheel for it (musllinux): all are for glibc (manylinux)",
            blocked_by=("glibc",),
            way="train in a container whose distribution has glibc",
            source="PEP 656",
        )
    return BuildTarget(machine=machine_of(s), abi=python.abi, glibc=libc)


def _with_torch(s: Snapshot, options: InstallOptions, python: Interpreter, there: str) -> InstallChoice:
    """torch stays; the driver is looked after."""
    notes = (f"torch {there} is installed, and no rule requires another build; --torch selects one",)
    if options.cpu or not is_nvidia(s) or on_chip(cards(s)) is not None:
        return InstallChoice(python=python, notes=notes)
    driver = _driver_alone(s, options)
    if isinstance(driver, InstallRefused):
        return InstallChoice(python=python, refused=(driver,), notes=notes)
    return InstallChoice(python=python, driver=driver, notes=notes)


def _for_amd(s: Snapshot, options: InstallOptions, python: Interpreter, place: BuildTarget) -> InstallChoice:
    chosen = _choice(python, rocm.choose(s, place, options))
    if chosen.wheel is None:
        return chosen
    note = f"the wheel brings ROCm's libraries; whether amdgpu here is new enough for them: {rocm.DRIVERS}"
    return msgspec.structs.replace(chosen, notes=(note,))


def _for_nvidia(s: Snapshot, options: InstallOptions, python: Interpreter, place: BuildTarget) -> InstallChoice:
    here = cards(s)
    special = on_chip(here)
    if special is not None:
        return InstallChoice(python=python, refused=(special,))
    place = msgspec.structs.replace(place, capabilities=capabilities_of(here))
    current = current_driver(s, here)
    refused: tuple[InstallRefused, ...] = ()
    if current is not None and options.branch in (None, current.branch):
        chosen = builds.choose(msgspec.structs.replace(place, driver=version(current.installed)), options.torch)
        if isinstance(chosen, Wheel) or chosen.blocked_by != ("driver",):
            return _choice(python, chosen, current)
        refused = (chosen,)
    driver = _new_driver(s, here, builds.driver_needed(place, options.torch), options)
    if isinstance(driver, InstallRefused):
        return InstallChoice(python=python, driver=current, refused=(*refused, driver))
    after = msgspec.structs.replace(place, driver=branch.first_version(driver.branch))
    return _choice(python, builds.choose(after, options.torch), driver)


def _new_driver(s: Snapshot, here: tuple[Card, ...], needed: Version, options: InstallOptions) -> Driver | InstallRefused:
    owned = owner(s)
    if owned is not None:
        reason, way = owned
        blocked = ("owner",)
        return InstallRefused(
            key="driver", what="an NVIDIA driver", reason=reason, blocked_by=blocked, way=way, source=known.DRIVER_GUIDE
        )
    return branch.choose(here, needed, options.branch)


def _driver_alone(s: Snapshot, options: InstallOptions) -> Driver | InstallRefused | None:
    """Return what the driver needs even where no wheel can be had."""
    here = cards(s)
    current = current_driver(s, here)
    if (current is not None and options.branch in (None, current.branch)) or on_chip(here) is not None:
        return current
    return _new_driver(s, here, (), options)


_WRONG_BUILD = (
    "driver-too-old",
    "gpu-arch-not-in-wheel",
    "cpu-only-build",
    "rocm-build-on-nvidia-host",
    "cuda-build-on-amd-host",
    "glibc-too-old",
)


def _stays(s: Snapshot, options: InstallOptions) -> str:
    """Return the torch that is installed, where nothing else is asked for and no rule says that another build is needed."""
    there = _installed(s, options)
    if not there or options.torch or (options.cpu and "+cpu" not in there):
        return ""
    return "" if fails(s, *_WRONG_BUILD) else there


def _installed(s: Snapshot, options: InstallOptions) -> str:
    """torch as the interpreter that is meant has it."""
    if options.python or isinstance(s.python, Missing) or isinstance(s.python.torch, Missing):
        return ""
    return s.python.torch.version
