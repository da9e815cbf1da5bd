"""The tables of packages, repositories and branches: complete where a step relies on them, and consistent with the other tables."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from install_hosts import NEWEST

from torchtune_sys.knowledge import cuda, eol, install, install_python
from torchtune_sys.knowledge.install_torch import MACHINES, builds
from torchtune_sys.knowledge.nccl import NEWEST as NEWEST_NCCL
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.install import Driver
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.pin import hold
from torchtune_sys.remediation.install.site import Site
from torchtune_sys.render.generate import commands

FAMILIES = {row["family"] for row in rows("install_systems")}
MANAGERS = {install.System(family=family, repository="", source="", confidence="").manager for family in FAMILIES}
VALUES = {"branch": "580", "version": "580.95.05", "kernel": "6.8.0", "flavour": "amd64", "python": "3.12", "toolkit": "13-0"}


@pytest.mark.parametrize("table", ["install_systems", "install_packages", "install_branches", "glibc"])
def test_each_row_has_a_source(table: str) -> None:
    assert [row for row in rows(table) if not row["source"] or row["confidence"] not in ("high", "medium", "low")] == []


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("purpose", ["driver-open", "numactl", "compiler", "rdma", "jemalloc", "container-toolkit", "toolkit"])
def test_every_family_has_what_its_steps_install(family: str, purpose: str) -> None:
    found = install.packages(family, purpose, **VALUES)
    assert found is not None, f"install_packages.csv has no row of {family} (or of its manager) for {purpose}"
    assert found.names and found.source


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_has_a_manager_that_installs(family: str) -> None:
    """A manager without a command of its own was given pacman's."""
    manager = install.System(family=family, repository="", source="", confidence="").manager
    assert manager in commands.INSTALL, f"render/generate/commands.py has no command for {manager}"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_holds_the_driver_in_its_managers_own_way(family: str) -> None:
    """A manager that remediation/install/pin.py does not know was told to edit pacman.conf."""
    system = install.System(family=family, repository="", source="", confidence="")
    site = Site(system=system, os_id="", os_version="", codename="", machine="x86_64", kernel="")
    assert hold(site, Driver(branch=580, module="open")).why


def test_the_page_of_provisioning_names_every_manager() -> None:
    page = (Path(__file__).parents[2] / "docs/provision.md").read_text(encoding="utf-8")
    missing = [manager for manager in sorted(MANAGERS) if manager not in page]
    assert not missing, f"docs/provision.md does not name {', '.join(missing)}"


def test_every_system_has_a_python_and_a_c_library() -> None:
    """Without them nothing is installed on a host that is only described (--system)."""
    for row in rows("install_systems"):
        if row["family"] != "arch":  # its packages have no releases
            assert install_python.packaged(row["id"], row["version"]), (
                f"install_pythons.csv has no row of {row['id']} {row['version']}"
            )
        assert install_python.glibc_of(row["id"], row["version"]), f"glibc.csv has no row of {row['id']} {row['version']}"


def test_only_known_values_stand_in_names() -> None:
    for row in rows("install_packages"):
        told = {name for _, name, _, _ in string.Formatter().parse(row["packages"]) if name}
        assert told <= set(VALUES)
        assert row["family"] in FAMILIES | MANAGERS, (
            f"install_packages.csv: {row['family']} is neither a family of install_systems.csv nor a manager"
        )
        assert all(word.isascii() and not word.startswith("-") for word in row["packages"].split())


def test_no_name_is_there_twice() -> None:
    keys = [(row["family"], row["purpose"]) for row in rows("install_packages")]
    assert len(keys) == len(set(keys))


def test_systems_that_are_offered_get_updates() -> None:
    for row in rows("install_systems"):
        end = eol.end_of_life(row["id"], row["version"])
        assert end is None or end.date > eol.AS_OF, row
        number = row["version"].replace(".", "")
        named = row["repository"].endswith(number) or not row["repository"]  # none: the distribution packages the driver itself
        assert named, (
            f"install_systems.csv: the repository {row['repository']} of {row['id']} is not that of release {row['version']}"
        )


@pytest.mark.parametrize(
    ("os_id", "release"), [("centos", "7"), ("ubuntu", "20.04"), ("debian", "11"), ("fedora", "40"), ("nixos", "25.05")]
)
def test_others_are_not_guessed(os_id: str, release: str) -> None:
    assert install.system(os_id, release) is None


def test_branches_are_those_of_the_driver_table() -> None:
    known = {int(row["driver_branch"]) for row in rows("driver_branch_cuda")}
    for item in install.driver_branches():
        assert item.branch in known and item.first[0] == item.branch
    first = install.driver_branches()[0]
    assert first.first >= cuda.floor_for((13, 2)).version  # type: ignore[union-attr]
    served = [
        arch
        for arch in cuda.architectures()
        if arch.first_branch and arch.first_branch <= first.branch <= (arch.last_branch or 999)
    ]
    assert {arch.name for arch in served} >= {"Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"}


def test_branches_that_have_ended_come_last() -> None:
    """docs.nvidia.com/datacenter/tesla/drivers/615: R535 ended in June, R610 in August 2026; the page of 620 names neither."""
    assert [item.branch for item in install.driver_branches() if item.has_ended] == [610, 535]
    assert [item.has_ended for item in install.driver_branches()] == [False, False, False, True, True]


@pytest.mark.parametrize("machine", MACHINES)
def test_builds_are_in_order_and_whole(machine: str) -> None:
    found = builds(machine)
    releases = [version(build.torch) for build in found]
    assert releases == sorted(releases, reverse=True)
    assert len({(build.torch, build.name) for build in found}) == len(found)
    for build in found:
        assert (build.name == "cpu") is (not build.driver) is (not build.arches)
        assert build.abis and build.glibc >= (2, 17)
        assert build.index in ("", f"https://download.pytorch.org/whl/{build.name}")


def test_each_cuda_build_of_a_release_has_its_row_of_architectures() -> None:
    """Without it the build is offered to nobody, and a GPU gets an older release, or the one for CPUs."""
    listed = {(row["torch"], cuda) for row in rows("torch_arch_list") for cuda in row["cuda"].split("/")}
    for row in rows("torch_releases"):
        release = ".".join(row["torch"].split(".")[:2])
        named = re.findall(r"\bcu(\d+)(\d)\b", row["download_pytorch_org_variants"].partition("(")[0])
        for variant in (".".join(parts) for parts in named):
            known = (release, variant) in listed or version(release) < (2, 0)
            assert known, f"torch {row['torch']} for CUDA {variant}: write ({release}, {variant}) into torch_arch_list.csv"


def test_the_sources_of_the_nccl_of_each_release_were_read() -> None:
    for row in rows("torch_releases"):
        read = version(row["nccl"]) <= NEWEST_NCCL
        assert read, (
            f"torch {row['torch']} has NCCL {row['nccl']}: read its sources for knowledge/nccl.py (NEWEST) and nccl_variables.csv"
        )


def test_the_newest_torch_of_the_tests_is_that_of_the_table() -> None:
    assert rows("torch_releases")[-1]["torch"] == NEWEST, "write the new release into tests/planner/install_hosts.py"


def test_pypi_has_one_build_of_a_release() -> None:
    for machine in MACHINES:
        on_pypi = [build.torch for build in builds(machine) if not build.index]
        assert len(on_pypi) == len(set(on_pypi))
