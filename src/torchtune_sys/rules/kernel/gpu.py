"""Rules on the Xids that NVIDIA's driver logged for GPUs and NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.xid import xid
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import TO_DO, Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_by_address
from torchtune_sys.model.values import Missing, NotApplicable, need
from torchtune_sys.rules.driver.common import display_cards
from torchtune_sys.rules.kernel.common import (
    DAYS,
    gpu_name,
    grouped,
    is_working,
    none_logged,
    nvidia_log,
    recent,
    seen_in_log,
    shorter,
    since_last_start,
    when,
)
from torchtune_sys.rules.kernel.xid import XidIncident, incidents, number_of, wanted_action


def _judged(s: Snapshot, p: Params, *kinds: str) -> Iterator[Evidence]:
    found = [incident for incident in incidents(s, p) if incident.judged in kinds]
    for incident in found:
        yield _evidence(s, incident)
    if not found:
        yield from none_logged(s, "GPUs", "such Xid")


def _evidence(s: Snapshot, incident: XidIncident) -> Evidence:
    log = need(s.kernel)
    first = incident.events[0]
    entry = xid(number_of(first))
    text = first.text.partition(f": {first.code}")[2].strip(" ,.")
    program = f" ({first.who})" if first.who else ""
    words = f"Xid {entry.number}{program}{when(log, incident.events)}: {entry.meaning or entry.name or shorter(text)}"
    if first.kind == "gpu-in-reset":
        entry = xid(46)  # for which the catalogue asks for the same
    if first.kind in ("gpu-lost", "gsp-timeout", "gpu-in-reset"):
        words = f"{shorter(first.text.rstrip('.'))}{when(log, incident.events)}"
    if incident.after:
        words += f"; followed by {', '.join(incident.after)}"
    words += _seen_now(s, incident)
    action = wanted_action(s, incident.address)
    todo = (
        f"{entry.todo} (the driver asks: {action})" if action and entry.todo else entry.todo or f"what the driver asks: {action}"
    )
    return Evidence(
        subject=gpu_name(s, incident.address),
        seen=f"{words}; {incident.over}" if incident.over else words,
        wanted="" if incident.over else f"{TO_DO}{todo}",
        verdict=Verdict.PASS if incident.over else Verdict.FAIL,
        source=log.source,
    )


def _seen_now(s: Snapshot, incident: XidIncident) -> str:
    """Return what NVML says of the same fault, for which its own rule is folded into this finding."""
    gpu = gpus_by_address(s).get(incident.address)
    if incident.over or gpu is None:
        return ""
    down, count = gpu.nvlinks_down, gpu.ecc_uncorrected_volatile
    if incident.judged == "nvlink" and not isinstance(down, Missing) and down:
        return f"; links down: {', '.join(map(str, down))}"
    if incident.judged == "memory" and not isinstance(count, Missing) and count > 0:
        return f"; {count} uncorrectable errors counted since the driver was loaded"
    return ""


@rule(
    id="xid-gpu-lost",
    title="The kernel log says that a GPU fell off the bus",
    severity=Severity.ERROR,
    cause="gpu-fallen-off-bus",
    superseded_by=("gpu-fallen-off-bus",),
    fix=(Advice(text="restart the machine; if it recurs, check the card's power, riser and slot, then replace the card"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_gpu_lost(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported Xid 79 or a GPU that has fallen off the bus, with no reload of the driver or reboot since.

    Why it matters
    The driver can no longer reach the GPU: every process on it has died or hangs, and on machines with NVLink the other GPUs lose
    their peer. A GPU reset does not bring it back, since its PCIe link is gone.

    When to leave it
    The GPU was removed from use on purpose (hot removal, passed to a virtual machine).

    References
    https://docs.nvidia.com/deploy/xid-errors/ (Xid 79: RESTART_BM)
    NVIDIA/open-gpu-kernel-modules src/nvidia/arch/nvalloc/unix/src/osinit.c
    """
    yield from _judged(s, p, "lost")


