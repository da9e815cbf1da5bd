"""GPUs from both sides of each mark: one that is left out stops no other, and each reading that failed is told from a good one (gpu)."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_hosts import (
    FIRST,
    FOURTH,
    REFUSED,
    UNSAID,
    UNTOLD,
    every,
    failed,
    gpu_facts,
    gpus,
    having,
    healthy,
    last,
    number,
    replace,
    seen,
    verdict,
    with_session,
    with_system,
    words,
)

from torchtune_sys.rules.gpu.common import subject


def test_names_of_gpus() -> None:
    assert subject(gpus(healthy())[0]) == f"GPU 0 ({FIRST})"
    assert subject(replace(gpus(healthy())[0], pci_address=UNTOLD)) == "GPU 0"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"ecc": False}, "fail"),
        ({"ecc": False, "name": "NVIDIA T1000 8GB"}, "pass"),
        ({"ecc": False, "name": REFUSED}, "unknown"),
        ({"ecc": True, "name": REFUSED}, "pass"),
        ({"ecc": UNSAID, "name": REFUSED}, "pass"),
    ],
)
def test_ecc_off(facts: dict[str, Any], expected: str) -> None:
    assert verdict("gpu-ecc-off", having(healthy(), facts)) == expected
    assert failed("gpu-ecc-off", last(having(healthy(), facts), ecc=False))[-1] == 7


@pytest.mark.parametrize(("error", "rule"), [("GPU_IS_LOST", "gpu-fallen-off-bus"), ("RESET_REQUIRED", "gpu-requires-reset")])
def test_a_library_that_stops_at_a_lost_gpu(error: str, rule: str) -> None:
    host = replace(healthy(), gpu=replace(gpu_facts(healthy()), devices=REFUSED, error=error))
    assert {each: verdict(each, host) for each in ("gpu-fallen-off-bus", "gpu-requires-reset")}[rule] == "fail"
    host = replace(healthy(), gpu=replace(gpu_facts(healthy()), devices=REFUSED, error="UNKNOWN"))
    assert verdict("gpu-fallen-off-bus", host) == "unknown"


def test_errors_that_the_log_tells_of_are_left_to_it() -> None:
    host = seen("xid-memory-error.fail")
    at = [gpu.pci_address for gpu in gpus(host)].index(FOURTH)
    counted = having(host, *([{}] * at), {"ecc_uncorrected_volatile": 3})
    assert verdict("gpu-ecc-uncorrectable", counted) == "pass"  # of the others
    assert failed("gpu-ecc-uncorrectable", last(counted, ecc_uncorrected_volatile=1)) == [7]


@pytest.mark.parametrize(
    ("facts", "seen_words"),
    [
        ({"rows_remap_pending": True}, "row remapping pending"),
        ({"pages_retire_pending": True}, "page retirement pending"),
        ({"repair_pending": True}, "repair pending"),
        ({"recovery_action": "gpu-reset"}, "recovery action: gpu-reset"),
        ({"repair_pending": True, "recovery_action": "reboot"}, "repair pending, recovery action: reboot"),
    ],
)
def test_what_waits_for_a_reset(facts: dict[str, Any], seen_words: str) -> None:
    assert words("gpu-reset-pending", last(healthy(), **facts)) == [seen_words]


PENDING = ("rows_remap_pending", "pages_retire_pending", "repair_pending", "recovery_action")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (dict.fromkeys(PENDING, UNSAID), "na"),
        (dict.fromkeys(PENDING, REFUSED), "unknown"),
        ({**dict.fromkeys(PENDING, UNSAID), "repair_pending": REFUSED}, "unknown"),
        ({**dict.fromkeys(PENDING, REFUSED), "lost": True}, "na"),
        ({**dict.fromkeys(PENDING, REFUSED), "repair_pending": False}, "pass"),
        ({**dict.fromkeys(PENDING, UNSAID), "repair_pending": False}, "pass"),
    ],
)
def test_gpus_that_say_nothing_of_resets(first: dict[str, Any], expected: str) -> None:
    assert verdict("gpu-reset-pending", every(healthy(), **first)) == expected
    assert failed("gpu-reset-pending", last(having(healthy(), first), repair_pending=True)) == [7]


VBIOS = "gpu-vbios-differs"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([{"vbios": "b"}, {"vbios": "a"}, {"vbios": "a"}], [0]),
        ([{"vbios": "a"}, {"vbios": "b"}, {"vbios": "b"}], [0]),
        ([{"vbios": "b"}, {"vbios": "a"}, {"vbios": "a", "lost": True}], [0]),  # a tie: the first by name is taken for usual
        ([{"vbios": "a"}, {"vbios": "b", "lost": True}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": "b", "name": REFUSED}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": "b", "name": "NVIDIA L4"}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": UNSAID}, {"vbios": "b"}], [2]),
        ([{"vbios": "a"}, {"vbios": REFUSED}, {"vbios": "b"}], [2]),
    ],
)
def test_firmware_of_equal_gpus(first: list[dict[str, Any]], expected: list[int]) -> None:
    assert failed(VBIOS, having(number(healthy(), 3), *first)) == expected


def test_firmware_that_is_not_compared() -> None:
    host = having(number(healthy(), 2), {"vbios": "a"}, {"vbios": "b"})
    assert verdict(VBIOS, host) == "fail"
    assert verdict(VBIOS, number(host, 1)) == "na"
    assert verdict(VBIOS, every(host, name="NVIDIA GeForce RTX 4090")) == "na"
    assert verdict(VBIOS, having(host, {"lost": True})) == "na"
    assert verdict(VBIOS, having(host, {"name": "NVIDIA L4"})) == "na"
    assert verdict(VBIOS, every(host, vbios=REFUSED)) == "unknown"
    assert verdict(VBIOS, every(host, vbios=UNSAID)) == "pass"
    assert verdict(VBIOS, having(host, {"vbios": REFUSED})) == "unknown"


def test_gpus_of_the_bus_that_the_driver_lacks() -> None:
    rule = "gpu-missing-from-driver"
    host = healthy()
    lacking = having(number(host, 7))
    assert verdict(rule, host) == "pass"
    assert verdict(rule, lacking) == "fail"
    assert verdict(rule, having(lacking, {"lost": True})) == "fail"
    assert verdict(rule, having(lacking, {"pci_address": REFUSED})) == "na"
    batch = {"env": {"SLURM_JOB_ID": "7"}}
    assert verdict(rule, with_session(lacking, **batch)) == "na"
    assert verdict(rule, with_session(number(host, 0), **batch)) == "fail"
    assert verdict(rule, with_session(host, **batch)) == "pass"
    for hidden, expected in (("docker", "na"), (REFUSED, "unknown"), ("", "fail")):
        assert verdict(rule, with_system(lacking, container=hidden)) == expected


@pytest.mark.parametrize(
    ("single", "double", "expected"),
    [
        (62, 0, "pass"),
        (63, 0, "fail"),
        (0, 63, "fail"),
        (31, 32, "fail"),
        (63, UNSAID, "na"),
        (UNSAID, 63, "na"),
        (1, REFUSED, "unknown"),
        (REFUSED, 1, "unknown"),
    ],
)
def test_pages_that_were_retired(single: Any, double: Any, expected: str) -> None:
    pages = {"pages_retired_single_bit": single, "pages_retired_double_bit": double}
    assert verdict("gpu-pages-retired", having(healthy(), pages)) == expected
