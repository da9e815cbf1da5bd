"""The steps of generate install: which driver, in which order, on which distribution, and what is refused with which reason."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import install_hosts as hosts
import msgspec
import pytest

import platforms
import platforms_more
from conftest import HOSTS, load
from machines_libraries import with_libraries
from platforms_troubled import TROUBLED
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.knowledge.cuda import architecture_of
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.install import Command, Driver, Environment, File, Install, Packages, Refused, Step, Wishes, plain
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.version import version
from torchtune_sys.planner import install_branch
from torchtune_sys.planner.install import plan
from torchtune_sys.planner.install_host import cards
from torchtune_sys.planner.install_torch import show_driver
from torchtune_sys.render import as_json
from torchtune_sys.render.install import shell

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PLATFORMS = {**platforms.PLATFORMS, **platforms_more.MORE, **TROUBLED}
RECORDED = ["healthy", *(f"typical/{path.stem}" for path in sorted((HOSTS / "typical").glob("*.json")))]
WISHES = (
    Wishes(),
    Wishes(torch="2.14", python="3.12", tool="uv", extras=("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")),
    Wishes(cpu=True, tool="pixi", venv="it's $(x)/env"),
    Wishes(torch="2.10.0+cu126", python="3.14t", tool="conda", branch=595),
)
SYSTEMS = [
    ("ubuntu", "22.04"),
    ("ubuntu", "24.04"),
    ("ubuntu", "26.04"),
    ("debian", "12"),
    ("debian", "13"),
    ("rhel", "8.10"),
    ("rocky", "9.4"),
    ("almalinux", "10.0"),
    ("ol", "9.5"),
    ("amzn", "2023"),
    ("fedora", "44"),
    ("sles", "15.7"),
    ("sles", "16.0"),
    ("arch", ""),
]


@cache
def platform(name: str) -> Snapshot:
    recording = with_libraries(PLATFORMS[name]())
    intent = Intent(**{key: tuple(v) if isinstance(v, list) else v for key, v in recording.get("intent", {}).items()})
    return engine.snapshot(RecordedHost(recording, name), intent, timeout_s=20)


def words(found: Install, key: str = "") -> list[str]:
    """Each command as one line."""
    return [
        " ".join(item.words)
        for step in found.steps
        if key in ("", step.key)
        for action in step.actions
        for item in plain(action)
        if isinstance(item, Command)
    ]


def keys(found: Install) -> list[str]:
    return [step.key for step in found.steps]


def step(found: Install, key: str) -> Step:
    return next(item for item in found.steps if item.key == key)


def bare(cards_: list[tuple[str, str, tuple[int, int] | None]], os_id: str = "ubuntu", release: str = "24.04") -> Snapshot:
    """A host without a driver and without torch."""
    seen = hosts.with_python(hosts.without_driver(hosts.with_gpus(hosts.healthy(), cards_)), "cp312", "2.39")
    os = Os(id=os_id, id_like=(), version=release, pretty_name=f"{os_id} {release}", codename="trixie")
    software = hosts.change(seen.software, packages=(), docker=False)
    return msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os), software=software)


H100 = ("", "2330", None)
B200 = ("", "2901", None)
V100 = ("", "1db1", None)
P100 = ("", "15f8", None)
K80 = ("", "102d", None)
RTX4090 = ("", "2684", None)
RTX5090 = ("", "2b85", None)
RUBIN = ("", "3000", None)


def check_script(found: Install) -> None:
    made = shell(found)
    assert made.isascii() or made.isprintable() or "\n" in made
    assert subprocess.run(["bash", "-n"], input=made, text=True, capture_output=True, check=False).stderr == ""
    if SHELLCHECK.exists():
        done = subprocess.run(
            [SHELLCHECK, "-o", "all", "-f", "gcc", "-"], input=made, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, ""), made
    assert msgspec.convert(msgspec.json.decode(as_json.install(found))["install"], Install) == found


def check_sound(found: Install) -> None:
    assert found.steps or found.refused or found.notes
    for refused in found.refused:
        assert refused.reason and refused.way and refused.blocked_by
    for item in found.steps:
        assert item.actions or item.by_hand
        assert item.why and item.source
    pip = [line for line in words(found) if " pip " in f" {line} "]
    assert not any(
        part.root for item in found.steps if item.key == "torch" for action in item.actions for part in plain(action)
    ), pip
    reboot = [index for index, item in enumerate(found.steps) if item.reboot]
    torch = [index for index, item in enumerate(found.steps) if item.key == "torch"]
    assert not reboot or not torch or max(reboot) < min(torch)


@pytest.mark.parametrize("name", [*PLATFORMS, *RECORDED])
def test_every_platform(name: str) -> None:
    """Nothing raises, the script is sound, and a refusal says why and what could be had."""
    seen = platform(name) if name in PLATFORMS else load(name)
    for wishes in WISHES[:1] if name not in ("healthy", "graviton", "aws-p5", "gb200-tray") else WISHES:
        found = plan(seen, wishes)
        check_sound(found)
        check_script(found)


@pytest.mark.parametrize(("os_id", "release"), SYSTEMS)
@pytest.mark.parametrize("card", [H100, B200, V100, RTX4090], ids=["H100", "B200", "V100", "RTX4090"])
def test_every_distribution(os_id: str, release: str, card: tuple[str, str, None]) -> None:
    found = plan(bare([card] * 8, os_id, release), Wishes())
    check_sound(found)
    check_script(found)
    assert found.driver is not None and found.driver.branch == 580
    assert found.driver.module == ("proprietary" if card is V100 else "open")
    assert keys(found).index("driver") < keys(found).index("hold") < keys(found).index("daemons") < keys(found).index("torch")
    assert step(found, "daemons").reboot
    if card is not RTX4090 and release and step(found, "driver").actions:
        told = " ".join(words(found, "driver"))
        assert "nvidia-fabricmanager" in told or step(found, "driver").by_hand
        assert ("nvlsm" in told) is (card is B200 and "nvidia-fabricmanager" in told)
    enabled = " ".join(words(found, "daemons"))  # what is not installed cannot be enabled
    assert ("nvidia-fabricmanager" in enabled) is ("nvidia-fabricmanager" in " ".join(words(found, "driver")))


@pytest.mark.parametrize(
    ("os_id", "release", "card", "lines"),
    [
        (
            "ubuntu",
            "24.04",
            H100,
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get install --yes nvidia-driver-pinning-580",
                "env DEBIAN_FRONTEND=noninteractive apt-get install --yes nvidia-open nvidia-fabricmanager-580",
            ],
        ),
        (
            "debian",
            "13",
            P100,
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get install --yes nvidia-driver-pinning-580",
                "env DEBIAN_FRONTEND=noninteractive apt-get install --yes cuda-drivers",
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
    assert words(plan(bare([card] * boards, os_id, release), Wishes()), "driver") == lines


@pytest.mark.parametrize(("os_id", "release"), [("rocky", "8"), ("rocky", "10"), ("fedora", "44"), ("amzn", "2023")])
def test_what_pins_the_branch_does_not_keep_the_hold_from_what_is_installed(os_id: str, release: str) -> None:
    """dnf adds no lock beside one that matches: with the branch's own in place the hold would lock nothing."""
    before, lock = words(plan(bare([H100], os_id, release), Wishes()), "hold")[-2:]
    assert "rpm --query --all" in before and before.endswith("dnf versionlock delete")
    assert lock == "dnf versionlock add *nvidia*"


