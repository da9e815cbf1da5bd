"""Settings of PCI functions: memory regions, read requests, ordering, and the file that describes the machine to NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtune_sys.formats.pci_paths import is_gpu, is_network
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.pci import PciConfig, PciDevice
from torchtune_sys.model.integrated_gpus import is_intel_card
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent, absent_or_unsupported, known, need
from torchtune_sys.rules.pci import common as pci_seen

_MIB = 1 << 20
_NOT_TOLD = (Why.ABSENT, Why.NOT_SUPPORTED)


@rule(
    id="gpu-bar-small",
    title="A GPU's BAR covers only a small part of its memory",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="enable Above 4G Decoding and Resizable BAR in the firmware setup; virtual machine: give its firmware a large "
            "enough 64-bit window (QEMU/OVMF: opt/ovmf/X-PciMmio64Mb)"
        ),
    ),
    nothing="no GPU here has known regions that matter",
)
def bar_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU's largest memory region is the traditional 256 MiB or less, and there are several GPUs or an RDMA card, or it is a card of Intel's, and no
    other is there to train.

    Why it matters
        Other devices reach only the memory in that window, so peer-to-peer copies over PCIe and GPUDirect RDMA need a large one.
        Data-centre GPUs have a region as large as their memory; if theirs is small, the firmware could not place it. Intel asks for it for each Arc
        card: without it the processor copies through the small window, and the card is much slower.

    When to leave it
        There is only one GPU. GeForce cards, whose driver offers no peer-to-peer access over PCIe, and cards that are made with 256 MiB (T4 and
        P4, Quadro and TITAN before Ampere, which cannot resize it) are not judged; cards with a display mode (RTX A6000 and others) only beside an
        RDMA card.

    References
        https://docs.nvidia.com/cuda/gpudirect-rdma/ (BAR sizes)
        https://www.intel.com/content/www/us/en/support/articles/000090831/graphics.html (Resizable BAR for Arc)
        https://github.com/NVIDIA/nvidia-docker/issues/1628 (nvidia-smi -q of a T4)
        Linux Documentation/ABI/testing/sysfs-bus-pci (resource, resourceN_resize)
    """
    there = pci_seen.functions(s).values()
    cards = [] if any(map(is_gpu, there)) else [device for device in there if is_intel_card(device)]
    gpus = cards or pci_seen.gpus(s)
    if not cards and len(gpus) < 2 and not pci_seen.rails(s):
        raise NotApplicable("one GPU and no RDMA card: nothing else reaches its memory")
    shown = gpus_told(s)
    names = {gpu.pci_address: known(gpu.name, "") for gpu in shown if isinstance(gpu.pci_address, str)}
    by_design = _SMALL_BY_DESIGN if pci_seen.rails(s) else (*_SMALL_BY_DESIGN, *_SMALL_WITH_DISPLAY)
    small = {address for address, name in names.items() if any(word in name for word in by_design)}
    small |= {gpu.pci_address for gpu in shown if isinstance(gpu.pci_address, str) and _cannot_resize(gpu)}
    for gpu in gpus:
        if gpu.address in small:
            continue
        sizes = gpu.bars
        if isinstance(sizes, Missing) or not sizes:
            if isinstance(sizes, Missing) and not absent_or_unsupported(sizes):
                yield unsure(f"GPU {gpu.address}", sizes)
            continue
        yield Evidence(
            subject=f"GPU {gpu.address}",
            seen=f"largest region {max(sizes) // _MIB} MiB",
            wanted="as large as its memory",
            verdict=Verdict.FAIL if max(sizes) <= 256 * _MIB else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{gpu.address}/resource",
            fix=(_DISPLAY_MODE,) if any(word in names.get(gpu.address, "") for word in _SMALL_WITH_DISPLAY) else (),
        )


