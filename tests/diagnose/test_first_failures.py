"""Which rank failed first, which only follow, and which are not there."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import collected
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.render.diagnosis import text as rendered
from torchtune_sys.render.layout import Style

CLOSED = "[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:{port}\n"
LATE = "[rank{rank}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete\n"
REFUSED = "[rank{rank}]: RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:1970\n"
FRAME = '[rank{rank}]:   File "train.py", line 9, in step\n'


def of(tmp_path: Path, **texts: str) -> Diagnosis:
    for name, text in texts.items():
        (tmp_path / name.replace("_log", ".log").replace("_dmesg", ".dmesg")).write_text(text)
    return diagnose(collected([str(tmp_path)]))


def test_calls_that_do_not_fit_each_other_are_the_programs_fault(tmp_path: Path) -> None:
    mismatch = "[rank1]:   what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 36 vs 4\n"
    found = of(tmp_path, job_log=mismatch + "".join(CLOSED.format(rank=rank, port=4000) for rank in (0, 2)))
    assert found.causes == ()
    assert found.unexplained[0].ranks == (1,)


def test_what_ranks_say_of_each_other_after_a_restart_follows_from_the_first_error(tmp_path: Path) -> None:
    own = FRAME.format(rank=2) + "[rank2]: AssertionError: batch of 3 samples, 4 expected\n"
    found = of(tmp_path, job_log=own + "".join(REFUSED.format(rank=rank) for rank in (0, 3)))
    assert found.causes == ()
    assert (found.unexplained[0].text, found.unexplained[0].ranks) == ("AssertionError: batch of 3 samples, 4 expected", (2,))
    found = of(tmp_path, job_log="".join(REFUSED.format(rank=rank) for rank in (0, 3)) + own)
    assert found.causes[0].cause == "hostname-resolves-to-loopback"


def test_who_gave_up_waiting_is_not_to_blame_and_any_other_error_comes_first(tmp_path: Path) -> None:
    late = "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)\n"
    found = of(tmp_path, job_log=late)
    assert (found.causes[0].cause, found.causes[0].confidence.value, found.causes[0].ranks) == ("rank-hung", "possible", ())
    assert "the one that prints this" in found.causes[0].fix[0] and found.unexplained == ()
    found = of(tmp_path, job_log=late + FRAME.format(rank=1) + "[rank1]: KeyError: 'loss'\n")
    assert found.causes == () and [each.ranks for each in found.unexplained] == [(1,)]


def test_an_agent_tells_its_own_number_of_a_rank_and_its_summary_both(tmp_path: Path) -> None:
    text = "E1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python\n"
    summary = "  rank      : {rank} (local_rank: 2)\n  exitcode  : 1 (pid: 78)\n"
    assert of(tmp_path, job_log=text + summary.format(rank=10)).causes[0].ranks == (9,)
    assert of(tmp_path, job_log=text).causes[0].ranks == ()


def test_a_rank_that_counts_more_ranks_than_there_are_is_named_itself(tmp_path: Path) -> None:
    late = "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/{rank}\n"
    found = of(tmp_path, **{f"rank_{rank}_log": late.format(rank=5) if rank == 2 else "" for rank in range(5)})
    assert (found.causes[0].cause, found.causes[0].ranks) == ("job-launch-nested-wrongly", (2,))


def test_pods_of_one_rank_each_tell_which_one_did_not_come(tmp_path: Path) -> None:
    head = "[pod/llm-worker-{at}/trainer] 2026-11-27T03:53:24.1Z torch.distributed.DistStoreError: "
    text = head.format(at=0) + "Timed out after 13 seconds waiting for clients. 5/6 clients joined.\n"
    late = "wait timeout after 12000ms, keys: /default_pg/0//cpu//0/0\n"
    found = of(tmp_path, job_log=text + "".join(head.format(at=at) + late for at in (1, 2, 3, 5)))
    assert (found.causes[0].cause, found.causes[0].ranks, found.causes[0].hosts) == ("ranks-missing", (4,), ())
    assert found.unheard == (4,)


@pytest.mark.parametrize(
    "listed",
    [
        "$ horovodrun -np 4 python train.py\nStalled ops: a [ready ranks: 0, 2, 1], b [ready ranks: 1, 0, 2]\n",
        "$ mpirun -np 4 python train.py\nStalled ops:\na [missing ranks: 3]\n",
        "Missing ranks:\n3!: [a, b]\nworld size: 4\n$ horovodrun -np 4 train.py\n",
    ],
)
def test_horovod_tells_whose_tensor_is_not_there(tmp_path: Path, listed: str) -> None:
    first = of(tmp_path, job_log=listed).causes[0]
    assert (first.cause, first.ranks) == ("rank-hung", (3,))


def test_where_each_rank_lacks_in_some_tensor_none_is_named(tmp_path: Path) -> None:
    assert of(tmp_path, job_log="Stalled ranks:\n0: [a]\n1: [b]\n2: [c]\n").causes == ()


def test_a_crash_of_all_ranks_is_no_kill(tmp_path: Path) -> None:
    block = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 7{rank})\n"
    all_ = of(tmp_path, job_log="".join(block.format(rank=rank, code=-11) for rank in range(3)))
    assert all_.causes == ()
    assert all_.unexplained
    one = of(tmp_path, job_log="".join(block.format(rank=rank, code=-11 if rank == 1 else 1) for rank in range(3)))
    assert (one.causes[0].cause, one.causes[0].ranks) == ("rank-killed", (1,))


def times(what: str, odd: float, usual: float) -> str:
    return "".join(
        f"[rank{rank}]: step {step} {what} {odd if rank == 4 else usual + rank / 100:.2f} s\n"
        for step in range(6)
        for rank in range(6)
    )


@pytest.mark.parametrize(
    ("what", "odd", "usual", "cause"),
    [
        ("forward took", 2.4, 0.4, "straggler-compute"),
        ("data time:", 1.4, 0.1, "slow-data-storage"),
        ("allreduce", 0.02, 1.3, "straggler-compute"),
        ("forward took", 0.45, 0.4, ""),
        ("allreduce", 1.9, 1.3, ""),
    ],
)
def test_the_rank_that_is_steadily_slower_is_named(tmp_path: Path, what: str, odd: float, usual: float, cause: str) -> None:
    found = of(tmp_path, job_log=times(what, odd, usual)).causes
    assert (found[0].cause if found else "") == cause
    assert not found or found[0].ranks == (4,)


def test_a_log_that_was_folded_keeps_who_says_what(tmp_path: Path) -> None:
    frames = "".join(
        f'[rank{rank}]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier of a long name that is folded\n'
        for rank in range(8)
    )
    path = "/builds/worker/checkouts/pytorch/third_party/gloo/gloo/transport/tcp"
    text = frames + "".join(LATE.format(rank=rank).replace("gloo/transport/tcp", path) for rank in range(8) if rank != 5)
    folded = "".join(fill(line, 80, break_long_words=False) + "\n" for line in text.splitlines())
    assert max(map(len, folded.splitlines())) > 80  # who folds leaves long words whole
    assert [(each.cause, each.ranks) for each in of(tmp_path, job_log=folded).causes] == [("rank-hung", (5,))]


def recorded(rank: int, last: str, sizes: object) -> str:
    entry = {"process_group": ["0", "default_pg"], "state": "scheduled", "retired": True, "is_p2p": False}
    frames = [
        {"filename": "/x/torch/distributed/c.py", "line": 1, "name": "all_reduce"},
        {"filename": "train.py", "line": 7, "name": "step"},
    ]
    calls = [("gloo:all_reduce", [[72]])] * 3 + [(last, sizes)]
    entries = [
        {**entry, "collective_seq_id": at, "profiling_name": name, "input_sizes": of, "frames": frames}
        for at, (name, of) in enumerate(calls, 1)
    ]
    return json.dumps({"version": "2.10", "rank": rank, "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}}, "entries": entries})


@pytest.mark.parametrize(
    ("odd", "sizes", "how"), [("gloo:barrier", [], "barrier"), ("gloo:all_reduce", [[9]], "all_reduce of 9, not 4,")]
)
def test_gloos_flight_recorder_tells_who_called_another_collective(tmp_path: Path, odd: str, sizes: object, how: str) -> None:
    for rank in range(4):
        call = recorded(rank, odd, sizes) if rank == 0 else recorded(rank, "gloo:all_reduce", [[4]])
        (tmp_path / f"fr_trace_rank_{rank}.json").write_text(call)
    found = diagnose(collected([str(tmp_path)])).causes
    assert [(each.cause, each.ranks) for each in found] == [("rank-hung", (0,))]
    assert f"ranks 1, 2, 3 wait in all_reduce #4 at train.py:7 in step; ranks 0 called {how} instead" in found[0].evidence[0].text


def test_the_kernel_log_of_a_node_and_the_silence_of_a_rank_are_one(tmp_path: Path) -> None:
    kernel = "[ 99.1] Memory cgroup out of memory: Killed process 4711 (python) total-vm:2285876kB, anon-rss:1596828kB\n"
    lost = "".join(CLOSED.format(rank=rank, port=4000 + rank) for rank in range(8) if rank != 6)
    first = of(tmp_path, job_log=lost, **{"gpu-node-7_dmesg": kernel}).causes[0]
    assert (first.cause, first.ranks, first.hosts) == ("host-memory-oom", (6,), ("gpu-node-7",))
    told = "(Worker rank=3 pid=4711) step 5\n" + lost
    assert of(tmp_path, job_log=told, **{"gpu-node-7_dmesg": kernel}).causes[0].ranks == (3,)


def test_of_two_ranks_the_one_that_says_nothing_is_gone(tmp_path: Path) -> None:
    found = of(tmp_path, rank0_log=CLOSED.format(rank=0, port=4000), rank1_log="step 7\n")
    assert [(each.cause, each.ranks) for each in found.causes] == [("rank-killed", (1,))]


def test_the_first_lines_tell_who_failed_and_who_waited(tmp_path: Path) -> None:
    text = FRAME.format(rank=40) + "[rank40]: KeyError: 'loss_mask'\n"
    text += "".join(CLOSED.format(rank=rank, port=4000 + rank) for rank in range(64) if rank not in (40, 63))
    lines = rendered(of(tmp_path, job_log=text + "world_size: 64\n"), Style(width=120)).splitlines()
    assert lines[0] == "error of the training program itself, rank 40; no sign of a fault of its host"
    assert any(line.startswith("  waited     ranks 0-39, 41-62 only waited") for line in lines)
    assert any(line.startswith("  no line    of rank 63:") for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "mpirun noticed that process rank 3 with PID 0 on node n4 exited on signal 7 (Bus error).",
        "srun: error: n4: task 3: Bus error (core dumped)",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGBUS",
    ],
)
def test_a_bus_error_is_told_by_each_launcher(tmp_path: Path, line: str) -> None:
    first = of(tmp_path, job_log=line + "\n").causes[0]
    assert (first.cause, first.ranks) == ("dev-shm-too-small", (3,))


def test_no_local_port_is_left_where_an_address_of_ipv4_cannot_be_assigned(tmp_path: Path) -> None:
    line = "gpu-2: [W1 socket.cpp:764] [c10d] The client socket has failed to connect to {to} (errno: 99 - Cannot assign requested address).\n"
    assert of(tmp_path, job_log=line.format(to="10.1.2.3:29500")).causes[0].cause == "ephemeral-ports-exhausted"
    assert of(tmp_path, job_log=line.format(to="[localhost]:29500")).causes == ()


def test_a_number_of_nodes_above_which_it_fails(tmp_path: Path) -> None:
    says = "We see the error if the number of nodes is larger than 60, and gloo is fine below that.\n"
    assert of(tmp_path, job_log=says).causes[0].cause == "fails-only-at-scale"
    assert of(tmp_path, job_log="Please warn if the number of nodes exceeds 60: NCCL gives no error there.\n").causes == ()


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("1/2 clients joined.", ["node-never-came", "ranks-missing", "firewall-blocks-nccl"]),
        ("11/16 clients joined.", ["node-never-came", "ranks-missing"]),  # the others reached the port
        ("31/64 clients joined.", ["node-never-came", "ranks-missing"]),
        ("1/2 clients joined.\n+ export MASTER_ADDR=localhost", ["ranks-missing", "master-addr-wrong"]),
        ("3/4 clients joined.\n+ torchrun --standalone train.py", ["ranks-missing", "master-addr-wrong"]),
    ],
)
def test_who_joined_a_store_and_where_it_is_narrow_what_kept_the_others(tmp_path: Path, text: str, causes: list[str]) -> None:
    found = of(tmp_path, job_log=f"torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. {text}\n")
    assert [each.cause for each in found.causes] == causes


@pytest.mark.parametrize("words", ["Bus stuck (I2C or data shorted)", "No EEPROM/retry timeout", "Bad or shorted cable/module"])
def test_an_adapter_that_complains_of_its_cable_is_not_broken_itself(tmp_path: Path, words: str) -> None:
    line = f"[  312.400000] mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, {words}\n"
    (cause,) = of(tmp_path, job_dmesg=line).causes
    assert (cause.cause, cause.fix) == (
        "link-down",
        ("reseat the cable or transceiver named in the message; replace it if this recurs",),
    )
    both = of(
        tmp_path, job_dmesg=line + "[  313.400000] mlx5_core 0000:af:00.0: device's health compromised - reached miss count\n"
    )
    assert {each.cause for each in both.causes} == {"link-down", "rdma-adapter-failed"}


def test_launchers_name_the_node_that_they_do_not_reach_or_lost(tmp_path: Path) -> None:
    refused = "RuntimeError: Using hostfile at /job/hosts but host=gpu-7 was not reachable via ssh. If you are running with a single node"
    (first, *_) = of(tmp_path, job_log=refused).causes
    assert (first.cause, first.hosts) == ("ssh-login-fails", ("gpu-7",))
    lost = (
        "command terminated with exit code 137\nORTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [[11377,0],0] on node launcher\n  Remote daemon: [[11377,0],1] on node worker-3\n"
    )
    (first, *_) = of(tmp_path, job_log=lost).causes
    assert (first.cause, first.hosts) == ("rank-killed", ("worker-3",))


def test_the_host_of_a_rank_is_not_that_of_those_who_tell_of_it(tmp_path: Path) -> None:
    forwarded = (
        "{host}: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        "{host}: Traceback (most recent call last): (RANK 2)\n"
        '{host}:   File "filesystem.py", line 9, in _write\n'
        "{host}: OSError: [Errno 28] No space left on device\n"
    )
    several = of(tmp_path, job_log="".join(forwarded.format(host=f"worker-{at}") for at in (0, 1, 3)))
    assert (several.causes[0].ranks, several.causes[0].hosts) == ((2,), ())
    alone = of(tmp_path, job_log=forwarded.format(host="worker-2"))
    assert (alone.causes[0].ranks, alone.causes[0].hosts) == ((2,), ("worker-2",))


def test_who_waits_for_a_node_is_not_the_one_that_never_came(tmp_path: Path) -> None:
    waits = "{host}: torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    (first, *_) = of(tmp_path, job_log=waits.format(host="gpu-1") + waits.format(host="gpu-2")).causes
    assert (first.cause, first.hosts) == ("node-never-came", ())


def test_what_somebody_found_comes_before_what_a_message_leaves_open(tmp_path: Path) -> None:
    message = "An ORTE daemon has unexpectedly failed after launch and before\n"
    assert of(tmp_path, job_log=message).causes[0].cause == "firewall-blocks-nccl"
    found = "Turns out that the problem had to do with a mismatch between the MTU of the hosts and of the switch.\n"
    causes = [cause.cause for cause in of(tmp_path, job_log=message + found).causes]
    assert causes[0] == "mtu-differs-between-nodes"
    assert "firewall-blocks-nccl" in causes


def test_a_log_in_one_line_of_a_document_is_read_as_one_of_many_lines(tmp_path: Path) -> None:
    failed = FRAME.format(rank=1) + "[rank1]: RuntimeError: Rank 1 has no batches left.\n"
    waited = FRAME.format(rank=0) + "[rank0]: RuntimeError: stopping all ranks\n" + CLOSED.format(rank=2, port=4000)
    (tmp_path / "text").mkdir()
    (tmp_path / "json").mkdir()
    plain = of(tmp_path / "text", job_log=failed + waited)
    found = of(tmp_path / "json", job_log=json.dumps({"message": failed + waited}))
    assert plain.unexplained[0].ranks == found.unexplained[0].ranks == (1,)
    assert [each.text for each in found.unexplained] == [each.text for each in plain.unexplained]
    assert {each.line for each in found.unexplained} == {1}


def test_open_mpi_tells_whose_error_ended_the_job(tmp_path: Path) -> None:
    left = "mpirun.openmpi has exited due to process rank 3 with PID 0 on\nnode vm exiting improperly. There are three reasons\n"
    (tmp_path / "left").mkdir()
    found = of(tmp_path / "left", job_log=left)
    assert (found.causes, found.unexplained[0].ranks) == ((), (3,))
    error = (
        "[vm:08339] *** An error occurred in MPI_Recv\n[vm:08339] *** reported by process [1282539521,2]\n"
        "[vm:08339] *** on communicator MPI_COMM_WORLD\n[vm:08339] *** MPI_ERR_TRUNCATE: message truncated\n"
    )
    (tmp_path / "error").mkdir()
    found = of(tmp_path / "error", job_log=error)
    assert (found.causes, found.unexplained[0].ranks) == ((), (2,))
    assert "MPI_ERR_TRUNCATE" in found.unexplained[0].text


def test_what_the_loader_says_that_it_ignored_is_no_error(tmp_path: Path) -> None:
    ignored = "ERROR: ld.so: object '/opt/site/libmetrics.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.\n"
    found = of(
        tmp_path, job_log=f"[rank1]: {ignored}" + FRAME.format(rank=4) + "[rank4]: ValueError: expected 9 tokens, found 8\n"
    )
    assert [each.ranks for each in found.unexplained] == [(4,)]
