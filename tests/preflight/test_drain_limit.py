"""How many nodes may be called bad: the limit holds whoever asks at once, and a state that cannot be kept drains nobody."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torchtune_sys.host import slots
from torchtune_sys.preflight.drain_limit import DrainLimit


def limit(folder: Path, nodes: int = 2, window_s: float = 600.0, domain: str = "") -> DrainLimit:
    return DrainLimit(folder=str(folder), nodes=nodes, window_s=window_s, domain=domain)


def test_at_most_so_many_of_those_that_ask_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda n: limit(tmp_path).hold(f"n{n}"), range(8)))
    refused = [cause for cause in answers if cause is not None]
    assert len(refused) == 6
    assert "suspect the checker or the image" in refused[0].seen
    assert not [name for name in os.listdir(tmp_path / "all") if name.startswith(".")]


def test_who_holds_a_place_keeps_it(tmp_path: Path) -> None:
    assert limit(tmp_path, 1).hold("n1") is None
    assert limit(tmp_path, 1).hold("n1") is None
    assert limit(tmp_path, 1).hold("n2") is not None


def test_a_place_is_free_once_its_time_is_over(tmp_path: Path) -> None:
    assert limit(tmp_path, 1).hold("n1") is None
    os.utime(tmp_path / "all/slot-0", (1, 1))
    assert limit(tmp_path, 1).hold("n2") is None
    assert limit(tmp_path, 1).hold("n1") is not None


def test_a_clock_that_jumped_holds_no_place_for_ever(tmp_path: Path) -> None:
    assert limit(tmp_path, 1).hold("n1") is None
    later = os.stat(tmp_path / "all/slot-0").st_mtime + 86400
    os.utime(tmp_path / "all/slot-0", (later, later))
    assert limit(tmp_path, 1).hold("n2") is None


def test_each_failure_domain_counts_for_itself(tmp_path: Path) -> None:
    assert limit(tmp_path, 1, domain="rack/1").hold("n1") is None
    assert limit(tmp_path, 1, domain="rack/2").hold("n2") is None
    assert sorted(os.listdir(tmp_path)) == ["rack_1", "rack_2"]


def test_a_state_that_cannot_be_kept_calls_nobody_bad(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cause = limit(tmp_path / "file").hold("n1")
    assert cause is not None
    assert "could not be read" in cause.seen


def test_a_place_that_another_took_over_first_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two find a place over at once: the slower one must not take away what the other has just taken."""
    assert limit(tmp_path, 1).hold("n1") is None
    os.utime(tmp_path / "all/slot-0", (1, 1))
    others: list[object] = []
    holder = slots._holder

    def slow(*given: Any) -> str | None:
        found = holder(*given)
        if found is None and not others:
            others.append("asks now")
            others[0] = limit(tmp_path, 1).hold("n2")
        return found

    monkeypatch.setattr(slots, "_holder", slow)
    assert limit(tmp_path, 1).hold("n3") is not None
    assert others == [None] and (tmp_path / "all/slot-0.1").read_text() == "n2"
    assert os.listdir(tmp_path / "all") == ["slot-0.1"]


def test_of_three_that_find_a_place_over_in_one_instant_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stops before each thing that it does in the folder, and the others go on: whatever the order, one holds the place."""
    chance = random.Random(5)
    turns = threading.Condition()
    for trial in range(60):
        folder = tmp_path / str(trial)
        assert limit(folder, 1).hold("n0") is None
        os.utime(folder / "all/slot-0", (1, 1))
        order = [chance.randrange(3) for _ in range(60)]
        waiting: set[int] = set()
        own = threading.local()

        def at_a_time(call: Any, order: list[int] = order, waiting: set[int] = waiting, own: threading.local = own) -> Any:
            def stopped(*given: Any, **named: Any) -> Any:
                if getattr(own, "number", None) is not None:
                    with turns:
                        while order and order[0] in waiting and order[0] != own.number:
                            turns.wait(1)
                        if order:
                            order.pop(0)
                        turns.notify_all()
                return call(*given, **named)

            return stopped

        def asks(number: int, folder: Path = folder, waiting: set[int] = waiting, own: threading.local = own) -> bool:
            own.number = number
            try:
                return limit(folder, 1).hold(f"n{number + 1}") is None
            finally:
                with turns:
                    waiting.discard(number)
                    turns.notify_all()

        with monkeypatch.context() as patched, ThreadPoolExecutor(max_workers=3) as pool:
            for name in ("link", "rename", "unlink", "listdir"):
                patched.setattr(slots.os, name, at_a_time(getattr(os, name)))
            patched.setattr(slots, "_holder", at_a_time(slots._holder))
            waiting |= {0, 1, 2}
            got = list(pool.map(asks, range(3)))
        left = os.listdir(folder / "all")
        assert got.count(True) == 1 and len(left) == 1, (trial, got, left)
        assert (folder / "all" / left[0]).read_text() == f"n{got.index(True) + 1}"


def test_never_more_hold_a_place_than_there_are_though_some_are_killed(tmp_path: Path) -> None:
    asks = "import sys; from torchtune_sys.host import slots\nwhile True: slots.take(sys.argv[1], sys.argv[2], 3, 600)"
    chance, folder = random.Random(1), tmp_path / "all"
    killed = 0
    for _ in range(3):
        asking = [
            subprocess.Popen([sys.executable, "-c", asks, folder, f"n{number}"], stderr=subprocess.DEVNULL)
            for number in range(10)
        ]
        try:
            until = time.monotonic() + 60
            while len([*folder.glob("slot-*")]) < 3 and time.monotonic() < until:
                time.sleep(0.05)
            for process in asking:
                time.sleep(chance.random() / 20)
                process.send_signal(chance.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)))
                killed += 1
        finally:
            for process in asking:
                process.kill()
                process.wait()
        held = sorted(path.name for path in folder.glob("slot-*"))
        names = [(folder / name).read_text() for name in held]
        assert (
            held == ["slot-0", "slot-1", "slot-2"]
            and len(set(names)) == 3
            and set(names) <= {f"n{number}" for number in range(10)}
        )
        assert slots.take(str(folder), "n10", 3, 600) == (False, tuple(names))
    assert killed == 30
