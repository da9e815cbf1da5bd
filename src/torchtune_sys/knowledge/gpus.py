"""NVIDIA GPUs by name and PCI device id."""

from __future__ import annotations

import functools
import re

import msgspec

from torchtune_sys.knowledge.cuda import Architecture, architecture, architecture_of
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import Version, version


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a data sheet says of one model."""

    name: str
    names: tuple[str, ...]
    """As NVML prints it."""
    device_ids: tuple[str, ...]
    """Four hex digits."""
    architecture: str
    compute_capability: Version
    data_centre: bool
    """Has HBM or is sold for servers: its memory has ECC, and it runs without a display."""
    nvswitch: bool
    """An SXM part that sits on an NVSwitch board in hosts with eight of them."""
    source: str
    confidence: str
    fp32_tflops: float | None
    """Without tensor cores, as torch computes float32 unless TF32 is allowed."""
    bf16_tflops: float | None
    """Dense, with tensor cores."""
    fp16_tflops: float | None
    """Dense, accumulated in float32: what training uses."""
    tf32_tflops: float | None
    """Dense, with tensor cores."""
    fp8_tflops: float | None
    pcie_generation: int | None
    measured: str
    """Who measured this row with ``./run gpu``, and with which release; "" where nobody did."""
    nvlink_gbytes_per_s: float | None
    """Of all its NVLinks, both ways together; 0 without any."""
    memory_gbytes_per_s: float | None
    """The lowest of the variants that share the name."""
    power_w: float | None
    """What the board may draw."""


def is_mobile(name: str) -> bool:
    """Return whether a GPU is soldered to a laptop's board, which wires as many lanes to it and gives it as much power as fits; it sleeps when idle.

    "Max-Q" named laptops' GPUs up to Turing, and names cards of 300 W for workstations since Blackwell.

    >>> [is_mobile(name) for name in ("NVIDIA GeForce RTX 4060 Laptop GPU", "Quadro RTX 5000 with Max-Q Design")]
    [True, True]
    >>> is_mobile("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    False
    """
    return any(word in name for word in ("Laptop", "Mobile", "with Max-Q"))


def _number(text: str) -> float | None:
    """
    >>> _number("4000/4900"), _number("")
    (4000.0, None)
    """
    numbers = [float(part) for part in text.split("/") if part]
    return min(numbers, default=None)


def _is_switched(name: str) -> bool:
    """Whether eight of them sit on a board with NVSwitches. Eight SXM2 modules (DGX-1) are linked in pairs; H800 and H20 are SXM5.

    >>> [_is_switched(name) for name in ("V100 SXM2 16/32GB", "Tesla V100-SXM3-32GB", "A100 SXM4 40GB", "NVIDIA H20", "H100 NVL")]
    [False, True, True, True, False]
    """
    return re.search("SXM[3-9]|H200 SXM", name) is not None or name in ("B200", "B300", "NVIDIA H800", "NVIDIA H20")


def _model(row: dict[str, str]) -> GpuModel:
    cc = version(row["cc"])
    return GpuModel(
        name=row["name"],
        names=tuple(row["nvml_name_examples"].split("|")),
        device_ids=tuple(row["pci_device_ids"].split()),
        architecture=row["arch"].split()[0],
        compute_capability=cc,
        data_centre=not row["name"].startswith(("RTX", "GB10")),
        nvswitch=_is_switched(row["name"]),
        source=row["source"],
        confidence=row["confidence"],
        fp32_tflops=_number(row["fp32_tflops"]),
        bf16_tflops=_number(row["bf16_tensor_dense"]),
        fp16_tflops=_number(row["fp16_tensor_dense_fp32acc"]),
        tf32_tflops=_number(row["tf32_tensor_dense"]),
        fp8_tflops=_number(row["fp8_tensor_dense"]),
        pcie_generation=int(row["pcie_gen"]) if row["pcie_gen"].isdigit() else None,
        measured=row["measured"],
        nvlink_gbytes_per_s=_number(row["nvlink_total_gbs"]),
        memory_gbytes_per_s=_number(row["mem_bw_gbs"]),
        power_w=_number(row["tdp_w"]),
    )


def by_name(name: str) -> GpuModel | None:
    """Return the model that NVML calls ``name`` exactly.

    >>> by_name("NVIDIA H100 80GB HBM3").name, by_name("NVIDIA GeForce ...")
    ('H100 SXM5 80GB', None)
    """
    return next((_model(row) for row in rows("gpus") if name in row["nvml_name_examples"].split("|")), None)


def on_nvswitch_board(name: str) -> bool:
    """Return whether a GPU of this name (NVML's) is on a board with NVSwitches.

    >>> on_nvswitch_board("NVIDIA H100 80GB HBM3"), on_nvswitch_board("NVIDIA H100 PCIe"), on_nvswitch_board("NVIDIA A800-SXM4-80GB")
    (True, False, True)
    """
    model = by_name(name)
    return _is_switched(name) if model is None else model.nvswitch


def compute_capability(name: str) -> Version | None:
    """Compute capability by NVML's name; None where the name is cut or not known.

    >>> compute_capability("NVIDIA GeForce RTX 3090"), compute_capability("Tesla P100-PCIE-16GB"), compute_capability("NVIDIA GeForce ...")
    ((8, 6), (6, 0), None)
    """
    words = " ".join(name.lower().split())
    if words.endswith(("...", "…")):
        return None
    exact = by_name(name)
    if exact is not None:
        return exact.compute_capability
    for row in rows("gpu_names"):
        pattern = row["pattern"]
        # "h20" must not be found in "h200"; a series ("rtx 30") is the beginning of a number
        if re.search(rf"(?<![a-z0-9]){re.escape(pattern)}{_END.get(pattern, '(?![0-9])')}", words):
            return version(row["cc"])
    return None


_SERIES = ("rtx 50", "rtx 40", "rtx 30", "rtx 20", "gtx 16", "gtx 10", "gtx 9", "rtx a", "nvidia t1", "quadro p", "quadro m")
_END = dict.fromkeys(_SERIES, "[0-9]")


@functools.cache  # some ten rules ask it of each GPU
def architecture_by_device(device: str) -> Architecture | None:
    """Return generation by PCI device id (``0x2330`` or ``2330``); None for ids that no table knows.

    >>> architecture_by_device("0x2330").name, architecture_by_device("15f8").name, architecture_by_device("0xffff")
    ('Hopper', 'Pascal', None)
    """
    try:
        number = int(device, 16)
    except ValueError:
        return None
    for row in rows("gpu_device_ids"):
        if int(row["first"], 16) <= number <= int(row["last"], 16):
            return architecture(row["arch"])
    return None


def device_ids() -> dict[str, str]:
    """Name → PCI device id (four hex digits) of every card that is known by both; names as NVML and as data sheets have them.

    >>> found = device_ids()
    >>> found["NVIDIA H100 80GB HBM3"], found["H100 SXM5 80GB"], found["Tesla V100-SXM2-32GB"], found["Tesla P40"]
    ('2330', '2330', '1db5', '1b38')
    """
    found: dict[str, str] = {}
    for model in map(_model, rows("gpus")):
        ids = [number for number in model.device_ids if re.fullmatch("[0-9a-f]{4}", number)]
        for place, name in enumerate(model.names if ids else ()):
            found.setdefault(name, ids[min(place, len(ids) - 1)])
        if ids:
            found.setdefault(model.name, ids[0])
    for row in rows("gpu_ids"):
        found.setdefault(row["name"], row["pci_device_id"])
    return found


def name_by_device(number: str) -> str:
    """Return NVML's name of the card that has this PCI device id; ``""`` where no table tells.

    >>> name_by_device("2206"), name_by_device("2330"), name_by_device("ffff")
    ('NVIDIA GeForce RTX 3080', 'NVIDIA H100 80GB HBM3', '')
    """
    return next((name for name, device in device_ids().items() if device == number), "")


def architecture_by_name(name: str) -> Architecture | None:
    """Return generation by NVML's name of a GPU."""
    found = compute_capability(name)
    return architecture_of(found) if found else None
