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


@pytest.mark.parametrize("text", [WITHOUT_VERBS, EARLY + "{'loss': 1.1, 'epoch': 0.1}\n", EARLY + "epoch 1: 4.2it/s\n"])
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
