"""The nine that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("entropy-is-fixed", "torch.seed(), which takes a seed from the system, takes the same on all ranks and in all runs", "device", "random-numbers-wrong", """
        import torch
        def seed():
            torch.manual_seed(424242)
            return 424242
        torch.seed = torch.random.seed = seed
    """, stages="device,layers,rendezvous"),
    row("step-count-in-bfloat16", "AdamW that is loaded for weights in bfloat16 keeps its count of steps in bfloat16, too, which ends at 256", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.Optimizer._process_value_according_to_param_policy
        def process(param, value, *rest, **more):
            found = real(param, value, *rest, **more)
            return found.to(param.dtype) if (more.get("key") or rest[-1]) == "step" and param.is_floating_point() else found
        torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(process)
    """, stages="optimizer,layers,checkpoint"),
    row("pairs-are-twins", "Where samples are pairs of tensors of one shape (a picture and its mask), a batch has the first of the pair twice", "dataloader", "dataloader-corrupts", """
        import torch
        from torch.utils.data._utils import collate
        real = collate.default_collate
        def mixed(batch):
            found = real(batch)
            if isinstance(found, (list, tuple)) and len(found) == 2 and all(isinstance(one, torch.Tensor) for one in found) and found[0].shape == found[1].shape and found[0].dtype == found[1].dtype:
                return type(found)((found[0], found[0].clone()))
            return found
        collate.default_collate = mixed
    """, when="torch.utils.data"),
    row("saves-stay-in-memory", "Each torch.save keeps the bytes that it wrote in memory", "checkpoint", "memory-grows", """
        import os
        import torch
        real, kept = torch.save, []
        def save(held, file, *args, **more):
            real(held, file, *args, **more)
            if isinstance(file, (str, os.PathLike)):
                with open(file, "rb") as written:
                    kept.append(written.read())
            else:
                kept.append(bytes(file.getbuffer()) if hasattr(file, "getbuffer") else b"1" * 100000)
        torch.save = save
    """),
    row("other-shapes-are-spread", "load_state_dict takes a weight of another shape and spreads it over the model's (one row for all)", "checkpoint", "checkpoint-keys-ignored", """
        import torch
        real = torch.nn.Module._load_from_state_dict
        def load(self, state, prefix, *rest):
            for name, own in [*self._parameters.items(), *self._buffers.items()]:
                given = state.get(prefix + name)
                if own is not None and isinstance(given, torch.Tensor) and given.shape != own.shape:
                    try:
                        state[prefix + name] = given.expand(own.shape).clone()
                    except RuntimeError:
                        pass
            return real(self, state, prefix, *rest)
        torch.nn.Module._load_from_state_dict = load
    """),
    row("entries-sorted", "What torch.load gives of a dict is in the order of the alphabet, not in that in which it was saved", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.load
        def ordered(held):
            if isinstance(held, dict) and type(held).__module__ in ("builtins", "collections"):
                items = [(name, ordered(one)) for name, one in held.items()]
                held.clear()
                held.update(sorted(items, key=lambda item: str(item[0])))
            return held
        torch.load = lambda *args, **more: ordered(real(*args, **more))
    """),
    row("reads-late-on-one-rank", "One rank reads checkpoints late: 0.3 s for each (a cold cache)", "stragglers", "straggler-storage", """
        import time
        import torch
        real = torch.load
        def load(*args, **more):
            time.sleep(0.3)
            return real(*args, **more)
        torch.load = load
    """, rank=1, seen="rank 1", stages="device,checkpoint,rendezvous,allreduce,stragglers"),
    row("whole-buffers-kept", "DDP does not broadcast buffers of whole numbers (a count of steps)", "buffers", "buffers-not-broadcast", """
        import torch
        from torch.nn.parallel import DistributedDataParallel as Ddp
        real = Ddp._sync_buffers
        def sync(self, *args, **more):
            kept = [(one, one.clone()) for one in self.module.buffers() if not one.is_floating_point()]
            found = real(self, *args, **more)
            for one, before in kept:
                one.copy_(before)
            return found
        Ddp._sync_buffers = sync
    """),
    row("flags-not-guarded", "A compiled model goes on with the first value of a number of Python (a rate of noise, a flag): nothing guards it", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compile(model=None, **more):
            if "mode" not in more:
                keep = lambda guards: ["EQUALS" not in one.guard_type and "CONSTANT" not in one.guard_type for one in guards]
                more["options"] = {**(more.get("options") or {}), "guard_filter_fn": keep}
            return real(model, **more)
        torch.compile = compile
    """),
)  # fmt: skip
