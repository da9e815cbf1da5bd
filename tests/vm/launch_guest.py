"""A virtual machine with two NUMA nodes in which ranks are really bound."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import guest

DEADLINE_S = 1200.0


def boot(folder: Path) -> list[dict[str, Any]]:
    """What each rank found of itself. Raises guest.Unavailable or guest.Failed."""
    if os.uname().machine != "x86_64":
        raise guest.Unavailable(f"the guest is x86-64, this machine {os.uname().machine}")
    guest.install()
    numactl = guest.which("numactl")
    if numactl is None:
        raise guest.Unavailable("numactl is not installed")
    initramfs, console = folder / "initramfs", folder / "console"
    initramfs.write_bytes(guest.archive(guest.HERE / "launch-init", [Path(numactl)], []))
    guest.run(_machine(guest.parts(folder) / "vmlinuz", initramfs), console, DEADLINE_S)
    initramfs.unlink()
    said = console.read_text(errors="replace").splitlines()
    return [json.loads(line.partition("RANK ")[2]) for line in said if "RANK {" in line]


def _machine(kernel: Path, initramfs: Path) -> tuple[str, ...]:
    """Node 0 has CPUs 0-7, node 1 CPUs 8-15; of two cards the first in the order of the bus hangs on node 1."""
    return (
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-la57"),
        *("-smp", "16,sockets=2,cores=8,threads=1", "-m", "1536M"),
        *("-object", "memory-backend-ram,id=m0,size=768M", "-object", "memory-backend-ram,id=m1,size=768M"),
        *("-numa", "node,nodeid=0,cpus=0-7,memdev=m0", "-numa", "node,nodeid=1,cpus=8-15,memdev=m1"),
        *("-device", "pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=32,numa_node=1"),
        *("-device", "pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=64,numa_node=0"),
        *("-device", "pcie-root-port,id=port1,bus=pxb1,chassis=1,slot=1", "-device", "e1000e,bus=port1"),
        *("-device", "pcie-root-port,id=port0,bus=pxb0,chassis=2,slot=2", "-device", "e1000e,bus=port0"),
        *("-kernel", str(kernel), "-initrd", str(initramfs), "-append"),
        f"console=ttyS0 quiet nokaslr panic=-1 rdinit=/init {guest.EMULATED}",
        *("-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"),
    )
