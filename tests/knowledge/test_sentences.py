"""What programs say in so many words, and the rule that it fails; and the like of it that says something else."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.knowledge import sentences, tables
from torchtune_sys.knowledge.sentences import SentenceSearch, printed_messages
from torchtune_sys.model.patterns import words_of
from torchtune_sys.model.rule import Severity, Verdict
from torchtune_sys.rules import by_id

NUMPY = "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.1.0 as it may crash.\nTraceback (most recent call last):\n"
SYMBOL = "undefined symbol: _ZN3c104cuda9SetDeviceEi"
SAYINGS = [
    ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. dataloader's workers are out of shared memory.", "dev-shm-too-small"),
    ("n1:7:7 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device", "dev-shm-too-small"),
    ("Error while creating shared memory segment /dev/shm/nccl-Ab1 (size 9637888), error: No space left on device (28)", "dev-shm-too-small"),
    ("RuntimeError: DataLoader worker (pid(s) 1, 2) exited; DataLoader worker (pid 9) is killed by signal: Killed.", "oom-kill-logged"),
    (f'{NUMPY}  File "/v/lib/python3.10/site-packages/torch/__init__.py", line 1477, in <module>', "numpy2-with-old-torch"),
    ("RuntimeError: operator torchvision::nms does not exist", "torch-torchvision-mismatch"),
    (f"ImportError: /v/site-packages/torchvision/_C.so: {SYMBOL}", "torch-torchvision-mismatch"),
    (f"OSError: /v/site-packages/torchaudio/lib/libtorchaudio.so: {SYMBOL}", "torch-torchaudio-mismatch"),
    (f"ImportError: /v/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: {SYMBOL}", "extension-torch-abi-mismatch"),
    ("ImportError: /v/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommShrink", "torch-import-fails"),
    ("AssertionError: Torch not compiled with CUDA enabled\nMy card: RTX 3090", "cpu-only-build"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabric-manager-not-running"),
    ("RuntimeError: Error 803: system has unsupported display driver / cuda driver combination", "nvml-driver-library-mismatch"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-ecc-uncorrectable"),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000", "several-ranks-on-one-gpu"),
    ("socket.cpp:1023] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "master-port-in-use"),
    ("KeyError: 'getpwuid(): uid not found: 1234'", "container-uid-without-passwd"),
    ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].', "container-toolkit-missing"),
    ("a.cu:1: #error -- unsupported GNU version! gcc versions later than 12 are not supported!", "host-compiler-too-new"),
    ("The detected CUDA version (12.4) mismatches the version that was used to compile\nPyTorch (11.8).", "nvcc-torch-cuda-mismatch"),
    ("RuntimeError: HIP error: invalid device function", "rocm-arch-not-in-wheel"),
    ("RuntimeError: cuda runtime error (101) : invalid device ordinal\n  MIG 1g.10gb     Device  0:", "mig-mode-limits"),
    ("WARNING: Could not find any NVIDIA libraries on this host!", "no-nvidia-driver"),
    ("RuntimeError: [enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 402653184 bytes.", "memory-available-low"),
    ("misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "memlock-limit-too-low"),
    ("OpenBLAS: Resource temporarily unavailable\nOpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max", "nproc-limit-too-low"),
    ("OpenBLAS: Resource temporarily unavailable\nOpenBLAS blas_thread_init: RLIMIT_NPROC -1 current, -1 max", "cgroup-pids-limit"),
    ("Unable to open /dev/kfd read-write: Permission denied", "rocm-device-permission"),
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "temporary-space-low"),
    ("OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache'", "disk-full"),
    ("OSError: [Errno 37] No locks available", "cache-without-file-locks"),
    ("RuntimeError: Ninja is required to load C++ extensions\nninja==1.11.1", "ninja-not-on-path"),
]  # fmt: skip
OTHERS = [
    "OSError: [Errno 28] No space left on device",
    "Error while creating shared memory segment /dev/shm/nccl-Ab1 (size 9637888), error: Permission denied (13)",
    f'{NUMPY}  File "/v/lib/python3.10/site-packages/pandas/__init__.py", line 1, in <module>',
    f"ImportError: /v/site-packages/torch/lib/libtorch_python.so: {SYMBOL}",
    "ImportError: /v/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: __nvJitLinkComplete_12_4",
    "AssertionError: Torch not compiled with CUDA enabled\nI have a MacBook and want to train on the CPU",
    "docker run --gpus all ...\nRuntimeError: Error 803: system has unsupported display driver / cuda driver combination",
    "RuntimeError: Ninja is required to load C++ extensions",
    "CUDA error: invalid device ordinal, I have 2 GPUs",
    "$ lsmod\nnouveau              2306048  0\nvideo                  65536  1 nouveau",
    "OSError: [Errno 98] Address already in use: ('0.0.0.0', 8080)",
]


@pytest.mark.parametrize(("text", "rule"), SAYINGS, ids=[rule for _, rule in SAYINGS])
def test_a_sentence_fails_its_rule(text: str, rule: str) -> None:
    seen = evidence.read(f"Hello,\n> {text}\nbye", "issue.txt")
    assert seen is not None
    failed = {name: found for name, found in judge(seen).items() if found.verdict in (Verdict.FAIL, Verdict.CRASHED)}
    assert set(failed) == {rule}
    assert failed[rule].rule.severity is not Severity.ADVICE
    assert failed[rule].evidence[0].seen[:40] in text


@pytest.mark.parametrize("text", OTHERS)
def test_words_that_have_other_causes(text: str) -> None:
    assert printed_messages(text) == {}


def test_a_failure_goes_before_what_other_lines_of_the_report_list() -> None:
    """What is listed need not be what that program ran with."""
    text = "PyTorch version: 2.6.0\n[pip3] torch==2.6.0\n[pip3] numpy==1.26.4\n" + SAYINGS[4][0]
    seen = evidence.read(text, "issue.txt")
    assert seen is not None
    assert judge(seen)["numpy2-with-old-torch"].verdict is Verdict.FAIL


def test_each_names_a_rule() -> None:
    assert {row["rule"] for row in tables.rows("sentences")} - {""} <= by_id().keys()


def test_it_survives_any_length() -> None:
    assert printed_messages("could not select device driver " * 20_000) == {}
    assert printed_messages("/torchvision/" + "x" * 200_000) == {}


PATTERNS = sorted({row["pattern"] for table in ("sentences", "operations") for row in tables.rows(table)})


@given(st.sampled_from(PATTERNS).flatmap(lambda each: st.tuples(st.just(each), st.from_regex(re.compile(each, re.MULTILINE)))))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_a_pattern_matches_holds_one_of_its_words(case: tuple[str, str]) -> None:
    pattern, text = case
    words = words_of(pattern)
    assert not words or any(word in text for word in words)


def test_a_text_without_the_words_of_a_sentence_is_not_searched_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's log of 260 KB was searched for each of fifty sentences, which took a quarter of the whole check."""
    rows = sentences._of_rules.__wrapped__()  # not compiled by another test
    monkeypatch.setattr(sentences, "_of_rules", lambda: rows)
    printed_messages("[    1.000000] mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged\n" * 9)
    searched = [row for row in rows if "search" in vars(row.pattern)]
    assert len(searched) <= len(rows) // 4
    assert all(not row.words for row in searched)


