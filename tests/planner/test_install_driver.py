"""Which driver branch and kernel module: the newest that serves all GPUs, the one that is there, or none."""

from __future__ import annotations

from itertools import product

import install_hosts as hosts
import msgspec
import pytest
from install_hosts import NEWEST
from install_plans import B200, H100, K80, RTX4090, RUBIN, V100, bare, check_script, keys, step, words

from torchtune_sys.knowledge.containers import ways
from torchtune_sys.knowledge.cuda import architecture_of
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.install import Driver, Installation, InstallOptions, InstallRefused
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.branch import choose, ended, first_version
from torchtune_sys.remediation.install.builds import show_driver
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.remediation.install.plan import plan


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ([V100, B200], "Volta needs the proprietary kernel module, Blackwell the open one"),
        ([K80, H100], "no driver after R470 serves Kepler"),
        ([RUBIN], "no driver branch is on record for Rubin"),
        ([K80], "the last branch for these GPUs is R470"),
        ([("", "ffff", None)], "PCI device 10de:ffff is in no table"),
    ],
)
def test_no_driver_serves_them(here: list[tuple[str, str, None]], says: str) -> None:
    found = plan(bare(here), InstallOptions())
    assert found.driver is None and found.wheel is None and "driver" not in keys(found)
    (refused,) = found.refused
    assert refused.blocked_by == ("gpu",) and says in refused.reason
    check_script(found)


def test_old_and_new_gpus_together_run_with_the_proprietary_module() -> None:
    found = plan(bare([V100, H100]), InstallOptions())
    assert found.driver is not None and (found.driver.branch, found.driver.module) == (580, "proprietary")
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


@pytest.mark.parametrize(("branch", "accepted"), [(580, True), (595, True), (620, True), (610, True), (575, False), (535, True)])
def test_a_wished_branch(branch: int, accepted: bool) -> None:
    found = plan(bare([H100]), InstallOptions(branch=branch))
    assert (found.driver is not None and found.driver.branch == branch) is accepted
    if not accepted:  # what would be taken without the wish
        assert found.refused[0].newest == "driver branch 580" and found.refused[0].way.endswith("which takes 580")
        assert "610 (ended in 2026-08)" in found.refused[0].reason
    assert any("no security update comes any more; branch 580" in note for note in found.notes) is (branch in (610, 535))
    if branch == 535:  # its torch is the last for CUDA 12
        assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


def test_a_branch_too_new_for_the_gpu_is_refused() -> None:
    found = plan(bare([V100]), InstallOptions(branch=595))
    assert found.driver is None and "580" in found.refused[0].reason and found.refused[0].newest == "driver branch 580"


def upgraded(
    installed: str, torch: str, card: tuple[str, str, tuple[int, int] | None] = ("NVIDIA L40S", "26b9", (8, 9))
) -> Installation:
    seen = hosts.with_python(hosts.with_driver(hosts.with_gpus(hosts.healthy(), [card]), installed), "cp312", "2.39")
    return plan(seen, InstallOptions(torch=torch))


def test_the_driver_comes_before_the_wheel_that_needs_it() -> None:
    found = upgraded("570.124.06", "2.15")
    assert found.driver is not None and found.driver.branch == 580 and not found.driver.installed
    assert found.wheel is not None and found.wheel.local == "2.15.0+cu132"
    assert keys(found).index("driver") < keys(found).index("torch")


def test_a_newer_driver_than_the_gpu_is_served_by_is_taken_away_first() -> None:
    """R580 is Pascal's last: apt-get --yes ends where a package would become older, and dnf leaves what is newer."""
    pascal = hosts.with_gpus(hosts.healthy(), [("NVIDIA GeForce GTX 1080", "1b80", (6, 1))])
    found = plan(hosts.with_driver(pascal, "590.48.01", "proprietary"), InstallOptions(torch="2.14"))
    assert found.driver is not None and found.driver.branch == 580
    assert "590.48.01" in step(found, "old-driver").by_hand and not step(found, "old-driver").actions
    assert keys(found).index("old-driver") < keys(found).index("driver")
    older = plan(hosts.with_driver(pascal, "470.256.02", "proprietary"), InstallOptions(torch="2.14"))
    assert "driver" in keys(older) and "old-driver" not in keys(older)


def test_a_driver_that_is_new_enough_stays() -> None:
    found = upgraded("570.124.06", "2.14")
    assert found.driver is not None and found.driver.installed == "570.124.06"
    assert "driver" not in keys(found) and "repository" not in keys(found)
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


def test_the_newer_driver_is_told_where_nothing_is_asked_for() -> None:
    found = upgraded("470.256.02", "", ("NVIDIA GeForce RTX 3090", "2204", (8, 6)))
    assert found.wheel is not None and found.wheel.local == "2.7.1+cu118"
    assert any("driver branch 580" in note and NEWEST in note for note in found.notes)


def test_pascal_on_driver_470_with_python_314() -> None:
    """The driver may be upgraded to R580, which ends with Pascal, and torch to 2.14, which ends with CUDA 12."""
    seen = hosts.with_driver(
        hosts.with_gpus(hosts.healthy(), [("Tesla P100-PCIE-16GB", "15f8", (6, 0))]), "470.256.02", "proprietary"
    )
    seen = hosts.with_python(seen, "cp314", "2.39")
    found = plan(seen, InstallOptions())
    assert found.driver is not None and (found.driver.branch, found.driver.module) == (580, "proprietary")
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126" and not found.refused
    newer = plan(seen, InstallOptions(torch="2.15"))
    assert newer.wheel is None and "gpu" in newer.refused[0].blocked_by


