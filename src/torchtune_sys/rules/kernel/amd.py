"""Rules on what AMD's driver logged about its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge.install_rocm import gpu as gpu_of_rocm
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.integrated_gpus import is_integrated
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, pci_devices_by_address
from torchtune_sys.model.values import Missing, known
from torchtune_sys.rules.gates import amd_gpus
from torchtune_sys.rules.kernel.common import DAYS, grouped, none_logged, recent, seen_in_log, shorter, since_last_start


def amd_log(s: Snapshot) -> None:
    """Require a machine with AMD's driver, or a log that speaks of it."""
    events = () if isinstance(s.kernel, Missing) or isinstance(s.kernel.events, Missing) else s.kernel.events
    if any(event.kind.startswith("amdgpu-") for event in events):
        return
    amd_gpus(s)


def _by_gpu(events: tuple[KernelEvent, ...]) -> dict[str, list[KernelEvent]]:
    """Messages by GPU; those that name none belong to the one GPU that others name, if it is one."""
    found = grouped(events)
    names = [name for name in found if name]
    if "" in found and len(names) == 1:
        found[names[0]] = sorted(found.pop("") + found[names[0]], key=lambda event: event.first_s or 0.0)
    return found


def _name(address: str) -> str:
    return f"AMD GPU at {address}" if address else "an AMD GPU"


def _each(s: Snapshot, p: Params, kinds: tuple[str, ...], what: str, wanted: str) -> Iterator[Evidence]:
    found = _by_gpu(recent(s, p, *kinds))
    for address, events in found.items():
        yield seen_in_log(s, _name(address), shorter(events[-1].text), events, wanted)
    if not found:
        yield from none_logged(s, "AMD GPUs", what)


def _since_reset(s: Snapshot, p: Params, kind: str, what: str, wanted: str) -> Iterator[Evidence]:
    """Messages after which neither the GPU was reset nor the machine booted."""
    mended: dict[str, float] = {}
    for event in recent(s, p, "amdgpu-reset-done", "boot"):
        if event.last_s is not None:
            mended[event.subject] = max(event.last_s, mended.get(event.subject, event.last_s))
    left = False
    for address, events in _by_gpu(recent(s, p, kind)).items():
        last = events[-1].last_s
        if last is not None and any(name in mended and mended[name] > last for name in ("", address)):
            continue
        left = True
        yield seen_in_log(s, _name(address), shorter(events[-1].text), events, wanted)
    if not left:
        yield from none_logged(s, "AMD GPUs", what)


@rule(
    id="amdgpu-reset-logged",
    title="An AMD GPU hung and had to be reset",
    severity=Severity.WARNING,
    cause="amd-gpu-hang",
    superseded_by=("amdgpu-reset-failed-logged",),
    fix=(
        Advice(
            text="find out whether it follows the GPU or the program; update the driver (amdgpu-dkms) and its firmware, or ROCm"
        ),
    ),
    params=(DAYS,),
    applies=amd_log,
)
def amdgpu_reset_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The amdgpu driver logged a ring or queue timeout, or a reset of the GPU.

    Why it matters
    The contents of the GPU's memory are lost, and every process that was using it fails with a HIP error, including those that
    did nothing wrong. GPUs linked by XGMI (a hive) are all reset together.

    When to leave it
    A desktop program caused it once, on a workstation's display GPU.

    References
    Linux drivers/gpu/drm/amd/amdgpu/amdgpu_job.c (amdgpu_job_timedout), amdgpu_device.c (amdgpu_device_gpu_recover),
    drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c
    """
    yield from _each(s, p, ("amdgpu-timeout", "amdgpu-reset"), "hang or reset", "no hang")


@rule(
    id="amdgpu-reset-failed-logged",
    title="An AMD GPU could not be reset",
    severity=Severity.ERROR,
    fix=(Advice(text="restart the machine (power-cycle it if the GPU is still missing afterwards)"),),
    params=(DAYS,),
    applies=amd_log,
    cause="gpu-needs-reset",
)
def amdgpu_reset_failed_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The amdgpu driver logged that a reset of the GPU failed, and no later reset or boot has fixed it.

    Why it matters
    The GPU cannot be used until the machine is restarted; programs that touch it hang.

    When to leave it
    The machine has been restarted since.

    References
    Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c (amdgpu_device_gpu_recover)
    """
    yield from _since_reset(s, p, "amdgpu-reset-failed", "failed reset", "reset")


