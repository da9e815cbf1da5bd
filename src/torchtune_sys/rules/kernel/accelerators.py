"""What drivers logged of accelerators that they gave up or that a security module keeps from a program."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.install_rocm import gpu
from torchtune_sys.model.actions import Advice, Needs, Safety
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.integrated_gpus import is_integrated
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, pci_devices_by_address
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.rules.kernel.common import (
    DAYS,
    device_name,
    grouped,
    none_logged,
    recent,
    seen_in_log,
    shorter,
    since_last_start,
    total,
)
from torchtune_sys.rules.kernel.machine import of_training


@rule(
    id="accelerator-given-up-logged",
    title="The driver of an Intel GPU or a Gaudi gave the device up",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="read the lines before it (dmesg | grep -e xe -e habanalabs): a firmware that did not load (linux-firmware; the release of habanalabs that "
            "fits), or a broken link"
        ),
        Advice(
            text="xe: bind its driver anew, as root (echo ADDRESS into /sys/bus/pci/drivers/xe/unbind, then into .../bind)",
            safety=Safety.DISPLAY_ONLY,
        ),
        Advice(
            text="if that does not help, and for a Gaudi: start the machine again with its power off in between",
            needs=Needs.REBOOT,
        ),
    ),
    params=(DAYS,),
)
def accelerator_given_up_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Intel's driver xe has declared a GPU as wedged since the machine was booted, or Gaudi's driver lost the link to a device, and neither has said
    since that the device is back.

    Why it matters
    A wedged GPU takes no more work until the driver is bound to it anew. A Gaudi without its link is lost until the machine is started again.

    When to leave it
    The device is not used for training. (Graphics that are part of a processor are not judged.)

    References
    Linux drivers/gpu/drm/xe/xe_device.c (xe_device_declare_wedged); drivers/accel/habanalabs/common/device.c (hl_device_heartbeat, hl_device_reset)
    """
    back = {event.subject: event.last_s for event in recent(s, p, "accelerator-back")}
    left = tuple(
        event
        for event in since_last_start(s, p, "accelerator-lost")
        if not _is_graphics(s, event.subject) and not _is_later(back.get(event.subject), event.last_s)
    )
    lost = grouped(left)
    for address, events in lost.items():
        yield seen_in_log(s, device_name(s, address), shorter(events[-1].text), events, "in use by its driver")
    if not lost:
        yield from none_logged(s, "accelerators", "device that its driver gave up")


_GRAPHICS = "0000:00:02.0"
"""Where Intel's processors show their own graphics."""


def _is_graphics(s: Snapshot, address: str) -> bool:
    device = pci_devices_by_address(s).get(address)
    return address == _GRAPHICS if device is None else is_integrated(known(device.vendor, ""), known(device.device, ""))


def _is_later(time: float | None, than: float | None) -> bool:
    return time is not None and than is not None and time > than


_OF_PROGRAM = Advice(
    text="find the operation that does it: AMD_SERIALIZE_KERNEL=3 and HIP_LAUNCH_BLOCKING=1 for one run; without extensions and compiled kernels of one's own it is "
    "the driver's or its firmware's fault: update both (linux-firmware, amdgpu-dkms), or torch"
)
_LONG_KERNELS = Advice(
    text="update the kernel and linux-firmware (GuC); i915: let long kernels run, as root: echo N > /sys/module/i915/parameters/enable_hangcheck"
)
_LESS_MEMORY = Advice(
    text="pin less memory: fewer DataLoader workers with pin_memory, a smaller model, no other program on the GPUs"
)


