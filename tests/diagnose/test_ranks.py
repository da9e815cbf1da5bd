"""Who of the ranks failed, and who only waited: time-outs, torchrun's blocks, stacks and flight recorder dumps."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input.collection import collected
from torchtune_sys.model.diagnosis import Diagnosis


def of(tmp_path: Path, **texts: str) -> Diagnosis:
    for name, text in texts.items():
        (tmp_path / f"{name}.log").write_text(text)
    return diagnose(collected([str(tmp_path)]))


TIMED_OUT = (
    "[rank{rank}]:[E1018 12:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


def test_the_rank_that_did_not_come_is_named_and_not_those_that_waited(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: step 9 done\n" for rank in range(8))
    text += "".join(TIMED_OUT.format(rank=rank, number=41) for rank in range(8) if rank != 5)
    found = of(tmp_path, job=text)
    assert [(cause.cause, cause.ranks) for cause in found.causes] == [("rank-hung", (5,))]


def test_a_time_out_of_all_ranks_names_nobody(tmp_path: Path) -> None:
    found = of(tmp_path, job="".join(TIMED_OUT.format(rank=rank, number=41) for rank in range(8)))
    assert found.causes == ()
    assert found.unexplained


def test_the_first_failure_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        rank0=TIMED_OUT.format(rank=0, number=7)
        + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error\n",
        rank1="node-2:1:2 [1] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<5> returned 111(Connection refused)\n",
        rank2="RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n",
    )
    assert (found.causes[0].cause, found.causes[0].ranks) == ("dev-shm-too-small", (2,))


def test_torchruns_block_of_a_failure_gives_its_rank(tmp_path: Path) -> None:
    text = "Root Cause (first observed failure):\n[0]:\n  time      : 2025-01-01_00:00:00\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 77)\n"
    found = of(tmp_path, job=text)
    assert (found.causes[0].cause, found.causes[0].ranks) == ("host-memory-oom", (3,))


def stack(pid: int, frame: str) -> str:
    return f'Process {pid}: python train.py\nPython v3.11.2\n\nThread {pid} (active): "MainThread"\n    {frame}\n    main (train.py:9)\n'


def test_the_process_that_is_elsewhere_while_the_others_wait(tmp_path: Path) -> None:
    waits = "all_reduce (torch/distributed/distributed_c10d.py:2500)"
    found = of(tmp_path, rank0=stack(1, waits), rank1=stack(2, waits), rank2=stack(3, "read (tarfile.py:900)"))
    assert [(cause.cause, cause.ranks) for cause in found.causes] == [("rank-hung", (2,))]
    assert "read (tarfile.py:900)" in found.causes[0].evidence[0].text


def recorder(rank: int, last: int, state: str) -> dict[str, object]:
    entries = [
        {"collective_seq_id": number, "profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"), "is_p2p": False,
         "state": "completed" if number < last else state, "frames": [{"name": "step", "filename": "train.py", "line": 7}]}
        for number in range(1, last + 1)
    ]  # fmt: skip
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "entries": entries,
        "rank": rank,
    }


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_flight_recorders_tell_who_did_not_come(tmp_path: Path, form: str) -> None:
    for rank in range(4):
        value = recorder(rank, 4, "completed") if rank == 2 else recorder(rank, 5, "started")
        data = pickle.dumps(value, protocol=2) if form == "pickle" else json.dumps(value).encode()
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    found = diagnose(collected([str(tmp_path)]))
    assert [(cause.cause, cause.ranks) for cause in found.causes] == [("rank-hung", (2,))]
    assert "all_reduce #5 at train.py:7 in step" in found.causes[0].evidence[0].text


def test_flight_recorders_that_agree_are_no_fault(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(recorder(rank, 5, "completed"), protocol=2))
    assert diagnose(collected([str(tmp_path)])).causes == ()


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch PLANTED",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_is_never_run(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"version": "2.9", "entries": [_Evil()]}, protocol=protocol)
    with pytest.raises(ValueError, match="called"):
        plain_data(data)
    (tmp_path / "dump").write_bytes(data)
    found = diagnose(collected([str(tmp_path / "dump")]))
    assert not (tmp_path / "PLANTED").exists()
    assert found.causes == ()


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_cut_or_changed_pickle_ends_in_a_value_or_a_clear_refusal(cut: int) -> None:
    data = bytearray(pickle.dumps(recorder(0, 5, "started"), protocol=4))
    for bad in (bytes(data[:cut]), bytes(data[: cut - 1] + bytes([data[cut] ^ 0xFF]) + data[cut + 1 :])):
        try:
            plain_data(bad)
        except ValueError as error:
            assert str(error)


def test_slurm_names_the_task_that_ended(tmp_path: Path) -> None:
    killed = of(tmp_path, job="srun: error: node7: task 41: Killed\nsrun: Force Terminated StepId=2.0\n").causes[0]
    assert (killed.ranks, killed.hosts) == ((41,), ("node7",))
    labelled = (
        "3: head: error writing 'standard output': No space left on device\nsrun: error: node7: task 3: Exited with exit code 1\n"
    )
    full = of(tmp_path, job=labelled).causes[0]
    assert (full.cause, full.ranks) == ("disk-full-or-quota", (3,))


def test_a_forwarded_traceback_is_of_the_rank_that_it_names(tmp_path: Path) -> None:
    sharded = (
        "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])\n"
        "[rank0]: Traceback (most recent call last): (RANK 3)\n"
        '[rank0]:   File "x.py", line 1, in write_data\n'
        "[rank0]: OSError: [Errno 28] No space left on device\n"
        "[rank0]: done\n"
    )
    spawned = '-- Process 5 terminated with the following error:\nTraceback (most recent call last):\n  File "x.py"\nOSError: [Errno 28] No space left on device\n'
    for text, rank in ((sharded, 3), (spawned, 5)):
        assert [(each.cause, each.ranks) for each in of(tmp_path, job=text).causes] == [("disk-full-or-quota", (rank,))]
    ended = "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\nstep 9 of rank 0\n"
    assert {each.ranks for each in of(tmp_path, job=ended).causes} == {(2,)}


def test_peers_that_are_gone_are_a_cause_only_where_nothing_else_is_told(tmp_path: Path) -> None:
    gone = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:42164\n"
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=gone).causes] == [("rank-killed", ())]
    assert of(tmp_path, job=gone + "[rank1]: ValueError: loss is nan\n").causes == ()


def test_the_rank_whose_key_is_not_in_the_store_is_named(tmp_path: Path) -> None:
    text = "[rank0]: torch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/2\n"
    first = of(tmp_path, job=text).causes[0]
    assert (first.cause, first.ranks) == ("ranks-missing", (2,))


def test_a_copy_that_lost_letters_at_its_ends_is_read_as_the_message_that_it_was(tmp_path: Path) -> None:
    assert [each.cause for each in of(tmp_path, job="nable to open /dev/kfd read-write: Permission den").causes] == [
        "rocm-device-permission"
    ]
    assert of(tmp_path, job="able to open the file and read it, no permission den").causes == ()
