"""The wheel that is chosen exists and runs at its place by the rules of `check`; what is refused is refused for the right reason."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache

import install_hosts as hosts
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from install_hosts import NEWEST

from torchtune_sys.knowledge.install_torch import TorchBuild, builds
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.install import InstallRefused, Wheel
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.builds import BuildTarget, choose, driver_needed, wheel

RELEASES = [row["torch"] for row in rows("torch_releases")]
CAPABILITIES = sorted({version(row["cc"])[:2] for row in rows("gpus")} | {(3, 7), (5, 2), (6, 0), (6, 1)})
BRANCHES = [int(row["driver_branch"]) for row in rows("driver_branch_cuda")]
DRIVERS = [(), *((branch, 0) for branch in BRANCHES), (450, 80, 2), (525, 60, 13), (580, 65, 6), (620, 999)]
ABIS = ["cp36", "cp37", *(f"cp3{minor}" for minor in range(8, 17)), "cp313t", "cp314t", "cp315t"]
GLIBCS = [(2, 12), (2, 17), (2, 27), (2, 28), (2, 39)]
MACHINES = ["x86_64", "aarch64"]
GRID = (MACHINES, ABIS, GLIBCS, CAPABILITIES, DRIVERS, ["", *RELEASES])
HOPPER = BuildTarget(machine="x86_64", abi="cp312", glibc=(2, 39), capabilities=((9, 0),), driver=(580, 95, 5))
Case = tuple[str, str, tuple[int, ...], tuple[int, int], tuple[int, ...], str]


def place_of(case: Case) -> BuildTarget:
    machine, abi, glibc, cc, driver, _ = case
    return BuildTarget(machine=machine, abi=abi, glibc=glibc, capabilities=(cc,), driver=driver)


@cache
def recorded(torch: str) -> dict[str, str]:
    return next(row for row in rows("torch_releases") if row["torch"] == torch)


@cache
def _findings(build: Wheel, place: BuildTarget) -> tuple[str, ...]:
    return tuple(result.rule.id for result in hosts.errors(hosts.after(place, build)))


def findings(build: Wheel, place: BuildTarget) -> tuple[str, ...]:
    """What `check` calls an error once the wheel is in; asked once with the GPU and the driver, once with the C library."""
    same = msgspec.structs.replace(build, abi="cp312")
    with_gpu = msgspec.structs.replace(place, abi="cp312", glibc=(2, 39))
    with_glibc = msgspec.structs.replace(HOPPER, machine=place.machine, glibc=place.glibc)
    about_glibc = tuple(rule for rule in _findings(same, with_glibc) if rule == "glibc-too-old")
    return (*_findings(same, with_gpu), *about_glibc)


def exists(found: Wheel) -> bool:
    """By the rows themselves: the wheel is on the index that is named."""
    row = recorded(found.torch)
    offered = [word for word in row["download_pytorch_org_variants"].partition("(")[0].split() if word.startswith("cu")]
    if found.abi not in row["pypi_x86_64_abis"].split():
        return False
    if not found.index:
        on_pypi = "cu" + row["pypi_default_cuda"].replace(".", "")
        return found.build == (on_pypi if found.machine == "x86_64" or row["pypi_aarch64_wheel_kind"] == "CUDA" else "cpu")
    return found.index == f"https://download.pytorch.org/whl/{found.build}" and found.build in [*offered, "cpu"]


def check_choice(case: Case, found: Wheel | InstallRefused) -> str:
    """One combination, judged by `check`'s own rules; says how it came out."""
    place, wish = place_of(case), case[-1]
    if isinstance(found, Wheel):
        assert not wish or found.torch == wish
        assert exists(found), found
        assert not findings(found, place), (case, found)
        return "wheel"
    assert found.blocked_by and found.reason and found.way, (case, found)
    for obstacle in found.blocked_by:
        check_reason(obstacle, place, wish)
    if found.newest:
        newest = choose(place)
        assert isinstance(newest, Wheel) and newest.local in found.newest
    else:
        assert isinstance(choose(place), InstallRefused)
    return " ".join(found.blocked_by)


def wished(machine: str, wish: str) -> list[TorchBuild]:
    return [build for build in builds(machine) if build.name != "cpu" and wish in ("", build.torch)]


