"""Rules on logged faults of memory sharing between GPUs, CPUs and network cards: nvidia-uvm's HMM, nvidia-peermem, the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install, ModuleOption, Needs
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, pci_devices_by_address
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.driver.common import driver_version
from torchtune_sys.rules.kernel.common import (
    DAYS,
    gpu_name,
    grouped,
    none_logged,
    nvidia_log,
    recent,
    seen_in_log,
    shorter,
    since_last_start,
)
from torchtune_sys.rules.torch.common import complaints, cuda_works, live, machine

_ERROR_3 = "CUDA driver initialization failed"
_FIRST_HMM = (535,)


@rule(
    id="uvm-hmm-stops-cuda",
    title="CUDA cannot start because nvidia-uvm could not set up HMM",
    severity=Severity.ERROR,
    cause="hmm-breaks-cuda-init",
    fix=(
        ModuleOption(module="nvidia_uvm", option="uvm_disable_hmm=1"),
        Advice(
            text="or boot a kernel in which this is fixed, or boot with nokaslr (which disables a security feature)",
            needs=Needs.REBOOT,
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def uvm_hmm_stops_cuda(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """HMM, which gives GPUs access to all of a process's memory, needs a range of physical addresses that this kernel did not leave free.

    Why it matters
    nvidia-smi works but cuInit fails: no program can use a GPU. The range has to be as large as the GPUs' memory, and some
    kernels with address randomisation (KASLR) have none left. Only a few driver builds log this; otherwise it is recognised by
    CUDA error 3 while the driver shows the GPUs and HMM is not disabled (x86_64, driver R535 or later). PyTorch does not need
    HMM.

    When to leave it
    A program that you use needs HMM (plain malloc memory on the GPU): then change the kernel instead.

    References
    https://docs.nvidia.com/cuda/archive/13.2.1/cuda-features-archive/index.html (known issues: CUDA initialization, KASLR)
    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/797, 901, 947
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia-uvm/uvm_hmm.c, uvm_pmm_gpu.c (devmem_alloc_pagemap)
    """
    need(s.kernel)
    off = not isinstance(s.driver, Missing) and known(s.driver.uvm_hmm_disabled, False)
    if off or cuda_works(s):
        yield Evidence(
            subject="nvidia-uvm",
            seen="HMM is switched off" if off else "CUDA starts",
            verdict=Verdict.PASS,
            source="/sys/module/nvidia_uvm/parameters/uvm_disable_hmm" if off else "torch",
        )
        return
    message = _error_3(s)
    if message:
        yield Evidence(
            subject="nvidia-uvm",
            seen=f"CUDA says: {shorter(message)}, though the driver shows the GPUs and HMM is not switched off",
            wanted="cuInit that ends well",
            source="torch",
        )
        return
    found = since_last_start(s, p, "uvm-hmm")
    if found:
        yield seen_in_log(s, "nvidia-uvm", shorter(found[-1].text), found, "HMM set up, or off")
    else:
        yield from none_logged(s, "nvidia-uvm", "HMM failure")


def _error_3(s: Snapshot) -> str:
    """CUDA's error 3 where nothing but HMM is known to bring it: the driver shows GPUs, on a machine for which it turns HMM on."""
    seen = live(s)
    lines = [*complaints(s), *([seen.error] if seen is not None else [])]
    message = next((line for line in lines if _ERROR_3 in line), "")
    if not message or machine(s) not in ("x86_64", "") or need(s.gpu).vendor != "nvidia":
        return ""
    gpus = need(need(s.gpu).devices)
    if not gpus or any(gpu.lost for gpu in gpus):
        return ""
    found = driver_version(s)
    wsl = not isinstance(s.driver, Missing) and known(s.driver.wsl, False)
    return "" if wsl or isinstance(found, Missing) or version(found) < _FIRST_HMM else message


_MENDED = (560,)


