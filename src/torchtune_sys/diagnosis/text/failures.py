"""How the lines look in which a program or the kernel tells of a failure."""

from __future__ import annotations

import re

_TEXT = 900
RAISED = re.compile(r"^(?P<name>(?:[A-Za-z_<][\w<>]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure))\b(?::|$)")
DEATHS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (program, re.compile(pattern))
    for program, pattern in (
        ("python", r"Fatal Python error: "),
        ("C++", r"terminate called after throwing|what\(\):  "),
        (
            "CUDA",
            r"(?:torch\.AcceleratorError: )?CUDA error: |CUDA failure|Cuda failure|CUDA initialization: |(?:[Ff]ailed|[Cc]ould not|[Ee]rror) .{0,160}\bCUDA_ERROR_[A-Z_]{4,60}: ",
        ),
        ("NCCL", r"NCCL WARN |NCCL error:? "),
        (
            "ROCm",
            r"^Memory access fault by GPU node|^:\d:\w+\.cpp\s*:\d+\s*:.{0,80}\bHSA_STATUS_ERROR|^HSA exception: |\bHIP error: ",
        ),
        (
            "shell",
            r"Segmentation fault|Aborted \(core dumped\)|Bus error|Illegal instruction|: command not found$|^(?:zsh: |\[\d\] +[+-]? *\d{2,8} )(?:segmentation fault|abort|IOT instruction|bus error|illegal hardware instruction|floating point exception)\b",
        ),
        (
            "system tool",
            r"^(?:libnuma: Warning|numactl|taskset|chrt|prlimit|modprobe|insmod|mount(?:\.\w+)?): .{0,200}(?:invalid|[Ff]ail|[Ee]rror|denied|not permitted|out of range|wrong)",
        ),
        (
            "docker",
            r"^docker: Error response from daemon|^Error response from daemon|^Error: OCI runtime|OCI runtime create failed|permission denied while trying to connect to the Docker daemon"
            r"|Cannot connect to the Docker daemon|\bexec(?: user process caused| /\S{1,200})?: exec format error",
        ),
        (
            "systemd",
            r"systemd-coredump(?:\[\d+\])?: Process \d{1,9} \(.{1,64}\) of user \d{1,9} (?:dumped core|terminated abnormally)",
        ),
        ("SYCL", r"^Native API failed\. |^SYCL error: "),
        ("ggml", r"\bGGML_ASSERT(?:\(.{1,200}\) failed$|: \S{1,200}:\d{1,6}: )|^ggml_\w{1,60}: .{0,120}\bfailed(?:$|[. ])"),
        ("MSVC", r" : (?:fatal )?error (?:LNK|C)\d{4}: "),
        ("Slurm", r"^(?:srun|sbatch|slurmstepd): error: "),
        (
            "MPI",
            r"^(?:mpirun|mpiexec|prterun|prun)(?:\.\w{1,12})? (?:was unable|noticed|detected|has exited)|^Primary job  ?terminated normally, but|^MPI_ABORT was invoked"
            r"|^\[[\w.-]{1,64}:\d{1,9}\] \*\*\* MPI_ERR_|^Abort\(\d{1,12}\)|^Fatal error in (?:internal_|P?MPI_)\w{1,60}: ",
        ),
        ("Nsight", r"^==ERROR== \S"),
        ("nvidia-container-cli", r"nvidia-container-cli(?:\.real)?: "),
        (
            "environment modules",
            r"^ERROR: Unable to locate a modulefile for|^Lmod has detected the following error|^ModuleCmd_Load\.c",
        ),
        (
            "pip",
            r"^ERROR: (?! |Unable to locate a modulefile|ld\.so: object |pip's dependency resolver does not)|^error: (?:subprocess-exited|externally-managed|metadata-generation)",
        ),
        ("uvicorn", r"^ERROR:    \S"),
        ("apt", r"^E: [A-Z][\w ']|^ ?\S{2,60} : (?:Pre)?Depends: |^dpkg: error |^Errors were encountered while processing"),
        ("dnf", r"^Error: (?:Unable to find a match|Failed to|Transaction|\s*$)|^ Problem: "),
        ("conda", r"^(?:LibMambaUnsatisfiable|PackagesNotFound|Unsatisfiable|Conda\w{0,20})Error: |^ResolvePackageNotFound:"),
        ("pacman", r"^error: (?:unable to satisfy|failed to (?:prepare|commit))"),
        ("cuda-installer", r"^\[ERROR\]: "),
        ("dcgmi", r"^\| [\w /-]{3,30} {1,26}\| Fail\b"),
        ("enroot", r"^\[ERROR\] (?:URL|Command not found|Could not|No such|Failed|Cannot|Invalid|File already)"),
        ("CMake", r"^CMake Error"),
        ("glibc", r"^FATAL: kernel too old"),
        (
            "gcc",
            r"(?:[:(]\d{1,7}(?::\d{1,5}|\))?|^(?:[\w.-]{0,40}(?:gcc|g\+\+|clang|clang\+\+|icpx|ld|nvcc|cc1plus)(?:-\d{1,2})?|cc|c\+\+)) ?:? (?:fatal )?error: |^collect2: error",
        ),
        ("program", r": (?:fatal )?error: "),
        ("fabric manager", r"\[(?:ERROR|FATAL|CRITICAL)\] \[tid \d{1,10}\] "),
        ("NVIDIA driver", r"NVRM: (?:Xid|GPU .*(?:failed|error)|.*Assertion failed)"),
        (
            "Kubernetes",
            r"^\s*(?:Warning|Error)\s+(?:Failed|BackOff|FailedScheduling|FailedMount|Unhealthy(?!.{0,200}Readiness probe))\b"
            r"|^[a-z0-9][\w.-]{1,120} +\d{1,3}/\d{1,3} +(?:Init:)?(?:CrashLoopBackOff|Error|ContainerCannotRun|CreateContainer\w{0,6}Error|RunContainerError) +\d"
            r"|\b[Bb]ack-off (?:\S{1,12} )?restarting failed container\b|\b[Pp]od: \S{1,200} exited with code [1-9]"
            r"|(?<![\w/])\d{1,5}/\d{1,5} nodes are available: \d|\bhas unbound immediate PersistentVolumeClaims",
        ),
    )
)

_STAMP = re.compile(r"\s*(?:\S{1,60}:\d{1,7}:\d{1,7} \[\d\] (?:\S{0,60} (?=NCCL ))?|\[ *\d+\.\d+\] )?")
"""Before what NCCL and the kernel say."""
TRACEBACK = "Traceback (most recent call last)"


def begins_with_failure(text: str) -> bool:
    """Return whether a program or the kernel tells of a failure with how the line begins: one that only names an error in its midst may be prose.

    >>> begins_with_failure("n1:7:9 [0] misc/socket.cc:484 NCCL WARN no route"), begins_with_failure("A Bus error has several causes.")
    (True, False)
    """
    stamp = _STAMP.match(text[:_TEXT])
    said = text[stamp.end() if stamp is not None else 0 : _TEXT]
    raised = RAISED.match(said)
    return (
        said.startswith(TRACEBACK)
        or (raised is not None and raised.end() < len(said))
        or any(pattern.match(said) for _, pattern in DEATHS)
    )
