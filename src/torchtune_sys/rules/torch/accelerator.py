"""For which accelerator a package of compiled code was built, and whether that is torch's own."""

from __future__ import annotations

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, need
from torchtune_sys.model.version import Version, version
from torchtune_sys.rules.torch.common import cuda_of, machine


def of_torch(build: Torch) -> str:
    """Return for what a torch is built: ``CUDA 12.6``, ``ROCm``, ``XPU`` or ``CPU``; ``""`` where it is not known."""
    cuda = cuda_of(build)
    if not isinstance(cuda, Missing):
        return f"CUDA {cuda}"
    return "ROCm" if not isinstance(build.hip, Missing) else _named(build.version)


def of_package(s: Snapshot, item: Distribution, release: releases.Release | None) -> str:
    """Return the same of a package that the PyTorch project builds beside torch. A wheel for x86_64 that does not name it is the package index's, for the CUDA
    of that ``release`` of torch there; conda's and an image's own builds do not name it either, and have a torch that does not."""
    if told := _named(item.version):
        return told
    torch = need(s.python).torch
    from_its_index = not isinstance(torch, Missing) and "+" in torch.version
    by_conda = any(other.build and other.name == item.name for other in need(need(s.python).distributions))
    plain = "+" not in item.version and machine(s) == "x86_64"
    return f"CUDA {release.cuda}" if release and plain and from_its_index and not by_conda else ""


def alike(mine: str, theirs: str, digits: int) -> bool:
    """Tell whether two builds are for one accelerator, to so many numbers of CUDA's version; also where one of them is not known.

    >>> alike("CUDA 12.6", "CUDA 12.8", 1), alike("CUDA 12.6", "CUDA 12.8", 2), alike("CPU", "CUDA 13.0", 1), alike("", "CPU", 1)
    (True, False, False, True)
    """
    kind, _, cuda = mine.partition(" ")
    other, _, its = theirs.partition(" ")
    return not mine or not theirs or (kind == other and version(cuda)[:digits] == version(its)[:digits])


def _named(release: str) -> str:
    """Return the same by the local part of a wheel's version.

    >>> _named("2.6.0+cu124"), _named("2.6.0+rocm6.2.4"), _named("2.6.0+cpu"), _named("2.6.0")
    ('CUDA 12.4', 'ROCm', 'CPU', '')
    """
    local, names = release.partition("+")[2], {"cpu": "CPU", "rocm": "ROCm", "xpu": "XPU"}
    cuda = releases.local_cuda(release)
    return f"CUDA {cuda}" if cuda else next((name for start, name in names.items() if local.startswith(start)), "")


_NAMES_CUDA = pattern(r"\+\w*?cu([0-9]{2,3})(?![0-9])")


def cuda_named(release: str) -> Version:
    """Return the CUDA that a package's version names anywhere in its local part; of two digits the first was all of CUDA's up to 10.

    >>> [cuda_named(text) for text in ("2.7.4+cu12torch2.5cxx11abiFALSE", "2.1.2+pt25cu124", "0.21.0+torch2100cu128", "1.0+cu92", "0.9.2", "1.0+cu118")]
    [(12,), (12, 4), (12, 8), (9, 2), (), (11, 8)]
    """
    found = _NAMES_CUDA.search(release)
    digits = found[1] if found else ""
    if len(digits) == 2 and digits[0] == "1":
        return (int(digits),)
    return (int(digits[:-1]), int(digits[-1])) if digits else ()
