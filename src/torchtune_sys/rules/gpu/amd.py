"""Rules on the error counters of AMD GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.driver import AmdErrors
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, need, need_if_there
from torchtune_sys.rules.gates import amd_gpus


@rule(
    id="amdgpu-uncorrectable-errors-counted",
    title="An AMD GPU has counted uncorrectable errors",
    severity=Severity.ERROR,
    cause="gpu-ecc-uncorrectable",
    superseded_by=("amdgpu-uncorrectable-errors-logged",),
    fix=(Advice(text="drain and reset the GPU, check its bad pages (amd-smi bad-pages), and replace it if errors recur"),),
)
def amdgpu_uncorrectable_errors_counted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A block of the GPU (umc: memory, gfx: compute units) has had uncorrectable errors since the driver was loaded.

    Why it matters
        Data on the GPU was lost. The counters remain when the kernel log has wrapped or cannot be read.

    When to leave it
        It happened once, the page was retired and the count does not grow.

    References
        Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c (amdgpu_ras_sysfs_read); Documentation/gpu/amdgpu/ras.rst
    """
    gpus = amd_gpus(s)
    counted = need_if_there(need(s.driver).amd_errors, "no AMD GPU here counts errors")
    pasted = not isinstance(s.gpu, Missing) and s.gpu.source == "report"
    by_gpu: dict[str, list[AmdErrors]] = {}
    for block in counted:
        if block.uncorrected:
            by_gpu.setdefault(block.address, []).append(block)
    for address in gpus:
        bad = by_gpu.get(address, [])
        yield Evidence(
            subject=f"AMD GPU at {address}",
            seen=", ".join(f"{block.uncorrected:,} in {block.block}" for block in bad) or "no uncorrectable error",
            wanted="0" if bad else "",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            source="amd-smi" if pasted else f"/sys/bus/pci/devices/{address}/ras",
        )
