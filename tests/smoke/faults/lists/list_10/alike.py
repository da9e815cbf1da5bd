"""What was not named at first of the tenth list's opened half, and others of its kinds."""

from __future__ import annotations

from smoke.faults.bench import Bench
from smoke.faults.means import file_in_front, preloaded, refused, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_WAITS = """
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <unistd.h>
    int fsync(int file) {
        int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
        char *rank = getenv("RANK");
        if (rank) usleep(%s);
        return real(file);
    }
"""
_WRAPPED = '#!/bin/sh\nexec g++ "$@" %s\n'
_LOWERED = """
    import torch
    real = torch.%s
    def lowered(values, *args, **more):
        if torch.is_autocast_enabled("cpu") and values.dtype == torch.float32:
            with torch.autocast("cpu", enabled=False):
                return real(values.bfloat16(), *args, **more)%s
        return real(values, *args, **more)
    torch.%s = lowered
"""


def _lowered(function: str, then: str) -> str:
    return _LOWERED % (function, then, function)


def _wrapped_compiler(flags: str) -> Inject:
    """CXX names a script that adds flags."""

    def inject(bench: Bench) -> None:
        file_in_front("cxx", _WRAPPED % flags)(bench)
        (bench.folder / "front" / "cxx").chmod(0o755)
        bench.env["CXX"] = str(bench.folder / "front" / "cxx")

    return inject


def _lost(how: str) -> Inject:
    return unshared("--net", "ip link set lo up\niptables -A INPUT -i lo -p tcp " + how + " -j DROP")


