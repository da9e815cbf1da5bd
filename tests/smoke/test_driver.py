"""The smoke test's driver: nothing outlives it, however it ends; what goes wrong around it is told in a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smoke.faults.bench import Bench, Outcome, torch_python
from smoke.faults.forked import said
from smoke.faults.means import loading, patched

SLOW_LOADING = patched(
    """
    import time
    import torch.utils.data
    torch.utils.data.SequentialSampler.__iter__ = lambda self: iter(
        [time.sleep(0.2) or index for index in range(len(self.data_source))]
    )
    """
)
"""Workers of a DataLoader that are there long enough to be found."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, torch_python())
    yield made
    made.end_all()


def _at_work(bench: Bench, child: subprocess.Popen[str], ranks: int = 2) -> None:
    """All ranks have workers."""
    for rank in range(ranks):
        until = time.monotonic() + 60
        while loading(rank)(bench) is None:
            assert time.monotonic() < until and child.poll() is None, child.communicate()
            time.sleep(0.05)


def _nothing_left(bench: Bench) -> None:
    until = time.monotonic() + 30
    while (left := bench.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="Ctrl-C", marks=pytest.mark.exhaustive),  # beside the next test, of what it shows
        pytest.param(signal.SIGKILL, -9, id="kill -9"),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM", marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGHUP, 129, id="SIGHUP", marks=pytest.mark.exhaustive),
    ],
)
def test_nothing_outlives_the_driver(bench: Bench, number: signal.Signals, status: int) -> None:
    """Ranks have sessions of their own, and workers of a DataLoader below them: neither the group nor the terminal reaches them."""
    SLOW_LOADING(bench)
    child = bench.start("dataloader", 2)
    _at_work(bench, child)
    assert len(bench.processes()) >= 6  # driver, launcher, two ranks, their workers
    child.send_signal(number)
    output, errors = child.communicate(timeout=120)
    assert child.returncode == status
    if number == signal.SIGKILL:
        assert not output
    else:
        told = json.loads(output)
        assert told["cut_off"] == ("interrupted" if number == signal.SIGINT else "terminated")
        assert {stage["stage"]: stage["verdict"] for stage in told["stages"]} == {
            "import": "pass",
            "device": "pass",
            "dataloader": "unknown",
        }
    assert "Traceback" not in errors
    _nothing_left(bench)
    assert not [name for name in bench.folder.iterdir() if name.name.startswith("torchtune-sys-")] or number == signal.SIGKILL


@pytest.mark.long
def test_stages_are_shown_as_they_end_and_kept_when_it_is_interrupted(bench: Bench) -> None:
    SLOW_LOADING(bench)
    child = bench.start("gemm,dataloader", 1, "text")
    assert child.stdout is not None
    shown = ""
    while "pass    gemm" not in shown:  # while the next stage still runs
        shown += (row := child.stdout.readline())
        assert row, (shown, child.communicate())
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=120)
    assert child.returncode == 130 and errors.endswith("interrupted\n")
    assert "CPU only" in shown.splitlines()[0]
    assert "cut off (interrupted): 3 of 4 stages passed" in " ".join(output.split())
    assert not re.findall("^(pass|unknown)", output, re.MULTILINE), output
    _nothing_left(bench)


@pytest.mark.long
@pytest.mark.parametrize("format_", ["json", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("junit", "text"))])
def test_a_file_holds_the_stages_so_far_where_it_is_terminated(bench: Bench, format_: str) -> None:
    SLOW_LOADING(bench)
    bench.options += ["-o", str(bench.folder / "report")]
    child = bench.start("dataloader", 1, format_)
    _at_work(bench, child, 1)
    child.terminate()
    output, _errors = child.communicate(timeout=120)
    assert (child.returncode, output) == (143, "")
    assert re.search("cut.off", (bench.folder / "report").read_text())


def test_a_gpu_is_asked_for_and_torch_has_none_built_in(bench: Bench) -> None:
    began = time.monotonic()
    bench.options += ["--device", "cuda"]
    outcome = bench.run("", 2)
    assert time.monotonic() - began < 30  # no rank is started: that takes a minute and more
    assert outcome.rc == 1 and outcome.verdicts == {"device": "fail"}, outcome.told
    assert outcome.stages["device"]["cause"] == "cpu-only-build" and "built without CUDA" in outcome.stages["device"]["seen"]
    assert outcome.report["team"]["torch"].startswith("2.")