def test_a_line_is_tried_with_few_rows() -> None:
    """Each row was tried with each line, which took most of the time of a diagnosis."""
    lines = [
        "[rank0]: epoch 3 step 1200 loss 0.31 lr 1e-4",
        "torch/utils/data/dataloader.py: loading worker 3 with 16 files",
        "x" * 4000,
    ]
    tried = [len(list(sentences._that_may_match(line))) for line in lines]
    assert max(tried) < len(sentences._of_any_program()) // 12


@given(st.sampled_from(PATTERNS).flatmap(lambda each: st.tuples(st.just(each), st.from_regex(re.compile(each, re.MULTILINE)))))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_row_that_matches_a_line_is_among_those_that_are_tried(case: tuple[str, str]) -> None:
    pattern, text = case
    tried = {row.pattern.pattern for row in sentences._that_may_match(text)}
    rows = [row for row in tables.rows("sentences") if row["pattern"] == pattern]
    assert pattern in tried or (rows and all(row["stage"] or row["role"] == "fact" for row in rows))


REFUSED = "RuntimeError: torch rank {}: Name or service not known"


def test_what_is_near_is_sought_about_each_line() -> None:
    """A download's failure hides none of a job's that stands far from it, before or behind it."""
    far = ["step done"] * 130
    lines = [
        REFUSED.format(0),
        *far,
        REFUSED.format(1),
        "urllib3.exceptions.MaxRetryError",
        *far,
        REFUSED.format(2),
        REFUSED.format(1),
    ]
    search = SentenceSearch("\n".join(lines))
    said = [search.sentence(line) is not None for line in lines if line.startswith("RuntimeError")]
    assert said == [True, False, True, True]
    assert search.sentence(REFUSED.format(0)) is not None  # asked for once more, before the others


def test_what_is_near_is_sought_once() -> None:
    """A log may hold the same complaint of each rank, thousands of times."""
    lines = [REFUSED.format(rank) for rank in range(400)] + ["urllib3"]
    search, sought = SentenceSearch("\n".join(lines)), 0

    class Counting:
        pattern = "(?i)urllib3"

        def search(self, text: str, start: int = 0) -> re.Match[str] | None:
            nonlocal sought
            sought += 1
            return re.compile(self.pattern).search(text, start)

    near = [search._is_near(Counting(), line) for line in lines[:-1]]  # type: ignore[arg-type]
    assert near == [False] * 280 + [True] * 120
    assert sought == 1
