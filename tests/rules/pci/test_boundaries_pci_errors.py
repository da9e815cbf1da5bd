"""PCI functions from both sides of each mark: what is left out, what cannot be told, and that the next one is judged all the same (pci_errors)."""

from __future__ import annotations

from typing import Any

import pytest
from pci_hosts import (
    FIRST,
    gone,
    healthy,
    judged,
    put,
    replace,
    verdict,
    where,
    with_pci,
    with_system,
)

from torchtune_sys.model.facts.pci import PciErrorGrowth, PciErrors
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Why


@pytest.mark.parametrize(
    ("errors", "bad", "words"),
    [
        ({}, False, ""),
        ({"nonfatal": {"UnsupReq": 5}}, False, ""),
        ({"nonfatal": {"CmpltTO": 2}}, True, "2 CmpltTO"),
        ({"fatal": {"SDES": 3}, "nonfatal": {"UnsupReq": 1}}, True, "3 SDES (fatal)"),
        ({"fatal": {"UnsupReq": 1}}, True, "1 UnsupReq (fatal)"),
        ({"correctable": {"RxErr": 10**9}}, False, ""),
    ],
)
def test_errors_that_lost_something(errors: dict[str, Any], bad: bool, words: str) -> None:
    counted = PciErrors(**{"correctable": {}, "nonfatal": {}, "fatal": {}, **errors})
    result = judged("pcie-errors-uncorrectable", where(healthy(), put(errors=counted), FIRST))
    assert (result.verdict is Verdict.FAIL) is bad
    assert not bad or words in next(item.seen for item in result.evidence if item.verdict is Verdict.FAIL)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(kind, True) for kind in ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout")]
    + [
        (kind, False)
        for kind in (
            "NonFatalErr",
            "CorrIntErr",
            "HeaderOF",
            "Advisory Non-Fatal",
            "Corrected Internal Error",
            "Header Log Overflow",
        )
    ],
)
def test_errors_of_the_link(kind: str, bad: bool) -> None:
    counted = PciErrors(correctable={kind: 10**9}, nonfatal={}, fatal={})
    assert (verdict("pcie-errors-correctable", where(healthy(), put(errors=counted), FIRST)) == "fail") is bad


def test_the_rate_of_errors_needs_a_time_and_their_kind_none() -> None:
    counted = PciErrors(correctable={"RxErr": 110}, nonfatal={}, fatal={"SDES": 1})
    host = with_system(where(healthy(), put(errors=counted), FIRST), uptime_s=gone(Why.DENIED))
    assert verdict("pcie-errors-correctable", host) == "unknown"
    assert verdict("pcie-errors-uncorrectable", host) == "fail"
    assert verdict("pcie-errors-correctable", with_system(host, uptime_s=1.0)) == "fail"  # a minute at least
    long = {"RxErr": 8 * 60 * 24}
    counted = PciErrors(correctable=long, nonfatal={}, fatal={})
    assert verdict("pcie-errors-correctable", with_system(where(host, put(errors=counted)), uptime_s=86400.0)) == "pass"


@pytest.mark.parametrize(
    ("class_", "told"), [("0x030200", True), ("0x120000", True), ("0x030000", True), ("0x020000", False), ("0x060400", False)]
)
def test_good_links_of_gpus_are_told(class_: str, told: bool) -> None:
    clean = PciErrors(correctable={}, nonfatal={}, fatal={})
    host = where(healthy(), put(class_=class_, errors=clean, vendor="0x8086"), "0000:04:00.0")
    subjects = [item.subject for item in judged("pcie-errors-uncorrectable", host).evidence]
    assert any("0000:04:00.0" in subject for subject in subjects) is told


@pytest.mark.parametrize(
    ("gained", "seconds", "expected"),
    [
        (1, 1.0, "pass"),  # may be chance
        (2, 1.0, "fail"),
        (2, 15.0, "pass"),  # eight a minute
        (2, 14.9, "fail"),
        (2, 15.1, "pass"),
        (8, 60.0, "pass"),
        (9, 60.0, "fail"),
        (2, 0.0, "fail"),
    ],
)
def test_errors_of_the_last_second(gained: int, seconds: float, expected: str) -> None:
    growth = PciErrorGrowth(seconds=seconds, correctable={"0000:aa:00.0": 99, FIRST: gained})
    assert verdict("pcie-errors-correctable", with_pci(healthy(), growth=growth)) == expected


@pytest.mark.parametrize(
    ("why", "expected"),
    [(why, "pass") for why in (Why.NOT_SUPPORTED, Why.NOT_RECORDED, Why.ABSENT)]
    + [(why, "unknown") for why in (Why.DENIED, Why.FAILED, Why.UNPARSED, Why.TIMEOUT)],
)
def test_a_watch_that_failed_is_unknown(why: Why, expected: str) -> None:
    assert verdict("pcie-errors-correctable", with_pci(healthy(), growth=gone(why))) == expected


def test_counters_that_one_device_hides_leave_the_others_judged() -> None:
    hidden = where(healthy(), put(errors=gone(Why.DENIED)), FIRST)
    assert verdict("pcie-errors-uncorrectable", hidden) == "pass"
    assert verdict("pcie-errors-uncorrectable", replace(healthy(), system=gone(Why.DENIED))) == "pass"
    clean = PciErrors(correctable={}, nonfatal={}, fatal={})
    odd = where(healthy(), put(class_=gone(Why.FAILED), errors=clean), "0000:04:00.0")
    assert verdict("pcie-errors-uncorrectable", odd) == "pass"
