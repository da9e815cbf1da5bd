"""How long the driver waits for a stage: longer where the host is so busy that a rank gets no CPU, and never without end; what was said meanwhile is heard."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from torchtune_sys.host.children.rank_processes import Event, Exited, RankMessage, RankProcesses
from torchtune_sys.smoke.watch import Watch, WatchedRank
from torchtune_sys.smoke.worker import launching
from torchtune_sys.smoke.worker.measures import cpus_are_even, patience


class Quiet:
    """Ranks of which nothing is heard; all run."""

    failure = None
    launcher = 1

    def state(self, _pid: int) -> str:
        return "S"

    def wait_for_cpus(self, _pid: int) -> tuple[float, str]:
        return 0.0, ""

    def stacks(self, pids: Any) -> dict[int, str]:
        return dict.fromkeys(pids, "")


@pytest.mark.parametrize(
    ("load", "chosen", "policy"), [(0.5, "", ""), (4.0, "", ""), (9.0, "", "PASSIVE"), (9.0, "ACTIVE", "ACTIVE")]
)
def test_on_a_crowded_host_threads_sleep_while_they_wait(
    monkeypatch: pytest.MonkeyPatch, load: float, chosen: str, policy: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(launching.subprocess, "Popen", lambda _argv, env, **_more: started.append(env))
    launching._started(0, 1, launching.RankLauncher(1, -1, -1), 0, ["smoke.py"])
    assert started[0].get("OMP_WAIT_POLICY", "") == policy


@pytest.mark.parametrize(("load", "times"), [(0.5, 1.0), (8.0, 1.0), (12.0, 1.5), (33.0, 4.0), (500.0, 4.0)])
def test_a_deadline_grows_with_the_processes_that_wait_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, load: float, times: float
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert patience() == pytest.approx(min(times, 4.0), abs=0.13)
    watch = Watch(Quiet(), 1, 1e12, lambda *_: None)  # type: ignore[arg-type]
    watch.plan, rank = ("compile",), WatchedRank(7, {"rank": 0})
    rank.stage, rank.deadline_s, watch.ranks = "compile", 300.0, {7: rank}
    limit_s = rank.begun_s + 300 * patience()
    assert watch._judge(limit_s - 1) is None
    found = watch._judge(limit_s + 1)
    assert found is not None and (found.kind, found.stage) == ("hung", "compile")


@pytest.mark.parametrize(
    ("flags", "kilohertz", "is_hybrid", "even"),
    [
        ("flags : fpu avx2", (5_800_000, 5_600_000), False, True),
        ("flags : fpu avx2", (), False, True),
        ("flags : fpu avx2 hypervisor", (5_800_000, 5_800_000), False, False),
        ("flags : fpu avx2", (5_600_000, 4_200_000), False, False),
        ("flags : fpu avx2", (), True, False),
        ("Features : fp asimd", (3_400_000, 3_400_000), False, False),
        ("", (), False, False),
    ],
    ids=["favoured cores", "no cpufreq", "virtual", "compact cores", "hybrid", "arm", "no cpuinfo"],
)
def test_spells_are_judged_on_even_cpus_of_one_s_own(
    flags: str, kilohertz: tuple[int, ...], is_hybrid: bool, even: bool, tmp_path: Path
) -> None:
    for number, value in enumerate(kilohertz):
        place = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        place.mkdir(parents=True)
        (place / "cpuinfo_max_freq").write_text(f"{value}\n")
    if is_hybrid:
        (tmp_path / "sys/devices/cpu_atom").mkdir(parents=True)
    if flags:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert cpus_are_even(str(tmp_path)) is even


def test_a_rank_whose_end_another_thread_heard_is_seen() -> None:
    """torch's threads do not block SIGCHLD: it is lost there if it comes while nobody awaits it, and the test waited for an hour after its verdict."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import subprocess, threading, time
                from torchtune_sys.smoke.worker.launching import _outlived

                class Long(subprocess.Popen):
                    def poll(self):
                        time.sleep(1)  # in which the other one ends
                        return super().poll()

                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                print(_outlived({0: subprocess.Popen(["sleep", "0.5"]), 1: Long("true")}))
                """
            ),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "0\n"


def test_a_launcher_that_was_stopped_goes_on() -> None:
    """Beyond its time Python's sigtimedwait gives what nobody filled in then, which was taken for a signal to end: after any pause of 1 s its ranks were ended."""
    text = "import subprocess; from torchtune_sys.smoke.worker.launching import _outlived; print('here', flush=True); print(_outlived({0: subprocess.Popen(['sleep', '2.5'])}))"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        child.send_signal(signal.SIGCONT)
        assert child.communicate(timeout=30)[0] == "0\n"
        assert child.returncode == 0


_SAYS = """
import os, socket, time
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
s = socket.socket(socket.AF_UNIX)
s.connect("\\0" + os.environ["S"])
s.sendall(b'{"event": "failed"}\\n')
"""


@pytest.mark.parametrize("strangers", [0, 3])
def test_the_last_words_of_a_child_that_has_ended_are_read(strangers: int, tmp_path: Path) -> None:
    """Whoever else connected before it is turned away, and costs nobody's words: any user of the host may connect."""
    events: list[Event] = []
    env = {**os.environ, "GO": str(tmp_path / "go")}
    with RankProcesses((sys.executable, "-c", _SAYS), env, "/", "S") as ranks, contextlib.ExitStack() as stack:
        for _ in range(strangers):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
            stranger.connect("\0" + ranks._name)
            stranger.sendall(b'{"event": "lie"}\n')
        (tmp_path / "go").touch()
        until_s = time.monotonic() + 60
        while ranks.state(ranks.launcher) != "Z" and time.monotonic() < until_s:
            time.sleep(0.01)
        while not any(isinstance(event, Exited) for event in events):
            events += ranks.wait(1)
    assert [event.fields for event in events if isinstance(event, RankMessage)] == [{"event": "failed"}], (events, ranks.output)