@rule(
    id="xid-memory-error",
    title="The kernel log reports uncorrectable errors in a GPU's memory",
    severity=Severity.ERROR,
    cause="gpu-ecc-uncorrectable",
    fix=(
        Advice(text="drain and reset the GPU, check its row remapping (nvidia-smi -q -d ROW_REMAPPER), and run dcgmi diag -r 3"),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_memory_error(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported Xid 48, 64, 94, 95, 140, 171 or 172, and the GPU has not been reset since.

    Why it matters
    A contained error (94) ends the process that owned the memory; an uncontained one (95) ends everything on the GPU until it is
    reset. A row that could not be remapped (64) will fail again. Xid 63 alone (a row was recorded for remapping) and Xid 92 are
    not reported, since NVIDIA requires no action for them.

    When to leave it
    It happened once, followed by a reset, on a GPU that can still remap rows: this is what remapping is for.

    References
    https://docs.nvidia.com/deploy/xid-errors/
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    yield from _judged(s, p, "memory")


@rule(
    id="xid-gsp-error",
    title="The kernel log says that a GPU's system processor stopped answering",
    severity=Severity.ERROR,
    cause="gsp-firmware-timeout",
    fix=(Advice(text="reset the GPU or restart the machine; update the driver if it recurs"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_gsp_error(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported Xid 119 or 120 (not as a consequence of Xid 79), and the GPU has not been reset since.

    Why it matters
    The GPU System Processor runs most of the driver on the card. Once it stops responding, every call runs into its timeout,
    nvidia-smi and NVML hang for minutes, and running jobs stop.

    When to leave it
    The GPU was reset in a way that the log does not show.

    References
    https://docs.nvidia.com/deploy/xid-errors/ (Xid 119, 120: RESET_GPU)
    """
    yield from _judged(s, p, "gsp")


@rule(
    id="xid-nvlink-error",
    title="The kernel log reports fatal NVLink or NVSwitch errors",
    severity=Severity.ERROR,
    cause="nvlink-inactive",
    fix=(
        Advice(
            text="reset all GPUs of the NVLink fabric together, or restart the machine; contact support if a link fails again"
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_nvlink_error(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported Xid 74, 136, 144 to 150 (fatal) or 155, or a fatal NVSwitch SXid, with no reset since.

    Why it matters
    After a fatal error, a link is down until both ends are reset: NCCL fails, or falls back to PCIe. Links also fail when a GPU
    falls off the bus (Xid 79): then only that is reported.

    When to leave it
    The link was reset in a way that the log does not show, and nvidia-smi nvlink -s shows all links up.

    References
    https://docs.nvidia.com/deploy/xid-errors/
    NVIDIA, Fabric Manager User Guide, SXid errors (fatal and non-fatal)
    """
    found = [incident for incident in incidents(s, p) if incident.judged == "nvlink"]
    for incident in found:
        yield _evidence(s, incident)
    log = need(s.kernel)
    switches = grouped(tuple(event for event in since_last_start(s, p, "sxid") if event.who == "Fatal"))
    for address, events in switches.items():
        yield Evidence(
            subject=f"NVSwitch at {address}",
            seen=f"fatal SXid {', '.join(dict.fromkeys(str(event.code) for event in events))}{when(log, events)}: "
            f"{shorter(events[0].text.rpartition('Fatal, ')[2])}",
            wanted="no fatal error",
            source=log.source,
        )
    if not found and not switches:
        yield from none_logged(s, "NVLinks", "fatal NVLink error")


@rule(
    id="xid-gpu-fault",
    title="The kernel log reports a GPU fault that needs a reset",
    severity=Severity.ERROR,
    fix=(Advice(text="reset the GPU (nvidia-smi --gpu-reset) or restart the machine; contact support if it recurs"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_gpu_fault(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported an Xid for which NVIDIA's catalogue recommends a reset, restart or repair (46, 54, 62, 109, 143 …), or that it wants one
    (154), where the log holds no fault that it wants it for.

    Why it matters
    Work on the GPU stops or fails until it is reset.

    When to leave it
    The GPU was reset in a way that the log does not show. Xid 109 (context switch timeout) can also be caused by a program: check
    whether it follows the GPU or the job.

    References
    https://docs.nvidia.com/deploy/xid-errors/
    """
    yield from _judged(s, p, "gpu", "action")


@rule(
    id="xid-for-support",
    title="The kernel log holds an Xid that should be reported to NVIDIA support",
    severity=Severity.WARNING,
    fix=(Advice(text="run nvidia-bug-report.sh and contact support"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def xid_for_support(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported an Xid for which NVIDIA's catalogue says to contact support, or one that this version does not know.

    Why it matters
    These are faults of the card's flash memory, firmware or retired resources: the GPU may continue with less memory or without
    recording errors.

    When to leave it
    Support already knows about it.

    References
    https://docs.nvidia.com/deploy/xid-errors/
    """
    yield from _judged(s, p, "support")


@rule(
    id="xid-of-program",
    title="A program failed on a GPU; this does not indicate a faulty GPU",
    severity=Severity.ADVICE,
    fix=(Advice(text="debug the program: compute-sanitizer, CUDA_LAUNCH_BLOCKING=1; nothing needs to be done about the GPU"),),
    params=(
        DAYS,
        Param("programs", 3, "number of different programs failing on one GPU from which on the GPU itself is suspected"),
    ),
    applies=nvidia_log,
)
def xid_of_program(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reported an Xid caused by a program (13, 31, 43, 68, 69 …), and no GPU fault along with it.

    Why it matters
    A job ended with a CUDA error, and its log may not say why: the Xid gives the kind of error (an out-of-bounds address, an
    illegal instruction). If different programs fail on one GPU and on no other, the GPU may be faulty after all: run dcgmi diag
    -r 3.

    When to leave it
    The program's error is known. (Xid 45 alone is the result of a killed process and is not reported.)

    References
    https://docs.nvidia.com/deploy/xid-errors/ (RESTART_APP)
    """
    log = need(s.kernel)
    found = [incident for incident in incidents(s, p) if incident.judged == "program" and not incident.over]
    addresses = {incident.address for incident in found}
    for incident in found:
        programs = {name for event in incident.events for name in event.who.split(", ") if name}
        item = _evidence(s, incident)
        suspect = len(programs) >= int(p["programs"]) and len(addresses) == 1
        yield Evidence(
            subject=item.subject,
            seen=item.seen,
            wanted=f"{TO_DO}{len(programs)} different programs failed on this GPU alone: run dcgmi diag -r 3"
            if suspect
            else item.wanted,
            source=log.source,
        )
    if not found:
        yield from none_logged(s, "GPUs", "Xid caused by a program")


_WHY_NOT_SERVED = ("gpu-bar-not-assigned", "gsp-firmware-missing", "gpu-needs-proprietary-module", "driver-ignores-gpu")
"""Rules on messages that say why the driver does not serve a GPU."""


@rule(
    id="gpu-initialisation-failed",
    title="The driver could not initialise a GPU",
    severity=Severity.ERROR,
    explained_by=_WHY_NOT_SERVED,
    fix=(Advice(text="restart the machine; check power and seating; read the surrounding messages: dmesg | grep NVRM"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def gpu_initialisation_failed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds "RmInitAdapter failed" or "probe routine failed" for a GPU that the driver does not run, and nothing else explains it.

    Why it matters
    The GPU is on the PCI bus but cannot be used: nvidia-smi says "No devices were found", or shows one GPU fewer.

    When to leave it
    Never.

    References
    NVIDIA/open-gpu-kernel-modules src/nvidia/arch/nvalloc/unix/src/osinit.c (RmInitAdapter)
    """
    own = {incident.address for incident in incidents(s, p) if incident.judged == "init"}
    found = grouped(tuple(event for event in since_last_start(s, p, "gpu-init") if not is_working(s, event.subject)))
    for address, events in found.items():
        if address in own:
            words = shorter(events[0].text)
            yield seen_in_log(s, gpu_name(s, address), words, events, "initialised")
    refused = () if found or incidents(s, p) else _not_probed(s, p, "gpu-probe-failed")
    if refused:
        words = shorter(refused[-1].text.rstrip("."))
        yield seen_in_log(s, f"{refused[-1].code} GPU(s)", words, refused, "initialised")
    elif not found:
        yield from none_logged(s, "driver", "failed initialisation")


def _not_probed(s: Snapshot, p: Params, kind: str) -> tuple[KernelEvent, ...]:
    """Return what the driver said of GPUs that it did not get, unless it serves every GPU by now."""
    found = since_last_start(s, p, kind)
    if not found:
        return ()
    if isinstance(s.gpu, Missing) or isinstance(s.gpu.devices, Missing) or not s.gpu.devices:
        return found
    return found if len(need(need(s.driver).nvidia_devices)) - len(display_cards(s)) > len(s.gpu.devices) else ()


@rule(
    id="gpu-held-by-other-driver",
    title="Another driver is bound to a GPU that NVIDIA's driver should use",
    severity=Severity.WARNING,
    explained_by=("nouveau-loaded", "xid-gpu-lost", *_WHY_NOT_SERVED),
    fix=(
        Advice(
            text="find out which driver is bound to it (lspci -k), blacklist that driver in /etc/modprobe.d/, rebuild the "
            "initramfs, and reboot"
        ),
        Advice(
            text="if none is bound, and the kernel is 5.18 or newer with an old driver: update the driver (or boot with ibt=off)"
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def gpu_held_by_other_driver(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says "probe routine was not called" for some GPUs without naming nouveau or vfio-pci, and the driver has not claimed them.

    Why it matters
    Only one driver can be bound to a device: if a frame buffer driver (nvidiafb, rivafb), nouveau or nova claims the GPUs at
    boot, nvidia-smi shows none.

    When to leave it
    The GPU is meant for a virtual machine or a display.

    References
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv.c (nvidia_init_module)
    """
    if any(recent(s, p, "gpu-bound")):
        raise NotApplicable("another message says which driver holds it")
    found = _not_probed(s, p, "gpu-not-probed")
    if found:
        words = shorter(found[-1].text.rstrip("."))
        yield seen_in_log(s, f"{found[-1].code} GPU(s)", words, found, "NVIDIA's driver")
    else:
        yield from none_logged(s, "driver", "GPU bound to another driver")
