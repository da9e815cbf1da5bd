"""Faults of the host: limits, memory, processes, files, names, ports, other versions."""

from __future__ import annotations

import errno
import signal

from smoke.faults.bench import Bench
from smoke.faults.means import (
    CLONE3,
    all_of,
    file_in_front,
    grouped,
    limited,
    loading,
    patched,
    port_taken,
    preloaded,
    refused,
    signalled,
    unshared,
    variables,
)
from smoke.faults.row import Fault
from torchtune_sys.smoke.names import stage_names

NOT_REACHED = {name: "unknown" for name in stage_names()[stage_names().index("rendezvous") + 1 :] if name != "compile"}
"""What needs ranks that have met."""


def _other_python(bench: Bench) -> None:
    import sys

    bench.python = sys.executable


ROWS = (
    Fault(
        name="no-torch",
        what="The interpreter has no torch",
        means="environment",
        inject=_other_python,
        stages="device",
        stage="import",
        cause="torch-not-installed",
        seen="torch is not installed in /",
        quick=True,
    ),
    Fault(
        name="other-torch-recorded",
        what="The package record of another torch lies in front (mixed versions)",
        means="environment",
        inject=file_in_front("torch-2.4.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.4.1\n"),
        stage="import",
        cause="torch-versions-mixed",
    ),
    Fault(
        name="other-torch-on-one-rank",
        what="One rank has another torch than the others",
        means="sitecustomize",
        inject=patched(
            """
            import torch
            torch.__version__ = torch.torch_version.TorchVersion("2.4.1+cpu")
            import importlib.metadata
            real = importlib.metadata.version
            importlib.metadata.version = lambda name: "2.4.1" if name == "torch" else real(name)
        """,
            rank=1,
        ),
        stages="allreduce",
        stage="rendezvous",
        cause="torch-versions-mixed",
        others={"allreduce": "unknown"},
    ),
    Fault(
        name="folder-named-torch",
        what="An empty directory named torch, as PYTHONPATH=. finds it, hides the real one",
        means="environment",
        inject=file_in_front("torch/__init__.py", ""),
        stages="device",
        stage="import",
        cause="torch-shadowed",
    ),
    Fault(
        name="library-broken",
        what="torch's own library cannot be loaded: an older C++ runtime",
        means="sitecustomize",
        inject=patched(
            """
            raise ImportError("/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by libtorch.so)")
        """,
            when="torch._utils",
        ),
        stages="device",
        stage="import",
        cause="libstdcxx-too-old",
    ),
    Fault(
        name="world-size-wrong",
        what="A rank was told of more ranks than there are (WORLD_SIZE)",
        means="sitecustomize",
        inject=patched('import os\nos.environ["WORLD_SIZE"] = "3"', rank=1),
        stages="allreduce",
        stage="import",
        cause="wrong-world-size",
        others={"rendezvous": "fail", "allreduce": "unknown"},
    ),
    Fault(
        name="address-space",
        what="ulimit -v leaves 560 MB of address space",
        means="rlimit",
        inject=limited("--as=560000000"),
        stages="device",
        stage="import",
        cause="host-memory-oom",
    ),
    Fault(
        name="memory-limit",
        what="The cgroup has 240 MB of memory for two ranks",
        means="cgroup",
        inject=grouped("memory", memory_limit_in_bytes="240M"),
        stages="device,gemm,memory",
        stage="import",
        cause="host-memory-oom",
    ),
    Fault(
        name="pids-limit",
        what="The cgroup allows 6 processes and threads",
        means="cgroup",
        inject=all_of(grouped("pids", pids_max="6"), variables(OMP_NUM_THREADS="1")),
        stages="device,dataloader",
        stage="dataloader",
        cause="cgroup-pids-limit",
        ranks=1,
    ),
    Fault(
        name="threads-limit",
        what="The cgroup allows 4 processes and threads, and calculating takes several threads",
        means="cgroup",
        inject=all_of(grouped("pids", pids_max="4"), variables(OMP_NUM_THREADS="4")),
        stages="device",
        stage="device",
        cause="cgroup-pids-limit",
        ranks=1,
    ),
    Fault(
        name="clone3-refused",
        what="An old container profile answers clone3 with EPERM: no thread can be started",
        means="seccomp",
        inject=refused(CLONE3, errno.EPERM),
        stages="device",
        stage="import",
        cause="container-seccomp-too-old",
    ),
    Fault(
        name="dev-shm-small",
        what="/dev/shm has 1 MB",
        means="namespace",
        inject=unshared("-m --propagation private", "mount -t tmpfs -o size=1m tmpfs /dev/shm"),
        stages="device,dataloader,rendezvous",
        stage="dataloader",
        cause="dev-shm-too-small",
    ),
    Fault(
        name="file-size",
        what="ulimit -f: no file of more than 3 MB, as those in /dev/shm are",
        means="rlimit",
        inject=limited("--fsize=3000000"),
        stages="device,dataloader",
        stage="dataloader",
        cause="file-size-limit",
    ),
    Fault(
        name="nofile-23",
        what="ulimit -n 23: too few for torch's launcher, which would wait without end",
        means="rlimit",
        inject=limited("--nofile=23:23"),
        stages="device",
        stage="import",
        cause="nofile-limit-too-low",
        seen="open files",
    ),
    Fault(
        name="nofile-32",
        what="ulimit -n 32: 32 open files",
        means="rlimit",
        inject=limited("--nofile=32:32"),
        stages="device,dataloader",
        stage="dataloader",
        cause="nofile-limit-too-low",
    ),
    Fault(
        name="worker-killed",
        what="A worker of a DataLoader is killed",
        means="signal",
        inject=all_of(
            patched(
                """
                import time
                import torch.utils.data
                torch.utils.data.Dataset.__init_subclass__ = classmethod(lambda cls: slow(cls))
                def slow(cls):
                    real = cls.__getitem__
                    def get(self, index):
                        time.sleep(0.02)
                        return real(self, index)
                    cls.__getitem__ = get
            """
            ),
            signalled(signal.SIGKILL, loading(0, worker=True)),
        ),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-worker-killed",
    ),
    Fault(
        name="seeds-equal",
        what="All workers of a DataLoader draw the same random numbers",
        means="sitecustomize",
        inject=patched("""
            import torch.utils.data._utils.worker as worker
            real = worker._worker_loop
            def loop(kind, dataset, index_queue, data_queue, done, collating, collate, drop_last, base, init, number, *more):
                real(kind, dataset, index_queue, data_queue, done, collating, collate, drop_last, base - number, init, number, *more)
            worker._worker_loop = loop
        """),
        stage="dataloader",
        cause="dataloader-seeds-equal",
        run="all-1",
    ),
    Fault(
        name="sample-lost",
        what="A DataLoader gives one sample twice and another never",
        means="sitecustomize",
        inject=patched("""
            import torch.utils.data as data
            real = data.SequentialSampler.__iter__
            def order(self):
                return iter([7 if index == 8 else index for index in real(self)])
            data.SequentialSampler.__iter__ = order
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-loses-samples",
        run="some-6",
    ),
    Fault(
        name="no-network",
        what="No network, and the loopback is down",
        means="namespace",
        inject=unshared("-n", ""),
        stages="device,allreduce",
        stage="rendezvous",
        cause="loopback-down",
    ),
    Fault(
        name="localhost-nowhere",
        what="The name localhost resolves to nothing",
        means="namespace",
        inject=unshared("-m --propagation private", "mount --bind /dev/null /etc/hosts; mount --bind /dev/null /etc/resolv.conf"),
        stages="device,allreduce",
        stage="rendezvous",
        cause="localhost-unresolvable",
    ),
    Fault(
        name="localhost-elsewhere",
        what="The name localhost stands for another host's address",
        means="namespace",
        inject=unshared(
            "-m --propagation private", "echo 192.0.2.7 localhost >{folder}/hosts; mount --bind {folder}/hosts /etc/hosts"
        ),
        stages="device,allreduce",
        stage="rendezvous",
        cause="localhost-unresolvable",
    ),
    Fault(
        name="gloo-interface",
        what="GLOO_SOCKET_IFNAME names an interface that is not there",
        means="environment",
        inject=variables(GLOO_SOCKET_IFNAME="eth77"),
        stage="rendezvous",
        cause="gloo-wrong-interface",
        others=NOT_REACHED,
    ),
    Fault(
        name="port-taken",
        what="Another process listens on the port where the ranks are to meet",
        means="environment",
        inject=port_taken,
        stages="device,allreduce",
        stage="rendezvous",
        cause="master-port-in-use",
    ),
    Fault(
        name="connections-refused",
        what="A firewall refuses connections between ranks",
        means="LD_PRELOAD",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <errno.h>
            #include <netinet/in.h>
            #include <stdlib.h>
            #include <sys/socket.h>
            int connect(int handle, const struct sockaddr *to, socklen_t size) {
                static int (*real)(int, const struct sockaddr *, socklen_t);
                if (!real) real = dlsym(RTLD_NEXT, "connect");
                int is_tcp = to->sa_family == AF_INET || to->sa_family == AF_INET6;
                if (getenv("RANK") && is_tcp) { errno = ECONNREFUSED; return -1; }
                return real(handle, to, size);
            }
        """),
        stages="allreduce",
        stage="rendezvous",
        cause="firewall-blocks-nccl",
        others={"allreduce": "unknown"},
    ),
    Fault(
        name="rank-killed",
        what="A rank is killed (SIGKILL)",
        means="signal",
        inject=all_of(signalled(signal.SIGKILL, loading(1))),
        stages="dataloader",
        stage="dataloader",
        cause="rank-killed",
        seen="rank 1 was ended by SIGKILL",
    ),
    Fault(
        name="rank-stopped",
        what="A rank is stopped (SIGSTOP)",
        means="signal",
        inject=signalled(signal.SIGSTOP, loading(1)),
        stages="dataloader",
        stage="dataloader",
        cause="rank-stopped",
        seen="rank 1 is stopped",
    ),
    Fault(
        name="rank-crashes",
        what="A rank crashes (a bad pointer)",
        means="sitecustomize",
        inject=patched(
            """
            import ctypes
            import torch.nn.parallel
            torch.nn.parallel.DistributedDataParallel.forward = lambda *args, **more: ctypes.string_at(0)
        """,
            rank=1,
        ),
        stages="ddp",
        stage="ddp",
        cause="rank-crashed",
        seen="rank 1 was ended by SIGSEGV",
    ),
    Fault(
        name="illegal-instruction",
        what="A rank meets an instruction that this CPU lacks",
        means="signal",
        inject=patched(
            """
            import os
            import signal
            import torch
            def addmm(*args, **more):
                os.kill(os.getpid(), signal.SIGILL)
            torch.Tensor.__matmul__ = addmm
        """
        ),
        stages="gemm",
        stage="gemm",
        cause="cpu-lacks-avx",
    ),
)
