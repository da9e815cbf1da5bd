"""Read the kernel's statistics of a TCP connection (struct tcp_info in linux/tcp.h)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_FIELDS = struct.Struct("=16xI4xI72xI32xII4xI40xI28xI")
_NO_SAMPLE = 0xFFFFFFFF


class TcpInfo(NamedTuple):
    """Counts of segments since the connection began, and a time; 0 of what the kernel is too old for."""

    retransmits: int = 0
    """tcpi_total_retrans."""
    sent: int = 0
    """tcpi_segs_out."""
    received: int = 0
    """tcpi_segs_in."""
    least_rtt_us: int = 0
    """tcpi_min_rtt, since Linux 4.6; 0 where nothing was measured yet."""
    delivered: int = 0
    """tcpi_delivered, since Linux 4.18: what the other kernel has, also beyond a gap; so it grows evenly where packets are lost."""
    segment: int = 0
    """tcpi_snd_mss: bytes of a full segment."""
    disordered: int = 0
    """tcpi_rcv_ooopack, since Linux 5.4."""
    in_flight: int = 0
    """tcpi_unacked: segments that were sent and not acknowledged. None are where the other process does not read and its kernel takes no more."""


def tcp_info(held: socket.socket) -> TcpInfo:
    """Return the kernel's figures of a connection, all zero where the socket is closed."""
    try:
        told = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS.size)
    except (OSError, AttributeError):  # a transport that is closed has no socket
        return TcpInfo()
    values = _FIELDS.unpack(told.ljust(_FIELDS.size, b"\0"))
    segment, in_flight, retransmits, sent, received, least_us, delivered, disordered = values
    least_us = 0 if least_us == _NO_SAMPLE else least_us
    return TcpInfo(retransmits, sent, received, least_us, delivered, segment, disordered, in_flight)
