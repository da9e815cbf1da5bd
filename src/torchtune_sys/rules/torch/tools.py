"""CUDA's compilers and driver library, where Triton, DeepSpeed and extensions look for them and which ones they find; cuDNN where others look."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import cuda as drivers
from torchtune_sys.knowledge.torch import sm_range
from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need, need_if_there
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules.driver.common import driver_version
from torchtune_sys.rules.gates import cuda_torch, nvidia_gpus, nvidia_hardware
from torchtune_sys.rules.torch.common import capability, complaints, cuda_build, installed, installed_triton, names_its_wheels
from torchtune_sys.rules.torch.fixes import quoted

_NO_NVCC = ("nvcc was not found", "CUDA_HOME environment variable is not set", "CUDA_HOME does not exist, unable to compile")
_NO_LIBCUDA = ("cannot find -lcuda", "cannot find -l:libcuda.so.1", "libcuda.so cannot found!")
_NO_CUDNN = ("cannot open shared object", "Unable to load any of", "Could not load library")
_PATCHED = ("/nix/store/", "/gnu/store/")
_BAD_IMAGE = "Triton Error [CUDA]: device kernel image is invalid"


def _said(s: Snapshot, words: tuple[str, ...]) -> str | None:
    return next((line for line in complaints(s) if any(word in line for word in words)), None)


@rule(
    id="nvcc-torch-cuda-mismatch",
    title="nvcc and torch have different CUDA major versions",
    severity=Severity.ADVICE,
    cause="nvcc-torch-cuda-mismatch",
    fix=(
        Advice(text="set CUDA_HOME to a toolkit of torch's CUDA version before building extensions"),
        Install(text="or install that toolkit (training itself does not need one)"),
    ),
)
def nvcc_mismatch(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The nvcc that torch would use to build an extension has a different major version than torch's CUDA.

    Why it matters
        Building flash-attn, apex or DeepSpeed's kernels stops with "The detected CUDA version mismatches the version that was
        used to compile PyTorch". Training with prebuilt wheels is not affected, and a different minor version is not a problem.

    When to leave it
        No extension is compiled on this host.

    References
        _check_cuda_version in torch/utils/cpp_extension.py
    """
    build, cuda = cuda_build(s)
    python = need(s.python)
    found = need_if_there(python.nvcc, "no nvcc on this host")
    yield Evidence(
        subject=known(python.nvcc_path, "nvcc"),
        seen=f"CUDA {found}",
        wanted=f"CUDA {show(cuda)}, as torch {build.version}",
        verdict=Verdict.PASS if version(found)[:1] == cuda[:1] else Verdict.FAIL,
        source="version.json",
    )


