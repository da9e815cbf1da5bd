"""What the kernel does to packets before they leave: queueing disciplines that limit or disturb."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import Interface
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, known, need

_LIMITS = "limits the rate"
_DISTURB = {"netem": "delays, loses or damages packets", **dict.fromkeys(("tbf", "htb", "hfsc", "cbq"), _LIMITS)}


@rule(
    id="network-interface-shaped",
    title="A traffic shaper or network emulator is set on an interface that the job uses",
    severity=Severity.WARNING,
    fix=(
        Advice(text="see what it does (tc -s qdisc show dev IF, tc class show dev IF), and remove it: tc qdisc del dev IF root"),
        Advice(
            text="if it comes back: NetworkManager (nmcli, tc.qdiscs), systemd.network ([NetworkEmulator], [TokenBucketFilter]), a script"
        ),
    ),
    nothing="no interface of the job tells its queueing discipline",
)
def network_interface_shaped(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The root queueing discipline of an interface with an address, or of the loopback, is netem, or one that limits the rate (tbf, htb, hfsc, cbq).

    Why it matters
    netem is for tests: it adds delay and loss, and is left behind. Every collective goes at the pace of the slowest link, and nothing else
    shows it: the interface has its full speed, and its counters are clean. On the loopback it hits the ranks of this host.

    When to leave it
    The limit is above what the job needs, or the interface is not the job's. Interfaces of bridges, and the host's ends of containers' links,
    are not judged, and a job on this host only (--nnodes 1) by its loopback alone. RDMA passes by.

    References
    tc-netem(8), tc-tbf(8), tc-htb(8); rtnetlink(7), IFLA_QDISC
    """
    for interface in need(need(s.network).interfaces):
        if not _carries(interface, s.intent.nodes == 1):
            continue
        discipline = interface.qdisc
        if isinstance(discipline, Missing):
            if discipline.why is not Why.NOT_RECORDED:
                yield unsure(interface.name, discipline)
            continue
        effect = _DISTURB.get(discipline, "")
        yield Evidence(
            subject=interface.name,
            seen=f"{discipline}: {effect}" if effect else discipline or "none",
            wanted="the kernel's own (mq, fq_codel, fq, noqueue …)",
            verdict=Verdict.FAIL if effect else Verdict.PASS,
            source="rtnetlink",
        )


def _carries(interface: Interface, alone: bool) -> bool:
    """Return whether packets of the job may leave by it: the loopback, and what has an address of its own, bridges apart."""
    if interface.kind == "loopback":
        return True
    if alone or interface.kind == "bridge" or known(interface.up, True) is False:
        return False
    return any(not item.address.startswith(("fe80:", "169.254.")) for item in known(interface.addresses, ()))
