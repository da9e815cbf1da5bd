"""Errors that once stood in a report and were passed over in silence, and ends that were taken for something else."""

from __future__ import annotations

import pytest

from diagnose.test_forms import judged
from torchtune_sys.diagnosis import change_descriptions
from torchtune_sys.diagnosis.text.lines import lines_of

FRAMES = 'Traceback (most recent call last):\n  File "/app/serve.py", line 8, in main\n    load()\n'
WORDS = "I start the server as the page says, and it ends at once.\n\n" + "The settings are the default ones.\n\n" * 8


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{WORDS}```\nValueError: no scale for layer 3\n```\n", "ValueError: no scale for layer 3"),
        (f"# [Bug]: KeyError: 'layers.45.gate'\n\n{WORDS}", "KeyError: 'layers.45.gate'"),
        (f"{WORDS}Exception: the streamer could not send\n", "Exception: the streamer could not send"),
        (f"# [Bug] use drafts with one step\n\n{WORDS}```\n{FRAMES}RuntimeError: selected index k out of range\n```", "RuntimeError: selected index k out of range"),
        (f"# Eval bug: stack overflow\n\n{WORDS}@@ -3,7 +3,9 @@ def f():\n+    a\n\n[1]    57986 segmentation fault  ./serve -m x", "[1]    57986 segmentation fault  ./serve -m x"),
        (f"{WORDS}==ERROR== Profiling failed because a driver resource was unavailable.", "==ERROR== Profiling failed because a driver resource was unavailable."),
        ("Abort(1091215) on node 9 (rank 9 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error, error stack:\n", "Abort(1091215) on node 9 (rank 9 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error, error stack:"),
        (f"{WORDS}zsh: IOT instruction (core dumped)  ./serve -m x", "zsh: IOT instruction (core dumped)  ./serve -m x"),
        ("\n".join(f"Mar 18 11:23:46 serve-7b[931930]: {line}" for line in f"{FRAMES}TypeError: no subscript".split("\n")), "TypeError: no subscript"),
        ("[2026-02-28 09:28:25] hit: Traceback (most recent call last):   │\n" + "".join(f"│ {line:70} │\n" for line in FRAMES.split("\n")[1:3]) + '│   File "/app/b.py", line 3, in f │\n│ ValueError: no type', "ValueError: no type"),
        ("  × it did not run\n" + "".join(f"      {line}\n" for line in f"{FRAMES}RuntimeError: no such platform".split("\n")) + "      [end of output]", "RuntimeError: no such platform"),
        (f"{FRAMES}ModuleNotFoundError: No module named 'helpers.adapter'\n\nThe other one starts:\nDownloading weights: 20%|##  | 1/5 [00:01<00:04]\nDownloading weights: 40%|#### | 2/5 [00:02<00:03]\n", "ModuleNotFoundError: No module named 'helpers.adapter'"),
    ],
)  # fmt: skip
def test_an_error_that_stands_alone_or_behind_others_is_quoted(text: str, error: str) -> None:
    assert [each.text for each in judged(text.encode()).unexplained] == [error]


@pytest.mark.parametrize(
    "text",
    [
        f"{WORDS}A ValueError: that is what one gets for a wrong name.",
        f'{WORDS}    raise ValueError("no scale")\n',
        "step 1 loss 2\nstep 2 loss 1\n0 errors: all is well\n",
    ],
)
def test_words_about_errors_are_not_quoted(text: str) -> None:
    assert not judged(text.encode()).unexplained


def test_a_patch_whose_title_says_what_it_mends_is_still_a_change() -> None:
    for text in (
        "# [Bug] Fix the use of drafts\n\nThis PR mends it",
        "# Use drafts with one step\n\ntext",
        "diff --git a/x b/x\n@@ -1 +1 @@\n",
    ):
        assert change_descriptions.is_one(lines_of([*enumerate(text.split("\n"), 1)])), text


@pytest.mark.parametrize(
    ("above", "named"),
    [
        (f"{FRAMES}ValueError: bad batch, skipped\nread 4 files\n", True),
        (f"{FRAMES}RuntimeError: no\n\n", True),
        ("[12:00:01 TP0] Scheduler hit an exception: " + FRAMES + "RuntimeError: no\n\n", False),
        (FRAMES.replace("/app/serve.py", "/opt/sglang/srt/managers/tp_worker.py") + "RuntimeError: no\n\n", False),
        ("Exception in ControllerSingle:\n" + FRAMES + "RuntimeError: no\n\n", False),
        (FRAMES.replace("/app/serve.py", "/opt/vllm/v1/engine/core.py") + "RuntimeError: no\n\n", False),
        ("Exception in ControllerSingle:\n" + "step 1: loss 2.1\n" * 200, True),
    ],
)
@pytest.mark.parametrize("command", ["python train.py", "python -m vllm.entrypoints.openai.api_server"])
def test_only_an_engine_that_ends_itself_hides_that_the_kernel_killed(above: str, named: bool, command: str) -> None:
    text = f"{above}./start.sh: line 1: 23287 Killed                  {command}\n"
    assert ("host-memory-oom" in {each.cause for each in judged(text.encode()).causes}) is named


