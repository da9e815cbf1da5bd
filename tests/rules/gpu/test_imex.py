"""Memory shared between hosts over NVLink: only where the fabric spans hosts and the job does, too."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.rule import Verdict

GPU = {"index": 0, "name": "NVIDIA GB200", "pci_address": "0000:1b:00.0", "fabric_state": "completed", "fabric_of_hosts": True}
NONE = {"$missing": "not-supported", "source": "NVML"}
OLD = {"$missing": "not-recorded", "source": "NVML"}
UNSEEN = {"$missing": "failed", "source": "NVML"}


def verdict(gpu: dict[str, Any] | None = None, nodes: int | None = 2, **overlay: Any) -> Verdict:
    nvml = {"driver_version": "580.95.05", "cuda_driver_version": "13.0", "devices": [{**GPU, **(gpu or {})}]}
    return judge(load("base-single-gpu", intent={"nodes": nodes}, answers={"nvml": nvml}, **overlay))["imex-not-ready"].verdict


@pytest.mark.parametrize(
    ("gpu", "nodes", "wanted"),
    [
        ({}, 2, Verdict.FAIL),
        ({}, 1, Verdict.NA),
        ({}, None, Verdict.NA),
        ({"fabric_of_hosts": False}, 2, Verdict.NA),
        ({"fabric_of_hosts": NONE}, 2, Verdict.NA),
        ({"fabric_of_hosts": UNSEEN}, 2, Verdict.UNKNOWN),
        ({"fabric_of_hosts": OLD}, 2, Verdict.UNKNOWN),
        ({"fabric_of_hosts": OLD, "name": "NVIDIA H100 80GB HBM3"}, 2, Verdict.NA),
        ({"fabric_state": "in-progress"}, 2, Verdict.NA),
        ({"mig": True}, 2, Verdict.NA),
    ],
)
def test_who_needs_it(gpu: dict[str, Any], nodes: int | None, wanted: Verdict) -> None:
    assert verdict(gpu, nodes) is wanted


def test_nccl_that_is_told_to_do_without() -> None:
    assert verdict(env={"NCCL_MNNVL_ENABLE": "0"}) is Verdict.NA
    assert verdict(env={"NCCL_MNNVL_ENABLE": "2"}) is Verdict.FAIL


def test_both_are_needed() -> None:
    channel = {"/dev/nvidia-caps-imex-channels/channel0": ""}
    service = {"/sys/fs/cgroup/system.slice/nvidia-imex.service/cgroup.procs": "1"}
    assert verdict(files=channel) is verdict(files=service) is Verdict.FAIL
    assert verdict(files={**channel, **service}) is Verdict.PASS
