"""Rules on the health of each GPU: on the bus, without uncorrected memory errors, not waiting for a reset."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.gpus import by_name
from torchtune_sys.model.actions import Advice, Needs, NvmlSetting
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known_or_unknown, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.common import bound_driver, gpu_addresses, not_served, nvml_error
from torchtune_sys.rules.gpu.common import each, subject

_RESET = "nvidia-smi --gpu-reset -i N (V100 with NVLink: all GPUs together; A100 with NVSwitches: the fabric manager must run), or reboot"
"""Source: nvidia-smi(1), --gpu-reset: single GPUs with NVLink since Ampere; on Hopper and later without the fabric manager."""


@rule(
    id="gpu-fallen-off-bus",
    title="A GPU no longer responds",
    severity=Severity.ERROR,
    cause="gpu-fallen-off-bus",
    fix=(
        Advice(
            text="reboot (a GPU reset does not bring it back); then read dmesg for Xid 79 and PCIe AER errors before it",
            needs=Needs.REBOOT,
        ),
        Advice(text="if it recurs: check power cables, seating, riser and cooling; have the card replaced"),
    ),
)
def gpu_fallen_off_bus(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVML reports a GPU as lost, or cannot get its handle.

    Why it matters
        Every process that used it is dead or hung, and collectives wait for the missing rank until their timeout. Tools that list
        GPUs fail at it, too.

    When to leave it
        Never.

    References
        https://docs.nvidia.com/deploy/xid-errors/ (Xid 79)
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_GPU_IS_LOST)
    """
    if nvml_error(s) == "GPU_IS_LOST":
        yield _refused(s)
        return
    for gpu in gates.nvidia_gpus(s):
        gone = gpu.lost and not gpu.reset_required
        yield Evidence(
            subject=subject(gpu),
            seen="lost" if gone else "answers that it needs a reset" if gpu.lost else "answers",
            wanted="a GPU that answers",
            verdict=Verdict.FAIL if gone else Verdict.PASS,
            source="NVML",
        )


def _refused(s: Snapshot) -> Evidence:
    """Return what the library or nvidia-smi said in place of the list of GPUs."""
    gpus = need(s.gpu)
    seen = gpus.devices.detail if isinstance(gpus.devices, Missing) else nvml_error(s)
    return Evidence(subject="GPU", seen=seen, wanted="a GPU that answers", source=gpus.source)


@rule(
    id="gpu-requires-reset",
    title="A GPU refuses work until it is reset",
    severity=Severity.ERROR,
    cause="gpu-needs-reset",
    fix=(
        Advice(
            text=f"stop everything that uses it, then {_RESET}; dmesg shows which Xid came before",
            needs=Needs.REBOOT,
        ),
    ),
)
def gpu_requires_reset(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVML or nvidia-smi answers "GPU requires reset".

    Why it matters
        The GPU is on the bus but nothing can use it: every CUDA program on it fails.

    When to leave it
        Never.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_RESET_REQUIRED)
    """
    if nvml_error(s) == "RESET_REQUIRED":
        yield _refused(s)
        return
    for gpu in gates.nvidia_gpus(s):
        yield Evidence(
            subject=subject(gpu),
            seen="requires a reset" if gpu.reset_required else "asks for none",
            wanted="no reset",
            verdict=Verdict.FAIL if gpu.reset_required else Verdict.PASS,
            source="NVML",
        )


@rule(
    id="gpu-missing-from-driver",
    title="The driver shows fewer GPUs than the PCI bus",
    severity=Severity.WARNING,
    fix=(Advice(text="dmesg | grep -i -e nvrm -e xid shows why the driver left it out; reseat or replace the card"),),
)
def gpu_missing_from_driver(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVML does not list a GPU that is on the PCI bus and is not passed to a virtual machine.

    Why it matters
        A job that asks for all GPUs fails or runs on fewer; the GPU may have failed to initialise.

    When to leave it
        It was excluded on purpose (NVreg_ExcludedGpus), or the driver does not support its generation.

    References
        README of the driver: NVreg_ExcludedGpus
        https://docs.nvidia.com/deploy/xid-errors/ (Xid 143)
    """
    elsewhere = not_served(s)  # they have rules of their own
    addresses = [address for address in gpu_addresses(s) if address not in elsewhere]
    if not addresses:
        raise NotApplicable("the driver has claimed none of these GPUs")
    if need(need(s.system).container):
        raise NotApplicable("a container sees the host's PCI bus, and only its own GPUs")
    devices = need(need(s.gpu).devices)
    if any(isinstance(gpu.pci_address, Missing) for gpu in devices):
        raise NotApplicable("some GPUs do not report their address")
    served = {gpu.pci_address for gpu in devices}
    if gates.scheduled(s) and devices and not served.issuperset(addresses):
        raise NotApplicable("a batch system granted this session some of the GPUs, and hides the others")
    if not served.issuperset(addresses):
        known_or_unknown(need(s.driver).module_flavour, "")  # hidden: it may be of the kind that does not serve these GPUs
    for address in addresses:
        there = address in served
        yield Evidence(
            subject=f"GPU {address}",
            seen="known to the driver" if there else f"not known to the driver (bound to {bound_driver(s, address) or 'none'})",
            wanted="known to the driver",
            verdict=Verdict.PASS if there else Verdict.FAIL,
            source="/sys/bus/pci/devices and NVML",
        )