def check_reason(obstacle: str, place: BuildTarget, wish: str) -> None:
    """Each obstacle is real: the rules (or the names of the wheels) object to the builds that only it keeps away."""
    candidates = wished(place.machine, wish)
    if obstacle == "machine":
        assert place.machine not in ("x86_64", "aarch64")
    elif obstacle == "build":
        assert not candidates
    elif obstacle == "python":
        assert any(place.abi not in build.abis for build in candidates)
    elif obstacle == "glibc":
        assert any(judged("glibc-too-old", build, place) for build in candidates)
    elif obstacle == "driver":
        assert not place.driver or any(judged("driver-too-old", build, place) for build in candidates)
    else:
        assert obstacle == "gpu" and any(judged("gpu-arch-not-in-wheel", build, place) for build in candidates)


def judged(rule: str, build: TorchBuild, place: BuildTarget) -> bool:
    return not place.driver or rule in findings(wheel(build, place), place)


def test_every_combination_of_the_tables() -> None:
    """A sample of all; test_the_whole_grid counts every one."""
    drawn = random.Random(6).sample(range(size()), 2000)
    print(_count(case_at(number) for number in drawn))


@pytest.mark.exhaustive
def test_the_whole_grid() -> None:
    """Each combination of machine, interpreter, glibc, GPU, driver branch and release.

    Versions between two floors of the builds count as one: the lowest of them that is in the grid is judged for all.
    """
    counted: Counter[str] = Counter()
    machines, abis, glibcs, capabilities, drivers, wishes = GRID
    every = [build for machine in machines for build in builds(machine)]
    some_glibcs = Counter(_lowest(glibc, {build.glibc for build in every}, glibcs) for glibc in glibcs)
    some_drivers = Counter(_lowest(driver, {build.driver for build in every}, drivers) for driver in drivers)
    for case in itertools.product(machines, abis, some_glibcs, capabilities, some_drivers, wishes):
        alike = some_glibcs[case[2]] * some_drivers[case[4]]
        counted[check_choice(case, choose(place_of(case), case[-1]))] += alike
    print(f"{counted.total()} combinations: {dict(counted.most_common())}")
    assert counted.total() == size()
    assert counted["wheel"] > 10_000


