"""A rule on what the ports of Ethernet count of damaged and lost packets."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent_or_unsupported, known, need

_CABLE = Advice(
    text="damaged packets: clean and seat the transceiver, replace the cable, then the port of the switch (ethtool -m NAME shows its light)"
)
_RINGS = Advice(
    text="packets that the host did not take in time: larger rings (ethtool -G NAME rx 8192), interrupts on several CPUs of the card's node (irqbalance), no "
    "power saving of the CPUs"
)


@rule(
    id="network-packets-damaged",
    title="A network port receives damaged packets, or loses what the host does not take in time",
    severity=Severity.WARNING,
    cause="packet-loss",
    params=(
        Param("damaged_per_million", 1, "damaged packets per million; a link within its standard has a hundred times fewer"),
        Param("missed_per_million", 1000, "packets per million for which there was no room in the card's ring"),
        Param("least", 1000, "packets of a kind below which they are not judged (a cable that was moved leaves some)"),
    ),
    fix=(_CABLE, _RINGS),
    nothing="no Ethernet port that is up counts its packets",
)
def network_packets_damaged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Of the packets that a port received since its driver was loaded, too many had a wrong checksum (rx_crc_errors), or found no room in the card's
    ring (rx_missed_errors).

    Why it matters
    TCP takes each loss for congestion, and sends more slowly; RoCE sends again from the lost packet on. One bad cable slows all ranks of a job.

    When to leave it
    The cable was replaced after the driver was loaded: the counters keep the old errors (modprobe -r or a restart clears them).

    References
    Linux Documentation/networking/statistics.rst and include/uapi/linux/if_link.h (rtnl_link_stats64: rx_crc_errors, rx_missed_errors)
    IEEE 802.3, bit error ratio of 1e-12 and better: one packet of 1500 bytes in 80 million
    """
    for port in need(need(s.network).interfaces):
        counted = port.counters
        if isinstance(counted, Missing):
            if not absent_or_unsupported(counted) and known(port.running, False):
                yield unsure(port.name, counted)
            continue
        packets = counted.get("rx_packets", 0)
        if not known(port.running, True) or not packets:
            continue
        faults = [
            f"{counted[name]:,} {word}"
            for name, word, share in (
                ("rx_crc_errors", "damaged", p["damaged_per_million"]),
                ("rx_missed_errors", "missed", p["missed_per_million"]),
            )
            if counted.get(name, 0) > max(float(p["least"]), packets * float(share) / 1e6)
        ]
        yield Evidence(
            subject=port.name,
            seen=f"{' and '.join(faults) or 'hardly any damaged or missed'} of {packets:,} packets",
            wanted="hardly any",
            verdict=Verdict.FAIL if faults else Verdict.PASS,
            source=f"/sys/class/net/{port.name}/statistics",
        )
