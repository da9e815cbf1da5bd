"""The three quarters that were opened after their first result. Which are sealed the digests of the names decided (the four lowest SHA-256)."""

from __future__ import annotations

from smoke.faults.means import all_of, as_user, limited, patched, preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("copies-lose-a-page", "A copy that the kernel makes from file to file (sendfile, copy_file_range) has a page of zeros in its middle", "checkpoint",
        "checkpoint-damaged", inject=preloaded("""
            #include <dlfcn.h>
            #include <sys/stat.h>
            #include <sys/types.h>
            #include <unistd.h>
            static void spoil(int out, off_t at, ssize_t count) {
                static const char zeros[4096];
                struct stat told;
                if (count >= 16384 && !fstat(out, &told) && S_ISREG(told.st_mode))
                    if (pwrite(out, zeros, sizeof zeros, (at + count / 2) & ~4095L) < 0) return;
            }
            ssize_t sendfile64(int out, int in, off64_t *from, size_t most) {
                static ssize_t (*real)(int, int, off64_t *, size_t);
                if (!real) real = dlsym(RTLD_NEXT, "sendfile64");
                ssize_t count = real(out, in, from, most);
                if (count > 0) spoil(out, lseek(out, 0, SEEK_CUR) - count, count);
                return count;
            }
            ssize_t sendfile(int out, int in, off_t *from, size_t most) { return sendfile64(out, in, from, most); }
            ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t most, unsigned flags) {
                static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
                if (!real) real = dlsym(RTLD_NEXT, "copy_file_range");
                ssize_t count = real(in, from, out, to, most, flags);
                if (count > 0) spoil(out, (to ? *to : lseek(out, 0, SEEK_CUR)) - count, count);
                return count;
            }
        """), means="LD_PRELOAD"),
    row("first-convolution", "A convolution of 7 by 7 over three colours, with a stride of 2, gets its last output wrong", "layers", "convolution-wrong", """
        import torch
        real = torch.nn.functional.conv2d
        def conv2d(given, weight, *args, **more):
            found = real(given, weight, *args, **more)
            if weight.shape[1] == 3 and weight.shape[-1] == 7:
                found = found.clone()
                found.view(-1)[-1] += 1
            return found
        torch.nn.functional.conv2d = torch.conv2d = conv2d
    """, stages="conv,layers"),
    row("slow-reads", "To read through 4 MB and more takes one rank 2.5 times as long", "stragglers", "straggler-memory", """
        import time
        import torch
        def slowed(real):
            def slow(held, *args, **more):
                began = time.perf_counter()
                found = real(held, *args, **more)
                if isinstance(held, torch.Tensor) and held.numel() >= 1 << 20:
                    until = began + 2.5 * (time.perf_counter() - began)
                    while time.perf_counter() < until:
                        pass
                return found
            return slow
        for name in ("sum", "mean", "amax", "max", "norm"):
            setattr(torch, name, slowed(getattr(torch, name)))
            setattr(torch.Tensor, name, slowed(getattr(torch.Tensor, name)))
    """, rank=1, seen="rank 1"),
    row("spinning-thread", "A library's thread spins in one rank for ever: a CPU that the ranks need", "device", "threads-spin", inject=preloaded("""
        #include <pthread.h>
        #include <stdlib.h>
        static void *spin(void *unused) { for (volatile unsigned long turns = 0;; turns++) ; return unused; }
        __attribute__((constructor)) static void begin(void) {
            const char *rank = getenv("RANK");
            pthread_t made;
            if (rank && *rank == '1') pthread_create(&made, 0, spin, 0);
        }
    """), means="LD_PRELOAD", stages="device,stragglers", seen="rank 1"),
    row("half-subnormals", "What is below 6.1e-5 in float16 is zero once it is float32", "layers", "device-computes-wrong", """
        import torch
        def flushed(real):
            def convert(held, *args, **more):
                found = real(held, *args, **more)
                if held.dtype == torch.float16 and found.dtype == torch.float32:
                    found = torch.where(found.abs() < 2.0 ** -14, torch.zeros_like(found), found)
                return found
            return convert
        torch.Tensor.float = flushed(torch.Tensor.float)
        torch.Tensor.to = flushed(torch.Tensor.to)
    """, stages="device,memory,layers"),
    row("long-softmax", "softmax over more than 1024 gives the last of each row twice its share", "layers", "layer-wrong", """
        import torch
        def doubled(real):
            def softmax(held, *args, **more):
                found = real(held, *args, **more)
                if found.shape[-1] > 1024:
                    found = torch.cat([found[..., :-1], 2 * found[..., -1:]], -1)
                return found
            return softmax
        torch.softmax = doubled(torch.softmax)
        torch.nn.functional.softmax = doubled(torch.nn.functional.softmax)
        torch.Tensor.softmax = doubled(torch.Tensor.softmax)
    """),
    row("one-row-products", "A product of one row with 256 columns and more (as in decoding) has a wrong last element", "layers", "gemm-wrong", """
        import torch
        def wrong(real):
            def product(*args, **more):
                found = real(*args, **more)
                if found.dim() >= 2 and found.shape[-2] == 1 and found.shape[-1] >= 256 and found.dtype == torch.float32:
                    found = torch.cat([found[..., :-1], found[..., -1:] + 1], -1)
                return found
            return product
        for place, name in ((torch, "mm"), (torch, "matmul"), (torch, "addmm"), (torch.nn.functional, "linear"), (torch.Tensor, "__matmul__")):
            setattr(place, name, wrong(getattr(place, name)))
    """, stages="gemm,stress,layers"),
    row("umask-shuts", "A plug-in sets the umask to 0777: a rank that is no root cannot read what it wrote", "checkpoint", "checkpoints-not-writable",
        inject=all_of(as_user(1234), patched("""
            import os
            os.umask(0o777)
        """)), means="namespace", seen="umask is 0777"),
    row("wall-clock-swings", "The time of one rank is 1.5 s ahead in every other 3 s (two programs set the clock)", "stragglers", "clock-jumps",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <time.h>
            int clock_gettime(clockid_t which, struct timespec *told) {
                static int (*real)(clockid_t, struct timespec *);
                if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
                int done = real(which, told);
                const char *rank = getenv("RANK");
                struct timespec now;
                if (which == CLOCK_REALTIME && rank && *rank == '1' && !real(CLOCK_MONOTONIC, &now) && now.tv_sec / 3 % 2) {
                    told->tv_nsec += 500000000;
                    told->tv_sec += 1 + told->tv_nsec / 1000000000;
                    told->tv_nsec %= 1000000000;
                }
                return done;
            }
        """), means="LD_PRELOAD", stages="device,stragglers", seen="rank 1"),
    row("names-slow", "Each name that is looked up takes 5 s: the first name server does not answer", "rendezvous", "name-lookup-slow",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <netdb.h>
            #include <stdlib.h>
            #include <unistd.h>
            int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
                static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
                if (!real) real = dlsym(RTLD_NEXT, "getaddrinfo");
                int numeric = node && (node[0] >= '0' && node[0] <= '9' || node[0] == ':');
                if (node && !numeric && getenv("RANK")) sleep(5);
                return real(node, service, hints, found);
            }
        """), means="LD_PRELOAD"),
    row("no-execmem", "No memory may be executed that was written (SELinux's execmem, a hardened profile)", "device", "system-calls-refused",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <errno.h>
            #include <stdlib.h>
            #include <sys/mman.h>
            void *mmap64(void *at, size_t size, int rights, int flags, int file, off64_t from) {
                static void *(*real)(void *, size_t, int, int, int, off64_t);
                if (!real) real = dlsym(RTLD_NEXT, "mmap64");
                if ((rights & PROT_EXEC) && (rights & PROT_WRITE) && getenv("RANK")) { errno = EACCES; return MAP_FAILED; }
                return real(at, size, rights, flags, file, from);
            }
            void *mmap(void *at, size_t size, int rights, int flags, int file, off_t from) { return mmap64(at, size, rights, flags, file, from); }
            int mprotect(void *at, size_t size, int rights) {
                static int (*real)(void *, size_t, int);
                if (!real) real = dlsym(RTLD_NEXT, "mprotect");
                if ((rights & PROT_EXEC) && getenv("RANK")) { errno = EACCES; return -1; }
                return real(at, size, rights);
            }
        """), means="LD_PRELOAD", stages="device,gemm,conv,train,ddp")._replace(others={"conv": "fail", "train": "fail", "ddp": "fail"}),
    row("descriptors-leaked", "Who starts the ranks leaves them 994 open files of the 1024 that they may have", "dataloader", "nofile-limit-too-low",
        inject=all_of(limited("--nofile=1024:1024"), patched("""
            import os
            for _ in range(994 - len(os.listdir("/proc/self/fd"))):
                os.open("/dev/null", os.O_RDONLY)
        """)), means="rlimit", stages=""),
)  # fmt: skip
