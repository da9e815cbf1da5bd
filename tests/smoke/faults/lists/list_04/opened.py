"""Seven faults, opened after the first result."""

from __future__ import annotations

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, file_in_front, in_front, limited, patched, preloaded, unshared, variables
from smoke.faults.short import row


def _backend_left_behind(bench: Bench) -> None:
    """A vendor's package that torch loads by itself (an entry point of torch.backends), whose library is gone."""
    place = "vendor_backend-1.0.dist-info"
    in_front(bench, f"{place}/METADATA", "Metadata-Version: 2.1\nName: vendor-backend\nVersion: 1.0\n")
    in_front(bench, f"{place}/entry_points.txt", "[torch.backends]\nvendor = vendor_backend:load\n")
    in_front(bench, "vendor_backend.py", "raise ImportError('libvendor.so.3: cannot open shared object file')\n")


ROWS = (
    row("backend-extension-broken", "A vendor's package that torch loads by itself cannot be imported", "import",
        "torch-backend-broken", inject=_backend_left_behind, means="environment", seen="vendor"),
    row("numpy-broken", "NumPy is there and cannot be imported", "import", "numpy-broken", inject=file_in_front(
        "numpy/__init__.py", "raise ImportError(\"No module named 'numpy._core._multiarray_umath'\")\n"),
        means="environment", seen="_multiarray_umath"),
    row("cache-noexec", "The compiler's cache is on a file system mounted noexec", "compile", "compile-cache-not-executable",
        inject=all_of(unshared("--mount", "mkdir {folder}/cache\nmount -t tmpfs -o noexec,mode=755 tmpfs {folder}/cache"),
                      variables(TORCHINDUCTOR_CACHE_DIR="{folder}/cache")), means="namespace"),
    row("compiled-for-one-size", "A compiled model is wrong for batches of another size than its first", "compile",
        "compiled-differs", """
        import torch
        real = torch.compile
        def compile(model, *args, **more):
            made, first = real(model, *args, **more), []
            def called(given, *rest):
                first.append(len(given))
                found = made(given, *rest)
                return found if first[0] == first[-1] else found.roll(1, 0)
            return called
        torch.compile = compile
    """, seen="(?i)size|batch of"),
    row("cpu-time-limit", "ulimit -t: a process may take 15 s of processor time", "train", "cpu-time-limit", inject=all_of(
        limited("--cpu=15"), patched("""
        import time
        import torch
        real = torch.nn.functional.cross_entropy
        def loss(*args, **more):
            until = time.process_time() + 1
            while time.process_time() < until:
                pass
            return real(*args, **more)
        torch.nn.functional.cross_entropy = loss
    """, rank=1)), means="rlimit", seen="rank 1"),
    row("disk-without-mmap", "The disk for checkpoints allows no mmap", "checkpoint", "checkpoint-disk-without-mmap",
        inject=preloaded("""
        #include <errno.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        void *mmap(void *at, size_t size, int rights, int flags, int file, off_t from) {
            char link[64], path[4096];
            if (file >= 0) {
                snprintf(link, sizeof link, "/proc/self/fd/%d", file);
                ssize_t n = readlink(link, path, sizeof path - 1);
                if (n > 0 && (path[n] = 0, strstr(path, "/checkpoint-"))) {
                    errno = ENODEV;
                    return MAP_FAILED;
                }
            }
            return (void *)syscall(SYS_mmap, at, size, rights, flags, file, from);
        }
        void *mmap64(void *at, size_t size, int rights, int flags, int file, off_t from) {
            return mmap(at, size, rights, flags, file, from);
        }
    """), means="LD_PRELOAD", seen="mmap"),
    row("autocast-cache-stale", "Autocast keeps the lowered weights of the first step", "amp-bf16", "autocast-cache-stale", """
        import torch
        torch.clear_autocast_cache = lambda: None
    """, seen="weight"),
)  # fmt: skip
