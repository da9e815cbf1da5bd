"""The list of fleets: which host ``compare`` must name of each, with which facts, and of which it must say nothing.

Rows whose name's SHA-256 is divisible by three are held: they were tried when all that the others taught was mended.

PYTHONPATH=tests:tests/compare python -m fleet_rows opened|held|NAME...
"""

from __future__ import annotations

import hashlib
import json
import sys

from fleet_changes import (
    bios,
    busy,
    by_mac,
    closed,
    containers,
    driver,
    each,
    env,
    fabric,
    file,
    kernel,
    layered,
    logged,
    looker,
    microcode,
    no_gpus,
    numa,
    of,
    older,
    own_disk,
    pod,
    rank,
    renumbered,
    times,
    torch,
    unread,
    wheel,
    without,
)
from fleets import Fleet, wrong
from made_hosts import put

H100, DGX, A100, MI300X, P4D = "healthy", "typical/dgx-h100", "typical/slurm-a100", "typical/mi300x", "typical/aws-p4d"
AZURE, GCP, GH200, V100, POD = (
    "typical/azure-nd-h100",
    "typical/gcp-a2",
    "typical/gh200",
    "typical/rocky8-v100",
    "typical/k8s-h100",
)
G5, DOCKER, LOGIN = "typical/aws-g5", "typical/docker-workstation", "typical/login-node"
GIB = 1 << 30

