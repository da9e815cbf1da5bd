"""RoCE congestion control among the host's own ports."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Missing, need

ON, OFF, ONLY_3 = "11111111", "00000000", "00010000"


def judged(*masks: tuple[str, str], **more: Any) -> Result:
    """Each port's notification and reaction point."""
    files: dict[str, Any] = {}
    for number, pair in enumerate(masks):
        files[f"/sys/class/infiniband/mlx5_{number}/ports/1/link_layer"] = "Ethernet"
        for point, mask in zip(("roce_np", "roce_rp"), pair, strict=True):
            for priority, digit in enumerate(mask):
                files[f"/sys/class/net/ib{number}/ecn/{point}/enable/{priority}"] = digit
    return judge(load("healthy", files=files | more))["roce-congestion-control-differs"]


def told(result: Result) -> list[tuple[str, str]]:
    return [(evidence.subject, evidence.seen) for evidence in result.evidence if evidence.verdict is Verdict.FAIL]


def test_the_odd_port_among_its_siblings() -> None:
    assert told(judged((ON, ON), (ON, ON), (ON, OFF))) == [("ib2", "reaction point off")]
    assert told(judged((ON, ON), (ONLY_3, ON), (ON, ON))) == [("ib1", "notification point on for priority 3")]
    assert told(judged((ONLY_3, OFF), (ONLY_3, OFF), (ON, OFF))) == [("ib2", "notification point on for every priority")]


@pytest.mark.parametrize("mask", [ON, OFF, ONLY_3])
def test_alike_is_well_whatever_it_is(mask: str) -> None:
    assert judged(*[(mask, mask)] * 3).verdict is Verdict.PASS


def test_no_majority_no_finding() -> None:
    assert judged((ON, ON), (ON, ON), (OFF, ON), (OFF, ON)).verdict is Verdict.PASS
    assert judged((ON, ON), (OFF, OFF)).verdict is Verdict.NA


def test_without_the_files_there_is_nothing_to_compare() -> None:
    assert judge(load("healthy"))["roce-congestion-control-differs"].verdict is Verdict.NA


@pytest.mark.parametrize("text", ["2", "", "on", "\0", "-1"])
def test_what_is_no_switch_is_unknown(text: str) -> None:
    result = judged((ON, ON), (ON, ON), (ON, ON), (ON, ON), **{"/sys/class/net/ib3/ecn/roce_np/enable/5": text})
    assert result.verdict is Verdict.UNKNOWN


def test_a_port_that_is_down_is_not_compared() -> None:
    down = {"/sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN"}
    assert judged((ON, ON), (ON, ON), (ON, OFF), **down).verdict is Verdict.NA


def test_the_facts() -> None:
    seen = load("roce-congestion-control-differs.fail")
    devices = need(need(seen.network).rdma)
    assert not isinstance(devices, Missing)
    assert devices[2].congestion == {"roce_np": "11111111", "roce_rp": "11101111"}
