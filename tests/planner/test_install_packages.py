"""The commands per distribution: the driver and what pins it, the fabric manager, headers, EPEL."""

from __future__ import annotations

import subprocess

import install_hosts as hosts
import msgspec
import pytest
from click.testing import CliRunner
from install_plans import H100, P100, RTX4090, RTX5090, SYSTEMS, V100, bare, keys, step, words

from conftest import load
from torchtune_sys.cli.main import cli
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.install import InstallOptions
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.install.plan import plan


@pytest.mark.parametrize(
    ("os_id", "release", "card", "lines"),
    [
        (
            "ubuntu",
            "24.04",
            H100,
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install --yes nvidia-driver-pinning-580",
                "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install --yes nvidia-open nvidia-fabricmanager",
            ],
        ),
        (
            "debian",
            "13",
            P100,
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install --yes nvidia-driver-pinning-580",
                "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install --yes cuda-drivers",
            ],
        ),
        (
            "rocky",
            "9.4",
            RTX5090,
            [
                "dnf module reset --assumeyes nvidia-driver",
                "dnf module enable --assumeyes nvidia-driver:580-open",
                "dnf install --assumeyes nvidia-open",
            ],
        ),
        (
            "amzn",
            "2023",
            V100,
            [
                "dnf module reset --assumeyes nvidia-driver",
                "dnf module enable --assumeyes nvidia-driver:580-dkms",
                "dnf install --assumeyes cuda-drivers",
            ],
        ),
        (
            "rhel",
            "10.1",
            H100,
            [
                "dnf install --assumeyes python3-dnf-plugin-versionlock",
                "dnf versionlock add *nvidia*580*",
                "dnf install --assumeyes nvidia-open nvidia-fabricmanager",
            ],
        ),
        ("fedora", "44", RTX4090, ["dnf versionlock add *nvidia*580*", "dnf install --assumeyes nvidia-open"]),
        (
            "sles",
            "15.7",
            RTX4090,
            ["zypper --non-interactive install --auto-agree-with-licenses nvidia-open<581"],
        ),
        ("arch", "", RTX4090, ["pacman --sync --needed --noconfirm nvidia-open nvidia-utils"]),
    ],
)
def test_the_commands_of_the_guide(os_id: str, release: str, card: tuple[str, str, None], lines: list[str]) -> None:
    """Driver installation guide 620, Table 5, and its version locking; the fabric manager goes in with the driver."""
    boards = 8 if card is H100 else 1
    assert words(plan(bare([card] * boards, os_id, release), InstallOptions()), "driver") == lines


@pytest.mark.parametrize(("os_id", "release"), [("rocky", "8"), ("rocky", "10"), ("fedora", "44"), ("amzn", "2023")])
def test_what_pins_the_branch_does_not_keep_the_hold_from_what_is_installed(os_id: str, release: str) -> None:
    """dnf adds no lock beside one that matches: with the branch's own in place the hold would lock nothing."""
    before, lock = words(plan(bare([H100], os_id, release), InstallOptions()), "hold")[-2:]
    assert "rpm --query --all" in before and before.endswith(" versionlock delete")
    assert lock.partition(" | ")[0] == before.partition(" | ")[0] and lock.endswith(" versionlock add")


@pytest.mark.parametrize(("os_id", "release"), [("ubuntu", "24.04"), ("debian", "13"), ("rocky", "9"), ("sles", "15.7")])
def test_older_branches_are_packaged_under_other_names(os_id: str, release: str) -> None:
    """Driver guide, Kernel Modules: nvidia-open and what pins it are there from R570 on."""
    driver = step(plan(bare([H100], os_id, release), InstallOptions(branch=535)), "driver")
    assert not driver.actions and "driver-installation-guide" in driver.by_hand
    assert step(plan(bare([H100], os_id, release), InstallOptions(branch=595)), "driver").actions


@pytest.mark.parametrize(
    ("os_id", "release", "line"),
    [("rocky", "9.4", " versionlock delete"), ("sles", "15.7", "zypper --non-interactive removelock")],
)
def test_the_hold_of_an_earlier_branch_does_not_keep_the_next_one_away(os_id: str, release: str, line: str) -> None:
    there = Os(id=os_id, id_like=(), version=release, pretty_name=os_id, codename="")
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "570.124.06")
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, os=there))
    lines = words(plan(seen, InstallOptions(torch="2.15")), "driver")
    assert any(line in told for told in lines[:-1]) and "nvidia-open" in lines[-1]


