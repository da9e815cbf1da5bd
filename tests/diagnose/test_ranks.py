"""Who of the ranks failed, and who only waited: time-outs, torchrun's blocks, stacks and flight recorder dumps."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from rank_logs import of

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input.collection import collected

TIMED_OUT = (
    "[rank{rank}]:[E1018 12:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


def test_the_rank_that_did_not_come_is_named_and_not_those_that_waited(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: step 9 done\n" for rank in range(8))
    text += "".join(TIMED_OUT.format(rank=rank, number=41) for rank in range(8) if rank != 5)
    found = of(tmp_path, job=text)
    assert [(cause.cause, cause.ranks) for cause in found.causes] == [("rank-hung", (5,))]


def test_a_rank_that_waits_for_an_earlier_collective_did_not_finish_it(tmp_path: Path) -> None:
    text = "".join(TIMED_OUT.format(rank=rank, number=40 if rank == 7 else 41) for rank in range(8))
    (cause,) = of(tmp_path, job=text).causes
    assert (cause.cause, cause.ranks) == ("rank-hung", (7,))
    assert "rank 7 did not finish ALLREDUCE #40" in cause.evidence[0].text


def test_ranks_are_compared_within_their_process_group(tmp_path: Path) -> None:
    """Collectives are numbered for each group, and torch prints the rank within it."""
    line = (
        "[rank{rank}]:[E1018 12:00:00.1 ProcessGroupNCCL.cpp:632] [PG ID 1 PG GUID {group}(tp) Rank {within}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLGATHER, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds\n"
    )
    apart = "".join(line.format(rank=rank, group=rank // 4 + 1, within=rank % 4, number=40 + rank // 4) for rank in range(8))
    assert of(tmp_path, job=apart).causes == ()
    behind = "".join(
        line.format(rank=rank, group=rank // 4 + 1, within=rank % 4, number=39 if rank == 6 else 41) for rank in range(8)
    )
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=behind).causes] == [("rank-hung", (6,))]


NAMED = "[rank{rank}]:[E1018 12:00:00.2 ProcessGroupNCCL.cpp:2268] [PG ID 1 PG GUID {group}(mesh tp) Rank {within}]  failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {number}, last completed work: {done}\n"


def test_the_line_below_a_time_out_names_the_group_that_it_is_of(tmp_path: Path) -> None:
    """What a watchdog caught is told with the rank within the group, and without the group."""
    text = ""
    for rank in range(8):
        number, within = 39 if rank == 6 else 41 + 9 * (rank // 4), rank % 4
        text += TIMED_OUT.format(rank=rank, number=number).replace(f"[Rank {rank}]", f"[Rank {within}]")
        text += NAMED.format(rank=rank, group=rank // 4 + 1, within=within, number=number, done=number - 1)
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=text).causes] == [("rank-hung", (6,))]


@pytest.mark.parametrize("head", ["[PG 3 (tp) Rank 1]", "[PG 3 Rank 1]", "[Rank 1]"])
def test_a_rank_within_another_group_is_no_rank_of_the_job(tmp_path: Path, head: str) -> None:
    line = TIMED_OUT.format(rank=5, number=7).replace("[Rank 5]", head)
    rest = "".join(TIMED_OUT.format(rank=rank, number=9) for rank in range(8) if rank not in (1, 5))
    assert [each.ranks for each in of(tmp_path, job=line + rest).causes] == [(1,)]


def test_a_rank_that_waits_in_an_unnamed_group_did_not_stay_away(tmp_path: Path) -> None:
    """Some releases name the group, without its GUID, only where the watchdog ends."""
    plain = TIMED_OUT.format(rank=5, number=9141)
    ended = "".join(
        TIMED_OUT.format(rank=rank, number=9141).replace(
            f"[Rank {rank}] Watchdog",
            f"[PG 3 Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog",
        )
        for rank in (0, 1, 2)
    )
    assert ended.count("[PG 3 Rank") == 3
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=plain + ended).causes] == [
        ("rank-hung", ()),
        ("ranks-missing", ()),
    ]


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
    assert (found.causes[0].cause, found.causes[0].ranks) == ("rank-killed", (3,))


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


CLOSED = "[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:{port}\n"
LATE = "[rank{rank}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete\n"


def test_of_ranks_that_only_tell_of_a_peer_the_one_that_tells_nothing_is_named(tmp_path: Path) -> None:
    gone = "".join(CLOSED.format(rank=rank, port=40000 + rank) for rank in range(16) if rank != 11)
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=gone).causes] == [("rank-killed", (11,))]
    late = gone.replace(CLOSED.format(rank=3, port=40003), LATE.format(rank=3))
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=late).causes] == [("rank-hung", (11,))]
    ended = gone + "  rank      : 11 (local_rank: 11)\n  exitcode  : -15 (pid: 7)\n"
    assert [each.ranks for each in of(tmp_path, job=ended).causes] == [()]  # torchrun ended it, so it was alive


def test_the_file_of_a_rank_that_says_nothing_counts(tmp_path: Path) -> None:
    names = {f"train{at}": "" if at == 2 else CLOSED.format(rank=at, port=1000 + at) for at in range(5)}
    assert [(each.cause, each.ranks) for each in of(tmp_path, **names).causes] == [("rank-killed", (2,))]


def test_how_a_rank_ends_that_lost_its_peer_explains_nothing(tmp_path: Path) -> None:
    block = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : -{signal} (pid: {pid})\n"
    text = CLOSED.format(rank=0, port=1) + block.format(rank=0, signal=6, pid=10) + block.format(rank=1, signal=11, pid=11)
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=text).causes] == [("rank-killed", (1,))]


def test_a_process_that_torchrun_had_to_kill_stood_still(tmp_path: Path) -> None:
    text = (
        "W1 torch/distributed/elastic/multiprocessing/api.py:900] Unable to shutdown process 77 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 77)\n"
    )
    first, *others = of(tmp_path, job=text).causes
    assert (first.cause, first.ranks) == ("rank-hung", (2,))
    assert "host-memory-oom" not in {each.cause for each in others}


def test_who_did_not_come_is_named_and_not_who_says_so(tmp_path: Path) -> None:
    text = "0: torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/4 clients joined.\n"
    text += "".join(
        f"{rank}: torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0\n" for rank in (1, 3)
    )
    first = of(tmp_path, job=text).causes[0]
    assert (first.cause, first.ranks) == ("ranks-missing", (2,))


def test_launchers_name_the_process_that_ended_first(tmp_path: Path) -> None:
    for said, rank, host in (
        ("mpirun noticed that process rank 6 with PID 5 on node n3 exited on signal 11 (Segmentation fault).", 6, "n3"),
        ("=   RANK 3 PID 12345 RUNNING AT node7\n=   KILLED BY SIGNAL: 9 (Killed)", 3, "node7"),
        ("[node3:mpi_rank_5][error_sighandler] Caught error: Segmentation fault (signal 11)", 5, "node3"),
        ("[rank: 3] Child process with PID 4141 terminated with code -9. Forcefully terminating all other processes", 3, ""),
        ("  host      : gpu-7\n  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 7)", 9, "gpu-7"),
    ):
        first = of(tmp_path, job=said + "\n").causes[0]
        assert (first.cause in ("rank-killed", "host-memory-oom"), first.ranks, first.hosts) == (
            True,
            (rank,),
            (host,) if host else (),
        )
    unknown = of(tmp_path, job="ValueError: seven\n  Process name: [[25081,1],13]\n  Exit code:    1\n").unexplained
    assert [each.ranks for each in unknown] == [(13,)]
    assert of(tmp_path, job="[rank5]: Traceback (most recent call last):\n[rank5]: KeyError: 'x'\n").unexplained[0].ranks == (5,)


def test_the_end_of_a_job_that_ended_well_is_no_fault(tmp_path: Path) -> None:
    text = (
        "done 2\nW1127 00:32:31.466000 17374 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node 'gpu-3_17374_0' has failed"
        " to shutdown the rendezvous 'none' due to an error of type RendezvousConnectionError.\n"
    )
    found = of(tmp_path, job=text)
    assert (found.causes, found.unexplained) == ((), ())


def test_of_hosts_that_tell_of_one_that_is_gone_it_is_named(tmp_path: Path) -> None:
    gone = "{at}:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-3.cluster<4{port}>\n"
    text = "".join(gone.format(at=f"node-{at}", port=at) for at in (1, 2, 4))
    assert [(each.cause, each.hosts) for each in of(tmp_path, job=text).causes] == [("rank-killed", ("node-3",))]


def test_files_that_are_called_like_nodes_are_of_these_hosts(tmp_path: Path) -> None:
    error = "RuntimeError: [gloo/transport/tcp/device.cc:80] ifa != nullptr. Unable to find interface for: ib0\n"
    found = of(tmp_path, **{"gpu-1": "step 1\n", "gpu-2": error, "gpu-3": "step 1\n"})
    assert (found.causes[0].cause, found.causes[0].hosts) == ("gloo-wrong-interface", ("gpu-2",))


def test_the_rank_within_is_the_programs_own(tmp_path: Path) -> None:
    errors = "".join(
        f"{{head}}{rank}: [default{rank % 8}]:[rank{rank}]: OSError: [Errno 28] No space left on device\n" for rank in (8, 9, 10)
    )
    for head in ("", "node-7: ", "2026-11-27T00:00:00.1Z ", "ERROR:trainer: "):
        first = of(tmp_path, job=errors.format(head=head)).causes[0]
        assert (first.cause, first.ranks) == ("disk-full-or-quota", (8, 9, 10))
    addresses = "".join(f"n{at}: 2: ens1: <UP> mtu 9000\n" for at in range(4))
    assert of(tmp_path, job=addresses).causes == ()


def test_the_rank_that_waits_in_another_collective_is_named(tmp_path: Path) -> None:
    frame = '[rank{rank}]:   File "/torch/distributed/distributed_c10d.py", line 5356, in {call}\n'
    text = "".join(
        frame.format(rank=rank, call="broadcast" if rank == 2 else "barrier") + LATE.format(rank=rank) for rank in range(4)
    )
    assert [(each.cause, each.ranks) for each in of(tmp_path, job=text).causes] == [("rank-hung", (2,))]


def test_at_the_loopback_of_one_host_a_rank_that_ended_is_not_there(tmp_path: Path) -> None:
    refused = "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:1970\n"
    assert of(tmp_path, job=refused).causes[0].cause == "hostname-resolves-to-loopback"
    killed = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n" + refused
    assert "hostname-resolves-to-loopback" not in {each.cause for each in of(tmp_path, job=killed).causes}
