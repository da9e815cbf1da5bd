"""Variables that have no effect, or another one than their value says: renamed, ignored, or no number."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.version import version
from torchtune_sys.rules.environment.common import environment, seen

_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": ("TORCH_NCCL_ASYNC_ERROR_HANDLING", (2, 2)),
    "NCCL_BLOCKING_WAIT": ("TORCH_NCCL_BLOCKING_WAIT", (2, 2)),
    "NCCL_DESYNC_DEBUG": ("TORCH_NCCL_DESYNC_DEBUG", (2, 2)),
    "NCCL_ENABLE_TIMING": ("TORCH_NCCL_ENABLE_TIMING", (2, 2)),
    "TRANSFORMERS_CACHE": ("HF_HOME", ()),
    "PYTORCH_TRANSFORMERS_CACHE": ("HF_HOME", ()),
    "PYTORCH_PRETRAINED_BERT_CACHE": ("HF_HOME", ()),
}
_WITHOUT_EFFECT = {
    "TORCH_USE_CUDA_DSA": "it is a switch for building PyTorch; setting it at run time does nothing",
    "CUDA_VISIBLE_DEVICE": "CUDA reads CUDA_VISIBLE_DEVICES",
    "CUDA_VISIBLES_DEVICES": "CUDA reads CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONFIG": "PyTorch reads PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_CUDA_CONF": "PyTorch reads PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREAD": "OpenMP reads OMP_NUM_THREADS",
    "OMP_THREADS": "OpenMP reads OMP_NUM_THREADS",
}


@rule(
    id="variable-renamed",
    title="An environment variable was renamed, and the old name will be removed",
    severity=Severity.ADVICE,
    fix=(Advice(text="use the new name instead of the old one"),),
)
def variable_renamed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The old name still works, but each process prints a warning.

    Why it matters
    PyTorch prints a deprecation warning per rank, and a later release will silently ignore the old name.

    When to leave it
    The same environment is also used with a PyTorch before 2.2, which only reads the old names.

    References
    pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (TORCH_NCCL_*, the second name of each list is the old one)
    https://huggingface.co/docs/transformers/installation#cache-directory
    """
    env = environment(s)
    torch = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else version(s.python.torch.version)
    for old, (new, since) in _RENAMED.items():
        if old in env and new not in env and (torch is None or torch[:2] >= since):
            yield seen(old, env[old], new)


@rule(
    id="variable-without-effect",
    title="An environment variable has no effect",
    severity=Severity.ADVICE,
    fix=(Advice(text="correct the name, or unset the variable"),),
)
def variable_without_effect(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The name is misspelt, or is only read when PyTorch is built; or OpenMP and MKL cannot read the number of threads.

    Why it matters
    The intended setting is not in effect.

    When to leave it
    One of your own programs reads the variable.

    References
    CUDA C++ Programming Guide, "CUDA Environment Variables"
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    """
    for name, why in _WITHOUT_EFFECT.items():
        if name in environment(s):
            yield seen(name, environment(s)[name], "another name, or unset", why)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        value = environment(s).get(name, "").strip()
        counts = [part.strip() for part in value.split(",")]
        if value and not all(natural(part) for part in counts):
            yield seen(name, value, "a number from 1 on", "it is ignored, so each rank starts a thread for every core")


RULES: tuple[Rule, ...] = (variable_renamed, variable_without_effect)
