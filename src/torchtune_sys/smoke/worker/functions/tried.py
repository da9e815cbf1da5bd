"""Where torch was seen to answer as expected in what few trainings use. By another release, or other instructions of a processor, it may round or answer otherwise, and no host is to blame."""

from __future__ import annotations

import platform
from typing import Callable, Collection, Dict, Optional, Tuple

import torch

from torchtune_sys.smoke.worker.context import Inconclusive, RankContext, StageFailed, release_of_torch, seldom_used_is_right

RELEASES: Dict[Tuple[int, int], str] = {
    (2, 6): "2.6.0",
    (2, 7): "2.7.1",
    (2, 8): "2.8.0",
    (2, 9): "2.9.1",
    (2, 10): "2.10.0",
    (2, 11): "2.11.0",
    (2, 12): "2.12.1",
    (2, 13): "2.13.0",
    (2, 14): "2.14.1",
    (2, 15): "2.15.0",
}
"""Those on which the stages *layers* and *optimizer* passed (docs/verified.md), with the patch that ran."""
INSTRUCTIONS: Dict[str, Collection[Tuple[int, int]]] = {
    **dict.fromkeys(("DEFAULT", "NO AVX", "AVX2"), RELEASES),
    "AVX512": ((2, 6), (2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)),
}
"""By which each did, as torch.backends.cpu.get_cpu_capability calls them, on x86-64. With AVX-512 and AMX oneDNN takes other kernels for bfloat16 (oneDNN, CPU Dispatcher Control)."""
PASSED_SINCE: Dict[str, Collection[Tuple[int, int]]] = {
    "cpu": ((2, 6), (2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)),
    "cuda": (),
}
"""By kind of device: the releases on which what was added since 30 November 2026 passed (gradients in each precision and layout, empty batches, parameter groups)."""
SUMS_PASSED: Collection[Tuple[int, int]] = ((2, 11), (2, 13))
"""The releases on which sums of thousands in low precision did, since they are compared by their size, too (1 December 2026)."""
_MACHINE = "x86_64"
_OUT_OF_A_LIBRARY = (
    "could not execute a primitive",
    "could not create a primitive",
    "could not create a memory",
    "MKL FFT error",
    "DefaultCPUAllocator",
    "CUDA error",
)
"""Words of an error that a library raises in its work (oneDNN, dnnl.hpp; torch's mkl/SpectralOps.cpp, c10's alloc_cpu.cpp)."""
_NOT_MADE = ("primitive descriptor", "Inconsistent configuration parameters")
"""Words of oneDNN and of MKL for what they do not have for such numbers. MKL's refuses batches of none and, of torch 2.8, gradients that all lie in one place."""


def is_lacking(error: Exception) -> bool:
    """Tell whether an exception says that this release does not have a thing so; else a library failed in its work."""
    if isinstance(error, (AttributeError, TypeError, ValueError, NotImplementedError, ImportError, IndexError)):
        return True
    told = str(error)
    return isinstance(error, RuntimeError) and (_is_not_made(told) or not any(words in told for words in _OUT_OF_A_LIBRARY))


def _is_not_made(told: str) -> bool:
    return any(words in told for words in _NOT_MADE)


def instructions() -> str:
    """Return what torch's kernels are made of: a word of INSTRUCTIONS, "aarch64"; "" where torch does not tell (before 2.1)."""
    if platform.machine() != _MACHINE:
        return platform.machine()
    return str(getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)())


def judged_where_tried(
    check: Callable[[RankContext], None],
    here: RankContext,
    rounding: bool = True,
    releases: Optional[Collection[Tuple[int, int]]] = None,
) -> None:
    """Run a check of what few trainings use. ``rounding``: it compares two ways of torch's with each other, which other instructions may round otherwise.
    ``releases``: where it passed, if not on all of RELEASES.

    Raises what the check raised where it passed elsewhere by this release, where nothing works on the device any more, and where a second look at the same
    numbers says something else: no release answers at random. Else it is a doubt of the stage (RankContext.doubt), which goes on.
    """
    first = _raised_by(check, here)
    if first is None:
        return
    release = release_of_torch()
    was_tried = release in (RELEASES if releases is None else releases)
    if (was_tried and (not rounding or release in INSTRUCTIONS.get(instructions(), ()))) or not here.device_works():
        raise first
    if not was_tried and not isinstance(first, StageFailed) and _is_not_made(str(first)):
        return
    again = _raised_by(check, here)
    is_alike = again is not None if here.kind == "cuda" else str(again) == str(first)  # GPUs add in whatever order
    if not is_alike:
        cause = first.cause if isinstance(first, StageFailed) else "device-computes-wrong"
        raise StageFailed(cause, "%s; asked again: %s" % (first, again or "right"))
    words = "%s, twice alike. This check was not tried with torch %s and %s: it may be torch's own answer there, and no fault of this host. If another host with the same torch says the same, it is"
    if here.doubt is None:
        here.doubt = Inconclusive(words % (first, torch.__version__, instructions() or "these instructions"))


def judged_if_new(check: Callable[[RankContext], None], here: RankContext, is_new: bool = True) -> None:
    """Run a check of the tables; one that is new is judged where it was tried, and left out before torch 2.6: 2.0.1 spoils the gradient of masked_select where memory is transposed."""
    if not is_new:
        check(here)
    elif seldom_used_is_right():
        judged_where_tried(check, here, False, PASSED_SINCE.get(here.kind, ()))


def _raised_by(check: Callable[[RankContext], None], here: RankContext) -> Optional[Exception]:
    try:
        check(here)
    except Exception as error:
        return error
    return None
