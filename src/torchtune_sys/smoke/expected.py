"""Expected values before a rank starts: the lowest plausible performance of a GPU (a share of its data sheet that healthy GPUs reach
easily), and whether this torch can use a GPU at all."""

from __future__ import annotations

from torchtune_sys.knowledge import gpus
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import StageResult
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, absent, known

GEMM_SHARE = 0.4
"""Of the dense peak. Large products reach 60 to 85 % on healthy GPUs; one that is throttled, capped or half broken falls below. A
convention: no vendor promises a share."""
FP8_SHARE = 0.25
"""The same for fp8, whose figure no board reaches at its power cap: a healthy H100 PCIe (350 W) was seen to do 580 of its 1513 TFLOP/s
(https://github.com/pytorch/ao/pull/3342)."""
FRUGAL_W = 150.0
FRUGAL_GEMM_SHARE = 0.2
"""Boards of so little power are sold for inference: under steady products their clocks fall to what the power allows. A healthy T4 was
seen to do 24 of its 65 TFLOP/s (https://forums.developer.nvidia.com/t/about-gpu-peak-performance/264462)."""
MEMORY_SHARE = 0.5
"""Of the memory's peak, for a copy (reads and writes counted). Copies reach 80 to 93 % of it. A convention, too."""


PCIE_SHARE = 0.1
"""Of what sixteen lanes of the board's own PCIe generation carry, from and to pinned memory. A board in a slot of eight lanes of one
generation less reaches a fifth, and all ranks copy at once: of four GPUs behind one switch each gets a quarter. A link that fell back to the first
generation, or to one or two lanes, falls below. A convention."""
NVLINK_SHARE = 0.3
"""Of what a GPU's NVLinks carry one way, for the bus bandwidth of a large all_reduce where every pair of GPUs is linked through switches.
nccl-tests reach 70 to 80 % of it on such hosts; over PCIe it would be a tenth. A convention; not yet verified on GPUs."""
_LARGE_SIZES = ("256", "1024")
"""MiB, of stages/collectives.py: less is ruled by latency."""
_BRIDGE = "copy"
"""The stage that times what crosses the bus. Under confidential computing all of it is encrypted, by one CPU: some GB/s, whatever the board can do
(https://arxiv.org/abs/2606.23969)."""
_PCIE_GBYTES_PER_S = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
"""Sixteen lanes one way: 8, 16, 32 GT/s in 128b/130b, 64 GT/s in flits (PCI Express Base Specification)."""


def expected(seen: Snapshot) -> dict[str, dict[str, dict[str, float]]]:
    """Return the expected figures by the GPU's name, stage and figure: each rank looks for its own GPU. Nothing of a model that is not known, or of a part of a GPU
    (MIG), which torch calls by another name."""
    devices = gpus_told(seen)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for device in devices:
        name = known(device.name, "")
        model = gpus.by_name(name)
        if model is None or known(device.mig, False):
            continue
        for stage, figure, value in [*_of(model), *(_between(model) if _all_linked(seen) else [])]:
            if stage != _BRIDGE or not _encrypts(seen):
                found.setdefault(name, {}).setdefault(stage, {})[figure] = value
    return found


def _all_linked(seen: Snapshot) -> bool:
    """Whether NVLinks lead from each GPU to each other."""
    if isinstance(seen.gpu, Missing):
        return False
    peers = known(seen.gpu.p2p, ())
    return bool(peers) and all(known(pair.nvlinks, 0) > 0 for pair in peers)


def _encrypts(seen: Snapshot) -> bool:
    return not isinstance(seen.gpu, Missing) and known(seen.gpu.confidential, "off") != "off"


def _between(model: gpus.GpuModel) -> list[tuple[str, str, float]]:
    if not model.nvswitch or not model.nvlink_gbytes_per_s:
        return []
    least = NVLINK_SHARE * model.nvlink_gbytes_per_s / 2
    return [("allreduce", f"bus bandwidth of {size} MiB", least) for size in _LARGE_SIZES]


def no_gpu_build(seen: Snapshot) -> StageResult | None:
    """Return the end of the stage "device" where a GPU is asked for and torch was built without any; None where it has one, or nobody knows."""
    from torchtune_sys.rules.gates import torch_build  # with all rules: a third of a second of a processor

    try:
        build = torch_build(seen)
    except (NotApplicable, Unknown):
        return None
    if not all(isinstance(kind, Missing) for kind in (build.cuda, build.hip, build.xpu)):
        return None
    if not absent(build.cuda) and "+cpu" not in build.version:
        return None
    return StageResult(
        stage="device",
        verdict=Verdict.FAIL,
        seconds=0.0,
        cause="cpu-only-build",
        seen=f"torch {build.version} is built without CUDA",
        remedy="install a build for this host's GPUs (torchtune-sys generate install has the commands), or test with --device cpu",
    )


def of_small_files(seen: str, todo: str) -> StageResult:
    """Return the end of the first stage where a process may not even write the script that the ranks run."""
    return StageResult(stage="import", verdict=Verdict.FAIL, seconds=0.0, cause="file-size-limit", seen=seen, remedy=todo)


def _of(model: gpus.GpuModel) -> list[tuple[str, str, float]]:
    rates = (
        ("float32", model.fp32_tflops),
        ("tf32", model.tf32_tflops),
        ("bfloat16", model.bf16_tflops),
        ("float16", model.fp16_tflops),
        ("fp8", model.fp8_tflops),
    )
    share = FRUGAL_GEMM_SHARE if model.power_w is not None and model.power_w <= FRUGAL_W else GEMM_SHARE
    shares = {"fp8": min(share, FP8_SHARE)}
    listed = [("gemm", f"{name} GEMM", shares.get(name, share) * rate) for name, rate in rates if rate is not None]
    if model.memory_gbytes_per_s is not None:
        listed.append(("memory", "memory copy", MEMORY_SHARE * model.memory_gbytes_per_s))
    link = _PCIE_GBYTES_PER_S.get(model.pcie_generation or 0)
    if link is not None:
        listed += [(_BRIDGE, f"pinned to {where}", PCIE_SHARE * link) for where in ("device", "host")]
    return listed
