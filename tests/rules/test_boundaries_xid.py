"""Which of a GPU's messages is the cause, what followed from it, when it is over, and who else explains it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.knowledge.xid import xid as catalogue
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import kernel, kernel_seen, kernel_xid

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in kernel.RULES}
WEEK = {"days": 7}
DAY = 86_400.0
NOW = 30 * DAY
T = NOW - 20_000
ONE, TWO = "0000:61:00.0", "0000:9d:00.0"
STRANGE = "0000:ff:00.0"
"""No GPU that the driver serves."""
PASS, FAIL, NA = Verdict.PASS, Verdict.FAIL, Verdict.NA


def event(kind: str, subject: str = ONE, at: float | None = T, **more: Any) -> KernelEvent:
    return KernelEvent(kind=kind, subject=subject, **{"text": f"{kind} of {subject}", "first_s": at, "last_s": at, **more})


def xid(code: int, at: float | None = T, gpu: str = ONE, **more: Any) -> KernelEvent:
    return event("xid", gpu, at, code=code, **{"text": f"Xid (PCI:{gpu}): {code}, x", **more})


def with_log(seen: Snapshot, *events: KernelEvent, **facts: Any) -> Snapshot:
    told = {"events": events, "source": "/dev/kmsg", "from_s": 0.0, "now_s": NOW, "booted": 1.7e9, "whole": True, **facts}
    return msgspec.structs.replace(seen, kernel=KernelFacts(**told))


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def gpus(seen: Snapshot) -> tuple[Gpu, ...]:
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    return seen.gpu.devices


def with_lost(seen: Snapshot, *addresses: str) -> Snapshot:
    """The same host, of whose GPUs NVML lost these."""
    devices = tuple(msgspec.structs.replace(gpu, lost=gpu.pci_address in addresses) for gpu in gpus(seen))
    return changed(seen, "gpu", devices=devices)


def judged(seen: Snapshot, rule_id: str, *events: KernelEvent) -> Result:
    return engine.judge(with_log(seen, *events), (BY_ID[rule_id],))[0]


def subjects(seen: Snapshot, rule_id: str, *events: KernelEvent) -> list[str]:
    found = judged(seen, rule_id, *events)
    blamed = [item.subject for item in found.evidence if item.verdict is FAIL]
    assert found.verdict is (FAIL if blamed else PASS)
    assert len(found.evidence) == max(len(blamed), 1)  # one word that all is well, or findings alone
    return blamed


def troubles(seen: Snapshot, *events: KernelEvent) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """GPU, kind, how many bursts, and what followed."""
    found = kernel_xid.troubles(with_log(seen, *events), WEEK)
    return [(trouble.address, trouble.judged, len(trouble.events), trouble.after) for trouble in found]


def over(seen: Snapshot, *events: KernelEvent) -> str:
    (trouble,) = [found for found in kernel_xid.troubles(with_log(seen, *events), WEEK) if found.judged == "memory"]
    return trouble.over


# --- causes and consequences


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
    assert troubles(healthy, xid(79), event("gpu-lost"), xid(79, T + 9000)) == [(ONE, "lost", 3, ())]
    assert troubles(healthy, event("gpu-lost"), xid(79)) == [(ONE, "lost", 2, ())]
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


# --- what is over


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (event("boot", "", T + 61), "the machine was booted since"),
        (event("boot", "", T + 60), ""),
        (event("boot", "", T - 30), ""),
        (event("boot", "", T + 30), ""),  # the driver says "loading" after it looked at the GPUs
        (event("driver-load", "", T + 60.5), "the driver was loaded again since"),
        (event("driver-load", "", T + 60), ""),
        (event("driver-load", "", T + 30), ""),
        (event("driver-load", "", T + 30, last_s=T + 99), ""),
        (event("gpu-bar", "", T + 61), ""),
        (event("boot", "", None), ""),
        (event("boot", "", T + 61, last_s=None), ""),
        (event("boot", "", 1.7e9), ""),  # of another clock
        (xid(154, T + 1, text="changed from 0x1 (GPU Reset Required) to 0x0 (None)"), "the driver wants no action any more"),
        (xid(154, T, text="changed from 0x1 (GPU Reset Required) to 0x0 (None)"), ""),
        (xid(154, T - 1, text="changed from 0x1 (GPU Reset Required) to 0x0 (None)"), ""),
        (
            xid(154, T - 1, last_s=T + 1, text="changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            "the driver wants no action any more",
        ),
        (xid(154, T + 1, text="changed from 0x0 (None) to 0x1 (GPU Reset Required)"), ""),
        (xid(154, T + 1, TWO, text="changed from 0x1 (GPU Reset Required) to 0x0 (None)"), ""),
        (event("sxid", ONE, T + 1, code=154, text="to 0x0 (None)"), ""),
        (xid(155, T + 1, text="to 0x0 (None)"), ""),
        (xid(153, T + 1, text="to 0x0 (None)"), ""),
    ],
)
def test_a_new_start_or_a_wish_taken_back_ends_a_trouble(healthy: Snapshot, later: KernelEvent, expected: str) -> None:
    said = over(healthy, xid(95), later)
    assert said == expected
    assert over(healthy, xid(95), event("boot", "", None), event("oom-kill", "", T + 1), later) == said
    assert over(healthy, xid(95, None), later) == ""
    assert over(healthy, xid(95), xid(95, T + 9000), later) == ""  # it came back
    if said:
        (finding,) = judged(healthy, "xid-memory-error", xid(95), later).evidence
        assert (finding.verdict, finding.wanted) == (PASS, "")
        assert finding.seen.endswith(f"; {said}")


@pytest.mark.parametrize(
    ("texts", "action"),
    [
        ([": 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"], "GPU Reset Required"),
        ([": 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"], ""),
        ([": 154, a to 0x1 (GPU Reset Required)", ": 154, b to 0x2 (Node Reboot Required)."], "Node Reboot Required"),
        ([": 154, a to 0x1 (GPU Reset Required)", ": 154, b to 0x0 (None)"], ""),
        (["(PCI:0000:61:00): 154, no action is named"], ""),
        ([], ""),
    ],
)
def test_what_the_driver_asks_for_in_the_end(healthy: Snapshot, texts: list[str], action: str) -> None:
    wishes = [xid(154, T + number, text=text) for number, text in enumerate(texts)]
    others = (
        xid(153, T + 50, text=": 153, (other)"),
        xid(154, T + 50, TWO, text=": 154, (other)"),
        event("sxid", code=154, text=": 154 (o)"),
    )
    assert kernel_xid.wanted_action(with_log(healthy, *wishes, *others), ONE) == action
    (finding,) = judged(healthy, "xid-gpu-fault", xid(62, T + 10), *wishes).evidence  # the wishes came before
    todo = catalogue(62).todo
    assert finding.wanted == (f"{todo} (the driver asks: {action})" if action else todo)


def test_nothing_is_asked_for_in_a_log_that_was_not_read(healthy: Snapshot) -> None:
    assert kernel_xid.wanted_action(with_log(healthy, events=DENIED), ONE) == ""
    assert kernel_xid.wanted_action(msgspec.structs.replace(healthy, kernel=DENIED), ONE) == ""


# --- the rules


RULES = {
    "xid-gpu-lost": (79,),
    "xid-memory-error": (48, 64, 94, 95, 140, 171, 172),
    "xid-gsp-error": (119, 120),
    "xid-nvlink-error": (74, 136, *range(144, 151), 155),
    "xid-gpu-fault": (46, 54, 62, 109, 143),
    "xid-for-support": (122, 4711),
    "xid-of-program": (13, 31, 43, 68, 69),
}


@pytest.mark.parametrize("rule_id", RULES)
def test_each_xid_is_judged_by_one_rule(healthy: Snapshot, rule_id: str) -> None:
    for owner, codes in RULES.items():
        for code in codes:
            assert subjects(healthy, rule_id, xid(code)) == ["GPU 3 (0000:61:00.0)"] * (owner == rule_id)
    code = RULES[rule_id][0]
    assert subjects(healthy, rule_id, xid(code, NOW - 8 * DAY)) == []
    assert subjects(healthy, rule_id, xid(code), xid(code, gpu=TWO)) == ["GPU 3 (0000:61:00.0)", "GPU 4 (0000:9d:00.0)"]


def test_what_is_said_of_an_xid(healthy: Snapshot) -> None:
    (finding,) = judged(healthy, "xid-gpu-fault", xid(62, who="python3"), xid(31)).evidence
    assert finding.seen.startswith("Xid 62 (python3), 20") and finding.seen.endswith(
        f": {catalogue(62).meaning}; followed by Xid 31"
    )
    (finding,) = judged(healthy, "xid-gpu-fault", xid(62, None)).evidence
    assert finding.seen == f"Xid 62: {catalogue(62).meaning}"
    (finding,) = judged(healthy, "xid-for-support", xid(4711, None, text="Xid (PCI:x): 4711, pid=7: 4711 was odd.")).evidence
    assert finding.seen == "Xid 4711: pid=7: 4711 was odd"
    assert finding.wanted == catalogue(4711).todo
    nameless = next(number for number in range(1, 180) if catalogue(number).judged == "program" and not catalogue(number).meaning)
    (finding,) = judged(healthy, "xid-of-program", xid(nameless, None)).evidence
    assert finding.seen == f"Xid {nameless}: {catalogue(nameless).name}"


def test_what_is_said_of_a_gpu_that_was_lost(healthy: Snapshot) -> None:
    (finding,) = judged(
        healthy, "xid-gpu-lost", event("gpu-lost", at=None, text="GPU has fallen off the bus."), xid(45, None)
    ).evidence
    assert finding.seen == "GPU has fallen off the bus; followed by Xid 45"
    assert finding.wanted == catalogue(79).todo


@pytest.mark.parametrize(
    ("rule_id", "code", "facts", "also"),
    [
        ("xid-nvlink-error", 74, {"nvlinks_down": (6,)}, "; links down: 6"),
        ("xid-nvlink-error", 74, {"nvlinks_down": (6, 7)}, "; links down: 6, 7"),
        ("xid-nvlink-error", 74, {"nvlinks_down": ()}, ""),
        ("xid-nvlink-error", 74, {"nvlinks_down": DENIED}, ""),
        ("xid-nvlink-error", 74, {"ecc_uncorrected_volatile": 2}, ""),
        ("xid-memory-error", 95, {"ecc_uncorrected_volatile": 1}, "; 1 uncorrectable errors counted since the driver was loaded"),
        ("xid-memory-error", 95, {"ecc_uncorrected_volatile": 0}, ""),
        ("xid-memory-error", 95, {"ecc_uncorrected_volatile": DENIED}, ""),
        ("xid-memory-error", 95, {"nvlinks_down": (6,)}, ""),
        ("xid-gpu-fault", 62, {"nvlinks_down": (6,), "ecc_uncorrected_volatile": 2}, ""),
    ],
)
def test_what_nvml_sees_of_the_same_fault(healthy: Snapshot, rule_id: str, code: int, facts: dict[str, Any], also: str) -> None:
    quiet = {"nvlinks_down": (), "ecc_uncorrected_volatile": 0}
    devices = tuple(msgspec.structs.replace(gpu, **(quiet | facts if gpu.pci_address == ONE else quiet)) for gpu in gpus(healthy))
    seen = changed(healthy, "gpu", devices=devices)
    (plain,) = judged(msgspec.structs.replace(healthy, gpu=DENIED), rule_id, xid(code)).evidence
    (finding,) = judged(seen, rule_id, xid(code)).evidence
    assert finding.seen == plain.seen + also
    (finding,) = judged(seen, rule_id, xid(code, gpu=TWO)).evidence  # another one's
    assert finding.seen == plain.seen
    (finding,) = judged(seen, rule_id, xid(code), event("boot", "", T + 100)).evidence
    assert "counted" not in finding.seen and "links down" not in finding.seen  # what is seen now came after it
    (finding,) = judged(changed(healthy, "gpu", devices=DENIED), rule_id, xid(code)).evidence
    assert finding.seen == plain.seen


def test_gpus_of_which_the_log_tells(healthy: Snapshot) -> None:
    def told(kind: str, *events: KernelEvent, **facts: Any) -> set[str]:
        return set(kernel_xid.told(with_log(healthy, *events, **facts), kind))

    both = (xid(95), xid(74, T + 9000, TWO))
    assert told("memory", *both) == {ONE}
    assert told("nvlink", *both) == {TWO}
    assert told("gpu", *both) == set()
    assert told("memory", *both, event("boot", "", T + 100)) == set()
    assert told("memory", xid(95, NOW - 8 * DAY), xid(95, NOW - 7 * DAY, TWO)) == {TWO}
    assert told("memory", events=DENIED) == set()
    boxed = changed(with_log(healthy, events=NOTHING), "system", container="docker")
    assert kernel_xid.told(boxed, "memory") == frozenset()
    assert kernel_xid.told(msgspec.structs.replace(healthy, kernel=DENIED), "memory") == frozenset()


def test_a_gpu_that_nvml_lost_is_reported_once(healthy: Snapshot) -> None:
    for events in ((xid(79),), (event("gpu-lost"), xid(62, gpu=TWO))):
        assert judged(with_lost(healthy, ONE), "xid-gpu-lost", *events).verdict is NA
        assert judged(with_lost(healthy, TWO), "xid-gpu-lost", *events).verdict is FAIL
        for blind in (changed(healthy, "gpu", devices=DENIED), msgspec.structs.replace(healthy, gpu=DENIED)):
            assert judged(blind, "xid-gpu-lost", *events).verdict is FAIL
    assert judged(with_lost(healthy, ONE), "xid-gpu-lost", xid(79), xid(79, gpu=TWO)).verdict is FAIL
    assert judged(with_lost(healthy, ONE, TWO), "xid-gpu-lost", xid(79)).verdict is NA


def test_errors_of_switches(healthy: Snapshot) -> None:
    def switch(at: str, code: int, who: str = "Fatal") -> KernelEvent:
        return event("sxid", at, code=code, who=who, text=f"SXid (PCI:{at}): {code}, {who}, Link 28 RX Error")

    first, second = "0000:c3:00.0", "0000:c4:00.0"
    rule_id = "xid-nvlink-error"
    assert subjects(healthy, rule_id, switch(first, 20009, "Non-fatal")) == []
    assert subjects(healthy, rule_id, switch(first, 20009), switch(second, 1)) == [
        f"NVSwitch at {first}",
        f"NVSwitch at {second}",
    ]
    assert subjects(healthy, rule_id, switch(first, 20009), xid(74)) == ["GPU 3 (0000:61:00.0)", f"NVSwitch at {first}"]
    (finding,) = judged(healthy, rule_id, switch(first, 20009), switch(first, 7), switch(first, 20009)).evidence
    assert finding.seen.startswith("fatal SXid 20009, 7, 3 times") and finding.seen.endswith(": Link 28 RX Error")


@pytest.mark.parametrize(
    ("events", "suspect"),
    [
        ([xid(31, who="a, b, c")], True),
        ([xid(31, who="a, b")], False),
        ([xid(31, who="a, a, a")], False),
        ([xid(31, who="a"), xid(31, T + 9000, who="b"), xid(31, T + 18_000, who="c")], True),
        ([xid(31, who="a, b, "), xid(31, T + 9000)], False),
        ([xid(31, who="a, b, c"), xid(31, gpu=TWO, who="a")], False),  # on several GPUs: programs, or what they share
        ([xid(31, who="a, b, c"), xid(13, T + 9000, who="a")], True),
    ],
)
def test_many_programs_on_one_gpu_make_it_a_suspect(healthy: Snapshot, events: list[KernelEvent], suspect: bool) -> None:
    found = judged(healthy, "xid-of-program", *events).evidence
    assert ("different programs" in found[0].wanted) is suspect
    assert suspect or found[0].wanted == catalogue(31).todo


def test_a_program_that_failed_before_the_last_start_is_forgotten(healthy: Snapshot) -> None:
    assert subjects(healthy, "xid-of-program", xid(31), event("boot", "", T + 100)) == []
    assert subjects(healthy, "xid-of-program", xid(31), event("boot", "", T + 100), xid(31, T + 200, TWO)) == [
        "GPU 4 (0000:9d:00.0)"
    ]


# --- what the driver says when it starts


TOLD = {
    "gpu-bar-not-assigned": ("gpu-bar",),
    "driver-ignores-gpu": ("gpu-legacy", "gpu-unsupported", "gpu-needs-open"),
    "gpu-needs-proprietary-module": ("gpu-needs-proprietary",),
    "gsp-firmware-missing": ("gsp-firmware",),
}


@pytest.mark.parametrize(("rule_id", "kind"), [(rule_id, kind) for rule_id, kinds in TOLD.items() for kind in kinds])
def test_what_the_driver_refuses_when_it_starts(healthy: Snapshot, rule_id: str, kind: str) -> None:
    blamed = [f"GPU at {STRANGE}"]
    assert subjects(healthy, rule_id, event(kind, STRANGE)) == blamed
    assert subjects(healthy, rule_id, event(kind, STRANGE), event("driver-load", "", T + 30)) == blamed  # of that start itself
    assert subjects(healthy, rule_id, event(kind, STRANGE), event("driver-load", "", T + 100)) == []  # mended since
    assert subjects(healthy, rule_id, event(kind, ONE)) == []  # the driver serves it by now
    assert subjects(healthy, rule_id, event(kind, ONE), event(kind, STRANGE)) == blamed
    assert subjects(with_lost(healthy, ONE), rule_id, event(kind, ONE)) == ["GPU 3 (0000:61:00.0)"]
    assert subjects(healthy, rule_id, event(kind, "")) == ["a GPU"]
    assert subjects(healthy, rule_id, event(kind, ""), event(kind, STRANGE)) == blamed  # the same, without the address
    assert subjects(healthy, rule_id, event(kind, STRANGE), event(kind, ""), event(kind, "0000:fe:00.0")) == [
        *blamed,
        "GPU at 0000:fe:00.0",
    ]
    assert subjects(healthy, rule_id, event(kind, STRANGE, NOW - 8 * DAY)) == []
    others = [event(other, STRANGE) for kinds in TOLD.values() for other in kinds if other not in TOLD[rule_id]]
    assert subjects(healthy, rule_id, *others) == []
    assert subjects(changed(healthy, "gpu", devices=DENIED), rule_id, event(kind, ONE)) == [f"GPU at {ONE}"]
    assert subjects(msgspec.structs.replace(healthy, gpu=DENIED), rule_id, event(kind, ONE)) == [f"GPU at {ONE}"]


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


@pytest.mark.parametrize("kind", ["gpu-bar", "gsp-firmware", "gpu-needs-proprietary", "gpu-needs-open", "gpu-unsupported"])
def test_a_failed_initialisation_that_another_message_explains(healthy: Snapshot, kind: str) -> None:
    rule_id = "gpu-initialisation-failed"
    assert subjects(healthy, rule_id, event("gpu-init", STRANGE)) == [f"GPU at {STRANGE}"]
    assert judged(healthy, rule_id, event("gpu-init", STRANGE), event(kind, STRANGE)).verdict is NA
    assert judged(healthy, rule_id, event("gpu-init", STRANGE), event(kind, STRANGE, NOW - 8 * DAY)).verdict is FAIL


def test_gpus_that_could_not_be_initialised(healthy: Snapshot) -> None:
    rule_id = "gpu-initialisation-failed"
    assert subjects(healthy, rule_id) == []
    assert subjects(healthy, rule_id, event("gpu-init")) == []  # it works by now
    assert subjects(healthy, rule_id, event("gpu-init"), event("gpu-init", STRANGE)) == [f"GPU at {STRANGE}"]
    assert subjects(healthy, rule_id, event("gpu-init", STRANGE), event("driver-load", "", T + 100)) == []
    found = judged(healthy, rule_id, event("gpu-init", STRANGE), xid(79, gpu=STRANGE))
    assert found.verdict is PASS  # it was lost


def hidden(seen: Snapshot, on_bus: int | None, shown: Any) -> Snapshot:
    """The same host with so many GPUs on the bus, of which NVML shows some."""
    devices = gpus(seen)[:shown] if isinstance(shown, int) else shown
    functions = DENIED if on_bus is None else tuple(gpu.pci_address for gpu in gpus(seen)[:on_bus])
    return changed(changed(seen, "gpu", devices=devices), "driver", nvidia_devices=functions, nouveau_loaded=False)


@pytest.mark.parametrize(
    ("rule_id", "kind"), [("gpu-initialisation-failed", "gpu-probe-failed"), ("gpu-held-by-other-driver", "gpu-not-probed")]
)
def test_gpus_that_the_driver_did_not_get(healthy: Snapshot, rule_id: str, kind: str) -> None:
    one = event(kind, "", code=1)
    assert subjects(hidden(healthy, 8, 7), rule_id, one) == ["1 GPU(s)"]
    assert subjects(hidden(healthy, 8, 0), rule_id, one) == ["1 GPU(s)"]
    assert subjects(hidden(healthy, 8, DENIED), rule_id, one) == ["1 GPU(s)"]
    assert subjects(msgspec.structs.replace(healthy, gpu=DENIED), rule_id, one) == ["1 GPU(s)"]
    assert subjects(hidden(healthy, 8, 8), rule_id, one) == []  # the driver serves them all by now
    for blind in (hidden(healthy, None, 8), msgspec.structs.replace(healthy, driver=DENIED)):
        assert judged(blind, rule_id, one).verdict is Verdict.UNKNOWN  # are there more than NVML shows?
        assert subjects(blind, rule_id) == []
    seen = hidden(healthy, 8, 7)
    assert subjects(seen, rule_id) == []
    assert subjects(seen, rule_id, one, event(kind, "", T + 5, code=2)) == ["2 GPU(s)"]  # the last word counts
    assert subjects(seen, rule_id, one, event("driver-load", "", T + 100)) == []
    assert subjects(seen, rule_id, event(kind, "", NOW - 8 * DAY, code=1)) == []
    other = "gpu-not-probed" if kind == "gpu-probe-failed" else "gpu-probe-failed"
    assert subjects(seen, rule_id, event(other, "", code=1)) == []
    for explained in ("gpu-legacy", "gpu-lost"):
        assert subjects(seen, rule_id, one, event(explained, TWO)) == []
    found = judged(seen, rule_id, one, event("gpu-bar", STRANGE))
    assert found.verdict is (NA if rule_id == "gpu-initialisation-failed" else PASS)


def test_a_refused_probe_beside_another_trouble_is_not_told_again(healthy: Snapshot) -> None:
    seen = hidden(healthy, 8, 7)
    for other in (xid(62), event("gpu-init", STRANGE)):
        found = judged(seen, "gpu-initialisation-failed", event("gpu-probe-failed", "", code=1), other)
        assert "1 GPU(s)" not in [item.subject for item in found.evidence]


def test_a_driver_that_is_named_holds_the_gpu(healthy: Snapshot) -> None:
    rule_id, one = "gpu-held-by-other-driver", event("gpu-not-probed", "", code=1)
    seen = hidden(healthy, 8, 7)
    assert judged(seen, rule_id, one, event("gpu-bound", who="nouveau")).verdict is NA
    assert judged(seen, rule_id, one, event("gpu-bound", at=NOW - 8 * DAY)).verdict is FAIL
    assert judged(changed(seen, "driver", nouveau_loaded=True), rule_id, one).verdict is NA
    assert judged(changed(seen, "driver", nouveau_loaded=DENIED), rule_id, one).verdict is FAIL


def bound(at: float | None = T, who: str = "nouveau", text: str = "NVIDIA GA102", **more: Any) -> KernelEvent:
    return event("gpu-bound", STRANGE, at, who=who, text=text, **more)


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ([bound()], True),
        ([bound(who="vfio")], False),
        ([bound(), event("driver-load", "", T + 1)], False),  # NVIDIA's driver was loaded after it
        ([bound(), event("driver-load", "", T)], True),
        ([bound(), event("driver-load", "", T - 1)], True),
        ([bound(), event("boot", "", T + 1)], True),
        ([bound(), event("driver-load", "", None)], False),  # nobody knows when
        ([bound(None), event("driver-load", "", T)], False),
        ([bound(text="GPU is already bound to nouveau."), event("driver-load", "", T + 1)], True),  # that load was in vain
        ([bound(), bound(text="GPU is already bound to nouveau."), event("driver-load", "", T + 1)], True),
        ([bound(at=T, last_s=T + 9), event("driver-load", "", T + 5)], True),
        ([], False),
    ],
)
def test_gpus_that_nouveau_took(healthy: Snapshot, events: list[KernelEvent], held: bool) -> None:
    rule_id = "other-driver-holds-gpu"
    for blind in (changed(healthy, "driver", nouveau_loaded=DENIED), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(blind, rule_id, *events) == [f"GPU at {STRANGE}"] * held
    assert judged(healthy, rule_id, *events).verdict is NA  # what is loaded now is known


def test_clients_of_another_version(healthy: Snapshot) -> None:
    rule_id = "driver-mismatch-logged"
    told = event("api-mismatch", "", who="550.54.14", text="API mismatch: the client has 535, but")
    blind = changed(healthy, "driver", module_version=DENIED)
    assert subjects(blind, rule_id, told) == ["kernel module 550.54.14"]
    assert subjects(blind, rule_id, msgspec.structs.replace(told, who="")) == ["kernel module"]
    assert subjects(blind, rule_id, told, msgspec.structs.replace(told, who="2")) == ["kernel module 2"]
    assert subjects(blind, rule_id, told, event("driver-load", "", T + 100)) == []
    assert subjects(blind, rule_id, event("api-mismatch", "", NOW - 8 * DAY)) == []
    assert subjects(blind, rule_id, event("gpu-bar", "")) == []
    for other in (changed(healthy, "driver", library_version=NOTHING), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(other, rule_id, told) == ["kernel module 550.54.14"]
    assert judged(healthy, rule_id, told).verdict is NA  # the versions of now are known
    assert subjects(healthy, rule_id) == []
    (finding,) = judged(blind, rule_id, msgspec.structs.replace(told, first_s=None, last_s=None)).evidence
    assert finding.seen == "API mismatch: the client has 535"


def test_modules_that_were_refused(healthy: Snapshot) -> None:
    rule_id, told = "module-signature-refused", event("module-refused", "", who="nvidia")
    seen = changed(healthy, "driver", module_loaded=False, secure_boot=DENIED)
    assert subjects(seen, rule_id, told) == ["nvidia"]
    assert subjects(seen, rule_id, told, event("module-refused", "", who="x"), event("module-refused", ""), told) == ["nvidia, x"]
    assert subjects(seen, rule_id, event("module-refused", "")) == ["a module"]
    assert subjects(seen, rule_id, event("module-refused", "", NOW - 8 * DAY)) == []
    assert subjects(msgspec.structs.replace(healthy, driver=DENIED), rule_id, told) == ["nvidia"]
    for facts in ({"nvidia_devices": ()}, {"nvidia_devices": NOTHING}, {"module_loaded": True}, {"secure_boot": True}):
        other = changed(seen, "driver", **facts)
        assert judged(other, rule_id, told).verdict is NA
        assert subjects(other, rule_id) == []
    for facts in ({"nvidia_devices": DENIED}, {"module_loaded": DENIED}, {"secure_boot": False}):
        assert subjects(changed(seen, "driver", **facts), rule_id, told) == ["nvidia"]


def test_faults_of_the_iommu(healthy: Snapshot) -> None:
    rule_id = "iommu-fault-of-gpu"
    assert subjects(healthy, rule_id, event("iommu-fault", ONE)) == ["GPU 3 (0000:61:00.0)"]
    assert subjects(healthy, rule_id, event("iommu-fault", STRANGE)) == []
    assert subjects(healthy, rule_id, event("iommu-fault", STRANGE), event("iommu-fault", ONE)) == ["GPU 3 (0000:61:00.0)"]
    named = event("iommu-fault", STRANGE, text="nvidia 0000:ff:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT]")
    assert subjects(healthy, rule_id, named) == [f"GPU at {STRANGE}"]
    assert subjects(healthy, rule_id, event("iommu-fault", ONE, NOW - 8 * DAY), event("gpu-bar", ONE)) == []
    for blind in (changed(healthy, "driver", nvidia_devices=DENIED), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(blind, rule_id, event("iommu-fault", ONE)) == []
        assert subjects(blind, rule_id, named) == [f"GPU at {STRANGE}"]
