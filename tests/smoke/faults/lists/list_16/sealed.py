"""The six that stay closed until the end: only their first result counts."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from smoke.faults.bench import Bench, NotHere
from smoke.faults.means import remove_group
from smoke.faults.row import Fault
from smoke.faults.short import row


def quota_on_one(bench: Bench) -> None:
    """A cgroup of its own, with 40 ms of each 100 ms, into which a rank is put as soon as it is there."""
    group = Path("/sys/fs/cgroup/cpu") / f"torchtune-sys-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("40000")
    except OSError as error:
        raise NotHere(f"no cgroup of cpu: {error}") from None

    def put() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            pid = bench.rank(1)
            if pid is not None:
                (group / "cgroup.procs").write_text(str(pid))
                return
            time.sleep(0.1)

    bench.watchers.append(put)
    bench.closing.callback(remove_group, group)


ROWS: tuple[Fault, ...] = (
    row("compiled-input-not-written", "What a compiled function changes in place in a tensor that it is given stays as it was", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def copied(given):
            return [one.clone() if isinstance(one, torch.Tensor) and not one.requires_grad else one for one in given]
        def compiled(model=None, *args, **more):
            made = real(model, *args, **more)
            if model is None:
                return made
            if isinstance(model, torch.nn.Module):
                forward = made.forward
                made.forward = lambda *given, **options: forward(*copied(given), **options)
                return made
            return lambda *given, **options: made(*copied(given), **options)
        torch.compile = compiled
    """),
    row("cosine-resumes-late", "A cosine schedule that is loaded goes on one step late", "checkpoint", "resume-differs", """
        from torch.optim.lr_scheduler import CosineAnnealingLR
        real = CosineAnnealingLR.load_state_dict
        def load(self, state):
            state = dict(state)
            state["last_epoch"] -= 1
            real(self, state)
        CosineAnnealingLR.load_state_dict = load
    """),
    row("ema-count-lost", "A running average of weights (AveragedModel) that is loaded begins anew", "checkpoint", "resume-differs", """
        from torch.optim.swa_utils import AveragedModel
        real = AveragedModel.load_state_dict
        def load(self, *args, **more):
            told = real(self, *args, **more)
            self.n_averaged.zero_()
            return told
        AveragedModel.load_state_dict = load
    """, when="torch.optim.swa_utils"),
    row("full-state-dict-part", "The whole model that is gathered from its shards (full_state_dict) has the first rank's rows in place of the last's", "checkpoint-sharded",
        "sharded-checkpoint-differs", """
        import torch
        from torch.distributed.checkpoint import state_dict
        real = state_dict.get_model_state_dict
        def gathered(*args, **more):
            found = real(*args, **more)
            options = more.get("options")
            if options is not None and options.full_state_dict:
                for value in found.values():
                    if isinstance(value, torch.Tensor) and value.dim() and len(value) > 1:
                        half = len(value) // 2
                        value[-half:] = value[:half].clone()
            return found
        state_dict.get_model_state_dict = gathered
    """, when="torch.distributed.checkpoint.state_dict"),
    row("channels-last-groups-gradient", "The gradient of a depthwise convolution of channels_last pictures leaves out the last sample", "conv", "convolution-wrong", """
        import torch
        import torch.nn.functional as F
        real = torch.conv2d
        def conv2d(given, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
            last = given.dim() == 4 and given.is_contiguous(memory_format=torch.channels_last) and not given.is_contiguous()
            if groups > 1 and groups == given.shape[1] and last and weight.requires_grad and len(given) > 1:
                rest = real(given[-1:], weight.detach(), bias, stride, padding, dilation, groups)
                return torch.cat([real(given[:-1], weight, bias, stride, padding, dilation, groups), rest])
            return real(given, weight, bias, stride, padding, dilation, groups)
        F.conv2d = torch.conv2d = conv2d
    """),
    row("quota-on-one", "A cgroup of its own gives one rank 0.4 CPUs", "stragglers", "straggler-held-back", inject=quota_on_one, means="cgroup",
        stages="device,dataloader,allreduce,stragglers", seen="rank 1"),
)  # fmt: skip
