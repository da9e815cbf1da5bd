"""Rules on direct transfers between GPUs and RDMA cards: ACS and the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torchtune_sys.formats.pci_paths import MOST_PAIRS, above, distance, is_gpu
from torchtune_sys.model.actions import Advice, KernelArgument
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent_or_unsupported, known, known_or_unknown, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.pci import common as pci_seen

_REDIRECTS = ("ReqRedir", "CmpltRedir")
_BY_DEFAULT = "DMA, as the kernel's log says of devices by default"
_TRANSLATES = ("DMA", "DMA-FQ", _BY_DEFAULT)


@rule(
    id="acs-redirects-peer-traffic",
    title="PCIe ACS routes traffic between GPUs and network cards through the CPU",
    severity=Severity.WARNING,
    cause="p2p-blocked-by-iommu-acs",
    fix=(
        Advice(
            text="turn ACS off on these bridges until the next boot: setpci -s ADDRESS ECAP_ACS+0x6.w=0000 as root. "
            "This removes the isolation between the devices below, so not where devices are passed to virtual machines "
            "(VFIO)"
        ),
        Advice(
            text="or boot with pci=disable_acs_redir=ADDRESS;ADDRESS (pci:0:0 means all bridges; in /etc/default/grub write \\; for ;, which "
            "ends GRUB's command), which removes that isolation permanently"
        ),
        Advice(text="or switch ACS, and VT-d or the IOMMU if nothing needs it, off in the firmware's setup"),
    ),
)
def acs_redirects(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Devices below one switch could exchange data within it, but ports redirect requests or completions to the root complex.

    Why it matters
        Copies between GPUs and GPUDirect RDMA transfers then go through the CPU's root complex. That is slower, and on some
        machines it causes stalls or wrong data. NCCL still treats the path as short and uses it. Devices on root ports of their
        own go through the root complex anyway; there it matters only while the IOMMU translates.

    When to leave it
        GPUs are passed to virtual machines, or other tenants' devices share the switch: ACS is what keeps them apart. Where a card uses
        ATS with DirectTrans, its translated requests are not redirected.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control Services)
        Linux Documentation/admin-guide/kernel-parameters.txt (pci=disable_acs_redir=)
        PCI Express Base Specification, Access Control Services
        https://github.com/NVIDIA/nccl/issues/2079 (two GPUs at AMD root ports: all-reduce stood still until ACS was off)
    """
    pci_seen.on_bare_metal(s, "a virtual machine: ACS keeps its devices apart from others and must stay on")
    ports = _ports_between(s)
    if not ports:
        for device in pci_seen.peers(s):
            known_or_unknown(_domain(s, device), "")
        raise NotApplicable(
            "no two GPUs or RDMA cards share a PCIe switch: what they exchange goes through the root complex anyway"
        )
    for port in ports:
        registers = port.config
        enabled = registers if isinstance(registers, Missing) else registers.acs
        if isinstance(enabled, Missing):
            if enabled.why is not Why.ABSENT and not port.asleep:
                yield unsure(f"bridge {port.address}", enabled, "no redirection")
            continue
        redirects = [word for word in enabled if word in _REDIRECTS]
        yield Evidence(
            subject=f"bridge {port.address}",
            seen=f"ACS {' '.join(f'{word}+' for word in enabled)}" if enabled else "ACS off",
            wanted="neither ReqRedir nor CmpltRedir",
            verdict=Verdict.FAIL if redirects else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{port.address}/config (lspci -vvv: ACSCtl)",
        )


def _ports_between(s: Snapshot) -> list[PciDevice]:
    """Bridges on the way between two peers, the switches' common upstream ports left out: nothing is redirected there any more."""
    devices = pci_seen.functions(s)
    peers = pci_seen.peers(s)
    first = len(pci_seen.gpus(s))
    found: dict[str, PciDevice] = {}
    pairs = ((one, other) for position, one in enumerate(peers[:first]) for other in islice(peers, position + 1, None))
    for one, other in islice(pairs, MOST_PAIRS):
        ways, others = above(one, devices), above(other, devices)
        shared = {bridge.address for bridge in ways} & {bridge.address for bridge in others}
        if not shared and not (ways and others and _through_iommu(one, ways[-1]) and _through_iommu(other, others[-1])):
            continue
        if shared and distance(one, other, devices) not in ("PIX", "PXB"):
            continue
        for bridge in (*ways, *others):
            if bridge.address not in shared and known(bridge.class_, "")[2:6] == "0604":
                found[bridge.address] = bridge
    return list(found.values())


