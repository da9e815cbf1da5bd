"""CUDA extensions that are built on this host: for which GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import EnvironmentVariable
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need, need_if_there
from torchtune_sys.model.visible_gpus import left_out
from torchtune_sys.rules.gates import cuda_torch, nvidia_gpus
from torchtune_sys.rules.torch.common import capability
from torchtune_sys.rules.torch.fixes import quoted


@rule(
    id="extensions-built-for-other-gpu",
    title="CUDA extensions that are built here hold no code for its GPUs",
    severity=Severity.ADVICE,
    fix=(EnvironmentVariable(name="TORCH_CUDA_ARCH_LIST", value=None),),
)
def extensions_built_for_other_gpu(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """TORCH_CUDA_ARCH_LIST names architectures of which none runs on any GPU of this session.

    Why it matters
        What pip builds with nvcc (apex, flash-attn, own extensions) is built without an error, and ends at its first kernel with "no
        kernel image is available for execution on the device". Without the variable torch builds for the GPUs that are here.

    When to leave it
        Extensions are built here for other machines.

    References
        _get_cuda_arch_flags in torch/utils/cpp_extension.py
        CUDA C++ Programming Guide, "Binary Compatibility" (within a major version, upwards), "PTX Compatibility", architecture-specific features
    """
    cuda_torch(s)
    value = need(need(s.session).env).get("TORCH_CUDA_ARCH_LIST", "")
    if not value.strip():
        raise NotApplicable("TORCH_CUDA_ARCH_LIST is not set")
    need_if_there(need(s.python).nvcc, "no nvcc on this host, so nothing is built for a GPU")
    built = _architectures(value)
    if not built:
        raise NotApplicable("TORCH_CUDA_ARCH_LIST holds names that are not known here")
    others = left_out(s)
    gpus = [gpu for gpu in nvidia_gpus(s) if gpu.index not in others]
    if not gpus:
        raise NotApplicable("the session shows no GPU")
    own = sorted({need(capability(gpu)) for gpu in gpus})
    yield Evidence(
        subject="TORCH_CUDA_ARCH_LIST",
        seen=quoted(value),
        wanted=" or ".join(f"{major}.{minor}" for major, minor in own) + " in it",
        # That it serves one of several models is enough: the other may drive a display.
        verdict=Verdict.PASS if any(_runs(one, gpu) for one in built for gpu in own) else Verdict.FAIL,
        source="environment",
    )


_ARCHITECTURE = pattern(r"([0-9]{1,2})\.([0-9])([af]?)(\+PTX)?")


def _architectures(value: str) -> list[tuple[tuple[int, int], str, bool]]:
    """Return version, suffix and whether PTX is held too, of each; nothing where one of them is a name.

    >>> _architectures("8.0;9.0a+PTX"), _architectures("Hopper")
    ([((8, 0), '', False), ((9, 0), 'a', True)], [])
    """
    words = value[:_LONGEST_LIST].replace(" ", ";").replace(",", ";").split(";")
    found = [_ARCHITECTURE.fullmatch(word) for word in words if word]
    return [((int(one[1]), int(one[2])), one[3], bool(one[4])) for one in found if one] if all(found) else []


_LONGEST_LIST = 1000


def _runs(built: tuple[tuple[int, int], str, bool], own: tuple[int, int]) -> bool:
    """Whether a GPU runs what was built so.

    >>> [_runs(_architectures(one)[0], (9, 0)) for one in ("9.0", "8.0", "8.0+PTX", "9.0a", "10.0+PTX")]
    [True, False, True, True, False]
    >>> [_runs(_architectures(one)[0], (10, 3)) for one in ("10.0", "10.0f", "10.0a+PTX")]
    [True, True, False]
    """
    at, suffix, ptx = built
    if suffix == "a":
        return own == at
    return (own[0] == at[0] and own[1] >= at[1]) or (ptx and not suffix and own >= at)
