"""The same failure in every form in which people paste it, and inputs that mean harm."""

from __future__ import annotations

import gzip
import html
import io
import json
import quopri
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis

# Look-alikes of https://github.com/pytorch/pytorch/issues/157709, /issues/103417, NVIDIA/nccl#426, NVIDIA/nvidia-docker#1699 and numba/numba#9732.
FAILURES = {
    "libstdcxx-too-old": "import torch\nImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /opt/env/lib/x.so)\n",
    "libcuda-not-linkable": "/usr/bin/ld: cannot find -lcuda\ncollect2: error: ld returned 1 exit status\n",
    "roce-gid-index": "w-1:9:98 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n",
    "dev-shm-too-small": "step 3\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\nstep 4\n",
    "cuda-stub-library-loaded": "Using loader <class 'ctypes.CDLL'>\n\tLoaded from libcuda.so\n\tMapped libcuda.so paths:\n\t\t/opt/cuda/lib64/stubs/libcuda.so\n",
    "master-port-in-use": "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
    "image-contains-driver-libraries": "nvidia-container-cli: mount error: file creation failed: /var/lib/docker/overlay2/x/merged/usr/lib/libcuda.so.1: file exists: unknown\n",
}


def _each(change: Callable[[str], str]) -> Callable[[str], bytes]:
    return lambda text: "\n".join(map(change, text.split("\n"))).encode()


def _wrapped(text: str) -> bytes:
    return "\n".join(line[at : at + 80] for line in text.split("\n") for at in range(0, max(len(line), 1), 80)).encode()


FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "wrapped": _wrapped,
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "zeros of a log that was truncated, and of a signal handler": lambda text: (
        bytes(70_000) + text.replace("\n", "\n\0").encode()
    ),
    "one line of JSON": lambda text: json.dumps({"level": "error", "message": text}).encode(),
    "a JSON document a line": _each(lambda line: json.dumps({"log": line + "\n", "stream": "stderr"})),
    "escaped": lambda text: json.dumps(text)[1:-1].encode(),
    "HTML": lambda text: f"<div class='x'><pre>{html.escape(text)}</pre></div>".replace("\n", "<br/>").encode(),
    "Markdown": lambda text: f"<details>\n<summary>log</summary>\n\n```shell\n{text}```\n</details>".encode(),
    "quoted": _each(lambda line: f"> > {line}"),
    "coloured": _each(lambda line: f"\x1b[1;31m{line}\x1b[0m"),
    "times": _each(lambda line: f"2025-03-04T05:06:07.123456Z {line}"),
    "kubectl": _each(lambda line: f"[pod/train-0/main] {line}"),
    "srun -l": _each(lambda line: f"3: {line}"),
    "mpirun": _each(lambda line: f"[1,3]<stderr>: {line}"),
    "pdsh": _each(lambda line: f"node-12: {line}"),
    "compose": _each(lambda line: f"worker-1  | {line}"),
    "Ray": _each(lambda line: f"(RayTrainWorker pid=77, ip=10.0.0.3) {line}"),
    "a container's log (CRI)": _each(lambda line: f"2025-03-04T05:06:07.123456789Z stderr F {line}"),
    "gh run view": _each(lambda line: f"train (3.11)\tRun training\t2025-03-04T05:06:07.1234567Z {line}"),
    "Airflow": _each(lambda line: f"[2025-03-04, 05:06:07 UTC] {{subprocess.py:93}} INFO - {line}"),
    "SageMaker": _each(lambda line: f"[1,mpirank:3,algo-2]<stderr>:{line}"),
    "docker build": _each(lambda line: f"#12 60.43 {line}"),
    "TorchX": _each(lambda line: f"trainer/3 {line}"),
    "grep -n of a file": _each(lambda line: f"logs/rank0.log:12:{line}"),
    "cat -n": _each(lambda line: f"    12\t{line}"),
    "mail": lambda text: quopri.encodestring(text.encode()),
    "a panel": lambda text: "".join(
        f"│ {row:<76} │\n" for line in text.split("\n") for row in textwrap.wrap(line, 76) or [""]
    ).encode(),
    "levels": _each(lambda line: f"ERROR:trainer.main:{line}"),
    "interleaved": lambda text: "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n") for rank in range(3)).encode(),
}


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)


