"""Rules on packages that must match the torch build: NumPy, torchvision, extensions."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.formats.requirements import parse, satisfies
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.install_torch import INDEX
from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.facts.python import OF_ONE_TORCH, Distribution, Torch
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, known, need
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.gates import torch_build
from torchtune_sys.rules.torch import accelerator
from torchtune_sys.rules.torch.common import cuda_build, installed, live
from torchtune_sys.rules.torch.fixes import AS_IT_WAS, pip, quoted
from torchtune_sys.rules.torch.made_for import made_for
from torchtune_sys.rules.torch.packages import as_specifier


@rule(
    id="numpy2-with-old-torch",
    title="NumPy 2 is installed with a torch that was built for NumPy 1",
    severity=Severity.ERROR,
    cause="numpy2-with-old-torch",
    fix=(Install(text='pip install "numpy<2", or upgrade torch to 2.3 or later'),),
)
def numpy2_with_old_torch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch before 2.3 was compiled against NumPy 1 and cannot use NumPy 2.

    Why it matters
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2": tensor.numpy() and torch.from_numpy() raise
        "Numpy is not available", so DataLoader workers that use NumPy fail.

    When to leave it
        The program does not exchange arrays with NumPy, or torch was compiled from source against NumPy 2.

    References
        https://github.com/pytorch/pytorch/issues/107302 (NumPy 2.0 support in torch 2.3)
    """
    build = torch_build(s)
    numpy = installed(s).get("numpy") or next((item for item in need(need(s.python).distributions) if item.name == "numpy"), None)
    if numpy is None:
        raise NotApplicable("no NumPy in the judged interpreter")
    clash = version(numpy.version) >= (2,) and version(build.version) < (2, 3)
    behind = [item for item in need(need(s.python).distributions) if item.name == "torch" and version(item.version) >= (2, 3)]
    yield Evidence(
        subject=f"numpy {numpy.version}",
        seen=f"with torch {build.version}"
        + (f" in {build.location}, in front of {behind[0].version}" if clash and behind else ""),
        wanted="numpy < 2 for torch < 2.3",
        verdict=Verdict.FAIL if clash else Verdict.PASS,
        source=numpy.location,
        fix=tuple(
            Advice(
                text=f"use torch {quoted(item.version)} of {quoted(item.location)}, which suits it: take {quoted(build.location.rpartition('/')[0])} out of PYTHONPATH, "
                "or uninstall the torch there"
            )
            for item in behind[:1]
            if clash
        ),
    )


@rule(
    id="torch-torchvision-mismatch",
    title="torchvision was built for a different torch release",
    severity=Severity.WARNING,
    cause="torch-torchvision-mismatch",
    fix=(Install(text="install the torchvision made for this torch, from the same index as torch"),),
)
def torch_torchvision_mismatch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torchvision's compiled operators match one torch release and one CUDA version; up to 0.29.0 each release pins its torch exactly. The package index's
    wheel for x86_64 is built for CUDA, and does not fit a torch from PyTorch's own index for the CPU, ROCm or another CUDA.

    Why it matters
        "operator torchvision::nms does not exist", undefined symbols, or "PyTorch and torchvision have different CUDA versions".

    When to leave it
        Both were built from source together; such builds have no plain version number and are not judged.

    References
        Requires-Dist of torchvision's wheels; the table in README.md of pytorch/vision.
        torchvision/extension.py (_check_cuda_version); 0.28.0 of PyPI beside torch 2.13.0+cpu (readelf -d _C.so: libtorch_cuda.so; tried)
    """
    build = torch_build(s)
    item = installed(s).get("torchvision")
    if item is None:
        raise NotApplicable("no torchvision in the judged interpreter")
    if not releases.is_release(build.version) or not releases.is_release(item.version):
        raise NotApplicable("a build from source, a nightly or a vendor's build: the matching release is not known")
    mine, theirs = accelerator.of_torch(build), accelerator.of_package(s, item, releases.release(build.version))
    # torchvision compares the CUDA versions itself: exactly before 0.16, their major from then on
    fits, alike = _fits(build, item), accelerator.alike(mine, theirs, 1 if version(item.version) >= (0, 16) else 2)
    subject, seen = f"torchvision {item.version}", f"with torch {build.version}"
    fitting = _fitting(build)
    fix = _partner_of(s, build, f"torchvision{fitting}") if fitting else ()
    if not fits:
        wanted = f"torchvision{fitting} for torch {build.version}" if fitting else f"torch{_asked(item)}"
        yield Evidence(subject=subject, seen=seen, wanted=wanted, source=item.location, fix=fix)
    if not alike:
        yield Evidence(
            subject=subject, seen=f"{seen}: {mine} and {theirs}", wanted="both from the same index", source=item.location, fix=fix
        )
    if fits and alike:
        yield Evidence(subject=subject, seen=seen, verdict=Verdict.PASS, source=item.location)


def _asked(item: Distribution) -> str | None:
    """Return the torch that a distribution asks for."""
    return next((wanted.specifier for line in item.requires if (wanted := parse(line)).name == "torch"), None)


def _fitting(build: Torch) -> str | None:
    """Return the torchvision for this torch, where a table knows it."""
    release = releases.release(build.version)
    return as_specifier(release.torchvision) if release and release.torchvision else None


def _fits(build: Torch, item: Distribution) -> bool:
    """Whether the two belong together; also where nobody knows."""
    asked, fitting = _asked(item), _fitting(build)
    if asked is not None:
        return satisfies(build.version, asked) is not False
    return fitting is None or satisfies(item.version, fitting) is not False


def _partner_of(s: Snapshot, build: Torch, wanted: str, instead: str = "") -> tuple[Install, ...]:
    """Return how to get a package made for this torch: from the index that torch's own version names, else from where torch came from."""
    variant, release = build.version.partition("+")[2], releases.release(build.version)
    named = variant in ("cpu", *(release.variants if release else ()))
    index = ("--index-url", f"{INDEX}{variant}") if named else ()
    elsewhere = "" if named else ", from the same index as torch"
    return (Install(text=f"{pip(s, 'install', *AS_IT_WAS, wanted, *index)}{elsewhere}{instead}"),)


