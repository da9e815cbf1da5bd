"""Rules on GPUs' modes that bar programs, or divide a GPU: the compute mode, and MIG."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, NvmlSetting
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, Why, known
from torchtune_sys.model.visible_gpus import left_out
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import each


@rule(
    id="exclusive-compute-mode",
    title="A GPU is in exclusive compute mode",
    severity=Severity.WARNING,
    cause="exclusive-compute-mode",
    fix=(NvmlSetting(setting="compute mode (nvidia-smi -c 0)", value="DEFAULT"),),
)
def exclusive_compute_mode(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Only one process may use the GPU; all others get "CUDA-capable device(s) is/are busy or unavailable".

    Why it matters
        Two ranks on one GPU, a forgotten notebook, an evaluation that runs during training, or a profiler then fail at once.

    When to leave it
        A scheduler or MPS requires it, and each rank has its own GPU. Not reported inside a batch job.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (nvmlComputeMode_t)
    """
    yield from each(
        s,
        lambda gpu: gpu.compute_mode,
        lambda _, mode: mode.startswith("exclusive") and not gates.scheduled(s),
        str,
        "default",
        "nvmlDeviceGetComputeMode",
    )


@rule(
    id="compute-mode-prohibited",
    title="A GPU's compute mode forbids CUDA",
    severity=Severity.ERROR,
    fix=(NvmlSetting(setting="compute mode (nvidia-smi -c 0)", value="DEFAULT"),),
    cause="exclusive-compute-mode",
)
def compute_mode_prohibited(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """No process may create a CUDA context on this GPU.

    Why it matters
        Ranks that are given this GPU fail at their first CUDA call.

    When to leave it
        It is the display GPU and is deliberately excluded from training. One that CUDA_VISIBLE_DEVICES leaves out is not reported.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (nvmlComputeMode_t)
    """
    others = left_out(s)
    yield from each(
        s,
        lambda gpu: gpu.compute_mode,
        lambda gpu, mode: mode == "prohibited" and gpu.index not in others,
        str,
        "default",
        "nvmlDeviceGetComputeMode",
    )


@rule(
    id="mig-mode-limits",
    title="Several ranks share one MIG-partitioned GPU",
    severity=Severity.WARNING,
    cause="mig-mode-limits",
    fix=(
        Advice(
            text="start one process per MIG instance, each with its own CUDA_VISIBLE_DEVICES=MIG-<uuid> (nvidia-smi -L lists them); "
            "they are separate jobs, since NCCL connects no two instances"
        ),
        NvmlSetting(setting="MIG mode (nvidia-smi -i N -mig 0)", value="disabled"),
    ),
)
def mig_mode_limits(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A process can use only one MIG instance, however many there are, and NCCL does not connect instances.

    Why it matters
        cuda:1 and higher are "invalid device ordinal", and a job that uses several instances fails or runs on only part of the
        GPU.

    When to leave it
        Each job is one process on one instance. Without a number of ranks (--nproc-per-node) a host all of whose GPUs are
        partitioned is not judged: it is shared on purpose. Nor is a GPU that CUDA_VISIBLE_DEVICES leaves out.

    References
        https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (CUDA device enumeration)
    """
    others = left_out(s)
    gpus = tuple(gpu for gpu in gates.nvidia_gpus(s) if gpu.index not in others)
    if not gpus:
        raise NotApplicable("CUDA_VISIBLE_DEVICES leaves out every GPU")
    ranks = s.intent.ranks if s.intent.ranks is not None else len(gpus)
    if s.intent.ranks is None and all(gpu.mig is True for gpu in gpus) and not is_pasted(s):
        raise NotApplicable("every GPU is partitioned, and how many ranks run here is not known (--nproc-per-node)")
    if ranks < 2:
        raise NotApplicable("the job is one process")
    yield from each(
        s,
        lambda gpu: _OF_OTHERS if gpu.index in others else _mig_state(gpu),
        lambda _, state: state != "MIG off",
        str,
        "MIG off",
        "nvmlDeviceGetMigMode",
    )


def _mig_state(gpu: Gpu) -> Fact[str]:
    if isinstance(gpu.mig, Missing):
        return gpu.mig
    number = known(gpu.mig_instances, 0) if gpu.mig else 0
    return f"MIG {'on' if gpu.mig else 'off'}" + (f", {counted(number, 'instance')}" if number else "")


_OF_OTHERS = Missing(Why.ABSENT, "nvmlDeviceGetMigMode", "CUDA_VISIBLE_DEVICES leaves it out")


@rule(
    id="mig-without-instances",
    title="MIG is on and the GPU has no instance",
    severity=Severity.ERROR,
    cause="mig-mode-limits",
    fix=(
        Advice(text="make an instance: sudo nvidia-smi mig -i N -cgi PROFILE -C (sudo nvidia-smi mig -lgip lists the profiles)"),
        NvmlSetting(setting="MIG mode (nvidia-smi -i N -mig 0)", value="disabled"),
    ),
)
def mig_without_instances(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A GPU in MIG mode can be used through its instances only, and this one has none that can be seen here.

    Why it matters
        nvidia-smi shows the GPU with all its memory, and CUDA does not see it: torch counts a GPU less, or finds none. Instances
        are gone after each boot, unless a service (nvidia-mig-manager) makes them again.

    When to leave it
        Instances are made for each job, after this check, or the GPU is kept for virtual machines. One that
        CUDA_VISIBLE_DEVICES leaves out is not reported.

    References
        https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (without instances CUDA work cannot run on the GPU);
        nvml.h: nvmlDeviceGetMigDeviceHandleByIndex
    """
    if not any(isinstance(gpu.mig, Missing) or gpu.mig for gpu in gates.nvidia_gpus(s)):
        raise NotApplicable("MIG is on nowhere")
    others = left_out(s)
    yield from each(
        s,
        lambda gpu: gpu.mig_instances if gpu.mig is True else gpu.mig,
        lambda gpu, count: gpu.mig is True and not count and gpu.index not in others,
        lambda count: "MIG off" if count is False else "MIG on, no instance" if not count else f"MIG on, instances: {count}",
        "an instance",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    )
