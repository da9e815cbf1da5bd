"""Which image, which torch in it, and how it is started: for hosts whose right answer is known from outside."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest
from install_hosts import change

from conftest import HOSTS, load
from torchtune_sys.knowledge import images
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.image import Image, ImageOptions
from torchtune_sys.model.version import version
from torchtune_sys.remediation.image.flags import shm_mib
from torchtune_sys.remediation.image.plan import plan
from torchtune_sys.render import as_json, schemas

TYPICAL = sorted(path.stem for path in (HOSTS / "typical").glob("*.json"))


def planned(host: str, **wishes: object) -> Image:
    return plan(load(host), ImageOptions(**wishes))  # type: ignore[arg-type]


def tag(image: Image) -> str:
    assert image.base is not None
    return image.base.image.rpartition(":")[2]


def flag(image: Image, program: str = "docker") -> dict[str, str]:
    return {item.key: " ".join(item.docker if program == "docker" else item.podman) for item in image.flags}


def test_the_healthy_host() -> None:
    found = planned("healthy")
    assert tag(found) == "3.12-slim-trixie"  # the host's own Python
    assert found.wheel is not None and found.wheel.abi == "cp312" and found.wheel.machine == "x86_64"
    assert found.required_driver == 580 and not found.refused
    names = [name for item in found.content for name in item.names]
    assert names == ["gcc", "g++", "libc6-dev", "numactl", "libibverbs1", "ibverbs-providers"]
    assert flag(found) == {
        "gpus": "--gpus all",
        "shm": "--shm-size=8g",
        "nofile": "--ulimit nofile=65536:65536",
        "tasks": "--pids-limit=-1",
        "infiniband": "--device /dev/infiniband",
        "memlock": "--ulimit memlock=-1",
        "numa": "--cap-add SYS_NICE",
    }
    assert flag(found, "podman")["gpus"] == "--device nvidia.com/gpu=all" and not flag(found, "podman")["numa"]


def test_more_hosts_need_the_hosts_network() -> None:
    seen = load("healthy")
    several = plan(change(seen, intent=change(seen.intent, nodes=2)), ImageOptions())
    assert flag(several)["network"] == "--network=host" and "network" not in flag(planned("healthy"))


def test_a_host_without_gpu_gets_no_gpu() -> None:
    found = planned("typical/laptop-cpu")
    assert found.wheel is not None and found.wheel.build == "cpu" and not found.required_driver
    assert {"gpus", "infiniband", "memlock", "numa", "network"}.isdisjoint(flag(found))
    assert planned("healthy", cpu=True).wheel.build == "cpu"  # type: ignore[union-attr]


def test_old_gpus_and_old_drivers_get_a_torch_that_runs_there() -> None:
    """Volta is out of CUDA 13 (release notes of CUDA 13.0): cu126 is the last that has it."""
    volta = planned("typical/rocky8-v100").wheel
    assert volta is not None and volta.build == "cu126"
    refused = planned("typical/rocky8-v100", torch="2.15").refused
    assert "sm_70" in refused[0].reason and refused[0].newest


def test_torch_from_before_glibc_2_41_gets_a_glibc_of_its_time() -> None:
    assert tag(planned("healthy", torch="2.3", cpu=True)).endswith("bookworm")
    assert tag(planned("healthy", torch="2.6", cpu=True)).endswith("trixie")
    assert tag(planned("healthy", torch="2.3", cpu=True, python="3.10")) == "3.10-slim-bookworm"


def test_a_python_without_wheels_makes_way() -> None:
    """torch 2.3 has wheels up to Python 3.12, the laptop has 3.14."""
    found = planned("typical/laptop-cpu", torch="2.3")
    assert found.wheel is not None and found.wheel.abi == "cp312"
    refused = planned("typical/laptop-cpu", torch="2.3", python="3.14").refused
    assert refused and refused[0].blocked_by == ("python",)


@pytest.mark.parametrize("python", ["3.9", "3.13t"])
def test_a_python_that_no_image_has(python: str) -> None:
    found = planned("healthy", python=python)
    assert found.base is None and found.refused[0].key == "base" and "3.13" in found.refused[0].reason


def test_amd_gpus_get_rocm_and_their_devices() -> None:
    found = planned("typical/mi300x")
    assert found.wheel is not None and found.wheel.build.startswith("rocm") and not found.required_driver
    assert tag(found) == "3.10-slim-bookworm"
    assert "--device /dev/kfd" in flag(found)["amd-gpus"] and "gpus" not in flag(found)
    assert "gpus=8" in [item.promise for item in found.flags]
    assert planned("typical/mi300x", cpu=True).wheel.build == "cpu"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("base", "manager", "python", "first"),
    [
        ("ubuntu:24.04", "apt", "3.12", "python3"),
        ("nvidia/cuda:13.0.2-base-ubuntu22.04", "apt", "3.10", "python3"),
        ("nvidia/cuda:12.6.3-runtime-rockylinux9", "dnf", "3.12", "python3.12"),
        ("debian:bookworm-20260803-slim", "apt", "3.11", "python3"),
        ("almalinux:10.2", "dnf", "3.12", "python3"),
        ("amazonlinux:2023", "dnf", "3.12", "python3.12"),
        ("registry.example:5000/mirror/fedora:43", "dnf", "3.14", "python3"),
        ("python:3.11-slim-bookworm", "apt", "3.11", "gcc"),
    ],
)
def test_a_base_of_ones_own(base: str, manager: str, python: str, first: str) -> None:
    found = planned("typical/laptop-cpu", base=base, python=python)
    assert found.base is not None and (found.base.image, found.base.manager) == (base, manager)
    assert found.content[0].names[0] == first and found.wheel is not None
    assert found.wheel.abi == f"cp{python.replace('.', '')}"


def test_a_base_that_nobody_knows_must_be_told() -> None:
    unknown = planned("healthy", base="registry.example/ours:1.0")
    assert "--base-system" in unknown.refused[0].way
    told = planned("healthy", base="registry.example/ours:1.0", base_system="ubuntu:24.04")
    assert told.wheel is not None and told.base is not None and told.base.system == "Ubuntu 24.04"
    assert planned("healthy", base="alpine:3.22").refused and planned("healthy", base="debian:9-slim").refused


def test_a_base_that_is_too_old_for_the_wheel() -> None:
    """torch 2.15's wheels are manylinux_2_28; openSUSE has no dnf."""
    assert planned("typical/laptop-cpu", base="x/y:1", base_system="centos:7").refused
    assert planned("typical/laptop-cpu", base="x/y:1", base_system="sles:15").refused


