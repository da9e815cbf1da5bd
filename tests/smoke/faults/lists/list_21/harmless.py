"""What is odd and breaks nothing, and in ``_TOLD`` what is bad and must be told by its name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from smoke.faults.bench import Bench, NotHere
from smoke.faults.means import all_of, grouped, limited, refused, remove_group, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,train,dataloader,checkpoint,rendezvous,allreduce,ddp,checkpoint-sharded"
_EPERM, _ENOSYS = 1, 38
_PERF, _IO_URING, _MEMFD, _PIDFD, _CLOSE_RANGE, _OPENAT2, _FACCESSAT2 = 298, 425, 319, 434, 436, 437, 439
"""System calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""
_SOFT, _HARD = 700 << 20, 2500 << 20
"""Bytes; two ranks and their workers take some 1,000 MiB."""


def library(name: str) -> Inject:
    """In front of the C library in every process."""

    def inject(bench: Bench) -> None:
        found = [*Path("/usr/lib").glob(f"*-linux-gnu/{name}"), *Path("/usr/lib").glob(f"*-linux-gnu/faketime/{name}")]
        if not found:
            raise NotHere(f"{name} is not installed")
        bench.env["LD_PRELOAD"] = str(found[0])

    return inject


def before(script: str) -> Inject:
    """What a shell does first."""

    def inject(bench: Bench) -> None:
        bench.before += ["sh", "-ec", script.replace("{folder}", str(bench.folder)) + '\nexec "$@"', "sh"]

    return inject


def reclaimed(bench: Bench) -> None:
    """Memory over a soft limit is taken back wherever the kernel needs some: memory.high in cgroup v2, the nearest to it in v1."""
    group = Path("/sys/fs/cgroup/memory") / f"torchtune-sys-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / "memory.soft_limit_in_bytes").write_text(str(_SOFT))
        (group / "memory.limit_in_bytes").write_text(str(_HARD))
    except OSError as error:
        raise NotHere(f"no cgroup of memory: {error}") from None
    bench.closing.callback(remove_group, group)
    bench.before += ["sh", "-ec", f'echo $$ > {group}/cgroup.procs\nexec "$@"', "sh"]


def _old_profile(bench: Bench) -> None:
    """As Docker before 20.10.10 and runc before 1.0 refuse what they do not know."""
    for number in (_PIDFD, _CLOSE_RANGE, _OPENAT2, _FACCESSAT2):
        refused(number, _EPERM)(bench)


def _new_profile(bench: Bench) -> None:
    for number, error in ((_PERF, _EPERM), (_IO_URING, _EPERM), (_MEMFD, _EPERM)):
        refused(number, error)(bench)


def _oldest_kernel(bench: Bench) -> None:
    for number in (_PIDFD, _CLOSE_RANGE, _OPENAT2, _FACCESSAT2, _IO_URING, _MEMFD):
        refused(number, _ENOSYS)(bench)


