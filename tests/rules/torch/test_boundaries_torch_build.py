"""Which driver and which GPU a build of torch asks for, and what counts where somebody has told already; each mark from both sides (torch_build)."""

from __future__ import annotations

from typing import Any

import pytest
from torch_hosts import (
    DENIED,
    FAIL,
    NA,
    NOTHING,
    PASS,
    UNKNOWN,
    UNTOLD,
    asked,
    build,
    changed,
    verdict,
    verdicts,
    with_gpus,
    without,
    without_gpu,
)

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why
from torchtune_sys.rules.torch import common as torch_build


def test_a_wheel_without_cuda_has_none_whatever_others_of_its_number_have(healthy: Snapshot) -> None:
    """2.5.1 on PyPI is for CUDA 12.4 on x86_64, and for CPUs alone on aarch64."""
    assert torch_build.cuda_of(build(healthy, version="2.5.1", cuda=NOTHING)) == NOTHING
    assert torch_build.cuda_of(build(healthy, version="2.5.1", cuda=UNTOLD)) == "12.4"


@pytest.mark.parametrize(
    ("name", "cc", "expected"),
    [
        ("NVIDIA GeForce RTX 3090", UNTOLD, (8, 6)),
        ("NVIDIA H100 80GB HBM3", UNTOLD, (9, 0)),
        ("Tesla P100-PCIE-16GB", UNTOLD, (6, 0)),
        ("NVIDIA GeForce RTX 3090", (8, 9), (8, 9)),  # the driver knows better
        ("NVIDIA GeForce ...", UNTOLD, UNTOLD),
        (DENIED, UNTOLD, UNTOLD),
        (DENIED, (9, 0), (9, 0)),
    ],
)
def test_capability_by_the_driver_or_by_the_name(name: Any, cc: Any, expected: Any) -> None:
    assert torch_build.capability(Gpu(index=0, name=name, compute_capability=cc)) == expected


@pytest.mark.parametrize(
    ("python", "system", "expected"),
    [
        ("aarch64", "x86_64", "aarch64"),  # the interpreter's own counts: emulators exist
        (UNTOLD, "aarch64", "aarch64"),
        ("", "aarch64", "aarch64"),
        (UNTOLD, UNTOLD, ""),
    ],
)
def test_machine(healthy: Snapshot, python: Any, system: Any, expected: str) -> None:
    seen = changed(changed(healthy, "python", machine=python), "system", machine=system)
    assert torch_build.machine(seen) == expected


def test_machine_where_a_family_was_not_looked_at(healthy: Snapshot) -> None:
    assert torch_build.machine(without(healthy, "python")) == "x86_64"
    assert torch_build.machine(without(healthy, "system")) == "x86_64"
    assert torch_build.machine(without(healthy, "python", "system")) == ""


def test_the_first_of_each_name_is_imported(healthy: Snapshot) -> None:
    items = (
        Distribution(name="torch", version="2.11.0", location="/venv"),
        Distribution(name="torch", version="1.13.1", location="/usr/lib"),
        Distribution(name="numpy", version="1.26.4", location="conda"),
        Distribution(name="numpy", version="2.1.3", location="/venv"),
        Distribution(name="triton", version="3.6.0", location="/env/conda-meta", build="py312_0"),
        Distribution(name="pytorch-triton", version="3.6.0", location="conda"),
    )
    found = torch_build.installed(changed(healthy, "python", distributions=items))
    assert {name: item.version for name, item in found.items()} == {"torch": "2.11.0", "numpy": "2.1.3"}


@pytest.mark.parametrize("name", ["triton", "pytorch-triton"])
def test_triton_by_both_its_names(healthy: Snapshot, name: str) -> None:
    items = (Distribution(name="numpy", version="2.1.3", location="/a"), Distribution(name=name, version="3.1.0", location="/a"))
    seen = changed(healthy, "python", distributions=items)
    assert torch_build.installed_triton(seen).name == name
    for bare in (without_gpu(seen), changed(healthy, "python", distributions=items[:1])):
        with pytest.raises(NotApplicable):
            torch_build.installed_triton(bare)
    with pytest.raises(Unknown):
        torch_build.installed_triton(changed(healthy, "python", distributions=DENIED))


def test_what_the_loader_said(healthy: Snapshot) -> None:
    seen = changed(healthy, "python", complaints=("a", "b"))
    assert torch_build.complaints(seen) == ["a", "b"]
    failed = Missing(Why.FAILED, "import torch", "c")
    assert torch_build.complaints(changed(seen, "python", live=failed)) == ["a", "b", "c"]
    assert torch_build.complaints(changed(seen, "python", live=Missing(Why.TIMEOUT, "the child", "c"))) == ["a", "b"]
    assert torch_build.complaints(without(seen, "python")) == []


SITE = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("version", "cuda", "location", "expected"),
    [
        ("2.11.0+cu130", "13.0", f"{SITE}/torch", True),
        ("2.11.0", "13.0", f"{SITE}/torch", True),
        ("2.11.0+cu126", "12.6", f"{SITE}/torch", True),
        ("2.11.0", "12.6", f"{SITE}/torch", False),  # a vendor's, under the same number
        ("2.11.0+cu126", "13.0", f"{SITE}/torch", False),
        ("2.11.0+gitabc", "13.0", f"{SITE}/torch", False),
        ("9.9.9", "13.0", f"{SITE}/torch", False),
        ("2.11.0", "13.0", "/usr/lib/python3/dist-packages/torch", False),
    ],
)
def test_a_build_of_the_project_beside_nvidias_wheel(version: str, cuda: str, location: str, expected: bool) -> None:
    made = Torch(
        version=version,
        location=location,
        cuda=cuda,
        hip=NOTHING,
        debug=False,
        arch_list=UNTOLD,
        nccl=UNTOLD,
        cudnn=UNTOLD,
    )
    own = Distribution(name="nvidia-cudnn-cu13", version="9.19.0.56", location=SITE)
    assert torch_build.names_its_wheels(made, own) is expected


@pytest.mark.parametrize(
    ("told", "capabilities", "expected"),
    [
        (False, ((8, 0),), FAIL),
        (True, ((8, 0),), PASS),
        (False, ((7, 5),), NA),
        (False, ((7, 5), (8, 0)), FAIL),
        (False, ((7, 5), DENIED), NA),
        (NOTHING, ((8, 0),), NA),  # torch sees no GPU
        (DENIED, ((8, 0),), UNKNOWN),
    ],
)
def test_tf32(healthy: Snapshot, told: Any, capabilities: tuple[Any, ...], expected: Verdict) -> None:
    seen = changed(with_gpus(healthy, *capabilities), "python", live=asked(tf32_matmul=told))
    assert verdict(seen, "tf32-off") is expected


@pytest.mark.parametrize(
    ("rule_id", "marks"),
    [
        ("bf16-emulated", {(6, 1): NA, (5, 0): NA, (5, 2): NA, (3, 5): NA, (3, 7): NA, (6, 0): FAIL, (7, 5): FAIL, (8, 0): PASS}),
        (
            "fp16-without-speed",
            {(6, 1): FAIL, (5, 0): FAIL, (5, 2): FAIL, (3, 5): FAIL, (3, 7): FAIL, (6, 0): PASS, (5, 3): PASS, (7, 0): PASS},
        ),
    ],
)
def test_number_formats_of_several_gpus(healthy: Snapshot, rule_id: str, marks: dict[tuple[int, int], Verdict]) -> None:
    seen = with_gpus(healthy, DENIED, *marks)
    assert [mark for _, mark in verdicts(seen, rule_id)] == [UNKNOWN, *marks.values()]
