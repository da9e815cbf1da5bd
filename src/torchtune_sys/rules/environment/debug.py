"""Variables that somebody set to find a fault, and that now cost speed."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.environment.common import environment, number, on_x86, seen
from torchtune_sys.rules.gates import gpu_count, gpu_host, nvidia_gpus, nvidia_hardware, ranks_here
from torchtune_sys.rules.torch.common import capability


@rule(
    id="cuda-launch-blocking",
    title="CUDA_LAUNCH_BLOCKING makes every kernel launch wait",
    severity=Severity.WARNING,
    applies=nvidia_hardware,
    fix=(EnvironmentVariable(name="CUDA_LAUNCH_BLOCKING", value=None),),
)
def cuda_launch_blocking(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The CPU waits for each kernel to end before it launches the next one.

    Why it matters
    CPU and GPU no longer overlap, nor do several streams: training slows down, most of all with small kernels. PyTorch's error
    messages suggest the variable for finding a failing call, and it is then forgotten.

    When to leave it
    While a device-side assert or an illegal memory access is being traced.

    References
    CUDA C++ Programming Guide, "CUDA Environment Variables", CUDA_LAUNCH_BLOCKING
    https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """
    value = environment(s).get("CUDA_LAUNCH_BLOCKING", "")
    if number(value):
        yield seen("CUDA_LAUNCH_BLOCKING", value)


