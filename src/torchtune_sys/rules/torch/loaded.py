"""Rules on whether torch can be imported, the libraries that it was seen to load (``--live``), and releases that are too old to train with."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.eol import end_of_life
from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need, need_if_there
from torchtune_sys.model.version import version
from torchtune_sys.rules.environment.common import environment
from torchtune_sys.rules.gates import release_of, torch_build, torch_imported
from torchtune_sys.rules.torch.common import installed
from torchtune_sys.rules.torch.fixes import pip_install, quoted

_OPENMP = ("libgomp", "libomp", "libiomp5")
_OF_WINDOWS = "/usr/lib/wsl/drivers/"
"""Where WSL2 mounts Windows' drivers: /usr/lib/wsl/lib/libcuda.so.1 is a loader there, and opens libcuda.so.1.1 of this directory
(both names in the container toolkit's log of https://github.com/NVIDIA/k8s-device-plugin/issues/207)."""


def soname(path: str) -> str:
    """Return what the loader asks for, as far as the file's name tells.

    >>> soname("/opt/cuda/lib64/libcudart.so.12.4.127"), soname("/a/libnccl.so"), soname("/b/libcudart-d0da41ae.so.11.0")
    ('libcudart.so.12', 'libnccl.so', 'libcudart.so.11')
    """
    stem, _, numbers = path.rpartition("/")[2].partition(".so")
    name, dash, tag = stem.rpartition("-")
    stem = name if dash and len(tag) == 8 and all(c in "0123456789abcdef" for c in tag) else stem  # auditwheel's mark
    major = numbers[1:].partition(".")[0]
    return f"{stem}.so.{major}" if major else f"{stem}.so"


@rule(
    id="torch-import-fails",
    title="torch cannot be imported",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="read what the import says; a clean virtual environment with only torch shows whether a package or the host is the "
            "cause"
        ),
    ),
)
def torch_import_fails(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """pip lists torch but its files, or some of them, are gone, its environment has lost its pyvenv.cfg, one of its libraries is cut short, or a module that it, or
    each of its optimizers, imports is not installed, or one that it imports at once is hidden by a file of its name on PYTHONPATH, or the module of an extension that it loads by itself is gone; or, with --live, importing it in the judged
    interpreter failed.

    Why it matters
        Nothing can train.

    When to leave it
        Never; but the cause may be the shell's environment rather than torch.

    References
        What Python printed. torch/__init__.py, _import_device_backends: since 2.5, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0.
    """
    python = need(s.python)
    if isinstance(python.torch, Missing) and python.torch.why is Why.FAILED and python.torch.source.endswith("/torch"):
        lost = "pyvenv.cfg" in python.torch.detail
        yield Evidence(
            subject="torch",
            seen=python.torch.detail,
            wanted="the package where Python looks for it",
            source=python.torch.source,
            fix=(
                Advice(
                    text="python3 -m venv DIRECTORY with the Python it was made with: it writes pyvenv.cfg again and keeps the packages"
                ),
            )
            if lost
            else (),
        )
        return
    if faults := tuple(_seen_in_files(s)):
        yield from faults
        return
    found = torch_imported(s)
    torch_build(s)
    if isinstance(found, Missing) and found.source == "import torch":
        lacking = _LACKING.search(found.detail)
        how = (Install(text=f"install what holds the module {lacking[1]}, with the interpreter that trains"),) if lacking else ()
        yield Evidence(subject="import torch", seen=found.detail, wanted="an import without error", source=found.source, fix=how)
        return
    if isinstance(found, Missing) and (crash := _CRASHED.search(found.detail)):
        cut = crash[1] in ("SIGBUS", "SIGSEGV", "SIGILL")
        fix = (Advice(text=_DAMAGED),) if cut else ()
        yield Evidence(subject="import torch", seen=found.detail, wanted="an import without error", source=found.source, fix=fix)
        return
    seen = need(found)
    yield Evidence(subject="import torch", seen=f"torch {seen.version}", verdict=Verdict.PASS, source="torch")


@rule(
    id="cuda-library-loaded-twice",
    title="Two copies of one CUDA library are loaded in the same process",
    severity=Severity.WARNING,
    fix=(Advice(text="remove the copy that is not torch's own: its directory from LD_LIBRARY_PATH, or the second package"),),
)
def cuda_library_loaded_twice(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Under --live: importing torch mapped two files for one library name.

    Why it matters
        Each copy has its own state, and symbols come from whichever was loaded first: wrong versions at best, crashes and
        communicators that do not know each other at worst.

    When to leave it
        Where both files are the same version and training works.

    References
        https://man7.org/linux/man-pages/man8/ld.so.8.html
    """
    live = need(torch_imported(s))
    torch_build(s)
    groups: dict[str, list[str]] = {}
    for path in need(live.libraries):
        name = soname(path)
        if not name.startswith((*_OPENMP, "libmkl")) and not path.startswith(_OF_WINDOWS):
            groups.setdefault(name, []).append(path)
    doubled = {name: paths for name, paths in groups.items() if len(paths) > 1}
    for name, paths in doubled.items():
        yield Evidence(subject=name, seen=" and ".join(paths[:3]), wanted="one file", source="/proc/self/maps")
    if not doubled:
        yield Evidence(subject="libraries", seen=f"{len(groups)}, each once", verdict=Verdict.PASS, source="/proc/self/maps")


@rule(
    id="openmp-runtime-conflict",
    title="Two incompatible OpenMP runtimes are loaded",
    severity=Severity.WARNING,
    cause="openmp-runtime-conflict",
    fix=(
        EnvironmentVariable(name="MKL_THREADING_LAYER", value="GNU"),
        Advice(text="take torch, NumPy and MKL from one channel, so that they share one OpenMP runtime"),
    ),
)
def openmp_runtime_conflict(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """With --live: both LLVM's and Intel's OpenMP are loaded, or MKL is told to use Intel's while GNU's is loaded.

    libgomp together with libiomp5 alone is not reported: they work side by side, each with its own thread pool.

    Why it matters
        libomp and libiomp5 in one process deadlock or crash on Linux. MKL with MKL_THREADING_LAYER=INTEL refuses to work once
        libgomp is loaded ("MKL_THREADING_LAYER=INTEL is incompatible with libgomp").

    When to leave it
        Never.

    References
        https://github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md
        https://github.com/pytorch/pytorch/issues/37377
    """
    live = need(torch_imported(s))
    torch_build(s)
    names = {path.rpartition("/")[2] for path in need(live.libraries)}
    runtimes = [name for name in _OPENMP if any(file.startswith((f"{name}.", f"{name}-")) for file in names)]
    mkl = any(file.startswith("libmkl_rt") for file in names)
    layer = need(need(s.session).env).get("MKL_THREADING_LAYER", "").upper()
    refused = mkl and layer == "INTEL" and "libgomp" in runtimes
    bad = {"libomp", "libiomp5"} <= set(runtimes) or refused
    yield Evidence(
        subject="OpenMP",
        seen=", ".join(runtimes) + (", MKL_THREADING_LAYER=INTEL" if refused else "") or "none",
        wanted="one runtime",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source="/proc/self/maps",
    )


@rule(
    id="torch-cpu-code-slow",
    title="torch uses its slowest CPU code on a CPU that supports faster code",
    severity=Severity.ADVICE,
    fix=(
        EnvironmentVariable(name="ATEN_CPU_CAPABILITY", value=None),
        Install(text="reinstall torch from an official wheel or from conda-forge"),
    ),
)
def torch_cpu_code_slow(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """With --live: torch selected its default CPU kernels although the processor supports AVX2.

    Why it matters
        Augmentation, CPU optimizers and everything else on the CPU run several times slower.

    When to leave it
        Results must not depend on the instruction set.

    References
        aten/src/ATen/native/DispatchStub.cpp; https://pytorch.org/docs/stable/backends.html#torch-backends-cpu
    """
    live = need(torch_imported(s))
    torch_build(s)
    if "avx2" not in need(need(s.cpu).flags):
        raise NotApplicable("no processors with AVX2")
    level = need(live.cpu_capability)
    slow = level.upper() in ("DEFAULT", "NO AVX")
    yield Evidence(
        subject="torch on the CPU",
        seen=level,
        wanted="AVX2 or AVX512",
        verdict=Verdict.FAIL if slow else Verdict.PASS,
        source="torch.backends.cpu.get_cpu_capability()",
    )


@rule(
    id="mkl-old",
    title="torch was built with an MKL from before 2021",
    severity=Severity.ADVICE,
    fix=(Install(text="install a torch release that is built with oneMKL (2021 or later)"),),
)
def mkl_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """With --live: torch.__config__ reports an MKL from before 2021.

    Why it matters
        MKL before oneMKL uses its slowest code paths on AMD processors and lacks those for newer Intel processors.

    When to leave it
        No heavy computation runs on the CPU.

    References
        Intel oneMKL release notes (2021.1 follows 2020 Update 4); torch.__config__.show()
    """
    live = need(torch_imported(s))
    torch_build(s)
    found = need_if_there(live.mkl, "torch was built without MKL")
    old = version(found) < (2021,)
    verdict = Verdict.FAIL if old else Verdict.PASS
    yield Evidence(subject="MKL", seen=found, wanted="2021 or later", verdict=verdict, source="torch.__config__")


@rule(
    id="torch-release-old",
    title="torch is older than 2.0 or than an installed library takes, or its cuDNN is older than 8.2",
    severity=Severity.ADVICE,
    fix=(Install(text="install a current torch release that the driver and Python support"),),
)
def torch_release_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch 1.x ended with 1.13 in 2022; no build of torch 2 comes with a cuDNN older than 8.2. Of libraries that refuse an old torch by themselves Transformers 5 is
    known, which asks for 2.4.

    Why it matters
        No torch.compile, no scaled_dot_product_attention, and no more bug fixes. Transformers says "Disabling PyTorch because PyTorch >= 2.4 is required", and its models
        and Trainer are then missing.

    When to leave it
        You need to reproduce old results with the old software.

    References
        https://pytorch.org/blog/pytorch-2-0-release/
        huggingface/transformers src/transformers/utils/import_utils.py (is_torch_available)
    """
    build = torch_build(s)
    old = version(build.version) < (2,)
    yield Evidence(
        subject="torch",
        seen=build.version,
        wanted="2.0 or later",
        verdict=Verdict.FAIL if old else Verdict.PASS,
        source=build.location,
    )
    if not isinstance(build.cudnn, Missing) and version(build.cudnn) < (8, 2):
        yield Evidence(subject="cuDNN", seen=build.cudnn, wanted="8.2 or later", source=build.location)
    library = known(release_of(need(s.python).distributions, "transformers"), "")
    if version(library) >= (5,) and (2,) <= version(build.version) < (2, 4):
        yield Evidence(
            subject=f"transformers {library}",
            seen=f"torch {build.version}, which it does not use",
            wanted="torch 2.4 or later",
            source=build.location,
            fix=(Install(text="install torch 2.4 or later, or transformers below 5"),),
        )


@rule(
    id="python-end-of-life",
    title="This Python version is no longer supported",
    severity=Severity.ADVICE,
    fix=(Install(text="create the training environment with a supported Python for which torch has wheels"),),
)
def python_end_of_life(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """This Python minor version no longer gets security fixes of its own (a distribution may keep its own copy safe), and new releases of torch leave it out
    sooner or later.

    Why it matters
        New releases of torch and its ecosystem come without wheels for it: pip silently installs old ones.

    When to leave it
        The environment is frozen and nothing new will be installed.

    References
        https://devguide.python.org/versions/
    """
    torch_build(s)
    found = need(need(s.python).version)
    minor = ".".join(found.split(".")[:2])
    end = end_of_life("python", minor)
    if end is None:
        yield Evidence(
            subject=f"Python {minor}", seen="no end-of-life date is known", verdict=Verdict.PASS, source="devguide.python.org"
        )
        return
    today = need(need(s.system).today)
    yield Evidence(
        subject=f"Python {minor}",
        seen=f"support ended on {end.date}" if today > end.date else f"supported until {end.date}",
        wanted="a supported version",
        verdict=Verdict.FAIL if today > end.date else Verdict.PASS,
        source=end.source,
    )


def _seen_in_files(s: Snapshot) -> Iterator[Evidence]:
    """Yield why an import would fail, as far as files tell it; where torch was imported (--live) that counts."""
    python = need(s.python)
    if isinstance(python.torch, Missing) or not isinstance(python.live, Missing):
        return
    for words in known(python.cut_libraries, ()):
        yield Evidence(
            subject="torch", seen=words, wanted="whole libraries", source=python.torch.location, fix=(Advice(text=_DAMAGED),)
        )
    if python.lost_parts:
        yield Evidence(
            subject="torch",
            seen=f"not there: {', '.join(f'torch/{name}' for name in python.lost_parts)}",
            wanted="the whole package",
            source=python.torch.location,
            fix=(Advice(text=_NOT_WHOLE),),
        )
    for path in python.hiding:
        folder, _, file = path.removesuffix("/__init__.py").rpartition("/")
        yield Evidence(
            subject="import torch",
            seen=f"{path} is imported in place of the module {file.removesuffix('.py')}",
            wanted="the module that torch means",
            source="sys.path",
            fix=(Advice(text=f"rename it, or take {quoted(folder)} out of PYTHONPATH"),),
        )
    for words in python.lost_backends if _loads_backends(s, python.torch) else ():
        yield Evidence(
            subject="import torch",
            seen=f"loads the backend extension {words}, which is not there",
            wanted="the module of each extension in the group torch.backends",
            source="entry_points.txt",
            fix=(
                Advice(text="install its package again, or remove it with pip; TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves all out"),
            ),
        )
    item = None if isinstance(python.distributions, Missing) else installed(s).get("torch")
    asked = () if item is None else item.requires
    if "_ctypes" in python.not_found:
        yield Evidence(
            subject="import torch",
            seen="there is no module _ctypes: this Python was built where libffi's headers were not installed",
            wanted="a Python with ctypes, which torch imports",
            source="sys.path",
            fix=(Advice(text=_BUILT_WITHOUT),),
        )
    for name in python.not_found:
        package = name.replace("_", "-")
        by = _BY_OPTIMIZERS.get(package, package)
        late = package in _BY_OPTIMIZERS
        if (late and version(python.torch.version)[:2] < _SINCE) or (by != package and by in python.not_found):
            continue
        if any(line.replace("_", "-").lower().startswith(by) for line in asked):
            behind = " (packages were installed with --no-deps, or removed)"
            yield Evidence(
                subject="torch's optimizers" if late else "import torch",
                seen=f"there is no module {name}",
                wanted=f"{package}, which {'torch' if by == package else by} requires",
                source="sys.path",
                fix=pip_install(s, package, behind=behind),
            )


def _loads_backends(s: Snapshot, torch: Torch) -> bool:
    return version(torch.version)[:2] >= (2, 5) and environment(s).get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"


_BUILT_WITHOUT = (
    "install libffi-dev (RHEL, Fedora, SUSE: libffi-devel) and build this Python again (pyenv install --force VERSION), or take the distribution's "
    "or uv's; then make the environment anew"
)
_BY_OPTIMIZERS, _SINCE = {"sympy": "sympy", "mpmath": "sympy"}, (2, 2)
"""Each optimizer of torch imports torch._dynamo, and that SymPy (torch/_compile.py; tried with 2.13): module, and the package of torch's requirements."""
_LACKING = pattern(r"No module named '((?!torch\b)[\w.]{1,60})'")
_CRASHED = pattern(r"ended by (SIGBUS|SIGSEGV|SIGILL|SIGABRT|SIGFPE|SIGTRAP)\b")
"""How a child ends that crashed by itself; SIGKILL and SIGTERM come from somebody else, for lack of memory too."""
_NOT_WHOLE = "install torch of this version again (with --force-reinstall --no-deps): a copy or a removal of the environment was interrupted, or the disk was full"
_DAMAGED = (
    "a library of torch may be cut or damaged (SIGBUS: shorter than its headers say; a full disk while it was installed): "
    "pip install --force-reinstall --no-deps torch, and look at the disk"
)
