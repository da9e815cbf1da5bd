"""Rules on the CPUs that serve the interrupts of the network that training uses."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent_or_unsupported, known, need
from torchtune_sys.rules.gates import nodes_beside, several_cpu_nodes
from torchtune_sys.rules.nccl.common import interface_named, prediction, several_hosts, sockets_carry_data

_FEW = 4
"""Interrupts that must have been seen before a card is judged."""


@rule(
    id="network-interrupts-far",
    title="Interrupts of the training network are handled on a different NUMA node than the card's",
    severity=Severity.ADVICE,
    applies=several_hosts,
    fix=(
        Advice(
            text="run irqbalance, or bind the interrupts to the CPUs in /sys/class/net/NAME/device/local_cpulist (the driver's "
            "set_irq_affinity script)"
        ),
    ),
    nothing="no fast Ethernet card with known interrupts and NUMA node",
)
def network_interrupts_far(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL's or Gloo's data goes over TCP on a link of 25 Gb/s or more, and none of its card's first interrupts is handled on the socket of the card's NUMA
    node.

    Why it matters
    Each packet is written to memory at the card's node and read from the other node: the CPUs there saturate sooner, and the link
    cannot be filled.

    When to leave it
    The ranks that use the network are deliberately bound to that other node. RDMA is not judged: it polls and needs no
    interrupts.

    References
    Linux Documentation/core-api/irq/irq-affinity.rst (effective_affinity); irqbalance(1)
    RHEL 7 Performance Tuning Guide, appendix A.1 (irqbalance)
    """
    if not sockets_carry_data(s):
        raise NotApplicable("RDMA carries the data")
    nodes = several_cpu_nodes(s)
    cpus_of = {node.id: need(node.cpus) for node in nodes}
    homes = {node.id: {cpu for each in nodes_beside(node, nodes) for cpu in cpus_of.get(each, ())} for node in nodes}
    for item in prediction(s).choices:
        interface = interface_named(need(s.network), item.interface)
        if interface is None:
            continue
        if isinstance(interface.numa_node, Missing) and interface.numa_node.why is Why.HIDDEN:
            yield unsure(item.interface, interface.numa_node)
            continue
        home = known(interface.numa_node, -1)
        if interface.kind != "ethernet" or home not in homes:
            continue
        cpus = interface.interrupt_cpus
        if isinstance(cpus, Missing):
            if not absent_or_unsupported(cpus):
                yield unsure(item.interface, cpus)
            continue
        if len(cpus) < _FEW:
            continue
        near = sum(cpu in homes[home] for cpu in cpus)
        yield Evidence(
            subject=item.interface,
            seen=f"{near} of the first {len(cpus)} interrupts on the socket of node {home}, where the card is",
            wanted="" if near else f"CPUs of node {home}",
            verdict=Verdict.PASS if near else Verdict.FAIL,
            source="/proc/irq/*/effective_affinity_list",
        )