@rule(
    id="cuda-toolkit-missing",
    title="nvcc is missing, but something has to be compiled with it",
    severity=Severity.ADVICE,
    cause="cuda-toolkit-missing",
    fix=(
        Install(text="install a ready-made wheel of that package, or the CUDA toolkit of torch's CUDA version"),
        Advice(text="set CUDA_HOME to the toolkit if it is not in /usr/local/cuda"),
    ),
)
def cuda_toolkit_missing(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A build reported that nvcc is missing; or DeepSpeed is installed without compiled operators, or SGLang with a FlashInfer that has no kernels compiled
    beforehand (flashinfer-jit-cache), and there is no nvcc to build them.

    torch itself and packages that come as wheels need no toolkit: nothing is reported without a package that does.

    Why it matters
        DeepSpeed compiles FusedAdam, CPUAdam and others on first use: "CUDA_HOME does not exist, unable to compile CUDA op(s)".
        Some of its releases need nvcc even at import. FlashInfer compiles its kernels at their first call, which SGLang makes as it starts.

    When to leave it
        Where DeepSpeed runs with torch's own optimizers, or is there only because another package asks for it.

    References
        https://github.com/sgl-project/sglang/issues/5002; https://docs.flashinfer.ai/installation.html
        https://github.com/deepspeedai/DeepSpeed/issues/2772; op_builder/builder.py of DeepSpeed
        https://github.com/Dao-AILab/flash-attention/issues/1264; _find_cuda_home in torch/utils/cpp_extension.py
    """
    said = _said(s, _NO_NVCC)
    python = need(s.python)
    if said is not None:
        if not isinstance(python.torch, Missing) and "+rocm" in python.torch.version:
            raise NotApplicable("torch is a ROCm build: what was compiled for CUDA would not fit it")
        yield Evidence(subject="nvcc", seen=said, wanted="a CUDA toolkit, or a ready-made wheel", source="report")
        return
    there = installed(s)
    kernels = there.get("flashinfer-python") if "sglang" in there and "flashinfer-jit-cache" not in there else None
    item = kernels or there.get("deepspeed")
    if item is None:
        raise NotApplicable("no installed package compiles CUDA code")
    nvidia_hardware(s)
    cuda_build(s)
    if kernels is None and need(python.deepspeed_operators):
        raise NotApplicable("DeepSpeed was built with its operators")
    subject = f"{item.name} {item.version}"
    if absent(python.nvcc_path):
        home = known(need(s.session).env, {}).get("CUDA_HOME", "")
        seen = f"no nvcc in CUDA_HOME={home}" if home else "no nvcc"
        yield Evidence(subject=subject, seen=seen, wanted="a CUDA toolkit", source="CUDA_HOME, PATH, /usr/local/cuda")
        return
    yield Evidence(subject=subject, seen=need(python.nvcc_path), verdict=Verdict.PASS, source="CUDA_HOME, PATH")


@rule(
    id="libcuda-not-linkable",
    title="Triton cannot link against the driver's libcuda",
    severity=Severity.ADVICE,
    cause="libcuda-not-linkable",
    fix=(
        Advice(text="run ldconfig as root, so that ldconfig -p lists libcuda.so.1"),
        Advice(
            text="for Triton before 3.6, also create a link libcuda.so next to libcuda.so.1 (the driver's package creates it)"
        ),
        EnvironmentVariable(name="TRITON_LIBCUDA_PATH", value="/directory/of/libcuda.so"),
    ),
)
def libcuda_not_linkable(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Triton links a small C module against libcuda, which it looks up with ldconfig -p, then in LD_LIBRARY_PATH.

    Without /etc/ld.so.cache, ldconfig -p fails, and so does Triton, whatever LD_LIBRARY_PATH contains. Up to 3.5 it links with
    -lcuda, which needs a file named libcuda.so; since 3.6 with -l:libcuda.so.1.

    Why it matters
        torch.compile and Triton kernels stop with "cannot find -lcuda" or "libcuda.so cannot found!", although CUDA works.

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        libcuda_dirs in triton/backends/nvidia/driver.py and _build in triton/runtime/build.py, releases 2.1 to 3.9
        https://github.com/pytorch/pytorch/issues/103417
    """
    said = _said(s, _NO_LIBCUDA)
    if said is not None:
        yield Evidence(subject="Triton", seen=said, wanted="libcuda.so where the linker looks", source="report")
        return
    found = installed_triton(s)
    cuda_torch(s)
    triton = version(found.version)
    if triton < (2, 1):
        raise NotApplicable("it is not known how this Triton looks for libcuda")
    if found.location.startswith(_PATCHED):
        raise NotApplicable("this distribution's Triton is told of the driver's directory")
    link = "libcuda.so.1" if triton >= (3, 6) else "libcuda.so"
    listed = need(need(s.python).linkable)
    subject = f"triton {show(triton)}"
    if not listed:
        if not need(need(s.driver).libcuda):
            raise NotApplicable("no libcuda.so.1 at all: the driver's libraries are missing")
        wanted = "libcuda.so" if triton < (3,) else "libcuda.so.1"
        yield Evidence(subject=subject, seen=f"ldconfig -p lists no {wanted}", wanted=wanted, source="/etc/ld.so.cache")
        return
    there = [path for path in listed if path.rpartition("/")[2] == link]
    yield Evidence(
        subject=subject,
        seen=there[0] if there else f"only {listed[0]}",
        wanted=f"a file named {link} where the linker looks",
        verdict=Verdict.PASS if there else Verdict.FAIL,
        source="/etc/ld.so.cache",
    )


_OTHER_CUDNN = Install(text="or install a build of the package for this cuDNN")


@rule(
    id="cudnn-not-on-loader-path",
    title="The cuDNN of the Python environment is not on the loader's path",
    severity=Severity.ERROR,
    cause="cudnn-not-on-loader-path",
    fix=(
        Advice(text="add the directory of the environment's cuDNN to LD_LIBRARY_PATH in the job's start script"),
        _OTHER_CUDNN,
    ),
)
def cudnn_not_on_loader_path(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """cuDNN is installed in the environment, but torch's own library or another package looks for it elsewhere.

    torch's wheels contain the path; builds from conda, vendors or source, ONNX Runtime and CTranslate2 leave it to the loader.

    Why it matters
        "libcudnn.so.9: cannot open shared object file", or the other package silently falls back to the CPU.

    When to leave it
        Where the package that complains is not used for training.

    References
        ld.so(8), order of search; https://github.com/SYSTRAN/faster-whisper/issues/516
    """
    build, _cuda = cuda_build(s)
    own = next((item for name, item in installed(s).items() if name.startswith("nvidia-cudnn")), None)
    if own is None:
        raise NotApplicable("no cuDNN in the Python environment")
    major = version(own.version)[:1]
    place = f"{own.location}/nvidia/cudnn/lib" if own.location.startswith("/") else "the directory nvidia/cudnn/lib"
    named = quoted(place) if own.location.startswith("/") else place
    fix = (Advice(text=f"add {named} to LD_LIBRARY_PATH in the job's start script"), _OTHER_CUDNN)
    for line in complaints(s):
        about = "libcudnn" in line and any(word in line for word in _NO_CUDNN)
        if about and version(line.partition(".so.")[2])[:1] in ((), major):
            yield Evidence(subject="loader", seen=line, wanted=place, source="report", fix=fix)
            return
    loader = need(s.python).loader
    if isinstance(loader, Missing) and loader.why is Why.NOT_RECORDED and names_its_wheels(build, own):
        yield Evidence(subject=f"torch {build.version}", seen=place, verdict=Verdict.PASS, source=build.location)
        return
    for item in need(loader):
        source = item.asked_by or build.location
        if not item.name.startswith("libcudnn"):
            continue
        if not isinstance(item.path, Missing):
            if item.name.startswith("libcudnn.so"):
                yield Evidence(subject=item.name, seen=item.path, wanted=place, verdict=Verdict.PASS, source=source)
        elif not absent(item.path):
            yield unsure(item.name, item.path)
        elif item.name.endswith(f".so.{show(major)}"):
            yield Evidence(subject=item.name, seen="not found", wanted=place, source=source, fix=fix)


def _bundled(triton: Version, blackwell: bool) -> Version:
    """CUDA version of the ptxas in PyPI's wheels of Triton; the second one, from 3.6 on, is for compute capability 10 and later."""
    table = ((3, 9), (13, 4)), ((3, 8), (13, 3)), ((3, 7), (13, 1)), ((3, 6), (12, 9))
    if blackwell and triton >= (3, 6):
        return next(cuda for release, cuda in table if triton >= release)
    older = ((3, 8), (12, 9)), ((3, 4), (12, 8)), ((3, 0), (12, 4)), ((2, 2), (12, 3)), ((2, 1), (12, 1))
    return next((cuda for release, cuda in older if triton >= release), ())


def _variable(triton: Version, blackwell: bool) -> str:
    return "TRITON_PTXAS_BLACKWELL_PATH" if blackwell and triton >= (3, 6) else "TRITON_PTXAS_PATH"


def _another_ptxas(s: Snapshot, triton: Version, blackwell: bool, supported: Version) -> tuple[EnvironmentVariable, ...]:
    """Return the newest ptxas on this host whose code the driver loads; else what leaves Triton its own, where another one was named."""
    name = _variable(triton, blackwell)
    found = [
        (version(number), place) for place, _, number in (item.partition(" (") for item in known(need(s.python).toolkits, ()))
    ]
    fitting = [(number, place) for number, place in found if number[:1] <= supported and (not blackwell or number >= _BLACKWELL)]
    if fitting:
        return (EnvironmentVariable(name=name, value=f"{max(fitting)[1]}/bin/ptxas"),)
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
    for toolkit in known(need(s.python).toolkits, ()):
        place, _, number = toolkit.partition(" (")
        if named.startswith(f"{place}/"):
            return named, version(number)
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
    said = _said(s, (_BAD_IMAGE,))
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
    fix=(Install(text="install a newer torch, whose Triton brings a newer ptxas"),),
)
def triton_ptxas_older(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The ptxas that Triton runs, its own or the one that a variable names, is of a CUDA that does not know this GPU.

    Why it matters
        torch runs, and torch.compile and Triton's kernels stop with "ptxas fatal : Value 'sm_121a' is not defined for option 'gpu-name'".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        https://docs.nvidia.com/cuda/archive/ (release notes: the architectures that each release brought)
        get_ptxas in triton/backends/nvidia/compiler.py
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
        older = number > known_to[1] or (number == 103 and ptxas < (12, 9))  # older numbers came later, too
        own = sm_range(_bundled(triton, blackwell))
        named = _variable(triton, blackwell)
        fits = own is not None and number <= own[1] and need(need(s.session).env).get(named)
        yield Evidence(
            subject=path,
            seen=f"CUDA {show(ptxas)}, up to sm_{known_to[1]}",
            wanted=f"a CUDA that compiles for sm_{number}",
            verdict=Verdict.FAIL if older else Verdict.PASS,
            source=f"triton {show(triton)}",
            fix=(EnvironmentVariable(name=named, value=None),) if older and fits else (),
        )


RULES = (
    nvcc_mismatch,
    cuda_toolkit_missing,
    libcuda_not_linkable,
    cudnn_not_on_loader_path,
    triton_ptxas_newer,
    triton_ptxas_older,
)
