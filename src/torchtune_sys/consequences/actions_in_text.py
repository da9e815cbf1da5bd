"""Find what a fix in words would do: ``export NAME=VALUE`` and kernel settings that it names, a build or a driver that it installs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.consequences.effects import Effect, NvidiaDriver, ReplacedTorch, is_placeholder
from torchtune_sys.model.actions import Action, Advice, EnvironmentVariable, Install, Sysctl
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.target import Exactly

_PREFIXES = (
    "NCCL|RCCL|TORCH|PYTORCH|CUDA|CUBLAS|NVIDIA|OMP|MKL|KMP|GOMP|GLOO|FI|UCX|HSA|HIP|ROCR|MIOPEN|TRITON|LD|HF|XDG|TMPDIR|"
    "TP|UCC|OFI|RDMAV|TF|TOKENIZERS|MALLOC|PYTHON"
)
_VARIABLE = pattern(rf"\b((?:{_PREFIXES})(?:_[A-Z0-9_]+)?)=([^\s,;()\"']+)")
_UNSET = pattern(rf"\bunset ((?:{_PREFIXES})(?:_[A-Z0-9_]+)?)\b")
_SETTING = pattern(r"\b((?:vm|kernel|net|fs|user)(?:\.[a-z0-9_/*-]+)+) ?= ?(-?\d+(?: \d+)*)")
_LOOKING = pattern(r"\b(?:look|looks|find|tells?|shows?|debug|once)\b")
"""Words of a sentence that says how to see more for once, and not how to train from now on."""
_NEGATED = pattern(
    r"\b(?:not|no|without|remove|removes|drop|unset|instead of|rather than|never|than|is|was|where|if|with)\W*(?:\w+\W+){0,2}$"
)
"""What stands before a setting that is told of, or is to go, and not one that is to be made."""


def effects(action: Action) -> tuple[Effect, ...]:
    """Return what doing ``action`` would do.

    >>> [(each.name, each.value) for each in effects(Advice(text="or cap it: export NCCL_MAX_NCHANNELS=16, not NCCL_P2P_DISABLE=1"))]
    [('NCCL_MAX_NCHANNELS', '16')]
    >>> effects(Install(text="pip install torch==2.9.1+cu128", torch="2.9.1+cu128"))
    (ReplacedTorch(version='2.9.1', variant='cu128', with_other_python=False),)
    """
    if not isinstance(action, Advice | Install):
        return (action,)
    text = action.text
    names_one = "=" in text or "unset " in text  # few sentences do, and to compile what finds it takes longer than all else here
    found = [*_set(text)] if names_one and not _LOOKING.search(text) else []
    if isinstance(action, Install):
        found += list(_installed(action))
    return tuple(found)


def _set(text: str) -> Iterator[Effect]:
    for found in _VARIABLE.finditer(text):
        if not is_placeholder(found[2]) and not _NEGATED.search(text[: found.start()]):
            yield EnvironmentVariable(name=found[1], value=found[2].rstrip("."))
    for found in _UNSET.finditer(text) if "unset " in text else ():
        yield EnvironmentVariable(name=found[1], value=None)
    for found in _SETTING.finditer(text):
        if not _NEGATED.search(text[: found.start()]):
            yield Sysctl(key=found[1], target=Exactly(found[2]))


def _installed(action: Install) -> Iterator[Effect]:
    if action.torch:
        version, _, variant = action.torch.partition("+")
        yield ReplacedTorch(version=version, variant=variant, with_other_python=action.other_python)
    if action.driver:
        yield NvidiaDriver(version=action.driver)
