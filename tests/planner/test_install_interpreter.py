"""A host without a Python that torch has wheels for: the distribution's own is installed, and the wheel is for that one."""

from __future__ import annotations

import msgspec
import pytest
from install_plans import H100, K80, SYSTEMS, V100, bare, check_script, check_sound, keys, step, words

from torchtune_sys.knowledge import install as systems
from torchtune_sys.knowledge.install_python import glibc_of, packaged
from torchtune_sys.knowledge.install_torch import builds
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.knowledge.torch import newest
from torchtune_sys.model.install import InstallOptions, Packages
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.plan import plan

EXPECTED = {
    ("ubuntu", "22.04"): ("3.10", "python3 python3-venv"),
    ("ubuntu", "24.04"): ("3.12", "python3 python3-venv"),
    ("debian", "12"): ("3.11", "python3 python3-venv"),
    ("debian", "13"): ("3.13", "python3 python3-venv"),
    ("rhel", "8.10"): ("3.12", "python3.12"),
    ("rocky", "9.4"): ("3.12", "python3.12"),
    ("almalinux", "10.0"): ("3.12", "python3"),
    ("amzn", "2023"): ("3.12", "python3.12"),
    ("sles", "15.7"): ("3.11", "python311"),
    ("sles", "16.0"): ("3.13", "python313"),
}


def empty(seen: Snapshot, glibc: bool = True) -> Snapshot:
    """Without any Python; as a fresh image is."""
    none = Missing(Why.ABSENT, "python3", "not installed")
    python = msgspec.structs.replace(
        seen.python, executable=none, version=none, implementation=none, machine=none, glibc=none, headers=none, compiler=none
    )
    return msgspec.structs.replace(seen, python=python if glibc else Missing(Why.NOT_RECORDED, "python"))


def test_every_system_has_one() -> None:
    """Each release that packages can be installed on is in the table, with wheels for the first, and each row's names are its own."""
    for row in rows("install_systems"):
        found = packaged(row["id"], row["version"])
        assert found, row
        assert systems.system(row["id"], row["version"]) is not None
        assert any(found[0].abi in build.abis for build in builds("x86_64") if version(build.torch) >= (2, 14)), row
        assert glibc_of(row["id"], row["version"]) >= (2, 28), row
        for item in found:
            assert item.program == f"/usr/bin/python{item.version}" and item.source


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("os_id", "release"), SYSTEMS)
@pytest.mark.parametrize("cpu", [True, False])
def test_a_bare_host_gets_the_distributions_own(os_id: str, release: str, cpu: bool) -> None:
    found = plan(empty(bare([H100] * 8, os_id, release)), InstallOptions(cpu=cpu))
    check_sound(found)
    check_script(found)
    assert not found.refused and found.wheel is not None
    python, torch = step(found, "python"), step(found, "torch")
    assert found.wheel.abi == f"cp{python.title.split()[1].rstrip(',').replace('.', '')}"
    assert keys(found).index("python") < keys(found).index("python-headers") < keys(found).index("torch")
    expected = EXPECTED.get((os_id, release))
    if expected:
        (packages,) = [action for action in python.actions if isinstance(action, Packages)]
        assert (found.wheel.abi, " ".join(packages.names)) == (f"cp{expected[0].replace('.', '')}", expected[1])
        made = torch.actions[0]
        assert getattr(made, "program", "") == f"/usr/bin/python{expected[0]}"
    assert ("apt-get update" in words(found, "python")) is (os_id in ("ubuntu", "debian"))


@pytest.mark.parametrize(
    ("facts", "is_used"),
    [
        ({"version": "3.6.8"}, False),
        ({"version": "2.7.18"}, False),
        ({"implementation": "pypy"}, False),
        ({"machine": "x86_64 (32-bit)"}, False),
        ({"version": "3.9.21"}, True),
    ],
)
def test_a_python_that_no_wheel_is_for(facts: dict[str, str], is_used: bool) -> None:
    seen = bare([H100], "rocky", "9.4")
    found = plan(msgspec.structs.replace(seen, python=msgspec.structs.replace(seen.python, **facts)), InstallOptions())
    assert ("python" not in keys(found)) is is_used
    assert found.wheel is not None and found.wheel.abi == ("cp39" if is_used else "cp312")
    assert any("--python 3.12" in note for note in found.notes) is is_used


def test_the_wished_torch_decides_between_several() -> None:
    """3.12 came with torch 2.2; what is older runs on the 3.11 and 3.9 of the same release."""
    for torch, abi in (("2.14", "cp312"), ("2.1", "cp311"), ("1.13", "cp311")):
        found = plan(empty(bare([V100], "rhel", "8.10")), InstallOptions(torch=torch, cpu=True))
        assert found.wheel is not None and found.wheel.abi == abi, torch
    assert plan(empty(bare([H100], "ubuntu", "24.04")), InstallOptions(torch="1.13")).refused


