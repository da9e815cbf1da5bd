"""The quarter that stays closed until the end: only its first result counts."""

from __future__ import annotations

from smoke.faults.means import preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("slow-quarter", "Products take one rank three times as long for 1 s of every 4", "stragglers", "straggler-compute", """
        import time
        import torch
        def throttled(real):
            def slow(*args, **more):
                began = time.perf_counter()
                found = real(*args, **more)
                now = time.perf_counter()
                if now % 4 < 1:
                    until = now + 2 * (now - began)
                    while time.perf_counter() < until:
                        pass
                return found
            return slow
        torch.mm = throttled(torch.mm)
        torch.Tensor.__matmul__ = throttled(torch.Tensor.__matmul__)
        torch.nn.functional.linear = throttled(torch.nn.functional.linear)
    """, rank=1, seen="rank 1"),
    row("disk-slows-down", "The disk takes 24 MB of a process at full speed, and then half a second for each further MB (its cache or its credits are used up)",
        "checkpoint", "slow-data-storage", inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <sys/stat.h>
            #include <sys/uio.h>
            #include <time.h>
            #include <unistd.h>
            static long written;
            static void counted(int file, ssize_t count) {
                struct stat told;
                if (count <= 0 || !getenv("RANK") || fstat(file, &told) || !S_ISREG(told.st_mode)) return;
                if (__sync_add_and_fetch(&written, count) < 24 << 20) return;
                long nanoseconds = count * 500L;
                struct timespec pause = { nanoseconds / 1000000000, nanoseconds % 1000000000 };
                nanosleep(&pause, 0);
            }
            ssize_t write(int file, const void *data, size_t size) {
                static ssize_t (*real)(int, const void *, size_t);
                if (!real) real = dlsym(RTLD_NEXT, "write");
                ssize_t count = real(file, data, size);
                counted(file, count);
                return count;
            }
            ssize_t writev(int file, const struct iovec *parts, int number) {
                static ssize_t (*real)(int, const struct iovec *, int);
                if (!real) real = dlsym(RTLD_NEXT, "writev");
                ssize_t count = real(file, parts, number);
                counted(file, count);
                return count;
            }
        """), means="LD_PRELOAD", stages="checkpoint,stragglers,checkpoint-sharded")._replace(wrong="the stages write less than what the disk takes at full speed"),
    row("stdout-ascii", "A plug-in has standard output take ASCII alone: the bar of a progress display ends the training", "device", "stdout-encoding", """
        import sys
        sys.stdout.reconfigure(encoding="ascii")
    """),
    row("sigterm-blocked-by-group", "A communication library blocks SIGTERM in one rank as the process group begins", "rendezvous", "signals-blocked", """
        import signal
        import torch.distributed as dist
        real = dist.init_process_group
        def init_process_group(*args, **more):
            found = real(*args, **more)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            return found
        dist.init_process_group = init_process_group
    """, rank=1, when="torch.distributed", stages="device,allreduce,stragglers", seen="rank 1"),
)  # fmt: skip
