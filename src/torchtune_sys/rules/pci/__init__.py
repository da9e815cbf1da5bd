"""PCIe links of GPUs, network cards and NVMe drives, against what card and slot are made for."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.pci import distance, errors, peers, settings
from torchtune_sys.rules.pci.links import gpu_pcie_link_degraded, gpu_slot_narrower_than_card, pcie_link_degraded

RULES: tuple[Rule, ...] = (
    gpu_pcie_link_degraded,
    gpu_slot_narrower_than_card,
    pcie_link_degraded,
    *errors.RULES,
    *peers.RULES,
    *distance.RULES,
    *settings.RULES,
)