@pytest.mark.parametrize("host", ["healthy", *(f"typical/{name}" for name in TYPICAL)])
def test_every_host_gets_an_image_or_a_reason(host: str) -> None:
    found = planned(host)
    schema = msgspec.json.decode(Path(schemas.DATA, "image.schema.json").read_bytes())
    jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(as_json.image(found)))
    assert bool(found.refused) != (found.wheel is not None)
    if found.wheel is not None and found.base is not None:
        assert version(found.wheel.glibc) <= found.base.glibc and found.wheel.machine in found.base.machines
        assert all(item.why and item.source for item in (*found.flags, *found.content))


@pytest.mark.parametrize(("ranks", "workers", "gib"), [(1, None, 1), (2, 4, 2), (8, 8, 16), (8, 64, 128), (1, 0, 1)])
def test_shared_memory_grows_with_what_is_on_the_way(ranks: int, workers: int | None, gib: int) -> None:
    assert shm_mib(ranks, workers, 2 << 40) == gib * 1024
    assert shm_mib(ranks, workers, 8 << 30) <= 4096  # half of a host's memory is what its own /dev/shm has


def test_tags_are_those_of_the_official_images() -> None:
    """Each default is for both machines that torch has wheels for, and of a suite that its tag names."""
    for row in rows("images"):
        found = images.system_of(row["image"])
        assert found is not None and ":".join(found) == row["system"]
        assert images.python_of(row["image"]) == row["python"] and row["source"] and row["confidence"]
        assert row["machines"].split() == ["x86_64", "aarch64"]


def test_a_driver_that_serves_other_gpus_is_not_the_one_that_runs_it() -> None:
    from torchtune_sys import engine
    from torchtune_sys.host.described import Description, described
    from torchtune_sys.model.facts.session import Workload

    def seen(driver: str) -> Image:
        host = described(
            Description(
                os_id="ubuntu",
                os_version="24.04",
                os_name="Ubuntu 24.04",
                codename="noble",
                machine="x86_64",
                devices=("10de:1b80",),
                driver=driver,
            )
        )
        return plan(engine.snapshot(host, Workload(), timeout_s=20), ImageOptions())

    assert any("the host's driver 580.95.05 runs it" in note for note in seen("580.95.05").notes)
    assert any("driver 590.48.01 is for other GPUs" in note for note in seen("590.48.01").notes)


def test_numpy_is_asked_for_once() -> None:
    found = planned("typical/laptop-cpu", torch="2.1", extras=("torchvision",), python="3.11")
    assert found.specifiers[0].startswith("torch==2.1") and len(found.specifiers) == 2 and found.partners == ("numpy<2",)
