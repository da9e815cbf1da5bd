"""Hosts and words that the boundary tests of pci share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from conftest import load
from torchtune_sys import engine
from torchtune_sys.formats.pci_paths import is_gpu
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.pci import PciDevice, PciFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import pci

RULES: dict[str, Rule] = {rule.id: rule for rule in pci.RULES}
FIRST, LAST = "0000:1b:00.0", "0000:df:00.0"
FIRST_CARD, LAST_CARD = "0000:1a:00.0", "0000:de:00.0"
PORT = "0000:17:01.0"
replace = msgspec.structs.replace
seen = cache(load)
Change = Callable[[PciDevice], PciDevice]


def gone(why: Why) -> Missing:
    return Missing(why, "test")


def pci_facts(host: Snapshot) -> PciFacts:
    assert not isinstance(host.pci, Missing)
    return host.pci


def functions(host: Snapshot) -> tuple[PciDevice, ...]:
    found = pci_facts(host).devices
    assert not isinstance(found, Missing)
    return found


def with_pci(host: Snapshot, **facts: Any) -> Snapshot:
    return replace(host, pci=replace(pci_facts(host), **facts))


def where(host: Snapshot, change: Change, *addresses: str) -> Snapshot:
    """These functions (all, without one named) changed."""
    chosen = (change(device) if device.address in addresses or not addresses else device for device in functions(host))
    return with_pci(host, devices=tuple(chosen))


def only(host: Snapshot, *addresses: str) -> Snapshot:
    """The host with no GPU or card but these."""
    alone = (d for d in functions(host) if d.address in addresses or not (is_gpu(d) or d.rdma))
    return with_pci(host, devices=tuple(alone))


def link(**facts: Any) -> Change:
    return lambda device: replace(device, link=replace(device.link, **facts))


def put(**facts: Any) -> Change:
    return lambda device: replace(device, **facts)


def gpus(host: Snapshot) -> tuple[Gpu, ...]:
    assert not isinstance(host.gpu, Missing) and not isinstance(host.gpu.devices, Missing)
    return host.gpu.devices


def with_gpus(host: Snapshot, *changes: dict[str, Any]) -> Snapshot:
    """The driver's GPUs changed, the first by the first …"""
    old = gpus(host)
    changed = (replace(gpu, **change) for gpu, change in zip(old, changes, strict=False))
    assert not isinstance(host.gpu, Missing)
    return replace(host, gpu=replace(host.gpu, devices=(*changed, *old[len(changes) :])))


def with_system(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.system, Missing)
    return replace(host, system=replace(host.system, **facts))


def with_intent(host: Snapshot, **intent: Any) -> Snapshot:
    return replace(host, intent=Workload(**intent))


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def healthy() -> Snapshot:
    return seen("healthy")


def geforce(host: Snapshot, name: Any, capability: Any) -> Snapshot:
    return with_gpus(where(host, put(iommu_type="DMA")), *([{"name": name, "compute_capability": capability}] * 8))
