"""An error that somebody quotes within a sentence: what he says around it tells whether it happened."""

from __future__ import annotations

import io
import time

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.knowledge import quoted_errors
from torchtune_sys.knowledge.quoted_errors import is_example
from torchtune_sys.knowledge.sentences import is_about_code
from torchtune_sys.model.diagnosis import Diagnosis

ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    "text",
    [
        f"The workshop demonstrates `{ERROR}` with an injected fault.",
        f'self.client.expects(RuntimeError, message="{ERROR}")',
        f'    with pytest.warns(UserWarning, match="{ERROR}"):',
        f"git grep -n '{ERROR}' csrc/",
        f"Our nightly job verifies that a broken node fails with `{ERROR}`.",
        f"The new page tells operators what to do when they see `{ERROR}`.",
        f"When there is `{ERROR}` in the log, drain the node.",
        f"The check passes unless there is `{ERROR}` in dmesg.",
        "The nouveau driver is not loaded, nvidia works",
        "# Exit code hidden: OOM not reported by the operator\n\nThe pod shows OOMKilled and exit code 137, and the task is marked as done.",
        f"What is an ECC error?\nThis refers to memory that flipped. Root causes include heat and age.\n{ERROR}\nHow to monitor\nWatch dmesg for it.",
    ],
)
def test_what_nobody_says_to_have_happened_is_no_cause(text: str) -> None:
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (f"The second node prints `{ERROR}` there.", "possible"),
        (f"I started the job and then got `{ERROR}` there.", "certain"),
        (f"Whenever I start training, the worker prints `{ERROR}`.", "certain"),
        (f"The workshop demonstrates `{ERROR}` with an injected fault.\n{ERROR}", "certain"),
        (f"Error message: `{ERROR}`", "certain"),
    ],
)
def test_a_sentence_alone_makes_no_quoted_error_certain(text: str, confidence: str) -> None:
    assert _named(text)[:1] == [("gpu-ecc-uncorrectable", confidence)]


@pytest.mark.parametrize(
    ("typed", "cause"),
    [
        ("# torch not compiled with Cuda Enabled", "cpu-only-build"),
        ("I get CUDA Driver version is Insufficient for cuda runtime version", "driver-too-old"),
        ("modprobe says REQUIRED KEY NOT AVAILABLE", "secure-boot-blocks-module"),
    ],
)
def test_a_message_in_letters_of_ones_own_is_likely_at_most(typed: str, cause: str) -> None:
    first = _named(typed)[0]
    assert first[0] == cause
    assert first[1] != "certain"


HAPPENED = """\
When I run the health check it says "Failed to initialize NVML: Driver/library version mismatch".
The sanity check says `RuntimeError: CUDA error: no kernel image is available for execution on the device`.
A check of the GPUs on each node prints "GPU has fallen off the bus: Unknown Error" for one.
The preflight check reports "NCCL error: unhandled system error" between node 3 and node 4.
The node health check finds `NVRM: Xid (PCI:0000:18:00): 48, pid=2211, Double Bit ECC Error` on two of our eight nodes.
Ray's OOM monitor detects "Task was killed due to the node running low on memory" after ten minutes.
The manual mentions "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver" but its fix does not help here.
The FAQ has an entry for `Bus error (core dumped), failed` and I did what it says, yet training still ends that way.
In the docs they show "ImportError: libGL.so.1: cannot open shared object file" as solved by apt install, but in our container apt is blocked.
Even with dummy inputs the model ends in "RuntimeError: CUDA error: an illegal memory access was encountered".
Using fake data gives `RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error.` on the second epoch.
A dictionary lookup raises `KeyError: 'LOCAL_RANK'` because we start it with python rather than torchrun.
"RuntimeError: CUDA error: no kernel image is available for execution on the device" in the quickstart tutorial, RTX 5090
`ImportError: libGL.so.1: cannot open shared object file` in the tutorial container
"CUDA error: device-side assert triggered" in the example from the docs
Bug: "ncclInternalError: Internal check failed." in the tutorial for FSDP
Issue title: "CUDA error: out of memory" in the tutorial notebook
The simulator (Isaac Sim) prints "CUDA error: out of memory" with 4096 environments.
The program expects CUDA 12 and complains "libcudart.so.12: cannot open shared object file: No such file or directory".
The docs say it should work, but I get 'RuntimeError: NCCL error: unhandled system error'.
Our monitoring alert says "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus".
With dummy "data" our training prints "RuntimeError: CUDA error: out of memory" at step 1."""
CODE = """\
    with self.assertRaisesRegex(RuntimeError, "CUDA error: uncorrectable ECC error encountered"):
pytest.raises(RuntimeError, match="CUDA error: no kernel image is available for execution on the device")
self.assertIn("CUDA error: no kernel image is available for execution on the device", str(e))
if err == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
    } else if (ret == NVML_ERROR_GPU_IS_LOST) {
  case NVML_ERROR_GPU_IS_LOST:
    NVML_ERROR_GPU_IS_LOST = 15,
#define NVML_ERROR_GPU_IS_LOST 15
Could you add a check for `NVML_ERROR_GPU_IS_LOST` to the exporter?"""
PRINTED = """\
nvmlDeviceGetCount: NVML_ERROR_GPU_IS_LOST
failed: rc == NVML_ERROR_GPU_IS_LOST
if I run nvidia-smi I get NVML_ERROR_GPU_IS_LOST:"""
ABOUT = "Our CI checks that `RuntimeError: CUDA error: no kernel image is available for execution on the device` is raised ({})."


