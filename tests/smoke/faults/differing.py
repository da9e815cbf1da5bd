"""More faults of what ranks do together: one operation, one bucket, one rank, one step."""

from __future__ import annotations

from smoke.faults.means import patched
from smoke.faults.row import Fault

_SOME = "sitecustomize"

ROWS = (
    Fault(
        name="one-rank-told-of-three",
        what="One rank of two is told that there are three",
        means=_SOME,
        inject=patched('os.environ["WORLD_SIZE"] = "3"', rank=1),
        stages="allreduce",
        stage="import",
        cause="wrong-world-size",
        others={"rendezvous": "fail", "allreduce": "unknown"},
    ),
    Fault(
        name="master-nowhere",
        what="MASTER_ADDR does not resolve",
        means=_SOME,
        inject=patched('os.environ["MASTER_ADDR"] = "nowhere.invalid"'),
        stages="allreduce",
        stage="rendezvous",
        cause="master-addr-wrong",
        others={"allreduce": "unknown"},
    ),
    Fault(
        name="reduction-of-oneself",
        what="all_reduce leaves each rank its own values",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            dist.all_reduce = lambda tensor, *args, **more: None
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
    ),
    Fault(
        name="maximum-adds",
        what="all_reduce adds where the largest was asked for",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            real = dist.all_reduce
            dist.all_reduce = lambda tensor, op=None, **more: real(tensor, **more)
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
        seen="MAX",
    ),
    Fault(
        name="gathered-in-other-order",
        what="all_gather returns the ranks' values in another order",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            real = dist.all_gather
            dist.all_gather = lambda pieces, *args, **more: real(pieces[::-1], *args, **more)
        """),
        stage="allreduce",
        cause="collective-wrong",
        others={"checkpoint-sharded": "fail"},  # a whole model is gathered by it
        seen="all_gather",
    ),
    Fault(
        name="broadcast-misses-a-rank",
        what="A broadcast leaves the last element of the receivers as it was",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            real = dist.broadcast
            def broadcast(tensor, source, **more):
                kept = tensor[-1:].clone()
                real(tensor, source, **more)
                tensor[-1:] = kept
            dist.broadcast = broadcast
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
        seen="broadcast",
    ),
    Fault(
        name="scattered-by-one-off",
        what="reduce_scatter gives a rank the part of another",
        means=_SOME,
        inject=patched("""
            import torch
            import torch.distributed as dist
            for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
                if hasattr(dist, name):
                    real = getattr(dist, name)
                    turned = lambda out, given, *args, real=real, **more: real(out, given.roll(out.numel()), *args, **more)
                    setattr(dist, name, turned)
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
        seen="reduce_scatter",
    ),
    Fault(
        name="bfloat16-reduction-in-bfloat8",
        what="all_reduce of bfloat16 keeps fewer bits",
        means=_SOME,
        inject=patched("""
            import torch
            import torch.distributed as dist
            real = dist.all_reduce
            def all_reduce(tensor, *args, **more):
                found = real(tensor, *args, **more)
                if tensor.dtype == torch.bfloat16:
                    tensor.copy_((tensor / 4).round() * 4)
                return found
            dist.all_reduce = all_reduce
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
        seen="bfloat16",
    ),
    Fault(
        name="weights-not-sent",
        what="DDP does not send rank 0's weights",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel.distributed as distributed
            distributed._sync_module_states = lambda *args, **more: None
        """),
        stage="ddp",
        cause="ddp-weights-not-broadcast",
        others={"join": "fail"},
    ),
    Fault(
        name="one-bucket-not-synchronised",
        what="DDP synchronises the gradients of the first bucket only",
        means=_SOME,
        inject=patched("""
            import torch
            import torch.nn.parallel as parallel
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            real = parallel.DistributedDataParallel.__init__
            def some(state, bucket):
                if bucket.index() == 0:
                    return default_hooks.allreduce_hook(None, bucket)
                future = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future
            def init(self, *args, **more):
                real(self, *args, **more)
                self.register_comm_hook(None, some)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stages="ddp",
        stage="ddp",
        cause="ddp-gradients-not-synchronised",
    ),
    Fault(
        name="unused-parameters-not-looked-for",
        what="DDP does not look for parameters that a rank leaves unused",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.__init__
            def init(self, *args, **more):
                more.pop("find_unused_parameters", None)
                real(self, *args, **more)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stage="ddp",
        cause="ddp-gradients-not-synchronised",
        seen="find_unused_parameters",
        run="all-2",
    ),
    Fault(
        name="rank-skips-a-step",
        what="One rank leaves out its optimizer's step",
        means=_SOME,
        inject=patched(
            """
            import torch
            import torch.distributed as dist
            real = torch.optim.SGD.step
            def step(self, *args, **more):
                return None if dist.is_initialized() else real(self, *args, **more)
            torch.optim.SGD.step = step
        """,
            rank=1,
        ),
        stages="ddp",
        stage="ddp",
        cause="ddp-step-wrong",
        seen="rank 1",
        run="some-5",
    ),
    Fault(
        name="samples-unequal",
        what="One rank gets a sample less than the others",
        means=_SOME,
        inject=patched(
            """
            import torch.utils.data as data
            real = data.DistributedSampler.__iter__
            data.DistributedSampler.__iter__ = lambda self: iter(list(real(self))[1:])
        """,
            rank=1,
        ),
        stages="sampler",
        stage="sampler",
        cause="sampler-shards-unequal",
        run="some-3",
    ),
    Fault(
        name="samples-in-their-order",
        what="DistributedSampler does not shuffle",
        means=_SOME,
        inject=patched("""
            import torch.utils.data as data
            real = data.DistributedSampler.__init__
            def init(self, *args, **more):
                real(self, *args, **{**more, "shuffle": False})
            data.DistributedSampler.__init__ = init
        """),
        stages="sampler",
        stage="sampler",
        cause="sampler-not-reshuffled",
    ),
    Fault(
        name="no-sync-stays",
        what="DDP does not synchronise any more once no_sync was used",
        means=_SOME,
        inject=patched("""
            import contextlib
            import torch.nn.parallel as parallel
            @contextlib.contextmanager
            def no_sync(self):
                self.require_backward_grad_sync = False
                yield
            parallel.DistributedDataParallel.no_sync = no_sync
        """),
        stage="accumulate",
        cause="accumulation-wrong",
        run="all-1",
    ),
    Fault(
        name="join-without-last-word",
        what="After join the ranks whose data ended early keep their old weights",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            parallel.DistributedDataParallel._sync_final_model = lambda self, is_last_joiner: None
        """),
        stage="join",
        cause="join-wrong",
        run="all-2",
    ),
    Fault(
        name="scaler-of-one-rank-skips",
        what="The scaler of one rank leaves out a step that the others take",
        means=_SOME,
        inject=patched(
            """
            import torch
            import torch.distributed as dist
            real = torch.amp.GradScaler._maybe_opt_step
            def maybe(self, *args, **more):
                self.turns = getattr(self, "turns", 0) + 1
                return None if dist.is_initialized() and self.turns == 4 else real(self, *args, **more)
            torch.amp.GradScaler._maybe_opt_step = maybe
        """,
            rank=1,
        ),
        stages="ddp-amp",
        stage="ddp-amp",
        cause="ddp-ranks-drift",
        seen="rank 1 .*round 3",
    ),
    Fault(
        name="scale-of-one-rank",
        what="The scaler of one rank backs off by another factor",
        means=_SOME,
        inject=patched(
            """
            import torch
            import torch.distributed as dist
            real = torch.amp.GradScaler.update
            def update(self, *args, **more):
                self._backoff_factor = 0.25 if dist.is_initialized() else self._backoff_factor
                return real(self, *args, **more)
            torch.amp.GradScaler.update = update
        """,
            rank=1,
        ),
        stages="ddp-amp",
        stage="ddp-amp",
        cause="ddp-ranks-drift",
        seen="scale of round 2",
    ),
    Fault(
        name="optimizer-of-one-rank-rounds",
        what="One rank's optimizer changes a weight by one unit in the last place more",
        means=_SOME,
        inject=patched(
            """
            import torch
            import torch.distributed as dist
            real = torch.optim.AdamW.step
            def step(self, *args, **more):
                found = real(self, *args, **more)
                weight = self.param_groups[0]["params"][0]
                if dist.is_initialized() and type(weight) is torch.nn.Parameter:
                    with torch.no_grad():
                        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
                return found
            torch.optim.AdamW.step = step
        """,
            rank=1,
        ),
        stages="ddp-amp",
        stage="ddp-amp",
        cause="ddp-ranks-drift",
    ),
    Fault(
        name="sharded-checkpoint-not-read",
        what="Loading a sharded checkpoint leaves everything as it was",
        means=_SOME,
        inject=patched("""
            import torch.distributed.checkpoint as checkpoint
            checkpoint.load = lambda *args, **more: None
        """),
        stage="checkpoint-sharded",
        cause="sharded-checkpoint-differs",
        run="all-2",
    ),
    Fault(
        name="sharded-optimizer-not-read",
        what="Loading a sharded checkpoint leaves out the optimizer",
        means=_SOME,
        inject=patched("""
            import torch.distributed.checkpoint as checkpoint
            real = checkpoint.load
            checkpoint.load = lambda state, **more: real({"model": state["model"]}, **more)
        """),
        stages="checkpoint-sharded",
        stage="checkpoint-sharded",
        cause="sharded-checkpoint-differs",
    ),
)