@rule(
    id="amdgpu-uncorrectable-errors-logged",
    title="The kernel log reports uncorrectable errors of an AMD GPU",
    severity=Severity.ERROR,
    cause="gpu-ecc-uncorrectable",
    fix=(Advice(text="drain and reset the GPU, check its bad pages (amd-smi bad-pages), and replace it if errors recur"),),
    params=(DAYS,),
    applies=amd_log,
)
def amdgpu_uncorrectable_errors_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The amdgpu driver logged uncorrectable errors of a block (umc is the memory), a read of data known to be bad (poison), more bad
    pages than it allows, or an error that stopped the whole GPU, with no reset of the GPU since.

    Why it matters
    Data on the GPU was lost: the process that read it is killed, and the GPU is reset.

    When to leave it
    It happened once, the page was retired and the count does not grow. Cards without RAS that "count" 1,048,560 errors are
    ignored.

    References
    Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_eeprom.c, amdkfd/kfd_int_process_v9.c; Documentation/gpu/amdgpu/ras.rst
    """
    yield from _since_reset(s, p, "amdgpu-ue", "uncorrectable error (since the last reset)", "no uncorrectable error")


@rule(
    id="amdgpu-initialisation-failed",
    title="AMD's driver could not initialise a GPU",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="read the lines before it (dmesg | grep amdgpu): missing firmware (linux-firmware; Debian: firmware-amd-graphics, Fedora: "
            "amd-gpu-firmware, SUSE: kernel-firmware-amdgpu, AMD's own driver: amdgpu-dkms-firmware), or no room for the GPU's BAR"
        ),
    ),
    params=(DAYS,),
    applies=amd_log,
)
def amdgpu_initialisation_failed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds "Fatal error during GPU init" for an AMD GPU since the machine was booted, or says that the compute driver left one out since its way
    to the processor does not carry PCIe atomics.

    Why it matters
    The GPU is on the PCI bus and ROCm does not see it.

    When to leave it
    No program computes on this GPU. A processor's own graphics, and GPUs that the driver has by now, are not reported.

    References
    Linux drivers/gpu/drm/amd/amdgpu/amdgpu_kms.c (amdgpu_driver_load_kms), amdkfd/kfd_device.c ("PCI rejects atomics")
    https://rocm.docs.amd.com/en/latest/conceptual/More-about-how-ROCm-uses-PCIe-Atomics.html
    """
    current = tuple(event for event in since_last_start(s, p, "amdgpu-init") if not _runs_by_now(s, event.subject))
    for address, events in grouped(current).items():
        yield seen_in_log(s, _name(address), shorter(events[-1].text), events, "initialised")
    left_out = [event for event in since_last_start(s, p, "amdgpu-skipped") if any(map(_is_for_training, event.who.split(", ")))]
    for event in left_out:
        item = seen_in_log(s, f"AMD GPU {event.who}", shorter(event.text), (event,), "a way that carries PCIe atomics")
        yield msgspec.structs.replace(item, fix=(_ATOMICS,))
    if not current and not left_out:
        yield from none_logged(s, "AMD GPUs", "failed initialisation")


_ATOMICS = Advice(
    text="put the card into a slot of the processor itself (not of the chipset, not behind an adapter without PCIe atomics), update the firmware; in a virtual "
    "machine, pass it through behind a root port that carries atomics, or run on the host"
)


def _is_for_training(device: str) -> bool:
    """Return whether AMD's table has the device among those that people train on; the driver leaves graphics of old processors out by the same message."""
    return bool(gpu_of_rocm(f"0x{device}")[1])


def _runs_by_now(s: Snapshot, address: str) -> bool:
    """Whether the driver was loaded again and has the GPU (it lets go of one that it could not initialise), or nobody would train on it."""
    device = pci_devices_by_address(s).get(address)
    return device is not None and (device.driver == "amdgpu" or is_integrated("0x1002", known(device.device, "")))