@rule(
    id="peermem-invalid-context-logged",
    title="nvidia-peermem logs harmless errors that a newer driver avoids",
    severity=Severity.ADVICE,
    fix=(
        Install(text="install a driver of branch 560 or later"),
        Advice(text="until then, look for the real fault elsewhere in the log"),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def peermem_invalid_context_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says "nvidia-peermem … ERROR detected invalid context, skipping further processing".

    Why it matters
    The message comes from a safety check in drivers R535 to R555 and is harmless according to NVIDIA. But thousands of them push
    important messages out of the kernel log, and are mistaken for the cause of a crash.

    When to leave it
    The log is also stored elsewhere, and the driver cannot be changed now.

    References
    https://github.com/Mellanox/nv_peer_memory/issues/120 (NVIDIA: harmless; mended in R560)
    https://docs.nvidia.com/datacenter/tesla/tesla-release-notes-560-35-03/index.html (4272659)
    """
    found = recent(s, p, "peermem-context")
    installed = driver_version(s)
    if found and not isinstance(installed, Missing) and version(installed) >= _MENDED:
        raise NotApplicable(f"the driver is {installed} by now")
    if found:
        yield seen_in_log(s, "nvidia-peermem", shorter(found[-1].text), found, "driver >= 560")
    else:
        yield from none_logged(s, "nvidia-peermem", "invalid context")


@rule(
    id="peermem-refused-logged",
    title="The kernel refused nvidia-peermem, which was built against another RDMA stack",
    severity=Severity.WARNING,
    cause="gpudirect-rdma-disabled",
    explained_by=("gpudirect-rdma-disabled",),
    fix=(
        Advice(
            text="rebuild the driver's modules against this RDMA stack (dkms, or reinstall the driver), then modprobe "
            "nvidia-peermem"
        ),
        Advice(text="or use DMA-BUF: the open kernel module on Linux 5.12 or later"),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def peermem_refused_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that nvidia_peermem disagrees about the version of ib_register_peer_memory_client, a symbol of MLNX_OFED's ib_core.

    Why it matters
    Without it (and without DMA-BUF), NCCL copies traffic to other hosts through host memory. MLNX_OFED was installed or changed
    after the driver.

    When to leave it
    The module has been loaded since, or DMA-BUF is used.

    References
    https://github.com/NVIDIA/gpu-operator/issues/2868; Linux kernel/module/version.c (check_version)
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia-peermem/nvidia-peermem.c
    """
    found = since_last_start(s, p, "peermem-refused")
    if found and not isinstance(s.driver, Missing) and known(s.driver.peermem_loaded, False):
        raise NotApplicable("nvidia-peermem is loaded by now")
    if found:
        yield seen_in_log(s, "nvidia-peermem", shorter(found[0].text), found, "loaded")
    else:
        yield from none_logged(s, "nvidia-peermem", "refused module")


@rule(
    id="iommu-fault-of-gpu",
    title="The IOMMU refused a GPU's memory access",
    severity=Severity.WARNING,
    cause="iommu-not-passthrough",
    fix=(Advice(text="boot with iommu=pt (keep intel_iommu=on / amd_iommu=on), or turn the IOMMU off in the firmware"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def iommu_fault_of_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds IO_PAGE_FAULT (AMD), DMAR faults (Intel) or events of the SMMU (Arm) whose requester is an NVIDIA GPU.

    Why it matters
    A GPU accessed an address that the IOMMU does not map, typically another GPU's memory (P2P): the data does not arrive, and
    NCCL hangs or results are wrong.

    When to leave it
    The GPU is passed to a virtual machine, and the guest made the access.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control Services)
    Linux drivers/iommu/amd/iommu.c, drivers/iommu/intel/dmar.c, drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c
    Linux Documentation/admin-guide/kernel-parameters.txt (iommu.passthrough; iommu=pt is known on x86 alone)
    """
    gpus = _gpu_addresses(s)
    found = grouped(
        tuple(event for event in recent(s, p, "iommu-fault") if event.subject in gpus or event.text.startswith("nvidia "))
    )
    for address, events in found.items():
        yield seen_in_log(
            s,
            gpu_name(s, address),
            shorter(events[0].text),
            events,
            "no fault",
            fix=(_PASSED_THROUGH,) if _iommu_of(s, address) == "identity" else (_ON_ARM,) if "arm-smmu" in events[0].text else (),
        )
    if not found:
        yield from none_logged(s, "GPUs", "IOMMU fault")


_PASSED_THROUGH = Advice(
    text="the IOMMU passes this GPU's accesses through by now: look whether faults came after the last boot; if they did, update the driver and the firmware"
)


_ON_ARM = Advice(
    text="boot with iommu.passthrough=1, as NVIDIA's guide for Grace has it; if it does already, update the driver and the firmware"
)


def _iommu_of(s: Snapshot, address: str) -> str:
    device = pci_devices_by_address(s).get(address)
    return "" if device is None else known(device.iommu_type, "")


def _gpu_addresses(s: Snapshot) -> frozenset[str]:
    if isinstance(s.driver, Missing) or isinstance(s.driver.nvidia_devices, Missing):
        return frozenset()
    return frozenset(s.driver.nvidia_devices)
