"""What programs print where all is well, warnings among it: nothing is wrong; and the same warning where nothing went on afterwards."""

from __future__ import annotations

import pytest

from diagnose.test_kernel_logs import diagnosis_of

WITHOUT_VERBS = """\
n1:101:101 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so
n1:101:145 [0] NCCL INFO Failed to open libibverbs.so[.1]
n1:101:145 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
n1:101:145 [0] NCCL INFO NVLS multicast support is not available on dev 0
n1:101:145 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init COMPLETE
n1:101:150 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE
"""
EARLY = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [h1]:29500 (errno: 111 - Connection refused). Retrying...\n"


INSTALLED = """\
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.
tensorboard 2.12.0 requires protobuf>=3.19.6, but you have protobuf 3.12.4 which is incompatible.
Successfully installed torch-2.5.1 triton-3.1.0
"""


@pytest.mark.parametrize(
    "text", [INSTALLED, WITHOUT_VERBS, EARLY + "{'loss': 1.1, 'epoch': 0.1}\n", EARLY + "epoch 1: 4.2it/s\n"]
)
def test_a_log_of_a_job_that_works_has_no_cause(text: str) -> None:
    told = diagnosis_of(text)
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (EARLY, "port-refused"),
        (WITHOUT_VERBS + "it is slow over our two nodes\n", "ib-driver-not-loaded"),
        (WITHOUT_VERBS + "n1:101:101 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n", "ib-driver-not-loaded"),
    ],
)
def test_where_something_is_missed_it_is_the_cause(text: str, cause: str) -> None:
    assert [each.cause for each in diagnosis_of(text).causes][:1] == [cause]


CAUGHT = """\
Traceback (most recent call last):
  File "/app/fetch.py", line 12, in fetch
    response = session.get(url, timeout=5)
requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=5)
"""
BAD_IMAGE = """\
Traceback (most recent call last):
  File "/app/data.py", line 31, in load
    image = Image.open(path)
PIL.UnidentifiedImageError: cannot identify image file '/data/train/0412.jpg'
"""
STEPS = [
    "step 10 loss 3.1\nstep 20 loss 2.9\n",
    "{'loss': 1.2, 'epoch': 1}\n{'loss': 1.1, 'epoch': 2}\n",
    " 1%| | 1/90 [00:01]\n 2%| | 2/90 [00:02]\n",
]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("caught", [CAUGHT, BAD_IMAGE])
def test_an_exception_that_the_program_caught_is_no_error(caught: str, steps: str) -> None:
    told = diagnosis_of(f"{caught}retrying\n{steps}")
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    "after",
    [
        "",
        "step 1 loss 3\n",
        "Restarting worker group\nstep 1 loss 3\nstep 2 loss 2\n",
        "step 1 loss 3\nstep 2 loss 2\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        f"step 1 loss 3\nstep 2 loss 2\n{BAD_IMAGE}",
    ],
)
def test_one_that_ended_it_is_told(after: str) -> None:
    told = diagnosis_of(f"step 5 loss 4\n{BAD_IMAGE}{after}")
    assert told.unexplained


def test_a_fault_of_the_host_is_told_though_the_program_caught_it() -> None:
    text = CAUGHT.replace("requests.exceptions.ReadTimeout: ", "OSError: [Errno 28] No space left on device: '/ckpt/1.pt' ")
    assert [each.cause for each in diagnosis_of(text + STEPS[0]).causes] == ["disk-full-or-quota"]


LATE_STORE = """\
[E1127 21:43:53.012296815 socket.cpp:1028] [c10d] The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500).
[W1127 21:43:53.012795596 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host gpu-1:29500 - retrying (try=0, timeout=12000ms, delay=11133ms): The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500).
"""


def test_an_attempt_to_reach_rank_0_that_came_too_early_is_no_cause_once_the_job_trains() -> None:
    assert diagnosis_of(f"{LATE_STORE}step 0 loss 4.45 time 0.02 s\nstep 1 loss 4.41 time 0.02 s\n").causes == ()
    raised = "torch.distributed.DistNetworkError: The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500)."
    for text in (LATE_STORE, f"step 0 loss 4.45\n{LATE_STORE}{raised}\n"):
        assert diagnosis_of(text).causes[0].cause == "master-addr-wrong"
