"""Packages, kernels and container runtimes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge, load
from torchtune_sys.formats.package_records import parse_status
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, absent
from torchtune_sys.probes.software import apt, gpu, next_boot
from torchtune_sys.probes.software.apt import parse_pins

STATUS = b"""Package: libnvidia-compute-580
Status: install ok installed
Maintainer: Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>
Version: 580.95.05-0ubuntu0.24.04.1
Description: NVIDIA libcompute package
 Version: of a continued line is none

Package: nvidia-driver-570
Status: deinstall ok config-files
Version: 570.1

Package: docker-ce
Status: hold ok installed
Version: 5:28.5.1-1~ubuntu.24.04~noble

Package: docker-ce-cli
Status: install ok installed
Version: 5:28.5.1
"""


def test_removed_packages_are_not_installed_and_held_ones_are_held() -> None:
    found = {package["name"]: package for package in parse_status(STATUS)}
    assert set(found) == {"libnvidia-compute-580", "docker-ce"}
    assert found["docker-ce"]["held"] and not found["libnvidia-compute-580"]["held"]
    assert found["libnvidia-compute-580"]["version"] == "580.95.05-0ubuntu0.24.04.1"


@given(st.binary(max_size=400))
def test_any_bytes_of_a_package_list(noise: bytes) -> None:
    assert isinstance(parse_status(noise), list)
    assert parse_status(STATUS + b"\n" + noise)[0]["name"] == "libnvidia-compute-580"


@given(st.text(max_size=300))
def test_any_configuration(text: str) -> None:
    assert apt.parse_automatic(text) in (True, False)
    assert isinstance(apt.parse_exclusions(text + "Package-Blacklist {" + text), tuple)
    assert gpu.parse_mode(text)
    assert gpu.parse_cgroup_driver(text) in ("", "systemd", "cgroupfs")
    assert isinstance(gpu.parse_cdi(text), str)
    next_boot.release_key(text)


def test_a_later_file_switches_automatic_upgrades_off_again() -> None:
    on, off = 'APT::Periodic::Unattended-Upgrade "1";\n', 'APT::Periodic::Unattended-Upgrade "0";\n'
    assert apt.parse_automatic(on)
    assert not apt.parse_automatic(on + off)


def test_without_a_driver_nothing_is_looked_for() -> None:
    facts = load("healthy", files={"/proc/driver/nvidia/version": None}).software
    assert not isinstance(facts, Missing)
    assert absent(facts.packages) and absent(facts.next_kernel)


def test_a_list_of_packages_that_is_wrong_is_unknown() -> None:
    results = judge(load("healthy", answers={"packages": [{"name": 3}]}))
    assert results["docker-refuses-clone3"].verdict is Verdict.UNKNOWN


def test_kernels_are_ordered_by_number_and_other_flavours_are_left_out() -> None:
    files = {"/boot/vmlinuz-6.8.0-100-generic": "", "/boot/vmlinuz-6.11.0-1-lowlatency": "", "/boot/vmlinuz-6.8.0-9-generic": ""}
    facts = load("healthy", files=files).software
    assert not isinstance(facts, Missing) and not isinstance(facts.next_kernel, Missing)
    assert facts.next_kernel.release == "6.8.0-100-generic" and not facts.next_kernel.running


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({}, None),
        ({"/etc/docker/daemon.json": "{}"}, None),
        ({"/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "/opt/nv/bin/nvidia-container-runtime"}}}'}, "auto"),
        ({"/etc/nvidia-container-runtime/config.toml": 'mode = "cdi"'}, "cdi"),
        ({"/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml": 'mode = "cdi"'}, "cdi"),
    ],
)
def test_which_runtime_is_configured(files: dict[str, str], mode: str | None) -> None:
    facts = load("healthy", files=files).software
    assert not isinstance(facts, Missing)
    assert (None if isinstance(facts.runtime_mode, Missing) else facts.runtime_mode) == mode


def test_directories_in_place_of_files() -> None:
    places = ("/etc/docker/daemon.json", "/etc/nvidia-container-runtime/config.toml", "/etc/cdi/nvidia.yaml")
    facts = load("healthy", files={f"{place}/inside": "x" for place in places}).software
    assert not isinstance(facts, Missing)
    assert judge(load("healthy", files={f"{place}/inside": "x" for place in places}))["docker-may-lose-gpus"].verdict is not (
        Verdict.CRASHED
    )


def test_pins_hold_only_what_they_keep() -> None:
    assert parse_pins("Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: -10\n") == ()
    assert parse_pins("# x\nPackage: nvidia-*\nPin: version 1.2-3\nPin-Priority: 1001\n") == ("nvidia-*",)
    assert parse_pins("Package: nvidia-*\nPin: release *\nPin-Priority: 100\n") == ()


@given(st.text(max_size=200))
def test_any_preferences(text: str) -> None:
    parse_pins(text)
    parse_pins("Package: *\nPin: version 1\nPin-Priority: 1\n" + text)


def unattended(*packages: tuple[str, bool]) -> Verdict:
    upgrades = {"name": "unattended-upgrades", "version": "2.9", "held": False, "origin": "ubuntu.com"}
    listed = [{"name": name, "version": "580.95.05-0ubuntu1", "held": held, "origin": "ubuntu.com"} for name, held in packages]
    return judge(load("healthy", answers={"packages": [*listed, upgrades]}))["driver-upgrades-unattended"].verdict


def test_a_held_metapackage_keeps_what_it_depends_on() -> None:
    """nvidia-driver-535 depends on libnvidia-compute-535 (= its own version), nvidia-dkms-535 on no library."""
    assert unattended(("nvidia-driver-580-open", True), ("libnvidia-compute-580", False)) is Verdict.PASS
    assert unattended(("nvidia-headless-580-server", True), ("libnvidia-compute-580-server", False)) is Verdict.PASS
    assert unattended(("nvidia-dkms-580", True), ("libnvidia-compute-580", False)) is Verdict.FAIL
    assert unattended(("libnvidia-compute-580", True)) is Verdict.PASS
