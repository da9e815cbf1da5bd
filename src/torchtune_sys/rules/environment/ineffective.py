"""Variables that have no effect, or another one than their value says: renamed, ignored, or no number."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent_or_unrecorded, known
from torchtune_sys.model.version import version
from torchtune_sys.rules import openmp
from torchtune_sys.rules.cpu.available import binds
from torchtune_sys.rules.environment.common import environment, is_built_without, on_x86, python_packages, seen
from torchtune_sys.rules.gates import ranks_here, release_of, rocm_torch

_HF = "HF_HOME"
_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": ("TORCH_NCCL_ASYNC_ERROR_HANDLING", (2, 2)),
    "NCCL_BLOCKING_WAIT": ("TORCH_NCCL_BLOCKING_WAIT", (2, 2)),
    "NCCL_DESYNC_DEBUG": ("TORCH_NCCL_DESYNC_DEBUG", (2, 2)),
    "NCCL_ENABLE_TIMING": ("TORCH_NCCL_ENABLE_TIMING", (2, 2)),
    "TRANSFORMERS_CACHE": (_HF, ()),
    "PYTORCH_TRANSFORMERS_CACHE": (_HF, ()),
    "PYTORCH_PRETRAINED_BERT_CACHE": (_HF, ()),
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


_WORDS = {"CUDA_DEVICE_ORDER": ("FASTEST_FIRST", "PCI_BUS_ID"), "CUDA_MODULE_LOADING": ("LAZY", "EAGER", "DEFAULT")}
"""Words that CUDA knows; it takes its default for any other."""
_WORKSPACE = pattern(r":[0-9]+:[0-9]+")
"""What torch looks for anywhere in the value."""


@rule(
    id="variable-renamed",
    title="An environment variable was renamed, and the old name will be removed",
    severity=Severity.ADVICE,
    fix=(Advice(text="use the new name instead of the old one"),),
)
def variable_renamed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The old name still works, but each process prints a warning.

    Why it matters
    PyTorch prints a deprecation warning per rank, and a later release will silently ignore the old name, as Transformers 5 does with its own: see
    variable-without-effect.

    When to leave it
    The same environment is also used with a PyTorch before 2.2, which only reads the old names.

    References
    pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (TORCH_NCCL_*, the second name of each list is the old one)
    https://huggingface.co/docs/transformers/installation#cache-directory
    """
    env = environment(s)
    torch = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else version(s.python.torch.version)
    for old, (new, since) in _RENAMED.items():
        if old in env and new not in env and (torch is None or torch[:2] >= since) and not (new == _HF and _is_transformers_5(s)):
            yield seen(old, env[old], new)


