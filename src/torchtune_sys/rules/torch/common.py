"""Code shared by the torch rules: the build's CUDA version, the packages beside it, each GPU's compute capability."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.knowledge import gpus
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Distribution, LiveTorch, Torch
from torchtune_sys.model.snapshot import Snapshot, gpus_told, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need
from torchtune_sys.model.version import Version, version
from torchtune_sys.model.visible_gpus import listed, uuids_of
from torchtune_sys.rules.gates import cuda_torch, nvidia_hardware

OTHER_ACCELERATORS = (
    "torch-npu",
    "torch-xla",
    "habana-torch-plugin",
    "intel-extension-for-pytorch",
    "torch-mlu",
    "torch-musa",
    "torch-neuronx",
)
"""Plug-ins that train on something else than a GPU; torch itself is a CPU build under them."""


class Displays(msgspec.Struct, frozen=True):
    """Which GPUs may be left to a display beside those that one trains on."""

    up_to_bytes: int = 0
    """A GPU with so much memory is far smaller than each of the others."""
    all_others: bool = False
    """Whether the session shows no more GPUs than one trains on."""

    def __contains__(self, gpu: Gpu) -> bool:
        return self.all_others or 0 < known(gpu.memory_total_bytes, 0) <= self.up_to_bytes


def displays_beside(s: Snapshot, trained_on: Sequence[Gpu]) -> Displays:
    """Return which GPUs may be left to a display beside these: none if more ranks are asked about."""
    if not trained_on or (s.intent.ranks or 1) > len(trained_on):
        return Displays()
    smallest = min(known(gpu.memory_total_bytes, 0) for gpu in trained_on)
    return Displays(up_to_bytes=smallest // _SMALLER, all_others=_shows_only(s, trained_on))


def _shows_only(s: Snapshot, trained_on: Sequence[Gpu]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names none but these: CUDA counts by PCI address if CUDA_DEVICE_ORDER says so, else from the fastest."""
    env = variables_told(s)
    these = {gpu.index for gpu in trained_on}
    gpus = [*trained_on, *(gpu for gpu in gpus_told(s) if gpu.index not in these)]
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        gpus.sort(key=lambda gpu: (known(gpu.pci_address, ""), gpu.index))
    shown = listed(env.get("CUDA_VISIBLE_DEVICES", ""), uuids_of(gpus)).places
    return bool(shown) and all(place is not None and gpus[place].index in these for place in shown)


_SMALLER = 3
"""How many times the memory of a card that only drives a display goes into that of each GPU beside it (2 GB of a GT 1030 or a P400 beside 8 GB or more)."""


def live(s: Snapshot) -> LiveTorch | None:
    """Return what torch said of itself, where it was asked."""
    if isinstance(s.python, Missing) or isinstance(s.python.live, Missing):
        return None
    return s.python.live


def complaints(s: Snapshot) -> list[str]:
    """Return what the loader said: lines of a report, and why the import failed under --live."""
    if isinstance(s.python, Missing):
        return []
    failed = s.python.live
    return [*s.python.complaints, *([failed.detail] if isinstance(failed, Missing) and failed.source == "import torch" else [])]


def complaint_of(s: Snapshot, words: tuple[str, ...]) -> str | None:
    """Return the first complaint with one of these words."""
    return next((line for line in complaints(s) if any(word in line for word in words)), None)


def cuda_works(s: Snapshot) -> bool:
    """Return whether torch was asked, and CUDA is available to it: whatever the files suggest, driver, wheel and libraries fit."""
    seen = live(s)
    return seen is not None and seen.cuda_available is True


def cuda_of(build: Torch) -> Fact[str]:
    """Return the CUDA of the build; of a report that names the version only, the PyPI build's."""
    if not isinstance(build.cuda, Missing) or absent(build.cuda):
        return build.cuda
    local = releases.local_cuda(build.version)
    if local:
        return local
    release = releases.release(build.version)
    return release.cuda if release and "+" not in build.version else build.cuda


def cuda_build(s: Snapshot) -> tuple[Torch, Version]:
    """Return the torch and its CUDA version; NotApplicable for CPU-only and ROCm builds."""
    build = cuda_torch(s)
    if "+cpu" in build.version or "+rocm" in build.version or "+xpu" in build.version:
        raise NotApplicable(f"torch {build.version} is not a CUDA build")
    named = need(cuda_of(build))
    return build, need(version(named) or Missing(Why.UNPARSED, f"{build.location}/version.py", f"{named[:100]!r} is no version"))


def names_its_wheels(build: Torch, own: Distribution) -> bool:
    """Return whether this is a build of the PyTorch project beside NVIDIA's wheel: its libraries name the wheel's directory (DT_RPATH),
    which goes before LD_LIBRARY_PATH and the cache.

    Vendors' builds carry plain numbers as well (JetPack's, IBM's), with another CUDA than the package index's.
    """
    release = releases.release(build.version)
    if release is None or not releases.is_release(build.version) or build.location != f"{own.location}/torch":
        return False
    return build.cuda == (releases.local_cuda(build.version) or release.cuda)


def capability(gpu: Gpu) -> Fact[tuple[int, int]]:
    """Compute capability as the driver tells it, else by the model's name."""
    if not isinstance(gpu.compute_capability, Missing) or isinstance(gpu.name, Missing):
        return gpu.compute_capability
    found = gpus.compute_capability(gpu.name)
    return (found[0], found[1]) if found else gpu.compute_capability


def label(gpu: Gpu) -> str:
    return f"GPU {gpu.index}"


def model_name(gpu: Gpu) -> str:
    return known(gpu.name, "a GPU")


def installed(s: Snapshot) -> dict[str, Distribution]:
    """Return the distributions that imports get: the first of each name on sys.path; conda's entries only where pip has none."""
    found: dict[str, Distribution] = {}
    for item in need(need(s.python).distributions):
        if not item.build and item.location != "conda":
            found.setdefault(item.name, item)
    return found


def installed_triton(s: Snapshot) -> Distribution:
    """Return Triton as it is installed; NotApplicable where torch.compile has none, or no NVIDIA GPU to build for."""
    nvidia_hardware(s)
    found = next((item for name, item in installed(s).items() if name in ("triton", "pytorch-triton")), None)
    if found is None:
        raise NotApplicable("no Triton, so torch.compile builds nothing for the GPU")
    return found


def machine(s: Snapshot) -> str:
    """Return the interpreter's machine, ``x86_64`` or ``aarch64``; ``""`` where nobody told."""
    for look in (
        "" if isinstance(s.python, Missing) else s.python.machine,
        "" if isinstance(s.system, Missing) else s.system.machine,
    ):
        if isinstance(look, str) and look:
            return look
    return ""
