"""AMD GPUs: the newest ROCm build that holds code for all of them, or the reason why there is none."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from install_plans import check_script, check_sound, keys, words

import warm
from conftest import load
from torchtune_sys.knowledge.install_rocm import builds, gpu
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.knowledge.torch import release
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.pci import PciFacts
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.install import Installation, InstallOptions, PythonEnvironment
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.install.plan import plan


def host(*devices: str, python: str = "3.12.3", glibc: str = "2.35") -> Snapshot:
    """The recorded MI300X host with these GPUs in the places of its own, and no torch."""
    seen = load("typical/mi300x")
    assert isinstance(seen.pci, PciFacts) and isinstance(seen.driver, DriverFacts) and isinstance(seen.python, PythonFacts)
    addresses, found = seen.driver.amd_devices, seen.pci.devices
    assert isinstance(addresses, tuple) and isinstance(found, tuple)
    kept = addresses[: len(devices)]
    ids = dict(zip(kept, devices, strict=True))
    changed = tuple(
        msgspec.structs.replace(item, device=f"0x{ids[item.address]}") if item.address in ids else item for item in found
    )
    return msgspec.structs.replace(
        seen,
        pci=msgspec.structs.replace(seen.pci, devices=changed),
        driver=msgspec.structs.replace(seen.driver, amd_devices=kept),
        python=msgspec.structs.replace(
            seen.python, version=python, glibc=glibc, torch=Missing(Why.ABSENT, "torch"), distributions=()
        ),
    )


def chosen(found: Installation) -> str:
    check_sound(found)
    check_script(found)
    return found.wheel.local if found.wheel else ""


def test_the_table_holds_releases_that_there_are() -> None:
    for build in builds():
        known = release(build.torch)
        assert known is not None and set(build.abis) <= set(known.abis) and build.gfx and build.source
    assert all(gpu(row["pci_device_id"]) == (row["name"], row["gfx"]) for row in rows("amd_gpus"))


@pytest.mark.parametrize(
    ("devices", "wish", "local"),
    [
        (("74a1",) * 8, "", "2.13.0+rocm7.2"),
        (("75a3",) * 8, "", "2.13.0+rocm7.2"),
        (("740f",), "2.9", "2.9.1+rocm6.4"),
        (("738c", "74a1"), "2.8", "2.8.0+rocm6.4"),
        (("7550",), "2.10.0+rocm7.1", "2.10.0+rocm7.1"),
    ],
)
def test_the_newest_build_for_every_gpu(devices: tuple[str, ...], wish: str, local: str) -> None:
    found = plan(host(*devices), InstallOptions(torch=wish))
    assert chosen(found) == local and found.driver is None and "driver" not in keys(found) and not found.refused
    (made,) = [action for step in found.steps for action in step.actions if isinstance(action, PythonEnvironment)]
    assert made.index == f"https://download.pytorch.org/whl/{local.partition('+')[2]}"
    assert any("amdgpu" in note for note in found.notes) and not any("CUDA" in note for note in found.notes)
    assert f"--index-url {made.index}" in words(found, "torch")[-1]


@pytest.mark.parametrize(
    ("devices", "wishes", "blocked", "says", "newest"),
    [
        (("75a3",), InstallOptions(torch="2.9"), "gpu", "2.9.1+rocm6.4 holds no code for gfx950", "2.13.0+rocm7.2"),
        (("ffff", "74a1"), InstallOptions(), "gpu", "the architecture of 1002:ffff is in no table", ""),
        (("74a1",), InstallOptions(torch="2.14"), "build", "no ROCm build of torch 2.14 is on record", "2.13.0+rocm7.2"),
        (("74a1",), InstallOptions(torch="2.9", python="3.13t"), "python", "no wheel for cp313t", ""),
        (("74a1",), InstallOptions(tool="conda"), "build", "conda-forge", ""),
    ],
)
def test_what_cannot_be_had(devices: tuple[str, ...], wishes: InstallOptions, blocked: str, says: str, newest: str) -> None:
    found = plan(host(*devices), wishes)
    assert chosen(found) == ""
    (refused,) = found.refused
    assert blocked in refused.blocked_by and says in refused.reason and newest in refused.newest and refused.way


def test_an_old_system_is_refused_with_its_glibc() -> None:
    (refused,) = plan(host("74a1", glibc="2.17"), InstallOptions()).refused
    assert refused.blocked_by == ("glibc",) and "2.17" in refused.reason


def test_without_a_python_the_distributions_own_comes_first() -> None:
    seen = host("74a1")
    found = plan(msgspec.structs.replace(seen, python=Missing(Why.NOT_RECORDED, "python")), InstallOptions())
    assert found.wheel is not None and (found.wheel.abi, found.wheel.build) == ("cp310", "rocm7.2") and "python" in keys(found)


def test_torch_that_is_there_stays_and_the_cpu_is_still_to_be_had() -> None:
    assert "torch" not in keys(plan(load("typical/mi300x"), InstallOptions()))
    found = plan(host("74a1"), InstallOptions(cpu=True))
    assert found.wheel is not None and found.wheel.build == "cpu"


def test_a_build_of_rocm_can_be_asked_for_by_its_name() -> None:
    words = ("generate", "install", "--system", "ubuntu-24.04", "--gpu", "MI300X", "--torch", "2.13.0+rocm7.2")
    done = subprocess.run([*warm.PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "whl/rocm7.2" in done.stdout
    done = subprocess.run([*warm.PROGRAM, *words, "--cpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "exclude each other" in done.stderr
