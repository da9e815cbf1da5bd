"""The five that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.means import limited, preloaded, unshared, variables
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("batches-as-they-come", "A DataLoader gives the batches in the order in which its workers have them ready", "dataloader", "dataloader-out-of-order", """
        import torch.utils.data
        real = torch.utils.data.DataLoader.__init__
        def begin(self, *args, **more):
            more["in_order"] = False
            real(self, *args, **more)
        torch.utils.data.DataLoader.__init__ = begin
    """),
    row("malloc-perturb", "A variable that somebody left (MALLOC_PERTURB_=165) has the C library write over each piece of memory that it gives and takes", "device",
        "torch-setting-changed", inject=variables(MALLOC_PERTURB_="165"), means="environment", seen="MALLOC_PERTURB_"),
    row("null-device-refused", "/dev/null cannot be opened: it lies on a file system that is mounted nodev", "import", "dev-null-unusable",
        inject=unshared("--mount", "mkdir {folder}/dev\nmount -t tmpfs -o nodev tmpfs {folder}/dev\nmknod -m 666 {folder}/dev/null c 1 3\n"
        "mount --bind {folder}/dev/null /dev/null"), means="namespace", stages="import,device,dataloader"),
    row("data-limit", "ulimit -d leaves a process 380 MB of data", "device", "host-memory-oom", inject=limited("--data=380000000:380000000"), means="rlimit",
        stages="device", seen="ulimit -d"),
    row("opening-slow-on-one", "Opening a file takes one rank 60 ms (the metadata server of its file system is far away)", "stragglers", "straggler-storage",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <fcntl.h>
            #include <stdarg.h>
            #include <stdlib.h>
            #include <string.h>
            #include <unistd.h>
            static void held_up(const char *place) {
                const char *rank = getenv("RANK");
                if (rank && *rank == '1' && place && strstr(place, "torchtune-sys")) usleep(60000);
            }
            int open64(const char *place, int flags, ...) {
                static int (*real)(const char *, int, ...);
                va_list more;
                if (!real) real = dlsym(RTLD_NEXT, "open64");
                va_start(more, flags);
                int mode = va_arg(more, int);
                va_end(more);
                held_up(place);
                return real(place, flags, mode);
            }
            int open(const char *place, int flags, ...) {
                static int (*real)(const char *, int, ...);
                va_list more;
                if (!real) real = dlsym(RTLD_NEXT, "open");
                va_start(more, flags);
                int mode = va_arg(more, int);
                va_end(more);
                held_up(place);
                return real(place, flags, mode);
            }
        """), means="LD_PRELOAD", seen="rank 1"),
)  # fmt: skip
