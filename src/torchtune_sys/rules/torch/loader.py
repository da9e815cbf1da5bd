"""Rules on libraries that the dynamic loader finds before or instead of torch's own."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.facts.python import CudaLibrary, Distribution, LoaderChoice
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent, known, need
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.driver.common import driver_version
from torchtune_sys.rules.gates import nvidia_hardware, torch_imported
from torchtune_sys.rules.torch.common import complaints, cuda_build, cuda_works, installed, label, names_its_wheels
from torchtune_sys.rules.torch.fixes import quoted

UNSET = EnvironmentVariable(name="LD_LIBRARY_PATH", value=None)


def _without(place: str) -> Advice:
    return Advice(text=f"or remove {place} from LD_LIBRARY_PATH: torch's wheels find their own libraries")


REMOVE = _without("the library's directory")


def _wheel(s: Snapshot, names: tuple[str, ...]) -> Distribution:
    found = next((item for name, item in installed(s).items() if name in names), None)
    if found is None:
        raise NotApplicable("torch's own copy is not in a wheel")
    return found


def _older(s: Snapshot, library: str, wheels: tuple[str, ...]) -> Iterator[Evidence]:
    """Yield the copy in LD_LIBRARY_PATH that the loader would take for the wheel's, where it is older.

    Only the number that the loader asks for counts (libcudnn.so.9): a copy of another major version is never taken.
    """
    said = _said(s, library)
    if said is not None:
        yield Evidence(subject="loader", seen=said, wanted="the library that torch brings", source="report")
        return
    build, cuda = cuda_build(s)
    own = _wheel(s, tuple(name.replace("*", str(cuda[0])) for name in wheels))
    if cuda_works(s):
        raise NotApplicable("torch says that CUDA is available with the libraries as they are")
    abi = show(version(own.version)[:1])
    loader = need(s.python).loader
    if not isinstance(loader, Missing):
        yield from _taken(loader, library, abi, own)
        return
    lying = need(need(s.python).shadowing)
    other = next((item for item in lying if item.name == library and item.abi == abi), None)
    if other is None:
        if loader.why is not Why.NOT_RECORDED or not names_its_wheels(build, own) or lying or not _nothing_before(s):
            need(loader)  # what LD_PRELOAD, a cache or DT_RUNPATH bring was not seen
        yield Evidence(subject=library, seen="LD_LIBRARY_PATH is not set", verdict=Verdict.PASS, source="environment")
        return
    if other.path.startswith(own.location):
        return
    yield _compared(other.path, other.version, own, "LD_LIBRARY_PATH")


def _nothing_before(s: Snapshot) -> bool:
    """Nothing goes before the places that torch's libraries name: only these two variables do (ld.so(8))."""
    env = known(need(s.session).env, None)
    return env is not None and not env.get("LD_LIBRARY_PATH") and not env.get("LD_PRELOAD")


def _taken(loader: tuple[LoaderChoice, ...], library: str, abi: str, own: Distribution) -> Iterator[Evidence]:
    """By what the loader would take, as DT_RPATH, DT_RUNPATH and torch's own preloading have it: most wheels are not touched by
    LD_LIBRARY_PATH, but for what their libraries open by name."""
    taken = [item for item in loader if not absent(item.path) and _is_of(item, library, abi)]
    for item in taken:
        if isinstance(item.path, Missing):
            yield unsure(item.name, item.path)
            return
        if not item.path.startswith(f"{own.location}/"):
            yield _compared(item.path, item.version, own, item.found_by)
            return
    if taken:
        yield Evidence(subject=library, seen=f"the wheel's {own.version}", verdict=Verdict.PASS, source=own.location)


def _is_of(item: LoaderChoice, library: str, abi: str) -> bool:
    """Tell whether it is the library itself, or one that it is divided into (``libcudnn_graph.so.9``)."""
    stem, _, number = item.name.partition(".so.")
    return number == abi and (stem == library or stem.startswith(f"{library}_"))


def _compared(path: str, number: str, own: Distribution, source: str) -> Evidence:
    seen = version(number)
    if len(seen) < _TELLING:
        return unsure(path, _untold(path), f"nothing older than the wheel's {own.version}")
    digits = min(len(seen), len(version(own.version)))
    older = seen[:digits] < version(own.version)[:digits]
    return Evidence(
        subject=path,
        seen=number,
        wanted=f"nothing older than the wheel's {own.version}",
        verdict=Verdict.FAIL if older else Verdict.PASS,
        source=source,
        fix=(UNSET, _without(quoted(path.rpartition("/")[0]))) if older else (),
    )


_TELLING = 2
"""Numbers of a version that tell older from newer: the first alone is what the loader asks for."""


