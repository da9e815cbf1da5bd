"""A host that a person describes: what was said is a fact, everything else is unknown, and the planner works on it unchanged."""

from __future__ import annotations

from fnmatch import fnmatchcase

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from install_hosts import NEWEST

from torchtune_sys import engine
from torchtune_sys.cli.described import described_host
from torchtune_sys.knowledge.gpus import architecture_by_device, device_ids
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.install import RUNNING, InstallCommand, InstallOptions, KernelPackages, Packages
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.render.generate.commands import step_commands
from torchtune_sys.rules import CATALOGUE

SYSTEMS = [f"{row['id']}-{row['version']}".rstrip("-") for row in rows("install_systems")]


def seen(**options: object) -> Snapshot:
    return engine.snapshot(described_host(options), Workload(), timeout_s=20)


def test_what_was_said_is_known_and_nothing_else() -> None:
    found = seen(system="debian-12", gpu="H200", gpus=8)
    assert found.origin == "described: Debian GNU/Linux 12 x86_64, 8 x NVIDIA H200, no driver"
    assert isinstance(found.system, SystemFacts) and not isinstance(found.system.os, Missing)
    os = found.system.os
    assert (os.id, os.version, os.codename, os.pretty_name) == ("debian", "12", "bookworm", "Debian GNU/Linux 12")
    assert found.system.machine == "x86_64"
    for fact in (found.system.kernel, found.system.hostname, found.system.container, found.system.glibc):
        assert isinstance(fact, Missing) and fact.why is Why.NOT_RECORDED
    assert [(card.name, card.capabilities) for card in cards(found)] == [("H200 SXM", ((9, 0),))] * 8


@pytest.mark.parametrize(
    "said",
    [
        {"system": "debian-12", "gpu": "H100 SXM5 80GB", "gpus": 8},
        {"system": "ubuntu-24.04", "gpu": "L40S", "driver": "580.95.05"},
        {"system": "rocky-9", "machine": "aarch64"},
        {"system": "sles-15.7", "gpu": "10de:2b85", "kernel": "6.4.0-150700.53.3-default"},
    ],
)
def test_no_rule_finds_fault_with_what_nobody_said(said: dict[str, object]) -> None:
    results = engine.judge(seen(**said), CATALOGUE)
    assert not [item.rule.id for item in results if item.verdict in (Verdict.FAIL, Verdict.CRASHED)]
    assert sum(item.verdict is Verdict.UNKNOWN for item in results) > 100


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("gpu", [None, "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"])
def test_every_system_gets_driver_python_and_torch(system: str, gpu: str | None) -> None:
    found = plan(seen(system=system, gpu=gpu, gpus=8 if gpu else None), InstallOptions())
    assert not found.refused and found.wheel is not None and (found.wheel.build == "cpu") is (gpu is None)
    keys = [step.key for step in found.steps]
    assert "python" in keys and keys.index("python") < keys.index("torch")
    assert ("driver" in keys) is (gpu is not None)
    assert ("numactl" in keys) is (gpu is not None and "H100" in gpu)


def test_the_kernels_headers_are_asked_for_where_the_step_is_done() -> None:
    def headers(system: str, kernel: str = "") -> str:
        found = plan(seen(system=system, gpu="L40S", kernel=kernel), InstallOptions())
        (step,) = [step for step in found.steps if step.key == "headers"]
        return " ".join(word for part in step_commands(step) if isinstance(part, InstallCommand) for word in part.words)

    assert headers("ubuntu-24.04").endswith('apt-get -o DPkg::Lock::Timeout=900 install --yes "linux-headers-$(uname -r)"')
    assert (
        '*-cloud-amd64) exec env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install --yes "linux-headers-$(uname -r)"'
        in headers("debian-12")
    )
    assert "*uek*) exec dnf" in headers("ol-9") and '"kernel-uek-devel-$(uname -r)"' in headers("ol-9")
    assert '6.18.*) exec dnf install --assumeyes "kernel6.18-devel-$(uname -r)"' in headers("amzn-2023")
    assert "kernel6.18-devel-6.18.44-99.149" in headers("amzn-2023", "6.18.44-99.149.amzn2023.x86_64")
    assert headers("amzn-2023", "6.24.1-1.amzn2023.x86_64") == ""  # no source tells that stream's names
    assert "$" not in headers("rocky-9")


