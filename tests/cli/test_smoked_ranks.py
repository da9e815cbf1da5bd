"""How many ranks the smoke test starts, by the GPUs that CUDA will show it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys.cli.smoke_run import _ranks, _visible
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


def with_gpus(seen: Snapshot, count: int, **changes: Any) -> Snapshot:
    """The first ``count`` GPUs, the first of them changed."""
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    first, *others = seen.gpu.devices[:count]
    devices = (msgspec.structs.replace(first, **changes), *others)
    return msgspec.structs.replace(seen, gpu=msgspec.structs.replace(seen.gpu, devices=devices))


def shown(seen: Snapshot, listed: str) -> Snapshot:
    assert not isinstance(seen.session, Missing) and not isinstance(seen.session.env, Missing)
    env = {**seen.session.env, "CUDA_VISIBLE_DEVICES": listed}
    return msgspec.structs.replace(seen, session=msgspec.structs.replace(seen.session, env=env))


@pytest.mark.parametrize(
    ("count", "changes", "ranks"),
    [
        (8, {}, 8),
        (1, {}, 2),
        (8, {"mig": True, "mig_instances": 7}, 2),
        (8, {"mig": True, "mig_instances": 0}, 8),
        (1, {"compute_mode": "exclusive-process"}, 1),
        (8, {"compute_mode": "exclusive-process"}, 8),
    ],
)
def test_ranks(healthy: Snapshot, count: int, changes: dict[str, Any], ranks: int) -> None:
    assert _ranks(with_gpus(healthy, count, **changes)) == ranks


@pytest.mark.parametrize(("listed", "ranks"), [("1,2,3", 3), ("0,1", 2), ("3", 2), ("", 2)])
def test_only_what_is_visible_counts(healthy: Snapshot, listed: str, ranks: int) -> None:
    assert _ranks(shown(healthy, listed)) == ranks


def test_an_instance_on_a_gpu_that_is_not_visible_does_not_count(healthy: Snapshot) -> None:
    partitioned = with_gpus(healthy, 8, mig=True, mig_instances=7)
    assert _ranks(shown(partitioned, "1,2,3")) == 3
    assert _ranks(shown(partitioned, "0,1,2")) == 2


def test_torch_must_see_what_nvml_shows_unless_it_may_count_otherwise(healthy: Snapshot) -> None:
    assert _visible(with_gpus(healthy, 8)) == 8
    assert _visible(shown(healthy, "1,2,3")) == 3
    assert _visible(with_gpus(healthy, 8, mig=True)) == 0  # one instance stands for all
    assert (
        _visible(with_gpus(healthy, 8, name="NVIDIA A40")) == 0
    )  # the order is not known; NVML may show a GPU that CUDA leaves out
    assert not isinstance(healthy.gpu, Missing)
    none = msgspec.structs.replace(healthy.gpu, devices=())
    assert _visible(msgspec.structs.replace(healthy, gpu=none)) == 0  # on the bus of a container are those of others, too
