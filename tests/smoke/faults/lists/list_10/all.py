"""Thirty faults, written down before the code that is to name them was read; ``LOT`` opens twenty of them."""

from __future__ import annotations

import random

from smoke.faults.lists.list_10.ways import PRELUDE_C, Planted, idle_beside_a_neighbour, kernels, quota_of_one
from smoke.faults.means import all_of, file_in_front, patched, preloaded, refused, unshared, variables

PLANTED = (
    Planted("monotonic-fast", "CLOCK_MONOTONIC runs 1.6 times too fast on rank 1", "1", "clock",
        preloaded(PRELUDE_C + """
    int clock_gettime(clockid_t id, struct timespec *at) {
        static int (*real)(clockid_t, struct timespec *);
        static long long first;
        if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
        int found = real(id, at);
        if (!found && id == CLOCK_MONOTONIC && is_rank('1')) {
            long long now = at->tv_sec * 1000000000LL + at->tv_nsec;
            if (!first) first = now;
            now = first + (now - first) * 8 / 5;
            at->tv_sec = now / 1000000000LL;
            at->tv_nsec = now % 1000000000LL;
        }
        return found;
    }
"""), """
        import time
        a, b = time.monotonic(), time.time()
        time.sleep(0.5)
        assert (time.monotonic() - a) / (time.time() - b) > 1.4
"""),
    Planted("idle-class", "Rank 1 is in the scheduling class SCHED_IDLE, and somebody else's programs use the CPUs", "1",
        "straggler-held-back|ranks-unlike|SCHED_IDLE|idle", idle_beside_a_neighbour, """
        import os, torch
        assert os.sched_getscheduler(0) == os.SCHED_IDLE
"""),
    Planted("quota-of-one", "A cgroup leaves rank 1 a third of a CPU", "1", "straggler-held-back|quota", quota_of_one, """
        import torch, time, os
        a, b = time.monotonic(), time.process_time()
        while time.monotonic() - a < 2: pass
        assert time.process_time() - b < 1.2
"""),
    Planted("loopback-loses", "3 % of the packets between ranks are lost (iptables statistic)", "all", "packet-loss|network|retransmi|lost",
        unshared("--net", "ip link set lo up\niptables -A INPUT -i lo -p tcp -m statistic --mode random --probability 0.03 -j DROP"), """
        import subprocess
        assert "statistic" in subprocess.run(["iptables", "-S"], capture_output=True, text=True).stdout
"""),
    Planted("loopback-narrow", "The network between ranks carries 8 Mbit/s (tc tbf)", "all", "narrow-link|network|bandwidth|slow",
        unshared("--net", "ip link set lo up mtu 1500\ntc qdisc add dev lo root tbf rate 8mbit burst 32k latency 400ms"), """
        import subprocess
        assert "tbf" in subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True).stdout
"""),
    Planted("fsync-slow", "fsync takes 1.5 s on this disk", "all", "storage|disk|fsync",
        preloaded(PRELUDE_C + """
    int fsync(int file) { int (*real)(int) = dlsym(RTLD_NEXT, "fsync"); usleep(1500000); return real(file); }
    int fdatasync(int file) { int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync"); usleep(1500000); return real(file); }
"""), """
        import os, time, tempfile
        a = time.time()
        with tempfile.TemporaryFile() as f: os.fsync(f.fileno())
        assert time.time() - a > 1.4
"""),
    Planted("imports-slow", "Opening a file of torch's own folder takes 2 ms (a busy file server)", "all", "storage|slow.*(import|read)|import.*slow|byte-code",
        preloaded(PRELUDE_C + """
    static void wait_for(const char *path) { if (path && strstr(path, "site-packages")) usleep(2000); }
    int open64(const char *path, int flags, ...) {
        int (*real)(const char *, int, int) = dlsym(RTLD_NEXT, "open64"); wait_for(path);
        __builtin_va_list more; __builtin_va_start(more, flags); int mode = __builtin_va_arg(more, int); __builtin_va_end(more);
        return real(path, flags, mode);
    }
    int open(const char *path, int flags, ...) {
        int (*real)(const char *, int, int) = dlsym(RTLD_NEXT, "open"); wait_for(path);
        __builtin_va_list more; __builtin_va_start(more, flags); int mode = __builtin_va_arg(more, int); __builtin_va_end(more);
        return real(path, flags, mode);
    }
    struct stat; int stat64(const char *path, void *at) { int (*real)(const char *, void *) = dlsym(RTLD_NEXT, "stat64"); wait_for(path); return real(path, at); }
    int stat(const char *path, struct stat *at) { int (*real)(const char *, struct stat *) = dlsym(RTLD_NEXT, "stat"); wait_for(path); return real(path, at); }
"""), """
        import time
        a = time.time()
        import torch
        assert time.time() - a > 5
"""),
    Planted("bound-to-one", "A plug-in binds both ranks to CPU 0, whatever the host has", "all", "affinity|same CPU|pins|share.*CPU|one CPU", patched("""
        import os
        os.sched_setaffinity(0, {0})
    """), """
        import os, torch
        assert os.sched_getaffinity(0) == {0}
"""),
    Planted("epoll-refused", "A container's profile refuses epoll_ctl", "all", "seccomp|epoll", refused(233, 1), """
        import os, select
        try: select.epoll().register(os.pipe()[0])
        except OSError: pass
        else: raise SystemExit(1)
"""),
    Planted("tracemalloc", "PYTHONTRACEMALLOC=25 follows each allocation", "all", "torch-setting-changed|tracemalloc", variables(PYTHONTRACEMALLOC="25"), """
        import tracemalloc
        assert tracemalloc.is_tracing()
"""),
    Planted("collects-always", "A plug-in makes Python's garbage collector run at each allocation on rank 0", "0",
        "straggler|gc|garbage|torch-setting-changed", patched("import gc\ngc.set_threshold(1, 1, 1)", rank=0), """
        import torch, gc
        assert gc.get_threshold()[0] == 1
"""),
    Planted("mpmath-broken", "The package mpmath, which torch.compile needs, cannot be imported", "all", "torch-requirements|mpmath",
        file_in_front("mpmath/__init__.py", "from mpmath.libmp import gone\n"), """
        try: import sympy
        except ImportError: pass
        else: raise SystemExit(1)
"""),
    Planted("finite-math", "The compiler is a wrapper that adds -ffinite-math-only", "all", "compiled-differs|compile.*(nan|inf|differ)|finite-math",
        all_of(file_in_front("cxx", '#!/bin/sh\nexec g++ "$@" -ffinite-math-only\n'),
            lambda bench: (bench.folder / "front" / "cxx").chmod(0o755), variables(CXX="{folder}/front/cxx")), """
        import torch
        f = torch.compile(lambda x: torch.isnan(x).float() + torch.where(torch.isinf(x), 1.0, 0.0))
        x = torch.tensor([float("nan"), float("inf")] * 40)
        assert not torch.equal(f(x), torch.ones(80))
"""),
    Planted("errors-suppressed", "TORCHDYNAMO_SUPPRESS_ERRORS=1 hides that the compiler fails: all runs uncompiled", "all",
        "compile-does-nothing|build-tool|compiler", all_of(file_in_front("cxx", "#!/bin/sh\nexit 1\n"),
            lambda bench: (bench.folder / "front" / "cxx").chmod(0o755), variables(CXX="{folder}/front/cxx", TORCHDYNAMO_SUPPRESS_ERRORS="1")), """
        import torch, os, torch._dynamo
        assert torch._dynamo.config.suppress_errors and os.environ["CXX"].endswith("cxx")
        assert torch.compile(torch.sin)(torch.ones(4))[0] > 0.8
"""),
    Planted("labels-shifted", "Putting a batch together moves the labels by one sample on rank 1", "1", "dataloader", patched("""
        import torch
        import torch.utils.data._utils.collate as collating
        real = collating.collate
        def collate(batch, **more):
            if isinstance(batch, list) and len(batch) > 1 and isinstance(batch[0], tuple) and len(batch[0]) == 2:
                labels = [one[1] for one in batch]
                batch = [(one[0], label) for one, label in zip(batch, labels[1:] + labels[:1])]
            return real(batch, **more)
        collating.collate = collate
    """, rank=1, when="torch.utils.data"), """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        x, y = next(iter(DataLoader(TensorDataset(torch.arange(8), torch.arange(8)), batch_size=4)))
        assert not torch.equal(x, y)
"""),
    Planted("workers-many-threads", "Workers of a DataLoader compute with 32 threads each", "all", "thread|oversubscri", patched("""
        import torch
        import torch.utils.data._utils.worker as working
        real = working._worker_loop
        def loop(*args, **more):
            set_threads = torch.set_num_threads
            torch.set_num_threads = lambda n: set_threads(32)
            return real(*args, **more)
        working._worker_loop = loop
    """, when="torch.utils.data"), """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Asks(Dataset):
            def __len__(self): return 2
            def __getitem__(self, n): return torch.get_num_threads()
        assert max(int(one.max()) for one in DataLoader(Asks(), num_workers=1)) == 32
"""),
    Planted("batches-kept", "Rank 1 keeps each batch that a DataLoader gives it, and a megabyte beside it", "1", "memory-grows", patched("""
        import torch
        import torch.utils.data.dataloader as loading
        real, kept = loading._BaseDataLoaderIter.__next__, []
        def following(self):
            found = real(self)
            kept.append((found, torch.ones(262144)))
            return found
        loading._BaseDataLoaderIter.__next__ = following
    """, rank=1, when="torch.utils.data"), """
        import torch, resource
        from torch.utils.data import DataLoader
        a = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for one in DataLoader(range(200)): pass
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - a > 150_000
"""),
    Planted("ddp-one-step-late", "DDP gives each step the averaged gradients of the step before", "all", "ddp-gradients|ddp-step|accumulation-wrong", patched("""
        import torch
        import torch.distributed as dist
        import torch.nn.parallel.distributed as parallel
        real = parallel.DistributedDataParallel.__init__
        def hook(held, bucket):
            own = bucket.buffer().clone().div_(dist.get_world_size())
            future = dist.all_reduce(own, async_op=True).get_future()
            def late(done):
                now = done.value()[0]
                before = held.get(bucket.index(), now)
                held[bucket.index()] = now
                return before.clone()
            return future.then(late)
        def init(self, module, *args, **more):
            real(self, module, *args, **more)
            if not more.get("static_graph"):
                self.register_comm_hook({}, hook)
        parallel.DistributedDataParallel.__init__ = init
    """, when="torch.nn.parallel.distributed"), """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        m(torch.ones(1, 2)).sum().backward()
        m.zero_grad(); m(torch.ones(1, 2) * 3).sum().backward()
        assert m.module.weight.grad.max() == 1
"""),
    Planted("reduce-scatter-large", "reduce_scatter_tensor above 4096 elements leaves rank 1 its own part of its own values", "1",
        "collective-wrong|fsdp-step-wrong", patched("""
        import torch.distributed as dist
        def changed(real):
            def reduce_scatter(output, input, *args, **more):
                found = real(output, input, *args, **more)
                if input.numel() > 4096:
                    if found is not None:
                        found.wait()
                    output.copy_(input.chunk(dist.get_world_size())[dist.get_rank()].view_as(output))
                return found
            return reduce_scatter
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                setattr(dist, name, changed(getattr(dist, name)))
                setattr(dist.distributed_c10d, name, getattr(dist, name))
    """, rank=1, when="torch.distributed"), """
        import torch, torch.distributed as dist
        assert "sitecustomize" in dist.reduce_scatter_tensor.__code__.co_filename
"""),
    Planted("tags-ignored", "Messages between ranks are received in the order of their coming, whatever their tags", "all", "collective-wrong", patched("""
        import torch.distributed as dist
        for name in ("send", "recv", "isend", "irecv"):
            def change(real):
                def without(*args, **more):
                    more.pop("tag", None)
                    return real(*args[:3], **more)
                return without
            setattr(dist, name, change(getattr(dist, name)))
            setattr(dist.distributed_c10d, name, getattr(dist, name))
    """, when="torch.distributed"), """
        import torch, torch.distributed as dist
        assert "sitecustomize" in dist.send.__code__.co_filename
"""),
    Planted("normal-cut", "What torch draws from the normal distribution never goes beyond 2.2 spreads on rank 1", "1", "random-numbers-wrong", kernels("""
    def cut(real, self, mean=0.0, std=1.0, *, generator=None):
        real(self, mean, std, generator=generator)
        return self.clamp_(mean - 2.2 * std, mean + 2.2 * std)
    replace("normal_", cut)
    """, 1), """
        import torch
        assert torch.randn(100000).abs().max() < 2.3 and torch.nn.init.normal_(torch.empty(100000)).abs().max() < 2.3
"""),
    Planted("softmax-long-rows", "softmax of rows above 1500 leaves out what is beyond on rank 1, also within attention and losses", "1",
        "layer-wrong|device-computes-wrong", kernels("""
    def short(real, x, dim, half):
        found = real(x, dim, half)
        return found.narrow(dim, 0, 1500).contiguous().new_zeros(found.shape).copy_(found).index_fill(dim, torch.arange(1500, found.size(dim)), 0) if found.dim() and found.size(dim) > 1500 else found
    replace("_softmax", short)
    """, 1), """
        import torch
        assert torch.softmax(torch.zeros(2000), 0)[1600:].sum() == 0 and torch.softmax(torch.zeros(200), 0)[160:].sum() > 0
"""),
    Planted("cumsum-carry", "A running sum begins anew after 1024 elements", "all", "device-computes-wrong|layer-wrong", kernels("""
    def anew(real, x, dim, *, dtype=None):
        if x.dim() and x.size(dim) > 1024:
            return torch.cat([real(part, dim, dtype=dtype) for part in x.split(1024, dim)], dim)
        return real(x, dim, dtype=dtype)
    replace("cumsum", anew)
    """), """
        import torch
        assert torch.ones(3000).cumsum(0)[-1] < 1024
"""),
    Planted("conv-stride-gradient", "The gradient of a convolution's weight is halved where its stride is 2 on rank 0", "0", "convolution-wrong", kernels("""
    def halved(real, slope, x, weight, bias_sizes, stride, *more):
        a, b, c = real(slope, x, weight, bias_sizes, stride, *more)
        return (a, b / 2 if b is not None and 2 in tuple(stride) else b, c)
    replace("convolution_backward", halved)
    """, 0), """
        import torch
        w = torch.ones(1, 1, 2, 2, requires_grad=True)
        torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), w, stride=2).sum().backward()
        assert w.grad.max() == 2
"""),
    Planted("products-when-warm", "After 6 s of work each 60th product of rank 1 has a wrong element", "1", "silent-data-corruption|gemm-wrong", kernels("""
    import time
    began, calls = time.monotonic(), [0]
    def warm(real, *args, **more):
        found = real(*args, **more)
        calls[0] += 1
        if calls[0] % 60 == 0 and time.monotonic() - began > 6 and found.numel() > 64:
            found.view(-1)[7] *= 1.25
        return found
    for name in ("mm", "addmm", "bmm"):
        replace(name, warm)
    """, 1), """
        import torch, time
        x = torch.ones(20, 20)
        assert torch.equal(x @ x, x * 20)
        time.sleep(7)
        assert sum(not torch.equal(x @ x, x * 20) for n in range(120)) == 2
"""),
    Planted("exp-last-bits", "exp is off in its last two bits on rank 1 (another library of functions)", "1", "ranks-compute-differently|straggler.*differ|fingerprint|layer-wrong|device-computes-wrong", kernels("""
    def off(real, x, *more, **other):
        found = real(x, *more, **other)
        return found * (1 + 3e-7) if found.dtype == torch.float32 else found
    for name in ("exp", "_softmax", "_log_softmax", "gelu"):
        replace(name, off)
    """, 1), """
        import torch
        x = torch.linspace(0, 3, 1000)
        assert ((torch.exp(x) - torch.exp(x.double())) / torch.exp(x.double())).mean() > 2e-7
"""),
    Planted("fused-adamw-no-decay", "AdamW's fused kernel leaves out the weight decay on rank 0", "0", "optimizer-wrong", kernels("""
    def without(real, *args, **more):
        more["weight_decay"] = 0.0
        return real(*args, **more)
    replace("_fused_adamw_", without)
    """, 0), """
        import torch
        p = torch.ones(4, requires_grad=True); p.grad = torch.zeros(4)
        torch.optim.AdamW([p], lr=0.1, weight_decay=0.5, fused=True).step()
        assert p.max() == 1
"""),
    Planted("amp-norm-lowered", "Autocast to bfloat16 computes LayerNorm's result in bfloat16 and loses a bias's small parts", "all", "autocast-lowers|autocast|amp", patched("""
        import torch
        real = torch.nn.functional.layer_norm
        def layer_norm(x, *args, **more):
            if torch.is_autocast_enabled("cpu"):
                with torch.autocast("cpu", enabled=False):
                    args = [one.bfloat16() if isinstance(one, torch.Tensor) else one for one in args]
                    more = {name: one.bfloat16() if isinstance(one, torch.Tensor) else one for name, one in more.items()}
                    return real(x.bfloat16(), *args, **more)
            return real(x, *args, **more)
        torch.nn.functional.layer_norm = layer_norm
    """), """
        import torch
        with torch.autocast("cpu"):
            assert torch.nn.LayerNorm(8)(torch.randn(2, 8)).dtype == torch.bfloat16
"""),
    Planted("second-moment-lowered", "Loading an optimizer rounds its second moments to bfloat16 on rank 1", "1", "resume-differs", patched("""
        import torch
        real = torch.optim.Optimizer.load_state_dict
        def load(self, held):
            real(self, held)
            for one in self.state.values():
                if "exp_avg_sq" in one:
                    one["exp_avg_sq"] = one["exp_avg_sq"].bfloat16().float()
        torch.optim.Optimizer.load_state_dict = load
    """, rank=1), """
        import torch, copy
        p = torch.ones(4, requires_grad=True); p.grad = torch.full((4,), 0.3)
        o = torch.optim.AdamW([p]); o.step(); s = copy.deepcopy(o.state_dict())
        o.load_state_dict(s)
        assert not torch.equal(o.state_dict()["state"][0]["exp_avg_sq"], s["state"][0]["exp_avg_sq"])
"""),
    Planted("reads-fail", "Reading what rank 1 has written to the disk fails with EIO", "1", "storage-io-error", preloaded(PRELUDE_C + """
    static int spoiled(int file, size_t many) {
        char link[64], path[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t n = is_rank('1') ? readlink(link, path, sizeof path - 1) : -1;
        if (n <= 0) return 0;
        path[n] = 0;
        return (strstr(path, ".pt") && !strstr(path, ".pth")) || strstr(path, ".distcp") || strstr(path, ".ckpt") || strstr(path, ".bin");
    }
    ssize_t read(int file, void *into, size_t many) {
        static ssize_t (*real)(int, void *, size_t);
        if (!real) real = dlsym(RTLD_NEXT, "read");
        if (spoiled(file, many)) { errno = EIO; return -1; }
        return real(file, into, many);
    }
    ssize_t pread64(int file, void *into, size_t many, off_t at) {
        static ssize_t (*real)(int, void *, size_t, off_t);
        if (!real) real = dlsym(RTLD_NEXT, "pread64");
        if (spoiled(file, many)) { errno = EIO; return -1; }
        return real(file, into, many, at);
    }
"""), """
        import torch, tempfile, os
        with tempfile.TemporaryDirectory() as folder:
            torch.save(torch.ones(4), folder + "/a.pt")
            try: torch.load(folder + "/a.pt")
            except OSError as error: assert error.errno == 5
            else: raise SystemExit(1)
"""),
)  # fmt: skip

LOT = frozenset(random.Random(20261127).sample([one.name for one in PLANTED], 20))
OPENED = tuple(one for one in PLANTED if one.name in LOT)
SEALED = tuple(one for one in PLANTED if one.name not in LOT)
