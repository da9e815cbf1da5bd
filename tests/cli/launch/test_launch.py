"""``launch`` as a rank's process: what it binds, what it leaves alone, and that it becomes the program."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from driven import PROGRAM, environment

CPUS = sorted(os.sched_getaffinity(0))
TELL = (
    "import json, os, signal, sys; print(json.dumps({'cpus': sorted(os.sched_getaffinity(0)), 'omp': os.environ.get('OMP_NUM_THREADS'),"
    " 'argv': sys.argv[1:], 'pid': os.getpid(), 'stdin': sys.stdin.read() if sys.argv[1:] == ['stdin'] else ''}))"
)
STARTERS = ("LOCAL_", "OMPI_", "MPI_", "MV2_", "PALS_", "JSM_", "FLUX_", "SLURM_", "TORCHELASTIC_", "CUDA_VISIBLE")
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def env(**changes: str) -> dict[str, str]:
    return {name: value for name, value in environment().items() if not name.startswith(STARTERS)} | changes


def launch(*arguments: str, data: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "launch", *arguments], env=env(**variables), input=data, capture_output=True, text=True, timeout=60
    )


def told(*options: str, **variables: str) -> dict[str, Any]:
    done = launch(*options, "--", sys.executable, "-c", TELL, **variables)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@two_cpus
@pytest.mark.parametrize(
    ("rank", "ranks"),
    [
        ("LOCAL_RANK", {"LOCAL_WORLD_SIZE": "2"}),
        ("OMPI_COMM_WORLD_LOCAL_RANK", {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_LOCALID": "0"}),
        ("MPI_LOCALRANKID", {"MPI_LOCALNRANKS": "2"}),
        ("PALS_LOCAL_RANKID", {"PALS_LOCAL_SIZE": "2"}),
        ("SLURM_LOCALID", {"SLURM_STEP_TASKS_PER_NODE": "4,2(x2)", "SLURM_NODEID": "2", "SLURM_NTASKS_PER_NODE": "8"}),
        ("SLURM_LOCALID", {"SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_NODEID": "1"}),
    ],
)
def test_ranks_of_each_starter_get_cpus_of_their_own(rank: str, ranks: dict[str, str]) -> None:
    first, second = (told(**{**ranks, rank: number}) for number in ("0", "1"))
    assert first["cpus"]
    assert second["cpus"]
    assert set(first["cpus"]) | set(second["cpus"]) <= set(CPUS)
    assert not set(first["cpus"]) & set(second["cpus"])


def test_what_somebody_chose_for_openmp_stays() -> None:
    assert told("--local-rank=0", OMP_NUM_THREADS="7")["omp"] == "7"
    assert int(told("--local-rank=0", "--nproc-per-node=1")["omp"]) >= 1


def test_cores_are_counted_and_not_hyperthreads() -> None:
    cores = {
        Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list").read_text()
        for cpu in CPUS
        if Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list").exists()
    }
    if not cores:
        pytest.skip("this machine does not tell its cores")
    assert int(told("--local-rank=0", "--nproc-per-node=1")["omp"]) <= len(cores)


def test_standard_input_arguments_and_output_are_the_program_s() -> None:
    done = launch("-q", "--local-rank=0", "--", sys.executable, "-c", TELL, "stdin", data="x\ny")
    assert (json.loads(done.stdout)["stdin"], done.stderr) == ("x\ny", "")
    done = launch("--local-rank", "0", sys.executable, "-c", TELL, "--", "--strict", "-q", "a b", "")
    assert json.loads(done.stdout)["argv"] == ["--", "--strict", "-q", "a b", ""]
    assert done.stderr.startswith("torchtune-sys: local rank 0: CPUs ")


@pytest.mark.parametrize("status", [0, 1, 2, 77, 255])
def test_the_status_is_the_program_s(status: int) -> None:
    assert launch("--local-rank=0", "--", "sh", "-c", f"exit {status}").returncode == status


def test_the_process_becomes_the_program_and_hears_signals() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); print('ready', flush=True)\nwhile True: time.sleep(0.1)"
    child = subprocess.Popen(
        [*PROGRAM, "launch", "-q", "--local-rank=0", "--", sys.executable, "-c", code],
        env=env(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 42
    killed = launch("-q", "--local-rank=0", "--", "sh", "-c", "kill -KILL $$")
    assert killed.returncode == -signal.SIGKILL


def test_signals_that_python_ignores_are_as_a_program_expects_them() -> None:
    done = launch("-q", "--local-rank=0", "--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    assert not ignored >> (signal.SIGXFSZ - 1) & 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--", "true"], 2, "no local rank in the environment"),
        (["--local-rank=0"], 2, "missing argument"),
        (["--local-rank=-1", "--", "true"], 2, "not in the range"),
        (["--typo", "--local-rank=0", "true"], 2, "no such option"),
        (["--local-rank=0", "--", "/nonexistent/program"], 127, "/nonexistent/program: No such file"),
        (["--local-rank=0", "--", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (["--local-rank=0", "--", "torchrun", "train.py"], 2, "torchrun starts ranks"),
        (
            ["--local-rank=0", "--", "python3", "-u", "-m", "torch.distributed.run", "x.py"],
            2,
            "torch.distributed.run starts ranks",
        ),
        (["--strict", "--local-rank=3", "--nproc-per-node=2", "--", "true"], 125, "there is room for 2 ranks only"),
    ],
)
def test_mistakes_are_told(arguments: list[str], status: int, words: str) -> None:
    done = launch(*arguments)
    assert words in done.stderr
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("rank", ["x", "-1", "٣", "9" * 40])
def test_a_rank_that_is_no_number_is_said_and_no_other_is_taken(rank: str) -> None:
    done = launch("--", "true", LOCAL_RANK=rank, SLURM_LOCALID="0")
    assert done.returncode == 2 and f"LOCAL_RANK={rank} is not a local rank\n" in done.stderr


def test_a_rank_that_is_empty_is_none() -> None:
    assert launch("--", "true", LOCAL_RANK="").returncode == 2
    assert launch("--", "true", LOCAL_RANK="", SLURM_LOCALID="0").returncode == 0


def test_as_many_ranks_as_there_may_be_cost_no_time() -> None:
    """Each rank is placed by itself; what all of them would cost goes with the square of their number."""
    assert launch("-q", "--", "true", LOCAL_RANK="7", LOCAL_WORLD_SIZE="50000").returncode == 0


@pytest.mark.parametrize(
    ("content", "status", "words"), [("true\n", 126, "it has none"), ("#!/nope\n", 127, "first line (#!) names")]
)
def test_a_file_that_nothing_reads_is_there(content: str, status: int, words: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o755)
    done = launch("--local-rank=0", "--", str(program))
    assert done.returncode == status and "the file is there" in done.stderr and words in done.stderr


def test_a_rank_without_a_seat_starts_unbound_and_says_so() -> None:
    done = launch("--nproc-per-node=2", "--", sys.executable, "-c", TELL, LOCAL_RANK="5")
    assert json.loads(done.stdout)["cpus"] == CPUS
    assert "local rank 5 starts unbound: there is room for 2 ranks only" in done.stderr


@two_cpus
def test_a_rank_that_its_starter_bound_keeps_its_cpus() -> None:
    """As mpirun's default, srun's --cpu-bind=cores or torchrun's --numa-binding leave it."""
    argv = [*PROGRAM, "launch", "--", sys.executable, "-c", TELL]
    done = subprocess.run(
        ["taskset", "-c", str(CPUS[1]), *argv],
        env=env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["cpus"] == [CPUS[1]]
    assert "already bound by what started it" in done.stderr


@two_cpus
def test_slurm_s_own_masks_are_kept() -> None:
    masks = {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1,0x2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    assert told(SLURM_LOCALID="1", **masks)["cpus"] == CPUS
    alike = masks | {"SLURM_CPU_BIND_LIST": "0x3"}  # one mask for all: they are to be shared out
    assert told(SLURM_LOCALID="1", **alike)["cpus"] != CPUS


@two_cpus
def test_torchrun_s_default_of_one_thread_is_replaced_and_a_person_s_is_not() -> None:
    """torchrun sets the variable in its own process after that began."""
    agent = (
        "import os, subprocess, sys; os.environ.update(OMP_NUM_THREADS='1', TORCHELASTIC_RUN_ID='x', LOCAL_RANK='0', LOCAL_WORLD_SIZE='1');"
        "subprocess.run(sys.argv[1:], check=True)"
    )
    argv = [sys.executable, "-c", agent, *PROGRAM, "launch", "--", sys.executable, "-c", TELL]
    chosen = subprocess.run(argv, env=env(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=60)
    assert json.loads(chosen.stdout)["omp"] == "1"
    default = subprocess.run(argv, env=env(), capture_output=True, text=True, timeout=60)
    whole = told("--local-rank=0", "--nproc-per-node=1")["omp"]
    assert json.loads(default.stdout)["omp"] == whole


# --- where the system refuses


def refusing(numbers: tuple[int, ...]) -> None:
    """A seccomp filter as container runtimes set it: these system calls fail with EPERM. Source: seccomp(2), linux/filter.h."""
    load, equal, ret = 0x20, 0x15, 0x06
    allow, eperm = 0x7FFF0000, 0x00050000 | 1
    program = [(load, 0, 0, 0)]
    program += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program += [(ret, 0, 0, allow), (ret, 0, 0, eperm)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(Program(len(program), ctypes.addressof(buffer))), 0, 0) == 0


def refused(*numbers: int, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = [*PROGRAM, "launch", *options, "--local-rank=0", "--nproc-per-node=2", "--", sys.executable, "-c", TELL]
    places = [*map(str, (Path(__file__).parent, *Path(__file__).parents[1:3]))]
    code = f"import sys; sys.path[:0] = {places!r}; import os, test_launch; test_launch.refusing({numbers!r}); os.execv({argv[0]!r}, {argv!r})"
    return subprocess.run([sys.executable, "-c", code], env=env(), capture_output=True, text=True, timeout=60)


SET_AFFINITY, GET_MEMPOLICY, SET_MEMPOLICY = {"x86_64": (203, 239, 238), "aarch64": (122, 236, 237)}.get(
    platform.machine(), (0, 0, 0)
)
known_calls = pytest.mark.skipif(not SET_AFFINITY, reason="the numbers of this architecture's system calls are not in this test")


@known_calls
@two_cpus
def test_where_a_container_refuses_memory_policies_the_cpus_are_bound() -> None:
    done = refused(SET_MEMPOLICY, GET_MEMPOLICY)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["cpus"]) < len(CPUS)


@known_calls
def test_where_affinity_is_refused_the_program_starts_unbound() -> None:
    done = refused(SET_AFFINITY)
    assert json.loads(done.stdout)["cpus"] == CPUS
    assert "starts unbound: Operation not permitted" in done.stderr
    assert refused(SET_AFFINITY, options=("--strict",)).returncode == 125


def test_nothing_is_started_and_little_is_read(tmp_path: Path) -> None:
    """No child process, and not the families that placing does not ask."""
    log = tmp_path / "trace"
    argv = [
        "strace",
        "-f",
        "-o",
        str(log),
        "-e",
        "trace=execve,fork,vfork,clone,clone3",
        *PROGRAM,
        "launch",
        "--local-rank=0",
        "true",
    ]
    try:
        done = subprocess.run(argv, env=env(), capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("strace is not installed")
    if "ptrace" in done.stderr.lower() and not log.exists():
        pytest.skip("strace may not trace here")
    lines = log.read_text().splitlines()
    assert len([line for line in lines if "execve(" in line and "= 0" in line]) == 2  # the interpreter, and what it became
    # A thread's call may be told in two lines, of which only one shows its flags.
    processes = [line for line in lines if "fork(" in line or ("flags=" in line and "CLONE_THREAD" not in line)]
    assert not processes
    modules = subprocess.run(
        [sys.executable, "-X", "importtime", *PROGRAM[1:], "launch", "--local-rank=0", "true"],
        env=env(),
        capture_output=True,
        text=True,
        timeout=60,
    ).stderr
    loaded = {line.rpartition("|")[2].strip() for line in modules.splitlines()}
    assert "torchtune_sys.remediation.placement.assign" in loaded
    assert not {
        name for name in loaded if name.endswith(("probes.python", "probes.gpu", "probes.storage", ".rules", "pynvml", "jinja2"))
    }


def test_it_takes_little_beside_the_program() -> None:
    def best(argv: list[str]) -> float:
        found = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(argv, env=env(), check=True, capture_output=True)
            found.append(time.perf_counter() - start)
        return min(found)

    bare = best([sys.executable, "-c", "pass"])
    assert best([*PROGRAM, "launch", "-q", "--local-rank=0", "true"]) < 12 * bare + 0.1
