"""Healthy hosts whose owners were alarmed for nothing: laptops, hypervisors, partitioned GPUs, servers with a fast port on the board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from machines import (
    Recording,
    card,
    cpus,
    cut,
    environment,
    function,
    gpus,
    made_by,
    nodes,
    ordinary,
    over,
    rdma,
    system,
    text,
    without_cards,
    without_gpus,
    x86,
)
from platforms_arm import NOT_SUPPORTED

_MIB, _GIB = 1 << 20, 1 << 30
_SLOTS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_NO_NVLINK: dict[str, Any] = dict.fromkeys(
    ("fabric_state", "fabric_status", "fabric_health", "nvlinks", "nvlinks_down", "nvlink_errors"), NOT_SUPPORTED
)


def told(host: Recording, **facts: Any) -> Recording:
    """What NVML says of each GPU."""
    nvml = host["answers"]["nvml"]
    return over(host, answers={"nvml": {**nvml, "devices": [{**one, **facts} for one in nvml["devices"]]}})


def without_modules(host: Recording, *names: str) -> Recording:
    kept = [line for line in text(host, "/proc/modules") if not line.startswith(names)]
    return over(host, files={"/proc/modules": "\n".join(kept) + "\n"})


def proprietary(host: Recording) -> Recording:
    lines = [
        line.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
        for line in text(host, "/proc/driver/nvidia/version")
    ]
    return over(host, files={"/proc/driver/nvidia/version": lines})


def regions(host: Recording, place: str, *sizes: int) -> Recording:
    """The GPU's memory regions."""
    lines = [
        f"0x{(number + 1) << 40:016x} 0x{((number + 1) << 40) + size - 1:016x} 0x000000000014220c"
        if size
        else " ".join(["0x" + "0" * 16] * 3)
        for number, size in enumerate(sizes)
    ]
    return over(host, files={f"/sys/devices/{place}/resource": "\n".join(lines) + "\n"})


def gaming_laptop() -> Recording:
    """A card of 16 lanes on a port of 8; on battery its limit is 55 of 80 W, and it sleeps between programs."""
    port, place = "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:01.0/0000:01:00.0"
    host = function(
        system(ordinary("desktop-4090"), name="legion"),
        port,
        "8086:a70d",
        "60400",
        "pcieport",
        -1,
        max_link_width="8",
        current_link_width="8",
    )
    host = gpus(
        host,
        [place],
        ids="10de:28e0",
        nodes_=[-1],
        name="NVIDIA GeForce RTX 4060 Laptop GPU",
        memory_total_bytes=8_585_740_288,
        power_limit_mw=55_000,
        power_default_mw=80_000,
        pcie_width=8,
        display=False,
        persistence=False,
    )
    return over(host, files={f"/sys/devices/{place}/current_link_width": "8"})


def four_t4() -> Recording:
    """n1-standard-32 with four T4, whose regions have 256 MiB by design."""
    host = made_by(system(ordinary("gcp-a2"), name="t4-4"), "Google", "Google Compute Engine", "Google")
    model = x86("Intel(R) Xeon(R) CPU @ 2.20GHz", flags="fpu hypervisor sse4_2 avx avx2 avx512f")
    host = cpus(host, packages=["0-31"], info=[model], threads=[f"{core},{core + 16}" for core in range(16)])
    places = [f"pci0000:00/0000:00:0{slot}.0" for slot in (4, 5, 6, 7)]
    host = gpus(
        nodes(host, {0: ("0-31", 125_000_000)}),
        places,
        ids="10de:1eb8",
        nodes_=[-1] * 4,
        name="Tesla T4",
        architecture="Turing",
        compute_capability=[7, 5],
        memory_total_bytes=16_106_127_360,
        power_limit_mw=70_000,
        power_default_mw=70_000,
        pcie_gen=3,
        pcie_gen_max=3,
        mig=NOT_SUPPORTED,
        rows_remap_pending=NOT_SUPPORTED,
        rows_remap_failed=NOT_SUPPORTED,
        clock_application_mhz=585,
        clock_application_default_mhz=585,
        **_NO_NVLINK,
    )
    for place in places:
        host = regions(host, place, 16 * _MIB, 256 * _MIB, 0, 32 * _MIB)
    return host


