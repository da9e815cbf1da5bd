"""What a process holds after one round of work and after the next: whatever grows with each round ends a long training."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from typing import Callable, List, NamedTuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed

_SHARED_MEMORY = "/dev/shm"
_MEMORY_KEPT = 8 << 20
"""In each part of a work: less is left to the allocators."""
_BLOCKS_KEPT = 1 << 20
"""The same of what the C library has given out, which counts single blocks: clean runs keep 10 kB (torch 2.13). On CPUs: what a GPU's driver keeps was not measured."""
_DESCRIPTORS_KEPT = 10
_PARTS_KEPT = 3
"""Threads, processes and files in each part: one or two may be a pool's that is filled once."""


class Held(NamedTuple):
    """What this process holds."""

    memory: int
    """Bytes of the host."""
    allocated: int
    """Bytes that the C library has given out: what was freed before, and is resident still, hides new ones from the kernel's count."""
    gpu_memory: int
    descriptors: int
    threads: int
    children: int
    """With those that have ended and were not awaited."""
    shared_files: int
    """This user's, in /dev/shm."""


def held_now(here: RankContext) -> Held:
    pages = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    gpu = torch.cuda.memory_allocated(here.device) if here.kind == "cuda" else 0
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"),
        _allocated(),
        gpu,
        _count("/proc/self/fd"),
        _count("/proc/self/task"),
        _children(),
        _shared_files(),
    )


class _Mallinfo(ctypes.Structure):
    """Ten sizes (mallinfo2(3)): the fifth was mapped for single blocks, the eighth is given out of the heaps."""

    _fields_ = [("sizes", ctypes.c_size_t * 10)]


def _allocated() -> int:
    """Return it, 0 where the C library does not tell (glibc before 2.33, musl)."""
    with contextlib.suppress(OSError, AttributeError):
        asked = ctypes.CDLL(None).mallinfo2
        asked.restype = _Mallinfo
        sizes = asked().sizes
        return int(sizes[4] + sizes[7])
    return 0


def _count(folder: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(folder))
    return 0


def _children() -> int:
    with contextlib.suppress(OSError), open("/proc/self/task/%d/children" % os.getpid()) as file:
        return len(file.read().split())
    return 0


def _shared_files() -> int:
    """Those that this process made: torch and multiprocessing put its number into their names, as any other user may."""
    found = 0
    with contextlib.suppress(OSError), os.scandir(_SHARED_MEMORY) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it is gone by now
                found += "_%d_" % os.getpid() in entry.name and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    return found


def keeps_nothing(what: str, rounds: int, looks: List[Held]) -> None:
    """All rounds are alike: raise StageFailed where each part of them, between two looks, left more behind. ``rounds``: in all parts together."""
    pairs = [(looks[number], looks[number + 1]) for number in range(len(looks) - 1)]
    blocks = _MEMORY_KEPT if torch.cuda.is_initialized() else _BLOCKS_KEPT
    for held, least, growth in (
        ("the host's memory", _MEMORY_KEPT, [after.memory - before.memory for before, after in pairs]),
        ("the host's memory (malloc)", blocks, [after.allocated - before.allocated for before, after in pairs]),
        ("the GPU's memory", _MEMORY_KEPT, [after.gpu_memory - before.gpu_memory for before, after in pairs]),
    ):
        if min(growth) > least:
            seen = "%s: %d steps kept %.0f MiB more of %s, as much in the last ones as in the first"
            raise StageFailed("memory-grows", seen % (what, rounds, sum(growth) / 2**20, held))
    opened = [after.descriptors - before.descriptors for before, after in pairs]
    if min(opened) >= min(_DESCRIPTORS_KEPT, rounds // len(pairs)):
        raise StageFailed("descriptors-grow", "%s: %d steps left %d more descriptors open" % (what, rounds, sum(opened)))
    for cause, held, growth in (
        ("threads-grow", "threads", [after.threads - before.threads for before, after in pairs]),
        ("processes-grow", "child processes", [after.children - before.children for before, after in pairs]),
        ("shared-memory-grows", "files in /dev/shm", [after.shared_files - before.shared_files for before, after in pairs]),
    ):
        if min(growth) >= min(_PARTS_KEPT, rounds // len(pairs)):
            raise StageFailed(cause, "%s: %d steps left %d more %s" % (what, rounds, sum(growth), held))


def keeps_nothing_of(here: RankContext, what: str, work: Callable[[], object], times: int) -> None:
    """Do a work again and again, in three parts of so many times; the first is for what is allocated once."""
    looks: List[Held] = []
    for _ in range(3):
        for _ in range(times):
            work()
        gc.collect(1)  # of all that torch has imported nothing goes, and to look takes a tenth of a second
        looks.append(held_now(here))
    keeps_nothing(what, 2 * times, looks)
