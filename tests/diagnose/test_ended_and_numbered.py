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
