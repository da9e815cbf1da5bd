"""The host's way to itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need
from torchtune_sys.rules.gates import gpu_count


@rule(
    id="loopback-unusable",
    title="The loopback interface is down, or has no address",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="ip link set lo up; ip address add 127.0.0.1/8 dev lo (a network namespace is made with lo down: unshare -n, some sandboxes)"
        ),
    ),
)
def loopback_unusable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """lo is down, or does not carry 127.0.0.1.

    Why it matters
    Ranks of one host meet over it (torchrun --standalone, MASTER_ADDR=localhost), and Gloo's and NCCL's first connections go to it where the
    host's name leads there: "Connection refused", "Network is unreachable", or a wait until the time-out.

    When to leave it
    One process trains, or all ranks meet at an address of another interface.

    References
    torch/distributed/launcher and torch/distributed/run.py (--standalone: localhost); network_namespaces(7); netdevice(7)
    """
    if (s.intent.ranks or 1) < 2 and (s.intent.nodes or 1) < 2 and not gpu_count(s):
        raise NotApplicable("no GPU, and several ranks were not asked for")
    interfaces = need(need(s.network).interfaces)
    loop = next((item for item in interfaces if item.kind == "loopback" and item.name == "lo"), None)
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


RULES: tuple[Rule, ...] = (loopback_unusable,)
