"""Faults of the interpreter, of what torch is installed with, and of what is wrong from the second time on."""

from __future__ import annotations

from pathlib import Path

from smoke.faults.bench import Bench, NotHere
from smoke.faults.means import file_in_front, patched, unshared, variables
from smoke.faults.row import Fault

_SOME = "sitecustomize"
_PRIVATE = "-m --propagation private"


def _library_cut_off(bench: Bench) -> None:
    """As an unpacking on a full disk leaves it: mapped, its end is a bus error."""
    for library in Path(bench.python).parent.parent.glob("lib/python3*/site-packages/torch/lib/libtorch_cpu.so"):
        short = "{folder}/short.so"
        unshared(_PRIVATE, f"head -c 100000000 {library} >{short}; mount --bind {short} {library}")(bench)
        return
    raise NotHere("torch is not installed beside its interpreter")


ROWS = (
    Fault(
        name="requirement-too-old",
        what="A package that torch requires is too old (typing_extensions)",
        means="environment",
        inject=file_in_front("typing_extensions.py", "from typing import *\n"),
        stages="device",
        stage="import",
        cause="torch-requirements-missing",
    ),
    Fault(
        name="random-hidden",
        what="A random.py on PYTHONPATH hides the standard library's",
        means="environment",
        inject=file_in_front("random.py", "def dice(): return 4\n"),
        stages="device",
        stage="import",
        cause="stdlib-hidden",
        seen="front/random.py hides",
    ),
    Fault(
        name="python-without-ctypes",
        what="Python was built where libffi was missing: it has no _ctypes",
        means="environment",
        inject=file_in_front("_ctypes.py", "raise ModuleNotFoundError(\"No module named '_ctypes'\", name='_ctypes')\n"),
        stages="device",
        stage="import",
        cause="python-incomplete",
    ),
    Fault(
        name="hash-seed",
        what="PYTHONHASHSEED is no number: Python does not start",
        means="environment",
        inject=variables(PYTHONHASHSEED="bad"),
        stages="device",
        stage="import",
        cause="python-does-not-start",
        seen="PYTHONHASHSEED",
    ),
    Fault(
        name="library-cut-off",
        what="torch's library is cut off in the middle",
        means="namespace",
        inject=_library_cut_off,
        stages="device",
        stage="import",
        cause="torch-install-damaged",
        seen="SIGBUS",
    ),
    Fault(
        name="own-name-nowhere",
        what="The host's own name resolves to nothing",
        means="namespace",
        inject=unshared(
            f"{_PRIVATE} -u",
            "echo 127.0.0.1 localhost >{folder}/hosts; mount --bind {folder}/hosts /etc/hosts; hostname trainer-nowhere.invalid",
        ),
        stages="device,ddp",
        stage="rendezvous",
        cause="hostname-unresolvable",
    ),
    Fault(
        name="own-address-blocked",
        what="A firewall drops what calls the address to which the host's own name leads",
        means="namespace",
        inject=unshared(
            f"{_PRIVATE} -u -n",
            "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; ip link set d0 up; ip addr add 10.9.9.1/24 dev d0; "
            "printf '127.0.0.1 localhost\\n10.9.9.1 trainbox\\n' >{folder}/hosts; mount --bind {folder}/hosts /etc/hosts; "
            "hostname trainbox; iptables -A INPUT -d 10.9.9.1 -p tcp -j DROP",
        ),
        stages="device,ddp",
        stage="rendezvous",
        cause="firewall-blocks-nccl",
        seen="10.9.9.1",
    ),
    Fault(
        name="checkpoint-cut-off",
        what="torch.save writes half of a checkpoint and says nothing",
        means=_SOME,
        inject=patched("""
            import os
            import torch
            real = torch.save
            def save(what, path, *args, **more):
                real(what, path, *args, **more)
                os.truncate(path, os.path.getsize(path) // 2)
            torch.save = save
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="checkpoint-damaged",
        run="some-1",
    ),
    Fault(
        name="shuffles-nothing",
        what="A DataLoader with shuffle=True keeps the order of the data",
        means=_SOME,
        inject=patched("""
            import torch.utils.data as data
            data.RandomSampler.__iter__ = lambda self: iter(range(len(self.data_source)))
        """),
        stage="dataloader",
        cause="dataloader-not-shuffled",
        run="all-2",
    ),
    Fault(
        name="numpy-seeds-equal",
        what="Workers do not seed NumPy: each draws what the others do",
        means=_SOME,
        inject=patched("""
            import torch.utils.data._utils.worker as worker
            worker.HAS_NUMPY = False
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-seeds-equal",
        seen="NumPy",
    ),
    Fault(
        name="sums-of-few-bits",
        what="bfloat16 products add up in bfloat16",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.Tensor.__matmul__
            def product(one, other):
                if one.dtype != torch.bfloat16 or one.shape[1] < 4096:
                    return real(one, other)
                found = torch.zeros(one.shape[0], other.shape[1], dtype=one.dtype)
                for first in range(0, one.shape[1], 16):
                    found = found + real(one[:, first : first + 16], other[first : first + 16])
                return found
            torch.Tensor.__matmul__ = product
        """),
        stages="gemm",
        stage="gemm",
        cause="gemm-wrong",
        seen="too few bits",
    ),
    Fault(
        name="autocast-no-decorator",
        what="autocast does nothing where it decorates a function",
        means=_SOME,
        inject=patched("""
            import torch
            torch.autocast.__call__ = lambda self, function: function
        """),
        stages="amp-bf16",
        stage="amp-bf16",
        cause="autocast-off",
        seen="decorator",
    ),
    Fault(
        name="scaler-not-restored",
        what="The scaler's state is not restored from a checkpoint",
        means=_SOME,
        inject=patched("""
            import torch
            torch.amp.GradScaler.load_state_dict = lambda self, state: None
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="resume-differs",
        seen="scaler",
    ),
    Fault(
        name="barrier-lets-through",
        what="A barrier lets ranks through before all have come",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            dist.barrier = lambda *args, **more: None
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
        seen="barrier",
    ),
    Fault(
        name="second-pass-alone",
        what="DDP synchronises in the first backward pass only",
        means=_SOME,
        inject=patched("""
            import torch
            import torch.nn.parallel as parallel
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            real = parallel.DistributedDataParallel.__init__
            def init(self, *args, **more):
                passes = []
                def first_only(state, bucket):
                    if passes:
                        future = torch.futures.Future()
                        future.set_result(bucket.buffer())
                        return future
                    passes.extend([1] * bucket.is_last())
                    return default_hooks.allreduce_hook(None, bucket)
                real(self, *args, **more)
                self.register_comm_hook(None, first_only)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stages="ddp",
        stage="ddp",
        cause="ddp-gradients-not-synchronised",
        seen="pass 1",
    ),
    Fault(
        name="rank-ends-content",
        what="A rank ends in the middle of a stage with status 0",
        means=_SOME,
        inject=patched(
            """
            import os
            import torch.nn.parallel
            torch.nn.parallel.DistributedDataParallel.forward = lambda *args, **more: os._exit(0)
        """,
            rank=1,
        ),
        stages="ddp",
        stage="ddp",
        cause="rank-crashed",
        seen="rank 1 ended with status 0",
    ),
    Fault(
        name="compiled-stale",
        what="A compiled model gives its first answer for ever",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.compile
            class Stale(torch.nn.Module):
                def __init__(self, compiled):
                    super().__init__()
                    self.compiled, self.first = compiled, None
                def forward(self, inputs):
                    found = self.compiled(inputs)
                    self.first = found.detach() if self.first is None else self.first
                    return found - found.detach() + self.first
            torch.compile = lambda model, **more: Stale(real(model, **more))
        """),
        stages="compile",
        stage="compile",
        cause="compiled-differs",
    ),
)