FAULTS: dict[str, Fleet] = {
    "driver-patch": Fleet(((DGX, 16),), {(5,): driver("580.82.07")}, {5: ("driver.module_version", "gpu.driver_version")}),
    "driver-half-rolled": Fleet(((A100, 12),), {range(6): driver("580.95.05")}, groups=(6, 6)),
    "driver-not-rebooted": Fleet(((P4D, 24),), {(3, 4, 20): (put("driver/library_version", "580.105.08"), put("driver/library_versions", ["580.105.08"]))}, dict.fromkeys((3, 4, 20), ("driver.library_version",))),
    "kernel-one": Fleet(((GCP, 8),), {(2,): (kernel("6.1.0-41-cloud-amd64"),)}, {2: ("system.kernel",)}),
    "canary-two": Fleet(((AZURE, 20),), {(8, 19): (kernel("5.15.0-1092-azure"), *driver("580.105.08"))}, dict.fromkeys((8, 19), ("system.kernel", "driver.module_version"))),
    "microcode": Fleet(((H100, 10),), {range(10): (microcode(H100, "0x2b000639"),), (7,): (microcode(H100, "0x2b000590"),)}, {7: ("microcode",)}),
    "bios": Fleet(((MI300X, 8),), {range(8): (bios("1.9.4"),), (3,): (bios("1.8.2"),)}, {3: ("bios",)}),
    "bios-half": Fleet(((DGX, 8),), {range(4): (bios("1.1.3"),), range(4, 8): (bios("1.2.1"),)}, groups=(4, 4)),
    "nic-firmware": Fleet(((DGX, 12),), {(9,): (each("network.rdma", "firmware", "28.39.3004", 3),)}, {9: ("network.rdma[mlx5_4].firmware",)}),
    "nic-firmware-thirds": Fleet(((A100, 15),), {range(5): (each("network.rdma", "firmware", "20.38.1002"),), range(5, 10): (each("network.rdma", "firmware", "20.41.1000"),)}, groups=(5, 5, 5)),
    "gpu-link-width": Fleet(((DGX, 6),), {(1,): (each("gpu.devices", "pcie_width", 8, 4),)}, {1: ("gpu.devices[4].pcie_width",)}),
    "nic-link-width": Fleet(((H100, 16),), {(11,): (put("pci/devices/15/link/current_width", 8),)}, {11: ("pci.devices[0000:42:00.0].link.current_width",)}),
    "clock-cap": Fleet(((DGX, 8),), {(0,): (each("gpu.devices", "clock_application_mhz", 1200, 6),)}, {0: ("gpu.devices[6].clock_application_mhz",)}),
    "power-cap": Fleet(((AZURE, 32),), {(30,): (each("gpu.devices", "power_limit_mw", 500000),)}, {30: ("power_limit_mw",)}),
    "ecc-off": Fleet(((A100, 10),), {(4,): (each("gpu.devices", "ecc", False, 2),)}, {4: ("gpu.devices[2].ecc",)}),
    "ecc-counted": Fleet(((DGX, 8),), {(6,): (each("gpu.devices", "ecc_uncorrected_volatile", 3, 1), each("gpu.devices", "rows_remap_failed", True, 1))}, {6: ("gpu.devices[1].rows_remap_failed",)}, found={"gpu-row-remap-failed": (6,)}),
    "gpu-missing": Fleet(((AZURE, 9),), {(8,): (without("gpu.devices", 5), lambda facts: facts["pci"]["devices"].remove(next(row for row in reversed(facts["pci"]["devices"]) if row["vendor"] == "0x10de")))}, {8: ("gpu.devices[5]", "pci.devices")}),
    "gpus-all-gone": Fleet(((H100, 8),), {(2,): (no_gpus,)}, {2: ("gpu.devices[7]",)}),
    "numa-nps4": Fleet(((MI300X, 8),), {(5,): (numa(8),)}, {5: ("numa.nodes",)}),
    "hugepages": Fleet(((DGX, 24),), {(17, 18): (put("memory/hugepages_reserved_bytes", 512 * GIB),)}, dict.fromkeys((17, 18), ("memory.hugepages_reserved_bytes",))),
    "thp": Fleet(((GH200, 16),), {(3,): (file("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),)}, {3: ("memory.thp",)}),
    "sysctl-running": Fleet(((H100, 40),), {(39,): (put("sysctl/settings/vm.zone_reclaim_mode/running", "1"),)}, {39: ("vm.zone_reclaim_mode",)}),
    "sysctl-at-next-boot": Fleet(((A100, 8),), {(1,): (put("sysctl/settings/kernel.numa_balancing/assignments", [{"source": "/etc/sysctl.d/99-site.conf:3", "value": "0", "is_pattern": False}]),)}, {1: ("kernel.numa_balancing",)}),
    "scratch-not-mounted": Fleet(((A100, 30),), {(12,): (put("storage/places/0/mount_point", "/"), put("storage/places/0/filesystem", "xfs"), put("storage/places/0/network", False), put("storage/places/0/mount_source", "/dev/mapper/rl-root"))}, {12: ("storage.places[working directory].filesystem",)}),
    "mount-options": Fleet(((P4D, 6),), {(0,): (lambda facts: facts["storage"]["places"][0]["options"].remove("flock"),)}, {0: ("storage.places[working directory].options",)}),
    "memlock": Fleet(((P4D, 18),), {(3, 9): (put("limits/limits/memlock", {"soft": 65536, "hard": 65536}),)}, dict.fromkeys((3, 9), ("limits.limits[memlock]",))),
    "nofile": Fleet(((DGX, 12),), {(7,): (put("limits/limits/nofile/soft", 1024),)}, {7: ("limits.limits[nofile]",)}),
    "container-toolkit": Fleet(((H100, 8),), {(6,): (put("software/packages/1/version", "1.16.2-1"),)}, {6: ("software.packages[nvidia-container-toolkit]",)}),
    "torch-wheel": Fleet(((DGX, 64),), {(40,): torch("2.10.0+cu130", "2.27.7")}, {40: ("python.torch.version", "python.torch.nccl")}),
    "nccl-wheel": Fleet(((H100, 14),), {(13,): (wheel("nvidia-nccl-cu13", "2.27.7"),)}, {13: ("python.distributions[nvidia-nccl-cu13]",)}),
    "nccl-ib-off": Fleet(((A100, 16),), {(2,): (env(NCCL_IB_DISABLE="1"),)}, {2: ("session.env[NCCL_IB_DISABLE]",)}),
    "library-path": Fleet(((DGX, 8),), {(6,): (env(LD_LIBRARY_PATH="/opt/old/lib"),)}, {6: ("session.env[LD_LIBRARY_PATH]",)}),
    "mtu-of-a-rail": Fleet(((MI300X, 8),), {(7,): (each("network.interfaces", "mtu", 1500, 4),)}, {7: ("network.interfaces[rdma2].mtu",)}),
    "gid-types": Fleet(((MI300X, 10),), {(4,): (lambda facts: facts["network"]["rdma"][1]["ports"][0]["gids"].pop(),)}, {4: ("gids",)}),
    "clock-free": Fleet(((H100, 6),), {(5,): (put("hardware/clock_daemon", ""), put("hardware/clock_synchronised", False))}, {5: ("hardware.clock",)}),
    "governor": Fleet(((A100, 20),), {(18, 19): (each("cpu.policies", "governor", "schedutil"),)}, dict.fromkeys((18, 19), ("governor",))),
    "memory-speed": Fleet(((H100, 12),), {(5,): (each("hardware.memory_devices", "configured_mts", 4000),)}, {5: ("hardware.memory_devices[P1-DIMMA1].configured_mts",)}),
    "dimm-missing": Fleet(((H100, 9),), {(1,): (without("hardware.memory_devices", 3), times("memory.total_bytes", 15 / 16))}, {1: ("hardware.memory_devices", "memory.total_bytes")}),
    "disk-other": Fleet(((MI300X, 11),), {(10,): (each("storage.disks", "model", "KIOXIA KCD8XPUG1T92"), each("storage.disks", "size_bytes", 1920383410176))}, {10: ("storage.disks",)}),
    "name-at-loopback": Fleet(((DGX, 8),), {(2,): (put("network/hostname_addresses", ["127.0.1.1"]),)}, {2: ("network.hostname_addresses",)}),
    "odd-in-partition": Fleet(((A100, 8), (DGX, 8)), {range(16): (each("network.interfaces", "mtu", 9000, 1),), (12,): (each("network.interfaces", "mtu", 1500, 1),)}, {12: (".mtu",)}),
    "rolled-half-and-one-forgotten": Fleet(((AZURE, 20),), {range(10): (kernel("5.15.0-1092-azure"), *driver("580.105.08"), *torch("2.12.0+cu130", "2.29.2")), (4,): (put("python/torch/version", "2.11.0+cu130"),)}, {4: ("python.torch.version",)}, groups=(10, 10)),
    "three-images": Fleet(((GCP, 30),), {range(10): (kernel("6.1.0-38-cloud-amd64"), *torch("2.6.0+cu126", "2.21.5")), range(10, 20): (kernel("6.1.0-41-cloud-amd64"), *torch("2.8.0+cu128", "2.27.3"))}, groups=(10, 10, 10)),
    "canary-one": Fleet(((DGX, 64),), {(63,): (kernel("5.14.0-611.el9.x86_64"), *driver("590.44.01"), each("network.rdma", "firmware", "28.45.1020"))}, {63: ("system.kernel", "driver.module_version", "firmware")}),
    "recorded-twice": Fleet(((A100, 9),), {(8,): driver("550.90.07")}, {3: ("document",), 8: ("document", "driver.module_version")}, names={8: "node-00003"}, ages_days={8: 30}),
    "smi-hangs": Fleet(((P4D, 16),), {(1, 2, 15): (unread("gpu", "devices", "driver_version", "p2p"),)}, dict.fromkeys((1, 2, 15), ("gpu.devices",))),
    "smt-off": Fleet(((DGX, 7),), {(3,): (put("cpu/smt", False), put("cpu/smt_control", "off"), put("cpu/online", "0-111"))}, {3: ("cpu.smt",)}),
    "iommu-argument": Fleet(((MI300X, 5),), {(4,): (file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-5.15.0-157-generic root=UUID=1 ro amd_iommu=on pci=realloc=off\n"),)}, {4: ("system.cmdline",)}),
    "other-slot": Fleet(((AZURE, 6),), {(2,): (lambda facts: facts["gpu"]["devices"][3].update(pci_address="0005:00:00.0"),)}, {2: ("gpu.devices[3].pci_address",)}),
    "nvlink-down": Fleet(((DGX, 10),), {(0,): (each("gpu.devices", "nvlinks_down", [5], 3),)}, {0: ("gpu.devices[3].nvlinks_down",)}),
    "mig-on": Fleet(((A100, 13),), {(12,): (each("gpu.devices", "mig", True, 0),)}, {12: ("gpu.devices[0].mig",)}),
    "port-slow": Fleet(((H100, 22),), {(20,): (lambda facts: facts["network"]["rdma"][6]["ports"][0].update(rate_gbps=200.0, lanes=2),)}, {20: ("rate_gbps",)}),
    "vbios": Fleet(((DGX, 4),), {(3,): (each("gpu.devices", "vbios", "96.00.89.00.01"),)}, {3: ("vbios",)}),
    "three-at-once": Fleet(((A100, 26),), {(3,): (each("network.interfaces", "mtu", 1500, 2),), (3, 5): (put("sysctl/settings/net.core.rmem_max/running", "16777216"),), (8,): torch("2.9.1+cu126", "2.27.5")}, {3: (".mtu", "rmem_max"), 5: ("rmem_max",), 8: ("torch.version",)}),
}  # fmt: skip

HARMLESS: dict[str, Fleet] = {
    "alike": Fleet(((MI300X, 24),)),
    "names-and-roots": Fleet(((MI300X, 12),), of(12, own_disk)),
    "fabric-numbers": Fleet(((MI300X, 16),), of(16, fabric)),
    "fabric-numbers-ib": Fleet(((H100, 16),), of(16, fabric)),
    "by-mac": Fleet(((GCP, 9),), of(9, by_mac)),
    "containers-run": Fleet(((H100, 12),), of(12, containers)),
    "disks-renumbered": Fleet(((H100, 8),), of(8, renumbered)),
    "disks-renumbered-dgx": Fleet(((DGX, 8),), of(8, renumbered)),
    "logs-differ": Fleet(((DGX, 10),), of(10, logged)),
    "pods": Fleet(((POD, 16),), of(16, pod)),
    "ranks-of-a-job": Fleet(((A100, 32),), of(32, rank)),
    "without-root": Fleet(((H100, 16),), {(1, 4, 9, 11, 15): (closed,)}),
    "another-looked": Fleet(((DGX, 10),), {range(5): looker("alice", 1001), range(5, 10): looker("bob", 1002)}, light=True),
    "busy-and-idle": Fleet(((DGX, 10),), {range(0, 10, 3): (busy,)}),
    "older-release": Fleet(((H100, 18),), {range(0, 18, 2): (older,)}),
    "layers": Fleet(((DOCKER, 6),), of(6, layered)),
    "two-partitions": Fleet(((A100, 12), (DGX, 12))),
    "roles": Fleet(((DGX, 14), (LOGIN, 1), (GCP, 1)), apart=(14, 15)),
    "three-vendors": Fleet(((MI300X, 4), (GH200, 4), (V100, 4), (G5, 4))),
    "disk-space": Fleet(((V100, 20),), of(20, lambda number: (put("storage/places/0/free_bytes", number << 30), put("storage/places/0/inodes_free", 1000 * number)))),
}  # fmt: skip
FLEETS = FAULTS | HARMLESS


def is_held(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def main(words: list[str]) -> None:
    chosen = [word for word in words if word in FLEETS]
    for name in chosen or [name for name in FLEETS if is_held(name) == ("held" in words)]:
        print(json.dumps({"fleet": name, "wrong": wrong(FLEETS[name])}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
