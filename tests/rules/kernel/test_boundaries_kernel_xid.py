"""Which of a GPU's messages is the cause, what followed from it, when it is over, and who else explains it (kernel_xid)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from xid_hosts import DENIED, ONE, TWO, WEEK, T, event, with_log, xid

from torchtune_sys.knowledge.xid import xid as catalogue
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules.kernel import common as kernel_seen
from torchtune_sys.rules.kernel import xid as kernel_xid


def troubles(seen: Snapshot, *events: KernelEvent) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """GPU, kind, how many bursts, and what followed."""
    found = kernel_xid.incidents(with_log(seen, *events), WEEK)
    return [(trouble.address, trouble.judged, len(trouble.events), trouble.after) for trouble in found]


# --- causes and consequences


def test_the_same_failure_in_other_words_is_no_second_one(healthy: Snapshot) -> None:
    """The driver prints the Xid, and below it "GPU 0000:18:00.0: GPU has fallen off the bus."."""
    lost = event("gpu-lost", text="GPU has fallen off the bus.")
    assert troubles(healthy, xid(79), lost) == troubles(healthy, lost, xid(79)) == [(ONE, "lost", 1, ())]
    assert troubles(healthy, lost, xid(79, T + 9000)) == [(ONE, "lost", 2, ())]


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (79, "", "lost"),
        (95, "", "memory"),
        (119, "", "gsp"),
        (74, "", "nvlink"),
        (74, "Nonfatal", "nvlink"),  # only NVLink 5 tells recovered errors by the same numbers
        (136, "Non-fatal", "nvlink"),
        *((code, "NETIR_LINK_EVT Fatal XC0", "nvlink") for code in range(144, 151)),
        *((code, word, None) for code in range(144, 151) for word in ("Nonfatal", "Non-fatal")),
        (143, "Nonfatal", "gpu"),
        (151, "Nonfatal", "gpu"),
        (62, "", "gpu"),
        (122, "", "support"),
        (13, "", "program"),
        (45, "", "consequence"),
        (154, "", None),
        (154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", None),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "action"),
        (63, "", None),
    ],
)
def test_what_an_xid_is_taken_for(healthy: Snapshot, code: int, text: str, kind: str | None) -> None:
    alone = troubles(healthy, xid(code, text=f"Xid (PCI:{ONE}): {code}, {text}"))
    assert alone == ([] if kind is None else [(ONE, kind, 1, ())])
    beside = troubles(healthy, xid(code, text=f"Xid (PCI:{ONE}): {code}, {text}"), xid(48, at=T + 9000))  # hours later
    assert beside[-1] == (ONE, "memory", 1, ())


def test_messages_without_an_xid(healthy: Snapshot) -> None:
    assert troubles(healthy, event("gpu-lost")) == [(ONE, "lost", 1, ())]
    assert troubles(healthy, event("gpu-init")) == [(ONE, "init", 1, ())]
    assert troubles(healthy, event("gpu-bar"), event("sxid", code=79)) == []


def test_the_same_failure_in_other_words_is_one_trouble(healthy: Snapshot) -> None:
    assert troubles(healthy, xid(79), event("gpu-lost"), xid(79, T + 9000)) == [(ONE, "lost", 2, ())]
    assert troubles(healthy, event("gpu-lost"), xid(79)) == [(ONE, "lost", 1, ())]
    assert troubles(healthy, xid(31), xid(13)) == [(ONE, "program", 1, ("Xid 13",))]
    assert troubles(healthy, event("gpu-init"), event("gpu-init")) == [(ONE, "init", 2, ())]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([xid(79), xid(45), xid(119)], [("lost", ("Xid 45", "Xid 119"))]),
        ([xid(79), xid(45), xid(45)], [("lost", ("Xid 45",))]),
        ([xid(79), event("gpu-init")], [("lost", ("failed initialisation",))]),
        ([event("gpu-lost"), xid(31)], [("lost", ("Xid 31",))]),
        ([xid(31), xid(79)], [("lost", ("Xid 31",))]),  # the program failed because the GPU did
        ([xid(31), xid(48), xid(79)], [("lost", ("Xid 31", "Xid 48"))]),
        ([xid(48), xid(31), xid(79), xid(43)], [("lost", ("Xid 48", "Xid 31", "Xid 43"))]),
        ([xid(62), xid(109)], [("gpu", ("Xid 109",))]),  # of two of a kind the first is the cause
        ([xid(109), xid(62)], [("gpu", ("Xid 62",))]),
        ([xid(48), xid(154), xid(94)], [("memory", ("Xid 94",))]),  # what the driver asks for is no consequence
        ([xid(154), xid(48)], [("memory", ())]),
        ([xid(63), xid(48)], [("memory", ())]),
        ([xid(45), xid(45)], [("consequence", ())]),
        ([xid(45), xid(154), xid(31)], [("program", ("Xid 45",))]),
        ([event("gpu-init"), xid(45)], [("init", ()), ("consequence", ())]),  # a failed start ends no program
        ([event("gpu-init"), xid(31)], [("program", ("failed initialisation",))]),
        ([], []),
    ],
)
def test_the_deepest_failure_is_the_cause(healthy: Snapshot, events: list[KernelEvent], expected: list[Any]) -> None:
    assert [(kind, after) for _, kind, _, after in troubles(healthy, *events)] == expected


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ((T, T), (T + 600, T + 600), True),
        ((T, T), (T + 601, T + 601), False),
        ((T, T + 1000), (T + 1600, T + 1600), True),  # within ten minutes of the burst's end
        ((T, T + 1000), (T + 1601, T + 1601), False),
        ((T, T), (T - 600, T - 600), True),
        ((T, T), (T - 601, T - 601), False),
        ((T, None), (T + 9000, T + 9000), True),  # nobody knows
        ((None, T), (T + 9000, T + 9000), True),
        ((None, None), (T, T), True),
        ((T, T), (None, None), True),
        ((T, T), (1.7e9, 1.7e9), True),  # a calendar's clock beside one since boot
    ],
)
def test_what_happens_within_ten_minutes_belongs_together(healthy: Snapshot, one: Any, other: Any, together: bool) -> None:
    cause = msgspec.structs.replace(xid(62), first_s=one[0], last_s=one[1])
    followed = msgspec.structs.replace(xid(31), first_s=other[0], last_s=other[1])
    for events in ((cause, followed), (followed, cause)):
        kinds = [kind for _, kind, _, _ in troubles(healthy, *events)]
        assert sorted(kinds) == (["gpu"] if together else ["gpu", "program"])


@pytest.mark.parametrize(
    ("code", "dropped"), [(74, True), (31, True), (45, True), (62, False), (48, False), (119, False), (122, False)]
)
def test_links_and_programs_fail_with_a_gpu_that_is_lost_elsewhere(healthy: Snapshot, code: int, dropped: bool) -> None:
    kind = catalogue(code).judged
    expected = [(ONE, "lost", 1, ()), *([] if dropped else [(TWO, kind, 1, ())])]
    for lost in (xid(79), event("gpu-lost")):
        assert troubles(healthy, lost, xid(code, gpu=TWO)) == expected
        assert troubles(healthy, lost, xid(code, T + 9000, TWO)) == [(ONE, "lost", 1, ()), (TWO, kind, 1, ())]
        assert troubles(healthy, lost, xid(code, gpu=TWO), xid(95, gpu=TWO))[-1][1] == "memory"
    assert troubles(healthy, xid(62), xid(code, gpu=TWO))[-1] == (TWO, kind, 1, ())  # that one is still there


def test_nothing_is_asked_for_in_a_log_that_was_not_read(healthy: Snapshot) -> None:
    assert kernel_xid.wanted_action(with_log(healthy, events=DENIED), ONE) == ""
    assert kernel_xid.wanted_action(msgspec.structs.replace(healthy, kernel=DENIED), ONE) == ""


@pytest.mark.parametrize(
    ("start", "at", "ended"),
    [
        (event("boot", "", T + 60.5), T, True),
        (event("boot", "", T + 60), T, False),
        (event("driver-load", "", T + 61), T, True),
        (event("gpu-bar", "", T + 61), T, False),
        (event("boot", "", None), T, False),
        (event("boot", "", T + 61), None, False),
        (event("boot", "", 1.7e9), T, False),  # of another clock
    ],
)
def test_an_earlier_start_of_the_driver(healthy: Snapshot, start: KernelEvent, at: float | None, ended: bool) -> None:
    told = event("gpu-init", at=at)
    found = kernel_seen.since_last_start(with_log(healthy, told, start, event("boot", "", T - 9000)), WEEK, "gpu-init")
    assert found == (() if ended else (told,))
