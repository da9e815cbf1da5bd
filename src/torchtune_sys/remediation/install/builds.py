"""Choose the build of torch that fits a place, or say what prevents it."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.install_torch import MACHINES, TorchBuild, builds
from torchtune_sys.knowledge.torch import Capability
from torchtune_sys.model.install import InstallRefused, Wheel
from torchtune_sys.model.version import Version, show, version


class BuildTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a build must fit."""

    machine: str
    abi: str
    """``cp312``, ``cp313t``"""
    glibc: Version
    """``()`` where it could not be seen: then any will do, and a note says so."""
    capabilities: tuple[Capability, ...] = ()
    """Of every GPU that trains; empty for the CPU."""
    driver: Version = ()
    """``()``: none will run, or none could be seen."""


def obstacles(build: TorchBuild, place: BuildTarget) -> tuple[str, ...]:
    """Return what keeps ``build`` from running at ``place``: of ``python``, ``glibc``, ``gpu``, ``driver``."""
    found = []
    if place.abi not in build.abis:
        found.append("python")
    if place.glibc and place.glibc < build.glibc:
        found.append("glibc")
    if build.driver and not all(build.runs_on(cc) for cc in place.capabilities):
        found.append("gpu")
    if build.driver and place.driver < build.driver:
        found.append("driver")
    return tuple(found)


_DISTANCE = {"driver": 1, "python": 2, "glibc": 4, "gpu": 8}
"""How far away a build is that something stands in the way of: a GPU is not changed as a Python is. Of equals the newest release is told."""


def choose(place: BuildTarget, wanted: str = "", *, cpu: bool = False) -> Wheel | InstallRefused:
    """Return the newest build that runs at ``place``, of the wanted release (``2.14``, ``2.14.0``, ``2.14.0+cu126``; ``""`` for any).

    With ``cpu`` a CPU build, else a CUDA one.
    """
    fits = _newest_fit(place, wanted, cpu)
    if fits is not None:
        return wheel(fits, place)
    candidates = _builds_of(place.machine, wanted, cpu)
    instead = _newest_fit(place, "", cpu)
    what = f"torch {wanted}".strip() + (" for the CPU" if cpu else "")
    newest = "" if instead is None else f"torch {wheel(instead, place).local} for {instead.machine} and {place.abi}"
    if not candidates:
        return _none_such(place, wanted, what, newest, cpu)
    nearest = min(candidates, key=lambda build: sum(_DISTANCE[name] for name in obstacles(build, place)))
    blocked = obstacles(nearest, place)
    return InstallRefused(
        key="torch",
        what=what,
        reason="; ".join(_reason(name, nearest, place) for name in blocked),
        blocked_by=blocked,
        newest=newest,
        way="; ".join(_way(name, nearest) for name in blocked),
        source=nearest.source,
    )


def wheel(build: TorchBuild, place: BuildTarget) -> Wheel:
    return Wheel(
        torch=build.torch,
        build=build.name,
        index=build.index,
        abi=place.abi,
        machine=build.machine,
        torchvision=build.torchvision,
        driver=show_driver(build.driver),
        glibc=show(build.glibc),
        source=build.source,
        not_pypi=_not_pypi(build, place) if build.index else "",
    )


def _not_pypi(build: TorchBuild, place: BuildTarget) -> str:
    """Return what keeps PyPI's build of the release from being the one; ``""`` where that one was not asked for."""
    own = next((item for item in builds(build.machine) if item.torch == build.torch and not item.index), build)
    if (own.name == "cpu") is not (build.name == "cpu"):
        return f"PyPI's build for {build.machine} {'has no CUDA' if own.name == 'cpu' else 'brings CUDA along'}"
    return "; ".join(f"PyPI's {_reason(name, own, place)}" for name in obstacles(own, place))


def show_driver(numbers: Version) -> str:
    """Return a driver's version as NVIDIA writes it: ``580.65.06``.

    >>> show_driver((580, 65, 6)), show_driver(())
    ('580.65.06', '')
    """
    return ".".join(f"{number:02}" for number in numbers)


def _kind(machine: str, cpu: bool) -> list[TorchBuild]:
    return [build for build in builds(machine) if (build.name == "cpu") is cpu]