@pytest.mark.parametrize(("os_id", "release"), [("ubuntu", "24.04"), ("debian", "13"), ("rocky", "9"), ("sles", "15.7")])
def test_older_branches_are_packaged_under_other_names(os_id: str, release: str) -> None:
    """Driver guide, Kernel Modules: nvidia-open and what pins it are there from R570 on."""
    driver = step(plan(bare([H100], os_id, release), Wishes(branch=535)), "driver")
    assert not driver.actions and "driver-installation-guide" in driver.by_hand
    assert step(plan(bare([H100], os_id, release), Wishes(branch=595)), "driver").actions


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ([V100, B200], "Volta needs the proprietary kernel module, Blackwell the open one"),
        ([K80, H100], "no driver after R470 serves Kepler"),
        ([RUBIN], "no driver branch is on record for Rubin"),
        ([K80], "the last branch for these GPUs is R470"),
        ([("", "ffff", None)], "no table knows PCI device 10de:ffff"),
    ],
)
def test_no_driver_serves_them(here: list[tuple[str, str, None]], says: str) -> None:
    found = plan(bare(here), Wishes())
    assert found.driver is None and found.wheel is None and "driver" not in keys(found)
    (refused,) = found.refused
    assert refused.blocked_by == ("gpu",) and says in refused.reason
    check_script(found)