def judged(data: bytes) -> Diagnosis:
    return diagnose([InputText(name="x", excerpt=excerpt(_Bytes(data)))])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "# Training: RuntimeError: CUDA error: out of memory\n\nRuntimeError: cuda runtime error (30) : unknown error at THCGeneral.cpp:51",
            "nvidia-uvm-broken-after-suspend",
        ),
        ("# docker 里找不到 GPU\n\nnvidia-smi:\nFailed to initialize NVML: Unknown Error", "container-lost-gpu-cgroup"),
        ("# Update BROKE my setup\n\n> CUDA initialization: The NVIDIA driver on your system is too old", "driver-too-old"),
    ],
)
def test_what_a_program_prints_comes_before_its_heading_and_before_what_is_claimed(text: str, cause: str) -> None:
    assert judged(text.encode()).causes[0].cause == cause


PREFIXES = (
    "3: ",
    "ERROR:trainer: ",
    "ERROR    trainer:loop.py:12 ",
    "2025-03-04 05:06:07,123 - trainer - ERROR - ",
    "train-1  | ",
)


@pytest.mark.parametrize("before", PREFIXES)
def test_what_people_tell_is_read_behind_a_prefix(before: str) -> None:
    """A note of few lines, with an empty one: each begins alike."""
    told = ["# Training gets slower", "", "After an hour the swap is full.", "", "I train for 3 epochs; what can I do?"]
    found = judged("\n".join(f"{before}{line}" for line in told).encode())
    assert [each.cause for each in found.causes] == ["host-memory-oom"]


@pytest.mark.sampled(40)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cause", FAILURES)
def test_a_failure_is_named_in_every_form(cause: str, form: str) -> None:
    assert [each.cause for each in judged(FORMS[form](FAILURES[cause])).causes][:1] == [cause]


OTHER_WORDS = {
    "rocm-device-permission": 'level=ERROR msg="open /dev/kfd: permission denied"',  # Go's case
    "filesystem-without-locks": "OSError: ENOLCK",
    "host-memory-oom": "`Killed`",  # Markdown's code, without its fence
    "wsl-libcuda-link-missing": "uname -r: 5.15.90.1-microsoft-standard-WSL2\nRuntimeError: Failed to dlopen libcuda.so",
    "nvidia-uvm-broken-after-suspend": "RuntimeError: cuda runtime error (999) : unknown error at THCGeneral.cpp:47",
    "memlock-limit-too-low": "UCX  ERROR ibv_reg_mr(address=0x7f1bae800000, length=39845888, access=0xf) failed: Cannot allocate memory",
    "nouveau-loaded": "[  201.9] NVRM: GPU 0000:01:00.0 is already bound to NovaCore.\n[  201.9] NVRM: No NVIDIA devices probed.",
    "numpy2-with-old-torch": ">>> torch.__version__\n'2.2.2+cpu'\nRuntimeError: Numpy is not available",
}
"""Look-alikes of reports whose words no table had as they stand there (tests/diagnose/unseen.csv, set fresh)."""


@pytest.mark.parametrize("cause", OTHER_WORDS)
def test_the_same_error_in_other_letters_is_known(cause: str) -> None:
    found = judged(OTHER_WORDS[cause].encode())
    assert found.causes[0].cause == cause
    assert found.causes[0].evidence[0].text in OTHER_WORDS[cause].replace("`", "")


def test_a_call_of_cuda_in_a_program_is_no_error() -> None:
    assert not judged(b"from cuda import cuda\ncuda.cuInit(0)\n").causes


def test_the_prefix_is_kept_as_host_and_rank() -> None:
    found = judged(
        b"\n".join(
            b"node-%d: [rank%d]: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error." % (n, 9 * n)
            for n in (1, 2, 3)
        )
    )
    assert (found.causes[0].hosts, found.causes[0].ranks) == (("node-1", "node-2", "node-3"), (9, 18, 27))


def test_a_line_before_the_error_lends_it_no_rank() -> None:
    log = "".join(
        f"node{rank}: [rank{rank}]: step {rank} loss 0.5 and so on, a line as long as all others\n" for rank in range(8)
    )
    (cause,) = judged(f"{log}RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n".encode()).causes
    assert (cause.hosts, cause.ranks, len(cause.evidence)) == ((), (), 1)


def test_two_faults_in_one_report_are_both_named() -> None:
    found = judged((FAILURES["libstdcxx-too-old"] + FAILURES["dev-shm-too-small"]).encode())
    assert {each.cause for each in found.causes} == {"libstdcxx-too-old", "dev-shm-too-small"}


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 1: loss 0.31, 0 errors\nsaved checkpoint\n",
        "node-1:5:5 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\nnode-1:5:5 [0] NCCL INFO comm 0x5 rank 0 nranks 8 - Init COMPLETE\n",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n",
        "The documentation says what to do where a port is already in use or memory runs out.\n",
    ],
)
def test_what_is_healthy_has_no_cause(text: str) -> None:
    found = judged(text.encode())
    assert (found.causes, found.unexplained) == ((), ())


