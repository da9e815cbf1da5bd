"""Decide why a GPU ran out of memory, by the sizes in torch's message: requested, total, reserved but unused, used by others."""

from __future__ import annotations

from torchtune_sys.formats import torch_memory
from torchtune_sys.formats.torch_memory import TorchMemory

DECIDED = "gpu-memory-too-small"
"""A cause that the words have, where the sizes decide."""
_CERTAIN, _LIKELY, _POSSIBLE = 3, 2, 1
_LARGE = 0.1
"""The share of the GPU from which on memory that is reserved and unused is large."""
_UNLISTED = 0.3
"""The share that nobody accounts for, beyond a CUDA context and a desktop, from which on it is somebody else's."""
_MUCH = 0.5
"""The share that a program needs for itself, from which on the GPU may be too small for it."""
_SMALLER = "a smaller batch, sequence or model per GPU; activation checkpointing, sharding (FSDP), or a GPU with more memory"
_PIECES = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF from torch 2.9 on), sizes that change less from step to step"
_LIMITED = "torch.cuda.set_per_process_memory_fraction gave this process a share only: raise it"
_OTHERS = "end what else holds memory on this GPU, or take another GPU (CUDA_VISIBLE_DEVICES)"

Reason = tuple[str, int, str]
"""A cause, what it is worth, and what to do as far as the message tells it."""


def reasons_of(words: str) -> tuple[Reason, ...]:
    """Return why, the likeliest first; empty where no sizes are told.

    >>> [cause for cause, _, _ in reasons_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a "
    ...   "total capacity of 80.00 GiB of which 5.00 GiB is free. Process 7 has 75.00 GiB memory in use. Of the allocated memory "
    ...   "44.00 GiB is allocated by PyTorch, and 30.00 GiB is reserved by PyTorch but unallocated.")]
    ['gpu-memory-fragmented', 'gpu-memory-too-small']
    """
    memory = torch_memory.read(words)
    if memory is None or memory.free is None or memory.total is None:
        return ()
    return _judged(memory, memory.free, memory.total)


def _judged(memory: TorchMemory, free: float, total: float) -> tuple[Reason, ...]:
    small: Reason = ("gpu-memory-too-small", _LIKELY, _LIMITED if memory.is_limited else _SMALLER)
    pieces: Reason = ("gpu-memory-fragmented", _LIKELY, _PIECES)
    if memory.asked > total:
        return ((small[0], _CERTAIN, small[2]),)
    unused, others = memory.unused or 0.0, memory.others or 0.0
    enough_in_pieces = free + unused >= memory.asked > free
    if enough_in_pieces and unused >= _LARGE * total:
        return (pieces, small)
    missing = memory.asked - free - unused
    foreign = others >= max(missing, 0.0) and others >= (0.0 if memory.is_listed else _UNLISTED) * total
    if others and foreign and others > missing:
        in_use: Reason = ("gpu-memory-in-use", _LIKELY, _OTHERS)
        ranks: Reason = ("several-ranks-on-one-gpu", _POSSIBLE, "")
        itself = total - free - others + memory.asked
        return (in_use, *(ranks,) * memory.is_listed, *(small,) * (itself >= _MUCH * total))
    return (small, pieces) if enough_in_pieces else (small,)
