"""The GPUs of a host as installation needs them: generation, board, and what each can run."""

from __future__ import annotations

import msgspec

from torchtune_sys.formats.pci_paths import for_guests
from torchtune_sys.knowledge import gpus
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.cuda import Architecture, architecture_of, architectures
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.knowledge.torch import Capability
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.install import InstallRefused
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.model.version import version
from torchtune_sys.rules.driver import common as driver_state
from torchtune_sys.rules.torch.common import capability


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU that is this host's own."""

    name: str
    """As NVML or the data sheet calls it, else its PCI device id."""
    capabilities: tuple[Capability, ...]
    """Those that it may have: one, or without a driver all of its generation."""
    architecture: Architecture | None
    nvswitch: bool = False
    """Sits on a board with NVSwitches."""


def cards(s: Snapshot) -> tuple[Card, ...]:
    """Return the GPUs as NVML shows them; those that it does not show (or cannot, without a driver) by their PCI device id."""
    shown = () if isinstance(s.gpu, Missing) or s.gpu.vendor != "nvidia" else known(s.gpu.devices, ())
    found = [_of_nvml(gpu) for gpu in shown]
    seen = {gpu.pci_address for gpu in shown if not isinstance(gpu.pci_address, Missing)}
    listed = () if isinstance(s.driver, Missing) else known(s.driver.nvidia_devices, ())
    if shown and not seen:  # a report that names GPUs without their places
        return tuple(found)
    ids = {} if isinstance(s.pci, Missing) else {item.address: known(item.device, "") for item in known(s.pci.devices, ())}
    for address in listed:
        if address not in seen and not for_guests(driver_state.bound_driver(s, address)):
            found.append(_of_pci(ids.get(address, "")))
    return tuple(found)


def _of_nvml(gpu: Gpu) -> Card:
    cc, name = capability(gpu), known(gpu.name, "a GPU without a name")
    compute = known(cc, None)
    arch = architecture_of(compute) if compute else gpus.architecture_by_name(name)
    return Card(
        name=name,
        capabilities=(compute,) if compute else _of_generation(arch),
        architecture=arch,
        nvswitch=gpus.on_nvswitch_board(name),
    )


def _of_pci(device: str) -> Card:
    number = device.removeprefix("0x").lower()
    row = next((row for row in rows("gpus") if number in row["pci_device_ids"].split()), None)
    if row is not None:
        cc = version(row["cc"])
        return Card(
            name=row["name"],
            capabilities=((cc[0], cc[1]),),
            architecture=architecture_of(cc),
            nvswitch=gpus.on_nvswitch_board(row["nvml_name_examples"].split("|")[0]),
        )
    arch = gpus.architecture_by_device(number)
    name = gpus.name_by_device(number)
    compute = gpus.compute_capability(name) if name else None
    if compute is not None:
        return Card(
            name=name,
            capabilities=((compute[0], compute[1]),),
            architecture=architecture_of(compute),
            nvswitch=gpus.on_nvswitch_board(name),
        )
    called = f"PCI device 10de:{number}" if number else "a GPU of a kind that could not be seen"
    return Card(name=f"{called} ({arch.name})" if arch else called, capabilities=_of_generation(arch), architecture=arch)


def _of_generation(arch: Architecture | None) -> tuple[Capability, ...]:
    """Every capability of a generation that a card in a slot may have: what runs on all of them runs on this one."""
    if arch is None:
        return ()
    known = {version(row["cc"])[:2] for row in (*rows("gpus"), *rows("gpu_names"))} | {arch.first_cc}
    return tuple(sorted((cc[0], cc[1]) for cc in known if architecture_of(cc) == arch and not releases.on_chip((cc[0], cc[1]))))


def capabilities_of(found: tuple[Card, ...]) -> tuple[Capability, ...]:
    """Return all that the cards may have, each once: a build must hold code for every one."""
    return tuple(sorted({cc for card in found for cc in card.capabilities}))


def unknown_architectures(found: tuple[Card, ...]) -> tuple[Card, ...]:
    return tuple(card for card in found if card.architecture is None or not card.capabilities)


def generations(found: tuple[Card, ...]) -> tuple[Architecture, ...]:
    """Return the architectures, the oldest first."""
    here = {card.architecture.name for card in found if card.architecture is not None}
    return tuple(arch for arch in architectures() if arch.name in here)


def on_chip(here: tuple[Card, ...]) -> InstallRefused | None:
    chip = next((card for card in here if any(releases.on_chip(cc) for cc in card.capabilities)), None)
    if chip is None:
        return None
    return InstallRefused(
        key="torch",
        what=f"torch for {chip.name}",
        reason="the GPU is part of a Jetson or Drive module, whose driver and wheels are JetPack's own",
        blocked_by=("build",),
        way="https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/",
        source="torch/cuda/__init__.py, DEVICE_REQUIREMENT",
    )
