"""Hosts of rpm and pacman: packages, locks, what upgrades by itself, and the kernel that boots next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge, load
from torchtune_sys.formats.package_records import RPM_QUERY, parse_pacman, parse_rpm
from torchtune_sys.model.facts.software import NextKernel, SoftwareFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, absent
from torchtune_sys.probes.software import next_boot, rpm

RPM = "base-rpm-host"
VERSIONLOCK = """\
# Added lock on Tue Nov  4 09:12:44 2025
nvidia-driver-cuda-3:580.95.05-1.el9.*
# Added exclude on Tue Nov  4 09:13:00 2025
!kmod-nvidia-open-dkms-3:580.105.08-1.el9.*
"""


def software(name: str = RPM, **overlay: Any) -> SoftwareFacts:
    found = load(name, **overlay).software
    assert not isinstance(found, Missing)
    return found


def held(**overlay: Any) -> set[str]:
    packages = software(**overlay).packages
    assert not isinstance(packages, Missing)
    return {package.name for package in packages if package.held}


def next_kernel(**overlay: Any) -> NextKernel:
    found = software(**overlay).next_kernel
    assert not isinstance(found, Missing)
    return found


def test_what_rpm_prints() -> None:
    printed = (
        "nvidia-driver-cuda\t3:580.95.05-1.el9\tNVIDIA Corporation\npackage akmod-nvidia is not installed\n"
        "docker-ce\t3:28.5.1-1.el9\tDocker\nrunc\t1.2.4-1\tFedora Copr - user jdoe\n"
    )
    found = {package["name"]: package for package in parse_rpm(printed)}
    assert set(found) == {"nvidia-driver-cuda", "docker-ce", "runc"}
    assert (found["docker-ce"]["version"], found["docker-ce"]["origin"]) == ("3:28.5.1-1.el9", "docker.com")
    assert found["runc"]["origin"] == "", "a person's name stays on the host"


def test_rpm_is_asked_by_exact_names() -> None:
    assert RPM_QUERY[:2] == ("rpm", "-q") and not any("*" in word for word in RPM_QUERY[4:])


def test_pacman_keeps_a_directory_for_each_package() -> None:
    found = parse_pacman(
        ["ALPM_DB_VERSION", "nvidia-utils-580.95.05-1", "linux-6.17.7.arch1-1", "docker-1:28.5.1-1", "docker-buildx-0.29.1-1"]
    )
    assert [(package["name"], package["version"]) for package in found] == [
        ("nvidia-utils", "580.95.05-1"),
        ("docker", "1:28.5.1-1"),
    ]


def test_locks_of_each_tool() -> None:
    assert held() == set()
    assert held(files={"/etc/dnf/plugins/versionlock.list": VERSIONLOCK}) == {"nvidia-driver-cuda"}
    assert held(files={"/etc/dnf/dnf.conf": "[main]\nexcludepkgs=kmod-nvidia*\n"}) == {"kmod-nvidia-open-dkms"}
    toml = 'version = "1.0"\n\n[[packages]]\nname = "*nvidia*"\n[[packages.conditions]]\nkey = "evr"\ncomparator = "="\nvalue = "3:580"\n'
    assert "kmod-nvidia-open-dkms" in held(files={"/etc/dnf/versionlock.toml": toml})
    assert held(files={"/etc/dnf/versionlock.toml": toml.replace('"="', '"!="')}) == set()
    zypp = "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: nvidia-driver*\n"
    assert held(files={"/etc/zypp/locks": zypp}) == {"nvidia-driver-cuda"}
    assert held(files={"/etc/zypp/locks": zypp + "version: == 3:580.105.08-1\n"}) == set()


def test_a_pacman_host_upgrades_nothing_by_itself() -> None:
    arch = {
        "files": {"/usr/lib/sysimage/rpm/rpmdb.sqlite": None, "/etc/pacman.conf": "[options]\nIgnorePkg = nvidia-utils\n"},
        "dirs": {"/var/lib/pacman/local": ["nvidia-utils-580.95.05-1"]},
        "answers": {"packages": [{"name": "nvidia-utils", "version": "580.95.05-1", "held": False, "origin": ""}]},
    }
    facts = software(**arch)
    assert facts.manager == "pacman" and absent(facts.automatic_upgrades)
    assert held(**arch) == {"nvidia-utils"}
    assert judge(load(RPM, **arch))["driver-upgrades-unattended"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"/etc/yum/yum-cron.conf": "[commands]\nupdate_cmd = default\napply_updates = yes\n"}, "yum-cron"),
        ({"/etc/yum/yum-cron.conf": "[commands]\nupdate_cmd = security\napply_updates = yes\n"}, ""),
        ({"/etc/yum/yum-cron.conf": "[commands]\nupdate_cmd = default\napply_updates = no\n"}, ""),
    ],
)
def test_yum_cron(files: dict[str, str], found: str) -> None:
    wants = "/etc/systemd/system/multi-user.target.wants/yum-cron.service"
    facts = software(files={**files, wants: ""})
    assert facts.upgrader == found if found else absent(facts.automatic_upgrades)


def test_image_based_systems_upgrade_the_next_boot() -> None:
    files = {"/run/ostree-booted": "", "/etc/systemd/system/timers.target.wants/dnf-automatic-install.timer": ""}
    assert absent(software(files=files).automatic_upgrades)


def test_a_host_of_no_known_package_manager_is_not_judged() -> None:
    results = judge(load(RPM, files={"/usr/lib/sysimage/rpm/rpmdb.sqlite": None}, answers={"packages": {"error": "absent"}}))
    for rule in ("driver-upgrades-unattended", "docker-refuses-clone3", "driver-installed-twice"):
        assert results[rule].verdict is Verdict.NA, rule


def test_kernels_of_an_rpm_host() -> None:
    older, newer = "5.14.0-570.el9.x86_64", "5.14.0-570.26.1.el9_6.x86_64"
    realtime = "5.14.0-999.1.1.el9_6.x86_64+rt"
    found = next_kernel(files={f"/boot/vmlinuz-{name}": "" for name in (older, newer, realtime)})
    assert found.release == newer and not found.running
    assert next_kernel(files={f"/boot/vmlinuz-{older}": ""}).running


def test_what_dkms_did() -> None:
    release = "5.14.0-570.12.1.el9_6.x86_64"
    tree = "/var/lib/dkms/nvidia-open/580.95.05"
    assert absent(next_kernel().dkms)
    assert next_kernel(files={f"{tree}/{release}/x86_64/module/nvidia.ko.xz": ""}).dkms == "built"
    assert next_kernel(files={f"{tree}/build/make.log": ""}).dkms == "failed"
    assert next_kernel(files={f"{tree}/5.14.0-1.el9.x86_64/x86_64/log/make.log": ""}).dkms == "not-built"
    assert absent(next_kernel(files={"/var/lib/dkms/zfs/2.3.0/build/make.log": ""}).dkms)


def test_a_kernel_without_nouveau_needs_no_bar() -> None:
    folder = "/lib/modules/6.8.0-45-generic/kernel/drivers/gpu/drm/nouveau"
    unbarred = {"/etc/modprobe.d/nvidia-graphics-drivers-kms.conf": None}
    for there in ({}, {f"{folder}/notes": ""}):
        files = {f"{folder}/nouveau.ko.zst": None, **unbarred, **there}
        assert judge(load("healthy", files=files))["nouveau-not-barred"].verdict is Verdict.NA
    for end in ("", ".xz", ".gz"):
        files = {f"{folder}/nouveau.ko.zst": None, **unbarred, f"{folder}/nouveau.ko{end}": ""}
        assert judge(load("healthy", files=files))["nouveau-not-barred"].verdict is Verdict.FAIL


@pytest.mark.parametrize("folder", ["/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d"])
def test_packages_bar_nouveau_where_they_may(folder: str) -> None:
    files = {"/etc/modprobe.d/nvidia-graphics-drivers-kms.conf": None, f"{folder}/50-x.conf": "install nouveau /bin/true\n"}
    assert judge(load("healthy", files=files))["nouveau-not-barred"].verdict is Verdict.PASS
    wrong = {"/etc/modprobe.d/nvidia-graphics-drivers-kms.conf": None, f"{folder}/50-x.disabled": "blacklist nouveau\n"}
    assert judge(load("healthy", files=wrong))["nouveau-not-barred"].verdict is Verdict.FAIL


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    parse_rpm(text)
    parse_pacman(text.split("\n"))
    for parse in (
        rpm.parse_ini,
        rpm.parse_excludes,
        rpm.parse_versionlock,
        rpm.parse_versionlock_toml,
        rpm.parse_zypp_locks,
        rpm.parse_ignored,
        next_boot.flavour,
        next_boot.release_key,
        next_boot.bars_nouveau,
        next_boot.bars_nouveau_on_command_line,
    ):
        parse(text)


def test_directories_in_place_of_files() -> None:
    places = (
        "/etc/dnf/automatic.conf", "/etc/dnf/versionlock.toml", "/etc/zypp/locks", "/etc/pacman.conf", "/etc/modprobe.d/a.conf",
        "/proc/cmdline", "/etc/yum.repos.d/cuda.repo",
    )  # fmt: skip
    seen = load(RPM, files={**{f"{place}/inside": "x" for place in places}, "/proc/cmdline": None})
    assert not isinstance(seen.software, Missing)
    assert all(result.verdict is not Verdict.CRASHED for result in judge(seen).values())