@pytest.mark.parametrize("container", ["docker", "kubernetes", "apptainer"])
def test_no_driver_inside_a_container(container: str) -> None:
    seen = bare([H100])
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, container=container))
    found = plan(seen, InstallOptions())
    assert not [item for item in found.steps if item.key != "torch"]
    (refused,) = found.refused
    assert refused.blocked_by == ("owner",) and "container's host" in refused.way
    assert f"start this container with its GPUs: {ways(container).gpus}" in refused.way
    assert plan(seen, InstallOptions(cpu=True)).wheel is not None


def test_no_driver_inside_wsl() -> None:
    seen = bare([RTX4090])
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, hypervisor="wsl2"))
    found = plan(seen, InstallOptions())
    assert "Windows" in found.refused[0].way and not [item for item in found.steps if item.key != "torch"]
    unseen = bare([])
    assert not [note for note in plan(unseen, InstallOptions()).notes if "/dev/dxg" in note]
    unseen = msgspec.structs.replace(unseen, driver=hosts.change(unseen.driver, wsl=True))
    found = plan(unseen, InstallOptions())
    assert found.wheel is not None and found.wheel.build == "cpu" and [note for note in found.notes if "/dev/dxg" in note]


@pytest.mark.parametrize(
    ("tool", "way"), [("rpm-ostree", "rpm-ostree install"), ("transactional-update", "transactional-update pkg")]
)
def test_nothing_is_installed_into_a_system_that_is_an_image(tool: str, way: str) -> None:
    """dnf and zypper end there with a read-only file system; torch goes into an environment as everywhere."""
    seen = bare([H100], "fedora", "44")
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, image_tool=tool))
    found = plan(seen, InstallOptions())
    (refused,) = found.refused
    assert refused.blocked_by == ("owner",) and way in refused.way and words(found) == []
    cpu = plan(seen, InstallOptions(cpu=True))
    assert cpu.wheel is not None and not [item for item in words(cpu) if item.startswith("dnf")]


def test_every_gpu_and_driver_after_the_steps() -> None:
    """Each model of the table, on a host with each branch or none: with the steps done, check has no error of driver or torch."""
    models = [
        (row["nvml_name_examples"].split("|")[0], row["pci_device_ids"].split()[0], version(row["cc"])) for row in rows("gpus")
    ]
    models += [("Tesla K80", "102d", (3, 7)), ("Tesla M40", "17fd", (5, 2)), ("Tesla P100-PCIE-16GB", "15f8", (6, 0))]
    branches = [0, *(int(row["driver_branch"]) for row in rows("driver_branch_cuda"))]
    counted = {"kept": 0, "installed": 0, "refused": 0}
    for (name, device, cc), branch in product(models, branches):
        if "-" in device or not device.isalnum():
            continue
        counted[_outcome(name, device, (cc[0], cc[1]), branch)] += 1
    print(counted)
    assert min(counted.values()) > 0


def _outcome(name: str, device: str, cc: tuple[int, int], branch: int) -> str:
    arch = architecture_of(cc)
    flavour = "proprietary" if arch is not None and arch.open_module == "no" else "open"
    seen = hosts.with_gpus(hosts.healthy(), [(name, device, cc if branch else None)])
    seen = hosts.with_driver(seen, f"{branch}.99.99", flavour) if branch else hosts.without_driver(seen)
    seen = hosts.with_python(seen, "cp312", "2.39")
    found = plan(seen, InstallOptions())
    if found.refused:
        assert not found.wheel and isinstance(choose(cards(seen)), InstallRefused), (name, branch, found.refused)
        return "refused"
    assert isinstance(found.driver, Driver) and found.wheel is not None
    driver = found.driver.installed or show_driver(first_version(found.driver.branch))
    flavour = flavour if found.driver.installed else found.driver.module
    after = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [(name, device, cc)]), driver, flavour)
    after = hosts.with_wheel(hosts.with_python(after, "cp312", "2.39"), found.wheel)
    assert not hosts.errors(after), (name, branch, [result.rule.id for result in hosts.errors(after)])
    return "kept" if found.driver.installed else "installed"


@pytest.mark.parametrize(
    ("system", "key"),
    [
        (("ubuntu", "24.04"), "/var/lib/shim-signed/mok/MOK.der"),
        (("debian", "12"), "/var/lib/dkms/mok.pub"),
        (("rocky", "9.4"), "/var/lib/dkms/mok.pub"),
        (("sles", "15.7"), ""),
    ],
)
def test_secure_boot_wants_a_key_that_a_person_enrols(system: tuple[str, str], key: str) -> None:
    """Ubuntu's own packages ask for it by debconf, and packages that are installed without questions ask nothing: the module did not load."""
    seen = bare([H100], *system)
    for secure in (True, False):
        found = plan(msgspec.structs.replace(seen, driver=hosts.change(seen.driver, secure_boot=secure)), InstallOptions())
        there = keys(found)
        assert ("secure-boot" in there) is (secure and bool(key))
        if secure and key:
            assert there.index("driver") < there.index("secure-boot") < there.index("daemons")
            assert f"sudo mokutil --import {key}" in step(found, "secure-boot").by_hand
        check_script(found)


@pytest.mark.parametrize(
    ("installed", "cards_", "told"), [("470.256.02", [K80], True), ("580.65.06", [H100], False), ("999.1", [H100], False)]
)
def test_a_branch_of_long_ago_gets_no_updates(installed: str, cards_: list[tuple[str, str, None]], told: bool) -> None:
    driver = Driver(branch=version(installed)[0], module="", installed=installed)
    words = ended(driver, cards(bare(cards_)))
    assert ("is none of those that get updates (580 595 620)" in words and "none of them serves these GPUs" in words) is told
    (refused,) = plan(bare([K80]), InstallOptions()).refused
    assert "R470, which gets no updates any more" in refused.reason
