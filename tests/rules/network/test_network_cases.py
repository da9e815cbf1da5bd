"""Network faults as people met them, laid over the healthy host: the rule of their cause fails."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.rule import Evidence, Verdict

NODES = {"ranks": 8, "nodes": 2, "workers": 4}


def failing(rule: str, **overlay: Any) -> tuple[Evidence, ...]:
    result = judge(load("healthy", **overlay))[rule]
    assert result.verdict is Verdict.FAIL, result
    return tuple(item for item in result.evidence if item.verdict is Verdict.FAIL)


@pytest.mark.parametrize("value", ["ens8f1np1", "=bond0"])
def test_an_interface_that_is_not_there_is_named(value: str) -> None:
    """As in NVIDIA/nccl issue 1837."""
    (item,) = failing("nccl-wrong-interface", env={"NCCL_SOCKET_IFNAME": value})
    assert value in item.seen
    assert "eno1" in item.wanted


def test_gloo_gave_the_others_a_loopback_address() -> None:
    """As in pytorch/pytorch issue 15592."""
    assert failing("hostname-resolves-to-loopback", intent=NODES, answers={"hostname-addresses": ["127.0.1.1"]})


def test_a_job_was_given_a_port_that_is_down() -> None:
    """As in microsoft/mscclpp issue 493: of the ports that NCCL_IB_HCA names, one is down."""
    files: dict[str, Any] = {}
    for name, state, physical in (("mlx5_0", "4: ACTIVE", "5: LinkUp"), ("mlx5_1", "1: DOWN", "3: Disabled")):
        port = f"/sys/class/infiniband/{name}/ports/1"
        files |= {f"{port}/state": state, f"{port}/phys_state": physical, f"{port}/link_layer": "InfiniBand"}
    items = failing("ib-port-down", intent={"nodes": None}, env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, files=files)
    assert [item.subject for item in items] == ["mlx5_1:1"]


def test_the_default_gid_led_nowhere() -> None:
    """As in NVIDIA/nccl issue 426: completion with error 12, and entry 3 was found to work."""
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    files: dict[str, Any] = {f"{port}/link_layer": "Ethernet"}
    for index, (gid, kind) in enumerate(
        [
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1"),
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a01:000b", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a01:000b", "RoCE v2"),
        ]
    ):
        files |= {f"{port}/gids/{index}": gid, f"{port}/gid_attrs/types/{index}": kind}
    (item,) = failing("roce-gid-index", intent=NODES, files=files, env={"NCCL_IB_GID_INDEX": "0"})
    assert "entry 3" in item.wanted
