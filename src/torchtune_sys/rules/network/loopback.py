"""The host's way to itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.network import Interface
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, need
from torchtune_sys.rules.gates import gpu_count, torch_build

NO_ANSWER = "Temporary failure in name resolution"
"""EAI_AGAIN as glibc words it."""


@rule(
    id="loopback-unusable",
    title="The loopback interface is down, or has no address",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="ip link set lo up; ip address add 127.0.0.1/8 dev lo (in a new network namespace lo is down: unshare -n, some "
            "sandboxes)"
        ),
    ),
)
def loopback_unusable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """lo is down, or does not have the address 127.0.0.1.

    Why it matters
    Ranks on one host connect over it (torchrun --standalone, MASTER_ADDR=localhost), as do Gloo and NCCL if the host name
    resolves to it. They fail with "Connection refused" or "Network is unreachable", or wait until the timeout.

    When to leave it
    A single process trains, or all ranks use an address of another interface.

    References
    torch/distributed/launcher and torch/distributed/run.py (--standalone: localhost); network_namespaces(7); netdevice(7)
    """
    _ranks_meet(s)
    loop = _loop(s)
    if loop is None:
        raise NotApplicable("no interface lo is listed")
    up = need(loop.up)
    there = up and any(address.family == "inet" and address.address.startswith("127.") for address in need(loop.addresses))
    bad = "" if there else "has no address 127.0.0.1" if up else "is down"
    yield Evidence(
        subject="lo",
        seen=bad or "up, with 127.0.0.1",
        wanted="up, with 127.0.0.1",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source="getifaddrs",
    )


@rule(
    id="localhost-not-loopback",
    title="The name localhost does not resolve to this host",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text='put "127.0.0.1 localhost" and "::1 localhost" into /etc/hosts (for a container: with --add-host; where cloud-init writes the '
            "file at each boot, into /etc/cloud/templates/hosts.*.tmpl)"
        ),
    ),
)
def localhost_not_loopback(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """localhost does not resolve, resolves first to another host's address, or only to an IPv6 loopback that this host does not have.

    Why it matters
    Ranks on one host find each other through it (torchrun --standalone, MASTER_ADDR=localhost). They fail with "Name or service
    not known" or "Cannot assign requested address", or wait until the timeout.

    When to leave it
    A single process trains, or all ranks use a numeric address.

    References
    torch/distributed/run.py (--standalone: localhost); hosts(5), getaddrinfo(3), RFC 6761 section 6.3
    """
    found = need(s.network).localhost_addresses
    wanted = "127.0.0.1, or ::1 where the loopback has it"
    if found == () or (isinstance(found, Missing) and NO_ANSWER in found.detail):
        silent = (
            f"{found.detail}: nothing on this host resolves it, and no name server answers" if isinstance(found, Missing) else ""
        )
        seen = silent or "resolves to nothing"
        yield Evidence(subject="localhost", seen=seen, wanted=wanted, source="getaddrinfo")
        return
    addresses = need(found)
    bad = "" if addresses[0].startswith("127.") else _not_here(s, addresses)
    yield Evidence(
        subject="localhost",
        seen=bad or ", ".join(addresses),
        wanted=wanted,
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source="getaddrinfo",
    )


def _not_here(s: Snapshot, addresses: tuple[str, ...]) -> str:
    """Return why the first of the addresses, which is tried first, does not lead here; ``""`` if it does, as the own address of an interface does,
    too. An IPv6 loopback that is not there refuses at once, and the next address is tried."""
    loop = _loop(s)
    no_ipv6 = loop is None or not any(item.family == "inet6" for item in need(loop.addresses))
    left = [address for address in addresses if address != "::1" or not no_ipv6]
    if not left:
        return "resolves to ::1 alone, and the loopback has no IPv6 address"
    if left[0] == "::1" or left[0].startswith("127."):
        return ""
    own = {item.address for interface in need(need(s.network).interfaces) for item in need(interface.addresses)}
    return "" if left[0] in own else f"resolves to {', '.join(addresses)}"


def _ranks_meet(s: Snapshot) -> None:
    """Require a job that may have several ranks: only the words for one, or a host on which nothing trains, tell that none has."""
    if (s.intent.ranks or 1) >= 2 or (s.intent.nodes or 1) >= 2 or gpu_count(s):
        return
    if s.intent.ranks == 1:
        raise NotApplicable("no GPU, and a job of one rank was specified")
    torch_build(s)


def _loop(s: Snapshot) -> Interface | None:
    interfaces = need(need(s.network).interfaces)
    return next((item for item in interfaces if item.kind == "loopback" and item.name == "lo"), None)