@rule(
    id="torch-torchaudio-mismatch",
    title="torchaudio was built for a different torch release",
    severity=Severity.WARNING,
    fix=(Install(text="install the torchaudio made for this torch, or remove torchaudio if nothing imports it"),),
    cause="extension-torch-abi-mismatch",
)
def torch_torchaudio_mismatch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Up to 2.10, each torchaudio release matches one torch minor release; 2.11.0 is the last release and works with torch 2.11 and later. It takes torch's own
    CUDA alone, to the minor version, which the package index's wheel may not be built for.

    Why it matters
        Importing torchaudio fails with an undefined symbol, "Could not load this library", or "PyTorch and TorchAudio were compiled with different CUDA
        versions". Transformers imports it wherever it is installed.

    When to leave it
        Nothing imports torchaudio: it does no harm then.

    References
        Requires-Dist of torchaudio's wheels on PyPI; https://github.com/pytorch/audio/issues/3902
        torchaudio/_extension/utils.py, _check_cuda_version (2.0 to 2.11); 2.11.0 of PyPI beside torch 2.13.0+cpu (tried)
    """
    build = torch_build(s)
    item = installed(s).get("torchaudio")
    release = releases.release(build.version)
    if item is None:
        raise NotApplicable("no torchaudio in the judged interpreter")
    if release is None or not releases.is_release(build.version) or not releases.is_release(item.version):
        raise NotApplicable("the matching release for this build is not known")
    seen = version(item.version)
    fits = seen[:2] == version(release.torchaudio)[:2] or (version(release.torch) >= (2, 11) and seen >= (2, 11))
    wanted = f"torchaudio{as_specifier(release.torchaudio)}"
    mine, theirs = accelerator.of_torch(build), accelerator.of_package(s, item, releases.release(item.version))
    alike = theirs == "CPU" or accelerator.alike(mine, theirs, 2 if seen >= (2,) else 0)
    fits = fits and alike
    yield Evidence(
        subject=f"torchaudio {item.version}",
        seen=f"with torch {build.version}" + ("" if alike else f": {mine} and {theirs}"),
        wanted=f"torchaudio {release.torchaudio}" if alike else "both for the same",
        verdict=Verdict.PASS if fits else Verdict.FAIL,
        source=item.location,
        fix=() if fits else _partner_of(s, build, wanted, "; or remove torchaudio if nothing imports it"),
    )


@rule(
    id="extension-torch-abi-mismatch",
    title="A compiled package was built for another torch version",
    severity=Severity.ERROR,
    cause="extension-torch-abi-mismatch",
    fix=(Install(text="install the release of that package built for this torch, or the torch version that it pins"),),
)
def extension_torch_abi_mismatch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """vLLM, xFormers, torchtext and sgl-kernel are compiled against one torch release, which their metadata pins exactly; the version of natten,
    detectron2, flash-attn, mamba-ssm and PyG's packages names it, or the file that the wheel was installed from (direct_url.json); for torchtext and torchcodec
    a table in their README has it.

    Why it matters
        torch's C++ ABI changes with each release: "undefined symbol: _ZN3c10…" at import.

    When to leave it
        Where the package was rebuilt from source against this torch without changing its metadata.

    References
        Requires-Dist of the packages' wheels on PyPI; versions of the wheels of SHI-Labs/NATTEN, detectron2 and data.pyg.org
    """
    build = torch_build(s)
    # conda-forge builds each anew for other releases of torch
    by_conda = {item.name for item in need(need(s.python).distributions) if item.build}
    for item in (item for name, item in installed(s).items() if name not in ("torchvision", "torchaudio")):
        made = None if item.name in by_conda else made_for(item)
        if made and version(build.version)[:2] != made:
            seen = f"made for torch {show(made)}, with torch {build.version}"
            yield Evidence(subject=f"{item.name} {item.version}", seen=seen, wanted=f"torch {show(made)}", source=item.location)
            continue
        exact = [wanted for wanted in map(parse, item.requires) if wanted.name == "torch" and wanted.specifier.startswith("==")]
        for wanted in exact:
            if not wanted.marker and satisfies(build.version, wanted.specifier) is False:
                seen = f"with torch {build.version}"
                yield Evidence(
                    subject=f"{item.name} {item.version}", seen=seen, wanted=f"torch{wanted.specifier}", source=item.location
                )


def _runs(abi: str, numbers: tuple[int, ...], free_threaded: bool, tag: str) -> bool:
    """Return whether an interpreter loads what was compiled for this ABI; up to 3.7 its name ended in "m"."""
    if abi == "abi3":
        return not free_threaded and numbers >= (3, natural(tag[3:]) or 0)
    mine = f"cp{numbers[0]}{numbers[1]}"
    return abi == f"{mine}t" if free_threaded else abi in (mine, f"{mine}m")


_COMPILED = ("vllm", "xformers", "flash-attn", "torchtext", "torchao", "sgl-kernel")
_OF_CUDA = pattern(r"transformer-engine-cu([0-9]{2})")
"""Packages of compiled code, one for each major version of CUDA, which their names tell."""


@rule(
    id="extension-cuda-mismatch",
    title="A compiled package was built for another CUDA version than torch",
    severity=Severity.ERROR,
    cause="extension-cuda-mismatch",
    fix=(Install(text="install the package's build for torch's CUDA, or torch for the package's CUDA"),),
)
def extension_cuda_mismatch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A package needs the CUDA runtime of a different major version than torch's; bitsandbytes brings a library for each version that it knows, or
    BNB_CUDA_VERSION asks it for one that it has not.

    Why it matters
        "libcudart.so.12: cannot open shared object file" at import, or "Configured CUDA binary not found at …/libbitsandbytes_cuda130.so": the
        package's own kernels cannot be used.

    When to leave it
        The package falls back to something that is good enough.

    References
        https://github.com/vllm-project/vllm/issues/7112; get_cuda_bnb_library_path in bitsandbytes/cextension.py (none of another major version)
    """
    python = need(s.python)
    _build, cuda = cuda_build(s)
    for line in python.complaints:
        rest = line.partition("libcudart.so.")[2]
        wanted = version(rest)
        if "cannot open shared object" in rest and wanted and wanted[0] != cuda[0]:
            yield Evidence(subject="loader", seen=line, wanted=f"a build for CUDA {cuda[0]}", source="report")
    for item in installed(s).values():
        told = _OF_CUDA.fullmatch(item.name)
        theirs = version(told[1]) if told else accelerator.cuda_named(item.version)
        if (told or item.name.startswith(_COMPILED) or item.name in OF_ONE_TORCH) and theirs and theirs[0] != cuda[0]:
            seen = f"built for CUDA {show(theirs)}"
            yield Evidence(subject=f"{item.name} {item.version}", seen=seen, wanted=f"CUDA {cuda[0]}", source=item.location)
    builds = python.bitsandbytes_builds
    if isinstance(builds, Missing):
        if builds.why not in (Why.ABSENT, Why.NOT_RECORDED):
            yield unsure("bitsandbytes", builds)
    elif builds and (named := variables_told(s).get("BNB_CUDA_VERSION", "").strip()):
        if named not in builds:
            seen = f"{named[:8]}, and bitsandbytes has no libbitsandbytes_cuda{named[:8]}.so"
            fix = (EnvironmentVariable(name="BNB_CUDA_VERSION", value=None),)
            yield Evidence(subject="BNB_CUDA_VERSION", seen=seen, wanted=", ".join(builds), source="environment", fix=fix)
    elif builds and all(number[:-1] != str(cuda[0]) for number in builds):
        newest = max(builds, key=int)
        seen = f"libraries for CUDA {builds[0][:-1]}.{builds[0][-1]} to {newest[:-1]}.{newest[-1]}"
        yield Evidence(
            subject="bitsandbytes", seen=seen, wanted=f"one for CUDA {cuda[0]}", source="bitsandbytes/libbitsandbytes_cuda*.so"
        )


