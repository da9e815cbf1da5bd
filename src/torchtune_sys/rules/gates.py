"""Preconditions that many rules share. A gate raises NotApplicable, or Unknown through need()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchtune_sys.formats.pci_paths import for_guests
from torchtune_sys.knowledge.gpus import architecture_by_device, is_mobile
from torchtune_sys.knowledge.nccl import is_made_for_training
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.facts.network import RdmaDevice
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.facts.python import LiveTorch, Torch
from torchtune_sys.model.integrated_gpus import is_intel_card
from torchtune_sys.model.launchers import JOB_VARIABLES
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot, container_told, pci_devices_told
from torchtune_sys.model.values import (
    Missing,
    NotApplicable,
    Unknown,
    Why,
    absent,
    known,
    known_or_unknown,
    need,
    need_any,
    need_if_there,
)


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


def release_of(packages: Fact[Sequence[_Named]], name: str) -> Fact[str]:
    """Return the version of the first package of this name, which is the one that imports get; ``""`` where none is installed."""
    return packages if isinstance(packages, Missing) else next((each.version for each in packages if each.name == name), "")


NO_TORCH = "torch is not installed in the judged interpreter"
_LOOK_FAILED = (Why.TIMEOUT, Why.FAILED, Why.UNPARSED, Why.CRASHED, Why.DENIED)


_IS_GPU = pattern(r"/dev/nvidia[0-9]{1,4}")


def nvidia_hardware(s: Snapshot) -> None:
    """Require an NVIDIA GPU in the machine, with or without a working driver."""
    if not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and s.gpu.vendor == "nvidia" and s.gpu.devices:
        return
    found = need(s.driver).nvidia_devices
    if absent(found) or not need(found):  # a kernel without PCI has none either
        looked = s.gpu if isinstance(s.gpu, Missing) else s.gpu.devices
        if isinstance(looked, Missing) and looked.why in _LOOK_FAILED:
            raise Unknown(looked)  # a driver is here, and does not answer: who knows what it would show
        raise NotApplicable("no NVIDIA GPU on this host")
    if handed_over(s, need(found)):
        raise NotApplicable("every NVIDIA GPU is passed to a virtual machine")
    if not torch_serves(s, need(found)):
        raise NotApplicable(TOO_OLD)


TOO_OLD = "the NVIDIA GPU here is older than those that torch was ever built for"
_OLDEST = (3, 0)
"""Compute capability of the oldest GPUs that a release of torch for CUDA had code for (Kepler)."""


def torch_serves(s: Snapshot, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of these NVIDIA GPUs any torch could use; a server's old display card is none of them, whatever drives it."""
    devices = pci_devices_told(s)
    generations = {device.address: architecture_by_device(known(device.device, "")) for device in devices}
    old = {address for address, arch in generations.items() if arch is not None and arch.last_cc < _OLDEST}
    return tuple(address for address in addresses if address not in old)


def handed_over(s: Snapshot, addresses: tuple[str, ...]) -> bool:
    """Return whether this host keeps none of these PCI functions for itself."""
    devices = pci_devices_told(s)
    kept = {device.address for device in devices if for_guests(device.driver)}
    return kept.issuperset(addresses)


