"""What somebody who had not read the code found wrong or vague, and others of these kinds."""

from __future__ import annotations

import shutil
import subprocess

from smoke.faults.bench import Bench, NotHere
from smoke.faults.means import limited, preloaded, unshared
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row


def _cut_library(size: int) -> Inject:
    """A libstdc++ of so many bytes in a directory of LD_LIBRARY_PATH."""

    def inject(bench: Bench) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            raise NotHere("g++ is not installed")
        found = subprocess.run([compiler, "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=True)
        place = bench.folder / "lib"
        place.mkdir()
        with open(found.stdout.strip(), "rb") as whole:
            (place / "libstdc++.so.6").write_bytes(whole.read(size))
        bench.env["LD_LIBRARY_PATH"] = str(place)

    return inject


ROWS: tuple[Fault, ...] = (
    row("library-cut-in-front", "A directory of LD_LIBRARY_PATH has a libstdc++ that is cut short", "import", "library-damaged",
        inject=_cut_library(900000), means="environment", stages="device", seen="libstdc.*900000 of"),
    row("library-cut-to-a-page", "A directory of LD_LIBRARY_PATH has a libstdc++ of one page", "import", "library-damaged",
        inject=_cut_library(100), means="environment", stages="device", seen="libstdc"),
    row("address-space-1050", "ulimit -v leaves 1050 MB of address space", "allreduce", "host-memory-oom",
        inject=limited("--as=1050000000"), means="rlimit", stages="allreduce", seen="ulimit -v"),
    row("loopback-drops-calls", "A firewall drops what calls the high ports of the loopback", "rendezvous", "firewall-blocks-nccl",
        inject=unshared("--net", "ip link set lo up\niptables -A INPUT -i lo -p tcp --syn --dport 1024:65535 -j DROP"),
        means="namespace", seen="though the loopback is up"),
    row("connection-reset", "A connection between ranks is reset once it has carried 30 MB", "allreduce", "connection-broken",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <errno.h>
            #include <stdlib.h>
            #include <sys/socket.h>
            #include <sys/uio.h>
            static long carried;
            static int over(int file, long size) {
                const char *rank = getenv("RANK");
                struct sockaddr_storage where; socklen_t length = sizeof where;
                if (!rank || *rank != '1' || getpeername(file, (struct sockaddr *)&where, &length) || where.ss_family == AF_UNIX) return 0;
                if (__sync_add_and_fetch(&carried, size) < 30000000) return 0;
                shutdown(file, SHUT_RDWR);
                errno = ECONNRESET;
                return 1;
            }
            ssize_t send(int file, const void *from, size_t size, int flags) {
                static ssize_t (*real)(int, const void *, size_t, int);
                if (!real) real = dlsym(RTLD_NEXT, "send");
                return over(file, size) ? -1 : real(file, from, size, flags);
            }
            ssize_t writev(int file, const struct iovec *parts, int count) {
                static ssize_t (*real)(int, const struct iovec *, int);
                if (!real) real = dlsym(RTLD_NEXT, "writev");
                long size = 0;
                for (int i = 0; i < count; i++) size += parts[i].iov_len;
                return over(file, size) ? -1 : real(file, parts, count);
            }
        """), means="LD_PRELOAD", seen="no rank has ended"),
    row("hook-everywhere", "Each model in DDP has a hook that sends gradients in float16", "ddp", "ddp-gradients-wrong", """
        import torch.nn.parallel as parallel
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        real = parallel.DistributedDataParallel.__init__
        def init(self, *args, **more):
            real(self, *args, **more)
            self.register_comm_hook(None, default_hooks.fp16_compress_hook)
        parallel.DistributedDataParallel.__init__ = init
    """, seen="float16 holds"),
    row("bound-before-torch", "Each rank is bound to the same CPU before torch is loaded", "stragglers", "openmp-affinity-pins-process", """
        import os
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    """, when="json", stages="stragglers", seen="before torch was loaded"),
    row("four-local-ports", "The kernel has four local ports to give", "allreduce", "ephemeral-ports-exhausted",
        inject=unshared("--net", "ip link set lo up\necho 40000 40003 >/proc/sys/net/ipv4/ip_local_port_range"), means="namespace",
        stages="allreduce"),
    row("each-exchange-late", "Each all_reduce of one rank begins 80 ms late", "allreduce", "collective-slow", """
        import time
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(*args, **more):
            time.sleep(0.08)
            return real(*args, **more)
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1"),
    row("rank-pauses", "The main thread of one rank sleeps for 250 ms each second", "stragglers", "straggler-held-back", """
        import signal, threading, time
        signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.25))
        def each_second():
            while True:
                time.sleep(1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        threading.Thread(target=each_second, daemon=True).start()
    """, rank=1, when="torch.distributed", stages="stragglers", seen="rank 1 .*(pauses|is kept from running)"),
)  # fmt: skip
