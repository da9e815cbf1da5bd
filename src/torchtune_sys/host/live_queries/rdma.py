"""The error counters of all RDMA ports, read twice."""

from __future__ import annotations

import os
import time
from typing import Any

from torchtune_sys.host.base import missing_from
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_ROOT = "/sys/class/infiniband"
_WINDOW_S = 1.0
COUNTERS = (
    *(f"counters/{name}" for name in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")),
    *(f"counters/{name}" for name in ("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_discards")),
    *(f"hw_counters/{name}" for name in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")),
    *(f"hw_counters/{name}" for name in ("roce_adp_retrans", "roce_slow_restart", "np_cnp_sent", "rp_cnp_handled")),
)


def counters(_argument: str, timeout_s: float, root: str = _ROOT) -> Fact[dict[str, Any]]:
    """Return ``{"seconds", "ports": {"mlx5_0:1": {"symbol_error": [first, second]}}}``: what is there, whole numbers only."""
    try:
        ports = [(device, port) for device in sorted(os.listdir(root)) for port in _ports(root, device)]
    except OSError as error:
        return missing_from(error, root)
    if not ports:
        return Missing(Why.ABSENT, root, "no RDMA port")
    window = min(_WINDOW_S, timeout_s / 2)
    begin = time.monotonic()
    first = _read(root, ports)
    time.sleep(window)
    second = _read(root, ports)
    seconds = time.monotonic() - begin
    pairs = {
        port: {name: [value, second[port][name]] for name, value in found.items() if name in second.get(port, {})}
        for port, found in first.items()
    }
    return {"seconds": round(seconds, 3), "ports": pairs}


def _ports(root: str, device: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{root}/{device}/ports"))
    except OSError:
        return []


def _read(root: str, ports: list[tuple[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for device, port in ports:
        values = found.setdefault(f"{device}:{port}", {})
        for counter in COUNTERS:
            try:
                with open(f"{root}/{device}/ports/{port}/{counter}", "rb") as file:
                    text = file.read(32).strip()
            except OSError:
                continue
            if text.isdigit() and len(text) < 21:
                values[counter.rpartition("/")[2]] = int(text)
    return found
