"""Six faults that were opened after their first result; two belong to what a shorter stage *compile* could overlook."""

from __future__ import annotations

from smoke.faults.means import all_of, as_user, from_path, owned_by_another, variables
from smoke.faults.short import row

ROWS = (
    row("headers-of-another", "torch's default cache belongs to another user, though TORCHINDUCTOR_CACHE_DIR names a good one", "compile",
        "compile-cache-not-writable", inject=all_of(
            owned_by_another("{folder}/torchinductor_tester"), variables(TORCHINDUCTOR_CACHE_DIR="{folder}/own", LOGNAME="tester"),
            as_user(54321)), means="environment", seen="torchinductor_tester"),
    row("no-openssl", "No openssl on PATH, with which torch tells precompiled headers apart", "compile", "build-tool-missing",
        inject=from_path("openssl"), means="environment", seen="openssl"),
    row("amsgrad-forgets", "Adam with amsgrad does not keep the largest of its second moments", "optimizer", "optimizer-wrong", """
        import inspect
        import torch
        real = torch.optim.Adam.__init__
        shape = inspect.signature(real)
        def init(*args, **more):
            given = shape.bind(*args, **more)
            given.arguments["amsgrad"] = False
            real(*given.args, **given.kwargs)
        torch.optim.Adam.__init__ = init
    """, seen="(?i)amsgrad"),
    row("transposed-conv-shifted", "A transposed convolution moves its output by one place", "conv", "convolution-wrong", """
        import torch
        real = torch.nn.functional.conv_transpose2d
        torch.nn.functional.conv_transpose2d = torch.conv_transpose2d = lambda *args, **more: real(*args, **more).roll(1, -1)
    """, seen="(?i)transposed"),
    row("drop-last-ignored", "A DataLoader with drop_last=True keeps the short last batch", "dataloader", "dataloader-loses-samples", """
        import torch.utils.data as data
        real = data.BatchSampler.__init__
        def init(self, sampler, batch_size, drop_last):
            real(self, sampler, batch_size, False)
        data.BatchSampler.__init__ = init
    """, when="torch.utils.data", seen="drop_last"),
    row("no-sync-keeps-last", "Under no_sync only the last of several gradients counts on one rank", "accumulate", "accumulation-wrong", """
        import contextlib
        import torch.nn.parallel.distributed as parallel
        real = parallel.DistributedDataParallel.no_sync
        @contextlib.contextmanager
        def no_sync(self):
            with real(self):
                yield
            for one in self.parameters():
                if one.grad is not None:
                    one.grad.zero_()
        parallel.DistributedDataParallel.no_sync = no_sync
    """, when="torch.nn.parallel.distributed", rank=1),
)  # fmt: skip
