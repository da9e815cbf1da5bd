"""PCI devices, their links, errors and settings, the IOMMU, and how far GPUs are from each other and from the network."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

NOT_READ = Missing(Why.NOT_SUPPORTED, "sysfs", "not read: nothing that training depends on needs it")
NOT_REPORTED = Missing(Why.NOT_RECORDED, "PCI", "not recorded")


class PciLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link of a function as sysfs gives it; speeds in GT/s, widths in lanes."""

    current_gts: Fact[float]
    max_gts: Fact[float]
    current_width: Fact[int]
    max_width: Fact[int]


class PciErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of Advanced Error Reporting that the kernel counted for one function since it was found (mostly: since boot).

    Source: Documentation/ABI/testing/sysfs-bus-pci-devices-aer (Linux 4.19 and later).
    """

    correctable: dict[str, int]
    """Kind (``RxErr``, ``BadTLP`` …) → messages, those that are not zero."""
    nonfatal: dict[str, int]
    fatal: dict[str, int]


class PciConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Registers of configuration space that only root may read (all but the first 64 bytes)."""

    port_type: Fact[str] = NOT_REPORTED
    """``endpoint``, ``root-port``, ``upstream-port``, ``downstream-port`` or ``other``."""
    max_payload_bytes: Fact[int] = NOT_REPORTED
    max_read_request_bytes: Fact[int] = NOT_REPORTED
    relaxed_ordering: Fact[bool] = NOT_REPORTED
    """Whether the function may set the attribute in what it sends (DevCtl bit 4)."""
    acs: Fact[tuple[str, ...]] = NOT_REPORTED
    """What Access Control Services have switched on, of ``SrcValid``, ``TransBlk``, ``ReqRedir``, ``CmpltRedir``,
    ``UpstreamFwd``, ``EgressCtrl`` and ``DirectTrans``; ABSENT where the function has none."""


class PciDevice(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    address: str
    """``0000:18:00.0``; ``GPU0``, ``NIC0`` where a pasted matrix of nvidia-smi tells but these names."""
    class_: Fact[str]
    """Six hex digits with 0x: ``0x030200``."""
    vendor: Fact[str]
    device: Fact[str]
    subsystem_vendor: Fact[str]
    subsystem_device: Fact[str]
    numa_node: Fact[int]
    """-1 where the firmware names none."""
    driver: Fact[str]
    """Name of the bound kernel driver; ABSENT if none is bound."""
    link: PciLink
    parent: str
    """Address of the bridge above; ``""`` for a root device, and for functions that nothing in training depends on."""
    iommu_group: Fact[str]
    asleep: bool = False
    """Runtime-suspended: its link and registers are not looked at, since some kernels would wake it."""
    errors: Fact[PciErrors] = NOT_READ
    """ABSENT where the kernel does not count them (AER not granted to it by the firmware, not supported, not compiled in)."""
    config: Fact[PciConfig] = NOT_READ
    """Read for GPUs, network cards and the switch ports above them; DENIED without privilege."""
    bars: Fact[tuple[int, ...]] = NOT_READ
    """Of GPUs: size of each memory region in bytes, in the order of the ``resource`` file."""
    iommu_type: Fact[str] = NOT_READ
    """Type of the group's domain: ``DMA`` and ``DMA-FQ`` translate, ``identity`` passes through; ABSENT without an IOMMU."""
    rdma: str = ""
    """Name of the RDMA device of this function (``mlx5_0``), ``""`` if it has none."""


class PciDistance(msgspec.Struct, frozen=True, kw_only=True):
    """How far two functions are from each other, in NCCL's classes, by the PCI tree alone (NVLink apart)."""

    gpu: str
    other: str
    """Address of the other GPU, or of the network card's function."""
    path: str
    """``PIX`` (one switch), ``PXB`` (several switches), ``PHB`` (the host bridges of one NUMA node) or ``SYS`` (between NUMA nodes)."""
    rdma: str = ""
    """Name of the RDMA device, ``""`` where the other is a GPU."""


class TopologyFile(msgspec.Struct, frozen=True, kw_only=True):
    """The description of the machine that NCCL takes instead of (some of) its own look."""

    path: str
    source: str
    """``environment``, a file with the line, or NCCL's own default."""
    gpus: tuple[str, ...]
    """Addresses of the GPUs that it names, lower case; placeholders (``ffff:ff:…``) left out."""
    cards: tuple[str, ...]
    """The same of network cards."""


class PciErrorGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """What counters gained while they were watched (``--live``)."""

    seconds: float
    correctable: dict[str, int]
    """Address → messages, those that gained any."""


class PciFacts(msgspec.Struct, frozen=True, kw_only=True):
    devices: Fact[tuple[PciDevice, ...]]
    """By address. Missing(ABSENT) where the kernel has no PCI."""
    distances: Fact[tuple[PciDistance, ...]] = NOT_REPORTED
    """Each pair of GPUs, and each GPU with each function that has an RDMA device."""
    topology_file: Fact[TopologyFile] = NOT_REPORTED
    """ABSENT where NCCL is given none."""
    growth: Fact[PciErrorGrowth] = Missing(Why.NOT_SUPPORTED, "aer_dev_correctable", "watched only with --live", "--live")
