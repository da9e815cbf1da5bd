"""Logs in which a record, a document or a launcher's summary says whose an error is, and the rank that differs from all others."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import collected
from torchtune_sys.model.diagnosis import Diagnosis

TRACE = 'Traceback (most recent call last):\n  File "/workspace/llm/train.py", line 9, in step\n    save(model)\n'
FULL = TRACE + "OSError: [Errno 28] No space left on device"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4000"
SUMMARY = "  time      : 2026-01-02_03:04:{second:02}\n  host      : node-1\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})\n"
FIRST = "Root Cause (first observed failure):\n"


def of(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "job.log").write_text(text)
    return diagnose(collected([str(tmp_path / "job.log")]))


@pytest.mark.parametrize(
    "error",
    [
        {"exception": FULL},
        {"error": {"type": "OSError", "stack_trace": FULL}},
        {"exception": [{"exc_type": "OSError", "exc_value": "[Errno 28] No space left on device", "frames": []}]},
    ],
)
def test_a_document_tells_its_rank_and_its_pod_beside_the_error(tmp_path: Path, error: dict[str, object]) -> None:
    said = [{"level": "INFO", "rank": rank, "kubernetes": {"pod_name": f"llm-{rank}"}, "message": "step 4"} for rank in range(3)]
    text = "\n".join(json.dumps(each) for each in [*said, {**said[2], "message": "training failed", **error}])
    (cause,) = of(tmp_path, text).causes
    assert (cause.cause, cause.ranks, cause.hosts) == ("disk-full-or-quota", (2,), ("llm-2",))
    broken = "\n".join(fill(line, 80, break_long_words=False) for line in text.splitlines())
    assert of(tmp_path, broken).causes[0].ranks == (2,)


def test_a_records_head_tells_the_rank_of_the_traceback_below_it(tmp_path: Path) -> None:
    head = "2026-01-02 03:04:05,678,ERROR,rank {rank},llm.train:109: training failed in step\n"
    chained = "During handling of the above exception, another exception occurred:\n" + TRACE + "KeyError: 'lr'\n"
    found = of(tmp_path, head.format(rank=5) + TRACE + "struct.error: unpack requires a buffer of 8 bytes\n" + chained + head.format(rank=1) + TRACE + CLOSED + "\n")  # fmt: skip
    assert found.causes == ()
    assert [(each.text, each.ranks) for each in found.unexplained] == [
        ("struct.error: unpack requires a buffer of 8 bytes", (5,)),
        ("KeyError: 'lr'", (5,)),
    ]


def test_an_exception_of_any_name_is_the_first_failure(tmp_path: Path) -> None:
    def text(name: str) -> str:
        own = "".join(f"[rank2]: {line}\n" for line in (TRACE + f"{name}: loss is nan").splitlines())
        return own + "".join(f"[rank{rank}]: {CLOSED}\n" for rank in (0, 1))

    for name in ("llm.checks.NonFiniteLoss", "StopIteration"):
        found = of(tmp_path, text(name))
        assert (found.causes, found.unexplained[0].ranks) == ((), (2,))


def test_what_torchrun_kills_after_the_first_failure_is_no_killed_rank(tmp_path: Path) -> None:
    later = SUMMARY.format(second=33, rank=0, code=-9, pid=70) + FIRST
    found = of(tmp_path, later + SUMMARY.format(second=2, rank=1, code=1, pid=71))
    assert (found.causes, found.unexplained[0].ranks) == ((), (1,))
    found = of(tmp_path, later + SUMMARY.format(second=33, rank=1, code=1, pid=71))
    assert {"rank-killed", "host-memory-oom"} >= {cause.cause for cause in found.causes} > set()


def test_a_rank_that_somebody_ended_is_the_first_failure(tmp_path: Path) -> None:
    said = "E1127 07:00:11.504000 19 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 3 (pid: 77) of binary: python\n"
    found = of(tmp_path, said + TRACE + FIRST + SUMMARY.format(second=1, rank=3, code=-15, pid=77))
    assert (found.causes[0].cause, found.causes[0].ranks) == ("rank-killed", (3,))
    task = "srun: error: gpu-1: task {task}: Terminated\n"
    found = of(tmp_path, task.format(task=5))
    assert (found.causes[0].cause, found.causes[0].ranks) == ("rank-killed", (5,))
    assert of(tmp_path, "".join(task.format(task=at) for at in range(3))).causes == ()


def test_the_rank_that_differs_from_all_others_is_named_whoever_noticed_it(tmp_path: Path) -> None:
    said = "[rank{0}]: RuntimeError: DDP expects same model across all ranks, but Rank {0} has {1} params, while rank {2} has inconsistent {3} params.\n"
    frame = '[rank{0}]:   File "train.py", line 3, in wrap\n'
    text = "".join(frame.format(rank) + said.format(rank, *((5, 0, 3) if rank == 4 else (3, 4, 5))) for rank in (2, 0, 4, 1, 3))
    assert of(tmp_path, text).unexplained[0].ranks == (4,)
    calls = "RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber={0}, OpType=ALLREDUCE, TensorShape=[{1}]), but Rank {2} is running collective: CollectiveFingerPrint(OpType=ALLREDUCE).\n"
    text = "".join(TRACE + calls.format(rank, 3 if rank == 2 else 40, 0 if rank == 2 else 2) for rank in (3, 0, 1, 2))
    assert of(tmp_path, text).unexplained[0].ranks == (2,)
    assert of(tmp_path, TRACE + calls.format(0, 40, 1) + TRACE + calls.format(1, 3, 0)).unexplained[0].ranks == ()


def test_numbers_in_brackets_are_ranks_where_each_comes_again(tmp_path: Path) -> None:
    lines = [f"[9] {line}" for line in FULL.splitlines()]
    assert of(tmp_path, "\n".join(lines)).causes[0].ranks == (9,)
    listed = "\n".join(f"[{at}] {line}" for at, line in enumerate(FULL.splitlines()))
    assert of(tmp_path, listed).causes[0].ranks == ()


def test_names_in_frames_are_nothing_that_somebody_says(tmp_path: Path) -> None:
    frame = '  File "job.py", line 92, in differs\n    all_reduce(torch.ones(3) if rank == who else torch.ones(40))\n'
    assert of(tmp_path, "Traceback (most recent call last):\n" + frame + "ValueError: x\n").causes == ()


def test_the_rank_below_all_that_waited_did_not_come(tmp_path: Path) -> None:
    said = "[E ProcessGroupNCCL.cpp:457] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=11, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800035 milliseconds before timing out.\n"
    assert of(tmp_path, "".join(said.format(rank) for rank in (3, 2, 1))).causes[0].ranks == (0,)
    assert of(tmp_path, said.format(1)).causes[0].ranks == ()


def test_a_unix_socket_that_is_there_is_no_port_in_use(tmp_path: Path) -> None:
    said = "gpu-1:33:10589 [2] misc/ipcsocket.cc:57 NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-e647 failed : Address already in use (98)\n"
    assert of(tmp_path, said).causes == ()
