"""Which of a GPU's messages is the cause, what followed from it, when it is over, and who else explains it (kernel_gpu)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from xid_hosts import (
    DAY,
    DENIED,
    FAIL,
    NA,
    NOW,
    ONE,
    PASS,
    STRANGE,
    TWO,
    WEEK,
    T,
    changed,
    event,
    gpus,
    judged,
    subjects,
    with_log,
    with_lost,
    xid,
)

from torchtune_sys.knowledge.xid import xid as catalogue
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.rules.kernel import xid as kernel_xid


def over(seen: Snapshot, *events: KernelEvent) -> str:
    (trouble,) = [found for found in kernel_xid.incidents(with_log(seen, *events), WEEK) if found.judged == "memory"]
    return trouble.over


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
    wanted = f"{todo} (the driver asks: {action})" if action else todo
    assert finding.wanted == f"to do: {wanted}"


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
    assert finding.wanted == f"to do: {catalogue(4711).todo}"
    nameless = next(number for number in range(1, 180) if catalogue(number).judged == "program" and not catalogue(number).meaning)
    (finding,) = judged(healthy, "xid-of-program", xid(nameless, None)).evidence
    assert finding.seen == f"Xid {nameless}: {catalogue(nameless).name}"


def test_what_is_said_of_a_gpu_that_was_lost(healthy: Snapshot) -> None:
    (finding,) = judged(
        healthy, "xid-gpu-lost", event("gpu-lost", at=None, text="GPU has fallen off the bus."), xid(45, None)
    ).evidence
    assert finding.seen == "GPU has fallen off the bus; followed by Xid 45"
    assert finding.wanted == f"to do: {catalogue(79).todo}"


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
    assert suspect or found[0].wanted == f"to do: {catalogue(31).todo}"


def test_a_program_that_failed_before_the_last_start_is_forgotten(healthy: Snapshot) -> None:
    assert subjects(healthy, "xid-of-program", xid(31), event("boot", "", T + 100)) == []
    assert subjects(healthy, "xid-of-program", xid(31), event("boot", "", T + 100), xid(31, T + 200, TWO)) == [
        "GPU 4 (0000:9d:00.0)"
    ]


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
    assert judged(seen, rule_id, one, event("gpu-lost", TWO)).verdict is not FAIL
    for explained in ("gpu-legacy", "gpu-bar"):
        assert judged(seen, rule_id, one, event(explained, STRANGE)).verdict is NA


def test_a_refused_probe_beside_another_trouble_is_not_told_again(healthy: Snapshot) -> None:
    seen = hidden(healthy, 8, 7)
    for other in (xid(62), event("gpu-init", STRANGE)):
        found = judged(seen, "gpu-initialisation-failed", event("gpu-probe-failed", "", code=1), other)
        assert "1 GPU(s)" not in [item.subject for item in found.evidence]


def bound_to(driver: str, seen: Snapshot) -> Snapshot:
    """The same host, on whose bus this driver holds the GPUs."""
    assert not isinstance(seen.pci, Missing) and not isinstance(seen.pci.devices, Missing)
    devices = (msgspec.structs.replace(one, driver=driver if one.driver == "nvidia" else one.driver) for one in seen.pci.devices)
    return changed(seen, "pci", devices=tuple(devices))


def test_a_driver_that_is_named_holds_the_gpu(healthy: Snapshot) -> None:
    rule_id, one = "gpu-held-by-other-driver", event("gpu-not-probed", "", code=1)
    seen = hidden(healthy, 8, 7)
    assert judged(seen, rule_id, one, event("gpu-bound", who="nouveau")).verdict is NA
    assert judged(seen, rule_id, one, event("gpu-bound", at=NOW - 8 * DAY)).verdict is FAIL
    loaded = changed(seen, "driver", nouveau_loaded=True)
    assert judged(loaded, rule_id, one).verdict is FAIL  # not for a GPU
    assert judged(bound_to("nouveau", loaded), rule_id, one).verdict is NA
    assert judged(changed(seen, "driver", nouveau_loaded=DENIED), rule_id, one).verdict is FAIL
