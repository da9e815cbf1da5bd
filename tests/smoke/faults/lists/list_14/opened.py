"""The three quarters that were opened after their first result. Which are sealed was drawn by chance (random.SystemRandom)."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from smoke.faults.bench import Bench, NotHere
from smoke.faults.means import all_of, loading, patched, preloaded, remove_group, unshared, variables
from smoke.faults.row import Fault
from smoke.faults.short import row


def frozen(bench: Bench) -> None:
    """A cgroup of its own into which a rank is put as soon as it has workers, and which is frozen then."""
    group = Path("/sys/fs/cgroup/freezer") / f"torchtune-sys-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotHere(f"no cgroup of freezer: {error}") from None
    look = loading(1)

    def freeze() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            pid = look(bench)
            if pid is not None:
                (group / "cgroup.procs").write_text(str(pid))
                (group / "freezer.state").write_text("FROZEN")
                time.sleep(20)
                (group / "freezer.state").write_text("THAWED")  # else nobody can end it
                return
            time.sleep(0.1)

    def thaw() -> None:
        (group / "freezer.state").write_text("THAWED")
        remove_group(group)

    bench.watchers.append(freeze)
    bench.closing.callback(thaw)


ROWS: tuple[Fault, ...] = (
    row("cpu-capability-lowered", "A variable that somebody left (ATEN_CPU_CAPABILITY=default) keeps torch from the CPU's vector instructions on all ranks", "device",
        "torch-setting-changed", inject=variables(ATEN_CPU_CAPABILITY="default"), means="environment", seen="ATEN_CPU_CAPABILITY"),
    row("onednn-isa-lowered", "A variable that somebody left (ONEDNN_MAX_CPU_ISA=SSE41) keeps oneDNN from the CPU's vector instructions on all ranks", "device",
        "torch-setting-changed", inject=variables(ONEDNN_MAX_CPU_ISA="SSE41"), means="environment", seen="ONEDNN_MAX_CPU_ISA"),
    row("spawn-by-default", "A plug-in has processes started by spawn: each worker of a DataLoader imports torch, and a data set that cannot be pickled fails", "device",
        "torch-setting-changed", """
        import multiprocessing
        multiprocessing.set_start_method("spawn", force=True)
    """, seen="spawn"),
    row("children-reaped", "A plug-in's handler of SIGCHLD awaits all children: whoever started one does not learn how it ended", "device", "signals-blocked", """
        import os
        import signal
        def reap(number, frame):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
        signal.signal(signal.SIGCHLD, reap)
    """, seen="SIGCHLD"),
    row("shm-filled-mid-run", "Another process fills /dev/shm (64 MB) as soon as workers load", "dataloader", "dev-shm-too-small",
        inject=all_of(unshared("--mount", "mount -t tmpfs -o size=64m tmpfs /dev/shm"), patched("""
            import torch.utils.data
            real = torch.utils.data.DataLoader.__iter__
            def filling(self):
                found = real(self)
                if self.num_workers:
                    try:
                        with open("/dev/shm/others", "wb", buffering=0) as file:
                            while file.write(bytes(1 << 20)):
                                pass
                    except OSError:
                        pass
                return found
            torch.utils.data.DataLoader.__iter__ = filling
        """)), means="namespace"),
    row("cut-while-mapped", "A checkpoint is cut by another process while it is mapped (torch.load with mmap): the next look at it is SIGBUS", "checkpoint",
        "checkpoint-damaged", """
        import os
        import torch
        real = torch.load
        def load(place, *args, **more):
            found = real(place, *args, **more)
            if more.get("mmap"):
                os.truncate(place, 0)
            return found
        torch.load = load
    """, rank=1, seen="rank 1"),
    row("cgroup-frozen", "One rank is frozen by its cgroup (a paused container) while it loads", "dataloader", "rank-stopped",
        inject=frozen, means="cgroup", stages="dataloader,ddp", seen="rank 1"),
    row("clock-steps-back", "The clock of one rank is set back by 3 s, once, 8 s after it began", "stragglers", "clock-jumps",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <time.h>
            int clock_gettime(clockid_t which, struct timespec *told) {
                static int (*real)(clockid_t, struct timespec *);
                static time_t began;
                struct timespec now;
                if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
                int done = real(which, told);
                const char *rank = getenv("RANK");
                if (which == CLOCK_REALTIME && rank && *rank == '1' && !real(CLOCK_MONOTONIC, &now)) {
                    if (!began) began = now.tv_sec;
                    if (now.tv_sec - began >= 8) told->tv_sec -= 3;
                }
                return done;
            }
        """), means="LD_PRELOAD", stages="device,dataloader,stragglers", seen="rank 1")._replace(wrong="a clock that is set once is no finding: a host that was just started does that"),
    row("quota-exceeded", "The user's disk quota ends a checkpoint after 100 kB (EDQUOT)", "checkpoint", "disk-full-or-quota",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <errno.h>
            #include <stdlib.h>
            #include <sys/stat.h>
            #include <sys/uio.h>
            #include <unistd.h>
            static long written;
            static int refused(int file, size_t size) {
                struct stat told;
                if (!getenv("RANK") || fstat(file, &told) || !S_ISREG(told.st_mode) || !told.st_nlink || (written += size) <= 100000) return 0;
                errno = EDQUOT;
                return 1;
            }
            ssize_t write(int file, const void *data, size_t size) {
                static ssize_t (*real)(int, const void *, size_t);
                if (!real) real = dlsym(RTLD_NEXT, "write");
                return refused(file, size) ? -1 : real(file, data, size);
            }
            ssize_t writev(int file, const struct iovec *parts, int number) {
                static ssize_t (*real)(int, const struct iovec *, int);
                if (!real) real = dlsym(RTLD_NEXT, "writev");
                size_t size = 0;
                for (int part = 0; part < number; part++) size += parts[part].iov_len;
                return refused(file, size) ? -1 : real(file, parts, number);
            }
        """), means="LD_PRELOAD"),
    row("stale-handle", "The first look at each checkpoint that was written again fails with ESTALE (an NFS server whose file was replaced)", "checkpoint", "checkpoint-stale", """
        import builtins
        import errno
        import os
        real, seen = builtins.open, {}
        def opened(place, mode="r", *args, **more):
            if isinstance(place, str) and "torchtune-sys" in place and mode == "rb":
                found = os.stat(place)
                if seen.setdefault(place, found.st_mtime_ns) != found.st_mtime_ns:
                    seen[place] = found.st_mtime_ns
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), place)
            return real(place, mode, *args, **more)
        builtins.open = opened
    """),
    row("slow-collector", "A monitoring plug-in computes for 30 ms at each collection of cycles (gc.callbacks)", "device", "torch-setting-changed", """
        import gc
        import time
        def measured(phase, told):
            until = time.perf_counter() + 0.03
            while time.perf_counter() < until:
                pass
        gc.callbacks.append(measured)
    """, seen="gc.callbacks"),
    row("tiny-tcp-buffers", "The kernel gives each TCP connection 4 kB of buffers (tcp_rmem, tcp_wmem)", "allreduce", "collective-slow",
        inject=unshared("--net", "ip link set lo up\nfor name in rmem wmem; do echo 4096 4096 4096 >/proc/sys/net/ipv4/tcp_$name; done"), means="namespace",
        stages="allreduce,stragglers", seen="tcp_[rw]mem")._replace(wrong="the loopback is as quick with small buffers"),
)  # fmt: skip
