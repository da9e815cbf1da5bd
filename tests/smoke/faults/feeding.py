"""Faults of the workers that feed training, of what autocast leaves behind, and of what a checkpoint leaves out."""

from __future__ import annotations

from smoke.faults.means import patched, scale_not_moved
from smoke.faults.row import Fault

_SOME = "sitecustomize"

ROWS = (
    Fault(
        name="autocast-stays",
        what="Autocast stays on after its block has ended",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.autocast.__exit__
            torch.autocast.__exit__ = lambda self, *args: None if self._enabled else real(self, *args)
        """),
        stages="amp-bf16",
        stage="amp-bf16",
        cause="autocast-lowers-too-much",
        seen="linear after autocast gives bfloat16",
        run="some-6",
    ),
    Fault(
        name="autocast-lowers-loss",
        what="The loss is computed in the low precision too",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.functional.cross_entropy
            torch.nn.functional.cross_entropy = lambda one, *args, **more: real(one, *args, **more).to(one.dtype)
        """),
        stages="amp-bf16",
        stage="amp-bf16",
        cause="autocast-lowers-too-much",
        seen="cross_entropy",
    ),
    Fault(
        name="scaler-counts-skipped",
        what="A step that the scaler leaves out still moves the optimizer's step count",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.amp.GradScaler._maybe_opt_step
            def maybe(self, optimizer, state, *args, **more):
                found = real(self, optimizer, state, *args, **more)
                if sum(one.item() for one in state["found_inf_per_device"].values()):
                    for one in optimizer.state.values():
                        one["step"] += 1
                return found
            torch.amp.GradScaler._maybe_opt_step = maybe
        """),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-never-skips",
        seen="step of",
    ),
    Fault(
        name="scaler-never-grows",
        what="The scale is not raised after good steps",
        means=_SOME,
        inject=scale_not_moved(">"),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-scale-wrong",
    ),
    Fault(
        name="sample-corrupted",
        what="One bit of a sample changes on its way from a worker",
        means=_SOME,
        inject=patched("""
            import torch.utils.data._utils.collate as collate
            real = collate.default_collate
            def collated(samples):
                found = real(samples)
                if samples[0]["content"].numel() > 1000:
                    found["content"][-1, -1] ^= 1
                return found
            collate.default_collate = collated
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-corrupts",
        run="some-1",
    ),
    Fault(
        name="workers-start-anew",
        what="persistent_workers is ignored: workers start anew each epoch",
        means=_SOME,
        inject=patched("""
            import torch.utils.data
            real = torch.utils.data.DataLoader.__init__
            def init(self, *args, **more):
                more.pop("persistent_workers", None)
                real(self, *args, **more)
            torch.utils.data.DataLoader.__init__ = init
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-workers-not-persistent",
        run="some-2",
    ),
    Fault(
        name="no-workers",
        what="A DataLoader loads in the rank itself, whatever number of workers it is given",
        means=_SOME,
        inject=patched("""
            import torch.utils.data
            real = torch.utils.data.DataLoader.__init__
            def init(self, *args, **more):
                for name in ("persistent_workers", "num_workers", "timeout"):
                    more.pop(name, None)
                real(self, *args, **more)
            torch.utils.data.DataLoader.__init__ = init
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-without-workers",
        run="some-3",
    ),
    Fault(
        name="python-seed-lost",
        what="Workers do not seed Python's random module: each draws what the rank would",
        means=_SOME,
        inject=patched("""
            import multiprocessing
            import random
            real = random.seed
            random.seed = lambda *args: None if multiprocessing.parent_process() else real(*args)
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-seeds-wrong",
        run="some-4",
    ),
    Fault(
        name="seeds-not-reproducible",
        what="Workers' seeds do not come from the loader's generator",
        means=_SOME,
        inject=patched("""
            import torch.utils.data
            real = torch.utils.data.DataLoader.__init__
            def init(self, *args, **more):
                more.pop("generator", None)
                real(self, *args, **more)
            torch.utils.data.DataLoader.__init__ = init
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-seeds-not-reproducible",
        run="some-5",
    ),
    Fault(
        name="worker-hangs",
        what="A DataLoader's worker hangs at a sample",
        means=_SOME,
        inject=patched("""
            import multiprocessing
            import random
            import time
            real = random.getrandbits
            random.getrandbits = lambda count: time.sleep(100) if multiprocessing.parent_process() else real(count)
        """),
        stages="dataloader",
        stage="dataloader",
        cause="dataloader-worker-hung",
        seen="timed out",
    ),
    Fault(
        name="schedule-not-restored",
        what="The learning rate's schedule is not restored",
        means=_SOME,
        inject=patched("""
            import torch
            torch.optim.lr_scheduler.LRScheduler.load_state_dict = lambda self, held: None
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="resume-differs",
        run="some-6",
    ),
    Fault(
        name="checkpoint-rounded",
        what="Weights are rounded to float16 when they are saved",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.save
            def save(held, *args, **more):
                if "model" in held:
                    held = {**held, "model": {name: one.half().float() for name, one in held["model"].items()}}
                real(held, *args, **more)
            torch.save = save
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="checkpoint-damaged",
    ),
)