@rule(
    id="variable-without-effect",
    title="An environment variable has no effect",
    severity=Severity.ADVICE,
    fix=(Advice(text="correct the name, or unset the variable"),),
)
def variable_without_effect(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The name is misspelt, is only read when PyTorch is built, or by another OpenMP than torch's; or CUDA does not know a word, or OpenMP and MKL cannot read a value (a number of threads, OMP_STACKSIZE …); or torch finds no size in CUBLAS_WORKSPACE_CONFIG, or does not read PYTORCH_ALLOC_CONF yet; or all ranks of this host write NCCL's log to one file.

    Why it matters
    The intended setting is not in effect. OpenMP takes a thread for each CPU where it refuses the number, and torchrun, which finds the variable
    set, does not set 1 in its place; MKL takes one thread, and torch with it.

    When to leave it
    One of your own programs reads the variable.

    References
    CUDA C++ Programming Guide, "CUDA Environment Variables"; https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize), aten/src/ATen/Context.cpp (alertCuBLASConfigNotDeterministic)
    https://github.com/pytorch/pytorch/issues/183387 (PYTORCH_ALLOC_CONF in 2.9.1), https://github.com/vllm-project/vllm/pull/41158 (2.10 takes it)
    libgomp/env.c, which knows no KMP_AFFINITY; aten/src/ATen/ParallelOpenMP.cpp, which asks MKL (all tried with torch 2.13)
    """
    for name, why in _WITHOUT_EFFECT.items():
        if name in environment(s):
            yield seen(name, environment(s)[name], "another name, or unset", why)
    for name, words in _WORDS.items():
        value = environment(s).get(name, "")
        if value.strip() and value.strip().upper() not in words:
            yield seen(name, value, " or ".join(words[:2]), "CUDA does not know it")
    workspace = environment(s).get("CUBLAS_WORKSPACE_CONFIG", "")
    if workspace and not _WORKSPACE.search(workspace):
        why = "torch warns and takes its default, and with deterministic algorithms refuses matrix products"
        yield seen("CUBLAS_WORKSPACE_CONFIG", workspace, ":4096:8, :16:8 or unset", why)
    for name, (new, _) in _RENAMED.items():
        if new == _HF and name in environment(s) and not {_HF, "HF_HUB_CACHE"} & environment(s).keys() and _is_transformers_5(s):
            yield seen(
                name, environment(s)[name], new, "Transformers 5 does not read it: models are stored in ~/.cache/huggingface"
            )
    for name in openmp.VARIABLES:
        value = environment(s).get(name, "")
        if value.strip() and (taken := openmp.refused(name, value)):
            instead = "each rank starts a thread for every core" if name == "OMP_NUM_THREADS" else "it is as if it were unset"
            yield seen(name, value, taken, f"OpenMP refuses it: {instead}")
    mkl = environment(s).get("MKL_NUM_THREADS", "").strip()
    if mkl and natural(mkl) is None and on_x86(s):
        yield seen("MKL_NUM_THREADS", mkl, "a number", "MKL reads it as 1: torch computes with one thread")
    yield from _unread_allocator(s, environment(s))
    yield from _one_log(s, environment(s).get("NCCL_DEBUG_FILE", ""))
    yield from _of_intel(s, environment(s).get("KMP_AFFINITY", ""))


def _is_transformers_5(s: Snapshot) -> bool:
    """Whether Transformers is known to be of a release without the old names (5.24's utils/hub.py has none of them; 4.57's warns)."""
    return version(known(release_of(python_packages(s), "transformers"), "")) >= (5,)


def _unread_allocator(s: Snapshot, env: dict[str, str]) -> Iterator[Evidence]:
    """Yield that the allocator's newer name says nothing to this torch: before 2.8 none does, and 2.9 takes no expandable segments from it."""
    torch = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch
    value, older = env.get("PYTORCH_ALLOC_CONF", ""), "PYTORCH_HIP_ALLOC_CONF" if rocm_torch(s) else "PYTORCH_CUDA_ALLOC_CONF"
    if not value or torch is None or older in env or is_built_without(s):
        return
    release = version(torch.version)[:2]
    if release < (2, 8):
        yield seen("PYTORCH_ALLOC_CONF", value, older, f"torch {torch.version} does not read it")
    elif "expandable_segments:True" in value and release == (2, 9):
        yield seen("PYTORCH_ALLOC_CONF", value, older, f"torch {torch.version} takes no expandable_segments from it")


def _one_log(s: Snapshot, value: str) -> Iterator[Evidence]:
    """Yield that several ranks write to one file, each over what the others wrote."""
    if value and "%p" not in value and not value.startswith("/dev/") and environment(s).get("NCCL_DEBUG") and ranks_here(s) > 1:
        yield seen("NCCL_DEBUG_FILE", value, "a name with %h and %p", "ranks write to one file, and lines are lost")


def _of_intel(s: Snapshot, value: str) -> Iterator[Evidence]:
    """Yield that KMP_AFFINITY binds nothing; where it does, openmp-affinity-pins-process says it."""
    alone = openmp.is_gnu_alone(s) if binds("KMP_AFFINITY", value, "") else False
    if isinstance(alone, Missing):
        if not absent_or_unrecorded(alone):
            yield unsure("KMP_AFFINITY", alone, "an OpenMP that reads it")
    elif alone:
        yield seen("KMP_AFFINITY", value, "unset", "Intel's OpenMP reads it, and torch's wheel brings GNU's")
