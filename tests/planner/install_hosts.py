"""Hosts for the tests of generate install: the healthy one with another GPU, driver, interpreter or torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from conftest import load
from torchtune_sys import engine
from torchtune_sys.knowledge.cuda import architecture_of
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Distribution, PythonFacts, Torch
from torchtune_sys.model.install import Wheel
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.model.version import show
from torchtune_sys.remediation.install.builds import BuildTarget
from torchtune_sys.rules import CATALOGUE

NEWEST = "2.15.0"
"""The newest release of torch on record, which is the one that gets installed."""

NO = Missing(Why.ABSENT, "test", "none")
SITE = "/data/train/.venv/lib/python3/site-packages"
ERRORS = tuple(rule for rule in CATALOGUE if rule.family in ("torch", "driver", "python") and rule.severity is Severity.ERROR)


@cache
def healthy() -> Snapshot:
    return load("healthy")


def change(value: Any, **fields: Any) -> Any:
    assert not isinstance(value, Missing)
    return msgspec.structs.replace(value, **fields)


def with_gpus(seen: Snapshot, cards: Iterable[tuple[str, str, tuple[int, int] | None]]) -> Snapshot:
    """Another set of GPUs: (name or "", PCI device id, compute capability or None where no driver tells it)."""
    cards = tuple(cards)
    old = [device for device in seen.pci.devices if device.address in seen.driver.nvidia_devices]  # type: ignore[union-attr, operator]
    rest = [device for device in seen.pci.devices if device not in old]  # type: ignore[union-attr]
    devices = [change(device, device=f"0x{number}") for device, (_, number, _) in zip(old, cards, strict=False)]
    shown = tuple(
        Gpu(index=index, name=name, pci_address=device.address, compute_capability=cc)
        for index, (device, (name, _, cc)) in enumerate(zip(devices, cards, strict=True))
        if cc is not None
    )
    return msgspec.structs.replace(
        seen,
        pci=change(seen.pci, devices=tuple(devices + rest)),
        driver=change(seen.driver, nvidia_devices=tuple(device.address for device in devices)),
        gpu=change(seen.gpu, devices=shown or NO),
    )


def with_driver(seen: Snapshot, text: str, flavour: str = "open") -> Snapshot:
    """The CUDA that the driver reports is left out: the rule then judges by the floor, which is the stricter way."""
    return msgspec.structs.replace(
        seen,
        gpu=change(seen.gpu, driver_version=text, library_version=text, cuda_driver_version=NO),
        driver=change(
            seen.driver,
            module_version=text,
            module_flavour=flavour,
            library_version=text,
            library_versions=(text,),
            fabric_manager_version=text,
        ),
    )


def without_driver(seen: Snapshot) -> Snapshot:
    return msgspec.structs.replace(
        seen,
        gpu=change(seen.gpu, driver_version=NO, library_version=NO, cuda_driver_version=NO, devices=NO),
        driver=change(
            seen.driver,
            module_loaded=False,
            module_version=NO,
            module_flavour=NO,
            library_version=NO,
            library_versions=(),
            modules_for_kernel=False,
            fabric_manager=False,
            fabric_manager_version=NO,
            persistenced=False,
        ),
    )


def with_python(seen: Snapshot, abi: str, glibc: str, machine: str = "x86_64") -> Snapshot:
    found = re.fullmatch(r"cp3(\d+)(t?)m?", abi)
    assert found is not None
    facts = seen.python
    assert isinstance(facts, PythonFacts)
    python = msgspec.structs.replace(
        facts, version=f"3.{found[1]}.4", free_threaded=bool(found[2]), glibc=glibc, machine=machine, torch=NO, distributions=()
    )
    return msgspec.structs.replace(seen, python=python, system=change(seen.system, machine=machine, glibc=glibc))


def with_wheel(seen: Snapshot, wheel: Wheel) -> Snapshot:
    """The host after the wheel went in."""
    cuda = "" if wheel.build == "cpu" else f"{wheel.build[2:-1]}.{wheel.build[-1]}"
    tag = f"{wheel.abi.rstrip('t')}-{wheel.abi}-manylinux_{wheel.glibc.replace('.', '_')}_{wheel.machine}"
    torch = Torch(
        version=wheel.local, location=f"{SITE}/torch", cuda=cuda or NO, hip=NO, debug=False, arch_list=NO, nccl=NO, cudnn=NO
    )
    own = Distribution(name="torch", version=wheel.local, location=SITE, tags=(tag,))
    return msgspec.structs.replace(seen, python=change(seen.python, torch=torch, distributions=(own,), loader=NO))


def errors(seen: Snapshot) -> list[Result]:
    """What `check` would call an error of the driver, the interpreter or torch."""
    return [result for result in engine.judge(seen, ERRORS) if result.verdict in (Verdict.FAIL, Verdict.CRASHED)]


def after(place: BuildTarget, wheel: Wheel, device: str = "2330") -> Snapshot:
    """The host that the choice was made for, with the choice made."""
    cc = place.capabilities[0] if place.capabilities else (9, 0)
    arch = architecture_of(cc)
    seen = with_gpus(healthy(), [("a GPU", device, cc)] if place.capabilities else [])
    seen = with_driver(seen, show(place.driver), "proprietary" if arch is not None and arch.open_module == "no" else "open")
    return with_wheel(with_python(seen, place.abi, show(place.glibc), place.machine), wheel)
