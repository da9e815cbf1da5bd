"""What the driver makes of what ranks send, and of what becomes of their processes. The processes alone are made up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from torchtune_sys.host.children.rank_processes import Disconnected, Event, Exited, RankMessage
from torchtune_sys.model.rule import Verdict
from torchtune_sys.smoke import watch as watching
from torchtune_sys.smoke.watch import RunFailure, Watch

LAUNCHER = 1


class Processes:
    """A launcher and its ranks, which send the events of one batch after the other."""

    failure: object = None
    launcher = LAUNCHER

    def __init__(self, *batches: list[Event], states: dict[int, str] | None = None) -> None:
        self.batches = list(batches)
        self.states = states or {}
        self.waited: dict[int, float] = {}

    def wait(self, _timeout_s: float) -> list[Event]:
        return self.batches.pop(0)

    def state(self, pid: int) -> str:
        return self.states.get(pid, "S")

    def wait_for_cpus(self, pid: int) -> tuple[float, str]:
        return self.waited.get(pid, 0.0), "niceness 0"

    def stacks(self, pids: Iterable[int]) -> dict[int, str]:
        return dict.fromkeys(pids, "")


def said(number: int, event: str, **fields: Any) -> RankMessage:
    return RankMessage(10 + number, {"event": event, **fields})


def joined(rank: int) -> list[Event]:
    return [
        said(rank, "hello", role="rank", rank=rank, host="n1"),
        said(rank, "about", device="cpu", stages=["import", "ddp", "fsdp"]),
    ]


def begun(rank: int, stage: str, deadline_s: float = 60.0) -> RankMessage:
    return said(rank, "begin", stage=stage, deadline_s=deadline_s)


def watched(processes: Processes, ranks: int = 2) -> tuple[Watch, RunFailure | None]:
    found = Watch(processes, ranks, time.monotonic() + 1e6, lambda *_: None)  # type: ignore[arg-type]
    return found, found.run()


def in_stages(*stages: str, states: dict[int, str] | None = None) -> Watch:
    """Two ranks that are in these stages, and the driver still waits."""
    events = [event for rank, stage in enumerate(stages) for event in (*joined(rank), begun(rank, stage))]
    found = Watch(Processes(states=states), len(stages), time.monotonic() + 1e6, lambda *_: None)  # type: ignore[arg-type]
    for event in events:
        assert isinstance(event, RankMessage)
        found._receive(event)
    return found


def test_ranks_that_say_good_bye_are_well() -> None:
    ended = [said(rank, "end", stage="ddp", verdict="pass", seconds=1.5) for rank in range(2)]
    figure = said(0, "measure", stage="ddp", name="bandwidth", value=2.0, unit="GB/s")
    byes = [said(rank, "bye") for rank in range(2)]
    everything = [*joined(0), *joined(1), begun(0, "ddp"), begun(1, "ddp"), figure, *ended, *byes, Exited(0)]
    found, failure = watched(Processes(everything))
    assert failure is None
    assert found.plan == ("import", "ddp", "fsdp")
    assert {rank: end.verdict for rank, end in found.ends["ddp"].items()} == {0: Verdict.PASS, 1: Verdict.PASS}
    assert [figure.value for figure in found.figures["ddp"][0]] == [2.0]


def test_what_no_rank_of_ours_says_is_passed_over() -> None:
    odd = [said(0, "end", stage="ddp", verdict="marvellous"), said(0, "begin", stage="x", deadline_s="soon"), said(7, "bye")]
    _found, failure = watched(Processes([*joined(0), *joined(1), *odd, said(0, "bye"), said(1, "bye"), Exited(0)]))
    assert failure is None


def test_a_rank_that_dies_is_named_with_its_status() -> None:
    status = RankMessage(LAUNCHER, {"event": "exited", "pid": 11, "status": -9})
    last = [begun(0, "ddp"), begun(1, "ddp"), Disconnected(11), Disconnected(10), status, Exited(1)]
    _found, failure = watched(Processes([*joined(0), *joined(1), *last]))
    assert failure is not None
    assert (failure.kind, failure.stage, failure.ranks, failure.status) == ("died", "ddp", (1,), -9)


@pytest.mark.parametrize(
    ("events", "kind", "stage"),
    [
        ([Exited(1)], "not-started", "import"),
        ([*joined(0), begun(0, "ddp"), Exited(0)], "not-started", "ddp"),
        ([*joined(0), *joined(1), begun(0, "ddp"), Exited(-9)], "launcher-killed", "ddp"),
        (
            [RankMessage(LAUNCHER, {"event": "end", "stage": "rendezvous", "verdict": "fail"}), Exited(1)],
            "not-started",
            "rendezvous",
        ),
    ],
)
def test_the_end_of_the_launcher_says_what_became_of_the_ranks(events: list[Event], kind: str, stage: str) -> None:
    _found, failure = watched(Processes(events))
    assert failure is not None and (failure.kind, failure.stage) == (kind, stage)


def test_an_interpreter_that_does_not_start_is_told_before_anything_else() -> None:
    processes = Processes()
    processes.failure = "no such file"
    assert watched(processes)[1] == RunFailure(kind="not-started", stage="import")


@pytest.mark.parametrize(
    ("states", "kind", "ranks"),
    [({}, "hung", (1,)), ({11: "D"}, "blocked", (1,)), ({10: "D"}, "blocked", (0,))],
)
def test_the_rank_that_holds_up_the_others_is_named(states: dict[int, str], kind: str, ranks: tuple[int, ...]) -> None:
    """Rank 0 waits in the later stage: what it waits for is in the earlier one, unless the kernel holds it itself."""
    found = in_stages("fsdp", "ddp", states=states)
    assert found._judge(time.monotonic() + 30) is None
    failure = found._judge(time.monotonic() + 1000)
    assert failure is not None
    assert (failure.kind, failure.ranks) == (kind, ranks)
    assert len(failure.places) == 2


def test_where_all_are_late_in_one_stage_none_is_accused() -> None:
    failure = in_stages("ddp", "ddp")._judge(time.monotonic() + 1000)
    assert failure is not None and (failure.kind, failure.stage, failure.ranks) == ("hung", "ddp", ())


def test_a_stopped_rank_is_named_once_it_stays_so() -> None:
    found = in_stages("ddp", "ddp", states={10: "T"})
    now_s = time.monotonic()
    assert found._judge(now_s) is None
    failure = found._judge(now_s + watching._STOPPED_S + 1)
    assert failure is not None and (failure.kind, failure.ranks) == ("stopped", (0,))


def test_a_rank_that_goes_on_in_time_was_never_stopped() -> None:
    found = in_stages("ddp", "ddp", states={10: "T"})
    now_s = time.monotonic()
    assert found._judge(now_s) is None
    found.processes.states[10] = "S"  # type: ignore[attr-defined]
    assert found._judge(now_s + 1) is None
    found.processes.states[10] = "T"  # type: ignore[attr-defined]
    assert found._judge(now_s + watching._STOPPED_S + 1) is None


def test_a_stopped_launcher_is_named_once_it_stays_so() -> None:
    found = in_stages("ddp", "ddp", states={LAUNCHER: "T"})
    now_s = time.monotonic()
    assert found._judge(now_s) is None
    failure = found._judge(now_s + watching._STOPPED_S + 1)
    assert failure is not None and failure.kind == "launcher-stopped"


def test_at_the_end_of_the_time_everybody_who_is_left_is_named() -> None:
    failure = in_stages("ddp", "ddp")._judge(time.monotonic() + 2e6)
    assert failure is not None and (failure.kind, failure.ranks) == ("out-of-time", (0, 1))


def test_a_rank_whose_process_is_gone_has_died() -> None:
    found = in_stages("ddp", "ddp", states={11: "Z"})
    assert found._judge(time.monotonic()) is None
    failure = found._judge(time.monotonic() + watching._LAST_WORDS_S + 1)
    assert failure is not None and (failure.kind, failure.ranks) == ("died", (1,))


def test_stages_that_all_ranks_have_left_are_behind() -> None:
    assert in_stages("fsdp", "ddp").left_behind() == ("import",)
    assert in_stages("fsdp", "fsdp").left_behind() == ("import", "ddp")


def test_ranks_that_do_not_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_PARTING_S", -1.0)
    both = [*joined(0), *joined(1), begun(0, "ddp"), begun(1, "ddp"), said(0, "bye"), said(1, "bye")]
    _found, failure = watched(Processes(both, states={10: "Z"}))
    assert failure is not None and (failure.kind, failure.ranks) == ("not-ended", (1,))


def test_a_rank_that_gets_no_cpu_does_not_hang() -> None:
    """It could run all the time, and others did; a rank beside it that waits for a word of somebody is another thing."""
    found = in_stages("fsdp", "ddp")
    found.processes.waited[11] = 70.0  # type: ignore[attr-defined]
    found.ranks[11].begun_s -= 90.0
    failure = found._judge(time.monotonic() + 1000)
    assert failure is not None and (failure.kind, failure.ranks) == ("starved", (1,)) and "70 of 90 s" in failure.seen
    found.processes.waited[11] = 30.0  # type: ignore[attr-defined]
    failure = found._judge(time.monotonic() + 1000)
    assert failure is not None and failure.kind == "hung"