_SMALL_BY_DESIGN = ("GeForce", "Tesla T4", "NVIDIA T4", "Tesla P4")
_SMALL_WITH_DISPLAY = (
    "RTX A5000",
    "RTX A5500",
    "RTX A6000",
    "RTX 5000 Ada",
    "RTX 6000 Ada",
    "NVIDIA A40",
    "NVIDIA L40",
    "NVIDIA L20",
    "Tesla M60",
)
"""Cards with a display mode: with physical displays enabled their region has 256 MiB, whatever the firmware of the machine would give.

Sources: https://developer.nvidia.com/displaymodeselector; NVIDIA, gpumodeswitch user guide (M60: 8 GB, in graphics mode 256 MB).
"""


def _cannot_resize(gpu: Gpu) -> bool:
    """Whether it is a workstation card before Ampere: Resizable BAR came with that. Those with the chip of V100 and P100 have a large region.

    Source: nvidia-smi -q -x of a Quadro P2000 (256 MiB), https://github.com/utkuozdemir/nvidia_gpu_exporter.
    """
    name = known(gpu.name, "")
    workstation = "Quadro" in name or "TITAN" in name.upper()
    return workstation and not re.search(r"\bG[PV]100\b", name) and known(gpu.compute_capability, (99, 0)) < (8, 0)


_DISPLAY_MODE = Advice(
    text="switch the card's display mode to compute (NVIDIA's displaymodeselector, or gpumodeswitch for M60: a large BAR1, or physical displays disabled), "
    "and restart"
)


def _fast_cards(s: Snapshot, least_gbps: float) -> list[tuple[PciDevice, Missing | None]]:
    """Cards with a port of this rate or more; and those that may have one, with the rate that could not be read."""
    devices = pci_seen.rdma_by_name(s)
    found: list[tuple[PciDevice, Missing | None]] = []
    for card in pci_seen.cards(s):
        if is_network(card) and card.rdma in devices:
            rates = [port.rate_gbps for port in devices[card.rdma].ports]
            unread = [rate for rate in rates if isinstance(rate, Missing) and rate.why not in _NOT_TOLD]
            if any(known(rate, 0.0) >= least_gbps for rate in rates):
                found.append((card, None))
            elif unread:
                found.append((card, unread[0]))
    if not found:
        raise NotApplicable(f"no RDMA card of {least_gbps:g} Gb/s or more")
    return found


@rule(
    id="pcie-read-request-small",
    title="The maximum PCIe read request of a fast network card is small",
    severity=Severity.ADVICE,
    params=(
        Param("bytes", 512, "smaller maximum read requests are reported, bytes"),
        Param("gbps", 200, "link rate from which on a card is judged, Gb/s"),
    ),
    fix=(
        Advice(
            text="set it for this boot with setpci -s ADDRESS CAP_EXP+8.w=5000:7000 (4096 bytes) as root; permanently in the "
            "firmware setup (PCIe Max Read Request Size)"
        ),
    ),
    nothing="the cards do not show their registers",
)
def read_request_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """MaxReadReq of a card of 200 Gb/s or more is below 512 bytes.

    Why it matters
        The card reads each packet that it sends from memory in pieces of that size. The number of outstanding reads is limited,
        so the card cannot fill its link.

    When to leave it
        The platform vendor prescribes this value.

    References
        NVIDIA Networking, "Understanding PCIe Configuration for Maximum Performance" (PCIe Max Read Request)
        Linux include/uapi/linux/pci_regs.h (PCI_EXP_DEVCTL_READRQ)
    """
    pci_seen.gpus(s)
    least = int(p["bytes"])
    for card, rate in _fast_cards(s, float(p["gbps"])):
        size = _register(card, "max_read_request_bytes")
        if not isinstance(size, Missing) and size < least and rate is not None:
            size = rate
        if isinstance(size, Missing):
            if size.why not in _NOT_TOLD:
                yield unsure(pci_seen.name(card), size)
            continue
        yield Evidence(
            subject=pci_seen.name(card),
            seen=f"MaxReadReq {size} bytes",
            wanted=f">= {least} bytes",
            verdict=Verdict.FAIL if size < least else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{card.address}/config (lspci -vvv: DevCtl)",
        )