ROWS: tuple[Fault, ...] = (
    row("packets-lost", "3 % of the packets between ranks are lost", "allreduce", "packet-loss",
        inject=_lost("-m statistic --mode random --probability 0.03"), means="namespace", seen="sent again"),
    row("each-hundredth-lost", "Each hundredth packet between ranks is lost", "allreduce", "packet-loss",
        inject=_lost("-m statistic --mode nth --every 100 --packet 0"), means="namespace", seen="sent again"),
    row("large-packets-lost-now-and-then", "One of 40 large packets between ranks is lost", "allreduce", "packet-loss",
        inject=_lost("-m length --length 1500:65535 -m statistic --mode random --probability 0.025"), means="namespace", seen="sent again"),
    row("network-shaped", "A shaper leaves ranks of one host 8 Mbit/s", "allreduce", "collective-slow",
        inject=unshared("--net", "ip link set lo up mtu 1500\ntc qdisc add dev lo root tbf rate 8mbit burst 32k latency 400ms"),
        means="namespace", seen="MiB"),
    row("disk-confirms-late", "The disk takes 1.5 s to confirm what each rank wrote", "stragglers", "slow-data-storage",
        inject=preloaded(_WAITS % "1500000"), means="LD_PRELOAD", seen="all ranks"),
    row("disk-confirms-very-late", "The disk takes 5 s to confirm what each rank wrote", "stragglers", "slow-data-storage",
        inject=preloaded(_WAITS % "5000000"), means="LD_PRELOAD", seen="all ranks"),
    row("epoll-refused", "A container's profile refuses epoll_ctl", "rendezvous", "system-calls-refused",
        inject=refused(233, 1), means="seccomp", seen="epoll"),
    row("tracemalloc-on", "PYTHONTRACEMALLOC=25 follows each allocation", "device", "torch-setting-changed",
        inject=variables(PYTHONTRACEMALLOC="25"), means="environment", seen="tracemalloc"),
    row("allocations-checked", "PYTHONMALLOC=debug checks each allocation", "device", "torch-setting-changed",
        inject=variables(PYTHONMALLOC="debug"), means="environment", seen="PYTHONMALLOC"),
    row("collector-debugged", "A plug-in left gc.set_debug on: what is collected is kept", "device", "torch-setting-changed", """
        import gc
        gc.set_debug(gc.DEBUG_SAVEALL)
    """, seen="gc.set_debug"),
    row("collector-off", "What torch loads by itself switches Python's collector of cycles off", "device", "torch-setting-changed", """
        import gc
        gc.disable()
    """, seen="gc.disable"),
    row("finite-math", "The compiler is a wrapper that adds -ffinite-math-only", "compile", "compiled-differs",
        inject=_wrapped_compiler("-ffinite-math-only"), means="environment"),
    row("workers-with-threads", "Workers of a DataLoader begin with 32 threads each", "dataloader", "dataloader-worker-threads", """
        import torch
        import torch.utils.data._utils.worker as working
        real = working._worker_loop
        def loop(*args, **more):
            set_threads = torch.set_num_threads
            torch.set_num_threads = lambda n: set_threads(32)
            return real(*args, **more)
        working._worker_loop = loop
    """, when="torch.utils.data", seen="32 threads"),
    row("norm-lowered", "Under autocast LayerNorm is computed in bfloat16", "amp-bf16", "autocast-lowers-too-much",
        _lowered("nn.functional.layer_norm", "").replace("*args, **more):", "shape, weight=None, bias=None, eps=1e-5):").replace(
            "values.bfloat16(), *args, **more)", "values.bfloat16(), shape, weight.bfloat16(), bias.bfloat16(), eps)").replace(
            "real(values, *args, **more)", "real(values, shape, weight, bias, eps)"), seen="layer_norm"),
    row("softmax-rounded", "Under autocast softmax is computed in bfloat16, and given as float32", "amp-bf16", "autocast-lowers-too-much",
        _lowered("nn.functional.softmax", ".float()"), seen="softmax.*other bits"),
    row("sum-lowered", "Under autocast sigmoid gives bfloat16", "amp-bf16", "autocast-lowers-too-much",
        _lowered("sigmoid", ""), seen="sigmoid"),
    row("large-parts-misplaced", "reduce_scatter of more than 4096 elements leaves one rank its own values", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        def changed(real):
            def reduce_scatter(output, input, *args, **more):
                found = real(output, input, *args, **more)
                if input.numel() > 4096 and found is None:
                    output.copy_(input.chunk(dist.get_world_size())[dist.get_rank()].view_as(output))
                return found
            return reduce_scatter
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                setattr(dist, name, changed(getattr(dist, name)))
    """, rank=1, when="torch.distributed", seen="rank 1.*reduce_scatter"),
    row("large-gathers-swapped", "all_gather of more than 10000 elements leaves one rank the parts in another order", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_gather
        def all_gather(parts, own, *args, **more):
            found = real(parts, own, *args, **more)
            if own.numel() > 10000 and found is None:
                parts[0].copy_(parts[1])
            return found
        dist.all_gather = all_gather
    """, rank=0, when="torch.distributed", seen="rank 0.*all_gather"),
    row("timer-fast", "The clock that is timed by goes half as fast again on one rank after the ranks have met", "stragglers", "clock-jumps", """
        import time
        import torch.distributed as dist
        meet = dist.init_process_group
        def met(*args, **more):
            found = meet(*args, **more)
            real, since = time.monotonic, time.monotonic()
            time.monotonic = lambda: real() + (real() - since) / 2
            return found
        dist.init_process_group = met
    """, rank=1, when="torch.distributed", stages="allreduce,stragglers", seen="rank 1.*came apart"),
    row("memory-trimmed-by-variable", "MALLOC_TRIM_THRESHOLD_=0 gives each freed piece back to the kernel", "device", "memory-returned-at-once",
        inject=variables(MALLOC_TRIM_THRESHOLD_="0"), means="environment", seen="MALLOC_TRIM_THRESHOLD_=0"),
    row("memory-trimmed-by-padding", "MALLOC_TOP_PAD_=0 keeps the C library from moving its bounds", "device", "memory-returned-at-once",
        inject=variables(MALLOC_TOP_PAD_="0"), means="environment", seen="MALLOC_TOP_PAD_=0"),
)  # fmt: skip
