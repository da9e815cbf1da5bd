"""The stages, in the order in which they run."""

from __future__ import annotations

from typing import Callable, NamedTuple, Tuple

from torchtune_sys.smoke.worker.context import DEFAULT, QUICK, THOROUGH, RankContext
from torchtune_sys.smoke.worker.stages.arithmetic import conv_is_right, copies_arrive, device_works, gemm_is_right, memory_keeps
from torchtune_sys.smoke.worker.stages.checkpoint import checkpoint_resumes
from torchtune_sys.smoke.worker.stages.collectives import exchanges_are_right
from torchtune_sys.smoke.worker.stages.compiled import compiled_agrees
from torchtune_sys.smoke.worker.stages.ddp import accumulation_is_the_large_batch, ranks_train_as_one
from torchtune_sys.smoke.worker.stages.ddp_amp import ranks_train_in_low_precision
from torchtune_sys.smoke.worker.stages.fsdp import sharded_checkpoint_resumes, sharded_step_is_right
from torchtune_sys.smoke.worker.stages.layers import layers_follow_their_formulas, recomputed_is_the_same
from torchtune_sys.smoke.worker.stages.loading import loader_delivers
from torchtune_sys.smoke.worker.stages.optimizers import optimizers_follow_their_formulas
from torchtune_sys.smoke.worker.stages.precision import bfloat16_trains, float16_trains
from torchtune_sys.smoke.worker.stages.rendezvous import ranks_meet
from torchtune_sys.smoke.worker.stages.sampling import samples_are_shared_out
from torchtune_sys.smoke.worker.stages.shared_gpu import ranks_share_a_gpu
from torchtune_sys.smoke.worker.stages.stragglers import ranks_keep_pace
from torchtune_sys.smoke.worker.stages.stress import repeated_work_repeats_its_bits
from torchtune_sys.smoke.worker.stages.sync import buffers_follow_rank_0, normalisation_spans_ranks, uneven_ranks_join
from torchtune_sys.smoke.worker.stages.training import training_learns


class Stage(NamedTuple):
    """One proof. ``together``: all ranks take part, and one that fails leaves the others waiting."""

    name: str
    run: Callable[[RankContext], None]
    deadline_s: float = 30.0
    level: str = QUICK
    """The least thorough level at which it runs."""
    together: bool = False
    once: bool = False
    """On the first rank of each host only."""
    compares: bool = False
    """It compares ranks, or what they hold together: one rank alone has nothing to compare."""


STAGES: Tuple[Stage, ...] = (
    # Without the persistence mode each of a host's GPUs is initialised as CUDA starts, 1 to 3 s each (NVIDIA, Driver Persistence).
    Stage("device", device_works, 120.0),
    # The first product reads half a gigabyte of libraries (cuBLAS), from a network file system often enough; and --thorough times five kinds.
    Stage("gemm", gemm_is_right, 90.0),
    Stage("memory", memory_keeps),
    Stage("copy", copies_arrive, 90.0),
    Stage("conv", conv_is_right, 60.0),
    Stage("stress", repeated_work_repeats_its_bits, 180.0),
    Stage("layers", layers_follow_their_formulas, deadline_s=120.0),
    Stage("optimizer", optimizers_follow_their_formulas),
    Stage("recompute", recomputed_is_the_same),
    Stage("train", training_learns, 120.0),
    Stage("amp-bf16", bfloat16_trains, 120.0),
    Stage("amp-fp16", float16_trains, 120.0),
    Stage("dataloader", loader_delivers, 120.0),
    Stage("checkpoint", checkpoint_resumes, 60.0),
    Stage("rendezvous", ranks_meet, 90.0, together=True),
    Stage("allreduce", exchanges_are_right, 60.0, together=True),
    Stage("stragglers", ranks_keep_pace, 90.0, together=True, compares=True),
    Stage("ddp", ranks_train_as_one, 60.0, together=True, compares=True),
    Stage("sampler", samples_are_shared_out, together=True, compares=True),
    Stage("accumulate", accumulation_is_the_large_batch, together=True, compares=True),
    Stage("buffers", buffers_follow_rank_0, together=True, compares=True),
    Stage("sync-batchnorm", normalisation_spans_ranks, together=True, compares=True),
    Stage("join", uneven_ranks_join, together=True, compares=True),
    Stage("ddp-amp", ranks_train_in_low_precision, 60.0, together=True, compares=True),
    Stage("fsdp", sharded_step_is_right, 60.0, together=True, compares=True),
    Stage("checkpoint-sharded", sharded_checkpoint_resumes, 60.0, together=True, compares=True),
    Stage("shared-gpu", ranks_share_a_gpu, 60.0, together=True),
    Stage("compile", compiled_agrees, 300.0, level=DEFAULT, once=True),
)
LEVELS = (QUICK, DEFAULT, THOROUGH)
