"""What people say of a fault: taken where they found it, not where they ask, deny, guess or advise."""

from __future__ import annotations

import pytest

from torchtune_sys.diagnosis import stated_causes
from torchtune_sys.diagnosis.lines import lines_of
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE


def _named(text: str) -> list[str]:
    lines = {"x": lines_of(enumerate(text.split("\n"), 1))}
    return [candidate.cause for symptom in stated_causes.symptoms_of(lines) for candidate in symptom.candidates]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("It hangs. I disabled the firewall on both nodes. Now it works.", "firewall-blocks-nccl"),
        (
            "I tried three drivers and nothing changed, but setting NCCL_SOCKET_IFNAME=bond0 solved the hang.",
            "nccl-wrong-interface",
        ),
        ("NCCL fails. If I run with NCCL_IB_DISABLE=1, everything works fine.", "roce-gid-index"),
        ("The ranks time out. Root cause: **ACS enabled in BIOS**.", "p2p-blocked-by-iommu-acs"),
        ("NCCL is stuck; it turned out that the nodes had different MTUs.", "mtu-differs-between-nodes"),
        ("Training over InfiniBand fails because of a broken cable on node 4.", "ib-port-down"),
        ("The IB card is dead on node-7, all jobs there fail.", "rdma-adapter-failed"),
        (
            "All nodes fail to register. Clocks on the compute nodes are off by 4 minutes, says the credential error.",
            "clock-skew",
        ),
    ],
)
def test_a_finding_is_taken(text: str, cause: str) -> None:
    assert _named(text)[:1] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "It hangs. Does disabling the firewall help?",
        "It hangs. Disabling the firewall did not help.",
        "It hangs. Disabling the firewall may help.",
        "It hangs. If you set NCCL_IB_DISABLE=1, everything works fine.",
        "It hangs. We usually solved this by disabling the firewall.",
        "It hangs. This PR disables ACS, which solved the problem.",
        "It hangs. Could it be caused by different MTUs on the nodes?",
        "It hangs. The problem is not a broken cable.",
        "It hangs. The documentation says that a broken cable is the cause.",
        "We run with NCCL_P2P_DISABLE=1 and everything works fine.",
        "Everything works since the beginning with iommu=pt.",
    ],
)
def test_what_nobody_found_is_not_taken(text: str) -> None:
    assert _named(text) == []


def test_several_causes_are_possible_and_one_is_likely() -> None:
    weights = {
        text: {
            candidate.weight
            for symptom in stated_causes.symptoms_of({"x": lines_of([(1, text)])})
            for candidate in symptom.candidates
        }
        for text in ("Setting NCCL_SOCKET_IFNAME=eth1 solved it.", "Setting NCCL_IB_DISABLE=1 solved it.")
    }
    assert list(weights.values()) == [{LIKELY}, {POSSIBLE}]