@rule(
    id="pcie-relaxed-ordering-off",
    title="PCIe relaxed ordering is off for a fast network card on an AMD host",
    severity=Severity.ADVICE,
    params=(Param("gbps", 100, "link rate from which on a card is judged, Gb/s"),),
    fix=(
        Advice(
            text="enable PCIe Relaxed Ordering in the firmware setup, or setpci -s ADDRESS CAP_EXP+8.w=0010:0010 for this boot"
        ),
        Advice(
            text="ConnectX: leave PCI_WR_ORDERING at per_mkey and let NCCL ask for it (NCCL_IB_PCI_RELAXED_ORDERING, automatic)"
        ),
    ),
    nothing="the cards do not show their registers",
)
def relaxed_ordering_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The bit that lets the card mark its writes as relaxed is not set, so NCCL's request for them has no effect.

    Why it matters
        On EPYC hosts (Rome, Milan) strictly ordered writes from a card on another die wait for each other, and receive bandwidth falls well below
        the link's rate.

    When to leave it
        Another device on this host is known to need strict ordering.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_IB_PCI_RELAXED_ORDERING)
        Linux include/uapi/linux/pci_regs.h (PCI_EXP_DEVCTL_RELAX_EN)
    """
    pci_seen.gpus(s)
    if "EPYC" not in need(need(s.cpu).model):
        raise NotApplicable("only known to matter on AMD EPYC hosts")
    for card, rate in _fast_cards(s, float(p["gbps"])):
        relaxed = _register(card, "relaxed_ordering")
        if relaxed is False and rate is not None:
            relaxed = rate
        if isinstance(relaxed, Missing):
            if relaxed.why not in _NOT_TOLD:
                yield unsure(pci_seen.name(card), relaxed)
            continue
        yield Evidence(
            subject=pci_seen.name(card),
            seen="RlxdOrd+" if relaxed else "RlxdOrd-",
            wanted="RlxdOrd+",
            verdict=Verdict.PASS if relaxed else Verdict.FAIL,
            source=f"/sys/bus/pci/devices/{card.address}/config (lspci -vvv: DevCtl)",
        )


def _register(card: PciDevice, name: str) -> int | bool | Missing:
    registers = card.config
    if isinstance(registers, PciConfig):
        found: int | bool | Missing = (
            registers.max_read_request_bytes if name == "max_read_request_bytes" else registers.relaxed_ordering
        )
        return found
    return registers


@rule(
    id="topology-file-of-another-machine",
    title="NCCL's topology file describes another machine",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="unset NCCL_TOPO_FILE (environment, /etc/nccl.conf, the image's start-up script), or use the file for this "
            "machine type"
        ),
    ),
)
def topology_file_of_another_machine(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The topology file lists GPUs that do not exist here, lacks some that do, or lists none of the network cards.

    Why it matters
        NCCL trusts the file. With the wrong one it has wrong information on which GPUs share a switch and which card is near, and
        rings take slow paths. Cloud images contain the file for the instance type they were made for.

    When to leave it
        The file is meant for jobs that see only some of these GPUs.

    References
        NCCL src/graph/topo.cc (NCCL_TOPO_FILE, /var/run/nvidia-topologyd/virtualTopology.xml)
    """
    devices = pci_seen.functions(s)
    here = {device.address for device in pci_seen.gpus(s)}
    recorded = need(s.pci).topology_file
    if absent(recorded):
        raise NotApplicable("NCCL is given no topology file")
    file = need(recorded)
    elsewhere = [address for address in file.gpus if address not in devices]
    unnamed = sorted(here - set(file.gpus))
    strange = bool(file.cards) and not any(address in devices for address in file.cards)
    seen = [f"names GPUs that are not here: {', '.join(elsewhere)}"] if elsewhere else []
    seen += [f"lacks {', '.join(unnamed)}"] if unnamed and file.gpus else []
    seen += ["names no network card that is here"] if strange else []
    unread = [fact for device in devices.values() for fact in (device.class_, device.vendor) if isinstance(fact, Missing)]
    if unread and not seen:
        raise Unknown(unread[0])  # it may be a GPU that the file lacks
    yield Evidence(
        subject=f"{file.path} ({file.source})",
        seen="; ".join(seen) or f"names the {len(here)} GPUs of this host",
        wanted="the GPUs and network cards of this machine",
        verdict=Verdict.FAIL if seen else Verdict.PASS,
        source=file.path,
    )