@pytest.mark.parametrize(
    ("system", "wanted"), [("centos-7", "2.6.0"), ("amzn-2", "2.6.0"), ("ubuntu-18.04", "2.6.0"), ("ubuntu-20.04", NEWEST)]
)
def test_the_wheel_for_an_ended_release_runs_on_its_c_library(system: str, wanted: str) -> None:
    """torch 2.6 is the last that is made for a glibc before 2.28."""
    found = plan(seen(system=system), InstallOptions(python="3.12", tool="uv", cpu=True))
    assert found.wheel is not None and found.wheel.torch == wanted
    assert not any("glibc could not be seen" in note for note in found.notes)


@pytest.mark.parametrize(
    ("system", "kernel", "names"),
    [
        ("debian-12", "6.1.0-40-amd64", "linux-headers-6.1.0-40-amd64 linux-headers-amd64"),
        ("debian-12", "6.1.0-40-cloud-amd64", "linux-headers-6.1.0-40-cloud-amd64 linux-headers-cloud-amd64"),
        ("debian-13", "6.12.48+deb13-arm64", "linux-headers-6.12.48+deb13-arm64 linux-headers-arm64"),
        ("debian-13", "6.15.0-custom", "linux-headers-6.15.0-custom"),
        ("ubuntu-24.04", "6.8.0-45-generic", "linux-headers-6.8.0-45-generic"),
    ],
)
def test_debians_headers_follow_the_kernel(system: str, kernel: str, names: str) -> None:
    """By the package of their flavour alone: without it the next kernel comes without them, and without the driver."""
    asked = [plan(seen(system=system, gpu="L40S", kernel=kernel), InstallOptions())]
    if "arm64" not in kernel:
        asked.append(plan(seen(system=system, gpu="L40S"), InstallOptions()))
    told, *unseen = (next(step for step in found.steps if step.key == "headers").actions[0] for found in asked)
    assert isinstance(told, Packages) and " ".join(told.names) == names
    for action in unseen:  # the first pattern that the release matches gives the same
        assert isinstance(action, KernelPackages)
        chosen = next(found for pattern, found in action.choices if fnmatchcase(kernel, pattern))
        assert " ".join(chosen).replace(RUNNING, kernel) == names


def test_a_driver_that_is_there_stays_and_decides() -> None:
    found = plan(seen(system="ubuntu-24.04", gpu="L40S", driver="570.124.06"), InstallOptions())
    assert found.driver is not None and found.driver.installed == "570.124.06"
    assert found.wheel is not None and found.wheel.local == "2.14.1+cu126"
    newer = plan(seen(system="ubuntu-24.04", gpu="L40S", driver="570.124.06"), InstallOptions(torch="2.15"))
    assert newer.driver is not None and newer.driver.branch == 580 and not newer.driver.installed


def test_ended_and_unknown_releases_are_refused_as_on_a_host_that_is_there() -> None:
    for system, says in (("centos-7", "ended on 2024-06-30"), ("debian-14", "not on record")):
        assert says in plan(seen(system=system, gpu="L40S"), InstallOptions()).refused[-1].reason


