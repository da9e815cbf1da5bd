"""How many DataLoader workers the CPUs bear, from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, asked, lines, result, verdict

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

UNTOLD = Missing(Why.NOT_RECORDED, "test")


def without_gpu(seen: Snapshot) -> Snapshot:
    return altered(seen, gpu__devices=(), gpu__vendor="", driver__nvidia_devices=(), driver__amd_devices=())


@pytest.mark.parametrize(
    ("workers", "cpus", "expected"),
    [
        (0, 16.0, FAIL),  # eight ranks: one CPU each, and one for a worker
        (0, 15.9, PASS),
        (0, 24.0, FAIL),
        (1, 16.0, PASS),
        (None, 16.0, NA),
    ],
)
def test_loading_without_workers(healthy: Snapshot, workers: int | None, cpus: float, expected: Verdict) -> None:
    seen = altered(asked(healthy, ranks=8, workers=workers), cpu__effective=cpus)
    assert verdict(seen, "dataloader-without-workers") is expected
    assert verdict(without_gpu(seen), "dataloader-without-workers") is NA


@pytest.mark.parametrize(
    ("workers", "cpus", "expected"), [(2, 16.0, PASS), (2, 15.9, FAIL), (3, 16.0, FAIL), (0, 1.0, PASS), (None, 1.0, NA)]
)
def test_more_workers_than_cpus(healthy: Snapshot, workers: int | None, cpus: float, expected: Verdict) -> None:
    seen = altered(asked(healthy, ranks=8, workers=workers), cpu__effective=cpus)
    assert verdict(seen, "dataloader-workers-exceed-cpus") is expected


@pytest.mark.parametrize(("cpus", "expected"), [(16.0, PASS), (15.9, FAIL), (8.0, FAIL)])
def test_a_cpu_for_a_worker_of_each_rank(healthy: Snapshot, cpus: float, expected: Verdict) -> None:
    seen = altered(asked(healthy, ranks=8), cpu__effective=cpus)
    assert lines(seen, "no-cpu-for-dataloader-workers") == [("DataLoader", expected)]


def test_no_worker_is_wanted_and_there_is_no_cpu_for_one(healthy: Snapshot) -> None:
    for workers, cpus, expected in ((0, 8.0, NA), (1, 8.0, FAIL), (0, 16.0, PASS)):
        seen = altered(asked(healthy, ranks=8, workers=workers), cpu__effective=cpus)
        assert verdict(seen, "no-cpu-for-dataloader-workers") is expected


def test_a_quota_that_was_not_seen(healthy: Snapshot) -> None:
    """64 CPUs are then an upper bound: what is too much for them is too much, what fits them may not fit."""
    unsure = altered(healthy, cpu__effective=DENIED, cpu__quota=DENIED)
    for rule_id in ("no-cpu-for-dataloader-workers", "dataloader-workers-exceed-cpus", "dataloader-without-workers"):
        assert verdict(asked(unsure, ranks=8, workers=0), rule_id) is UNKNOWN
    assert verdict(asked(unsure, ranks=64), "no-cpu-for-dataloader-workers") is FAIL
    assert verdict(asked(unsure, ranks=8, workers=9), "dataloader-workers-exceed-cpus") is FAIL
    assert verdict(asked(unsure, ranks=8, workers=8), "dataloader-workers-exceed-cpus") is UNKNOWN


@pytest.mark.parametrize(
    ("gpus", "driver", "pinned"),
    [
        (8, {}, True),
        (1, {}, True),
        (0, {"nvidia_devices": (), "amd_devices": ()}, False),
        (0, {"nvidia_devices": NOTHING, "amd_devices": NOTHING}, False),
        (0, {"nvidia_devices": DENIED}, False),  # nobody knows of a GPU
        (0, None, False),
    ],
)
def test_pinned_memory_serves_gpus(healthy: Snapshot, gpus: int, driver: Any, pinned: bool) -> None:
    """torch's guide: pin_memory pays with an accelerator, and is of no use without."""
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    seen = altered(asked(healthy, ranks=8), gpu__devices=healthy.gpu.devices[:gpus])
    if driver is None:
        seen = msgspec.structs.replace(seen, driver=UNTOLD)
    else:
        seen = altered(seen, **{f"driver__{name}": fact for name, fact in driver.items()})
    (item,) = result(seen, "no-cpu-for-dataloader-workers").evidence
    assert item.verdict is PASS
    assert f"pin_memory={pinned}," in item.seen
