"""Variables that make a library print at every call."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules.environment.common import environment, seen

_LOUD: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("LD_DEBUG", (), "the loader tells each library and symbol that each process looks for"),
    ("PYTHONVERBOSE", (), "Python prints each module that each process imports"),
    ("PYTHONPROFILEIMPORTTIME", (), "Python prints the time of each import in each process"),
    ("PYTHONDUMPREFS", (), "Python prints all objects that are left at the end of each process"),
    ("MKL_VERBOSE", ("1", "2"), "MKL prints a line for each of its functions that is called"),
    (
        "ONEDNN_VERBOSE",
        ("1", "2", "all", "dispatch", "profile", "profile_exec"),
        "oneDNN prints a line for each primitive that runs",
    ),
    (
        "DNNL_VERBOSE",
        ("1", "2", "all", "dispatch", "profile", "profile_exec"),
        "oneDNN prints a line for each primitive that runs",
    ),
    ("TORCH_SHOW_DISPATCH_TRACE", ("1",), "torch prints a line for each operator that is called"),
    ("UCX_LOG_LEVEL", ("debug", "trace", "req", "data", "async", "func", "poll"), "UCX prints at each message"),
    ("FI_LOG_LEVEL", ("debug", "trace"), "libfabric prints at each operation"),
    ("CUBLASLT_LOG_LEVEL", ("2", "3", "4", "5"), "cuBLASLt prints a line for each of its functions that is called"),
    ("AMD_LOG_LEVEL", ("3", "4", "5"), "HIP prints each call of its interface"),
    ("MIOPEN_ENABLE_LOGGING", ("1", "yes", "on", "true", "enable", "enabled"), "MIOpen prints each call of its interface"),
    ("MIOPEN_LOG_LEVEL", ("6", "7"), "MIOpen prints what it does at each convolution"),
    ("ROCBLAS_LAYER", ("1", "2", "3", "4", "5", "6", "7"), "rocBLAS prints a line for each of its functions that is called"),
    ("MLIR_ENABLE_DUMP", ("1", "true", "yes", "on"), "Triton prints a kernel's code before each pass of its compiler"),
)
"""Variable, the values that make it loud (none: whatever is not empty), and what is printed then."""


@rule(
    id="library-prints-each-call",
    title="An environment variable makes a library print at every call",
    severity=Severity.ADVICE,
    fix=(Advice(text="unset the variable in the job's environment"),),
)
def library_prints_each_call(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The loader, Python, MKL, oneDNN, UCX, libfabric, HIP, MIOpen, rocBLAS or Triton's compiler is set to print what it does, each time.

    Why it matters
    Each process of the job writes these lines: logs grow by gigabytes, a program that reads the output of another finds lines that it does
    not know, and the time for writing is taken from the step.

    When to leave it
    You are looking for the library or the operation at fault. (NCCL_DEBUG is judged by nccl-debug-verbose.)

    References
    ld.so(8), LD_DEBUG; https://docs.python.org/3/using/cmdline.html#environment-variables
    Intel oneMKL developer guide, MKL_VERBOSE; https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html
    UCX documentation, UCX_LOG_LEVEL; fabric(7), FI_LOG_LEVEL; https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/logging.html
    https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/debug-log.html; https://rocm.docs.amd.com/projects/rocBLAS/en/latest/how-to/logging-in-rocblas.html
    README of Triton (MLIR_ENABLE_DUMP)
    """
    env = environment(s)
    for name, loud, effect in _LOUD:
        value = env.get(name, "").strip()
        words = [word.strip().lower() for word in value.split(",")]
        if value and (not loud or any(word in loud for word in words)):
            yield seen(name, value, why=effect)
