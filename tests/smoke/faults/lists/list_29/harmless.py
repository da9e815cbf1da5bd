"""What breaks nothing: no stage may fail."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("first-product-slow", "The first matrix product of a process takes 3 s longer (a library that loads its kernels on first use); all later ones are as fast as ever", "", "", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held
        import time
        first = [True]

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                if first:
                    first.clear()
                    time.sleep(3)
                return kernel.call_boxed(keys, *given, **more)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('mm', 'addmm', 'bmm'):
            put(name)
    """, rank=0),
    row("talking-libraries", "Everything writes log lines: Python's logging is at DEBUG on standard error, all warnings are shown each time, and each step of an optimizer prints a line", "", "", """
        import logging
        import sys
        import warnings
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
        warnings.simplefilter("always")
        def tell(optimizer, args, kwargs):
            print("site: step of", type(optimizer).__name__, file=sys.stderr)
        register_optimizer_step_post_hook(tell)
    """),
    row("deterministic-site", "The site's sitecustomize asks for deterministic algorithms (warn only), which also fills new memory with NaN", "", "", """
        import torch
        import torch.utils.deterministic
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
    """),
    row("shared-as-files", "The site sets torch.multiprocessing's sharing strategy to file_system (for its low limit of open files)", "", "", """
        import torch
        import torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy("file_system")
    """),
    row("sums-in-two-halves", "Another BLAS: float32 products with an inner size of 64 or more add the two halves of the inner dimension one after the other, so the last bits differ from those of another build", "", "", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                given = list(given)
                if name == "mm" and given[0].dtype is torch.float32 and given[0].shape[1] >= 64:
                    half = given[0].shape[1] // 2
                    left, right = given
                    found = kernel.call_boxed(keys, left[:, half:], right[half:], **more)
                    return found.add_(kernel.call_boxed(keys, left[:, :half], right[:half], **more))
                if name == "bmm" and given[0].dtype is torch.float32 and given[0].shape[2] >= 64:
                    half = given[0].shape[2] // 2
                    left, right = given
                    found = kernel.call_boxed(keys, left[:, :, half:], right[:, half:], **more)
                    return found.add_(kernel.call_boxed(keys, left[:, :, :half], right[:, :half], **more))
                return kernel.call_boxed(keys, *given, **more)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('mm', 'bmm'):
            put(name)
    """),
    row("clock-stepped-back", "From its 100th reading on, the wall clock (time.time, time.time_ns) is an hour behind (NTP stepped it); the monotonic clocks are right", "", "", """
        import time
        import torch
        real, real_ns, count = time.time, time.time_ns, [0]
        def now():
            count[0] += 1
            return real() - (3600 if count[0] > 100 else 0)
        def now_ns():
            count[0] += 1
            return real_ns() - (3600 * 10**9 if count[0] > 100 else 0)
        time.time, time.time_ns = now, now_ns
    """, rank=1),
)  # fmt: skip
