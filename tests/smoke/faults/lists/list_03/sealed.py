"""Nine faults that stayed sealed until the rest was built: only their first result counts (docs/verified.md). What caught two of them that were
not noticed was built after it."""

from __future__ import annotations

from smoke.faults.short import row

ROWS = (
    row("rounding-up", "A library makes the processor round up", "device", "float-environment-changed", """
        import ctypes
        ctypes.CDLL("libm.so.6").fesetround(0x800)
    """, rank=0, seen="round"),
    row("anomaly-mode-left-on", "Something left the detection of anomalies switched on", "device", "torch-setting-changed", """
        import torch
        torch.autograd.set_detect_anomaly(True)
    """, seen="anomal"),
    row("default-device-changed", "Something set the default device to meta", "device", "torch-setting-changed", """
        import torch
        torch.set_default_device("meta")
    """, seen="meta"),
    row("group-norm-one-group", "GroupNorm takes all channels for one group", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.group_norm
        torch.nn.functional.group_norm = lambda one, groups, *args, **more: real(one, 1, *args, **more)
    """, seen="(?i)group_?norm"),
    row("attention-gradient-lost", "Attention gives its keys no gradient", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda query, key, *args, **more: real(
            query, key.detach() + 0 * key, *args, **more)
    """, seen="(?i)attention"),
    row("plateau-never-lowers", "ReduceLROnPlateau never lowers the rate", "optimizer", "schedule-wrong", """
        import torch
        torch.optim.lr_scheduler.ReduceLROnPlateau.step = lambda self, *args, **more: None
    """, seen="ReduceLROnPlateau"),
    row("second-group-forgotten", "The scaler leaves a second group of parameters out", "amp-fp16", "scaler-changes-step", """
        import torch
        real = torch.amp.GradScaler.unscale_
        def unscale(self, optimizer):
            kept = optimizer.param_groups[1:]
            del optimizer.param_groups[1:]
            try:
                return real(self, optimizer)
            finally:
                optimizer.param_groups.extend(kept)
        torch.amp.GradScaler._unscale_real, torch.amp.GradScaler.unscale_ = real, unscale
        grads = torch.amp.GradScaler._unscale_grads_
        def unscale_grads(self, optimizer, *args, **more):
            kept = optimizer.param_groups[1:]
            del optimizer.param_groups[1:]
            try:
                return grads(self, optimizer, *args, **more)
            finally:
                optimizer.param_groups.extend(kept)
        torch.amp.GradScaler._unscale_grads_ = unscale_grads
    """, seen="2.weight"),
    row("paired-sends-swapped", "batch_isend_irecv loses what the last rank sends", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.batch_isend_irecv
        def exchange(operations):
            for one in operations:
                if one.op is dist.isend:
                    one.tensor = one.tensor * 0
            return real(operations)
        dist.batch_isend_irecv = exchange
    """, rank=1, seen="batch_isend_irecv"),
    row("loading-processes-late", "Starting a worker process takes one rank two seconds longer", "stragglers", "straggler-loading", """
        import os, time
        real = os.fork
        def fork():
            time.sleep(2)
            return real()
        os.fork = fork
    """, rank=1, seen="rank 1"),
)  # fmt: skip