def test_old_and_new_gpus_together_run_with_the_proprietary_module() -> None:
    found = plan(bare([V100, H100]), Wishes())
    assert found.driver is not None and (found.driver.branch, found.driver.module) == (580, "proprietary")
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


@pytest.mark.parametrize(("branch", "accepted"), [(580, True), (595, True), (610, True), (575, False), (535, True)])
def test_a_wished_branch(branch: int, accepted: bool) -> None:
    found = plan(bare([H100]), Wishes(branch=branch))
    assert (found.driver is not None and found.driver.branch == branch) is accepted
    if not accepted:
        assert found.refused[0].newest == "driver branch 610"
    if branch == 535:  # its torch is the last for CUDA 12
        assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


def test_a_branch_too_new_for_the_gpu_is_refused() -> None:
    found = plan(bare([V100]), Wishes(branch=595))
    assert found.driver is None and "580" in found.refused[0].reason and found.refused[0].newest == "driver branch 580"


def upgraded(
    installed: str, torch: str, card: tuple[str, str, tuple[int, int] | None] = ("NVIDIA L40S", "26b9", (8, 9))
) -> Install:
    seen = hosts.with_python(hosts.with_driver(hosts.with_gpus(hosts.healthy(), [card]), installed), "cp312", "2.39")
    return plan(seen, Wishes(torch=torch))


def test_the_driver_comes_before_the_wheel_that_needs_it() -> None:
    found = upgraded("570.124.06", "2.15")
    assert found.driver is not None and found.driver.branch == 580 and not found.driver.installed
    assert found.wheel is not None and found.wheel.local == "2.15.0+cu132"
    assert keys(found).index("driver") < keys(found).index("torch")


def test_a_newer_driver_than_the_gpu_is_served_by_is_taken_away_first() -> None:
    """R580 is Pascal's last: apt-get --yes ends where a package would become older, and dnf leaves what is newer."""
    pascal = hosts.with_gpus(hosts.healthy(), [("NVIDIA GeForce GTX 1080", "1b80", (6, 1))])
    found = plan(hosts.with_driver(pascal, "590.48.01", "proprietary"), Wishes(torch="2.14"))
    assert found.driver is not None and found.driver.branch == 580
    assert "590.48.01" in step(found, "old-driver").by_hand and not step(found, "old-driver").actions
    assert keys(found).index("old-driver") < keys(found).index("driver")
    older = plan(hosts.with_driver(pascal, "470.256.02", "proprietary"), Wishes(torch="2.14"))
    assert "driver" in keys(older) and "old-driver" not in keys(older)


