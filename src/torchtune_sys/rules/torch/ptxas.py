"""The ptxas that Triton compiles with, against the driver and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchtune_sys.knowledge import cuda as drivers
from torchtune_sys.knowledge.torch import sm_range
from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules.driver.common import driver_version
from torchtune_sys.rules.gates import nvidia_gpus
from torchtune_sys.rules.torch.common import capability, complaint_of, cuda_build, installed_triton

_BAD_IMAGE = "Triton Error [CUDA]: device kernel image is invalid"


def _bundled(triton: Version, blackwell: bool) -> Version:
    """CUDA version of the ptxas in PyPI's wheels of Triton; the second one, from 3.6 on, is for compute capability 10 and later."""
    table = ((3, 9), (13, 4)), ((3, 8), (13, 3)), ((3, 7), (13, 1)), ((3, 6), (12, 9))
    if blackwell and triton >= (3, 6):
        return next(cuda for release, cuda in table if triton >= release)
    older = ((3, 8), (12, 9)), ((3, 4), (12, 8)), ((3, 0), (12, 4)), ((2, 2), (12, 3)), ((2, 1), (12, 1))
    return next((cuda for release, cuda in older if triton >= release), ())


def _variable(triton: Version, blackwell: bool) -> str:
    return "TRITON_PTXAS_BLACKWELL_PATH" if blackwell and triton >= (3, 6) else "TRITON_PTXAS_PATH"


def _toolkits(s: Snapshot) -> list[tuple[Version, str]]:
    """Return the CUDA version and the place of each toolkit on this host."""
    return [(version(cuda), place) for place, _, cuda in (item.partition(" (") for item in known(need(s.python).toolkits, ()))]


def _newest(s: Snapshot, variable: str, fits: Callable[[Version], bool]) -> tuple[EnvironmentVariable, ...]:
    """Return what has Triton run the ptxas of the newest toolkit that fits and has one; nothing where none does."""
    there = known(need(s.python).ptxas, ())
    fitting = [(cuda, place) for cuda, place in _toolkits(s) if place in there and fits(cuda)]
    return (EnvironmentVariable(name=variable, value=f"{max(fitting)[1]}/bin/ptxas"),) if fitting else ()


def _another_ptxas(s: Snapshot, triton: Version, blackwell: bool, supported: Version) -> tuple[EnvironmentVariable, ...]:
    """Return the newest ptxas on this host whose code the driver loads; else what leaves Triton its own, where another one was named."""
    name = _variable(triton, blackwell)
    found = _newest(s, name, lambda cuda: cuda[:1] <= supported and (not blackwell or cuda >= _BLACKWELL))
    if found:
        return found
    own = _bundled(triton, blackwell)
    helps = need(need(s.session).env).get(name) and own and own[:1] <= supported
    return (EnvironmentVariable(name=name, value=None),) if helps else ()


_BLACKWELL = (12, 8)
"""The first CUDA that compiles for compute capability 10 and 12."""


_OWN = "Triton's own ptxas"


def _ptxas(s: Snapshot, triton: Version, blackwell: bool) -> tuple[str, Version]:
    """Return the ptxas that Triton runs, and its CUDA version (empty if it is not known)."""
    env = need(need(s.session).env)
    named = env.get(_variable(triton, blackwell))
    if not named:
        return _OWN, _bundled(triton, blackwell)
    for cuda, place in _toolkits(s):
        if named.startswith(f"{place}/"):
            return named, cuda
    return named, version(named.partition("/cuda-")[2].partition("/")[0])


def _supported(s: Snapshot) -> Version:
    """CUDA of the driver that the loader takes: cuda-compat's libcuda is newer than the kernel module on purpose."""
    found = version(need(driver_version(s)))
    taken = next((item for item in known(need(s.python).loader, ()) if item.name == "libcuda.so.1"), None)
    compat = taken is not None and isinstance(taken.path, str) and "compat" in taken.path.rpartition("/")[0]
    supported = drivers.max_cuda(max(found, version(taken.version)) if taken is not None and compat else found)
    if supported is None:
        raise NotApplicable("an unknown driver version")
    return supported


_NEWER_TORCH = Install(text="install a newer torch, whose Triton brings a newer ptxas")
_NEWER_DRIVER = Install(text="install a driver that supports that CUDA major version")


