"""How many nodes may be called bad: the limit holds whoever asks at once, and a state that cannot be kept drains nobody."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