def l40s_server() -> Recording:
    """Eight L40S with the proprietary module; logins and files go over an E810 on the board, which irdma makes an RDMA device."""
    gone = ("07", "08", "09", "0a")
    host = without_cards(system(ordinary("dgx-h100"), name="l40s-8"), "eno3")
    links = {path: target for path, target in host["links"].items() if not any(f"0000:{bus}:00.0" in path for bus in gone)}
    host = cut({**host, "links": links}, *(f"/sys/devices/pci0000:{bus}/" for bus in gone), "/run/nvidia-fabricmanager")
    places = [f"pci0000:{bus}/0000:{bus}:00.0" for bus in _SLOTS]
    host = gpus(
        environment(host, NCCL_IB_HCA=None, NCCL_SOCKET_IFNAME=None),
        places,
        ids="10de:26b9",
        nodes_=[0] * 4 + [1] * 4,
        name="NVIDIA L40S",
        architecture="Ada Lovelace",
        compute_capability=[8, 9],
        memory_total_bytes=48_305_799_168,
        power_limit_mw=350_000,
        power_default_mw=350_000,
        pcie_gen=4,
        pcie_gen_max=4,
        **_NO_NVLINK,
    )
    nvml = host["answers"]["nvml"]
    pairs = [{**pair, "nvlink": "topology-not-supported"} for pair in nvml["p2p"]]
    host = without_modules(proprietary(over(host, answers={"nvml": {**nvml, "p2p": pairs}})), "nvidia_peermem")
    port = "pci0000:20/0000:20:00.0"
    host = card(host, "ens1f0", port, ids="8086:1593", driver="ice", address="10.33.5.13/22", mbit=25_000)
    gid = "0000:0000:0000:0000:0000:ffff:0a21:050d"
    return rdma(host, "irdma0", port, layer="Ethernet", rate="25 Gb/sec (1X EDR)", kind="irdma", gid=gid, interface="ens1f0")


def one_l40s_and_lom() -> Recording:
    """One GPU and the port on the board, both behind an IOMMU that translates: they exchange nothing."""
    host = l40s_server()
    gone = tuple(f"0000:{bus}:00.0" for bus in _SLOTS[1:])
    links = {path: target for path, target in host["links"].items() if not any(address in path for address in gone)}
    host = cut({**host, "links": links}, *(f"/sys/devices/pci{address[:7]}/" for address in gone))
    for bus in (_SLOTS[0], "20"):
        group = f"/sys/devices/pci0000:{bus}/0000:{bus}:00.0/iommu_group"
        host = over(
            host,
            links={group: f"../../../kernel/iommu_groups/{bus}"},
            files={f"/sys/kernel/iommu_groups/{bus}/type": "DMA-FQ\n"},
        )
    nvml = host["answers"]["nvml"]
    return over(host, answers={"nvml": {**nvml, "devices": nvml["devices"][:1], "p2p": []}})


def p4d_efa_peermem() -> Recording:
    """The proprietary module on EFA: Amazon's own module lets the cards reach the GPUs."""
    host = without_modules(proprietary(ordinary("aws-p4d")), "nvidia_peermem")
    return over(host, files={"/proc/modules": [*text(host, "/proc/modules"), "efa_nv_peermem 16384 0 - Live 0x0000000000000000"]})