def _lowest(value: tuple[int, ...], floors: set[tuple[int, ...]], axis: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The lowest of the axis that passes the same floors."""
    return min(other for other in axis if {floor for floor in floors if floor <= other} == {f for f in floors if f <= value})


def size() -> int:
    total = 1
    for axis in GRID:
        total *= len(axis)
    return total


def case_at(number: int) -> Case:
    words = []
    for axis in reversed(GRID):
        number, index = divmod(number, len(axis))
        words.append(axis[index])
    return tuple(reversed(words))  # type: ignore[return-value]


def _count(cases: Iterator[Case]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for case in cases:
        counted[check_choice(case, choose(place_of(case), case[-1]))] += 1
    return counted


@settings(max_examples=25)
@given(st.tuples(*(st.sampled_from(axis) for axis in GRID)))
def test_no_newer_release_would_have_done(case: Case) -> None:
    """Brute force: every build of every newer release has an obstacle that the rules or the names of its wheels know."""
    place = place_of(case)
    found = choose(place)
    for build in wished(place.machine, ""):
        if isinstance(found, Wheel) and build.torch == found.torch:
            break
        named = place.abi in build.abis
        assert not (named and place.driver and not findings(wheel(build, place), place)), (build, place)


@pytest.mark.parametrize(
    ("fields", "wish", "wanted"),
    [
        ({}, "", f"{NEWEST}+cu132"),
        ({}, "2.14", "2.14.1+cu130"),
        ({}, "2.14.0", "2.14.0+cu130"),
        ({}, "2.14+cu126", "2.14.1+cu126"),
        ({"driver": (570, 86, 10)}, "", "2.14.1+cu126"),
        ({"driver": (525, 60, 13)}, "2.10", "2.10.0+cu128"),
        ({"capabilities": ((6, 1),)}, "", "2.14.1+cu126"),
        ({"capabilities": ((7, 0),)}, "2.10", "2.10.0+cu128"),
        ({"capabilities": ((12, 0),), "driver": (570, 26)}, "", "2.11.0+cu128"),
        ({"capabilities": ((7, 0), (9, 0))}, "", "2.14.1+cu126"),
        ({"capabilities": ((7, 0), (12, 0))}, "", "2.10.0+cu128"),
        ({"capabilities": ((10, 3), (8, 9))}, "", f"{NEWEST}+cu132"),
        ({"glibc": (2, 17)}, "", "2.6.0+cu124"),
        ({"abi": "cp38"}, "", "2.4.1+cu121"),
        ({"abi": "cp39", "driver": (470, 256, 2), "capabilities": ((3, 7),)}, "", "2.7.1+cu118"),
        ({"abi": "cp313t"}, "", "2.12.0+cu130"),
        ({"machine": "aarch64"}, "", f"{NEWEST}+cu132"),
        ({"machine": "aarch64", "driver": (550, 54, 14)}, "", "2.14.1+cu126"),
    ],
)
def test_known_hosts(fields: dict[str, object], wish: str, wanted: str) -> None:
    found = choose(msgspec.structs.replace(HOPPER, **fields), wish)
    assert isinstance(found, Wheel) and found.local == wanted


@pytest.mark.parametrize(
    ("fields", "wish", "blocked", "newest"),
    [
        ({"driver": (570, 86, 10)}, "2.15", ("driver",), "2.14.1+cu126"),
        ({"capabilities": ((6, 1),)}, "2.15", ("gpu",), "2.14.1+cu126"),
        ({"capabilities": ((6, 1),), "driver": (470, 256, 2), "abi": "cp314"}, "", ("driver",), ""),
        ({"capabilities": ((6, 1),), "driver": (470, 256, 2), "abi": "cp312"}, "2.14", ("driver",), "2.7.1+cu118"),
        ({"abi": "cp316"}, "", ("python",), ""),
        ({"capabilities": ((6, 1),), "abi": "cp315"}, "", ("python",), ""),  # another Python is had sooner than another GPU
        ({"abi": "cp36"}, "", ("python",), ""),
        ({"glibc": (2, 17)}, "2.7", ("glibc",), "2.6.0+cu124"),
        ({"capabilities": ((6, 1), (12, 0))}, "", ("gpu",), ""),
        ({"capabilities": ((10, 7),)}, "", (), ""),
        ({"machine": "ppc64le"}, "", ("machine",), ""),
        ({}, "99.0", ("release",), f"{NEWEST}+cu132"),
        ({}, "2.15+cu126", ("build",), f"{NEWEST}+cu132"),
        ({"machine": "aarch64"}, "2.5", ("build",), f"{NEWEST}+cu132"),
    ],
)
def test_known_refusals(fields: dict[str, object], wish: str, blocked: tuple[str, ...], newest: str) -> None:
    found = choose(msgspec.structs.replace(HOPPER, **fields), wish)
    if not blocked:  # sm_100 code serves all of 10.x but 10.1, Rubin too
        assert isinstance(found, Wheel)
        return
    assert isinstance(found, InstallRefused)
    assert found.blocked_by == blocked
    assert newest in found.newest and bool(newest) is bool(found.newest)


def test_for_the_cpu() -> None:
    place = msgspec.structs.replace(HOPPER, capabilities=(), driver=())
    here, arm, old = (
        choose(place, cpu=True),
        choose(msgspec.structs.replace(place, machine="aarch64"), "2.10", cpu=True),
        choose(msgspec.structs.replace(place, glibc=(2, 17)), cpu=True),
    )
    assert isinstance(here, Wheel) and (here.local, here.index) == (f"{NEWEST}+cpu", "https://download.pytorch.org/whl/cpu")
    assert isinstance(arm, Wheel) and (arm.local, arm.index) == ("2.10.0+cpu", "")  # PyPI's own, before CUDA came to it
    assert isinstance(old, Wheel) and old.torch == "2.6.0"


def test_which_driver_a_wish_needs() -> None:
    assert driver_needed(HOPPER, "2.15") == (580, 65, 6)
    assert driver_needed(HOPPER, "2.14") == (525, 60, 13)
    assert driver_needed(msgspec.structs.replace(HOPPER, capabilities=((6, 1),)), "2.15") == ()
