"""CUDA's compilers and driver library, where Triton, DeepSpeed and extensions look for them and which ones they find; cuDNN where others look."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need, need_if_there
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.gates import cuda_torch, nvidia_hardware
from torchtune_sys.rules.torch.common import complaint_of, complaints, cuda_build, installed, installed_triton, names_its_wheels
from torchtune_sys.rules.torch.fixes import quoted

_NO_NVCC = ("nvcc was not found", "CUDA_HOME environment variable is not set", "CUDA_HOME does not exist, unable to compile")
_NO_LIBCUDA = ("cannot find -lcuda", "cannot find -l:libcuda.so.1", "libcuda.so cannot found!")
_NO_CUDNN = ("cannot open shared object", "Unable to load any of", "Could not load library")
_PATCHED = ("/nix/store/", "/gnu/store/")


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
        source=known(python.nvcc_path, "the report"),
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
    said = complaint_of(s, _NO_NVCC)
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
    said = complaint_of(s, _NO_LIBCUDA)
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