@pytest.mark.parametrize(
    ("os_id", "release", "line"),
    [("rocky", "9.4", "dnf versionlock delete"), ("sles", "15.7", "zypper --non-interactive removelock *nvidia*")],
)
def test_the_hold_of_an_earlier_branch_does_not_keep_the_next_one_away(os_id: str, release: str, line: str) -> None:
    there = Os(id=os_id, id_like=(), version=release, pretty_name=os_id, codename="")
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "570.124.06")
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, os=there))
    lines = words(plan(seen, Wishes(torch="2.15")), "driver")
    assert any(told.endswith(line) for told in lines[:-1]) and "nvidia-open" in lines[-1]


def test_a_driver_that_is_new_enough_stays() -> None:
    found = upgraded("570.124.06", "2.14")
    assert found.driver is not None and found.driver.installed == "570.124.06"
    assert "driver" not in keys(found) and "repository" not in keys(found)
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"


def test_the_newer_driver_is_told_where_nothing_is_asked_for() -> None:
    found = upgraded("470.256.02", "", ("NVIDIA GeForce RTX 3090", "2204", (8, 6)))
    assert found.wheel is not None and found.wheel.local == "2.7.1+cu118"
    assert any("driver branch 580" in note and "2.15.0" in note for note in found.notes)


def test_pascal_on_driver_470_with_python_314() -> None:
    """The driver may be upgraded to R580, which ends with Pascal, and torch to 2.14, which ends with CUDA 12."""
    seen = hosts.with_driver(
        hosts.with_gpus(hosts.healthy(), [("Tesla P100-PCIE-16GB", "15f8", (6, 0))]), "470.256.02", "proprietary"
    )
    seen = hosts.with_python(seen, "cp314", "2.39")
    found = plan(seen, Wishes())
    assert found.driver is not None and (found.driver.branch, found.driver.module) == (580, "proprietary")
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126" and not found.refused
    newer = plan(seen, Wishes(torch="2.15"))
    assert newer.wheel is None and "gpu" in newer.refused[0].blocked_by


@pytest.mark.parametrize("container", ["docker", "kubernetes", "apptainer"])
def test_no_driver_inside_a_container(container: str) -> None:
    seen = bare([H100])
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, container=container))
    found = plan(seen, Wishes())
    assert not [item for item in found.steps if item.key != "torch"]
    (refused,) = found.refused
    assert refused.blocked_by == ("owner",) and "container's host" in refused.way
    assert plan(seen, Wishes(cpu=True)).wheel is not None


def test_no_driver_inside_wsl() -> None:
    seen = bare([RTX4090])
    seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, hypervisor="wsl2"))
    found = plan(seen, Wishes())
    assert "Windows" in found.refused[0].way and not [item for item in found.steps if item.key != "torch"]


@pytest.mark.parametrize(
    ("os_id", "release", "says"),
    [
        ("centos", "7", "ended on 2024-06-30"),
        ("ubuntu", "20.04", "ended on 2025-05-31; Ubuntu Pro"),
        ("debian", "11", ""),
        ("fedora", "40", "ended on"),
        ("opensuse-tumbleweed", "20261101", "not on record"),
        ("alpine", "3.20", "not on record"),
        ("nixos", "25.05", "not on record"),
    ],
)
def test_ended_and_unknown_systems(os_id: str, release: str, says: str) -> None:
    found = plan(bare([H100], os_id, release), Wishes())
    refused = next(item for item in found.refused if item.blocked_by == ("system",))
    assert says in refused.reason and refused.way and found.wheel is None
    assert plan(bare([H100], os_id, release), Wishes(cpu=True)).wheel is not None


def test_centos_7_gets_the_last_torch_for_its_glibc() -> None:
    """With a driver that runs, an old system still gets what it can."""
    seen = hosts.with_driver(
        hosts.with_gpus(hosts.healthy(), [("Tesla V100-SXM2-16GB", "1db1", (7, 0))]), "535.183.01", "proprietary"
    )
    seen = hosts.with_python(seen, "cp310", "2.17")
    os = Os(id="centos", id_like=("rhel",), version="7", pretty_name="CentOS Linux 7 (Core)", codename="")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os, glibc="2.17")), Wishes())
    assert found.wheel is not None and found.wheel.local == "2.6.0+cu124" and not found.refused
    refused = plan(
        msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os, glibc="2.17")), Wishes(torch="2.7")
    ).refused
    assert refused[0].blocked_by == ("glibc",) and "2.6.0+cu124" in refused[0].newest