@rule(
    id="gpu-ecc-uncorrectable",
    title="A GPU has had uncorrectable memory errors",
    severity=Severity.ERROR,
    cause="gpu-ecc-uncorrectable",
    superseded_by=("xid-memory-error",),
    fix=(
        Advice(text=f"drain the host, then {_RESET}: this remaps the rows"),
        Advice(text="run dcgmi diag -r 3; have the card replaced if errors recur or a remapping fails"),
    ),
)
def gpu_ecc_uncorrectable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Uncorrectable ECC errors were counted since the driver was loaded. Where xid-memory-error reports the same GPU, it says more: when the
    errors happened, whose memory was hit, and what the driver asks for.

    Why it matters
        The process that hit the error was killed ("uncorrectable ECC error encountered"). Where the GPU cannot take bad pages out of use at
        once (A100, H100 and B200 can), they stay in use until a reset, and the next job may hit them again.

    When to leave it
        The errors were handled by a reset, and the counter predates it (a reset clears it).

    References
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (supported GPUs: error containment, dynamic page offlining)
        https://docs.nvidia.com/deploy/xid-errors/ (Xid 48, 94, 95); NVIDIA DCGM, DcgmHealthWatch.cpp (any volatile error fails the health check)
    """
    yield from each(
        s,
        lambda gpu: gpu.ecc_uncorrected_volatile,
        lambda _, count: count > 0,
        lambda count: f"{count} uncorrectable errors since the driver was loaded",
        "0",
        "nvmlDeviceGetTotalEccErrors",
    )


@rule(
    id="gpu-row-remap-failed",
    title="A GPU could not remap a faulty memory row",
    severity=Severity.ERROR,
    cause="gpu-ecc-uncorrectable",
    fix=(
        Advice(
            text="take the GPU out of service and have it replaced: the remapping failure flag is NVIDIA's criterion for replacement"
        ),
    ),
)
def gpu_row_remap_failed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU could not remap a faulty memory row.

    Why it matters
        The faulty row stays in use; jobs on this GPU will go on failing with memory errors.

    When to leave it
        Never.

    References
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (RMA policy)
    """
    yield from each(
        s,
        lambda gpu: gpu.rows_remap_failed,
        lambda _, failed: failed,
        lambda failed: "a remapping has failed" if failed else "no remapping has failed",
        "no remapping has failed",
        "nvmlDeviceGetRemappedRows",
    )


@rule(
    id="gpu-reset-pending",
    title="A GPU needs a reset to finish a repair or recovery",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text=f"drain the host, then {_RESET}",
            needs=Needs.REBOOT,
        ),
    ),
    nothing="no GPU here offers this reading",
)
def gpu_reset_pending(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A memory row or page is waiting to be replaced, another part to be repaired, or the driver requests a recovery action.

    Why it matters
        Until the reset, a GPU before Ampere goes on using the faulty memory; a later one works with fewer pages or reduced resources, and each
        further error ends a job.

    When to leave it
        A job that must not be disturbed is running: reset the GPU afterwards.

    References
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
        nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (R570 and later); nvmlDeviceGetRemappedRows (a pending remapping does not affect later work)
    """
    for gpu in gates.nvidia_gpus(s):
        facts: dict[str, Fact[bool] | Fact[str]] = {
            "row remapping pending": gpu.rows_remap_pending,
            "page retirement pending": gpu.pages_retire_pending,
            "repair pending": gpu.repair_pending,
            "recovery action": gpu.recovery_action,
        }
        known = {name: fact for name, fact in facts.items() if not isinstance(fact, Missing)}
        refused = [fact for fact in facts.values() if isinstance(fact, Missing) and fact.why is not Why.NOT_SUPPORTED]
        if not known and (gpu.lost or not refused):
            continue
        if not known:
            yield unsure(subject(gpu), refused[0], "nothing pending")
            continue
        words = [name if fact is True else f"{name}: {fact}" for name, fact in known.items() if fact not in (False, "none")]
        yield Evidence(
            subject=subject(gpu),
            seen=", ".join(words) or "nothing pending",
            wanted="nothing pending",
            verdict=Verdict.FAIL if words else Verdict.PASS,
            source="nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus, nvmlDeviceGetRepairStatus, NVML field 230",
        )


@rule(
    id="gpu-ecc-off",
    title="ECC is off on a data-centre GPU",
    severity=Severity.ADVICE,
    fix=(NvmlSetting(setting="ECC mode (nvidia-smi -e 1)", value="enabled", needs=Needs.REBOOT),),
)
def gpu_ecc_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU's memory supports error correction, but it is switched off.

    Why it matters
        A flipped bit then changes a weight or an activation unnoticed; a run of several weeks may diverge for no visible reason.

    When to leave it
        On GDDR cards ECC takes about 6 % of memory and some bandwidth; for short experiments it may be better to do without.

    References
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """

    def fact(gpu: Gpu) -> Fact[bool]:
        return gpu.name if gpu.ecc is False and isinstance(gpu.name, Missing) else gpu.ecc

    def unwanted(gpu: Gpu, enabled: bool) -> bool:
        model = None if enabled else by_name(need(gpu.name))
        return model is not None and model.data_centre

    yield from each(s, fact, unwanted, lambda enabled: "on" if enabled else "off", "on", "nvmlDeviceGetEccMode")