@pytest.mark.long
def test_the_worker_too_tries_nothing_else_where_no_gpu_is(bench: Bench) -> None:
    """The facts said nothing, as of a torch without a package record."""
    found = subprocess.run(
        [bench.python, str(_script(bench)), "--device", "cuda", "--level", "quick"],
        env={**bench.env, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 1 and "built without CUDA" in found.stdout + found.stderr
    assert "gemm" not in found.stdout, found.stdout


def _script(bench: Bench) -> Path:
    from torchtune_sys.smoke.script import source

    path = bench.folder / "smoke.py"
    path.write_text(source())
    return path


@pytest.mark.long
def test_launcher_that_is_killed_takes_all_with_it(bench: Bench) -> None:
    SLOW_LOADING(bench)
    child = bench.start("dataloader", 2)
    _at_work(bench, child)
    rank = bench.rank(0)
    parent = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 1 and "Traceback" not in errors, output
    _nothing_left(bench)


@pytest.mark.exhaustive  # CI tries several files of tests at once
def test_two_at_once(tmp_path: Path) -> None:
    benches = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        benches.append(Bench(tmp_path / name, torch_python()))
    children = [bench.start("device,allreduce", 2) for bench in benches]
    for child in children:
        output, _errors = child.communicate(timeout=400)
        assert child.returncode == 0, output


@pytest.mark.long
def test_hang_names_rank_host_and_line(bench: Bench) -> None:
    """Rank 0 waits for a word of rank 1."""
    patched(
        """
        import time
        import torch.utils.data
        def waiting_for_ever(*args, **more):
            time.sleep(1000)
        torch.utils.data.DistributedSampler.__init__ = waiting_for_ever
        """,
        rank=1,
    )(bench)
    outcome = bench.run("sampler", 2)
    stage = outcome.stages["sampler"]
    assert (stage["verdict"], stage["cause"], outcome.rc) == ("fail", "rank-hung", 1), outcome.told
    # The driver, or rank 0 that gives up waiting; then where the other one is must be asked before that one leaves too.
    assert "rank 1 did not go on" in stage["seen"] or "rank 1 did not answer" in stage["seen"]
    hanging = stage["places"][-1]
    assert hanging.startswith("rank 1 (pid ") and f" on {socket.gethostname()}): in stage sampler, smoke.py:" in hanging
    assert "in samples_are_shared_out, below it sitecustomize.py:" in hanging and hanging.endswith("in waiting_for_ever")
    assert not outcome.left


@pytest.mark.exhaustive
def test_hang_in_an_exchange_names_who_did_not_come(bench: Bench) -> None:
    patched(
        """
        import time
        import torch.nn.parallel as parallel
        parallel.DistributedDataParallel.join = lambda *args, **more: time.sleep(1000)
        """,
        rank=1,
    )(bench)
    outcome = bench.run("join", 2)
    stage = outcome.stages["join"]
    assert (stage["verdict"], stage["cause"], outcome.rc) == ("fail", "rank-hung", 1), outcome.told
    assert "rank 1 did not go on" in stage["seen"] or "rank 1 did not answer" in stage["seen"], outcome.told
    assert "in uneven_ranks_join" in stage["places"][-1]
    assert not outcome.left


@pytest.mark.long
def test_time_that_is_up_is_unknown(bench: Bench) -> None:
    patched("import time, torch\ntorch.Tensor.__matmul__ = lambda *args: time.sleep(1000)")(bench)
    for allowed_s in ("20", "80", "320"):  # a busy machine takes longer than the first to import torch
        bench.options = ["--timeout", allowed_s]
        outcome = bench.run("device,gemm,conv", 1)
        if outcome.verdicts.get("device") == "pass":
            break
    assert outcome.rc == 3, outcome.told
    assert (outcome.verdicts["gemm"], outcome.verdicts["conv"]) == ("unknown", "unknown"), outcome.told
    assert "time" in outcome.stages["gemm"]["seen"] and not outcome.left


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nonexistent/python3", "/nonexistent/python3"),
        ("{folder}", "{folder}"),
        ("{folder}/text", "{folder}/text"),
        ("/bin/true", "/bin/true"),
        ("/bin/cat", "/bin/cat"),
    ],
)
def test_what_is_no_python_is_told(bench: Bench, python: str, words: str) -> None:
    (bench.folder / "text").write_text("no program\n")
    bench.python = python.replace("{folder}", str(bench.folder))
    outcome = bench.run("device", 2)
    assert outcome.rc in (1, 2) and "Traceback" not in outcome.errors, outcome.told
    assert words.replace("{folder}", str(bench.folder)) in outcome.errors + str(outcome.report), outcome.told
    assert not outcome.left


def test_scratch_that_cannot_be_written_is_told(bench: Bench) -> None:
    bench.options += ["--scratch", "/proc"]
    outcome = bench.run("device", 2)
    assert outcome.rc == 2 and outcome.errors.startswith("torchtune-sys: /proc: "), outcome.told
    assert "--scratch" in outcome.errors