def test_the_distributions_own_driver_stays_its_own() -> None:
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "535.183.01")
    seen = hosts.with_python(seen, "cp312", "2.39")
    own = (Package(name="nvidia-driver-535-server-open", version="535.183.01-0ubuntu1", origin="ubuntu.com"),)
    seen = msgspec.structs.replace(seen, software=hosts.change(seen.software, packages=own))
    found = plan(seen, Wishes(torch="2.15"))
    assert "repository" not in keys(found)
    assert words(found, "driver")[-1].endswith("apt-get install --yes nvidia-driver-580-server-open")


def test_the_fabric_manager_beside_a_driver_that_stays_has_its_version() -> None:
    seen = load("typical/azure-nd-h100.fabric-manager-not-running")
    found = plan(seen, Wishes())
    assert words(found, "fabric-manager")[0].endswith("nvidia-fabricmanager-580=580.95.05*")
    rocky = Os(id="rocky", id_like=("rhel",), version="9.4", pretty_name="Rocky Linux 9.4", codename="")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, os=rocky)), Wishes())
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
    found = plan(bare([H100], os_id, release), Wishes())
    assert any(line == f"dnf config-manager --set-enabled {builder}" for line in words(found, "epel")) is bool(builder)
    assert ("CodeReady Builder" in step(found, "epel").by_hand) is not bool(builder)


@pytest.mark.parametrize(("kernel", "told"), [("6.12.0-100.28.2.2.el9uek.x86_64", True), ("5.14.0-503.el9.x86_64", False)])
def test_oracles_own_kernel_has_a_compiler_of_its_own(kernel: str, told: bool) -> None:
    """Driver guide, Oracle Linux: with the system's gcc dkms builds no module for a UEK."""
    seen = bare([H100], "ol", "9.5")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, kernel=kernel)), Wishes())
    assert ("gcc-toolset" in step(found, "headers").by_hand) is told and step(found, "headers").actions


def test_kernels_with_headers_of_another_name() -> None:
    def headers(os_id: str, release: str, kernel: str) -> str:
        seen = bare([H100], os_id, release)
        seen = msgspec.structs.replace(seen, system=hosts.change(seen.system, kernel=kernel))
        return words(plan(seen, Wishes()), "headers")[0]

    assert headers("ol", "9.5", "5.15.0-302.el9uek.x86_64").endswith("kernel-uek-devel-5.15.0-302.el9uek.x86_64 kernel-headers")
    assert "kernel6.12-devel-6.12.40" in headers("amzn", "2023", "6.12.40-64.114.amzn2023.x86_64")
    assert "kernel-devel-6.1.147" in headers("amzn", "2023", "6.1.147-172.266.amzn2023.x86_64")
    # drm, without which nvidia.ko does not load, is in a package of its own there
    assert "kernel6.12-modules-extra-6.12.40" in headers("amzn", "2023", "6.12.40-64.114.amzn2023.x86_64")
    assert "kernel-modules-extra-6.1.147" in headers("amzn", "2023", "6.1.147-172.266.amzn2023.x86_64")
    assert headers("ubuntu", "24.04", "6.8.0-45-generic").endswith("linux-headers-6.8.0-45-generic")


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (
            "pip",
            ".venv/bin/python -m pip install torch==2.14.1 torchvision>=0.29.1 --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            "uv",
            "uv pip install --python .venv/bin/python torch==2.14.1 torchvision>=0.29.1 --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            "conda",
            "conda create --yes --prefix .venv --override-channels --channel conda-forge python=3.12 pytorch-gpu=2.14 cuda-version<13",
        ),
        ("pixi", "pixi install --manifest-path .venv/pixi.toml"),
    ],
)
def test_the_tools(tool: str, line: str) -> None:
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "570.124.06")
    found = plan(hosts.with_python(seen, "cp312", "2.39"), Wishes(tool=tool))
    assert words(found, "torch")[-1] == line
    check_script(found)


