"""The part that stays closed until the end: only its first result counts."""

from __future__ import annotations

from smoke.faults.bench import Bench
from smoke.faults.means import from_path, in_front, preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row


def _without_cc1plus(bench: Bench) -> None:
    """g++ is there, the compiler that it calls is not: another package's, another release's."""
    from_path("g++", "c++", "clang++")(bench)
    in_front(bench, "g++", '#!/bin/sh\ncase "$*" in *--version*) echo "g++ (Debian 12.2.0-14) 12.2.0"; exit 0;; esac\n'
             'echo "g++: fatal error: cannot execute \'cc1plus\': execvp: No such file or directory" >&2\n'
             'echo "compilation terminated." >&2\nexit 1\n')  # fmt: skip
    made = bench.folder / "front" / "g++"
    made.chmod(0o755)
    (bench.folder / "bin" / "g++").symlink_to(made)


ROWS: tuple[Fault, ...] = (
    row("clocks-of-cores-apart", "One in 300 looks at CLOCK_MONOTONIC of one rank is 40 ms behind, as where cores' counters are apart", "device",
        "clock-jumps", inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <time.h>
            int clock_gettime(clockid_t which, struct timespec *told) {
                static int (*real)(clockid_t, struct timespec *);
                static unsigned calls;
                if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
                int done = real(which, told);
                const char *rank = getenv("RANK");
                if (which == CLOCK_MONOTONIC && rank && *rank == '1' && __sync_add_and_fetch(&calls, 1) % 300 == 0) {
                    told->tv_nsec -= 40000000;
                    if (told->tv_nsec < 0) { told->tv_nsec += 1000000000; told->tv_sec--; }
                }
                return done;
            }
        """), means="LD_PRELOAD"),
    row("slow-malloc-of-one-rank", "A preloaded allocator makes each malloc of one rank take 4 microseconds more", "stragglers",
        "straggler-compute", inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <x86intrin.h>
            extern void *__libc_malloc(size_t);
            static int slow;
            __attribute__((constructor)) static void look(void) {
                const char *rank = getenv("RANK");
                slow = rank && *rank == '1';
            }
            void *malloc(size_t size) {
                if (slow) { unsigned long long until = __rdtsc() + 10000; while (__rdtsc() < until) ; }
                return __libc_malloc(size);
            }
        """), means="LD_PRELOAD", seen="rank 1"),
    row("compiler-without-cc1plus", "g++ is there, but not the compiler proper that it calls (cc1plus)", "compile", "build-tool-missing",
        inject=_without_cc1plus, means="environment"),
    row("reads-an-old-block", "What one rank reads of a file that was written again has a block of what was there before", "checkpoint",
        "checkpoint-damaged", """
        import io
        import torch
        real, kept = torch.load, {}
        def load(file, *args, **more):
            if not isinstance(file, str):
                return real(file, *args, **more)
            with open(file, "rb") as opened:
                now = opened.read()
            before = kept.setdefault(file, now)
            if len(before) == len(now):
                middle = len(now) // 2 & ~4095
                now = now[:middle] + before[middle:middle + 4096] + now[middle + 4096:]
            more.pop("mmap", None)
            return real(io.BytesIO(now), *args, **more)
        torch.load = load
    """, rank=1, seen="rank 1"),
)  # fmt: skip
