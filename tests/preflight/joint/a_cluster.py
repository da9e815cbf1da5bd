"""What the nodes of a healthy cluster told, to be changed by a test, and what is judged of it."""

from __future__ import annotations

from typing import Any

from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.compared import compared
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, LinkTest, Node
from torchtune_sys.preflight.joint.judge.whole import Whole, whole

WELL = LinkTest(connect="ok", small_s=1e-4, beyond=True, rates=(1e9, 1e9), sent=200, arrived=200)


def gathered(nodes: int = 4, **changed: Any) -> Gathered:
    """A healthy cluster."""
    members = {}
    for node in range(nodes):
        address = f"10.0.0.{node + 1}"
        facts = {
            "name": f"n{node}",
            "interfaces": {"eth0": {"kind": "ethernet", "mtu": 1500, "addresses": [(address, 24)]}},
            "own_name_addresses": [address],
            "env": {},
        }
        notes = {"facts": facts, "node": [], "worker/0": {"torch": "2.13.0"}}
        members[node] = Node(node=node, address=address, ranks=(0,), notes=notes, clock_offset_s=0.0)
    links = {(a, b): [WELL] for a in range(nodes) for b in range(nodes) if a != b}
    well = Compute(hardware="x", kind="x", kernel_s=(1.0, 1.01), weights="aa", share=0.9, gap=0.0)
    computes = {(node, 0): [well] * 2 for node in range(nodes)}
    answers = {(node, 0): {"ok": True} for node in range(nodes)}
    found = Gathered(nodes=nodes, members=members, links=links, computes=computes, collectives=[answers], complete=True)
    for name, value in changed.items():
        setattr(found, name, value)
    return found


def weighed(found: Gathered) -> Whole:
    """The verdict, once facts are compared."""
    found.differing = compared(found.members)
    return whole(found)


def said(verdict: Whole) -> dict[str, set[str]]:
    return {
        node.node: {cause.cause for cause in node.causes if cause.weight is Weight.FATAL}
        for node in verdict.nodes
        if node.verdict == "no-go"
    }
