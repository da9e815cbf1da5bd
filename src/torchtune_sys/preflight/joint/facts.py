"""The facts that each node sends to the others, from its snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.fleet import facts_file
from torchtune_sys.host.peers.addresses import OF_ONE_LINK
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.preflight.joint.gathered import NodeFacts, PeerInterface

_NO_QUOTA = 1e6
_CHOOSING = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def facts_of(seen: Snapshot, name: str, env: Mapping[str, str]) -> NodeFacts:
    """Return what is compared between nodes, and what says whether a node can be reached."""
    network, cpu = seen.network, seen.cpu
    interfaces: dict[str, PeerInterface] = {}
    own: tuple[str, ...] | None = None
    if not isinstance(network, Missing):
        for each in known(network.interfaces, ()):
            addresses = tuple(
                (address.address, known(address.prefix_length, 32 if address.family == "inet" else 128))
                for address in known(each.addresses, ())
                if address.family == "inet" or not address.address.startswith(OF_ONE_LINK)
            )
            mtu = known(each.mtu, None)
            interfaces[each.name] = PeerInterface(kind=each.kind, mtu=mtu, addresses=addresses)
        names = network.hostname_addresses
        is_unanswered = isinstance(names, Missing) and names.why not in (Why.ABSENT, Why.FAILED)
        own = None if is_unanswered or not interfaces else known(names, ())
    quota = 0.0 if isinstance(cpu, Missing) else known(cpu.quota, 0.0)
    return NodeFacts(
        name=name,
        env={key: env[key][:200] for key in _CHOOSING if key in env},
        interfaces=interfaces,
        own_name_addresses=own,
        cpu_quota=quota if 0 < quota < _NO_QUOTA else None,
        families=facts_file.facts(seen),
    )