def test_the_distributions_own_driver_stays_its_own() -> None:
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "535.183.01")
    seen = hosts.with_python(seen, "cp312", "2.39")
    own = (Package(name="nvidia-driver-535-server-open", version="535.183.01-0ubuntu1", origin="ubuntu.com"),)
    seen = msgspec.structs.replace(seen, software=hosts.change(seen.software, packages=own))
    found = plan(seen, InstallOptions(torch="2.15"))
    assert "repository" not in keys(found)
    assert words(found, "driver")[-1].endswith("apt-get -o DPkg::Lock::Timeout=900 install --yes nvidia-driver-580-server-open")
    assert "persistence mode off" in step(found, "daemons").why  # its unit says so, and is started by udev
    newer = step(plan(seen, InstallOptions(torch="2.15", branch=620)), "driver")  # Ubuntu has none of it
    assert not newer.actions and "no source names" in newer.by_hand


def test_the_fabric_manager_beside_a_driver_that_stays_has_its_version() -> None:
    seen = load("typical/azure-nd-h100.fabric-manager-not-running")
    found = plan(seen, InstallOptions())
    assert words(found, "fabric-manager")[0].endswith("nvidia-fabricmanager=580.95.05*")
    rocky = Os(id="rocky", id_like=("rhel",), version="9.4", pretty_name="Rocky Linux 9.4", codename="")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, os=rocky)), InstallOptions())
    assert words(found, "fabric-manager")[0] == "dnf install --assumeyes nvidia-fabricmanager-580.95.05"


@pytest.mark.parametrize(
    ("os_id", "release", "builder"),
    [
        ("rocky", "8.10", "powertools"),
        ("almalinux", "9.4", "crb"),
        ("rocky", "10.0", "crb"),
        ("ol", "9.5", "ol9_codeready_builder"),
        ("rhel", "9.4", ""),
    ],
)
def test_epel_comes_with_what_it_leans_on(os_id: str, release: str, builder: str) -> None:
    """docs.fedoraproject.org/en-US/epel/getting-started; how RHEL enables it depends on where it is from."""
    found = plan(bare([H100], os_id, release), InstallOptions())
    assert any(line == f"dnf config-manager --set-enabled {builder}" for line in words(found, "epel")) is bool(builder)
    assert ("CodeReady Builder" in step(found, "epel").by_hand) is not bool(builder)
    by_url = [line for line in words(found, "epel") if "://" in line]
    assert bool(by_url) is not bool(builder)
    assert all("--setopt=localpkg_gpgcheck=1" in line for line in by_url)  # else dnf takes an unsigned one


@pytest.mark.parametrize(("kernel", "told"), [("6.12.0-100.28.2.2.el9uek.x86_64", True), ("5.14.0-503.el9.x86_64", False)])
def test_oracles_own_kernel_has_a_compiler_of_its_own(kernel: str, told: bool) -> None:
    """Driver guide, Oracle Linux: with the system's gcc dkms builds no module for a UEK."""
    seen = bare([H100], "ol", "9.5")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, kernel=kernel)), InstallOptions())
    assert ("gcc-toolset" in step(found, "headers").by_hand) is told and step(found, "headers").actions


def test_suses_headers_are_of_the_flavour_that_runs_and_in_its_version() -> None:
    """docs.nvidia.com/cuda/cuda-installation-guide-linux: the version is that of the kernel without the variant."""
    seen = bare([H100], "sles", "15.7")
    nobody = Missing(Why.NOT_RECORDED, "uname", "described")
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, kernel=nobody))
    (line,) = words(plan(seen, InstallOptions()), "headers")
    for release, name in (("6.4.0-150700.53.22-default", "default"), ("6.4.0-150700.20.3-azure", "azure")):
        told = line.removeprefix("sh -c ").replace("zypper --non-interactive", "echo").replace("uname -r", f"echo {release}")
        said = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True).stdout
        assert said.endswith(f" kernel-{name}-devel={release.removesuffix(f'-{name}')}\n")


def test_kernels_with_headers_of_another_name() -> None:
    def headers(os_id: str, release: str, kernel: str) -> str:
        seen = bare([H100], os_id, release)
        seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, kernel=kernel))
        return words(plan(seen, InstallOptions()), "headers")[0]

    assert headers("ol", "9.5", "5.15.0-302.el9uek.x86_64").endswith("kernel-uek-devel-5.15.0-302.el9uek.x86_64 kernel-headers")
    assert "kernel6.12-devel-6.12.40" in headers("amzn", "2023", "6.12.40-64.114.amzn2023.x86_64")
    assert "kernel-devel-6.1.147" in headers("amzn", "2023", "6.1.147-172.266.amzn2023.x86_64")
    assert headers("sles", "15.7", "6.4.0-150700.53.22-default").endswith(" kernel-default-devel=6.4.0-150700.53.22")
    assert headers("sles", "15.7", "6.4.0-150700.20.3-azure").endswith(" kernel-azure-devel=6.4.0-150700.20.3")
    # drm, without which nvidia.ko does not load, is in a package of its own there
    assert "kernel6.12-modules-extra-6.12.40" in headers("amzn", "2023", "6.12.40-64.114.amzn2023.x86_64")
    assert "kernel-modules-extra-6.1.147" in headers("amzn", "2023", "6.1.147-172.266.amzn2023.x86_64")
    assert headers("ubuntu", "24.04", "6.8.0-45-generic").endswith("linux-headers-6.8.0-45-generic")