@rule(
    id="distributed-debug-detail",
    title="TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective",
    severity=Severity.WARNING,
    fix=(EnvironmentVariable(name="TORCH_DISTRIBUTED_DEBUG", value=None), Advice(text="or set it to INFO, which only logs")),
)
def distributed_debug_detail(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Before each collective, the ranks compare what they are about to do over another process group.

    Why it matters
    PyTorch's documentation says that it affects performance and is for debugging only; each collective is preceded by a barrier
    and a comparison over Gloo.

    When to leave it
    You are tracing a hang or a mismatch of collectives.

    References
    https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug
    """
    value = environment(s).get("TORCH_DISTRIBUTED_DEBUG", "")
    if value.upper() == "DETAIL":
        yield seen("TORCH_DISTRIBUTED_DEBUG", value, "unset, OFF or INFO")


@rule(
    id="cuda-caching-allocator-disabled",
    title="PyTorch's caching memory allocator is switched off",
    severity=Severity.WARNING,
    fix=(
        EnvironmentVariable(name="PYTORCH_NO_CUDA_MEMORY_CACHING", value=None),
        EnvironmentVariable(name="PYTORCH_NO_HIP_MEMORY_CACHING", value=None),
    ),
)
def caching_allocator_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Each tensor is allocated and freed directly by the driver.

    Why it matters
    cudaMalloc is slow and cudaFree waits for the device: training becomes many times slower. The variable takes effect whatever
    its value, even 0: PyTorch only checks whether it is set.

    When to leave it
    You are running under compute-sanitizer, which needs to see each allocation.

    References
    https://docs.pytorch.org/docs/stable/cuda_environment_variables.html
    pytorch c10/cuda/CUDACachingAllocator.cpp (forceUncachedAllocator)
    """
    gpu_host(s)
    env = environment(s)
    for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        if name in env:
            yield seen(name, env[name], why="any value counts, 0 too" if env[name] in ("", "0") else "")


@rule(
    id="cuda-module-loading-eager",
    title="CUDA loads every kernel at start-up",
    severity=Severity.ADVICE,
    applies=nvidia_hardware,
    fix=(EnvironmentVariable(name="CUDA_MODULE_LOADING", value=None),),
)
def cuda_module_loading_eager(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """CUDA_MODULE_LOADING=EAGER restores the default from before CUDA 12.2: all kernels of all libraries are loaded at once.

    Why it matters
    Each process starts more slowly and takes more memory on the GPU and the host, most of which it never uses.

    When to leave it
    Kernels must not be loaded while others run (some programs with concurrent kernels that wait for each other).

    References
    CUDA C++ Programming Guide, "Lazy Loading"
    """
    value = environment(s).get("CUDA_MODULE_LOADING", "")
    if value.upper() == "EAGER":
        yield seen("CUDA_MODULE_LOADING", value, "unset or LAZY")


@rule(
    id="memory-debugging-on",
    title="Memory debugging checks, fills or traces every allocation",
    severity=Severity.WARNING,
    fix=(Advice(text="unset the variable in the job's environment"),),
)
def memory_debugging_on(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Each memory allocation by Python or the C library is checked, filled or traced.

    Why it matters
    DataLoader workers allocate constantly: Python's debug hooks, tracemalloc and malloc's checks slow them down and use memory
    for their own records.

    When to leave it
    You are tracing a memory error.

    References
    https://docs.python.org/3/using/cmdline.html#envvar-PYTHONMALLOC
    mallopt(3), MALLOC_CHECK_ (since glibc 2.34 without effect unless libc_malloc_debug is preloaded) and MALLOC_PERTURB_
    GNU C Library manual, "Memory Allocation Tunables": GLIBC_TUNABLES sets the same as glibc.malloc.check and glibc.malloc.perturb
    """
    env = environment(s)
    if env.get("PYTHONMALLOC", "") in ("debug", "malloc_debug", "pymalloc_debug", "mimalloc_debug"):
        yield seen("PYTHONMALLOC", env["PYTHONMALLOC"])
    for name in ("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "MALLOC_PERTURB_"):
        value = env.get(name, "")
        if value and (number(value) or natural(value.strip()) is None):
            yield seen(name, value)
    if number(env.get("MALLOC_CHECK_", "")) and _malloc_check_works(s, env):
        yield seen("MALLOC_CHECK_", env["MALLOC_CHECK_"])
    tunables = dict(pair.partition("=")[::2] for pair in env.get("GLIBC_TUNABLES", "").split(":"))
    checks = number(tunables.get("glibc.malloc.check", "")) and _malloc_check_works(s, env)
    if checks or number(tunables.get("glibc.malloc.perturb", "")):
        yield seen("GLIBC_TUNABLES", env["GLIBC_TUNABLES"], "without glibc.malloc.check and glibc.malloc.perturb")


@rule(
    id="fast-path-switched-off",
    title="An environment variable switches off a fast path of PyTorch or its libraries",
    severity=Severity.WARNING,
    fix=(Advice(text="unset the variable in the job's environment"),),
)
def fast_path_switched_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A variable turns torch.compile, its caches, Triton's compiler, the code that CUDA's libraries bring, the processor's vector instructions or
    OpenMP's threads off, keeps Hugging Face's Accelerate on the CPU, leaves NCCL a single channel, few threads, the protocol for short messages alone, no GPUDirect RDMA, no NVLink between hosts or no EFA, or makes HIP wait at each kernel (PyTorch's errors on AMD GPUs suggest that
    for debugging).

    Why it matters
    The job runs and its results are right, but it is slower, up to a hundred times with Triton's interpreter, and no message says why.

    When to leave it
    You are looking for a fault in compiled code, or results must not depend on the instruction set.

    References
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html; pytorch torch/_dynamo/config.py, torch/compiler/config.py, torch/jit/_state.py
    https://triton-lang.org/main/programming-guide/chapter-3/debugging.html (TRITON_INTERPRET); README of Triton (TRITON_ALWAYS_COMPILE)
    CUDA programming guide, "CUDA Environment Variables", JIT compilation
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level (LOC: never), NCCL_PROTO, NCCL_MNNVL_ENABLE
    https://arxiv.org/abs/2507.04786 (Demystifying NCCL: bandwidth of LL, 25 to 50 % of the peak)
    https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html, "Debug variables"; libfabric fabric(7), FI_PROVIDER
    huggingface/accelerate src/accelerate/state.py (PartialState, AcceleratorState), utils/environment.py (str_to_bool)
    pytorch aten/src/ATen/native/DispatchStub.cpp; oneDNN, "CPU dispatcher control"; Intel oneMKL developer guide, "Instruction Set Specific Dispatching" and MKL_CBWR
    """
    env = environment(s)
    x86 = on_x86(s)
    for names, values, effect in _SWITCHES:
        for name in names:
            value = env.get(name, "")
            # MKL_CBWR=COMPATIBLE,STRICT has a second word; oneDNN and MKL read their words in any case. Of a list each entry is allowed.
            words = value.split(",")[: 1 if name == "MKL_CBWR" else None]
            if any(word.strip().upper() not in values for word in words) or (name in _OF_INSTRUCTIONS and not x86):
                continue
            if _matters(s, name):
                yield seen(name, value, "unset", effect)
    limit = natural(env.get("OMP_THREAD_LIMIT", "").strip())
    wanted = natural(env.get("OMP_NUM_THREADS", "").split(",")[0].strip())
    if limit is not None and (limit == 1 or (wanted or 0) > limit) and wanted != 1:
        yield seen(
            "OMP_THREAD_LIMIT",
            str(limit),
            "unset",
            f"OpenMP computes with {limit} thread{'s' * (limit > 1)} in all, whatever is asked for",
        )


def _malloc_check_works(s: Snapshot, env: dict[str, str]) -> bool:
    if "libc_malloc_debug" in env.get("LD_PRELOAD", ""):
        return True
    glibc = None if isinstance(s.system, Missing) or isinstance(s.system.glibc, Missing) else s.system.glibc
    return glibc is not None and version(glibc)[:2] < (2, 34)


_TOOLS = (
    "compute-sanitizer",
    "libsanitizer",
    "treelauncher",
    "libasan",
    "libtsan",
    "libubsan",
    "libtoolsinjection",
    "cuda-memcheck",
    "valgrind",
)


@rule(
    id="tool-injection-left",
    title="A debugger or profiler is injected into every process",
    severity=Severity.WARNING,
    fix=(Advice(text="unset the variable in the job's environment"),),
)
def tool_injection_left(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """CUDA_INJECTION64_PATH, or a sanitizer in LD_PRELOAD, loads a tool that traces every CUDA call or memory access.

    Why it matters
    Such tools cost from a few percent (tracing) to many times the run time (sanitizers), and some allow only one process per GPU.

    When to leave it
    You are using the tool.

    References
    https://docs.nvidia.com/cupti/main/main.html (injection)
    https://docs.nvidia.com/compute-sanitizer/
    """
    env = environment(s)
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        if env.get(name):
            yield seen(name, env[name])
    loaded = env.get("LD_PRELOAD", "")
    if any(tool in loaded.lower() for tool in _TOOLS):
        yield seen("LD_PRELOAD", loaded, "without the tool")


@rule(
    id="tf32-override-off",
    title="NVIDIA_TF32_OVERRIDE=0 disables TF32 in all libraries",
    severity=Severity.ADVICE,
    applies=nvidia_hardware,
    fix=(EnvironmentVariable(name="NVIDIA_TF32_OVERRIDE", value=None),),
)
def tf32_override_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVIDIA libraries do not use TF32, whatever the program asks for.

    Why it matters
    float32 convolutions, which use TF32 by default, and matrix products for which the program allows it run without tensor cores.

    When to leave it
    You want full float32 precision everywhere, for example to compare results.

    References
    https://docs.nvidia.com/deeplearning/cudnn/ (NVIDIA_TF32_OVERRIDE)
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    value = environment(s).get("NVIDIA_TF32_OVERRIDE")
    if value is None or value.strip() != "0":
        return
    capabilities = [need(capability(gpu)) for gpu in nvidia_gpus(s)]
    if capabilities and max(capabilities) < (8, 0):
        raise NotApplicable("no GPU here has TF32 (compute capability 8.0 and later)")
    yield seen("NVIDIA_TF32_OVERRIDE", value)


_SLOW_ISA = ("SSE41", "SSE4_1", "AVX")
_OF_NCCL = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_PROTO", "NCCL_NTHREADS")
_OF_HIP = ("AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY", "HIP_LAUNCH_BLOCKING")
_OF_NODES = ("NCCL_NET_GDR_LEVEL",)
_SWITCHES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"), ("1",), "torch.compile leaves every model as it is"),
    (("TORCH_COMPILE_DEBUG",), ("1",), "each compilation writes all its stages to files"),
    (
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES"),
        ("1",),
        "torch.compile compiles everything again in each process",
    ),
    (("TRITON_INTERPRET",), ("1", "TRUE", "YES", "ON"), "Triton's kernels are interpreted in Python, on the CPU"),
    (("TRITON_ALWAYS_COMPILE",), ("1", "TRUE", "YES", "ON"), "Triton compiles its kernels again in each process"),
    (
        ("CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT"),
        ("1",),
        "the driver ignores the code that libraries bring for this GPU, and compiles them from PTX; what has no PTX fails",
    ),
    (("CUDA_CACHE_DISABLE",), ("1",), "the driver compiles PTX again in each process"),
    (("PYTORCH_JIT",), ("0",), "TorchScript is switched off"),
    (
        ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"),
        ("1",),
        "NCCL copies with one thread block alone, a fraction of what NVLink and the network carry",
    ),
    (("NCCL_NTHREADS",), ("64", "128"), "NCCL's kernels have a quarter or less of their threads"),
    (
        ("NCCL_PROTO",),
        ("LL",),
        "NCCL sends all data by its protocol for short messages, which carries at most half of the bandwidth",
    ),
    (("NCCL_MNNVL_ENABLE",), ("0",), "NCCL uses no NVLink between the hosts of this NVLink fabric, but the network"),
    (
        _OF_NODES,
        ("LOC", "0"),
        "NCCL copies what goes to other hosts through host memory, whatever lies between GPU and network card",
    ),
    (
        ("AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"),
        ("1", "2", "3"),
        "HIP waits at each kernel or copy until the GPU has finished",
    ),
    (("FI_PROVIDER",), ("TCP", "SOCKETS", "UDP"), "libfabric, and NCCL's plug-in for EFA, send through the kernel"),
    (("HIP_LAUNCH_BLOCKING",), ("1",), "HIP waits at each kernel until the GPU has finished"),
    (("ACCELERATE_USE_CPU",), ("1", "Y", "YES", "T", "TRUE", "ON"), "Accelerate trains on the CPU, whatever GPUs are here"),
    (("ATEN_CPU_CAPABILITY",), ("DEFAULT",), "torch's own CPU kernels use no AVX2 or AVX-512"),
    (("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"), _SLOW_ISA, "oneDNN uses no AVX2 or AVX-512"),
    (("MKL_ENABLE_INSTRUCTIONS",), ("SSE4_2", "AVX"), "MKL uses no AVX2 or AVX-512"),
    (("MKL_CBWR",), ("COMPATIBLE", "SSE2", "SSSE3", "SSE4_1", "SSE4_2", "AVX"), "MKL uses no AVX2 or AVX-512"),
)
"""Names of one switch, the values that switch the fast way off, and what that means."""
_OF_INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def _matters(s: Snapshot, name: str) -> bool:
    """Return whether this host and this job use what a variable switches off."""
    several_hosts = (s.intent.nodes or 1) > 1
    if name == "ACCELERATE_USE_CPU":
        return gpu_count(s) > 0
    if name in _OF_HIP:
        return bool(known(need(s.driver).amd_devices, ()))
    if name in _OF_NODES:
        return several_hosts and bool(known(need(s.network).rdma, ()))
    if name == "NCCL_MNNVL_ENABLE":
        return several_hosts and any(_joins_hosts(gpu) for gpu in gpus_told(s))
    if name == "FI_PROVIDER":
        plugins = need(s.network).net_plugins  # looked for where an EFA is
        return several_hosts and not absent(plugins) and need(plugins) is not None
    return name not in _OF_NCCL or several_hosts or ranks_here(s) > 1


def _joins_hosts(gpu: Gpu) -> bool:
    """Return whether NVLink joins this GPU to those of other hosts; an older driver does not tell it of the racks that it is built for."""
    if not isinstance(gpu.fabric_of_hosts, Missing):
        return gpu.fabric_of_hosts
    return known(gpu.name, "").startswith(("NVIDIA GB200", "NVIDIA GB300"))