def nvidia_gpus(s: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs that the driver shows; NotApplicable where the machine has none."""
    nvidia_hardware(s)
    return need(need(s.gpu).devices)


def torch_build(s: Snapshot) -> Torch:
    """Return the installed torch; NotApplicable where there is none."""
    return need_if_there(need(s.python).torch, NO_TORCH)


def cuda_torch(s: Snapshot) -> Torch:
    """Return the installed torch if it is a CUDA build; NotApplicable for none, CPU-only and ROCm builds."""
    build = torch_build(s)
    if absent(build.cuda):
        raise NotApplicable("torch is a ROCm build" if not isinstance(build.hip, Missing) else "torch is a CPU-only build")
    return build


def rocm_torch(s: Snapshot) -> bool:
    """Return whether the judged torch is a build for AMD's GPUs."""
    build = s.python if isinstance(s.python, Missing) else s.python.torch
    return not isinstance(build, Missing) and not isinstance(build.hip, Missing)


def nccl_hardware(s: Snapshot) -> None:
    """Require GPUs between which NCCL carries the data: NVIDIA's, and AMD's under a ROCm build of torch, whose RCCL reads the same variables
    (https://rocm.docs.amd.com/projects/rccl/en/latest/api-reference/env-variables.html)."""
    if not rocm_torch(s):
        nvidia_hardware(s)
    elif isinstance(s.gpu, Missing) or s.gpu.vendor != "amd":
        amd_gpus(s)


def torch_imported(s: Snapshot) -> Fact[LiveTorch]:
    """Return what torch said of itself, or why it could not; NotApplicable where nobody asked it.

    Why it could not is left to the caller, who may have other gates before it, or judge the very failure.
    """
    found = need(s.python).live
    if absent(found):
        raise NotApplicable("torch was not imported (--live)")
    return found


def gpu_count(s: Snapshot) -> int:
    """Return how many GPUs are in the machine, as far as they are seen; 0 where there is none. Beside NVIDIA's, AMD's count for a ROCm build alone: with any
    other torch a Radeon there drives a display."""
    if not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and s.gpu.devices:
        return len(all_devices(s.gpu))
    driver = need(s.driver)
    looked = s.gpu if isinstance(s.gpu, Missing) else s.gpu.devices
    if isinstance(looked, Missing) and looked.why in (Why.NOT_RECORDED, *_LOOK_FAILED) and not isinstance(s.gpu, Missing):
        if container_told(s):  # the bus shows all GPUs of the host, and the container was granted some
            if granted := sum(_IS_GPU.fullmatch(node.path) is not None for node in known(driver.device_nodes, ())):
                return granted
            raise Unknown(looked)
        if known(driver.wsl, False) and looked.why in _LOOK_FAILED:  # Windows' GPU is on no bus here
            raise Unknown(looked)
    amd = () if absent(driver.amd_devices) else need(driver.amd_devices)
    nvidia = () if absent(driver.nvidia_devices) else need(driver.nvidia_devices)
    nvidia = () if handed_over(s, nvidia) else torch_serves(s, nvidia)
    torch = Missing(Why.NOT_RECORDED, "torch") if isinstance(s.python, Missing) else s.python.torch
    of_rocm = not isinstance(torch, Missing) and not isinstance(torch.hip, Missing)
    return len(nvidia) + (len(amd) if of_rocm or not nvidia else 0)


def all_devices(facts: GpuFacts) -> tuple[Gpu, ...]:
    """Return the GPUs. Raises Unknown where they are not known, or one of them is named and not how many there are."""
    if facts.some_only:
        raise Unknown(Missing(Why.NOT_RECORDED, facts.source, "one GPU is named, not how many there are", "rocm-smi"))
    return need(facts.devices)


def of_laptop(s: Snapshot, gpu: Gpu | None) -> bool:
    """Return whether a GPU is a laptop's: its name says so ("Laptop GPU" since Ampere), or the firmware calls the machine portable."""
    portable = not isinstance(s.hardware, Missing) and known(s.hardware.portable, False)
    return portable or (gpu is not None and is_mobile(known(gpu.name, "")))


def ranks_here(s: Snapshot) -> int:
    """Return the number of training processes on this host: what was asked about, else one per GPU that is seen, else one."""
    if s.intent.ranks is not None:
        return max(s.intent.ranks, 1)
    try:
        return max(gpu_count(s), 1)
    except Unknown:
        return 1


def no_gpu(s: Snapshot) -> bool:
    """Return whether there is no GPU; a report that lists none tells it without a word of the PCI bus. Raises Unknown where it cannot be seen."""
    if isinstance(s.driver, Missing):
        return not isinstance(s.gpu, Missing) and s.gpu.devices == ()
    return gpu_count(s) == 0


def gpu_host(s: Snapshot) -> None:
    """Require a GPU in the machine, whoever made it."""
    if not gpu_count(s):
        raise NotApplicable("no GPU on this host")


def may_span_hosts(s: Snapshot) -> None:
    """Require a job that is not known to run on this host alone."""
    if s.intent.nodes == 1:
        raise NotApplicable("the job runs on this host only")


def rdma_devices(s: Snapshot) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices; NotApplicable where there is none."""
    return need_if_there(need(s.network).rdma, "there is no RDMA device")


def amd_gpus(s: Snapshot) -> tuple[str, ...]:
    """Return the addresses of AMD's GPUs on the bus; NotApplicable where there is none."""
    return need_any(need(s.driver).amd_devices, "no AMD GPU on this host")


def intel_cards(s: Snapshot) -> tuple[PciDevice, ...]:
    """Return the GPUs of Intel's that are cards of their own; none where the bus is not seen."""
    return tuple(device for device in pci_devices_told(s) if is_intel_card(device))


def intel_cards_served(s: Snapshot) -> tuple[PciDevice, ...]:
    """Return those of them that a driver serves."""
    return tuple(card for card in intel_cards(s) if known(card.driver, "") in ("i915", "xe"))


def several_cpu_nodes(s: Snapshot) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes; NotApplicable where only one has CPUs."""
    nodes = need_if_there(need(s.numa).nodes, "one NUMA node")
    if sum(len(need(node.cpus)) > 0 for node in nodes) < 2:
        raise NotApplicable("one NUMA node")
    return nodes


def nodes_beside(node: NumaNode, nodes: Sequence[NumaNode]) -> tuple[int, ...]:
    """Return the nodes on the socket of a node, itself among them: sub-NUMA clusters (AMD NPS, Intel SNC) show by distances below 20 (ACPI SLIT)."""
    distances = known(node.distances, ())
    return tuple(other.id for other, far in zip(nodes, distances, strict=False) if far < _OTHER_SOCKET) or (node.id,)


_OTHER_SOCKET = 20


def rdma_active(s: Snapshot) -> bool:
    """Return whether some RDMA port is up that programs can open, so that NCCL would use it between hosts."""
    devices = need(s.network).rdma
    if absent(devices) or not verbs_devices(s):
        return False
    states = [port.state for device in need(devices) for port in device.ports]
    return "ACTIVE" in [state for state in states if not isinstance(state, Missing)] or any(
        need(state) == "ACTIVE" for state in states
    )


def training_network(s: Snapshot) -> bool:
    """Return whether an RDMA network is up over which jobs of several hosts would train. Where the job is known to span hosts, any will do."""
    if not rdma_active(s):
        return False
    active = [port for device in need(need(s.network).rdma) for port in device.ports if port.state == "ACTIVE"]
    return (s.intent.nodes or 1) > 1 or any(map(is_made_for_training, active))


def verbs_devices(s: Snapshot) -> bool:
    """Return whether there are device nodes to open RDMA devices by: /sys shows the host's adapters in a container that was given none."""
    nodes = need(s.network).verbs_nodes
    if isinstance(nodes, Missing):
        return not absent(nodes) and known_or_unknown(nodes, True) is True
    return any(name.startswith("uverbs") for name in nodes)


def not_in_container(s: Snapshot) -> None:
    """Require a host that is no container: the settings of the host are made on the host; a container shows them and cannot change them."""
    if inside := container_told(s):
        raise NotApplicable(f"inside a container ({inside}), where the host's configuration cannot be seen")


def nvidia_host(s: Snapshot) -> None:
    """Require NVIDIA's hardware, and a host that is no container."""
    nvidia_hardware(s)
    not_in_container(s)


def scheduled(s: Snapshot) -> bool:
    """Return whether a batch system started the session: its device cgroup may hide the GPUs that it did not grant, from NVML too."""
    env = known(s.session.env, {}) if not isinstance(s.session, Missing) else {}
    return any(name in env for name in JOB_VARIABLES)
