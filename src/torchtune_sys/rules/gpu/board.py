"""Rules on the state of a GPU's board: on-chip memory, retired pages, InfoROM, firmware."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import each, subject


@rule(
    id="gpu-sram-threshold-exceeded",
    title="A GPU has had too many errors in its on-chip memory",
    severity=Severity.WARNING,
    cause="gpu-ecc-uncorrectable",
    fix=(
        Advice(
            text="drain the host, run NVIDIA's field diagnostics, and have the GPU replaced: the threshold is the vendor's own"
        ),
    ),
)
def sram_threshold_exceeded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU itself reports that its lifetime count of uncorrectable SRAM errors has passed NVIDIA's limit.

    Why it matters
        Unlike rows of the main GPU memory, SRAM cannot be remapped; each further error ends a job.

    When to leave it
        Only for a short time.

    References
        nvml.h: nvmlEccSramErrorStatus_t, bThresholdExceeded
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (SRAM errors)
    """
    yield from each(
        s,
        lambda gpu: gpu.sram_threshold_exceeded,
        lambda _, over: over,
        lambda over: "over the threshold" if over else "below the threshold",
        "below the threshold",
        "nvmlDeviceGetSramEccErrorStatus",
    )


@rule(
    id="gpu-pages-retired",
    title="A GPU has retired nearly all the memory pages that it can",
    severity=Severity.WARNING,
    cause="gpu-ecc-uncorrectable",
    params=(Param("limit", 63, "number of retired pages at which the GPU is due for replacement"),),
    fix=(Advice(text="have the GPU replaced; nvidia-smi -q -d PAGE_RETIREMENT lists the pages"),),
)
def pages_retired(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A pre-Ampere GPU has retired as many faulty pages as NVIDIA's diagnostics allow.

    Why it matters
        The InfoROM has room for 64; after that, faulty pages stay in use.

    When to leave it
        Only for a short time.

    References
        https://docs.nvidia.com/deploy/dynamic-page-retirement/
        https://github.com/NVIDIA/DCGM (DCGM_LIMIT_MAX_RETIRED_PAGES: 63)
    """
    limit = int(p["limit"])
    yield from each(
        s,
        _retired,
        lambda _, count: count >= limit,
        lambda count: f"{count} pages",
        f"fewer than {limit}",
        "nvmlDeviceGetRetiredPages",
    )


def _retired(gpu: Gpu) -> Fact[int]:
    single, double = gpu.pages_retired_single_bit, gpu.pages_retired_double_bit
    if isinstance(single, Missing):
        return single
    return double if isinstance(double, Missing) else single + double


@rule(
    id="gpu-inforom-corrupted",
    title="A GPU's InfoROM is corrupted",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="reset the GPU or reboot once; if nvidia-smi still warns about it, have the GPU's vendor restore or replace it",
            needs=Needs.REBOOT,
        ),
    ),
)
def inforom_corrupted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The checksum of the GPU's store of settings and error counts is wrong.

    Why it matters
        It holds ECC settings, retired pages and serial numbers; the GPU may run with wrong ones and lose its error history.

    When to leave it
        The vendor has told you to.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceValidateInforom)
        https://docs.nvidia.com/deploy/xid-errors/ (Xid 125, INFOROM_FS_ERROR)
    """
    yield from each(
        s,
        lambda gpu: gpu.inforom_valid,
        lambda _, valid: not valid,
        lambda valid: "valid" if valid else "corrupted",
        "valid",
        "nvmlDeviceValidateInforom",
    )


@rule(
    id="gpu-vbios-differs",
    title="GPUs of the same model have different VBIOS versions",
    severity=Severity.ADVICE,
    fix=(Advice(text="bring all GPUs of one model to the same VBIOS version with the vendor's firmware package"),),
)
def vbios_differs(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """GPUs of the same model on this host have different VBIOS versions; usually one of them was replaced.

    Why it matters
        The VBIOS contains the power and clock tables: one GPU may run at different clocks, and all wait for the slowest.

    When to leave it
        The cards have the same name but come from different makers, each with its own VBIOS.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetVbiosVersion)
    """
    groups: dict[str, list[Gpu]] = {}
    for gpu in gates.nvidia_gpus(s):
        if not gpu.lost and not isinstance(gpu.name, Missing) and "GeForce" not in gpu.name:
            groups.setdefault(gpu.name, []).append(gpu)
    groups = {name: group for name, group in groups.items() if len(group) > 1}
    if not groups:
        raise NotApplicable("no two equal data-centre or workstation GPUs")
    for group in groups.values():
        seen = [gpu.vbios for gpu in group if not isinstance(gpu.vbios, Missing)]
        common = max(sorted(set(seen)), key=seen.count) if seen else ""
        for gpu in group:
            if not isinstance(gpu.vbios, Missing):
                verdict = Verdict.PASS if gpu.vbios == common else Verdict.FAIL
                yield Evidence(
                    subject=subject(gpu), seen=gpu.vbios, wanted=common, verdict=verdict, source="nvmlDeviceGetVbiosVersion"
                )
            elif gpu.vbios.why is not Why.NOT_SUPPORTED:
                yield unsure(subject(gpu), gpu.vbios, common)