def test_torch_that_runs_here_is_left_alone() -> None:
    found = plan(hosts.healthy(), Wishes())
    assert found.wheel is None and "torch" not in keys(found) and any("2.11.0" in note for note in found.notes)
    other = plan(hosts.healthy(), Wishes(torch="2.15"))
    assert other.wheel is not None and other.wheel.local == "2.15.0+cu132"


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
    found = plan(seen, Wishes())
    if found.refused:
        assert not found.wheel and isinstance(install_branch.choose(cards(seen)), Refused), (name, branch, found.refused)
        return "refused"
    assert isinstance(found.driver, Driver) and found.wheel is not None
    driver = found.driver.installed or show_driver(install_branch.first_version(found.driver.branch))
    flavour = flavour if found.driver.installed else found.driver.module
    after = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [(name, device, cc)]), driver, flavour)
    after = hosts.with_wheel(hosts.with_python(after, "cp312", "2.39"), found.wheel)
    assert not hosts.errors(after), (name, branch, [result.rule.id for result in hosts.errors(after)])
    return "kept" if found.driver.installed else "installed"


def test_no_host_of_this_machine_is_named() -> None:
    """Public hosts alone."""
    allowed = {
        "developer.download.nvidia.com",
        "nvidia.github.io",
        "download.pytorch.org",
        "dl.fedoraproject.org",
        "deb.debian.org",
    }
    for (os_id, release), wishes in product(SYSTEMS, WISHES):
        found = plan(bare([H100, H100], os_id, release), wishes)
        lines = words(found) + [action.text for item in found.steps for action in item.actions if isinstance(action, File)]
        named = {word.split("/")[2] for line in lines for word in line.split() if "://" in word}
        assert named <= allowed, named


def test_packages_and_environments_are_told_from_commands() -> None:
    """Another renderer (an image, a script that goes on after a reboot) does them in its own way, and can ask whether they are done."""
    for (os_id, release), wishes in product(SYSTEMS, WISHES):
        found = plan(bare([H100, H100], os_id, release), wishes)
        actions = [action for item in found.steps for action in item.actions]
        installs = {"install", "--sync", "venv", "pip"}
        for action in actions:
            if isinstance(action, Command) and action.words[0] in ("env", "apt-get", "dnf", "zypper", "pacman", "uv"):
                assert not installs & set(action.words), action
        assert {action.manager for action in actions if isinstance(action, Packages)} <= {manager(os_id)}
        for action in actions:
            if isinstance(action, Environment):
                assert found.wheel is not None and action.local == found.wheel.local
                assert action.specifiers[0] == f"torch=={found.wheel.torch}" and action.index == found.wheel.index


def manager(os_id: str) -> str:
    return {"ubuntu": "apt", "debian": "apt", "sles": "zypper", "opensuse-leap": "zypper", "arch": "pacman"}.get(os_id, "dnf")


def test_actions_in_json_are_told_by_their_type() -> None:
    found = msgspec.json.decode(as_json.install(plan(bare([H100], "debian", "12"), Wishes())))
    steps = found["install"]["steps"]
    kinds = {action["type"] for item in steps for action in item["actions"]}
    assert kinds == {"command", "file", "packages", "environment"}
    (driver,) = [item for item in steps if item["key"] == "driver"]
    assert driver["actions"][0] == {"type": "packages", "manager": "apt", "names": ["nvidia-driver-pinning-580"]}
