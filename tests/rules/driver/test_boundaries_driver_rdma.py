"""By which way network cards reach GPU memory, and which of their ports is the active one, from both sides of each mark."""

from __future__ import annotations

import msgspec
import pytest
from altered import DENIED, FAIL, PASS, altered, asked, result

from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Unknown, Why
from torchtune_sys.rules import gates

UNTOLD = Missing(Why.NOT_SUPPORTED, "test")


@pytest.mark.parametrize(
    ("kernel", "flavour", "peermem", "expected", "ways"),
    [
        ("5.12", "open", False, PASS, "DMA-BUF"),
        ("5.11.22", "open", False, FAIL, ""),
        ("6.8.0-45-generic", "proprietary", False, FAIL, ""),
        ("6.8.0-45-generic", "open", True, PASS, "nvidia-peermem and DMA-BUF"),
        ("6.8.0-45-generic", "proprietary", True, PASS, "nvidia-peermem"),
    ],
)
def test_by_which_way_cards_reach_gpu_memory(
    healthy: Snapshot, kernel: str, flavour: str, peermem: bool, expected: Verdict, ways: str
) -> None:
    facts = {"driver__module_flavour": flavour, "driver__peermem_loaded": peermem, "system__kernel": kernel}
    found = result(altered(asked(healthy, nodes=2), **facts), "gpudirect-rdma-disabled")
    assert found.verdict is expected
    assert found.evidence[0].seen == ways or expected is FAIL


@pytest.mark.parametrize("state", [DENIED, UNTOLD])
def test_a_port_of_unknown_state_may_be_the_active_one(healthy: Snapshot, state: Missing) -> None:
    assert not isinstance(healthy.network, Missing)
    assert not isinstance(healthy.network.rdma, Missing)
    device = healthy.network.rdma[0]
    devices = (msgspec.structs.replace(device, ports=(msgspec.structs.replace(device.ports[0], state=state),)),)
    with pytest.raises(Unknown):
        gates.rdma_active(altered(healthy, network__rdma=devices))
