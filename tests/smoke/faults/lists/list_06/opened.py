"""Twelve faults that were opened after their first result."""

from __future__ import annotations

import subprocess

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, options, preloaded, refused, unshared, variables
from smoke.faults.short import row

_FLOCK, _ENOLCK = 73, 37
"""flock(2) of x86-64, and "no locks available"."""
_NO_FAULT = "nothing breaks: all stages pass under it"


def _helper_not_executable(bench: Bench) -> None:
    """torch_shm_manager, which serves the sharing strategy file_system, lost its rights: a copy onto a disk that has none."""
    words = [bench.python, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"]
    place = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip() + "/bin/torch_shm_manager"
    script = f"cp {place} {{folder}}/helper\nchmod 644 {{folder}}/helper\nmount --bind {{folder}}/helper {place}"
    unshared("--mount", script)(bench)


ROWS = (
    row("turned-weights-stuck", "addcmul_ changes nothing where a tensor's memory is transposed", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.Tensor.addcmul_
        def addcmul_(self, *args, **more):
            return real(self, *args, **more) if self.is_contiguous() else self
        torch.Tensor.addcmul_ = addcmul_
    """),
    row("groups-mixed-up", "A convolution in groups takes the weights of another group", "conv", "convolution-wrong", """
        import torch
        real = torch.conv2d
        def conv(one, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
            if groups > 1:
                weight = weight.roll(len(weight) // groups, 0)
            return real(one, weight, bias, stride, padding, dilation, groups)
        torch.conv2d = torch.nn.functional.conv2d = conv
    """, seen="(?i)group"),
    row("no-inodes", "The disk for checkpoints has room, but no more files", "checkpoint", "disk-full-or-quota", inject=all_of(
        unshared("--mount", "mkdir {folder}/disk\nmount -t tmpfs -o nr_inodes=4,mode=755 tmpfs {folder}/disk"),
        options("--scratch", "{folder}/disk")), means="namespace"),
    row("schedule-skips-at-milestone", "SequentialLR leaves out a step where one schedule follows another", "optimizer",
        "schedule-wrong", """
        import torch
        kinds = torch.optim.lr_scheduler
        real = kinds.SequentialLR.step
        def step(self, *args):
            real(self, *args)
            if self.last_epoch in self._milestones:
                real(self, *args)
        kinds.SequentialLR.step = step
    """, seen="SequentialLR"),
    row("warnings-are-errors", "PYTHONWARNINGS=error: each warning of a library ends what warned", "import", "warnings-are-errors",
        inject=variables(PYTHONWARNINGS="error"), means="environment", seen="PYTHONWARNINGS", stages="")._replace(wrong=_NO_FAULT),
    row("tmpdir-without-sockets", "The directory for temporary files is on a file system that has no sockets", "dataloader",
        "tmpdir-without-sockets", inject=preloaded("""
        #include <dlfcn.h>
        #include <errno.h>
        #include <sys/socket.h>
        #include <sys/un.h>
        int bind(int handle, const struct sockaddr *at, socklen_t size) {
            if (at->sa_family == AF_UNIX && ((const struct sockaddr_un *)at)->sun_path[0]) {
                errno = EPERM;
                return -1;
            }
            int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
            return real(handle, at, size);
        }
    """), means="LD_PRELOAD"),
    row("shm-manager-not-executable", "torch's helper for shared memory lost its rights (torch_shm_manager)", "dataloader",
        "torch-install-damaged", inject=_helper_not_executable, means="namespace", seen="torch_shm_manager"),
    row("no-file-locks", "The kernel, or a sandbox in its place, has no file locks", "rendezvous", "filesystem-without-locks",
        inject=refused(_FLOCK, _ENOLCK), means="seccomp"),
    row("hook-of-a-monitor", "A monitor's hook on all modules rounds what they return to bfloat16", "device", "torch-setting-changed", """
        import torch
        def hook(module, given, found):
            return found.bfloat16().to(found.dtype) if isinstance(found, torch.Tensor) and found.is_floating_point() else found
        torch.nn.modules.module.register_module_forward_hook(hook)
    """, seen="(?i)hook"),
    row("worker-init-left-out", "Workers of a DataLoader do not run their worker_init_fn", "dataloader", "dataloader-init-left-out", """
        import torch.utils.data as data
        real = data.DataLoader.__init__
        def init(self, *args, **more):
            real(self, *args, **more)
            self.worker_init_fn = None
        data.DataLoader.__init__ = init
    """, when="torch.utils.data", seen="worker_init_fn"),
    row("compiler-that-is-gone", "CXX names a compiler that is no longer there", "compile", "build-tool-missing",
        inject=variables(CXX="/opt/gone/bin/g++"), means="environment", seen="/opt/gone"),
    row("float64-by-float32", "Products of float64 are computed in float32", "gemm", "gemm-wrong", """
        import torch
        def narrow(real):
            def product(one, other, *rest, **more):
                if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype == other.dtype == torch.float64:
                    return real(one.float(), other.float(), *rest, **more).double()
                return real(one, other, *rest, **more)
            return product
        for place in (torch, torch.Tensor):
            for name in ("mm", "matmul"):
                setattr(place, name, narrow(getattr(place, name)))
        torch.Tensor.__matmul__ = narrow(torch.Tensor.__matmul__)
    """, seen="float64"),
)  # fmt: skip
