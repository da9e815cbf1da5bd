"""Limits of the session and of services, shared memory, huge pages and killed processes, from both sides of each mark (limits)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from limits_hosts import (
    DENIED,
    FAIL,
    GIB,
    MIB,
    NA,
    NOTHING,
    PASS,
    TIB,
    UNKNOWN,
    changed,
    judged,
    limited,
    with_intent,
    without_gpus,
)

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules.limits.common import below, count
from torchtune_sys.rules.limits.tasks import tasks_needed

# --- limits of the session


@pytest.mark.parametrize(
    ("rule_id", "name", "enough", "also"),
    [
        ("memlock-limit-too-low", "memlock", 128 * MIB, {}),
        ("memlock-limit-finite", "memlock", 16 * GIB, {}),
        ("address-space-limit", "as", 16 * TIB, {}),
        ("file-size-limit", "fsize", TIB, {}),
        ("data-segment-limit", "data", 1000 * GIB, {}),
        ("nofile-soft-limit-low", "nofile", 256, {"workers": 4}),  # 64 for each worker
        ("nofile-soft-limit-low", "nofile", 4096, {"workers": 1000}),
        ("nproc-limit-too-low", "nproc", 1024, {"ranks": 1, "threads": 1}),
    ],
)
def test_soft_limits_at_the_mark(healthy: Snapshot, rule_id: str, name: str, enough: int, also: dict[str, Any]) -> None:
    seen = changed(with_intent(healthy, **also), "memory", total_bytes=1000 * GIB)
    seen = changed(seen, "limits", ipc_lock=False)
    assert judged(limited(seen, name, enough), rule_id).verdict is PASS
    assert judged(limited(seen, name, enough - 1), rule_id).verdict is FAIL
    assert judged(limited(seen, name, enough - 1, enough * 9), rule_id).verdict is FAIL
    assert judged(limited(seen, name, None), rule_id).verdict is PASS


def test_the_hard_limit_on_files(healthy: Snapshot) -> None:
    for hard, expected in ((8192, PASS), (8191, FAIL), (None, PASS)):
        assert judged(limited(healthy, "nofile", 1024, hard), "nofile-limit-too-low").verdict is expected


@pytest.mark.parametrize(("holds", "expected"), [(True, NA), (False, FAIL), (DENIED, FAIL)])
def test_a_capability_lifts_the_limit_on_locked_memory(healthy: Snapshot, holds: Any, expected: Verdict) -> None:
    seen = limited(changed(healthy, "limits", ipc_lock=holds), "memlock", 8 * MIB)
    assert judged(seen, "memlock-limit-too-low").verdict is expected


@pytest.mark.parametrize(
    ("call", "soft", "low", "finite"),
    [
        ("ibv_reg_mr", 64 * GIB, FAIL, PASS),  # whatever the number says, it was too low
        ("ibv_reg_mr", None, PASS, PASS),
        ("", 64 * GIB, PASS, PASS),
        (DENIED, 64 * GIB, PASS, PASS),
        (DENIED, 1, FAIL, NA),
    ],
)
def test_a_call_that_is_known_to_have_failed(
    healthy: Snapshot, call: Any, soft: int | None, low: Verdict, finite: Verdict
) -> None:
    seen = limited(changed(healthy, "limits", pinning_failed=call, ipc_lock=False), "memlock", soft)
    assert judged(seen, "memlock-limit-too-low").verdict is low
    assert judged(seen, "memlock-limit-finite").verdict is finite
    bare = without_gpus(seen)
    assert judged(bare, "memlock-limit-too-low").verdict is (low if call == "ibv_reg_mr" else NA)


def test_a_session_of_whose_limits_nothing_is_known(healthy: Snapshot) -> None:
    for rule_id in ("memlock-limit-too-low", "memlock-limit-finite"):
        assert judged(msgspec.structs.replace(healthy, limits=DENIED), rule_id).verdict is UNKNOWN
        assert judged(without_gpus(msgspec.structs.replace(healthy, limits=DENIED)), rule_id).verdict is NA


def test_limits_in_words() -> None:
    assert (count(None), count(0), count(1024)) == ("unlimited", "0", "1024")
    assert not below(None, 5) and not below(5, 5) and below(4, 5)


@pytest.mark.parametrize(
    ("remove", "slurm", "expected"),
    [
        (True, True, FAIL),
        (False, True, PASS),
        (True, False, NA),
        (NOTHING, True, NA),
        (NOTHING, DENIED, NA),
        (DENIED, True, UNKNOWN),
        (True, DENIED, UNKNOWN),
    ],
)
def test_logind_under_slurm(healthy: Snapshot, remove: Any, slurm: Any, expected: Verdict) -> None:
    assert judged(changed(healthy, "limits", remove_ipc=remove, slurm=slurm), "logind-removes-ipc").verdict is expected


@pytest.mark.parametrize(
    ("intent", "cores", "tasks"),
    [
        ({"ranks": 1, "threads": 4}, 32, 36),
        ({"ranks": 1}, 32, 64),  # a single process takes a thread per core
        ({"ranks": 2}, 32, 66),  # torchrun gives several ranks one each
        ({"ranks": 3}, 32, 99),
        ({"ranks": 1}, DENIED, 33),
        ({"ranks": 2, "threads": 4, "workers": 8}, 32, 136),
        ({"ranks": 1, "threads": 0, "workers": 1}, 32, 36),
        ({"ranks": 1, "threads": 1, "workers": 0}, 32, 33),
    ],
)
def test_tasks_that_training_takes(healthy: Snapshot, intent: dict[str, Any], cores: Any, tasks: int) -> None:
    assert tasks_needed(changed(with_intent(healthy, **intent), "cpu", cores=cores)) == tasks


def test_tasks_on_a_host_of_whose_processor_nothing_is_known(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(with_intent(healthy, ranks=1), cpu=DENIED)
    assert tasks_needed(seen) == 33


@pytest.mark.parametrize(
    ("most", "taken", "expected"),
    [
        (133.0, 100, PASS),
        (132.0, 100, FAIL),
        (33.0, DENIED, PASS),
        (32.0, DENIED, FAIL),
        (math.inf, 100, NA),
        (DENIED, 1, UNKNOWN),
    ],
)
def test_tasks_that_the_cgroup_has_room_for(healthy: Snapshot, most: Any, taken: Any, expected: Verdict) -> None:
    seen = changed(with_intent(healthy, ranks=1, threads=1), "limits", pids_max=most, pids_current=taken)
    assert judged(seen, "cgroup-pids-limit").verdict is expected