def _through_iommu(device: PciDevice, root: PciDevice) -> bool:
    """Whether what a root port redirects is translated. A report does not tell; on AMD's it was seen to hang (NVIDIA/nccl#2079)."""
    kind = device.iommu_type
    if isinstance(kind, Missing):
        return kind.why is Why.NOT_RECORDED and is_gpu(device) and root.vendor == "0x1022"
    return kind in _TRANSLATES


@rule(
    id="iommu-translates-gpu-traffic",
    title="The IOMMU translates the DMA of GPUs and network cards",
    severity=Severity.WARNING,
    cause="iommu-not-passthrough",
    fix=(
        KernelArgument(argument="iommu=pt"),
        Advice(
            text="or switch the IOMMU off in the firmware's setup, where neither virtual machines nor more than 255 CPUs need it"
        ),
    ),
    nothing="the devices' IOMMU groups are not known",
)
def iommu_translates(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On this bare-metal host the devices' IOMMU groups use a translating domain (DMA, DMA-FQ), and several devices exchange data.

    Why it matters
        CUDA does not support copies between GPUs over PCIe through a translating IOMMU on bare-metal Linux: they hang, or the
        data is wrong. GPUDirect RDMA needs the same addresses for all devices, and AMD also recommends pass-through. Each
        transfer costs a translation.

    When to leave it
        GPUs exchange data only over NVLink and the network card reaches their memory through DMA-BUF, or you need device
        isolation.

    References
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#iommu-on-linux
        https://docs.nvidia.com/cuda/gpudirect-rdma/ (supported systems: the IOMMU disabled, or configured for pass-through)
        https://github.com/vllm-project/vllm/issues/33041 and https://github.com/local-inference-lab/rtx6kpro/issues/15 (RTX PRO 6000 Blackwell at AMD
            root ports: the first all-reduce of two ranks never ended until the IOMMU and ACS were off)
        Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups (type); drivers/iommu/iommu.c ("Default domain type", where files of the devices are not at hand)
        RCCL src/init.cc ("Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!")
    """
    pci_seen.on_bare_metal(s, "a virtual machine: its IOMMU is the hypervisor's")
    if need(need(s.system).machine) != "x86_64":
        raise NotApplicable("only known to matter on x86-64")
    for device in pci_seen.peers(s):
        kind = _domain(s, device)
        if isinstance(kind, Missing):
            if not absent_or_unsupported(kind):
                yield unsure(pci_seen.name(device), kind, "identity")
            continue
        yield Evidence(
            subject=pci_seen.name(device),
            seen=f"domain {kind}" if kind != "no IOMMU" else kind,
            wanted="identity (pass-through), or no IOMMU",
            verdict=Verdict.FAIL if kind in _TRANSLATES else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{device.address}/iommu_group/type",
        )


def _domain(s: Snapshot, device: PciDevice) -> Fact[str]:
    """Return the type of a function's IOMMU domain. Kernels before 5.4 do not tell it; pass-through is then asked for at boot."""
    kind = device.iommu_type
    if not isinstance(kind, Missing):
        return kind
    if kind.why is Why.ABSENT and isinstance(device.iommu_group, Missing):
        return "no IOMMU"
    if {"iommu=pt", "iommu.passthrough=1", "iommu=off"} & set(known_or_unknown(need(s.system).cmdline, ())):
        return "identity"
    if kind.why is Why.NOT_RECORDED and not isinstance(s.kernel, Missing):
        defaults = {event.who for event in known(s.kernel.events, ()) if event.kind == "iommu-default"}
        if len(defaults) == 1:
            return {"Translated": _BY_DEFAULT}.get(defaults.pop(), "identity")
    if kind.why is Why.ABSENT and version(known(need(s.system).kernel, "")) >= (5, 4):
        return Missing(Why.HIDDEN, kind.source, "hidden here: this kernel tells the type of each IOMMU group")
    return kind
