"""Code shared by the PCI rules."""

from __future__ import annotations

from collections import Counter

from torchtune_sys.formats.pci_paths import for_guests, is_gpu, perhaps_gpu
from torchtune_sys.knowledge.nccl import FAST_GBPS
from torchtune_sys.model.facts.network import RdmaDevice, RdmaPort
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, known, known_or_unknown, need, need_if_there


def functions(s: Snapshot) -> dict[str, PciDevice]:
    """Return all functions by address; NotApplicable without PCI."""
    found = need_if_there(need(s.pci).devices, "this kernel has no PCI")
    return {device.address: device for device in found}


def bare_metal(s: Snapshot) -> bool:
    """Return whether this is no virtual machine: in one, links and slots are what the hypervisor makes up."""
    return not isinstance(s.system, Missing) and s.system.hypervisor == ""


def on_bare_metal(s: Snapshot, otherwise: str) -> None:
    """Raise NotApplicable in a virtual machine."""
    if need(need(s.system).hypervisor):
        raise NotApplicable(otherwise)


def gpus(s: Snapshot) -> list[PciDevice]:
    """Return the GPUs and accelerators of NVIDIA and AMD; NotApplicable without one."""
    found = [device for device in functions(s).values() if is_gpu(device)]
    if found:
        return found
    all_reported(s)
    raise NotApplicable("no GPU on this host")


def all_reported(s: Snapshot) -> None:
    """Raise Unknown where some function may be a GPU that is not counted."""
    for device in functions(s).values():
        if (unread := perhaps_gpu(device.class_, device.vendor)) is not None:
            raise Unknown(unread)


def cards(s: Snapshot) -> list[PciDevice]:
    """Return the functions that carry an RDMA device, those apart through which NVSwitches are managed."""
    rdma_by_name(s)  # without its list in sight, no function seems to carry one
    found = [device for device in functions(s).values() if device.rdma]
    slots = Counter(_slot(device) for device in found if _of_infiniband(device))
    return [device for device in found if not _of_infiniband(device) or slots[_slot(device)] < _FUNCTIONS_OF_SWITCHES]


_FUNCTIONS_OF_SWITCHES = 4
"""HGX and DGX B200 and B300 manage their NVSwitches through a ConnectX-7 on the GPUs' board, which shows four functions in one slot that
lead to no network; a ConnectX-7 for one has one or two. Its vital product data says SW_MNG, but only root may read that, and slowly.

Sources: https://github.com/siderolabs/extensions/issues/893 (mlx5_8 to mlx5_11, with consecutive GUIDs); NVIDIA Fabric Manager user guide
(NVLink 5: nvlsm and the fabric manager reach the switches through these ports).
"""


def _of_infiniband(device: PciDevice) -> bool:
    return known(device.class_, "")[:6] == "0x0207" and device.vendor == "0x15b3" and device.device == "0x1021"


def _slot(device: PciDevice) -> str:
    return device.address.rpartition(".")[0]


def rails(s: Snapshot) -> list[PciDevice]:
    """Return the cards that GPUs exchange data with. A slow Ethernet port on the board counts where the job is known to span hosts."""
    devices = rdma_by_name(s)
    if (s.intent.nodes or 1) > 1:
        return cards(s)
    return [card for card in cards(s) if card.rdma not in devices or not _of_logins(devices[card.rdma])]


def _of_logins(device: RdmaDevice) -> bool:
    """Whether all its ports are up, and none is made for training: a port that is down does not tell its rate."""
    return bool(device.ports) and all(port.state == "ACTIVE" and _is_slow(port) for port in device.ports)


def _is_slow(port: RdmaPort) -> bool:
    return port.link_layer == "Ethernet" and known(port.rate_gbps, FAST_GBPS) < FAST_GBPS


def peers(s: Snapshot) -> list[PciDevice]:
    """Return the GPUs and RDMA cards that read and write each other's memory; NotApplicable where no two of them do."""
    geforce = _geforce(s)
    found = [gpu for gpu in gpus(s) if gpu.address not in geforce]
    if not found:
        raise NotApplicable("the driver offers neither peer-to-peer over PCIe nor GPUDirect RDMA on GeForce")
    both = [*found, *rails(s)]
    if len(both) < 2:
        raise NotApplicable("one GPU and no RDMA card: no direct transfers between devices")
    if any(for_guests(device.driver) for device in found):
        raise NotApplicable("the GPUs are passed to virtual machines, which must stay isolated")
    return both


def _geforce(s: Snapshot) -> set[str]:
    """Addresses of GeForce GPUs since Turing, whose driver offers no peer-to-peer over PCIe; GPUDirect RDMA it offers on none.

    Source: https://docs.nvidia.com/cuda/gpudirect-rdma/ (Tesla and Quadro class GPUs).
    """
    if isinstance(s.gpu, Missing) or isinstance(s.gpu.devices, Missing):
        return set()
    return {
        gpu.pci_address
        for gpu in s.gpu.devices
        if not isinstance(gpu.pci_address, Missing)
        and not isinstance(gpu.compute_capability, Missing)
        and "GeForce" in known(gpu.name, "")
        and gpu.compute_capability >= (7, 5)
    }


def gpu_name(address: str) -> str:
    """Return the name of a GPU: a matrix of nvidia-smi calls the GPUs by number."""
    return f"GPU {address.removeprefix('GPU')}"


def name(device: PciDevice) -> str:
    """Return ``GPU 0000:1b:00.0``"""
    class_ = known(device.class_, "")
    if is_gpu(device):
        return gpu_name(device.address)
    if device.rdma:
        return f"{device.rdma} ({device.address})"
    kinds = {"02": "network card", "01": "drive", "06": "bridge"}
    return f"{kinds.get(class_[2:4], 'device')} {device.address}"


def rdma_by_name(s: Snapshot) -> dict[str, RdmaDevice]:
    """Return the RDMA devices by name; empty where they were not read."""
    return {} if isinstance(s.network, Missing) else {device.name: device for device in known_or_unknown(s.network.rdma, ())}