@rule(
    id="extension-made-for-cuda",
    title="A package is built for CUDA, but torch is built for ROCm",
    severity=Severity.ERROR,
    cause="cuda-build-on-amd-host",
    fix=(
        Install(
            text="use the package's ROCm build (flash-attn: its Composable Kernel or Triton variant), or do without the package"
        ),
    ),
)
def extension_made_for_cuda(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch is a ROCm build, but a compiled package has a CUDA version in its own version, or needs nvcc to build.

    Why it matters
        Its kernels are NVIDIA machine code: the import fails, or the build stops because there is no nvcc.

    When to leave it
        The package falls back to something that is good enough.

    References
        https://github.com/Dao-AILab/flash-attention (setup.py, BUILD_TARGET); https://rocm.docs.amd.com/
    """
    build = torch_build(s)
    if isinstance(build.hip, Missing) and "+rocm" not in build.version:
        raise NotApplicable("torch is not a ROCm build")
    seen = f"with torch {build.version}"
    for line in need(s.python).complaints:
        if "nvcc was not found" in line or "CUDA_HOME" in line:
            yield Evidence(subject="a build", seen=line, wanted="the package's flavour for ROCm", source="report")
            return
    for item in installed(s).values():
        if (item.name.startswith(_COMPILED) or item.name in OF_ONE_TORCH) and accelerator.cuda_named(item.version):
            yield Evidence(subject=f"{item.name} {item.version}", seen=seen, wanted="its build for ROCm", source=item.location)


@rule(
    id="torch-for-another-python",
    title="The installed torch was compiled for another Python, or another machine",
    severity=Severity.ERROR,
    fix=(
        Install(text="install torch with the interpreter that trains: PYTHON -m pip install torch, in an environment of its own"),
        Advice(text="remove another version's site-packages from PYTHONPATH"),
    ),
)
def torch_for_another_python(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The tags of torch's wheel name another version, ABI (free-threaded or not) or machine than the interpreter's.

    Why it matters
        import torch fails with "No module named 'torch._C'", or "cannot open shared object file". It comes about where PYTHONPATH names the
        packages of another Python, an environment's Python was exchanged, or hosts with x86 and Arm processors share a home directory.

    When to leave it
        Never: extension modules of one Python are not found by another one.

    References
        PEP 425 (tags), PEP 3149 (names of extension modules), PEP 703 (abi "t")
    """
    build = torch_build(s)
    item = installed(s).get("torch")
    compiled = [
        parts for tag in (item.tags if item else ()) if len(parts := tag.split("-", 2)) == 3 and parts[0].startswith("cp")
    ]
    if item is None or not compiled or not build.location.startswith(item.location):
        raise NotApplicable("the imported torch does not say which Python it was compiled for")
    if live(s) is not None:
        raise NotApplicable("torch was imported")
    python = need(s.python)
    numbers = version(need(python.version))
    if len(numbers) < 2:
        raise Unknown(Missing(Why.UNPARSED, "sys.version", f"{python.version} is no version of a Python"))
    fits = any(_runs(abi, numbers, python.free_threaded is True, tag) for tag, abi, _ in compiled)
    made = {name for name in ("x86_64", "aarch64") for *_, platform in compiled if platform.endswith(name)}
    mine = (need(python.machine) if fits and made else known(python.machine, "")).partition(" ")[0]
    strange = bool(made) and mine in ("x86_64", "aarch64") and mine not in made
    yield Evidence(
        subject=f"torch {build.version}",
        seen=", ".join("-".join(parts) for parts in compiled[:3]),
        wanted=f"cp{numbers[0]}{numbers[1]}{'t' if python.free_threaded is True else ''} on {mine or 'this machine'}",
        verdict=Verdict.PASS if fits and not strange else Verdict.FAIL,
        source=f"{item.location}, WHEEL of torch",
    )