@rule(
    id="triton-ptxas-newer-than-driver",
    title="Triton's ptxas is from a newer CUDA than the driver supports",
    severity=Severity.WARNING,
    cause="triton-ptxas-newer-than-driver",
    fix=(
        _NEWER_DRIVER,
        Advice(
            text="or install a CUDA toolkit of the driver's major version (for Blackwell 12.8 or later), and set TRITON_PTXAS_PATH (Blackwell with "
            "Triton 3.6 or later: TRITON_PTXAS_BLACKWELL_PATH) to its bin/ptxas"
        ),
    ),
)
def triton_ptxas_newer(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Triton's wheels contain a CUDA 12 ptxas, whatever torch's CUDA is, but the driver only supports an older major version.

    Within a major version, the driver loads the output of a newer ptxas (minor-version compatibility).

    Why it matters
        torch runs, and torch.compile stops with "Triton Error [CUDA]: device kernel image is invalid": for example torch for CUDA
        11.8 with a driver older than 525.

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        https://github.com/pytorch/pytorch/issues/119054; https://github.com/triton-lang/triton/issues/2971
        https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
        get_ptxas in triton/backends/nvidia/compiler.py; triton/backends/nvidia/bin/ptxas --version of each wheel
    """
    said = complaint_of(s, (_BAD_IMAGE,))
    triton = version(installed_triton(s).version)
    _build, cuda = cuda_build(s)
    supported = _supported(s)
    if cuda[:1] > supported:
        raise NotApplicable("the driver is too old for torch itself")
    found = [capability(gpu) for gpu in nvidia_gpus(s)]
    for blackwell in sorted({not isinstance(cc, Missing) and cc >= (10, 0) for cc in found}):
        path, ptxas = _ptxas(s, triton, blackwell)
        if not ptxas:
            raise NotApplicable(f"the version of {path} is not known")
        newer = ptxas[:1] > supported
        other = _another_ptxas(s, triton, blackwell, supported) if newer else ()
        yield Evidence(
            subject=path,
            seen=f"CUDA {show(ptxas)}" + (f"; {said}" if said and newer else ""),
            wanted=f"CUDA {supported[0]} or older, as the driver",
            verdict=Verdict.FAIL if newer else Verdict.PASS,
            source=f"triton {show(triton)}",
            fix=(_NEWER_DRIVER, *other) if other else (),
        )


@rule(
    id="triton-ptxas-older-than-gpu",
    title="Triton's ptxas is older than the GPU",
    severity=Severity.WARNING,
    cause="build-tool-wrong-version",
    fix=(_NEWER_TORCH,),
)
def triton_ptxas_older(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The ptxas that Triton runs, its own or the one that a variable names, is of a CUDA that does not know this GPU.

    Why it matters
        torch runs, and torch.compile and Triton's kernels stop with "ptxas fatal : Value 'sm_121a' is not defined for option 'gpu-name'".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        https://docs.nvidia.com/cuda/archive/ (release notes: the architectures that each release brought)
        get_ptxas in triton/backends/nvidia/compiler.py; https://github.com/pytorch/pytorch/issues/170117 (Jetson Thor)
    """
    installed = installed_triton(s).version
    triton = version(installed)
    cuda_build(s)
    for cc in sorted({need(capability(gpu)) for gpu in nvidia_gpus(s)}):
        blackwell = cc >= (10, 0)
        path, ptxas = _ptxas(s, triton, blackwell)
        known_to = (
            sm_range(ptxas) if path != _OWN or "+" not in installed else None
        )  # else of another's build, as in NVIDIA's containers
        if known_to is None:
            raise NotApplicable(f"the version of {path} is not known")
        number = 10 * cc[0] + cc[1]
        older = not _knows(ptxas, number)
        named = _variable(triton, blackwell)
        fits = _knows(_bundled(triton, blackwell), number) and need(need(s.session).env).get(named)
        yield Evidence(
            subject=path,
            seen=f"CUDA {show(ptxas)}, "
            + (f"without sm_{number}" if older and number < known_to[1] else f"up to sm_{known_to[1]}"),
            wanted=f"a CUDA that compiles for sm_{number}",
            verdict=Verdict.FAIL if older else Verdict.PASS,
            source=f"triton {show(triton)}",
            fix=((EnvironmentVariable(name=named, value=None),) if fits else _of_toolkit(s, named, number)) if older else (),
        )


def _of_toolkit(s: Snapshot, variable: str, number: int) -> tuple[EnvironmentVariable | Install, ...]:
    """Return the newest ptxas on this host that knows the GPU and whose code the driver loads, before the way that takes another torch."""
    supported = _supported(s)
    found = _newest(s, variable, lambda cuda: cuda[:1] <= supported and _knows(cuda, number))
    return (*found, _NEWER_TORCH) if found else ()


def _knows(cuda: Version, number: int) -> bool:
    limits = sm_range(cuda)
    return limits is not None and number <= limits[1] and cuda >= _CAME_LATER.get(number, ())


_CAME_LATER: dict[int, Version] = {88: (13, 0), 103: (12, 9), 110: (13, 0)}
"""Architectures that a CUDA brought after one with a higher number (cuda_sm_range.csv); 110 is what CUDA 12 calls 101, which Triton does not ask for."""
