"""What ended a job from outside, for want of what a process was killed, whom a launcher's message names, and what numbers before lines count."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_logs import of

SIGNAL = (
    "W1127 21:21:42.780000 {pid} torch/distributed/elastic/agent/server/api.py:753] Received Signals.SIGTERM death signal, shutting down workers\n"
    "Traceback (most recent call last):\n"
    '  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 715, in run\n'
    "    result = self._invoke_run(role)\n"
    "{frame}"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process {pid} got signal: 15\n"
)
FRAMES = {
    "meeting": '  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 1213, in next_rendezvous\n    self._op_executor.run(join_op, deadline)\n',
    "ended": '  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 942, in _exit_barrier\n    store_util.barrier(\n',
    "ranks": "",
}


@pytest.mark.parametrize(
    ("frame", "causes"), [("meeting", {"node-never-came", "ranks-missing"}), ("ended", {"rank-hung"}), ("ranks", set())]
)
def test_agents_that_waited_for_one_another_when_they_were_ended_were_not_preempted(
    tmp_path: Path, frame: str, causes: set[str]
) -> None:
    texts = {f"n{at}": SIGNAL.format(pid=4000 + at, frame=FRAMES[frame]) for at in range(3)}
    found = of(tmp_path, **texts)
    assert {each.cause for each in found.causes} == causes
    assert found.causes or "death signal" in found.unexplained[0].text or "SignalException" in found.unexplained[0].text


def test_ranks_that_worked_until_a_signal_came_may_have_been_preempted(tmp_path: Path) -> None:
    texts = {f"n{at}": f"step {at} loss 0.41\n" + SIGNAL.format(pid=4000 + at, frame="") for at in range(3)}
    assert of(tmp_path, **texts).causes[0].cause == "job-preempted"


KILLED = (
    "E1127 21:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: /usr/bin/python",
    "srun: error: gpu-3: task 5: Killed",
    "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
    "/var/spool/slurmd/job7/slurm_script: line 9: 40117 Killed                  python train.py",
)
MEMORY = ("free memory: 2 GiB", "slurmstepd: error: Detected 1 oom_kill event", "the RAM is 64 GB", "MemoryError")
NO_MEMORY = (
    "UserWarning: the memory format is channels_last",
    "torch.OutOfMemoryError: CUDA out of memory.",
    "DataLoader(pin_memory=True)",
)


@pytest.mark.parametrize("line", KILLED)
def test_a_killed_process_is_first_one_of_memory_where_the_text_speaks_of_memory(tmp_path: Path, line: str) -> None:
    for words in ("", *NO_MEMORY[::2]):
        assert of(tmp_path, job=f"{words}\n{line}\n").causes[0].cause == "rank-killed", words
    for words in MEMORY:
        assert of(tmp_path, job=f"{words}\n{line}\n").causes[0].cause == "host-memory-oom", words
    assert {each.cause for each in of(tmp_path, job=f"{line}\n").causes} == {"rank-killed", "host-memory-oom"}


NAMED = {
    "salloc: error: Node failure on gpu-7": "gpu-7",
    "salloc: error: Node failure on gpu-[7-8]": "",
    "ssh: connect to host gpu-7 port 22: Connection refused": "gpu-7",
    "login: ssh: connect to host gpu-7 port 2222: No route to host": "gpu-7",
    "ssh: Could not resolve hostname gpu-7: Name or service not known": "gpu-7",
    "pdsh@login: gpu-7: ssh exited with exit code 255": "gpu-7",
    "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no gpu-7 hostname' returned non-zero exit status 255.": "gpu-7",
}


@pytest.mark.parametrize("line", NAMED)
def test_the_host_that_a_launcher_s_message_names(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, job=f"{line}\n").causes[0].hosts == ((NAMED[line],) if NAMED[line] else ())


def test_the_host_in_the_message_comes_before_who_printed_it(tmp_path: Path) -> None:
    text = (
        "".join(f"gpu-{at}: starting\ngpu-{at}: waiting\n" for at in range(1, 4))
        + "gpu-1: ssh: connect to host gpu-4 port 22: Connection refused\n"
    )
    assert of(tmp_path, job=text).causes[0].hosts == ("gpu-4",)


AGENTS = "".join(f"{task}: [rank{2 * task + local}]: step 3 loss 0.4\n" for task in range(3) for local in range(2))
SUMMARY = (
    "1: Root Cause (first observed failure):\n1: [0]:\n1:   host      : gpu-2\n1:   rank      : 3 (local_rank: 1)\n1:   exitcode  : -11 (pid: 4711)\n"
    "1:   error_file: <N/A>\nsrun: error: gpu-2: task 1: Exited with exit code 1\n"
)


def test_the_numbers_of_tasks_that_start_several_ranks_each_are_no_ranks(tmp_path: Path) -> None:
    whole = of(tmp_path, job=AGENTS + SUMMARY)
    assert (whole.causes[0].ranks, whole.unheard) == ((3,), ())
    some = AGENTS.replace("0: [rank1]: step 3 loss 0.4\n", "1: starting\n")
    assert of(tmp_path, job=some + SUMMARY).unheard == (1,), "the line of task 1 is none of rank 1"


WORKER = "RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed.\n"
VICTIM = "[ 9123.1] Out of memory: Killed process {} total-vm:99999kB, anon-rss:8888kB\n"


@pytest.mark.parametrize(
    ("victim", "confidence"),
    [("", "possible"), ("991 (x)", "certain"), ("31991 (pt_data_worker)", "certain"), ("77 (chrome)", "likely")],
)
def test_a_killed_loader_is_memory_for_certain_where_the_kernels_log_says_so_of_it(
    tmp_path: Path, victim: str, confidence: str
) -> None:
    kernel = VICTIM.format(victim) if victim else ""
    for texts in ({"job": WORKER + kernel}, {"job": WORKER, "dmesg": kernel or "\n"}):
        first, *others = of(tmp_path, **texts).causes
        assert (first.cause, first.confidence) == ("host-memory-oom", confidence)
        assert [each.cause for each in others] == ([] if victim else ["dataloader-worker-killed"])


STEP = "2026-11-27 21:{minute:02d}:{second:02d} step {at} loss 0.4\n"
ENDED = SIGNAL.format(pid=4000, frame="")


@pytest.mark.parametrize(("minutes", "causes"), [(40, ["rank-hung", "job-preempted"]), (21, ["job-preempted", "rank-killed"])])
def test_a_job_that_had_stood_still_for_long_was_not_ended_by_a_scheduler_first(
    tmp_path: Path, minutes: int, causes: list[str]
) -> None:
    steps = "".join(STEP.format(minute=20, second=10 * at, at=at) for at in range(6))
    found = of(tmp_path, job=steps + ENDED.replace("21:21:42", f"21:{minutes}:42"))
    assert [each.cause for each in found.causes] == causes


def test_an_error_that_follows_the_signal_does_not_hide_it_and_one_before_it_does(tmp_path: Path) -> None:
    error = "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1354.\n"
    steps = "step 1 loss 0.4\nstep 2 loss 0.3\n"
    assert of(tmp_path, job=steps + ENDED + error).causes[0].cause == "job-preempted"
    assert of(tmp_path, job=steps + "ValueError: no shard 7\n" + ENDED).causes == ()


PRIMARY = "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"
DETECTED = (
    "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. "
    "The first process to do so was:\n\n  Process name: [[4712,1],3]\n  Exit code:    {code}\n"
)


def test_what_mpirun_says_of_a_process_follows_from_what_ended_it(tmp_path: Path) -> None:
    crashed = of(tmp_path, job=PRIMARY + DETECTED.format(code=139)).causes
    assert [(each.cause, each.ranks) for each in crashed] == [("rank-killed", (3,))]
    raised = (
        PRIMARY
        + DETECTED.format(code=1)
        + 'Traceback (most recent call last):\n  File "/w/a.py", line 8, in f\n    g()\nValueError: no\n'
    )
    assert [each.text for each in of(tmp_path, job=raised).unexplained] == ["ValueError: no"]
    assert of(tmp_path, job=PRIMARY).unexplained


HELD = {
    "NCCL": "{host}:712:712 [0] NCCL INFO Bootstrap : Using eth0:{address}<0>\n",
    "gloo": "{host}: [gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, rank=1, size=4, local=[{address}]:17033, remote=[10.77.0.1]:3470\n",
    "ip": "{host}:     inet {address}/24 brd 10.77.0.255 scope global eth0\n",
}


@pytest.mark.parametrize("line", HELD.values(), ids=HELD)
def test_an_address_that_two_hosts_hold_is_one_too_many(tmp_path: Path, line: str) -> None:
    twice = "".join(line.format(host=f"gpu-{at}", address=f"10.77.0.{min(at, 3)}") for at in range(1, 5))
    first = of(tmp_path, job=twice).causes[0]
    assert (first.cause, first.hosts) == ("duplicate-address", ("gpu-4",))
    for each in ("10.77.0.{}", "172.17.0.2", "127.0.0.1"):
        once = "".join(line.format(host=f"gpu-{at}", address=each.format(at)) for at in range(1, 5))
        assert "duplicate-address" not in {found.cause for found in of(tmp_path, job=once).causes}


def test_a_hosts_name_without_an_address_of_its_own_is_only_a_warning(tmp_path: Path) -> None:
    warned = "[W1127 21:42:16.7 ProcessGroupGloo.cpp:524] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.\n"
    late = "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/4 clients joined.\n"
    first, *others = of(tmp_path, job=warned + late).causes
    assert first.cause == "node-never-came" and "gloo-wrong-interface" in {each.cause for each in others}


def test_ranks_that_were_connected_by_the_loopback_are_on_one_host(tmp_path: Path) -> None:
    lost = (
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2772. This is typically caused by\n"
    )
    again = "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:34705$1\n"
    assert of(tmp_path, job=again).causes[0].cause == "hostname-resolves-to-loopback"
    assert "hostname-resolves-to-loopback" not in {
        each.cause for each in of(tmp_path, job="ZeroDivisionError: x\n" + lost + again).causes
    }


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.{rank}]:2772. This is typically caused by a remote worker\n"
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 61, in main\n    loss = step(batch[7])\n{error}'
MANY = "/env/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 8 worker processes in total. Our suggested max number of worker in current system is 4\n"


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "{}: ", "[{}]:", "[{}] "])
@pytest.mark.parametrize("warning", ["", MANY])
def test_of_interleaved_tracebacks_the_error_is_the_one_that_tells_of_no_peer(tmp_path: Path, prefix: str, warning: str) -> None:
    """The lines of the ranks come in turn; those that lost a peer print first."""
    texts = [
        TRACE.format(error=LOST.format(rank=rank) if rank != 4 else "IndexError: list index out of range\n") for rank in range(8)
    ]
    columns = [[prefix.format(rank) + line for line in (warning + text).splitlines()] for rank, text in enumerate(texts)]
    found = of(tmp_path, job="\n".join(line for row in zip(*columns, strict=True) for line in row) + "\n")
    assert found.causes == ()
    assert [(each.text, each.ranks) for each in found.unexplained] == [("IndexError: list index out of range", (4,))]


def test_what_makes_a_job_slow_is_told_where_no_error_ended_it(tmp_path: Path) -> None:
    assert of(tmp_path, job=MANY + "step 1 loss 0.4\n").causes[0].cause == "dataloader-workers-exceed-cpus"


DENIED = "Traceback (most recent call last):\n  File \"/w/train.py\", line 61, in main\n    {code}\n{error}: '{path}'\n"
NO_ACCESS, NO_WRITE = "PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"


@pytest.mark.parametrize(
    ("code", "error", "path", "is_write"),
    [
        ("torch.save(state, path)", NO_ACCESS, "/data/m/model.pt", True),
        ("torch.save(state, path)", NO_WRITE, "/data/m/model.pt", True),
        ("os.makedirs(folder)", NO_ACCESS, "/data/checkpoints/run7", True),
        ("state = torch.load(path)", NO_ACCESS, "/data/checkpoints/model.pt", False),
        ('shard = open(path, "rb")', NO_ACCESS, "/data/ckpt/7.bin", False),
        ("shard = open(path)", NO_ACCESS, "d/shard-4.bin", False),
    ],
)
def test_a_file_that_may_not_be_read_is_no_folder_that_cannot_be_written(
    tmp_path: Path, code: str, error: str, path: str, is_write: bool
) -> None:
    found = of(tmp_path, job=DENIED.format(code=code, error=error, path=path))
    assert [each.cause for each in found.causes] == (["checkpoints-not-writable"] if is_write else [])
    assert is_write or error in found.unexplained[0].text
