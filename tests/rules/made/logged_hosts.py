"""The healthy host with lines of a GPU's driver in its kernel log, and facts of single GPUs laid over it."""

from __future__ import annotations

from typing import Any

from conftest import load
from torchtune_sys.model.snapshot import Snapshot

START = [
    "[    0.000000] Linux version 6.8.0-45-generic (b@h) (gcc) #45-Ubuntu SMP",
    "[   21.337480] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
]

ECC = (
    "[1200000.100000] NVRM: Xid (PCI:0000:61:00): 95, pid=4711, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
)


def seen_with_log(*lines: str, gpus: dict[int, dict[str, Any]] | None = None, **overlay: Any) -> Snapshot:
    """The healthy host with these lines in its log, and these facts of single GPUs."""
    log = {
        "source": "/dev/kmsg",
        "lines": [*START, *lines],
        "now_s": 1209600.0,
        "booted": 1794000000.0,
        "from_s": 0.0,
        "whole": True,
    }
    devices = [
        {
            "index": n,
            "name": "NVIDIA H100 80GB HBM3",
            "pci_address": f"0000:{bus}:00.0",
            "fabric_state": "completed",
            "nvlinks": 18,
            "nvlinks_down": [],
        }
        | (gpus or {}).get(n, {})
        for n, bus in enumerate(("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
    ]
    answers = {"kernel-log": log, "nvml": {"driver_version": "580.95.05", "cuda_driver_version": "13.0", "devices": devices}}
    return load("healthy", answers=answers, **overlay)
