"""PCIe links of GPUs, network cards and NVMe drives, against what card and slot are made for."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.pci import distance, errors, links, peers, settings

RULES = rules_of(links, errors, peers, distance, settings)
