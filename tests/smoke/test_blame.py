"""Which rank is heard, and what its words stand for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import RankEnd
from torchtune_sys.smoke import attribution
from torchtune_sys.smoke.merge import merged
from torchtune_sys.smoke.stack_traces import waits_for_others
from torchtune_sys.smoke.watch import RunFailure
from torchtune_sys.smoke.worker.cgroups import told_of_memory
from torchtune_sys.smoke.worker.oom_kills import killed_for_memory, killed_since

KILLED = "the kernel killed a process for lack of memory"
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5029."
LOADER = """RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)
"""


def failed(rank: int, seen: str, cause: str = "") -> RankEnd:
    return RankEnd(rank=rank, verdict=Verdict.FAIL, seconds=1.0, seen=seen, cause=cause)


def died(code: int, *, crash: str = "", killed: str = "", more: str = "") -> attribution.Attribution:
    trouble = RunFailure(kind="died", stage="ddp", ranks=(1,), pids=(77,), status=code)
    return attribution.of_failure(trouble, more, crash, killed, ())


def test_a_rank_that_only_lost_another_is_not_the_one_to_hear() -> None:
    stage = merged("fsdp", {0: failed(0, LOST), 1: failed(1, "IndexError: index 7 is out of bounds")}, {}, ())
    assert (stage.seen, stage.cause) == ("IndexError: index 7 is out of bounds", "")


def test_words_that_fit_several_causes_stand_for_the_one_that_broke_an_earlier_stage() -> None:
    """Seen on an H100 whose memory another process held: cuBLAS does not say that it is full."""
    text = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`"
    alone = merged("train", {0: failed(0, text)}, {}, ())
    after = merged("train", {0: failed(0, text)}, {}, (), ["gpu-memory-in-use"])
    assert (alone.cause, alone.confidence) == ("gpu-ecc-uncorrectable", Confidence.POSSIBLE)
    assert (after.cause, after.confidence) == ("gpu-memory-in-use", Confidence.LIKELY) and "Xid" not in after.remedy


def test_what_this_run_has_shown_goes_before_what_the_rules_found_on_the_host() -> None:
    """Seen on a host whose log had an out-of-memory kill of another day."""
    text = "RuntimeError: could not create a primitive"
    after = merged("conv", {0: failed(0, text)}, {}, ("host-memory-oom",), ["system-calls-refused"])
    by_rules = merged("conv", {0: failed(0, text)}, {}, ("host-memory-oom",))
    assert (after.cause, after.confidence) == ("system-calls-refused", Confidence.LIKELY)
    assert (by_rules.cause, by_rules.confidence) == ("host-memory-oom", Confidence.CERTAIN)


def test_a_cause_that_a_rank_names_goes_before_what_a_lost_connection_may_stand_for() -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:4711: Connection reset by peer"
    stage = merged("rendezvous", {0: failed(0, lost), 1: failed(1, "connected with user 7", "stranger-among-ranks")}, {}, ())
    assert stage.cause == "stranger-among-ranks"
    assert merged("rendezvous", {0: failed(0, lost), 1: failed(1, lost)}, {}, ()).cause == "firewall-blocks-nccl"


def test_a_rank_that_lost_one_that_cannot_tell_fails_no_host() -> None:
    """Another user of the host connected with rank 1, which ended its stage; before, any user could make a healthy host fail so."""
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:4711: Connection reset by peer"
    undecided = structs.replace(failed(1, "connected with user 7", "stranger-among-ranks"), verdict=Verdict.UNKNOWN)
    stage = merged("ddp", {0: failed(0, lost), 1: undecided}, {}, ())
    assert (stage.verdict, stage.cause, stage.ranks) == (Verdict.UNKNOWN, "stranger-among-ranks", ())
    assert merged("ddp", {0: failed(0, "wrong", "ddp-wrong"), 1: undecided}, {}, ()).cause == "ddp-wrong"


def test_where_all_lost_each_other_the_first_speaks() -> None:
    stage = merged("fsdp", {0: failed(0, LOST), 1: failed(1, LOST)}, {}, ())
    assert (stage.cause, stage.confidence) == ("connection-broken", Confidence.LIKELY)
    assert stage.seen.endswith(f"no rank has ended: {LOST}")
    silent = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:29572: Connection timed out"
    assert merged("ddp", {0: failed(0, silent), 1: failed(1, silent)}, {}, ()).cause == "connection-broken"


def test_a_cause_goes_before_an_exception() -> None:
    stage = merged("ddp", {0: failed(0, "ValueError: x"), 1: failed(1, "off by 1", "ddp-gradients-wrong")}, {}, ())
    assert (stage.seen, stage.cause) == ("off by 1", "ddp-gradients-wrong")


def test_of_a_whole_report_the_line_that_says_why() -> None:
    end = attribution.of_end(failed(0, LOADER), "dataloader", ())
    assert end.cause == "dev-shm-too-small"
    assert end.seen == "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)"
    assert "worker.py" in end.trace


def test_the_cause_that_the_rules_found_is_taken() -> None:
    words = failed(0, "RuntimeError: can't start new thread")
    assert attribution.of_end(words, "dataloader", ()).cause == "cgroup-pids-limit"
    assert attribution.of_end(words, "dataloader", ("nproc-limit-too-low",)).cause == "nproc-limit-too-low"


def test_how_a_rank_ended() -> None:
    assert (died(-9).cause, died(-9).seen) == ("rank-killed", "rank 1 was ended by SIGKILL")
    assert (died(-11).cause, died(-11).seen) == ("rank-crashed", "rank 1 was ended by SIGSEGV")
    assert died(-4).cause == "cpu-lacks-avx"
    assert died(-9, killed=KILLED).cause == "host-memory-oom"
    assert died(1, killed=KILLED).cause == "host-memory-oom"
    assert died(-11, killed=KILLED).cause == "rank-crashed"  # what was killed may be another user's process
    limit = died(1, more="libgomp: Thread creation failed: Resource temporarily unavailable\n")
    assert limit.cause == "cgroup-pids-limit" and limit.seen.startswith("rank 1 ended with status 1: libgomp: Thread creation")


_IN_DDP = (
    'Current thread 0x7f (most recent call first):\n  File "/x/torch/nn/parallel/distributed.py", line 1473 in _ddp_init_helper\n'
)
_ELSEWHERE = 'Current thread 0x7f (most recent call first):\n  File "/x/torch/nn/modules/linear.py", line 125 in forward\n'


@pytest.mark.parametrize(
    ("level", "status", "crash", "cause", "remedy"),
    [
        ("DETAIL", -11, _IN_DDP, "distributed-debug-detail", "unset TORCH_DISTRIBUTED_DEBUG"),
        ("DETAIL", -11, _ELSEWHERE, "rank-crashed", "unset TORCH_DISTRIBUTED_DEBUG"),
        ("INFO", -11, _IN_DDP, "rank-crashed", ""),
        ("DETAIL", -9, _IN_DDP, "rank-killed", died(-9).remedy),
    ],
)
def test_a_crash_under_torch_s_own_checks(level: str, status: int, crash: str, cause: str, remedy: str) -> None:
    found = attribution.with_environment(died(status), "ddp", {"TORCH_DISTRIBUTED_DEBUG": level}, crash)
    assert (found.cause, found.remedy) == (cause, remedy)


def test_a_launcher_that_was_killed_takes_the_ranks_with_it() -> None:
    trouble = RunFailure(kind="launcher-killed", stage="ddp", status=-9)
    found = attribution.of_failure(trouble, "", "", "", ())
    assert (found.cause, found.seen) == (
        "launcher-killed",
        "the process that started the ranks was ended by SIGKILL, and they with it",
    )
    assert attribution.of_failure(trouble, "", "", KILLED, ()).cause == "host-memory-oom"


def test_how_ranks_hang() -> None:
    def told(kind: str, *ranks: int) -> tuple[str, str]:
        found = attribution.of_failure(RunFailure(kind=kind, stage="ddp", ranks=ranks), "", "", "", ())
        return found.cause, found.seen

    assert told("stopped", 1) == (
        "rank-stopped",
        "rank 1 is stopped (SIGSTOP, a debugger or a frozen cgroup) and the others wait",
    )
    assert told("blocked", 1, 2)[0] == "rank-blocked-in-kernel" and "ranks 1, 2 are blocked" in told("blocked", 1, 2)[1]
    assert told("not-ended", 1)[0] == "rank-does-not-end" and told("not-ended", 1)[1].startswith("rank 1 does not end")
    assert told("hung", 3) == ("rank-hung", "rank 3 did not go on")
    assert told("hung") == ("rank-hung", "no rank goes on")


def test_who_waits_for_others() -> None:
    head = "Current thread 0x7f (most recent call first):\n"
    script = '  File "/tmp/a/smoke.py", line 9 in ranks_train_as_one\n'
    assert waits_for_others(head + '  File "/x/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n' + script)
    assert waits_for_others(head + '  File "/tmp/a/smoke.py", line 3 in word_of\n' + script)
    assert not waits_for_others(head + '  File "/data/sitecustomize.py", line 3 in sleeps\n' + script)
    assert not waits_for_others("")


def test_a_rank_that_ends_by_itself_has_not_been_killed() -> None:
    assert (died(0).cause, died(0).seen) == ("rank-crashed", "rank 1 ended with status 0")


def test_a_rank_of_which_the_launcher_said_nothing_has_been_killed_as_well() -> None:
    found = attribution.of_failure(RunFailure(kind="died", stage="ddp", ranks=(1,), pids=(77,)), "", "", "", ())
    assert (found.cause, found.seen) == ("rank-killed", "rank 1 ended")


def test_a_bus_error_while_torch_is_imported_is_a_library_that_ends_too_early() -> None:
    crash = "Fatal Python error: Bus error\n\nCurrent thread 0x7f (most recent call first):\n"
    found = attribution.of_failure(RunFailure(kind="not-started", stage="import"), "", crash, "", ())
    assert found.cause == "torch-install-damaged" and "Bus error" in found.seen


def test_ranks_that_ran_without_the_driver_are_not_said_to_have_failed() -> None:
    said = "pass    device  0.1 s\nsmoke test: pass, 2 rank(s)\n"
    assert (
        "did not report anything" in attribution.of_failure(RunFailure(kind="not-started", stage="import"), said, "", "", ()).seen
    )


def test_what_a_rank_tells_of_its_cgroup_is_read_of_no_other_file(tmp_path: Path) -> None:
    told = tmp_path / "memory.events"
    told.write_text("oom_kill 7\n")
    link = tmp_path / "sys"
    link.symlink_to("/sys/fs/cgroup")
    for one in (
        [str(told), 0],
        [f"/sys/fs/cgroup/../../..{told}", 0],
        ["/sys/fs/cgroup/cgroup.procs", 0],
        [str(told)],
        None,
        [7, "x"],
    ):
        assert not killed_since(one)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"memory.max": "734003200"}, " (its cgroup allows 700 MiB: {}/memory.max)"),
        ({"memory.limit_in_bytes": "64000000", "memory.max": "max"}, " (its cgroup allows 61.04 MiB: {}/memory.limit_in_bytes)"),
        ({"memory.limit_in_bytes": "9223372036854771712"}, ""),
        ({"memory.max": "max"}, ""),
        ({}, ""),
    ],
)
def test_the_limit_that_memory_ran_into_is_told(limits: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, text in limits.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert told_of_memory([str(tmp_path), str(tmp_path / "none")]) == words.format(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/memory"), reason="makes a cgroup (version 1)")
def test_a_kill_in_a_rank_s_own_cgroup_is_seen_from_outside() -> None:
    place = Path(f"/sys/fs/cgroup/memory/smoke-test-{os.getpid()}")
    place.mkdir()
    try:
        (place / "memory.limit_in_bytes").write_text("64M")
        code = f"""import os, sys
open("{place}/cgroup.procs", "w").write(str(os.getpid()))
from torchtune_sys.smoke.worker.oom_kills import kills_of_cgroup
print(*kills_of_cgroup(), flush=True)
held = bytearray(256 << 20)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        path, count = done.stdout.split()
        assert done.returncode == -9 and path == f"{place}/memory.oom_control"
        assert killed_since([path, int(count)]) and not killed_since([path, int(count) + 1])
        words = f"{KILLED} (its cgroup allows 64 MiB: {place}/memory.limit_in_bytes)"
        assert killed_for_memory(1 << 60, [[path, int(count)]]) == words
        assert killed_for_memory(1 << 60, [[path, int(count) + 1]]) == ""
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.1)