@pytest.mark.parametrize(
    ("os_id", "release", "python", "packages"),
    [
        ("rocky", "9.4", "3.11", ("python3.11",)),
        ("amzn", "2023", "3.14", ("python3.14",)),
        ("debian", "12", "3.11", ("python3", "python3-venv")),
        ("debian", "12", "3.12", None),
        ("rocky", "9.4", "3.14t", None),
    ],
)
def test_a_named_version_comes_from_the_distribution_where_it_has_it(
    os_id: str, release: str, python: str, packages: tuple[str, ...] | None
) -> None:
    found = plan(empty(bare([H100], os_id, release)), InstallOptions(python=python))
    assert ("python" in keys(found)) is (packages is not None)
    if packages:
        assert step(found, "python").actions[-1] == Packages(manager="apt" if os_id == "debian" else "dnf", names=packages)
    else:
        assert "must be there" in step(found, "torch").why


def test_too_old_for_the_wish_says_which_the_distribution_has() -> None:
    seen = bare([H100], "rocky", "9.4")
    old = msgspec.structs.replace(seen, python=msgspec.structs.replace(seen.python, version="3.9.21"))
    (refused,) = plan(old, InstallOptions(torch="2.15")).refused
    assert "python" in refused.blocked_by and refused.way.startswith("--python 3.12, which this distribution packages")
    assert plan(old, InstallOptions(torch="2.15", python="3.12")).wheel is not None


@pytest.mark.parametrize("tool", ["uv", "conda", "pixi"])
def test_tools_that_bring_a_python_install_no_package(tool: str) -> None:
    found = plan(empty(bare([H100], "debian", "12")), InstallOptions(tool=tool))
    assert found.wheel is not None and found.wheel.abi == "cp311" and "python" not in keys(found)
    assert any("3.11" in str(action) for action in step(found, "torch").actions)


def test_nothing_is_installed_into_a_container() -> None:
    seen = empty(bare([H100]))
    assert isinstance(seen.system, msgspec.Struct)
    seen = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, container="docker"))
    found = plan(seen, InstallOptions(cpu=True))
    assert found.wheel is None and not found.steps and found.refused[0].blocked_by == ("python",)


def test_glibc_is_the_releases_where_it_was_not_seen() -> None:
    seen = empty(bare([H100], "debian", "12"), glibc=False)
    assert isinstance(seen.system, msgspec.Struct)
    unseen = Missing(Why.NOT_RECORDED, "glibc")
    seen = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, glibc=unseen))
    found = plan(seen, InstallOptions())
    assert found.wheel is not None and not any("glibc" in note for note in found.notes)
    absent = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, glibc=Missing(Why.ABSENT, "glibc")))
    assert plan(absent, InstallOptions()).refused[0].blocked_by == ("glibc",)


@pytest.mark.parametrize(("os_id", "release"), SYSTEMS)
def test_torch_on_the_cpu_gets_a_cpp_compiler(os_id: str, release: str) -> None:
    """inductor builds C++ for CPU tensors; seen on a new machine: InvalidCxxCompiler, with gcc alone."""
    found = plan(bare([H100], os_id, release), InstallOptions(cpu=True))  # gcc is there
    (packages,) = step(found, "compiler").actions
    assert isinstance(packages, Packages) and {"g++", "gcc-c++", "gcc" if os_id == "arch" else ""} & set(packages.names)


def test_no_headers_for_a_python_that_gets_no_torch() -> None:
    found = plan(empty(bare([K80])), InstallOptions())
    assert found.wheel is None and not {"python", "python-headers"} & set(keys(found))


@pytest.mark.parametrize(("torch", "old"), [("2.2", True), ("2.3", False)])
def test_old_torch_gets_the_numpy_that_it_was_compiled_against(torch: str, old: bool) -> None:
    """torchvision asks for NumPy of any version, and would bring NumPy 2."""
    lines = words(plan(bare([H100], "rocky", "9"), InstallOptions(torch=torch, python="3.11")), "torch")
    assert ("numpy<2" in lines[-1]) is old


def test_a_refused_interpreter_is_told_which_pythons_have_wheels_and_musl_that_none_is_for_it() -> None:
    seen = bare([], "gentoo", "2.15")
    pypy = msgspec.structs.replace(seen, python=msgspec.structs.replace(seen.python, implementation="pypy"))
    (refused,) = plan(pypy, InstallOptions()).refused
    assert f"torch {newest().torch} has wheels for (3.11, 3.12, " in refused.way
    alpine = bare([], "alpine", "3.20")
    unseen = Missing(Why.UNPARSED, "libc.so.6", "its name does not tell")
    alpine = msgspec.structs.replace(
        alpine,
        python=msgspec.structs.replace(alpine.python, glibc=unseen),
        system=msgspec.structs.replace(alpine.system, glibc=unseen),
    )
    (refused,) = plan(alpine, InstallOptions()).refused
    assert "no release of torch has a wheel for it (musllinux)" in refused.reason
