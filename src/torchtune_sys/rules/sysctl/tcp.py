"""Settings of TCP, for jobs whose traffic between hosts it carries."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Sysctl
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import Exactly
from torchtune_sys.rules.sysctl.policy import judged, slow_start_target, tcp_between_hosts, tcp_rmem_target, tcp_wmem_target


@rule(
    id="tcp-buffer-ceiling-low",
    title="TCP buffers cannot grow large enough for the link",
    severity=Severity.ADVICE,
    fix=(
        Sysctl(key="net.ipv4.tcp_rmem", target=Exactly("4096 131072 16777216")),
        Sysctl(key="net.ipv4.tcp_wmem", target=Exactly("4096 16384 16777216")),
    ),
    applies=tcp_between_hosts,
)
def tcp_buffer_ceiling_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The third value of tcp_rmem or tcp_wmem, the maximum size of an autotuned buffer, is low for a job that uses TCP.

    Why it matters
    A socket cannot have more data in flight than its buffer holds, so throughput is limited to maximum buffer size / round-trip
    time. Old tuning files often set less than the default of newer kernels.

    When to leave it
    Round trips are short and one stream fills the link (iperf3).

    References
    Linux Documentation/networking/ip-sysctl.rst, tcp_rmem: rmem_max does not bound automatic tuning. tuned 2.28, network-throughput.
    """
    yield judged(s, "net.ipv4.tcp_rmem", tcp_rmem_target(s, p))
    yield judged(s, "net.ipv4.tcp_wmem", tcp_wmem_target(s, p))


@rule(
    id="tcp-slow-start-after-idle",
    title="TCP connections go back to slow start after a pause of 0.2 seconds or more",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="net.ipv4.tcp_slow_start_after_idle", target=Exactly("0")),),
    applies=tcp_between_hosts,
)
def tcp_slow_start_after_idle(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The congestion window is reset when a connection has been idle for longer than its retransmission timeout (at least 200 ms).

    Why it matters
    Each burst of gradients then starts with a small window and needs several round trips to fill the link.

    When to leave it
    Steps take less than 200 ms, so connections are never idle that long; or the links carry a lot of other traffic that sudden
    bursts would crowd out.

    References
    Linux Documentation/networking/ip-sysctl.rst, tcp_slow_start_after_idle (RFC 2861); tuned 2.28, network-throughput: 0.
    """
    yield judged(s, "net.ipv4.tcp_slow_start_after_idle", slow_start_target(s, p))


@rule(
    id="tcp-feature-switched-off",
    title="TCP window scaling or selective acknowledgements are switched off",
    severity=Severity.WARNING,
    fix=(
        Sysctl(key="net.ipv4.tcp_window_scaling", target=Exactly("1")),
        Sysctl(key="net.ipv4.tcp_sack", target=Exactly("1")),
    ),
    applies=tcp_between_hosts,
)
def tcp_feature_switched_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """net.ipv4.tcp_window_scaling or net.ipv4.tcp_sack is 0; both are on by default, and both sides of a connection must want them.

    Why it matters
    Without window scaling at most 64 KiB are on their way: 1 Gb/s at a round trip of 0.5 ms, whatever the link. Without selective
    acknowledgements one lost packet has a whole window sent again. Old hardening guides switch them off.

    When to leave it
    A device on the way cannot handle them.

    References
    Linux Documentation/networking/ip-sysctl.rst (tcp_window_scaling, tcp_sack); RFC 7323, RFC 2018
    """
    for key in ("net.ipv4.tcp_window_scaling", "net.ipv4.tcp_sack"):
        yield judged(s, key, Exactly("1"))
