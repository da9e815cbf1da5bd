"""What is taken over from the host below a recording is what would be seen and said there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from conftest import HOSTS, healthy_results, intent, judge, load, recording
from rules.remembered import Remembered
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, merged
from torchtune_sys.model.snapshot import FAMILIES, PrintedMessage, Snapshot
from torchtune_sys.rules import CATALOGUE

RECORDINGS = sorted(path.stem for path in HOSTS.glob("*.json"))


def afresh(laid: dict[str, Any]) -> Snapshot:
    return engine.snapshot(RecordedHost(laid, "test"), intent(laid), timeout_s=20)


@pytest.mark.sampled(8, 40)
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_seen_and_judged_as_if_it_were_the_first(name: str) -> None:
    seen = load(name)
    alone = engine.snapshot(RecordedHost(recording(name), seen.origin), intent(recording(name)), timeout_s=20)
    assert seen == alone
    assert tuple(judge(seen).values()) == engine.judge(alone, CATALOGUE)


CHANGES: dict[str, dict[str, Any]] = {
    "a file": {"files": {"/proc/sys/vm/swappiness": "77\n"}},
    "a file less": {"files": {"/proc/meminfo": None}},
    "a file that cannot be read": {"files": {"/proc/meminfo": {"error": "denied"}}},
    "a new name in a directory that is listed": {"files": {"/etc/sysctl.d/99-test.conf": "vm.swappiness = 7\n"}},
    "a directory": {"dirs": {"/sys/class/infiniband": {"error": "denied"}}},
    "a link": {"links": {"/sys/devices/pci0000:17/0000:17:01.0/iommu_group": None}},
    "a directory that leads elsewhere": {"links": {"/sys/class/net": "/elsewhere"}},
    "rights": {"stats": {"/dev/nvidia0": {"error": "denied"}}},
    "room": {"spaces": {"/dev/shm": {"error": "denied"}}},
    "a variable that is asked for": {"env": {"OMP_NUM_THREADS": "1"}},
    "a variable that is found by its beginning": {"env": {"NCCL_NEVER_HEARD_OF": "1"}},
    "a variable of both": {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
    "an answer": {"answers": {"nvml": {"error": "denied"}}},
    "the whole environment": {"answers": {"environment": {"error": "denied"}}},
    "what was not recorded": {"complete": False},
    "what a person said": {"intent": {"data": ["/data/elsewhere"]}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_seen(change: dict[str, Any]) -> None:
    base = recording("healthy")
    laid = merged(base, change)
    seen = Remembered(base, intent(base)).snapshot(laid, "test", intent(laid), timeout_s=20)
    assert seen == afresh(laid) != afresh(base)
    assert healthy_results().judge(seen) == engine.judge(seen, CATALOGUE)


def test_what_nobody_asks_for_is_probed_by_nobody_and_judged_by_nobody() -> None:
    base = recording("healthy")
    seen = load("healthy", files={"/nobody/asks": "x"})
    assert all(getattr(seen, family) is getattr(load("healthy"), family) for family in FAMILIES)
    assert healthy_results().touched(seen) == []
    assert 0 < len(healthy_results().touched(load("healthy", files={"/proc/sys/vm/swappiness": "77\n"}))) < len(CATALOGUE) / 4
    assert intent(base) == seen.intent


def test_what_a_program_said_is_heard_by_rules_that_read_nothing_else() -> None:
    said = {"nvlink-inactive": PrintedMessage(line="NVLink is inactive")}
    seen = replace(load("healthy"), said=said)
    assert healthy_results().judge(seen) == engine.judge(seen, CATALOGUE) != healthy_results().results