@functools.cache
def _builds_of(machine: str, wanted: str, cpu: bool) -> tuple[TorchBuild, ...]:
    return tuple(build for build in _kind(machine, cpu) if is_of_version(build, wanted))


def _newest_fit(place: BuildTarget, wanted: str, cpu: bool) -> TorchBuild | None:
    return next((build for build in _builds_of(place.machine, wanted, cpu) if not obstacles(build, place)), None)


def is_of_version(build: TorchBuild, wanted: str) -> bool:
    """Return whether a build is of the release (and the local version) that was asked for; all are of ``""``.

    >>> build = builds("x86_64")[-1]
    >>> build.torch, [is_of_version(build, wanted) for wanted in ("", "1.13", "1.13.0", "1.1", "1.13.0+cu117")]
    ('1.13.0', [True, True, True, False, False])
    """
    release, _, local = wanted.partition("+")
    numbers = version(release)
    return version(build.torch)[: len(numbers)] == numbers and local in ("", build.name)


@functools.cache
def _released(wanted: str) -> bool:
    numbers = version(wanted)
    return any(version(release.torch)[: len(numbers)] == numbers for release in releases.releases())


def _none_such(place: BuildTarget, wanted: str, what: str, newest: str, cpu: bool) -> InstallRefused:
    released = _released(wanted)
    newest_release = releases.newest().torch
    if place.machine not in MACHINES:
        blocked, reason = "machine", f"there are no wheels for {place.machine or 'a machine of a kind that could not be seen'}"
        way = f"take a host with {' or '.join(MACHINES)}, or build torch from source"
    elif not released:
        blocked, reason = "release", f"no release is called {wanted}; the newest that is known here is {newest_release}"
        way = f"ask for one of {releases.releases()[0].torch} to {newest_release}"
    elif "+" in wanted and any(is_of_version(build, wanted.partition("+")[0]) for build in _kind(place.machine, cpu)):
        names = [build.name for build in builds(place.machine) if is_of_version(build, wanted.partition("+")[0])]
        blocked, reason = "build", f"this release has no such build for {place.machine}: {' '.join(dict.fromkeys(names))}"
        way = "leave the build to torchtune-sys, or name one of these"
    else:
        blocked = "build"
        of_gpus = "" if cpu else " with the GPUs that it holds code for"
        reason = f"no {'CPU' if cpu else 'CUDA'} build of it for {place.machine} is on record{of_gpus}"
        way = "ask for another release"
    return InstallRefused(
        key="torch", what=what, reason=reason, blocked_by=(blocked,), newest=newest, way=way, source=releases.newest().source
    )


def _reason(name: str, build: TorchBuild, place: BuildTarget) -> str:
    called = f"torch {build.torch}+{build.name}"
    if name == "python":
        return f"{called} has no wheel for {place.abi}, only for {' '.join(build.abis)}"
    if name == "glibc":
        return f"{called} needs glibc {show(build.glibc)}, this host has {show(place.glibc)}"
    if name == "gpu":
        lacking = [f"sm_{a}{b}" for a, b in place.capabilities if not build.runs_on((a, b))]
        return f"{called} holds no code for {' '.join(lacking)}, only {' '.join(build.arches)}"
    found = f"driver {show_driver(place.driver)} runs" if place.driver else "no driver runs"
    return f"{called} needs driver {show_driver(build.driver)}, and {found} here"


def _way(name: str, build: TorchBuild) -> str:
    ways = {
        "python": f"a Python of {' '.join(build.abis)} (uv python install)",
        "glibc": f"a distribution or a container with glibc {show(build.glibc)}",
        "gpu": "another GPU, or torch built from source for this one",
        "driver": f"a driver from {show_driver(build.driver)} on",
    }
    return ways[name]


def driver_needed(place: BuildTarget, wanted: str) -> Version:
    """Return the oldest driver with which a build that is wanted would run here, were it not for the driver; ``()`` if none would."""
    floors = [
        build.driver
        for build in _kind(place.machine, False)
        if is_of_version(build, wanted) and set(obstacles(build, place)) <= {"driver"}
    ]
    return min(floors, default=())