HOSTILE = {
    "prefixes": "[rank1]: " * 20_000,
    "brackets": "[" * 100_000,
    "json": '{"a":' * 50_000,
    "blanks": "Error: " + " " * 200_000 + "x",
    "tags": "<pre" * 50_000,
    "escapes": "\x1b[" * 100_000,
    "quotes": "> " * 100_000,
    "frames": '  File "a", line 1 in f\n' * 6_000,
    "words": "NCCL WARN error failed connect " * 10_000,
    "paths": "/a" * 100_000,
    "entities": "&#x27;" * 40_000,
    "traceback": "Traceback (most recent call last):\n" * 4_000,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(name: str) -> None:
    text = HOSTILE[name]
    judged(text[:100].encode())
    times = []
    for part in (text[: len(text) // 4], text):
        began = time.process_time()
        judged(part.encode())
        times.append(time.process_time() - began)
    assert times[1] < 12 * times[0] + 1.0, times


def test_a_zip_bomb_ends_in_bounded_memory_and_is_told(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.log", b"error " * (8 << 20))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.zip", inner.getvalue())
    found = diagnose(collected([str(tmp_path)]))
    assert found.sources + len(found.unread) >= 3


def test_archives_in_archives_without_end_are_not_followed(tmp_path: Path) -> None:
    data = b"RuntimeError\n"
    for _ in range(8):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("x.zip", data)
        data = out.getvalue()
    (tmp_path / "a.zip").write_bytes(data)
    found = diagnose(collected([str(tmp_path)]))
    assert [each.why for each in found.unread] == ["is more than 3 archives deep"]


def _zipped(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return out.getvalue()


def _tarred(name: str, data: bytes, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_an_archive_in_a_tar_archive_is_read_though_it_ends_in_zeros(tmp_path: Path) -> None:
    """A zip's last record, a tar's end mark and gzip's length end in zeros, which were taken for sysfs' and cut: told as damaged."""
    text = b"RuntimeError: CUDA error: out of memory\n"
    for inner in (_zipped("a.log", text), _tarred("a.log", text), _tarred("a.log", text, "w:gz"), gzip.compress(text)):
        for data in (_tarred("in", inner), _tarred("in", inner, "w:gz"), _zipped("m", _tarred("in", inner))):
            (tmp_path / "x").write_bytes(data)
            found = list(collected([str(tmp_path / "x")]))
            assert [line for each in found if isinstance(each, InputText) for _, line in each.excerpt.lines] == [
                text.decode().strip()
            ]


def test_zeros_at_the_end_of_a_text_in_a_tar_archive_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(_tarred("a.log", b"RuntimeError: x\n" + bytes(4000)))
    (found,) = collected([str(tmp_path / "x.tar")])
    assert isinstance(found, InputText) and [line for _, line in found.excerpt.lines] == ["RuntimeError: x"]


def test_a_long_log_keeps_its_complaint_and_its_line_number() -> None:
    row = "step {} loss 0.3171 lr 1e-4 tokens 81920 time 0.31\n"
    lines = [row.format(number) for number in range(110_000)]
    lines[63_456] = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
    found = judged("".join(lines).encode())
    assert (found.causes[0].cause, found.causes[0].evidence[0].line) == ("dev-shm-too-small", 63_457)
    assert found.lines == 110_000


def test_what_the_words_tell_more_is_said_of_the_first_cause_only() -> None:
    """A remedy is written for the likeliest cause; under the others stands what helps against these."""
    causes = judged(b"ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n").causes
    assert len(causes) > 1
    assert ["sglang-kernel" in " ".join(each.fix) for each in causes] == [True] + [False] * (len(causes) - 1)


def test_a_folded_line_is_read_whole_where_its_piece_says_less() -> None:
    """The piece alone is what an extension made for another torch prints; the file's name, on the line before, is torch's own."""
    told = "it failed after the update, and neither a new environment nor another release of the driver, which I tried on two hosts, helped at all"
    error = "ImportError: /opt/anaconda2/lib/python2.7/site-packages/torch/lib/libtorch.so.1: undefined symbol: _ZTIN2at4TypeE"
    text = "\n".join(textwrap.fill(line, 80, break_long_words=False) for line in (told, error, told))
    assert "\nundefined symbol" in text
    assert judged(text.encode()).causes[0].cause == "torch-install-damaged"


def test_the_head_of_a_configuration_file_is_no_change_of_documentation() -> None:
    error = FAILURES["dev-shm-too-small"]
    assert (
        judged(f"# Documentation: https://slurm.schedmd.com/slurm.conf.html\n{error}".encode()).causes[0].cause
        == "dev-shm-too-small"
    )
    assert judged(f"# [Docs] Explain the error below\n{error}".encode()).causes == ()


@pytest.mark.parametrize("ending", ["permission\ndenied", "permission den"])
def test_the_c_librarys_words_in_other_letters_are_known_broken_and_cut(ending: str) -> None:
    """Go and Rust write errors in small letters; so does a line of theirs that is folded, or cut at its end."""
    told = "it is the same for each user of this host, in a container and outside of it, with and without the group render, after a reboot as well"
    text = (
        textwrap.fill(told, 80)
        + "\namdgpu devices were detected, and something or other did block them: open /dev/kfd: "
        + ending
    )
    assert judged(text.encode()).causes[0].cause == "rocm-device-permission"


def test_a_jetson_is_not_told_to_take_wheels_that_it_does_not_have() -> None:
    error = "OSError: libcurand.so.10: cannot open shared object file: No such file or directory"
    on_jetson, elsewhere = (
        judged(f"{place}\n{error}\n".encode()).causes[0] for place in ("Jetson Nano, JetPack 4.6", "Ubuntu 24.04")
    )
    assert on_jetson.cause == elsewhere.cause == "wheel-libs-not-found"
    assert "JetPack" in on_jetson.fix[0] and "JetPack" not in " ".join(elsewhere.fix)


SRUN_ENDS = (
    "srun: error: n2: task 1: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=43.0\n"
    "0: slurmstepd-n1: error: *** STEP 43.0 ON n1 CANCELLED AT 2026-11-27T01:19:00 ***\nsrun: error: n3: tasks 2-7: Terminated\n"
)


def test_what_srun_does_to_the_other_tasks_is_no_error_of_its_own() -> None:
    """As Slurm 22.05 printed it with --kill-on-bad-exit=1 below a torchrun on each node."""
    found = judged(
        f"1:  exitcode  : -9 (pid: 5568)\n1:  traceback : Signal 9 (SIGKILL) received by PID 5568\n{SRUN_ENDS}".encode()
    )
    assert {each.cause for each in found.causes} == {"host-memory-oom", "rank-killed"} and found.unexplained == ()
    alone = judged(SRUN_ENDS.encode())
    assert [(each.text, each.hosts) for each in alone.unexplained] == [(SRUN_ENDS.splitlines()[0], ("n2",))] and not alone.causes


@pytest.mark.parametrize(
    ("head", "rank"),
    [
        ("ERROR 01-07 13:38:08 [core.py:500] ", ()),
        ("(VllmWorkerProcess pid=89) ERROR 01-07 13:38:08 multiproc_worker_utils.py:236] ", ()),
        ("\x1b[36m(RayWorkerWrapper pid=89, ip=10.0.0.7)\x1b[0m ERROR 01-07 13:38:08 worker_base.py:581] ", ()),
        ("^[[36m(RayWorkerWrapper pid=89, ip=10.0.0.7)^[[0m ERROR 01-07 13:38:08 worker_base.py:581] ", ()),
        ("[2025-02-10 21:15:43 TP6] ", (6,)),
        ("[2025-02-10 21:15:43 DP0 TP6] ", (6,)),
    ],
)
def test_the_error_behind_an_engines_prefix_is_quoted_as_pythons(head: str, rank: tuple[int, ...]) -> None:
    """vLLM's, Ray's and sglang's; what only passes on that another process failed is not what is quoted."""
    lines = (
        "EngineCore hit an exception: Traceback (most recent call last):",
        '  File "/srv/core.py", line 3, in run',
        "    x.y",
        "AttributeError: 'dict' object has no attribute 'y'",
    )
    text = (
        "\n".join(f"{head}{line}" for line in lines)
        + "\nRuntimeError: Engine process failed to start. See stack trace for the root cause.\n"
    )
    [unknown] = judged(text.encode()).unexplained
    assert (unknown.text, unknown.program, unknown.ranks) == (lines[-1], "python", rank)