def rail_pod() -> Recording:
    """A pod sees the adapters of its node on the bus; the network namespace was given none of them (rdma system set netns exclusive)."""
    host = ordinary("k8s-h100")
    for number in range(8):
        host = function(host, f"pci0000:a{number}/0000:a{number}:00.0", "15b3:1021", "20700", "mlx5_core", number // 4)
    return over(host, dirs={"/sys/class/infiniband": []})


def mig_server() -> Recording:
    """Eight H100 cut into instances for many users."""
    return told(ordinary("dgx-h100"), mig=True, mig_instances=7, nvlinks_down=list(range(18)))


def vgpu_host() -> Recording:
    """A hypervisor that slices an A40: the slices are PCI functions of their own, which the driver keeps for guests."""
    slot = "pci0000:00/0000:00:01.0"
    host = gpus(
        ordinary("desktop-4090"),
        [f"{slot}/0000:01:00.0"],
        ids="10de:2235",
        nodes_=[-1],
        name="NVIDIA A40",
        architecture="Ampere",
        compute_capability=[8, 6],
        memory_total_bytes=48_305_799_168,
        power_limit_mw=300_000,
        power_default_mw=300_000,
        display=False,
        persistence=True,
        ecc=True,
        ecc_uncorrected_volatile=0,
    )
    for number in range(4, 8):
        host = function(host, f"{slot}/0000:01:00.{number}", "10de:2235", "30200", "nvidia", -1)
        host = over(host, links={f"/sys/devices/{slot}/0000:01:00.{number}/physfn": "../0000:01:00.0"})
    return host


def grace_hypervisor() -> Recording:
    """A Grace Hopper whose GPU goes to a guest, by the variant of VFIO that NVIDIA makes for it."""
    host = without_gpus(ordinary("gh200"))
    return function(host, "pci0009:00/0009:00:00.0/0009:01:00.0", "10de:2342", "30200", "nvgrace_gpu_vfio_pci", 0)


def xen_dom0() -> Recording:
    """A GPU that Xen's back end keeps for a guest."""
    return function(
        without_gpus(ordinary("desktop-4090")), "pci0000:00/0000:00:01.0/0000:01:00.0", "10de:2684", "30000", "pciback", -1
    )


OWNERS: dict[str, Callable[[], Recording]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        gaming_laptop,
        four_t4,
        l40s_server,
        one_l40s_and_lom,
        p4d_efa_peermem,
        rail_pod,
        mig_server,
        vgpu_host,
        grace_hypervisor,
        xen_dom0,
    )
}

_BIG = {"dirty-limit-huge"}
_SWAP = {"swappiness-high"}
_NUMA = {"numa-balancing-enabled"}
_HEADERS = {"python-headers-missing"}

SAID: dict[str, dict[str, set[str]]] = {
    "gaming-laptop": {"advice": _SWAP | _HEADERS},
    "four-t4": {"advice": {"python-end-of-life", "bf16-emulated"}},
    "l40s-server": {"advice": _NUMA | _BIG},
    "one-l40s-and-lom": {"advice": _NUMA | _BIG},
    "p4d-efa-peermem": {"advice": _NUMA | _BIG},
    "rail-pod": {
        "error": {"container-uid-without-passwd"},
        "warning": {"compile-cache-not-writable", "cpu-quota-ignored-by-torch"},
        "advice": _NUMA,
    },
    "mig-server": {"advice": _NUMA | _BIG},
    "vgpu-host": {"advice": _SWAP | _HEADERS},
    "grace-hypervisor": {},
    "xen-dom0": {"advice": _SWAP | _HEADERS},
}

HEADS = {
    "gaming-laptop": ("1 x NVIDIA GeForce RTX 4060 Laptop GPU", "bare metal"),
    "four-t4": ("4 x Tesla T4", "virtual machine (google)"),
    "l40s-server": ("8 x NVIDIA L40S", "bare metal"),
    "one-l40s-and-lom": ("1 x NVIDIA L40S", "bare metal"),
    "p4d-efa-peermem": ("8 x NVIDIA A100", "virtual machine (amazon)"),
    "rail-pod": ("1 x NVIDIA H100", "in a container"),
    "mig-server": ("8 x NVIDIA H100", "bare metal"),
    "vgpu-host": ("1 x NVIDIA A40", "bare metal"),
    "grace-hypervisor": ("1 on the PCI bus", "bare metal"),
    "xen-dom0": ("1 on the PCI bus", "bare metal"),
}
