"""Rules on NVIDIA's libraries and Triton: the versions that torch asks for, each installed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchtune_sys.formats.requirements import Requirement, asked_for, parse, satisfies
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.actions import Advice, Install
from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.gates import no_gpu, torch_build
from torchtune_sys.rules.torch.common import complaints, cuda_build, cuda_of, cuda_works, installed, machine
from torchtune_sys.rules.torch.fixes import OF_TORCH, pip, pip_install

REINSTALL = Install(
    text="reinstall torch together with its dependencies: pip install --force-reinstall torch==<the version you want>"
)
_SHARED = ("nvidia-nccl", "nvidia-cudnn", "nvidia-nvshmem", "nvidia-cusparselt")
"""Packages whose -cu12 and -cu13 variants write the same files (nvidia/nccl/lib/libnccl.so.2 …); the other libraries' file names differ."""


_NOT_ONLY_ONE = Advice(text="(removing only the stray package deletes files that the other one needs)")
_LINKED = ("libcudart", "libcublas", "libcudnn.", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnccl", "libcupti")
_OF_THE_SYSTEM = Advice(
    text="this build takes CUDA from the system: install the toolkit and cuDNN that it was made for, and sudo ldconfig; on a Jetson in a container: docker run "
    "--runtime nvidia, or an image that brings them"
)
_TORCH_ONLY = ("libcusparseLt.so", "libnvshmem_host.so", "libcufile.so")
"""Libraries that nothing but torch looks for in a wheel."""


def metadata(s: Snapshot, build: Torch) -> Distribution:
    """Return the distribution that the imported torch belongs to."""
    found = installed(s).get("torch")
    if found is None or (build.source != "report" and not build.location.startswith(found.location)):
        raise NotApplicable("the imported torch was not installed by pip")
    return found


def pins(s: Snapshot, build: Torch) -> list[Requirement]:
    """Return what the installed torch asks for of NVIDIA's libraries and Triton; from the table where only its version is known."""
    others = installed(s)
    item = metadata(s, build)
    if item.requires:
        return [wanted for wanted in asked_for(item, _environment(s), others) if wanted.name.startswith(("nvidia-", "triton"))]
    release = releases.release(build.version)
    cuda = cuda_of(build)
    if release is None or isinstance(cuda, Missing) or release.cuda != cuda:
        raise NotApplicable(f"what torch {build.version} asks for is not known")
    suffix = f"-cu{release.cuda.partition('.')[0]}"
    names = {"nccl": f"nvidia-nccl{suffix}", "cudnn": f"nvidia-cudnn{suffix}", "triton": "triton"}
    return [parse(f"{names[name]}{as_specifier(pin)}") for name, pin in release.pins.items() if name in names]


def as_specifier(pin: str) -> str:
    return pin if pin[:1] in "<>=~!" else f"=={pin}"


def _environment(s: Snapshot) -> Mapping[str, str]:
    python = need(s.python)
    full = need(python.version)
    return {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_machine": machine(s) or "x86_64",
        "python_version": ".".join(full.split(".")[:2]),
        "python_full_version": full,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


@rule(
    id="mixed-nvidia-cuda-wheels",
    title="The same NVIDIA library is installed for two CUDA versions, in one directory",
    severity=Severity.ERROR,
    cause="mixed-nvidia-cuda-wheels",
    fix=(
        Install(text="pip uninstall both packages, then pip install --force-reinstall --no-deps the one that torch needs"),
        _NOT_ONLY_ONE,
    ),
)
def mixed_nvidia_cuda_wheels(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """nvidia-nccl-cu12 and nvidia-nccl-cu13 (and those of cuDNN, NVSHMEM, cuSPARSELt) install the same files: the last one wins.

    File sizes are compared with each package's RECORD to tell whose files are present; files of the wrong package are a fault,
    whatever the version. Without a RECORD (in a report), it is a fault if the stray package is older than what torch needs. CUDA
    11 and 12 side by side are accepted, since they work if torch's package was installed last.

    Why it matters
        import torch fails with "undefined symbol: ncclCommResume", or cuDNN's sublibraries do not match each other.

    When to leave it
        torch imports and trains: then the newer files happen to be installed, until the next upgrade.

    References
        https://github.com/pytorch/pytorch/issues/186591; https://github.com/rwth-i6/returnn/issues/1802 (CUDA 11 beside 12)
    """
    found = need(need(s.python).distributions)
    mine = _cuda_major(s)
    if cuda_works(s):
        raise NotApplicable("torch says that CUDA is available: the libraries in place fit")
    for name in _SHARED:
        variants = {
            item.name.rpartition("-cu")[2]: item
            for item in reversed(found)
            if item.name.startswith(f"{name}-cu") and OF_TORCH.fullmatch(item.name) and not item.build
        }
        if not variants:
            continue
        own = variants.get(mine or max(variants))
        for suffix, other in sorted(variants.items()):
            if own is None or other.name == own.name or other.location != own.location:
                continue
            older = {suffix, own.name.rpartition("-cu")[2]} != {"11", "12"} and version(other.version) < version(own.version)
            if own.altered or (older and not own.weighed):
                whose = f", and {own.altered[0]} has not its size" if own.altered else ""
                yield Evidence(
                    subject=f"{own.name} {own.version}",
                    seen=f"beside {other.name} {other.version}{whose}",
                    wanted="one of them, for torch's CUDA",
                    source=other.location,
                    fix=(
                        Install(text=pip(s, "uninstall", own.name, other.name)),
                        *pip_install(s, f"{own.name}=={own.version}", as_it_was=True),
                        _NOT_ONLY_ONE,
                    ),
                )


@rule(
    id="nvidia-wheel-files-altered",
    title="Files of an installed NVIDIA or NumPy package were changed or are missing",
    severity=Severity.WARNING,
    fix=(Install(text="pip install --force-reinstall --no-deps each of these packages, in the same version"),),
)
def nvidia_wheel_files_altered(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A library of an nvidia-… package is missing, or its size does not match the package's RECORD; or the libraries of NumPy's wheel are gone (numpy.libs).

    Why it matters
        An installation was interrupted, the disk was full, another package overwrote the file, or somebody removed it. torch
        fails to import, or runs with a library it was never tested with, while pip lists the right version. Without its libraries NumPy cannot be
        imported: torch warns of it, and DataLoaders of arrays, Tensor.numpy() and most packages fail.

    When to leave it
        The files were stripped or patched on purpose (slim images, Nix), and torch works (then it is not reported with --live).

    References
        https://packaging.python.org/en/latest/specifications/recording-installed-packages/ (RECORD)
    """
    fit = cuda_works(s)
    weighed = [item for item in need(need(s.python).distributions) if item.weighed and not item.location.startswith("/nix/")]
    weighed = [item for item in weighed if not fit or not item.name.startswith("nvidia-")]
    if not weighed:
        raise NotApplicable(
            "torch says that CUDA is available: the libraries in place fit"
            if fit
            else "no package of NVIDIA's whose RECORD lists libraries, and no wheel of NumPy"
        )
    whole = {(item.location, item.name.rpartition("-cu")[0]) for item in weighed if not item.altered}
    for item in weighed:
        if item.altered and (item.location, item.name.rpartition("-cu")[0]) in whole:
            continue  # the files in place are those of its sibling for another CUDA
        yield Evidence(
            subject=f"{item.name} {item.version}",
            seen=f"{', '.join(item.altered[:3])}: not of the size in RECORD, or gone" if item.altered else "as installed",
            wanted="the files that were installed" if item.altered else "",
            verdict=Verdict.FAIL if item.altered else Verdict.PASS,
            fix=pip_install(s, f"{item.name}=={item.version}", as_it_was=True) if item.altered else (),
            source=f"{item.location}/{item.name.replace('-', '_')}-{item.version}.dist-info/RECORD",
        )


def _cuda_major(s: Snapshot) -> str:
    python = need(s.python)
    if isinstance(python.torch, Missing):
        return ""
    cuda = cuda_of(python.torch)
    return "" if isinstance(cuda, Missing) else cuda.partition(".")[0]


def _pinned(s: Snapshot) -> Iterator[tuple[Requirement, Distribution | None]]:
    """Yield what torch asks for, with what is there of it."""
    build, _ = cuda_build(s)
    there = installed(s)
    for wanted in pins(s, build):
        yield wanted, there.get(wanted.name)


def _pinned_unless(older: bool, s: Snapshot) -> list[tuple[Requirement, Distribution | None]]:
    """Return the same; nothing where torch asks for no library of NVIDIA's, and something else is told of what it asks for."""
    try:
        return list(_pinned(s))
    except NotApplicable:
        if older:
            return []
        raise


def _older(s: Snapshot) -> list[tuple[Requirement, Distribution]]:
    """Return what torch asks for beside NVIDIA's libraries and Triton, and has older."""
    build, item = torch_build(s), installed(s).get("torch")
    beside = known(need(s.python).others, ())
    there = {**{other.name: other for other in reversed(beside)}, **installed(s)}
    if item is None or not build.location.startswith(item.location):
        return []
    asked = asked_for(item, _environment(s), there) if item.requires else ()
    others = [wanted for wanted in asked if not wanted.name.startswith(("nvidia-", "triton", "pytorch-triton", "cuda-"))]
    return [(wanted, there[wanted.name]) for wanted in others if wanted.name in there and _is_older(there[wanted.name], wanted)]


def _is_older(there: Distribution, wanted: Requirement) -> bool:
    """Whether a lower bound is not reached; what is newer than torch allows mostly works."""
    bounds = [clause for clause in wanted.specifier.split(",") if clause.startswith((">", "=", "~"))]
    return any(satisfies(there.version, bound) is False and version(there.version) < version(bound) for bound in bounds)


def _against_pin(s: Snapshot, wanted: Requirement, there: Distribution) -> Evidence:
    fits = satisfies(there.version, wanted.specifier)
    if fits is None:
        return unsure(there.name, Missing(Why.UNPARSED, there.location, f"version {there.version[:40]}"), wanted.specifier)
    return Evidence(
        subject=there.name,
        seen=there.version,
        wanted=wanted.specifier,
        verdict=Verdict.PASS if fits or _is_raised(there, wanted) else Verdict.FAIL,
        source=there.location,
        fix=() if fits else pip_install(s, _asked(wanted)),
    )


def _asked(wanted: Requirement) -> str:
    return f"{wanted.name}{wanted.specifier}"


@rule(
    id="nccl-wheel-version-overridden",
    title="The installed NCCL is not the version that torch was built with",
    severity=Severity.WARNING,
    cause="nccl-wheel-version-overridden",
    fix=(Install(text="pip install the NCCL version that torch asks for"),),
)
def nccl_wheel_version_overridden(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The version of the nvidia-nccl wheel is older than the one that torch's metadata pins, or of another major version: another package, or a person,
    replaced it.

    Why it matters
        An older NCCL lacks symbols that torch was linked against.
        Jobs hang if their nodes use different NCCL versions.

    When to leave it
        torch was built against this NCCL. A newer one of the same major version is not reported.

    References
        Requires-Dist of torch's wheels on PyPI.
    """
    for wanted, there in _pinned(s):
        if wanted.name.startswith("nvidia-nccl") and there is not None:
            yield _against_pin(s, wanted, there)


_ON_THEIR_OWN = ("nvidia-nccl", "nvidia-cudnn")
"""What people raise by itself: both keep their interface within a major version, and no other library of NVIDIA's needs the same release."""


def _is_raised(there: Distribution, wanted: Requirement) -> bool:
    """Whether somebody took a newer release of the same major version, as torch's own release notes advise of cuDNN (2.9.1: 9.15 or later)."""
    pinned, own = version(wanted.specifier.lstrip("=~>< ")), version(there.version)
    return wanted.name.startswith(_ON_THEIR_OWN) and own[:1] == pinned[:1] and own > pinned


@rule(
    id="nvidia-wheel-version-differs",
    title="NVIDIA libraries differ from those that torch pins, or packages are older than it requires",
    severity=Severity.WARNING,
    fix=(REINSTALL,),
)
def nvidia_wheel_version_differs(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Wheels of cuBLAS, cuDNN, nvJitLink etc. are not the versions that torch's metadata pins (cuDNN: older); or typing_extensions, SymPy and the like are older
    than it asks for, as where another package was installed after torch.

    Why it matters
        The libraries are built to work together: an older nvJitLink or cuBLAS lacks symbols that the others need ("undefined
        symbol: __nvJitLinkComplete_12_4"), and an older cuDNN lacks kernels that this torch asks for. With an older typing_extensions import torch
        fails ("cannot import name 'TypeIs' from 'typing_extensions'"), with an older SymPy torch.compile.

    When to leave it
        A library was replaced on purpose by a newer one of the same major version; a newer cuDNN, and newer ones of other packages, are not reported.

    References
        Requires-Dist of torch's wheels on PyPI.
    """
    older = _older(s)
    differing = [
        (wanted, there)
        for wanted, there in _pinned_unless(bool(older), s)
        if there is not None
        and not wanted.name.startswith(("nvidia-nccl", "triton"))
        and satisfies(there.version, wanted.specifier) is False
        and not _is_raised(there, wanted)
    ]
    differing += older
    fix = pip_install(s, *(_asked(wanted) for wanted, _ in differing))
    for wanted, there in differing:
        yield Evidence(subject=there.name, seen=there.version, wanted=wanted.specifier, source=there.location, fix=fix)


@rule(
    id="wheel-libs-not-found",
    title="NVIDIA libraries that torch needs are not installed",
    severity=Severity.ERROR,
    cause="wheel-libs-not-found",
    fix=(Install(text="pip install the packages that torch asks for, or reinstall torch with --force-reinstall"),),
)
def wheel_libs_not_found(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A package with NVIDIA libraries that torch's metadata requires is not installed; or the loader finds no library of CUDA that torch's own are
    linked with, where torch asks for no packages (JetPack's wheels, own builds).

    Why it matters
        import torch fails with "libcusparseLt.so.0: cannot open shared object file" or similar.

    When to leave it
        These libraries deliberately come from the system (pip install --no-deps in NVIDIA's containers).

    References
        Requires-Dist of torch's wheels on PyPI.
    """
    said = next(
        (line for line in complaints(s) if "cannot open shared object" in line and any(name in line for name in _TORCH_ONLY)),
        None,
    )
    if said is not None:
        yield Evidence(subject="import torch", seen=said, wanted="the wheel that holds this library", source="loader")
        return
    build, _ = cuda_build(s)
    if cuda_works(s):
        raise NotApplicable("torch says that CUDA is available: it found its libraries")
    if not metadata(s, build).requires:
        lost = [item for item in known(need(s.python).loader, ()) if absent(item.path) and item.name.startswith(_LINKED)]
        if not lost:
            raise NotApplicable("torch's requirements are not known here, and the loader finds what it is linked with")
        for item in lost:
            yield Evidence(
                subject=item.name,
                seen="nowhere on the loader's path",
                wanted="the library",
                source=item.asked_by,
                fix=(_OF_THE_SYSTEM,),
            )
        return
    missing = [wanted for wanted, there in _pinned(s) if there is None and not wanted.name.startswith("triton")]
    fix = pip_install(s, *map(_asked, missing))
    for wanted in missing:
        yield Evidence(subject=wanted.name, seen="not installed", wanted=wanted.specifier, source=build.location, fix=fix)


@rule(
    id="triton-version-differs",
    title="The installed Triton is not the version that torch needs",
    severity=Severity.WARNING,
    fix=(Install(text="pip install the Triton version that torch asks for"),),
)
def triton_version_differs(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch.compile works with one Triton release, which torch's metadata pins.

    Why it matters
        With a different Triton version, torch.compile fails inside its generated code, or compiles wrong code.

    When to leave it
        torch.compile is not used.

    References
        Requires-Dist of torch's wheels on PyPI; docs/source/get-started of triton.
    """
    if no_gpu(s):
        raise NotApplicable("no GPU: torch.compile makes C++ for the CPU, without Triton")
    for wanted, there in _pinned(s):
        if wanted.name == "triton" and there is not None:
            yield _against_pin(s, wanted, there)
