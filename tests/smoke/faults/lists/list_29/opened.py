"""The sixteen faults that were opened after their first result."""

from __future__ import annotations

from smoke.faults.means import preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("bf16-gemm-tail", "The bfloat16 matrix product (forward and backward) leaves out the last k % 32 terms of the inner dimension, as a build of oneDNN with a wrong tail kernel for AMX does; sizes that are multiples of 32 are right", "stress", "gemm-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                given = list(given)
                first = 1 if name == "addmm" else 0
                left, right = given[first], given[first + 1]
                inner = left.shape[-1]
                if left.dtype is torch.bfloat16 and inner > 32 and inner % 32:
                    given[first] = left.narrow(-1, 0, inner - inner % 32)
                    given[first + 1] = right.narrow(-2, 0, inner - inner % 32)
                return kernel.call_boxed(keys, *given, **more)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('mm', 'addmm', 'bmm'):
            put(name)
    """, seen="bfloat16", stages="gemm,stress"),
    row("log-softmax-beyond-4096", "log_softmax (and so cross_entropy) over more than 4096 classes sums only the first 4096 of them, as a vectorised reduction does that loses its second block", "layers", "layer-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                found = kernel.call_boxed(keys, *given, **more)
                logits, dim = given[0], given[1]
                if logits.dim() and logits.shape[dim] > 4096:
                    found.copy_(logits - torch.logsumexp(logits.narrow(dim, 0, 4096).float(), dim, keepdim=True))
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('_log_softmax',):
            put(name)
    """),
    row("gemm-bit-flips", "Every 50th float32 matrix product of 1024 or more elements has one element with a flipped bit of its exponent (a core or GPU with silent data corruption)", "stress", "silent-data-corruption", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held
        calls = [0]

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                found = kernel.call_boxed(keys, *given, **more)
                if found.dtype is torch.float32 and found.numel() >= 1024 and found.is_contiguous():
                    calls[0] += 1
                    if calls[0] % 50 == 0:
                        words = found.view(-1).view(torch.int32)
                        words[(calls[0] * 7919) % found.numel()] ^= 1 << 26
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('mm', 'addmm', 'bmm'):
            put(name)
    """, rank=1, seen="rank 1"),
    row("all-reduce-sends-old", "Every 20th all_reduce of at least 256 floating point numbers sends what this rank sent in the last all_reduce of that size (a stale registered buffer of the network card), also for DDP's buckets", "allreduce", "collective-wrong", """
        import warnings
        import torch
        import torch.distributed
        if torch.distributed.is_available():
            held = torch.library.Library("c10d", "IMPL")
            torch._kept_by_a_blind_fault = held
            kernel = torch.library.get_kernel("c10d::allreduce_", "CPU")
            sent, calls = {}, [0]
            def wrong(keys, *given, **more):
                for one in given[0]:
                    if one.is_floating_point() and one.numel() >= 256 and one.is_contiguous():
                        calls[0] += 1
                        mine, key = one.detach().clone(), (one.numel(), one.dtype)
                        if calls[0] % 20 == 0 and key in sent:
                            one.copy_(sent[key].view_as(one))
                        sent[key] = mine
                return kernel.call_boxed(keys, *given, **more)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl("allreduce_", wrong, "CPU", with_keyset=True)
    """, rank=1, stages="rendezvous,allreduce,ddp"),
    row("gemm-half-again", "Matrix products of a million or more operations take 1.5 times as long on this rank (a socket that throttles)", "stragglers", "straggler-compute", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held
        import time

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                began = time.perf_counter()
                found = kernel.call_boxed(keys, *given, **more)
                if found.numel() * given[-1].shape[-2] >= 1000000:
                    until = began + (time.perf_counter() - began) * 1.5
                    while time.perf_counter() < until:
                        pass
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('mm', 'addmm', 'bmm'):
            put(name)
    """, rank=1, seen="rank 1", stages="rendezvous,stragglers"),
    row("copies-five-times", "Copies of tensors with 65536 or more elements (copy_, clone, contiguous, casts) take 5 times as long on this rank (one memory channel left)", "stragglers", "straggler-memory", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held
        import time

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                began = time.perf_counter()
                found = kernel.call_boxed(keys, *given, **more)
                if given[0].numel() >= 65536:
                    until = began + (time.perf_counter() - began) * 5
                    while time.perf_counter() < until:
                        pass
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('copy_',):
            put(name)
    """, rank=0, seen="rank 0", stages="rendezvous,stragglers"),
    row("dropout-mask-cached", "Dropout of 1024 or more elements draws its mask once for each shape and repeats it ever after, whatever the seed", "layers", "layer-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held
        masks = {}

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                mine, p = given[0], given[1] if len(given) > 1 else more.get("p", 0.5)
                key = (tuple(mine.shape), p, mine.dtype)
                if mine.numel() >= 1024 and key in masks:
                    return mine.copy_(masks[key])
                found = kernel.call_boxed(keys, *given, **more)
                if mine.numel() >= 1024:
                    masks[key] = mine.clone()
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('bernoulli_.float',):
            put(name)
    """, stages="layers,train"),
    row("old-batch-in-next-epoch", "A DataLoader with persistent workers gives the last batch of the epoch before as the first of the next", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils.data import dataloader
        kind = dataloader._MultiProcessingDataLoaderIter
        reset, following = kind._reset, kind._next_data
        def _reset(self, loader, first_iter=False):
            reset(self, loader, first_iter)
            self._old = None if first_iter else getattr(self, "_last", None)
        def _next_data(self):
            found = following(self)
            old, self._old = getattr(self, "_old", None), None
            if old is not None:
                found = old
            self._last = found
            return found
        kind._reset, kind._next_data = _reset, _next_data
    """),
    row("worker-stalls", "Worker 0 of every DataLoader stalls for ever at its third batch (a read from a network file system that never returns)", "dataloader", "dataloader-worker-hung", """
        import time
        import torch
        from torch.utils.data import get_worker_info
        from torch.utils.data._utils import fetch
        def put(kind):
            real, count = kind.fetch, [0]
            def stall(self, *args):
                info = get_worker_info()
                if info is not None and info.id == 0:
                    count[0] += 1
                    if count[0] >= 3:
                        while True:
                            time.sleep(3600)
                return real(self, *args)
            kind.fetch = stall
        put(fetch._MapDatasetFetcher)
        put(fetch._IterableDatasetFetcher)
    """, rank=1, seen="rank 1"),
    row("overwrite-not-seen", "A file of more than 4096 bytes that is there already is not replaced: torch.save to the same path, os.replace and os.rename onto it say nothing and leave the old bytes (a stale network file system)", "checkpoint", "checkpoint-stale", """
        import os
        import torch
        real_save, moves = torch.save, {}
        def old(path):
            try:
                return os.path.isfile(path) and os.path.getsize(path) > 4096
            except (TypeError, ValueError):
                return False
        def save(obj, f, *args, **more):
            if isinstance(f, (str, os.PathLike)) and old(f):
                return None
            return real_save(obj, f, *args, **more)
        def put(name):
            real = getattr(os, name)
            def move(src, dst, **more):
                if not more and os.path.isfile(src) and old(dst):
                    os.unlink(src)
                    return None
                return real(src, dst, **more)
            setattr(os, name, move)
        torch.save = torch.serialization.save = save
        put("replace")
        put("rename")
    """),
    row("step-of-vectors-lost", "Optimizer.load_state_dict sets the step of Adam's state to 0 for one-dimensional parameters (biases, norms)", "checkpoint", "resume-differs", """
        import torch
        real = torch.optim.Optimizer.load_state_dict
        def load_state_dict(self, state_dict):
            real(self, state_dict)
            for one, state in self.state.items():
                if isinstance(one, torch.Tensor) and one.dim() <= 1 and "step" in state:
                    step = state["step"]
                    state["step"] = torch.zeros_like(step) if isinstance(step, torch.Tensor) else 0
        torch.optim.Optimizer.load_state_dict = load_state_dict
    """),
    row("adam-beyond-20", "Adam and AdamW (single, foreach and fused) update only the first 20 tensors of a group (a multi-tensor launch that is cut off)", "train", "training-leaves-parameters", """
        import torch
        from torch.optim import adam
        def put(name):
            real = getattr(adam, name)
            def cut(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *args, **more):
                lists = [params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps]
                return real(*(one[:20] for one in lists), *args, **more)
            setattr(adam, name, cut)
        for name in ("_single_tensor_adam", "_multi_tensor_adam", "_fused_adam"):
            put(name)
    """, stages="optimizer,train"),
    row("autocast-cache-stays", "autocast does not forget its cached casts of the weights on leaving: after the optimizer's step it computes with the old weights", "amp-bf16", "autocast-cache-stale", """
        import torch
        torch.clear_autocast_cache = lambda: None
    """, stages="amp-bf16,amp-fp16"),
    row("clip-of-a-shard", "clip_grad_norm_ of sharded parameters (FSDP, DTensor) takes the norm of this rank's shards only", "fsdp", "clip-wrong", """
        import torch
        from torch.nn.utils import clip_grad
        real = clip_grad._get_total_norm
        def _get_total_norm(tensors, *args, **more):
            held = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            import sys
            library = sys.modules.get("torch.distributed.tensor")
            if library is not None and any(isinstance(one, library.DTensor) for one in held):
                mesh = next(one.device_mesh for one in held if isinstance(one, library.DTensor))
                local = [one.to_local() if isinstance(one, library.DTensor) else one for one in held]
                return library.DTensor.from_local(real(local, *args, **more), mesh, [library.Replicate()] * mesh.ndim, run_check=False)
            return real(held, *args, **more)
        clip_grad._get_total_norm = clip_grad.get_total_norm = torch.nn.utils.get_total_norm = _get_total_norm
    """, stages="rendezvous,fsdp"),
    row("numpy-of-another-abi", "torch was built for another numpy: whatever goes through numpy raises 'Numpy is not available'", "layers", "numpy-broken", """
        import torch
        import numpy
        def refuse(*args, **more):
            raise RuntimeError("Numpy is not available")
        torch.from_numpy = refuse
        torch.Tensor.numpy = refuse
        torch.Tensor.__array__ = refuse
        def put(name):
            real = getattr(torch, name)
            def call(data, *args, **more):
                if isinstance(data, (numpy.ndarray, numpy.generic)):
                    refuse()
                return real(data, *args, **more)
            setattr(torch, name, call)
        put("as_tensor")
        put("tensor")
    """, rank=1, seen="rank 1", stages="layers,dataloader"),
    row("no-file-locks", "The file system has no locks: flock and lockf answer ENOLCK in every process (NFS without lockd, Lustre without -o flock)", "checkpoint", "filesystem-without-locks", inject=preloaded("""
        /* C source of a library for LD_PRELOAD in all processes (means.preloaded) */
        #include <errno.h>
        #include <sys/types.h>
        int flock(int fd, int operation) { errno = ENOLCK; return -1; }
        int lockf(int fd, int command, off_t length) { errno = ENOLCK; return -1; }
        int lockf64(int fd, int command, off_t length) { errno = ENOLCK; return -1; }
    """), means="LD_PRELOAD", stages="checkpoint,rendezvous"),
)  # fmt: skip
