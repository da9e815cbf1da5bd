"""Rules on the host's own name, which Gloo and launchers look up."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, known_or_unknown, need, need_if_there
from torchtune_sys.rules.gates import may_span_hosts
from torchtune_sys.rules.network.loopback import NO_ANSWER

NAME_IN_HOSTS = Advice(text="map the host name to this host's network address in /etc/hosts or DNS, or set GLOO_SOCKET_IFNAME")
_NAME_IS_REWRITTEN = Advice(
    text="cloud-init with manage_etc_hosts writes /etc/hosts at each boot: change it in /etc/cloud/templates/hosts.*.tmpl; a container's file is its "
    "runtime's (docker run --add-host, hostAliases in Kubernetes)"
)


@rule(
    id="hostname-resolves-to-loopback",
    title="The host name resolves to a loopback address, and the job spans several hosts",
    severity=Severity.ERROR,
    cause="hostname-resolves-to-loopback",
    fix=(NAME_IN_HOSTS, _NAME_IS_REWRITTEN),
)
def hostname_loopback(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Gloo announces the address that this host's name resolves to; with 127.0.1.1 the other hosts connect to themselves.

    Why it matters
    Debian and Ubuntu write "127.0.1.1 HOSTNAME" into /etc/hosts, which is harmless on one host. In a multi-host job, Gloo (the
    backend of CPU groups, monitored barriers and object collectives) publishes this address, and the other hosts get "Connection
    refused".

    When to leave it
    Jobs never leave this machine, or all their groups use NCCL alone, which does not ask for the name. If GLOO_SOCKET_IFNAME is set, Gloo ignores
    the host name.

    References
    facebookincubator/gloo transport/tcp/device.cc, pytorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
    https://github.com/pytorch/pytorch/issues/15592
    """
    may_span_hosts(s)
    network = need(s.network)
    if need(network.gloo_interfaces):
        raise NotApplicable("GLOO_SOCKET_IFNAME names the interface")
    addresses = need_if_there(network.hostname_addresses, "the host name resolves to nothing")
    chosen = nccl.predict_gloo(need(network.interfaces), addresses).choices[0]
    loops = nccl.is_loopback(chosen.address) and any(nccl.is_loopback(address) for address in addresses)
    several = (s.intent.nodes or 1) > 1
    note = "; fine on one host, wrong for a job over several" if loops and not several else ""
    yield Evidence(
        subject=known_name(s),
        seen=f"{', '.join(addresses)}; Gloo would use {chosen.address}{note}",
        wanted="an address that the other hosts reach",
        verdict=Verdict.FAIL if loops and several else Verdict.PASS,
        source="getaddrinfo",
    )


def known_name(s: Snapshot) -> str:
    return "the host name" if isinstance(s.system, Missing) else known(s.system.hostname, "the host name")


@rule(
    id="hostname-unresolvable",
    title="The host cannot resolve its own name to an address of its own",
    severity=Severity.WARNING,
    cause="hostname-unresolvable",
    fix=(NAME_IN_HOSTS, _NAME_IS_REWRITTEN),
)
def hostname_unresolvable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The name resolves to nothing, or only to addresses that no interface of this host has.

    Why it matters
    Gloo then falls back, with a warning, to 127.0.0.1, which no other host can reach. torchrun and many logging and launching
    tools also look the name up, and fail or wait seconds for the name server's timeout at each look-up.

    When to leave it
    A container trains on one host and prints no such warning. With --nnodes 1 nothing is judged: loopback is enough for one host.

    References
    pytorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice)
    hosts(5), nss-myhostname(8); https://docs.cloud-init.io/en/latest/reference/modules.html#update-etc-hosts
    """
    network = need(s.network)
    may_span_hosts(s)
    if absent(network.hostname_addresses):
        yield Evidence(subject=known_name(s), seen="resolves to nothing", wanted="an address of this host", source="getaddrinfo")
        return
    if isinstance(network.hostname_addresses, Missing) and NO_ANSWER in network.hostname_addresses.detail:
        yield Evidence(
            subject=known_name(s),
            seen=f"{network.hostname_addresses.detail}: nothing on this host resolves it, and no name server answers",
            wanted="an address of this host",
            source="getaddrinfo",
        )
        return
    addresses = need(network.hostname_addresses)
    interfaces = need(network.interfaces)
    if s.intent.nodes is None and not _foreign_matters(s):
        return
    if "resolves to no address" in nccl.predict_gloo(interfaces, addresses).reason:
        yield Evidence(
            subject=known_name(s),
            seen=f"resolves to {', '.join(addresses)}, no address of this host",
            wanted="an address of this host",
            source="getaddrinfo",
        )


def _foreign_matters(s: Snapshot) -> bool:
    """Return whether it matters that others cannot reach the address. A container under its host's name or a cloud machine under its public one mostly works alone; a host with an active RDMA port does not."""
    return bool(nccl.usable_ports(known_or_unknown(need(s.network).rdma, ())))