@pytest.mark.parametrize(
    ("device", "wanted"),
    [("1db8", True), ("20f3", True), ("2324", True), ("2329", True), ("1db1", False), ("2322", False), ("2331", False)],
    ids=["V100-SXM3", "A800-SXM4", "H800", "H20", "V100-SXM2", "H800-PCIe", "H100-PCIe"],
)
def test_the_fabric_manager_is_for_boards_with_nvswitches(device: str, wanted: bool) -> None:
    """Fabric Manager User Guide, Supported Platforms: HGX-2 (SXM3), HGX A100, HGX H100 and what is sold in their place."""
    found = words(plan(bare([("", device, None)] * 8, "ubuntu", "24.04"), InstallOptions()), "driver")
    assert any("nvidia-fabricmanager" in line for line in found) is wanted


def test_what_root_installs_does_not_lie_where_everybody_writes() -> None:
    for os_id, release in SYSTEMS:
        found = plan(bare([H100] * 8, os_id, release), InstallOptions(extras=("container-toolkit", "cuda-toolkit", "rdma")))
        assert not any("/tmp" in line for line in words(found))


@pytest.mark.parametrize(
    ("driver", "package"), [("570.195.03", "nvidia-fabricmanager-570="), ("580.95.05", "nvidia-fabricmanager=")]
)
def test_from_580_on_the_fabric_managers_package_has_no_branch_in_its_name(driver: str, package: str) -> None:
    """NVIDIA/gpu-driver-container, PR 451."""
    seen = load("typical/azure-nd-h100.fabric-manager-not-running")
    assert not isinstance(seen.driver, Missing) and not isinstance(seen.gpu, Missing)
    told = msgspec.structs.replace(
        seen,
        driver=msgspec.structs.replace(seen.driver, module_version=driver, library_version=driver),
        gpu=msgspec.structs.replace(seen.gpu, driver_version=driver),
    )
    found = plan(told, InstallOptions(cpu=False, torch="2.9"))
    assert f"{package}{driver}*" in words(found, "fabric-manager")[0]


@pytest.mark.parametrize(
    ("system", "driver", "package"),
    [
        ("ubuntu-24.04", "580.65.06", "nvidia-fabricmanager=580.65.06*"),
        ("ubuntu-24.04", "570.195.03", "nvidia-fabricmanager-570=570.195.03*"),
        ("rocky-9", "580.65.06", "nvidia-fabricmanager-580.65.06"),
        ("sles-15.7", "580.65.06", "nvidia-fabricmanager-580.65.06"),
    ],
)
def test_a_described_board_with_a_driver_gets_the_fabric_manager_of_that_version(system: str, driver: str, package: str) -> None:
    found = _described("--system", system, "--gpu", "H100 SXM5 80GB", "--gpus", "8", "--driver", driver)
    assert package in found and "systemctl enable --now nvidia-fabricmanager" in found
    alone = _described("--system", system, "--gpu", "H100 PCIe", "--gpus", "8", "--driver", driver)
    assert "fabricmanager" not in alone


def test_who_must_enrol_a_key_be_in_a_group_or_take_another_kernel_is_told() -> None:
    assert "its key is enrolled: sudo mokutil --import /var/lib/dkms/mok.pub" in _described(
        "--system", "debian-12", "--gpu", "H100 PCIe"
    )
    assert "render,video" in _described("--system", "ubuntu-24.04", "--gpu", "MI300X")
    grace = ("--system", "rocky-9", "--machine", "aarch64", "--gpu", "GH200")
    assert "64 KiB pages" in _described(*grace)
    large = _described(*grace, "--kernel", "5.14.0-427.el9.aarch64+64k")
    assert "64 KiB pages" not in large and "kernel-64k-devel-matched" in large


def _described(*words: str) -> str:
    found = CliRunner().invoke(cli, ["generate", "install", *words])
    assert found.exit_code in (0, 1), found.output
    return " ".join(found.output.replace("# ", "").split())


def test_of_a_system_with_musl_it_is_said_that_no_wheel_is_for_it() -> None:
    found = CliRunner().invoke(cli, ["generate", "install", "--system", "alpine-3.20", "--gpu", "H100 PCIe"])
    assert found.exit_code == 2 and "no release of torch has a wheel for it" in " ".join(found.output.split())