@rule(
    id="gpu-program-stopped-logged",
    title="The driver of an AMD or Intel GPU stopped a program of training, or refused it memory",
    severity=Severity.WARNING,
    fix=(_OF_PROGRAM, _LONG_KERNELS),
    params=(DAYS, Param("count", 3, "how often the driver may be refused memory in that time")),
)
def gpu_program_stopped_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log has a page fault of a program that computes on an AMD GPU, a job of Python's on an Intel GPU that took too long, or, three times or more, that AMD's
    compute driver may not pin more of the host's memory.

    Why it matters
    The program ends with "Memory access fault by GPU node", "UR_RESULT_ERROR_DEVICE_LOST" or "out of memory" while memory is free, and no message of its own says
    that the driver did it.

    When to leave it
    A program of one's own was wrong, and is mended. Desktop programs are not reported: of AMD's faults those that name another program, or none and no context of
    the compute driver (VMID 8 and above, 3 on GPUs without graphics).

    References
    Linux drivers/gpu/drm/amd/amdgpu/gmc_v9_0.c and gmc_v10_0.c, amdkfd/kfd_svm.c (svm_range_validate_and_map), amdgpu_amdkfd_gpuvm.c (amdgpu_amdkfd_reserve_mem_limit)
    Linux drivers/gpu/drm/xe/xe_guc_submit.c (guc_exec_queue_timedout_job), drivers/gpu/drm/i915/i915_gpu_error.c
    https://github.com/ROCm/ROCm/issues/3207; https://github.com/vllm-project/vllm/issues/55425
    """
    found = False
    for kind, wanted, fix in (
        ("program-page-fault", "no page fault", _OF_PROGRAM),
        ("program-timeout", "jobs that end", _LONG_KERNELS),
        ("program-no-memory", "memory of the host", _LESS_MEMORY),
    ):
        events = tuple(event for event in recent(s, p, kind) if kind == "program-no-memory" or _computes(s, event))
        if kind == "program-no-memory" and total(events) < int(p["count"]):
            continue
        for address, of_it in grouped(events).items():
            found = True
            subject = device_name(s, address) if address else "AMD's driver"
            yield seen_in_log(s, subject, shorter(of_it[-1].text), of_it, wanted, fix=(fix,))
    if not found:
        yield from none_logged(s, "accelerators", "program that a driver stopped")


_FIRST_VMID, _FIRST_VMID_WITHOUT_GRAPHICS = 8, 3
"""Of the sixteen contexts of a GPU's memory, AMD's compute driver has the upper half, without graphics all but three (amdgpu gmc_v*.c: first_kfd_vmid)."""
_WITHOUT_GRAPHICS = ("gfx908", "gfx90a", "gfx942", "gfx950")


def _computes(s: Snapshot, event: KernelEvent) -> bool:
    if event.who or event.kind != "program-page-fault":
        return of_training(event)
    device = pci_devices_by_address(s).get(event.subject)
    gfx = "" if device is None else gpu(known(device.device, ""))[1]
    return event.code >= (_FIRST_VMID_WITHOUT_GRAPHICS if gfx in _WITHOUT_GRAPHICS else _FIRST_VMID)


_APPARMOR = Advice(
    text="start the program outside of the snap or service whose profile refused it, or allow the path in /etc/apparmor.d/local/PROFILE and load it: sudo "
    "apparmor_parser -r /etc/apparmor.d/PROFILE"
)
_SELINUX = Advice(
    text="in a container: sudo setsebool -P container_use_devices on, or start it with --security-opt label=disable"
)


@rule(
    id="device-access-refused-logged",
    title="AppArmor or SELinux refused a training program the accelerator or the network adapter",
    severity=Severity.WARNING,
    cause="gpu-device-permission",
    fix=(_APPARMOR, _SELINUX),
    params=(DAYS,),
)
def device_access_refused_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds a denial of AppArmor or SELinux for Python, torchrun or Ray at a node of NVIDIA's, AMD's or Intel's driver, or of RDMA.

    Why it matters
    The owner and mode of the node let the program in, and opening it fails nevertheless: CUDA finds no device, or NCCL no adapter.

    When to leave it
    The program that was refused trains nothing, or the policy was changed since. Render nodes count with a torch for AMD's or Intel's GPUs alone: CUDA
    opens none.

    References
    Linux security/apparmor/audit.c, security/selinux/avc.c (avc_audit_pre_callback); apparmor.d(5); container_selinux(8)
    """
    refused = grouped(
        tuple(event for event in recent(s, p, "device-refused") if of_training(event) and _is_used(s, event.subject))
    )
    for path, events in refused.items():
        is_apparmor = "apparmor=" in events[-1].text
        words = f"{'AppArmor' if is_apparmor else 'SELinux'} refused it to {events[-1].who}"
        yield seen_in_log(s, path, words, events, "open to it", fix=(_APPARMOR,) if is_apparmor else (_SELINUX,))
    if not refused:
        yield from none_logged(s, "devices", "refused access")


def _is_used(s: Snapshot, node: str) -> bool:
    """Return whether the installed torch opens such a node, as far as it is known."""
    torch = Missing(Why.NOT_RECORDED, "torch") if isinstance(s.python, Missing) else s.python.torch
    return "renderD" not in node or isinstance(torch, Missing) or not known(torch.cuda, "")
