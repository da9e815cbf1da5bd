"""A snapshot: all facts of one host, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeVar

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.facts.hardware import HardwareFacts
from torchtune_sys.model.facts.kernel import KernelFacts
from torchtune_sys.model.facts.limits import LimitsFacts
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.network import Interface, NetworkFacts
from torchtune_sys.model.facts.numa import NumaFacts
from torchtune_sys.model.facts.pci import PciDevice, PciFacts
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.facts.session import SessionFacts, Workload
from torchtune_sys.model.facts.software import SoftwareFacts
from torchtune_sys.model.facts.storage import StorageFacts
from torchtune_sys.model.facts.sysctl import SysctlFacts
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.values import Missing, known

_Seen = TypeVar("_Seen")
_Answer = TypeVar("_Answer")


class PrintedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a report in which a program itself says what a rule stands for."""

    line: str
    remedy: str = ""
    """What to do where the rule's own fix is meant for less particular words."""
    is_failure: bool = True
    """Whether the program failed by it; else it lists what is there, and facts decide."""
    is_open: bool = False
    """Whether the words have other causes too."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Facts by family; a family that could not be probed at all is Missing as a whole."""

    system: Fact[SystemFacts]
    session: Fact[SessionFacts]
    cpu: Fact[CpuFacts]
    numa: Fact[NumaFacts]
    memory: Fact[MemoryFacts]
    sysctl: Fact[SysctlFacts]
    limits: Fact[LimitsFacts]
    storage: Fact[StorageFacts]
    network: Fact[NetworkFacts]
    pci: Fact[PciFacts]
    driver: Fact[DriverFacts]
    gpu: Fact[GpuFacts]
    python: Fact[PythonFacts]
    kernel: Fact[KernelFacts]
    software: Fact[SoftwareFacts]
    hardware: Fact[HardwareFacts]
    intent: Workload
    origin: str = "live"
    """``live``, ``root /mnt``, ``recording x.json``, ``tree x.tar.bz2`` or ``report (collect_env)``."""
    said: Mapping[str, PrintedMessage] = {}
    """Of a report, by rule id."""
    failures: tuple[str, ...] = ()
    """Of a report, the lines in which a program says that it failed."""


FAMILIES = tuple(name for name in Snapshot.__struct_fields__ if name not in {"intent", "origin", "said", "failures"})


def is_pasted(seen: Snapshot) -> bool:
    """Return whether the facts are of a text that somebody pasted: such a text tells a part of a host, and mostly that of a failed job."""
    return seen.origin.startswith("report")


def variables_told(seen: Snapshot) -> dict[str, str]:
    """Return the environment variables of the session; none where nobody could look."""
    return {} if isinstance(seen.session, Missing) else known(seen.session.env, {})


def container_told(seen: Snapshot) -> str:
    """Return what kind of container the process that asks is in; "" where it is in none, or nobody could look."""
    return "" if isinstance(seen.system, Missing) else known(seen.system.container, "")


def interfaces_told(seen: Snapshot) -> tuple[Interface, ...]:
    """Return the network interfaces; none where nobody could look."""
    return () if isinstance(seen.network, Missing) else known(seen.network.interfaces, ())


def gpus_told(seen: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs that the driver tells of; none where nobody could ask it."""
    return () if isinstance(seen.gpu, Missing) else known(seen.gpu.devices, ())


def pci_devices_told(seen: Snapshot) -> tuple[PciDevice, ...]:
    """Return the devices on the PCI bus; none where nobody could read it."""
    return () if isinstance(seen.pci, Missing) else known(seen.pci.devices, ())


def kept(made: Callable[[_Seen], _Answer]) -> Callable[[_Seen], _Answer]:
    """Return the function of a snapshot (or a part of one) with its last answer kept: rules ask the same of one host for each of its subjects, which
    may be thousands."""
    last: tuple[_Seen, _Answer] | None = None

    @wraps(made)
    def of(seen: _Seen) -> _Answer:
        nonlocal last
        found = last
        if found is None or found[0] is not seen:
            found = last = (seen, made(seen))
        return found[1]

    return of


@kept
def gpus_by_address(s: Snapshot) -> Mapping[str, Gpu]:
    """Return the GPUs that the driver tells of by the PCI address that they report."""
    return {gpu.pci_address: gpu for gpu in reversed(gpus_told(s)) if not isinstance(gpu.pci_address, Missing)}


@kept
def pci_devices_by_address(s: Snapshot) -> Mapping[str, PciDevice]:
    """Return the devices on the PCI bus by their address."""
    return {device.address: device for device in reversed(pci_devices_told(s))}
