"""Rules on the compilers and caches of torch.compile, Triton and extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import CACHE_VARIABLES, BuildTools, CompileCache
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, need_if_there
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules.gates import cuda_torch, nvidia_hardware, ranks_here, torch_build
from torchtune_sys.rules.storage.common import places
from torchtune_sys.rules.torch.common import installed, installed_triton

_MOVE = (
    EnvironmentVariable(name=CACHE_VARIABLES[0], value="/local/disk/torchinductor"),
    EnvironmentVariable(name=CACHE_VARIABLES[1], value="/local/disk/triton"),
)


def _tools(s: Snapshot) -> BuildTools:
    return need_if_there(need(s.software).build_tools, "no NVIDIA driver runs here")


def _triton_there(s: Snapshot) -> None:
    installed_triton(s)


def _compiles_c(s: Snapshot) -> None:
    """With Triton; and on a CPU with a torch that compiles and a compiler."""
    torch = installed(s).get("torch")
    if torch is None or version(torch.version) < (2,) or absent(need(s.python).compiler):
        installed_triton(s)


def _compiles(s: Snapshot) -> None:
    """For an NVIDIA GPU with Triton; elsewhere (the C++ of torch.compile for CPUs, AMD's GPUs) where somebody named the place, or made the usual one."""
    found = () if isinstance(s.software, Missing) else known(s.software.compile_caches, ())
    stands = bool(found) and all(cache.purpose == "torch.compile" for cache in found)
    if not (_named(s) or stands) or "torch" not in installed(s):
        installed_triton(s)


def _builds(s: Snapshot) -> None:
    """With a torch, whatever it computes on."""
    if "torch" not in installed(s):
        installed_triton(s)


def _named(s: Snapshot) -> tuple[str, ...]:
    env = variables_told(s)
    return tuple(name for name in CACHE_VARIABLES if env.get(name))


@rule(
    id="host-compiler-too-new",
    title="nvcc does not support this version of gcc",
    severity=Severity.ADVICE,
    cause="host-compiler-too-new",
    fix=(
        Install(
            text="install a gcc that this CUDA supports alongside the newer one, and select it: export CC=gcc-N CXX=g++-N "
            "NVCC_CCBIN=g++-N"
        ),
        Advice(text="or build with a newer CUDA toolkit of torch's major version"),
    ),
    applies=nvidia_hardware,
)
def host_compiler_too_new(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvcc compiles host code with gcc, and its headers reject gcc versions that are too new for it.

    Why it matters
        Building flash-attn, apex, DeepSpeed's kernels or your own CUDA extensions fails with "unsupported GNU version! gcc
        versions later than N are not supported". Prebuilt wheels and Triton do not use nvcc.

    When to leave it
        No CUDA extension is compiled on this host.

    References
        include/crt/host_config.h of the CUDA toolkit (read here)
        https://docs.nvidia.com/cuda/cuda-installation-guide-linux/ (host compiler support policy)
        https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py (unix_cuda_flags)
    """
    cuda_torch(s)
    tools = _tools(s)
    if absent(tools.nvcc_gcc_limit):
        raise NotApplicable("no nvcc with headers of its own on this host")
    limit = need(tools.nvcc_gcc_limit)
    if tools.limit_lifted:
        raise NotApplicable("NVCC_PREPEND_FLAGS or NVCC_APPEND_FLAGS names nvcc's compiler")
    if absent(tools.host_compiler) or absent(tools.host_compiler_gcc):
        raise NotApplicable("nvcc would take no gcc here")
    path, major = need(tools.host_compiler), need(tools.host_compiler_gcc)
    yield Evidence(
        subject=path,
        seen=f"gcc {major}",
        wanted=f"gcc {limit} at most",
        verdict=Verdict.PASS if major <= limit else Verdict.FAIL,
        source="crt/host_config.h",
    )


@rule(
    id="python-headers-missing",
    title="Python.h, which torch.compile and Triton need, is missing",
    severity=Severity.ADVICE,
    cause="python-headers-missing",
    fix=(Install(text="install the development package of this Python (python3-dev, python3.12-dev, python3-devel)"),),
    applies=_compiles_c,
)
def python_headers_missing(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Triton compiles a small C module on first use, and torch.compile for CPUs each kernel: both need Python.h.

    Without Triton this is judged where there is a C compiler: without one nothing is compiled.

    Why it matters
        torch.compile and libraries with Triton kernels stop with "fatal error: Python.h: No such file or directory".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        triton/runtime/build.py; torch/_inductor/codecache.py (CppPythonBindingsCodeCache)
    """
    python = need(s.python)
    if not need(python.headers):
        minor = ".".join(need(python.version).split(".")[:2])
        yield Evidence(
            subject=f"Python {minor}",
            seen="no Python.h",
            wanted=f"include/python{minor}/Python.h",
            source=known(python.base_prefix, ""),
        )


@rule(
    id="c-compiler-missing",
    title="Triton has no C compiler",
    severity=Severity.ADVICE,
    cause="build-tool-missing",
    fix=(Install(text="install gcc (or clang), or set CC"),),
    applies=_triton_there,
)
def c_compiler_missing(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Triton compiles a small C module on first use, with CC, gcc or clang.

    Why it matters
        torch.compile and libraries with Triton kernels stop with "Failed to find C compiler".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        triton/runtime/build.py
    """
    found = need(s.python).compiler
    if absent(found):
        yield Evidence(subject="C compiler", seen="none on PATH", wanted="gcc or clang", source="PATH")
        return
    yield Evidence(subject="C compiler", seen=need(found), verdict=Verdict.PASS, source="PATH")


@rule(
    id="c-library-headers-missing",
    title="The C compiler has no headers of the C library",
    severity=Severity.ADVICE,
    cause="compiler-headers-missing",
    fix=(Install(text="install them: libc6-dev (Debian, Ubuntu), glibc-devel (RHEL, SLES, Amazon Linux)"),),
    applies=_triton_there,
)
def c_library_headers_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """gcc is installed but stdlib.h is not: the compiler was installed without recommended packages, as in slim images.

    Why it matters
        Triton compiles a small C module on first use, and torch.compile stops with "fatal error: stdlib.h: No such file".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        triton/runtime/build.py
        https://packages.debian.org/stable/gcc (recommends libc6-dev)
    """
    there = need_if_there(_tools(s).libc_headers, "the system has no compiler of its own, or is told where headers lie")
    yield Evidence(
        subject="C library headers",
        seen="there" if there else "no /usr/include/stdlib.h",
        wanted="/usr/include/stdlib.h",
        verdict=Verdict.PASS if there else Verdict.FAIL,
        source="/usr/include",
    )


@rule(
    id="ninja-not-on-path",
    title="ninja is installed but not on PATH",
    severity=Severity.ADVICE,
    cause="build-tool-missing",
    fix=(
        Advice(text="activate the environment, or put its bin directory on PATH: export PATH=ENVIRONMENT/bin:$PATH"),
        Install(text="or install the distribution's ninja-build"),
    ),
    applies=nvidia_hardware,
)
def ninja_not_on_path(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The package ninja is installed in the environment, but ninja is not on this session's PATH: the environment is not activated.

    Why it matters
        torch.utils.cpp_extension runs ninja as a program and fails with "Ninja is required to load C++ extensions", although pip
        lists the package. DeepSpeed, FlashInfer and others build their kernels this way on first use.

    When to leave it
        Unlike this session, the job activates the environment.

    References
        torch/utils/cpp_extension.py (is_ninja_available)
    """
    package = installed(s).get("ninja")
    if package is None:
        raise NotApplicable("the environment has no ninja")
    ninja = _tools(s).ninja
    there = "" if absent(ninja) else need(ninja)
    yield Evidence(
        subject=f"ninja {package.version}",
        seen=there or f"installed in {package.location}, not on PATH",
        wanted="on PATH",
        verdict=Verdict.PASS if there else Verdict.FAIL,
        source="PATH",
    )


_Seen = Callable[[CompileCache], Fact[bool]]


def _judged(s: Snapshot, bad: _Seen, words: str, wanted: str) -> Iterator[Evidence]:
    found = need_if_there(need(s.software).compile_caches, "no NVIDIA driver runs here")
    for cache in found:
        fact = bad(cache)
        subject = f"{cache.purpose} cache {cache.path}"
        if isinstance(fact, Missing):
            yield unsure(subject, fact, wanted)
            continue
        yield Evidence(
            subject=subject,
            seen=f"{words} ({cache.filesystem} on {cache.mount_point})" if fact else f"{cache.filesystem} on {cache.mount_point}",
            wanted=wanted,
            verdict=Verdict.FAIL if fact else Verdict.PASS,
            source=cache.variable,
            fix=tuple(action for action in _MOVE if action.name == cache.variable),
        )


@rule(
    id="compile-cache-not-writable",
    title="The compile cache is not writable",
    severity=Severity.WARNING,
    fix=_MOVE,
    applies=_compiles,
)
def compile_cache_not_writable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """This user cannot write to the cache of torch.compile or Triton: made under sudo, a read-only mount, or no real home.

    Why it matters
        Compiling the first kernel fails with "Permission denied: '/.triton'" and the like: containers that run as a user id
        without an account have HOME=/.

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        torch/_inductor/runtime/cache_dir_utils.py (TORCHINDUCTOR_CACHE_DIR, else torchinductor_USER in the temporary directory)
        triton/knobs.py (TRITON_CACHE_DIR, else .triton in TRITON_HOME or at home)
    """
    yield from _judged(s, _refused, "not writable", "writable")


def _refused(cache: CompileCache) -> Fact[bool]:
    return cache.writable if isinstance(cache.writable, Missing) else not cache.writable


@rule(
    id="compile-cache-not-executable",
    title="The compile cache is on a file system mounted with noexec",
    severity=Severity.WARNING,
    fix=_MOVE,
    applies=_builds,
)
def compile_cache_not_executable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cache is on a file system mounted with noexec, as hardening guides recommend for /tmp.

    Why it matters
        The launcher that Triton has just built, or the C++ that torch.compile built for CPUs, cannot be loaded: "failed to map segment
        from shared object".

    When to leave it
        You use neither torch.compile nor Triton kernels.

    References
        https://github.com/pytorch/pytorch/issues/123054
        mount(8), noexec
    """
    if absent(need(s.software).compile_caches):
        yield from _temporary(s)
    else:
        need(need(s.software).compile_caches)  # where they are hidden it cannot be told which place counts
        _compiles(s)
        yield from _judged(s, lambda cache: cache.noexec, "noexec", "a mount without noexec")


def _temporary(s: Snapshot) -> Iterator[Evidence]:
    """Judge where torch.compile builds for CPUs and AMD's GPUs: without another word below the temporary directory."""
    if absent(need(s.python).compiler):
        raise NotApplicable("no C compiler, with which torch.compile would build anything")
    for place in places(s, ("temporary files",)):
        noexec = "noexec" in need(place.options)
        yield Evidence(
            subject=f"torch.compile cache below {place.path}",
            seen=f"noexec ({known(place.filesystem, '')} on {known(place.mount_point, '')})" if noexec else "may be executed",
            wanted="a mount without noexec",
            verdict=Verdict.FAIL if noexec else Verdict.PASS,
            source="/proc/self/mountinfo",
            fix=_MOVE[:1],
        )


@rule(
    id="compile-cache-on-network",
    title="Several processes share a compile cache on a network file system",
    severity=Severity.ADVICE,
    fix=_MOVE,
    applies=_compiles,
)
def compile_cache_on_network(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cache of compiled kernels is on NFS, Lustre or similar, and more than one process writes to it.

    Why it matters
        Ranks that compile the same kernel overwrite each other's files. One of them fails with "Stale file handle", "Device or
        resource busy" or FileNotFoundError, and the others wait for it until NCCL's timeout.

    When to leave it
        The cache is filled by one process before the others start, or nothing is compiled.

    References
        https://github.com/triton-lang/triton/issues/11512
        https://github.com/pytorch/pytorch/issues/173679
        https://github.com/deepspeedai/DeepSpeed/pull/6487 (warns of the same)
    """
    if ranks_here(s) < 2 and (s.intent.nodes or 1) < 2:
        raise NotApplicable("one process alone writes it")
    yield from _judged(s, lambda cache: cache.network, "on a network file system", "a local disk")


_COMPILES_SINCE: dict[Version, Version] = {(3, 11): (2, 1), (3, 12): (2, 4), (3, 13): (2, 6), (3, 14): (2, 10)}
"""The first torch whose torch.compile takes this Python (check_if_dynamo_supported in torch/_dynamo/eval_frame.py)."""


@rule(
    id="compile-python-too-new",
    title="torch.compile of this torch does not take this version of Python",
    severity=Severity.ADVICE,
    fix=(Install(text="install a newer torch, or train with the Python that this one takes"),),
)
def compile_python_too_new(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """torch runs on this Python, but its compiler refuses it: support for a Python's byte code comes some releases after its wheels.

    Why it matters
        torch.compile raises "Dynamo is not supported on Python 3.12+"; libraries that compile when they are imported end with it.

    When to leave it
        Nothing calls torch.compile.

    References
        https://github.com/pytorch/pytorch/issues/104918, 120233, 144048; https://github.com/pytorch/pytorch/pull/169401
    """
    python = need(s.python)
    build = torch_build(s)
    if version(build.version) < (2,):
        raise NotApplicable("this torch has no torch.compile")
    here = version(need(python.version))[:2]
    since = _COMPILES_SINCE.get(here)
    if since is None:
        raise NotApplicable("not known of this Python")
    yield Evidence(
        subject=f"Python {show(here)}",
        seen=f"with torch {build.version}",
        wanted=f"torch {show(since)} or newer",
        verdict=Verdict.PASS if version(build.version)[:2] >= since else Verdict.FAIL,
        source=build.location,
    )
