"""Whether a container has the GPUs that it was, or should have been, given, at the edges of the rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, verdict

from torchtune_sys.model.facts.driver import DeviceNode
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


def node(accessible: Any) -> DeviceNode:
    return DeviceNode(path="/dev/nvidia0", mode=0o660, uid=0, gid=44, accessible=accessible)


def build(seen: Snapshot) -> Torch:
    assert not isinstance(seen.python, Missing)
    assert not isinstance(seen.python.torch, Missing)
    return seen.python.torch


@pytest.mark.parametrize(
    ("nodes", "for_cuda", "expected"),
    [((), True, FAIL), ((), False, NA), ((node(True),), True, PASS), ((node(True),), False, PASS)],
)
def test_a_container_for_the_cpu_needs_no_gpus(
    healthy: Snapshot, nodes: tuple[DeviceNode, ...], for_cuda: bool, expected: Verdict
) -> None:
    torch = build(healthy) if for_cuda else msgspec.structs.replace(build(healthy), cuda=NOTHING, hip=NOTHING)
    seen = altered(healthy, system__container="docker", driver__device_nodes=nodes, python__torch=torch)
    assert verdict(seen, "container-without-gpu-devices") is expected
    void = altered(seen, session__env={"NVIDIA_VISIBLE_DEVICES": "void"})  # a pod that asked for none, with an image for GPUs
    assert verdict(void, "container-without-gpu-devices") is (UNKNOWN if expected is FAIL else expected)


@pytest.mark.parametrize(
    ("asked", "kind", "nodes", "from_windows", "expected"),
    [
        ("GPU-5c0ffee0-0000-5000-8000-000000000071", "kubernetes", (), False, FAIL),
        ("MIG-5c0ffee0-0000-5000-8000-000000000071", "docker", (), False, FAIL),
        ("GPU-5c0ffee0-0000-5000-8000-000000000071", "docker", (), True, NA),  # WSL brings /dev/dxg in, and no node of NVIDIA's
        ("GPU-5c0ffee0-0000-5000-8000-000000000071", "docker", (node(True),), False, NA),
        ("GPU-5c0ffee0-0000-5000-8000-000000000071", "docker", DENIED, False, NA),
        ("GPU-5c0ffee0-0000-5000-8000-000000000071", "", (), False, NA),  # a host: what its service was started with
        ("all", "docker", (), False, NA),
        ("0", "docker", (), False, NA),
        ("none", "docker", (), False, NA),
        ("void", "docker", (), False, NA),
    ],
)
def test_a_gpu_that_was_granted_by_its_uuid_is_to_be_there(
    healthy: Snapshot, asked: str, kind: str, nodes: Any, from_windows: bool, expected: Verdict
) -> None:
    seen = altered(
        healthy, system__container=kind, driver__device_nodes=nodes, driver__wsl=from_windows, python__torch=build(healthy)
    )
    seen = altered(
        seen, driver__nvidia_devices=(), session__env={"NVIDIA_VISIBLE_DEVICES": asked}
    )  # as in gVisor, which shows no bus
    assert verdict(seen, "container-without-gpu-devices") is expected
