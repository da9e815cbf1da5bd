"""What the host's firewall logged that it dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, interfaces_told, is_pasted, variables_told
from torchtune_sys.model.values import Missing, known
from torchtune_sys.rules.kernel.common import DAYS, grouped, none_logged, recent, seen_in_log
from torchtune_sys.rules.nccl.common import several_hosts

_RENDEZVOUS = (29400, 29500)
"""torchrun's own port for c10d, and that of torch.distributed's examples and launchers."""
_SYSTEM, _SEVERAL = 1024, 3
_EPHEMERAL = 32768
"""Linux's first (net.ipv4.ip_local_port_range): where NCCL and Gloo listen."""


def _is_of_several_hosts(s: Snapshot) -> None:
    """Require a job over several hosts, or a log that somebody pasted: whoever reports a failure tells no number of hosts with it."""
    if not is_pasted(s):
        several_hosts(s)


@rule(
    id="firewall-drops-connections-logged",
    title="The firewall drops connections of other hosts that a training job would make",
    severity=Severity.WARNING,
    cause="firewall-blocks-nccl",
    applies=_is_of_several_hosts,
    fix=(
        Advice(
            text="let the hosts of the job in on all ports: ufw allow from NETWORK/BITS; firewall-cmd --zone=trusted --add-source=NETWORK/BITS --permanent"
        ),
        Advice(text="or switch the firewall off for the interface of the training network"),
    ),
    params=(DAYS,),
)
def firewall_drops_connections_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log of a job over several hosts tells of a TCP connection that ufw or firewalld (LogDenied) refused: to the rendezvous' port, or from a host
    of the same network to a port above 32767, where NCCL and Gloo listen.

    Why it matters
    Ranks wait for each other until init_process_group or NCCL's first collective times out. MASTER_PORT alone is not enough: NCCL and Gloo choose ports by
    themselves, each rank others.

    When to leave it
    The host that was refused has no part in the job.

    References
    https://github.com/NVIDIA/nccl/issues/207; Linux net/netfilter/nf_log_syslog.c; ufw(8), firewalld.conf(5), LogDenied
    """
    refused = grouped(recent(s, p, "firewall-drop"))
    dropped = tuple(event for events in refused.values() if not _is_scan(events) for event in events if _is_of_a_job(s, event))
    for peer, events in grouped(dropped).items():
        ports = ", ".join(dict.fromkeys(str(event.code) for event in events[:8]))
        yield seen_in_log(s, f"connections from {peer}", f"refused at port {ports}", events, "accepted")
    if not dropped:
        yield from none_logged(s, "firewall", "refused connection of a job")


def _is_scan(events: Sequence[KernelEvent]) -> bool:
    """Return whether one host tried the ports of several system services: a scanner of vulnerabilities tries all others, too."""
    return len({event.code for event in events if event.code < _SYSTEM}) >= _SEVERAL


def _is_of_a_job(s: Snapshot, event: KernelEvent) -> bool:
    env = variables_told(s)
    if event.code in (*_RENDEZVOUS, natural(env.get("MASTER_PORT", ""))):
        return True
    return event.code >= _EPHEMERAL and _is_near(s, event.subject)


def _is_near(s: Snapshot, peer: str) -> bool:
    """Return whether an address is of a network of this host's own interfaces."""
    from ipaddress import ip_address, ip_interface

    interfaces = interfaces_told(s)
    try:
        address = ip_address(peer)
        nets = [
            ip_interface(f"{item.address}/{item.prefix_length}").network
            for interface in interfaces
            for item in known(interface.addresses, ())
            if interface.kind != "loopback" and not isinstance(item.prefix_length, Missing)
        ]
    except ValueError:
        return False
    return any(address in net for net in nets)
