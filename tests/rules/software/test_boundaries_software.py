"""Packages, upgrades, the next boot, containers and MPS: every way to each verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, verdict

from torchtune_sys.model.facts.software import Mps, NextKernel, Package
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot


def package(name: str, version: str = "580.95.05-1", origin: str = "ubuntu.com", held: bool = False) -> Package:
    return Package(name=name, version=version, origin=origin, held=held)


DRIVER = package("nvidia-driver-580-open")
COMPUTE = package("libnvidia-compute-580")
UPGRADER = package("unattended-upgrades", "2.9.1")


def held(one: Package) -> Package:
    return package(one.name, held=True)


# --- upgrades


def upgrading(seen: Snapshot, *packages: Package, manager: str = "dpkg", **facts: Any) -> Snapshot:
    facts = {"automatic_upgrades": True, "upgrade_exclusions": (), "manager": manager, **facts}
    return altered(seen, **{f"software__{name}": value for name, value in facts.items()}, software__packages=packages)


@pytest.mark.parametrize(
    ("packages", "facts", "expected"),
    [
        ((DRIVER, UPGRADER), {}, FAIL),
        ((DRIVER, UPGRADER), {"automatic_upgrades": False}, PASS),
        ((DRIVER, UPGRADER), {"automatic_upgrades": NOTHING}, PASS),
        ((DRIVER, UPGRADER), {"automatic_upgrades": DENIED}, UNKNOWN),
        ((DRIVER, UPGRADER), {"manager": DENIED}, UNKNOWN),
        ((DRIVER,), {}, PASS),  # configured, but what would do it is not installed
        ((UPGRADER,), {}, NA),
        ((package(DRIVER.name, origin="debian.org"), UPGRADER), {}, FAIL),
        ((package(DRIVER.name, origin="nvidia.com"), UPGRADER), {}, NA),  # not among the origins it takes
        ((DRIVER, COMPUTE, UPGRADER), {}, FAIL),
        ((held(DRIVER), COMPUTE, UPGRADER), {}, PASS),  # it depends on the rest at exactly its own version
        ((package("nvidia-headless-580", held=True), COMPUTE, UPGRADER), {}, PASS),
        ((DRIVER, held(COMPUTE), UPGRADER), {}, FAIL),  # the driver's package may go to one without it
        ((held(DRIVER), held(COMPUTE), UPGRADER), {}, PASS),
        ((held(COMPUTE), UPGRADER), {}, PASS),
        ((DRIVER, COMPUTE, UPGRADER), {"upgrade_exclusions": ("nvidia-",)}, PASS),
        ((DRIVER, COMPUTE, UPGRADER), {"upgrade_exclusions": ("libnvidia-",)}, FAIL),
        ((DRIVER, UPGRADER), {"upgrade_exclusions": ("driver",)}, FAIL),  # matched from the start of a name
        ((DRIVER, UPGRADER), {"upgrade_exclusions": ("(", "nvidia-.*")}, PASS),  # what is no expression is passed over
        ((package("kmod-nvidia", origin="nvidia.com"),), {"manager": "rpm"}, FAIL),
        ((package("kmod-nvidia"), package("nvidia-driver", held=True)), {"manager": "rpm"}, PASS),
        ((package("kmod-nvidia", held=True), package("nvidia-driver")), {"manager": "rpm"}, PASS),  # they depend on each other
        ((package("kmod-nvidia"),), {"manager": "rpm", "automatic_upgrades": False}, PASS),
    ],
)
def test_who_may_replace_the_driver(
    healthy: Snapshot, packages: tuple[Package, ...], facts: dict[str, Any], expected: Verdict
) -> None:
    assert verdict(upgrading(healthy, *packages, **facts), "driver-upgrades-unattended") is expected


@pytest.mark.parametrize("packages", [NOTHING, DENIED])
def test_without_a_list_of_packages_nothing_is_said_of_them(healthy: Snapshot, packages: Any) -> None:
    expected = NA if packages is NOTHING else UNKNOWN
    seen = altered(healthy, software__packages=packages, software__automatic_upgrades=True, software__manager="dpkg")
    for rule_id in ("driver-upgrades-unattended", "driver-installed-twice", "container-toolkit-missing", "docker-may-lose-gpus"):
        assert verdict(seen, rule_id) is expected


@pytest.mark.parametrize(
    ("runfile", "packages", "expected"),
    [
        (True, (DRIVER,), FAIL),
        (True, (), PASS),
        (False, (DRIVER,), PASS),
        (False, (), NA),
        (False, (UPGRADER,), NA),
        (NOTHING, (DRIVER,), NA),
        (DENIED, (DRIVER,), UNKNOWN),
    ],
)
def test_two_installations_of_the_driver(
    healthy: Snapshot, runfile: Any, packages: tuple[Package, ...], expected: Verdict
) -> None:
    seen = altered(healthy, software__runfile_installed=runfile, software__packages=packages)
    assert verdict(seen, "driver-installed-twice") is expected


PACKAGES_OF_THE_DRIVER = {
    "Debian, Ubuntu": (
        "nvidia-driver",
        "nvidia-driver-580-open",
        "nvidia-dkms-580",
        "nvidia-kernel-source-580",
        "nvidia-headless-580",
    ),
    "their libraries": ("libnvidia-compute-580",),
    "NVIDIA's repository": ("cuda-drivers-580", "kmod-nvidia-open-dkms", "nvidia-open", "nvidia-open-580"),
    "RPM Fusion": ("akmod-nvidia", "kmod-nvidia", "xorg-x11-drv-nvidia-cuda"),
    "SUSE": ("nvidia-compute-G06", "nvidia-open-driver-G06-signed-kmp-default"),
    "Arch": ("nvidia-utils", "nvidia-open-dkms"),
}


@pytest.mark.parametrize("vendor", PACKAGES_OF_THE_DRIVER)
def test_how_packages_of_the_driver_are_called(healthy: Snapshot, vendor: str) -> None:
    for name in PACKAGES_OF_THE_DRIVER[vendor]:
        seen = altered(healthy, software__runfile_installed=True, software__packages=(package(name),))
        assert verdict(seen, "driver-installed-twice") is FAIL


def kernel(**facts: Any) -> NextKernel:
    return NextKernel(**{"release": "6.8.0-50-generic", "running": False, "nvidia": True, "headers": True, **facts})


@pytest.mark.parametrize(
    ("wanted_by", "manager", "next_kernel", "expected"),
    [
        (("linux-base",), "dpkg", kernel(running=True), FAIL),
        ((), "dpkg", kernel(running=True), FAIL),  # asked for, by whom was not noted
        (("linux-base",), DENIED, DENIED, FAIL),
        (NOTHING, "dpkg", kernel(), PASS),  # there a package with a new kernel asks
        (NOTHING, "dpkg", NOTHING, PASS),
        (NOTHING, DENIED, kernel(), UNKNOWN),
        (DENIED, "dpkg", kernel(), UNKNOWN),
        *((NOTHING, manager, kernel(), FAIL) for manager in ("rpm", "pacman", NOTHING)),
        *((NOTHING, manager, kernel(running=True), PASS) for manager in ("rpm", "pacman", NOTHING)),
        *((NOTHING, manager, NOTHING, NA) for manager in ("rpm", "pacman", NOTHING)),
        (NOTHING, "rpm", DENIED, UNKNOWN),
    ],
)
def test_what_waits_for_a_reboot(healthy: Snapshot, wanted_by: Any, manager: Any, next_kernel: Any, expected: Verdict) -> None:
    facts = {"software__reboot_required": wanted_by, "software__manager": manager, "software__next_kernel": next_kernel}
    assert verdict(altered(healthy, software__packages=(UPGRADER,), **facts), "reboot-pending") is expected


@pytest.mark.parametrize(("running", "expected"), [(False, FAIL), (True, PASS)])
def test_where_no_package_would_ask_for_a_reboot_the_kernels_are_compared(
    healthy: Snapshot, running: bool, expected: Verdict
) -> None:
    """Debian itself writes no /run/reboot-required."""
    facts = {"software__reboot_required": NOTHING, "software__manager": "dpkg", "software__next_kernel": kernel(running=running)}
    assert verdict(altered(healthy, software__packages=(DRIVER,), **facts), "reboot-pending") is expected
    asks = package("update-notifier-common")
    assert verdict(altered(healthy, software__packages=(DRIVER, asks), **facts), "reboot-pending") is PASS
    assert verdict(altered(healthy, software__packages=DENIED, **facts), "reboot-pending") is (PASS if running else UNKNOWN)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"nouveau": True, "nouveau_barred": False}, FAIL),
        ({"nouveau": True, "nouveau_barred": True}, PASS),
        ({"nouveau": True, "nouveau_barred": DENIED}, UNKNOWN),
        ({"nouveau": True, "nouveau_barred": False, "nvidia": False}, NA),
        ({"nouveau": True, "nouveau_barred": False, "nvidia": DENIED}, FAIL),
        ({"nouveau": False, "nouveau_barred": False}, NA),
        ({"nouveau": NOTHING, "nouveau_barred": False}, NA),
        ({"nouveau": DENIED, "nouveau_barred": False}, UNKNOWN),
    ],
)
def test_which_driver_comes_first_at_the_next_boot(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    assert verdict(altered(healthy, software__next_kernel=kernel(**facts)), "nouveau-not-barred") is expected


@pytest.mark.parametrize(("found", "expected"), [(NOTHING, NA), (DENIED, UNKNOWN)])
@pytest.mark.parametrize("rule_id", ["driver-not-built-for-next-boot", "nouveau-not-barred"])
def test_a_kernel_that_is_not_seen_is_not_judged(healthy: Snapshot, rule_id: str, found: Any, expected: Verdict) -> None:
    assert verdict(altered(healthy, software__next_kernel=found), rule_id) is expected


# --- containers


@pytest.mark.parametrize("rule_id", ["container-toolkit-missing", "docker-may-lose-gpus", "docker-refuses-clone3"])
@pytest.mark.parametrize(("docker", "expected"), [(False, NA), (NOTHING, NA), (DENIED, UNKNOWN)])
def test_without_docker_nothing_is_asked_of_it(healthy: Snapshot, rule_id: str, docker: Any, expected: Verdict) -> None:
    assert verdict(altered(healthy, software__docker=docker), rule_id) is expected


TOOLKIT = "nvidia-container-toolkit"


@pytest.mark.parametrize(
    ("names", "expected"), [((), FAIL), ((TOOLKIT,), PASS), ((f"{TOOLKIT}-base",), PASS), (("libnvidia-container1",), FAIL)]
)
def test_either_package_brings_the_toolkit(healthy: Snapshot, names: tuple[str, ...], expected: Verdict) -> None:
    seen = altered(healthy, software__packages=tuple(package(name, "1.18.1-1") for name in names))
    assert verdict(seen, "container-toolkit-missing") is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"cdi_drivers": {"/etc/cdi/nvidia.yaml": "580.95.05"}}, PASS),  # docker run --device nvidia.com/gpu=all
        ({"runtime_mode": "auto"}, UNKNOWN),  # from an archive or by the GPU operator; or the package is gone and its file stayed
        ({"runtime_mode": DENIED}, UNKNOWN),
        ({"runtime_mode": NOTHING, "cdi_drivers": {}}, FAIL),
    ],
)
def test_gpus_for_containers_without_the_package(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    seen = altered(healthy, software__packages=(), **{f"software__{key}": value for key, value in facts.items()})
    assert verdict(seen, "container-toolkit-missing") is expected


@pytest.mark.parametrize(
    ("version", "facts", "expected"),
    [
        ("1.17.8-1", {}, FAIL),
        ("1.18.0-1", {}, PASS),
        ("1.18", {}, PASS),
        ("2.0.0-1", {}, PASS),
        ("0:1.18.0-1", {}, PASS),
        ("1.18.0-1", {"runtime_mode": "legacy"}, FAIL),
        ("1.17.8-1", {"runtime_mode": "legacy"}, FAIL),
        ("1.17.8-1", {"runtime_mode": "cdi"}, PASS),
        ("1.17.8-1", {"runtime_mode": "jit-cdi"}, PASS),
        ("1.17.8-1", {"runtime_mode": DENIED}, UNKNOWN),
        ("1.17.8-1", {"runtime_mode": NOTHING}, FAIL),
        ("1.18.0-1", {"runtime_mode": NOTHING}, PASS),
        ("1.17.8-1", {"cgroup_driver": "cgroupfs"}, PASS),
        ("1.17.8-1", {"cgroup_driver": DENIED}, UNKNOWN),
        ("1.17.8-1", {"device_links": True}, PASS),
        ("1.17.8-1", {"device_links": DENIED}, UNKNOWN),
        ("", {}, NA),
    ],
)
@pytest.mark.parametrize("name", [TOOLKIT, f"{TOOLKIT}-base"])
def test_who_takes_gpus_from_containers(
    healthy: Snapshot, name: str, version: str, facts: dict[str, Any], expected: Verdict
) -> None:
    facts = {"cgroup_driver": "systemd", "runtime_mode": "auto", "device_links": False, **facts}
    packages = (package(name, version),) if version else ()
    seen = altered(healthy, software__packages=packages, **{f"software__{key}": value for key, value in facts.items()})
    assert verdict(seen, "docker-may-lose-gpus") is expected


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        (NOTHING, []),
        ({}, []),
        ({"/etc/cdi/a.yaml": "580.95.05"}, [("/etc/cdi/a.yaml", PASS)]),
        (
            {"/etc/cdi/a.yaml": "570.1", "/var/run/cdi/b.yaml": "580.95.05"},
            [("/etc/cdi/a.yaml", FAIL), ("/var/run/cdi/b.yaml", PASS)],
        ),
    ],
)
def test_each_specification_has_its_own_version(healthy: Snapshot, drivers: Any, expected: list[tuple[str, Verdict]]) -> None:
    seen = altered(healthy, software__cdi_drivers=drivers, driver__module_version="580.95.05")
    assert lines(seen, "cdi-specification-stale") == expected
    assert (verdict(seen, "cdi-specification-stale") is NA) is not bool(expected)


@pytest.mark.parametrize(
    ("manager", "name", "version", "expected"),
    [
        ("dpkg", "docker-ce", "5:20.10.9~3-0~ubuntu-focal", FAIL),
        ("dpkg", "docker-ce", "5:20.10.10~3-0~ubuntu-focal", PASS),
        ("dpkg", "docker-ce", "20.10.10", PASS),
        ("dpkg", "docker-ce", "5:19.03.15~3-0~ubuntu-focal", FAIL),
        ("dpkg", "docker-ce", "5:20.9.99-1", FAIL),
        ("dpkg", "docker-ce", "5:21.0.0-1", PASS),
        ("rpm", "docker-ce", "3:20.10.9-3.el7", FAIL),
        ("rpm", "docker", "2:1.13.1-210.git7d71120.el7.centos", FAIL),
        ("rpm", "docker", "1.14", NA),
        ("rpm", "docker", "1.14.2-1", NA),
        ("rpm", "docker", "25.0.3-1.amzn2", NA),  # Amazon's own
        ("dpkg", "docker", "1.13.1-1", NA),  # Debian's package of that name is another program
        ("dpkg", "docker.io", "20.10.5+dfsg1-1", NA),
        ("rpm", "moby-engine", "20.10.5-1", NA),
    ],
)
def test_whose_docker_is_too_old(healthy: Snapshot, manager: str, name: str, version: str, expected: Verdict) -> None:
    seen = altered(healthy, software__manager=manager, software__packages=(package(name, version),), software__docker=True)
    assert verdict(seen, "docker-refuses-clone3") is expected


# --- what other processes hold


@pytest.mark.parametrize(
    ("control", "listening", "owner", "uid", "by_name", "by_default"),
    [
        (True, True, 0, 1000, PASS, PASS),
        (True, True, 1000, 1000, PASS, PASS),
        (True, True, 1001, 1000, FAIL, FAIL),
        (True, True, 1001, 0, PASS, PASS),  # root is served by every daemon
        (True, True, 1, 1000, FAIL, FAIL),
        (True, False, 0, 1000, FAIL, FAIL),
        (False, False, NOTHING, 1000, PASS, PASS),  # a directory or a name alone: CUDA runs without the daemon
        (True, True, DENIED, 1000, UNKNOWN, UNKNOWN),
        (True, DENIED, 0, 1000, UNKNOWN, UNKNOWN),
    ],
)
def test_which_daemon_serves_this_user(
    healthy: Snapshot, control: Any, listening: Any, owner: Any, uid: int, by_name: Verdict, by_default: Verdict
) -> None:
    for asked_for, expected in ((True, by_name), (False, by_default)):
        mps = Mps(directory="/tmp/nvidia-mps", asked_for=asked_for, control=control, listening=listening, owner=owner)
        seen = altered(healthy, software__mps=mps, session__uid=uid)
        assert lines(seen, "mps-server-unreachable") == ([] if expected is UNKNOWN else [("/tmp/nvidia-mps", expected)])
        assert verdict(seen, "mps-server-unreachable") is expected


@pytest.mark.parametrize(("ranks", "expected"), [(None, PASS), (8, PASS), (9, FAIL)])
def test_a_daemon_that_is_named_is_missed_where_ranks_share_a_gpu(
    healthy: Snapshot, ranks: int | None, expected: Verdict
) -> None:
    mps = Mps(directory="/tmp/mps", asked_for=True, control=False, listening=False, owner=NOTHING)
    seen = altered(healthy, software__mps=mps)
    asked = msgspec.structs.replace(seen, intent=msgspec.structs.replace(seen.intent, ranks=ranks))
    assert verdict(asked, "mps-server-unreachable") is expected


@pytest.mark.parametrize(
    ("container", "control", "expected"),
    [
        ("docker", True, NA),
        ("docker", False, FAIL),
        ("docker", DENIED, UNKNOWN),
        (DENIED, False, UNKNOWN),
        ("", True, FAIL),
        ("", DENIED, UNKNOWN),
    ],
)
def test_a_daemon_outside_the_container_is_not_seen(healthy: Snapshot, container: Any, control: Any, expected: Verdict) -> None:
    mps = Mps(directory="/tmp/mps", asked_for=True, control=control, listening=False, owner=NOTHING)
    assert verdict(altered(healthy, software__mps=mps, system__container=container), "mps-server-unreachable") is expected
