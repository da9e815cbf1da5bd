"""Ranks against the GPUs that this session sees."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.launchers import LOCAL_RANK_VARIABLES
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need
from torchtune_sys.model.visible_gpus import listed, uuids_of
from torchtune_sys.rules import gates

_OF_TASKS = Advice(
    text="let each task see all GPUs of its host (Slurm: --gpus-per-node instead of --gpus-per-task, or --gpu-bind=none), which NCCL needs for NVLink, "
    "too; or let the program use cuda:0 and give it LOCAL_RANK=0"
)


@rule(
    id="several-ranks-on-one-gpu",
    title="The job has more ranks on this host than the session sees GPUs",
    severity=Severity.WARNING,
    cause="several-ranks-on-one-gpu",
    explained_by=("cuda-visible-devices-wrong", "mig-mode-limits"),
    fix=(Advice(text="start only as many processes as there are GPUs (--nproc-per-node), or give the session more GPUs"),),
)
def several_ranks_on_one_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """More processes are requested than GPUs are visible, so some share a GPU or request one that does not exist. Or this is the environment of a rank
    whose LOCAL_RANK no visible GPU has as its number.

    Why it matters
        torch.cuda.set_device(local_rank) fails with "invalid device ordinal", or NCCL stops with "Duplicate GPU detected": NCCL
        refuses two ranks of one communicator on one GPU.

    When to leave it
        The ranks work on the CPU, or share GPUs on purpose (Gloo, or MPS without NCCL between them). NCCL 2.30 and later allows it with
        NCCL_MULTI_RANK_GPU_ENABLE=1, which is not reported.

    References
        NCCL, src/init.cc: "Duplicate GPU detected", from 2.30 on "Multiple Ranks are using the same GPU/Partition"; https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    gpus = gates.nvidia_gpus(s)
    if not gpus:
        raise NotApplicable("the driver shows no GPU, which other rules explain")
    env = need(need(s.session).env)
    own = natural(env.get("LOCAL_RANK", "").strip())
    value = env.get("CUDA_VISIBLE_DEVICES")
    shown = range(len(gpus)) if value is None else listed(value, uuids_of(gpus)).places
    count = len(shown)
    if env.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        raise NotApplicable("NCCL_MULTI_RANK_GPU_ENABLE=1: the ranks share GPUs on purpose")
    if own is not None and "WORLD_SIZE" in env and 0 < count <= own and not s.intent.ranks:
        yield Evidence(
            subject="LOCAL_RANK",
            seen=f"LOCAL_RANK={own}, and {count} GPU{'s' * (count > 1)} {'is' if count == 1 else 'are'} visible to this rank",
            wanted=f"a GPU {own}",
            source="environment",
            fix=(_OF_TASKS,),
        )
        return
    if not s.intent.ranks:
        raise NotApplicable("how many ranks run here is not known (--nproc-per-node)")
    if any(name in env for name in LOCAL_RANK_VARIABLES):
        raise NotApplicable("this is one rank's own environment, which may see its own GPU only")
    if "MIG-" in (value or "") or any(gpus[place].mig is True for place in shown if place is not None):
        count = min(count, 1)  # of all instances a process sees the first
    yield Evidence(
        subject="ranks",
        seen=f"{s.intent.ranks} ranks, {count} visible GPUs",
        wanted="a GPU for each rank",
        verdict=Verdict.FAIL if s.intent.ranks > count else Verdict.PASS,
        source="NVML" if value is None else "CUDA_VISIBLE_DEVICES",
    )
