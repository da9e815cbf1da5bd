"""Rules on AMD's driver: is it bound to the GPUs, and may this user open it."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.install_rocm import gpu as amd_gpu
from torchtune_sys.model.actions import Action, Advice, Install, Needs, Safety
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, pci_devices_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.driver.common import container
from torchtune_sys.rules.gates import amd_gpus


@rule(
    id="amdgpu-not-loaded",
    title="There is an AMD GPU, but no kernel driver serves it",
    severity=Severity.ERROR,
    cause="amdgpu-not-loaded",
    explained_by=("amdgpu-initialisation-failed", "module-signature-refused", "module-of-another-kernel-refused"),
    fix=(
        Advice(text="sudo modprobe amdgpu; if that fails, dmesg | grep -i amdgpu shows why", safety=Safety.DISPLAY_ONLY),
        Install(
            text="install the headers of the running kernel, then build AMD's module for it: dkms autoinstall (the package is amdgpu-dkms)"
        ),
    ),
)
def amdgpu_not_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A GPU or accelerator that ROCm supports is on the PCI bus, and no driver is bound to it.

    Why it matters
        torch.cuda.is_available() is False and training runs on the CPU. After a kernel update AMD's module must be built again, and
        the amdgpu of an older kernel does not know the newest accelerators.

    When to leave it
        The GPU is kept for virtual machines, or training runs elsewhere.

    References
        https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/detailed-install/prerequisites.html
        Linux drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c (pciidlist)
    """
    devices = need(s.pci).devices
    found = [] if absent(devices) else [device for device in need(devices) if _trains(device)]
    served = [device for device in found if device.driver == "amdgpu" or isinstance(device.driver, Missing)]
    if not served:
        raise NotApplicable("every AMD GPU is kept for virtual machines" if found else "no AMD GPU on this host")
    for device in served:
        if isinstance(device.driver, Missing) and not absent(device.driver):
            yield unsure(_name(device), device.driver, "amdgpu")
            continue
        yield Evidence(
            subject=_name(device),
            seen="bound to amdgpu" if device.driver == "amdgpu" else "no driver is bound to it",
            wanted="bound to amdgpu",
            verdict=Verdict.PASS if device.driver == "amdgpu" else Verdict.FAIL,
            source=f"/sys/bus/pci/devices/{device.address}/driver",
        )


def unserved(s: Snapshot) -> bool:
    """Return whether an AMD GPU that people train on has no driver, as far as the bus is seen."""
    devices = pci_devices_told(s)
    return any(_trains(device) and absent(device.driver) for device in devices)


def _trains(device: PciDevice) -> bool:
    """Whether it is a GPU that people train on: one of the table, or a processing accelerator (an Instinct newer than the table)."""
    if device.vendor != "0x1002":
        return False
    return bool(amd_gpu(known(device.device, ""))[1]) or known(device.class_, "")[2:6] == "1200"


def _name(device: PciDevice) -> str:
    name = amd_gpu(known(device.device, ""))[0] or "AMD GPU"
    return f"{name} at {device.address}"


@rule(
    id="rocm-device-permission",
    title="This user may not open AMD's compute device",
    severity=Severity.ERROR,
    cause="rocm-device-permission",
    fix=(
        Advice(
            text="add the user to the group that owns /dev/kfd (often render): sudo usermod -aG render USER", needs=Needs.LOGIN
        ),
        Advice(
            text="in a container: --device /dev/kfd --device /dev/dri --group-add GID, with the number of the node's group on the host: "
            "an image may not know the name render"
        ),
    ),
)
def rocm_device_permission(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/kfd exists, but its permissions do not let this user read and write it; or torch is a ROCm build, and it is missing, or all render nodes of the GPUs
    (/dev/dri/renderD128 …) are.

    Why it matters
        ROCm opens it first; without it, torch.cuda.is_available() is False and rocminfo says "Unable to open /dev/kfd
        read-write".

    When to leave it
        This user deliberately has no access to the GPUs; a job scheduler grants it. A card for a display beside NVIDIA GPUs, with a torch for CUDA, is
        not judged.

    References
        https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html, "Configuring permissions for
            GPU access"
        https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html (--device /dev/kfd --device /dev/dri)
    """
    amd_gpus(s)
    if known(need(s.driver).nvidia_devices, ()) and not _rocm_build(s):
        raise NotApplicable("NVIDIA GPUs train here: torch is no ROCm build, which alone would open the AMD GPU")
    found = need(s.driver).compute_node
    if absent(found):
        yield _none_here(s)
        return
    node = need(found)
    yield Evidence(
        subject=node.path,
        seen=f"mode {node.mode:04o}, uid {node.uid}, gid {node.gid}",
        wanted="readable and writable for this user",
        verdict=Verdict.PASS if need(node.accessible) else Verdict.FAIL,
        source=node.path,
        fix=_of_root() if node.gid == 0 else (),
    )
    if known(need(s.driver).amd_render_nodes, ("?",)) == () and _rocm_build(s):
        yield Evidence(
            subject="/dev/dri",
            seen="/dev/kfd is here, and of the render nodes that the kernel lists for the GPUs none is",
            wanted="renderD128 and so on",
            source="/sys/bus/pci/devices/*/drm",
            fix=(_HANDED_OVER,) if container(s) else (),
        )


def _rocm_build(s: Snapshot) -> bool:
    torch = need(s.python).torch
    return not absent(torch) and not absent(need(torch).hip)


def _none_here(s: Snapshot) -> Evidence:
    """Return what is said where the GPUs have their driver and there is no node: torch's ROCm build needs it, another one does not."""
    if not _rocm_build(s):
        raise NotApplicable("no /dev/kfd here, and no ROCm build of torch that would open it")
    need(need(need(s.python).torch).hip)
    return Evidence(
        subject="/dev/kfd",
        seen="is missing: the container was given none" if container(s) else "is missing, although amdgpu is loaded",
        wanted="readable and writable for this user",
        source="/dev",
        fix=(_HANDED_OVER if container(s) else _KERNEL_WITHOUT,),
    )


_HANDED_OVER = Advice(
    text="start the container with --device /dev/kfd --device /dev/dri (Kubernetes: the resource amd.com/gpu of AMD's device plug-in)",
    needs=Needs.NEW_PROCESS,
)
_KERNEL_WITHOUT = Advice(
    text="install amdgpu-dkms: this kernel's own amdgpu has no compute driver (CONFIG_HSA_AMD), or it failed (dmesg | grep kfd)"
)


def _of_root() -> tuple[Action, ...]:
    """Return what helps where the node belongs to root's group, to which nobody should be added."""
    return (
        Advice(
            text="install the udev rules that come with ROCm (amdgpu-install, or the package rocm-core); they give the node to the group "
            "render. Then run sudo udevadm trigger"
        ),
        Advice(text="in a container: first give the node to a group on the host, then pass that group's number: --group-add GID"),
    )