_FULL = "mkdir {folder}/disk; mount -t tmpfs -o size=1m,mode=1777 tmpfs {folder}/disk; dd if=/dev/zero of={folder}/disk/full bs=4k 2>/dev/null || :"
_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "jemalloc": ("Every process takes its memory from jemalloc", "LD_PRELOAD", library("libjemalloc.so.2")),
    "tcmalloc": ("Every process takes its memory from tcmalloc", "LD_PRELOAD", library("libtcmalloc_minimal.so.4")),
    "memory-perturbed": ("The C library fills what is freed, and has one arena", "environment", variables(MALLOC_PERTURB_="165", MALLOC_ARENA_MAX="1")),
    "half-a-cpu": ("A cgroup gives half a CPU", "cgroup", grouped("cpu", cpu_cfs_quota_us="50000")),
    "reclaimed": ("A cgroup takes memory back that the ranks use", "cgroup", reclaimed),
    "tasks-just-enough": ("A cgroup allows 150 tasks", "cgroup", grouped("pids", pids_max="150")),
    "old-profile": ("A filter refuses pidfd_open, close_range, openat2 and faccessat2", "seccomp", _old_profile),
    "new-profile": ("A filter refuses perf_event_open, io_uring_setup and memfd_create", "seccomp", _new_profile),
    "oldest-kernel": ("The kernel knows no pidfd_open, close_range, openat2, faccessat2, io_uring and memfd_create", "seccomp", _oldest_kernel),
    "home-read-only": ("HOME can be read only", "namespace", unshared("--mount", "mount --bind {folder}/home {folder}/home; mount -o remount,ro,bind {folder}/home")),
    "umask-077": ("What is made is its owner's alone (umask 077)", "environment", before("umask 077")),
    "no-aslr": ("Addresses are not random (setarch -R)", "environment", lambda bench: bench.before.extend(["setarch", "-R"])),
    "core-files": ("Core files have no limit, and files may be locked", "rlimit", limited("--core=unlimited", "--memlock=65536:65536")),
    "turkish": ("The language is Turkish, whose locale is not installed", "environment", variables(LANG="tr_TR.UTF-8", LC_ALL="tr_TR.UTF-8")),
    "c-locale": ("The language is C", "environment", variables(LANG="C", LC_ALL="C")),
    "no-bytecode": ("Python writes no bytecode", "environment", variables(PYTHONDONTWRITEBYTECODE="1")),
    "warnings-told": ("Python tells each warning", "environment", variables(PYTHONWARNINGS="always")),
    "openmp-many": ("OpenMP is to have 64 threads in each rank", "environment", variables(OMP_NUM_THREADS="64")),
    "openmp-nested": ("OpenMP has a number for each level", "environment", variables(OMP_NUM_THREADS="2,1", OMP_MAX_ACTIVE_LEVELS="2")),
    "mkl-odd": ("MKL is to have three threads, and to choose itself", "environment", variables(MKL_NUM_THREADS="3", MKL_DYNAMIC="TRUE", MKL_DEBUG_CPU_TYPE="5")),
    "openmp-no-number": ("OMP_NUM_THREADS is no number", "environment", variables(OMP_NUM_THREADS="all")),
    "relative-place": ("TMPDIR is a relative path", "environment", all_of(before("mkdir {folder}/near; cd {folder}"), variables(TMPDIR="near"))),
    "many-variables": ("Variables of other launchers are left over", "environment", variables(SLURM_JOB_ID="7", SLURM_NTASKS="16", OMPI_MCA_btl="tcp,self", PMI_FD="9")),
    "clock-of-a-library": ("libfaketime tells a day later in every process", "LD_PRELOAD", all_of(library("libfaketime.so.1"), variables(FAKETIME="+1d"))),
    "clock-twice-as-fast": ("libfaketime lets time pass twice as fast", "LD_PRELOAD", all_of(library("libfaketime.so.1"), variables(FAKETIME="+0 x2"))),
    "no-room-at-all": ("TMPDIR is full to the last byte: as Python's own tempfile does, the next place is taken", "namespace", all_of(unshared("--mount", _FULL), variables(TMPDIR="{folder}/disk"))),
    "warnings-are-errors": ("Python makes an error of each warning", "environment", variables(PYTHONWARNINGS="error")),
}  # fmt: skip

_TOLD: Mapping[str, tuple[str, str]] = {
    "memory-perturbed": (
        "device",
        "torch-setting-changed",
    ),  # each allocation is written over: slow, and meant for looking for errors
    "clock-of-a-library": ("device", "clock-skew"),
    "clock-twice-as-fast": ("device", "clock-skew"),  # both are true; the difference is seen first
    "warnings-are-errors": ("checkpoint-sharded", "warnings-are-errors"),
}

_OTHERS: Mapping[str, Mapping[str, str]] = {"warnings-are-errors": {"ddp": "fail"}}
"""torch 2.13 warns of what its own optimizers that are spread over ranks call (torch.jit.script)."""

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, *_TOLD.get(name, ("", "")), inject=inject, means=means, stages=STAGES)._replace(others=_OTHERS.get(name, {}))
    for name, (what, means, inject) in _WAYS.items()
)