@pytest.mark.parametrize("name", sorted(device_ids()))
def test_every_card_of_the_tables_is_taken_by_its_names(name: str) -> None:
    number = device_ids()[name]
    assert architecture_by_device(number) is not None
    (card,) = cards(seen(system="debian-12", gpu=name.lower()))
    assert card.architecture == architecture_by_device(number) and len(card.capabilities) == 1


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"gpu": "H100"}, "--system"),
        ({"kernel": "6.8"}, "--system"),
        ({"system": "debian-12", "from_": "x.json"}, "--from"),
        ({"system": "debian-12", "root": "/mnt"}, "--root"),
        ({"system": "debian-12", "gpus": 8}, "--gpu"),
        ({"system": "debian-12", "driver": "580.95.05"}, "--gpu"),
        ({"system": "debain-12"}, "did you mean debian-12"),
        ({"system": ""}, "names no release"),
        ({"gpu": ""}, "names no release"),
        ({"system": "debian-12", "gpu": ""}, "is in no table"),
        ({"system": "azurelinux-3"}, "names no release: known: ubuntu-22.04, "),  # AlmaLinux is another distribution
        ({"system": "fedora-coreos-43"}, "names no release: known: ubuntu-22.04, "),
        ({"system": "debian"}, "did you mean debian-12"),
        ({"system": "arch-2026"}, "did you mean arch"),
        ({"system": 'debian-12"; reboot'}, "names no release"),
        ({"system": "debian-12", "gpu": "H10"}, "NVIDIA H100 80GB HBM3"),
        ({"system": "debian-12", "gpu": "H100", "gpus": 8}, "NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe, NVIDIA H100 NVL."),
        ({"system": "debian-12", "gpu": "80GB"}, "ambiguous, and these are installed differently"),
        ({"system": "debian-12", "gpu": "NVL"}, "did you mean NVIDIA H100 NVL"),
        ({"system": "debian-12", "gpu": "zz"}, "others, or a PCI device id"),
        ({"system": "debian-12", "gpu": "ffff"}, "ffff is in no table"),
        ({"system": "debian-12", "gpu": "1002:2330"}, "1002:2330 is in no table"),
        ({"system": "debian-12", "gpu": "MI300X", "driver": "580.95.05"}, "part of the kernel"),
        ({"system": "debian-12", "gpu": "L40S", "driver": "newest"}, "580.95.05"),
        ({"system": "debian-12", "kernel": "6.8 $(reboot)"}, "6.8.0-45-generic"),
    ],
)
def test_what_cannot_be_meant_is_said(said: dict[str, object], says: str) -> None:
    with pytest.raises(click.UsageError) as error:
        described_host(said)
    assert says in error.value.format_message()


@pytest.mark.parametrize(
    ("gpu", "number", "name", "arch"),
    [
        ("H100", 1, "H100", "Hopper"),
        ("rtx pro 6000", 8, "rtx pro 6000", "Blackwell"),
        ("4090", 8, "NVIDIA GeForce RTX 4090", "Ada"),
        ("3080", 1, "3080", "Ampere"),  # also a PCI device id, of the range that is reserved for Rubin
        ("DGX Spark", 1, "NVIDIA GB10", "Blackwell"),
    ],
)
def test_a_short_name_is_taken_where_all_that_have_it_are_installed_alike(gpu: str, number: int, name: str, arch: str) -> None:
    found = seen(system="ubuntu-24.04", gpu=gpu, gpus=number)
    assert f"{number} x {name}" in found.origin
    assert {card.architecture.name for card in cards(found) if card.architecture} == {arch}


@pytest.mark.parametrize("gpu", ["MI300X", "AMD Instinct MI300X", "74a1", "1002:74a1"])
def test_amd_gpus_are_driven_by_the_kernel(gpu: str) -> None:
    found = seen(system="ubuntu-24.04", gpu=gpu, gpus=8)
    assert found.origin == "described: Ubuntu 24.04 x86_64, 8 x AMD Instinct MI300X"
    made = plan(found, InstallOptions())
    assert made.wheel is not None and made.wheel.build == "rocm7.2" and "driver" not in [step.key for step in made.steps]


@given(st.dictionaries(st.sampled_from(["machine", "gpu", "driver", "kernel", "from_", "root"]), st.text(max_size=30)), st.text())
def test_whatever_is_said_is_a_host_or_a_usage_error(said: dict[str, str], system: str) -> None:
    for name in (system, "debian-12"):
        try:
            found = described_host({**said, "system": name, "machine": said.get("machine") or None})
        except click.UsageError:
            continue
        assert isinstance(found.text("/etc/os-release"), str)