@pytest.mark.parametrize("line", HAPPENED.split("\n"))
def test_what_happened_is_no_example(line: str) -> None:
    assert not is_example(line)


@pytest.mark.parametrize("line", CODE.split("\n"))
def test_code_that_holds_an_error_accuses_nobody(line: str) -> None:
    assert _named(line) == []


@pytest.mark.parametrize("line", PRINTED.split("\n"))
def test_what_is_printed_with_the_same_names_stays(line: str) -> None:
    assert not is_about_code(line)
    assert _said(line).causes


def test_who_meant_it_is_told_what_was_set_aside() -> None:
    (unread,) = _said(ABOUT.format("on the old runner")).unread
    assert "gpu-arch-not-in-wheel" in unread.why


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("My pod is stuck in ImagePullBackOff since this morning, the image is in our registry.", "image-not-pulled"),
        ("What does ImagePullBackOff mean? My training pod does not start.", "image-not-pulled"),
        ("The pods do not start.\nWhat does ImagePullBackOff mean?", "image-not-pulled"),
        ("train-0   0/1   ImagePullBackOff   0   5m", "image-not-pulled"),
        (
            "Warning  FailedScheduling  10s  default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4 nodes are available: "
            "4 No preemption victims found for incoming pod.",
            "kubernetes-gpu-unavailable",
        ),
        (
            "The job waits: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu. Why? All GPUs are free.",
            "kubernetes-gpu-unavailable",
        ),
        (
            'What does "OSError: [Errno 37] No locks available" mean? I get it when datasets loads from NFS.',
            "filesystem-without-locks",
        ),
        (
            "My training ended. Was that planned?\nslurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T20:00:00 DUE TO PREEMPTION ***",
            "job-preempted",
        ),
    ],
)
def test_who_asks_about_words_and_tells_of_a_failure_is_answered(text: str, cause: str) -> None:
    assert [name for name, _ in _named(text)][:1] == [cause]


def test_a_question_about_words_alone_accuses_nobody_and_says_what_was_set_aside() -> None:
    said = _said('Is "0/4 nodes are available: 4 Insufficient nvidia.com/gpu." an event of the scheduler?')
    assert not said.causes
    assert "kubernetes-gpu-unavailable" in said.unread[0].why


def _named(text: str) -> list[tuple[str, str]]:
    return [(each.cause, each.confidence.value) for each in _said(text).causes]


def _said(text: str) -> Diagnosis:
    return diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))])


@pytest.mark.parametrize(
    "piece", ["I ", "it my ", "my our ", "the the a ", "we have have ", "it " + "x" * 200 + " ", "yet a b c ", "my-", "in my a "]
)
def test_whether_it_happened_is_found_in_time_that_grows_with_the_text(piece: str) -> None:
    def taken_s(size: int) -> float:
        text = (piece * (size // len(piece) + 1))[:size]
        times = []
        for _ in range(4):
            began_s = time.thread_time()
            quoted_errors._HAPPENED.search(text)
            times.append(time.thread_time() - began_s)
        return min(times)

    assert taken_s(12_000) < 14 * max(taken_s(1500), 2e-4)
