"""Whether a rule has anything to judge on this host. A gate raises NotApplicable, or Unknown through need()."""

from __future__ import annotations

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, need


def nvidia_hardware(s: Snapshot) -> None:
    """An NVIDIA GPU is in the machine, with or without a working driver."""
    if not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and s.gpu.vendor == "nvidia" and s.gpu.devices:
        return
    if not need(need(s.driver).nvidia_devices):
        raise NotApplicable("no NVIDIA GPU on this host")


def nvidia_gpus(s: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs that the driver shows; NotApplicable where the machine has none."""
    nvidia_hardware(s)
    return need(need(s.gpu).devices)


def torch_build(s: Snapshot) -> Torch:
    """The installed torch; NotApplicable where there is none."""
    found = need(s.python).torch
    if absent(found):
        raise NotApplicable("no torch in the judged interpreter")
    return need(found)


def cuda_torch(s: Snapshot) -> Torch:
    """The installed torch if it is a CUDA build; NotApplicable for none, CPU-only and ROCm builds."""
    build = torch_build(s)
    if absent(build.cuda):
        raise NotApplicable("torch is a ROCm build" if not isinstance(build.hip, Missing) else "torch is a CPU-only build")
    return build
