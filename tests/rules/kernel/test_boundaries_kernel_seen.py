"""What counts in the kernel's log: kinds of messages, the window, how many are too many, and what other facts overrule (kernel_seen)."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from kernel_hosts import DAY, DENIED, NOW, changed, event, log, with_log

from torchtune_sys.formats.kernel_message_table import ROWS
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable
from torchtune_sys.rules.kernel import common as kernel_seen


@pytest.mark.parametrize(
    ("last", "days", "facts", "inside"),
    [
        (NOW - 7 * DAY, 7, {}, True),
        (NOW - 7 * DAY - 1, 7, {}, False),
        (NOW - DAY, 1, {}, True),
        (NOW - DAY - 1, 1, {}, False),
        (None, 1, {}, True),
        (1.0, 1, {"now_s": DENIED}, True),
        (1.7e9, 1, {}, True),  # a line of a calendar's clock in a log since boot: nobody knows how old it is
        (1.0, 1, {"now_s": 1.7e9}, True),
        (1.7e9 - 2 * DAY, 1, {"now_s": 1.7e9}, False),
        (1.0, 7, {"source": "report"}, True),  # somebody chose what is in it
        (1.0, 30, {"source": "report"}, True),
        (1.0, 6, {"source": "report"}, False),  # unless it counts by the day
    ],
)
def test_the_window(last: float | None, days: float, facts: dict[str, Any], inside: bool) -> None:
    assert kernel_seen.in_window(log(**facts), event("crash", at=last), {"days": days}) is inside


def test_clocks_are_told_by_their_size() -> None:
    assert kernel_seen.same_clock(1.0, 60e6) and kernel_seen.same_clock(60e6, 1.0) and kernel_seen.same_clock(1.6e9, 1.7e9)
    assert not kernel_seen.same_clock(1.0, 60e6 + 1) and not kernel_seen.same_clock(60e6 + 1, 60e6)


OF_OTHER_GPUS = {kind for _, kind, shape in ROWS if shape.startswith(("amdgpu", "kfd", "xe ", "i915 "))}


@pytest.mark.parametrize(
    ("kind", "speaks"),
    [
        *((kind, True) for kind in ("xid", "sxid", "api-mismatch", "iommu-fault", "module-refused", "gpu-lost", "gsp-firmware")),
        *((kind, False) for kind in ("driver-load", "boot", "oom-kill", "mlx5-fault", *sorted(OF_OTHER_GPUS))),
    ],
)
def test_a_log_that_speaks_of_a_gpu_is_judged_on_any_host(healthy: Snapshot, kind: str, speaks: bool) -> None:
    bare = changed(changed(healthy, "gpu", devices=()), "driver", nvidia_devices=())
    seen = with_log(bare, event("oom-kill"), event(kind))
    if speaks:
        kernel_seen.nvidia_log(seen)
    else:
        with pytest.raises(NotApplicable):
            kernel_seen.nvidia_log(seen)
    for unread in (with_log(bare, events=DENIED), msgspec.structs.replace(bare, kernel=DENIED)):
        with pytest.raises(NotApplicable):
            kernel_seen.nvidia_log(unread)
    kernel_seen.nvidia_log(with_log(healthy, events=DENIED))  # the machine has GPUs
    with pytest.raises(NotApplicable):  # no driver either: somebody wrote it into the log, or it is another machine's
        kernel_seen.nvidia_log(changed(seen, "driver", module_loaded=False))


# --- times and counts in words


def test_days_are_those_of_the_calendar() -> None:
    epoch = datetime.date(1970, 1, 1)
    for day in range(160_000):
        date = epoch + datetime.timedelta(days=day)
        assert kernel_seen._civil(day) == (date.year, date.month, date.day)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (299, "299 s"),
        (300, "5 min"),
        (6000, "100 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (36_000_000, "10000 h"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert kernel_seen.when(log(booted=DENIED), [event("crash", at=seconds)]) == f", {text} after boot"


@pytest.mark.parametrize("booted", [1.7e9, 1.6e9 + 59, 1.75e9 + 3599])
@pytest.mark.parametrize("time", [0.0, 59.0, 3600.0, 86_399.0, 1e6])
def test_times_in_utc_where_the_boot_time_is_known(booted: float, time: float) -> None:
    clock = datetime.datetime.fromtimestamp(booted + time, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    assert kernel_seen.when(log(booted=booted), [event("crash", at=time)]) == f", {clock}"


@pytest.mark.parametrize("booted", [0.0, DENIED])
def test_times_by_the_logs_own_clock(booted: Any) -> None:
    def told(time: float) -> str:
        return kernel_seen.when(log(booted=booted), [event("crash", at=time)])

    assert told(1.7e9) == ", 2023-11-14 22:13"  # of a zone that the log does not tell
    for month, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1):
        stamp = datetime.datetime(1972, month, 8, 17, 59, tzinfo=datetime.timezone.utc).timestamp()
        assert told(stamp) == f", {name} 8 17:59"  # syslog's stamps have no year
    assert told(1e300) == told(1e11)  # what a broken clock says


def test_how_often_and_from_when_to_when() -> None:
    def told(*events: KernelEvent) -> str:
        return kernel_seen.when(log(booted=0.0), list(events))

    assert told(event("crash", at=None)) == ""
    assert told(event("crash", at=None, count=2)) == ", 2 times"
    assert told(event("crash", at=None), event("crash", at=None, count=1999)) == ", 2,000 times"
    assert told(event("crash", at=5, last_s=9, count=3)) == ", 3 times from 5 s after boot to 9 s after boot"
    assert told(event("crash", at=8), event("crash", at=2)) == ", 2 times from 2 s after boot to 8 s after boot"
    assert told(event("crash", at=5, last_s=None)) == ", 5 s after boot"


@pytest.mark.parametrize(
    ("words", "width", "text"),
    [("abcde", 5, "abcde"), ("abcdef", 5, "abcd…"), ("abc def", 5, "abc…"), (" bcdef", 5, " bcd…"), ("", 5, "")],
)
def test_long_messages_are_cut(words: str, width: int, text: str) -> None:
    assert kernel_seen.shorter(words, width) == text


def test_messages_are_cut_at_120_characters() -> None:
    assert kernel_seen.shorter("x" * 120) == "x" * 120
    assert len(kernel_seen.shorter("x" * 121)) == 120
