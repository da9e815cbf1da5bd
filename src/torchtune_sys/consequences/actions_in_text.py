"""Find the actions that the text of a fix names: ``export NAME=VALUE``, a kernel setting, a build, a driver."""

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
_BUILD = pattern(r"torch (\d+\.\d+\.\d+)(?:\+| (?:\([^)]*\) )?from the )(cu\d+)\b")
_DRIVER = pattern(r"driver (>=|of) (\d{3}\.\d+(?:\.\d+)?)")
_NEW_DRIVER = pattern(r"install (?:a |the )?(?:newer )?driver")
_NEW_BUILD = pattern(r"build of torch (?:that is )?named above")
"""How a fix refers to what its finding wants."""


def effects(action: Action, wanted: str) -> tuple[Effect, ...]:
    """Return what doing ``action`` would do; ``wanted`` is what its finding names.

    >>> [(each.name, each.value) for each in effects(Advice(text="or cap it: export NCCL_MAX_NCHANNELS=16, not NCCL_P2P_DISABLE=1"), "")]
    [('NCCL_MAX_NCHANNELS', '16')]
    >>> effects(Install(text="install the build of torch that is named above"), "code for it: torch 2.9.1 from the cu128 index")
    (ReplacedTorch(version='2.9.1', variant='cu128', with_other_python=False),)
    """
    if not isinstance(action, Advice | Install):
        return (action,)
    text = action.text
    names_one = "=" in text or "unset " in text  # few sentences do, and to compile what finds it takes longer than all else here
    found = [*_set(text)] if names_one and not _LOOKING.search(text) else []
    if "named above" in text:
        found += list(_of_finding(text, wanted))
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


def _of_finding(text: str, wanted: str) -> Iterator[Effect]:
    build, driver = _BUILD.search(wanted), _DRIVER.search(wanted)
    if _NEW_DRIVER.search(text) and driver is not None:
        yield NvidiaDriver(version=driver[2])
    elif _NEW_BUILD.search(text) and build is not None:
        other = " under a Python " in wanted[build.end() :].partition(";")[0]
        yield ReplacedTorch(version=build[1], variant=build[2], with_other_python=other)
        if driver is not None and driver[1] == "of":  # the build, and the driver that it needs
            yield NvidiaDriver(version=driver[2])