@pytest.mark.exhaustive  # test_patience.py has strangers there, test_watch.py what they say
def test_strangers_on_the_socket_are_not_heard(bench: Bench) -> None:
    """The name of the socket is in the ranks' environment: any process of this user may speak on it."""
    spoken: list[str] = []

    def speak() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not spoken:
            for line in Path("/proc/net/unix").read_text().splitlines():
                name = line.rpartition(" ")[2]
                if name.startswith("@torchtune-sys-") and name[1:].encode() in _environments(bench):
                    spoken.append(name)
                    _babble("\0" + name[1:])
                    return
            time.sleep(0.05)

    bench.watchers.append(speak)
    outcome = bench.run("device,allreduce", 2)
    assert spoken and outcome.rc == 0, outcome.told


def _environments(bench: Bench) -> bytes:
    found = b""
    for pid in bench.processes():
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/environ").read_bytes()
    return found


def _babble(name: str) -> None:
    lines = [
        b"\xff\xfe\x00\n",
        b'{"event": "hello", "role": "rank", "rank": "x"}\n',
        b'{"event": "hello", "role": "rank", "rank": 0, "host": 3}\n',
        b'{"event": "begin", "stage": "device", "deadline_s": "soon"}\n',
        b'{"event": "begin"}\n',
        b'{"event": "about", "stages": 5}\n',
        b'{"event": "measure", "stage": "device", "name": 3}\n',
        b'{"event": "end", "stage": "device", "verdict": "fail", "cause": "made-up"}\n',
        b'{"event": "end", "stage": "import", "verdict": "splendid"}\n',
        b"[" * 100000 + b"\n",
        b"x" * (3 << 20),
    ]
    for several in ([line] for line in lines):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as speaker:
            speaker.settimeout(5)
            speaker.connect(name)
            speaker.sendall(lines[2] + several[0])
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(name)
        time.sleep(1)


@pytest.mark.exhaustive
def test_who_prints_without_end_is_no_trouble(bench: Bench) -> None:
    patched("""
        import sys
        import threading
        def shout():
            while True:
                sys.stderr.write("x" * 10000 + "\\n")
        threading.Thread(target=shout, daemon=True).start()
    """)(bench)
    outcome = bench.run("device", 2)
    assert outcome.rc == 0, outcome.told[-1000:]


@pytest.mark.exhaustive
def test_rank_that_leaves_early_is_named(bench: Bench) -> None:
    patched("import os, torch\ntorch.Tensor.__matmul__ = lambda *args: os._exit(0)", rank=1)(bench)
    outcome = bench.run("device,gemm", 2)
    assert outcome.stages["gemm"]["cause"] == "rank-killed" or "rank 1" in outcome.stages["gemm"]["seen"], outcome.told
    assert outcome.rc == 1


@pytest.mark.exhaustive
def test_script_by_hand_ends_a_hang_by_itself(bench: Bench) -> None:
    """Without a driver each rank's own clock ends it, with the place where it was."""
    from torchtune_sys.smoke.script import source

    (bench.folder / "smoke.py").write_text(source())
    patched(
        """
        import time
        import torch.nn.parallel as parallel
        parallel.DistributedDataParallel.join = lambda *args, **more: time.sleep(1000)
        """,
        rank=1,
    )(bench)
    words = [bench.python, "smoke.py", "--stages", "join", "--nproc-per-node", "2"]
    found = subprocess.run(words, env=bench.env, cwd=bench.folder, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode != 0
    assert "in uneven_ranks_join" in found.stderr, found.stderr[-3000:]
    _nothing_left(bench)


@pytest.mark.exhaustive
def test_compiling_leaves_no_headers_behind(bench: Bench) -> None:
    """torch 2.8 and newer keeps 150 MB of precompiled headers where its default cache is, whatever its variables name."""
    outcome = bench.run("compile", 1)
    assert outcome.verdicts.get("compile") in ("pass", "na"), outcome.told
    assert not [path for path in bench.folder.rglob("*") if path.is_file() and path.suffix in (".gch", ".pch", ".h", ".so")]


def test_outcomes_have_no_defaults() -> None:
    """A run that said nothing is no pass."""
    assert Outcome(0, {}, "", [], 0.0).verdicts == {}


_WARNS = """
import types, warnings
here = types.SimpleNamespace(remark="", world=2, scratch=".", broken=False, device_works=lambda: True)
for action in ("error", "ignore"):
    warnings.simplefilter(action)
    ended = outcome(here, Stage("ddp", lambda here: warnings.warn("old", FutureWarning), 1.0))
    print(ended["verdict"], ended["cause"], ended["seen"].partition(" (")[0])
"""


def test_a_warning_that_is_made_an_error_is_told_as_such() -> None:
    assert said(_WARNS) == "fail warnings-are-errors FutureWarning: old\npass  \n"
