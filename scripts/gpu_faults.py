"""The faults that scripts/gpu_run.py plants, and what holds a GPU's memory beside a step: programs as text."""

from __future__ import annotations

# One element of each large product is wrong by one.
FLIP = """
import os
if os.environ.get("RANK"):
    import torch
    right = torch.Tensor.__matmul__
    def wrong(a, b):
        made = right(a, b)
        if made.is_cuda and made.numel() > 1_000_000:
            made.view(-1)[12345] += 1
        return made
    torch.Tensor.__matmul__ = wrong
"""
# An index beyond the table: an assertion on the device, which ends the process's CUDA context.
ASSERT = """
import os
if os.environ.get("RANK"):
    import torch
    right = torch.nn.functional.embedding
    torch.nn.functional.embedding = lambda i, w, *a, **k: right(i + 9999 if i.is_cuda else i, w, *a, **k)
"""
# Rank 1 ends, or stands still, with work queued on the GPU, when DDP begins.
SIGNAL = """
import os
if os.environ.get("RANK") == "1":
    import torch
    right = torch.nn.parallel.DistributedDataParallel.__init__
    def signalled(*a, **k):
        torch.cuda._sleep(2_000_000_000)
        os.kill(os.getpid(), {signal})
        return right(*a, **k)
    torch.nn.parallel.DistributedDataParallel.__init__ = signalled
"""
# Triton passes over one that does not tell its version, and takes its own (triton/knobs.py).
PTXAS = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 12.8, V12.8.61"; exit 0 ;; esac
echo "ptxas fatal   : Memory allocation failure" >&2
exit 1
"""
HOLD = """
import time, torch
free = torch.cuda.mem_get_info()[0]
held = torch.empty(free - (900 << 20), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(500)
"""
