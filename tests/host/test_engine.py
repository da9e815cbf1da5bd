"""Reading a host once: slow probes, probes that raise, a deadline that holds."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from conftest import HOSTS
from torchtune_sys import engine, probes
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model.actions import Advice, Sysctl
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Evidence, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.target import Exactly
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, need
from torchtune_sys.rules import CATALOGUE


def healthy() -> RecordedHost:
    return RecordedHost(load_recording(str(HOSTS / "healthy.json")), "healthy")


def test_every_family_has_a_probe() -> None:
    assert set(probes.PROBES) == set(FAMILIES)


def test_a_probe_that_raises_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_host: Any, _intent: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(probes.PROBES, "cpu", broken)
    seen = engine.snapshot(healthy(), Workload(), timeout_s=20)
    assert isinstance(seen.cpu, Missing) and seen.cpu.why is Why.CRASHED and "a bug" in seen.cpu.detail
    assert not isinstance(seen.session, Missing)


def test_a_probe_without_memory_needs_none_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_arguments: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(probes.PROBES, "cpu", starved)
    monkeypatch.setattr(engine, "_where", starved)
    seen = engine.snapshot(healthy(), Workload(), timeout_s=20)
    assert isinstance(seen.cpu, Missing) and seen.cpu.why is Why.FAILED and "ulimit -v" in seen.cpu.remedy


def test_a_thread_that_finds_no_memory_to_begin_with_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """threading's start waits until the new thread says that it runs, which it never does."""
    own = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"  # from Python 3.13 on
    for name in ("_thread.start_new_thread", f"threading.{own}"):
        monkeypatch.setattr(name, lambda *_arguments, **_options: 0)
    waits = os.fork()
    if not waits:  # a process of its own, which can be ended where it waits for ever
        engine.snapshot(healthy(), Workload(), timeout_s=0.5)
        os._exit(0)
    until = time.monotonic() + 20
    while os.waitpid(waits, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(waits, signal.SIGKILL)
            os.waitpid(waits, 0)
            pytest.fail("still waits")
        time.sleep(0.05)


def test_a_probe_that_may_open_no_file_needs_none_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_arguments: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setitem(probes.PROBES, "cpu", starved)
    monkeypatch.setattr(engine, "_where", starved)
    seen = engine.snapshot(healthy(), Workload(), timeout_s=20)
    assert isinstance(seen.cpu, Missing) and seen.cpu.why is Why.FAILED and "ulimit -n" in seen.cpu.remedy


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """What hangs in a test waits for this: the threads that are abandoned then end with the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_probe_that_hangs_costs_the_deadline_only(monkeypatch: pytest.MonkeyPatch, end: threading.Event) -> None:
    monkeypatch.setitem(probes.PROBES, "gpu", lambda _host, _intent: end.wait(60))
    started = time.monotonic()
    seen = engine.snapshot(healthy(), Workload(), timeout_s=2.0)
    assert time.monotonic() - started < 30
    assert isinstance(seen.gpu, Missing) and seen.gpu.why is Why.TIMEOUT
    assert not isinstance(seen.session, Missing)
    results = engine.judge(seen, CATALOGUE)
    assert not [result for result in results if result.verdict is Verdict.CRASHED]


def test_what_only_reads_begins_once_the_look_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then rules are imported, and a thread that reads would take the interpreter's lock from that at each system call."""
    begun: list[str] = []
    for family in probes.PROBES:
        monkeypatch.setitem(probes.PROBES, family, lambda _host, _intent, family=family: begun.append(family))
    look = engine.ProbeRun(healthy(), Workload())
    time.sleep(0.2)
    assert sorted(begun) == sorted(probes.WAIT_FOR_CHILDREN)
    look.end(20)
    assert sorted(begun) == sorted(probes.PROBES)


def test_no_time_at_all_is_unknown_not_healthy(monkeypatch: pytest.MonkeyPatch, end: threading.Event) -> None:
    for family in probes.PROBES:
        monkeypatch.setitem(probes.PROBES, family, lambda _host, _intent: end.wait(60))
    seen = engine.snapshot(healthy(), Workload(), timeout_s=0.0)
    late = [name for name in FAMILIES if isinstance(found := getattr(seen, name), Missing) and found.why is Why.TIMEOUT]
    assert "cpu" in late and "memory" in late


def test_progress_names_who_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[set[str]] = []

    def slow(_host: Any, _workload: Any) -> None:
        limit = time.monotonic() + 120
        while {"gpu"} not in told and time.monotonic() < limit:
            time.sleep(0.01)

    monkeypatch.setitem(probes.PROBES, "gpu", slow)
    engine.snapshot(healthy(), Workload(), timeout_s=150, progress=told.append)
    assert {"gpu"} in told


def _rule(judge: Any) -> Any:
    return rule(id="x-y", title="x", severity=Severity.ERROR)(judge)


@pytest.fixture(scope="module")
def seen() -> Snapshot:
    return engine.snapshot(healthy(), Workload(), timeout_s=20)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ([], Verdict.PASS),
        (["fail"], Verdict.FAIL),
        (["pass", "fail"], Verdict.FAIL),
        (["pass", "unsure"], Verdict.UNKNOWN),
        (["fail", "unsure"], Verdict.FAIL),
        (["fail", "need"], Verdict.FAIL),
        (["pass", "need"], Verdict.UNKNOWN),
        (["need"], Verdict.UNKNOWN),
        (["crashed"], Verdict.CRASHED),
        (["na"], Verdict.NA),
        (["fail", "raise"], Verdict.CRASHED),
    ],
)
def test_verdicts(seen: Snapshot, said: list[str], wanted: Verdict) -> None:
    def judge(_s: Snapshot, _p: Any) -> Any:
        for word in said:
            if word in ("fail", "pass"):
                yield Evidence(subject="x", seen="y", verdict=Verdict(word))
            elif word == "unsure":
                yield unsure("x", Missing(Why.DENIED, "/x"))
            elif word == "na":
                raise NotApplicable("nothing")
            elif word == "raise":
                raise RecursionError
            else:
                need(Missing(Why.CRASHED if word == "crashed" else Why.DENIED, "/x"))

    (result,) = engine.judge(seen, [_rule(judge)])
    assert result.verdict is wanted
    assert (result.why_unknown is not None) == (
        bool({"unsure", "need", "crashed", "raise"} & set(said)) and said != ["fail", "unsure"]
    )


@pytest.mark.parametrize("ends_unknown", [False, True])
def test_whatever_a_host_says_is_told_within_bounds(seen: Snapshot, ends_unknown: bool) -> None:
    """Other names, notes and what would find a fact out stood whole in a report: 30 MB of a snapshot of 30 MB."""
    much = "m" * 10**6
    hidden = Missing(Why.DENIED, much, much, much)
    fix = (Advice(text=much), Sysctl(key="vm.swappiness", target=Exactly(much)))

    def judge(_s: Snapshot, _p: Any) -> Any:
        yield Evidence(
            subject=much, seen=much, wanted=much, source=much, why=hidden, fix=fix * 100, about=(much,) * 100, cause=much
        )
        if ends_unknown:
            raise Unknown(hidden)
        raise NotApplicable(much)

    result = engine.judge(seen, [_rule(judge)])[0]
    size = len(msgspec.json.encode((result.evidence, result.why_unknown, result.note)))
    assert size < 400_000