def _untold(path: str) -> Missing:
    return Missing(
        Why.UNPARSED,
        path,
        "its name does not tell its version",
        "torchtune-sys check --live, where torch itself says whether it can be loaded",
    )


_SAYINGS = {
    "libcudnn": ("cuDNN version incompatibility", "version libcudnn_"),
    "libnvJitLink": ("undefined symbol: __nvJitLink",),
    "libcublasLt": ("undefined symbol: cublasLt",),
    "libnccl": (),
}
"""How the loader and torch complain of each."""


def _said(s: Snapshot, library: str) -> str | None:
    """Return a complaint in the report, or of the import under --live, that only this fault brings about."""
    for line in complaints(s):
        if any(words in line for words in _SAYINGS[library]) and "cannot open shared object" not in line:
            return line
    return None


@rule(
    id="cudnn-shadowed-by-ld-library-path",
    title="LD_LIBRARY_PATH puts an older cuDNN before torch's own",
    severity=Severity.ERROR,
    cause="cudnn-shadowed-by-ld-library-path",
    fix=(UNSET, REMOVE),
)
def cudnn_shadowed(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A directory in LD_LIBRARY_PATH holds a cuDNN that is older than the wheel's, with the same major version.

    The loader searches LD_LIBRARY_PATH before the path in the library itself, and cuDNN opens its sublibraries by name.

    Why it matters
        "cuDNN version incompatibility", or undefined symbols in libcudnn_*.so: parts of two versions do not fit.

    When to leave it
        Where torch was built from source against that cuDNN.

    References
        ld.so(8), order of search; torch/backends/cudnn/__init__.py, which says so in its error message.
    """
    yield from _older(s, "libcudnn", ("nvidia-cudnn-cu*",))


@rule(
    id="nvjitlink-shadowed-by-ld-library-path",
    title="LD_LIBRARY_PATH puts an older nvJitLink before torch's own",
    severity=Severity.ERROR,
    cause="nvjitlink-shadowed-by-ld-library-path",
    fix=(UNSET, REMOVE),
)
def nvjitlink_shadowed(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A directory in LD_LIBRARY_PATH holds a libnvJitLink that is older than the wheel's, with the same major version.

    Why it matters
        import torch ends in "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12": the wheel's cuSPARSE needs
        a symbol of its own CUDA minor version. Since 2.6, torch first loads the wheel's nvJitLink by its full path.

    When to leave it
        import torch works nevertheless (check with --live).

    References
        https://github.com/pytorch/pytorch/issues/131312; ld.so(8).
    """
    yield from _older(s, "libnvJitLink", ("nvidia-nvjitlink-cu*", "nvidia-nvjitlink"))


@rule(
    id="cublas-shadowed-by-ld-library-path",
    title="LD_LIBRARY_PATH puts an older cuBLAS before torch's own",
    severity=Severity.WARNING,
    cause="cublas-shadowed-by-ld-library-path",
    fix=(UNSET, REMOVE),
)
def cublas_shadowed(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A directory in LD_LIBRARY_PATH holds a libcublasLt that is older than the wheel's, with the same major version.

    Why it matters
        The wheel's libcublas binds to it and misses a symbol ("cublasLtHSHMatmulAlgoInit"). This affects builds whose libraries
        use DT_RUNPATH, which LD_LIBRARY_PATH overrides, or no run path at all. PyPI's wheels use DT_RPATH since 2.0.

    When to leave it
        Where import torch works.

    References
        https://github.com/pytorch/pytorch/issues/88882; ld.so(8), DT_RPATH and DT_RUNPATH.
    """
    yield from _older(s, "libcublasLt", ("nvidia-cublas-cu*", "nvidia-cublas"))


@rule(
    id="nccl-shadowed-by-system-library",
    title="LD_LIBRARY_PATH puts an older NCCL before torch's own",
    severity=Severity.WARNING,
    cause="nccl-shadowed-by-system-library",
    fix=(UNSET, REMOVE),
)
def nccl_shadowed(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A directory in LD_LIBRARY_PATH holds a libnccl.so.2 that is older than the wheel's.

    Why it matters
        torch may load it ("undefined symbol: ncclCommRegister"), or another package in the process (a plug-in, CuPy) may: then
        there are two NCCLs in one process, or a different NCCL than on the other nodes.

    When to leave it
        You use your own build of NCCL on purpose.

    References
        https://github.com/pytorch/pytorch/issues/119932; ld.so(8).
    """
    yield from _older(s, "libnccl", ("nvidia-nccl-cu*", "nvidia-nccl"))


@rule(
    id="forward-compat-unsupported-gpu",
    title="CUDA's forward-compatibility library is used on a GPU that does not support it",
    severity=Severity.ERROR,
    cause="forward-compat-unsupported-gpu",
    fix=(
        Advice(
            text="remove the cuda-compat package, or its directory from the loader's path (images for an older CUDA have none)"
        ),
        Install(text="or install a driver that supports the image's CUDA on the host"),
    ),
    applies=None,
)
def forward_compat(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The loader finds libcuda in a cuda-compat directory, newer than the driver, and the GPU is a GeForce or TITAN.

    Why it matters
        CUDA does not start: error 804, "forward compatibility was attempted on non supported HW". Only data-centre GPUs (and
        some RTX workstation cards) support it.

    When to leave it
        Never on these GPUs.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    python = need(s.python)
    said = next((line for line in python.complaints if "forward compatibility was attempted" in line), None)
    if said is not None and (
        isinstance(s.gpu, Missing) or not s.gpu.error
    ):  # a driver that was upgraded without a reboot says it too
        yield Evidence(subject="CUDA", seen=said, wanted="libcuda of the driver", source="report")
        return
    nvidia_hardware(s)
    compat = next((item for item in need(python.shadowing) if _is_compat(item)), None)
    if compat is None:
        return
    driver = need(driver_version(s))
    if version(compat.version) and version(compat.version) <= version(driver):
        return
    for gpu in need(need(s.gpu).devices):
        if isinstance(gpu.name, Missing):
            yield unsure(label(gpu), gpu.name)
        elif any(word in gpu.name for word in ("GeForce", "TITAN", "Titan")):
            yield Evidence(
                subject=label(gpu), seen=f"{compat.path} with driver {driver}", wanted="libcuda of the driver", source=gpu.name
            )


def _is_compat(item: CudaLibrary) -> bool:
    return item.name == "libcuda" and item.abi == "1" and "compat" in item.path.rpartition("/")[0]


@rule(
    id="libstdcxx-too-old",
    title="The loader finds a libstdc++ that is older than torch needs",
    severity=Severity.ERROR,
    cause="libstdcxx-too-old",
    fix=(
        Advice(
            text="in a conda environment: conda install -c conda-forge libstdcxx-ng, and take system directories out of LD_LIBRARY_PATH"
        ),
        Install(text="elsewhere: use a newer libstdc++ from the distribution, or a container with one"),
    ),
)
def libstdcxx_too_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The loader said that libstdc++.so.6 lacks a version (GLIBCXX_3.4.N) that a package was built with; or LD_LIBRARY_PATH leads to one
    from before GCC 6, and torch is a wheel for manylinux_2_28, which asks for GLIBCXX_3.4.22.

    What a report says, and what torch says under --live, takes precedence over the files. conda's interpreters bring their own
    library and are not judged by the files.

    Why it matters
        The package, often torch itself, cannot be loaded: the system's library was found before the environment's newer one.

    When to leave it
        Never.

    References
        https://github.com/pytorch/pytorch/issues/157709; https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html (libstdc++.so.6.0.22 is GLIBCXX_3.4.22)
        torch 2.13.0+cpu for manylinux_2_28: asks for up to GLIBCXX_3.4.22 (readelf -V libtorch_cpu.so)
    """
    said = [line for line in complaints(s) if ("GLIBCXX_" in line or "CXXABI_" in line) and "not found" in line]
    for line in said:
        yield Evidence(subject="loader", seen=line, wanted="a libstdc++.so.6 that has it", source="loader")
    if said:
        return
    other = _strings_missing(s)
    if other is not None:
        yield Evidence(
            subject=other.path,
            seen=other.version,
            wanted=f"libstdc++.so.6.0.{_NEEDED} or newer, as torch asks for",
            source="LD_LIBRARY_PATH",
        )
        return
    seen = need(torch_imported(s))
    yield Evidence(subject="import torch", seen=f"torch {seen.version}", verdict=Verdict.PASS, source="torch")


_NEEDED = 22
"""The last part of the number of GCC 6's libstdc++, the first with GLIBCXX_3.4.22, for which these wheels ask."""


def _strings_missing(s: Snapshot) -> CudaLibrary | None:
    """Return the library in LD_LIBRARY_PATH without which torch cannot be loaded, as far as files tell it."""
    python = need(s.python)
    if isinstance(python.shadowing, Missing) or python.conda is not False or not absent(python.live):
        return None
    wheel = None if isinstance(python.distributions, Missing) else installed(s).get("torch")
    if wheel is None or not any("manylinux_2_28" in tag for tag in wheel.tags):
        return None
    first = next((item for item in python.shadowing if item.name == "libstdc++" and item.abi == "6"), None)
    if first is None:
        return None
    patch = natural(first.version.removeprefix("6.0."))
    if patch is None:
        raise Unknown(_untold(first.path))
    return first if patch < _NEEDED else None