TRY = "[E socket.cpp:1028] [c10d] The client socket has timed out after 8000ms while trying to connect to (gpu-1, 29500).\n"
TRAINS = "NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\nstep 1 loss 2.31\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TRY + TRAINS, False),
        (TRY + "-> trying again\n# of nodes: 2\n" + TRAINS, False),
        (TRY + "^C\n(base) [me@gpu-2 ~]$ torchrun train.py\n" + TRAINS, True),
        (TRY + "^C\nme@gpu-2:~$ NCCL_SOCKET_IFNAME=eth1 torchrun train.py\n" + TRAINS, True),
        (TRY + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + TRAINS, True),
        (TRY + "After setting GLOO_SOCKET_IFNAME it prints:\n" + TRAINS, True),
        (TRAINS + "me@gpu-2:~$ torchrun train.py\n" + TRY, True),
        (TRY + TRAINS + "torch.distributed.DistNetworkError: The client socket has timed out\n", True),
    ],
)
def test_only_the_same_run_shows_that_an_attempt_was_followed_by_another(text: str, named: bool) -> None:
    assert any(each.evidence[0].line == text.split("\n").index(TRY.strip()) + 1 for each in judged(text.encode()).causes) is named


@pytest.mark.parametrize("lines", [3, 200])
def test_what_belongs_to_another_failure_hides_nothing_far_off(lines: int) -> None:
    """A model hub that did not answer is no host name that the ranks cannot resolve, unless it stands somewhere else in the log."""
    hub = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded, retrying\n"
    text = hub + "reading shard 17\n" * lines + "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
    assert ("hostname-unresolvable" in {each.cause for each in judged(text.encode()).causes}) is (lines > 120)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("CUDA SETUP: Something unexpected happened. Please compile from source:\nCUDA SETUP: Setup Failed!", "wheel-libs-not-found"),
        ("ggml-impl.h:293:27: error: implicit declaration of function ‘vld1q_s8_x4’; did you mean ‘vld1q_s8_x2’?", "host-compiler-too-old"),
        ("ImportError: x.so: undefined symbol: _ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb", "extension-torch-abi-mismatch"),
        (FRAMES.replace("/app/serve.py", "/v/transformers/configuration_utils.py") + "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "checkpoint-damaged"),
        ("It fails to find a gpu.\n2023-04-16 10:26:09.433375: W tsl/platform/default/dso_loader.cc:66] Could not load dynamic library 'libcuda.so.1'; dlerror: no", "no-nvidia-driver"),
        ("When the model loads well:\nLoading shards: 1/163 [00:00<01:28, 1.83it/s]\n[E329 06:28:12.54 socket.cpp:1023] [c10d] The client socket has timed out after 600000ms while trying to connect to (10.0.0.3, 54485).\nLoading shards: 2/163 [00:00<01:28, 1.83it/s]\n", "master-addr-wrong"),
    ],
)  # fmt: skip
def test_a_message_of_the_host_is_known(text: str, cause: str) -> None:
    assert cause in {each.cause for each in judged(text.encode()).causes}


@pytest.mark.parametrize(
    "text",
    [
        'def test():\n    with pytest.raises(RuntimeError, match="libcudart.so.12: cannot open shared object file: No such file or directory"):\n        import x\n',
        "The model is on a network drive.\nEngine 000: Avg generation throughput: 40.5 tokens/s, Running: 4 reqs, GPU KV cache usage: 2.9%, hit rate: 60.2%",
        "the torch extension:\npip3 install --no-cache-dir ninja\nexport TORCH_CUDA_ARCH_LIST='9.0'",
        "UserWarning: Can't initialize NVML\nROCM used to build PyTorch: 6.0.32830\nin a container of docker",
        "# [Bug] sglang crashes with multi node\n\nOn a cluster of two nodes with eight gpus.",
    ],
)
def test_what_only_looks_like_a_fault_accuses_nothing(text: str) -> None:
    assert not judged(text.encode()).causes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            f'{WORDS}Traceback (most recent call last):\n  File "/a/train.py", line 7, in <module>\n    main()\n  File "/a/train.py", line 3, in main',
            'File "/a/train.py", line 3, in main',
        ),
        (f"{WORDS}The output shows only this line: `KeyError: torch.complex64`.", "KeyError: torch.complex64"),
        (
            f"{WORDS}ray.exceptions.RayTaskError(RuntimeError): ray::_Inner.train() (pid=9)",
            "ray.exceptions.RayTaskError(RuntimeError): ray::_Inner.train() (pid=9)",
        ),
        (
            "trainer-master-0   0/2     CrashLoopBackOff   14      11m",
            "trainer-master-0   0/2     CrashLoopBackOff   14      11m",
        ),
        (
            "E tensorflow/stream_executor/cuda/cuda_driver.cc:1011] could not synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
            "E tensorflow/stream_executor/cuda/cuda_driver.cc:1011] could not synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        ),
    ],
)
def test_an_error_that_lost_its_end_or_stands_in_a_sentence_is_quoted(text: str, error: str) -> None:
    assert [each.text for each in judged(text.encode()).unexplained] == [error]


def test_a_traceback_that_ends_is_not_said_to_have_lost_its_end() -> None:
    text = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\nValueError: no\n'
    assert [each.text for each in judged(text.encode()).unexplained] == ["ValueError: no"]


def test_misspelt_messages_are_likely_at_most() -> None:
    (found,) = judged(b"# CUDA error: no kernal image is available for execution\n\nMy GPU fails.\n").causes
    assert (found.cause, found.confidence.value) == ("gpu-arch-not-in-wheel", "likely")
