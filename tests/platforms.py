"""Platforms that differ from an x86 server with eight GPUs: what each looks like from inside, and what is to be said of it.

Shapes from public reports and documents, named beside each host. ``SAID`` holds all that an expert would say of each.
"""

from __future__ import annotations

from collections.abc import Callable

from machines import (
    H100_SXM,
    Recording,
    cpus,
    cut,
    function,
    gpus,
    interpreter,
    made_by,
    moved,
    nodes,
    ordinary,
    over,
    system,
    torch,
    without_gpus,
    x86,
)
from platforms_arm import altra_a100, dgx_spark, gb200_tray, graviton, jetson_orin
from platforms_contained import (
    apptainer,
    colab,
    github_runner,
    kubernetes_static,
    lxc,
    podman_rootless,
    slurm_cgroup_v1,
    wsl2_docker_desktop,
)


def epyc_nps4() -> Recording:
    """Two EPYC 7763 with four nodes each (NPS4), eight A100 at every second one."""
    host = system(ordinary("dgx-h100"), name="epyc-nps4")
    host = made_by(host, "Supermicro", "AS -4124GO-NART+", "American Megatrends International, LLC.")
    threads = [f"{core},{core + 128}" for core in range(128)]
    host = cpus(
        host,
        packages=["0-63,128-191", "64-127,192-255"],
        info=[x86("AMD EPYC 7763 64-Core Processor", "AuthenticAMD", "fpu sse4_2 avx avx2")],
        threads=threads,
        driver="acpi-cpufreq",
    )
    distances = [[10 if one == two else 12 if one // 4 == two // 4 else 32 for two in range(8)] for one in range(8)]
    host = nodes(host, {n: (f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}", 264_000_000) for n in range(8)}, distances)
    return moved(host, DGX_QUARTERS)


DGX_QUARTERS = {
    **dict.fromkeys(("1b", "18", "29"), 3),
    **dict.fromkeys(("43", "40"), 2),
    **dict.fromkeys(("52", "4f"), 1),
    **dict.fromkeys(("61", "5e"), 0),
    **dict.fromkeys(("9d", "9a", "aa"), 7),
    **dict.fromkeys(("c3", "c0"), 6),
    **dict.fromkeys(("d1", "ce"), 5),
    **dict.fromkeys(("df", "dc"), 4),
}
"""Nodes of the buses of a DGX H100 if each socket had four."""


def epyc_l3_as_numa() -> Recording:
    """One node per core complex (ACPI SRAT L3 cache as NUMA domain): 16 nodes, all memory in the first of each socket."""
    host = system(epyc_nps4(), name="epyc-l3")
    rows = {n: (f"{8 * n}-{8 * n + 7},{128 + 8 * n}-{135 + 8 * n}", 132_000_000) for n in range(16)}
    distances = [[10 if one == two else 11 if one // 8 == two // 8 else 32 for two in range(16)] for one in range(16)]
    return moved(nodes(host, rows, distances), {bus: 2 * node for bus, node in DGX_QUARTERS.items()})


def intel_snc4() -> Recording:
    """Two Xeon 8480C with sub-NUMA clustering by four: GPUs at nodes 1, 3, 5 and 7."""
    host = system(ordinary("dgx-h100"), name="snc4")
    distances = [[10 if one == two else 12 if one // 4 == two // 4 else 21 for two in range(8)] for one in range(8)]
    host = nodes(host, {n: (f"{14 * n}-{14 * n + 13},{112 + 14 * n}-{125 + 14 * n}", 264_000_000) for n in range(8)}, distances)
    return moved(host, DGX_QUARTERS)


def mi300x_container() -> Recording:
    """AMD's ROCm image under Docker: /dev/kfd and /dev/dri, root."""
    host = over(
        ordinary("mi300x"), files={"/.dockerenv": "", "/proc/1/comm": "bash\n"}, links={"/proc/self/ns/pid": "pid:[4026532841]"}
    )
    return system(host, name="4f1c2d3e4a5b")


def gaudi() -> Recording:
    """Eight Gaudi 2 (habanalabs, PCI 1da3:1020) and torch's CPU wheel with Intel's plug-in."""
    host = without_gpus(system(ordinary("dgx-h100"), name="hls2-1"))
    host = made_by(host, "Supermicro", "SYS-820GH-TNR2", "American Megatrends International, LLC.")
    for number in range(8):
        host = function(
            host,
            f"pci0000:{30 + number}/0000:{30 + number}:00.0/0000:{50 + number}:00.0",
            "1da3:1020",
            "120000",
            "habanalabs",
            number // 4,
        )
    host = over(host, files={"/proc/modules": "habanalabs 2371584 0 - Live 0x0\n"})
    return torch(host, "2.11.0+cpu")


def intel_xpu() -> Recording:
    """A workstation with one Arc B580 and the XPU wheel."""
    host = without_gpus(system(ordinary("desktop-4090"), name="arc"))
    host = function(host, "pci0000:00/0000:00:01.0/0000:03:00.0", "8086:e20b", "30000", "xe", -1)
    return torch(host, "2.11.0+xpu", xpu="20250302")


def aws_p5() -> Recording:
    """p5.48xlarge: 192 virtual CPUs in two nodes, eight H100, 32 EFA."""
    host = made_by(system(ordinary("aws-p4d"), name="ip-10-0-5-12"), "Amazon EC2", "p5.48xlarge", "Amazon EC2")
    threads = [f"{core},{core + 96}" for core in range(96)]
    host = cpus(
        host,
        packages=["0-47,96-143", "48-95,144-191"],
        info=[x86("AMD EPYC 7R13 Processor", "AuthenticAMD", "fpu hypervisor sse4_2 avx avx2")],
        threads=threads,
    )
    host = nodes(host, {0: ("0-47,96-143", 1_055_000_000), 1: ("48-95,144-191", 1_055_000_000)}, [[10, 32], [32, 10]])
    places = [f"pci0000:{bus}/0000:{bus}:00.0" for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
    return gpus(
        host,
        places,
        ids="10de:2330",
        nodes_=[0, 0, 0, 0, 1, 1, 1, 1],
        **H100_SXM,
    )


def fedora_two_4090() -> Recording:
    """A desktop on GPU 0, swap on compressed memory, Wi-Fi; GeForce cards have no peer access."""
    host = system(
        ordinary("desktop-4090"),
        name="fedora",
        kernel="6.17.5-300.fc43.x86_64",
        os_={
            "NAME": "Fedora Linux",
            "VERSION": "43 (Workstation Edition)",
            "ID": "fedora",
            "VERSION_ID": "43",
            "PRETTY_NAME": "Fedora Linux 43 (Workstation Edition)",
        },
    )
    host = over(
        host,
        files={"/proc/swaps": ["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority", "/dev/zram0\tpartition\t8388604\t0\t100"]},
    )
    model = host["answers"]["nvml"]["devices"][0]
    host = gpus(
        host, ["pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:01.1/0000:02:00.0"], ids="10de:2684", nodes_=[-1, -1]
    )
    answer = host["answers"]["nvml"]
    devices = [
        {**model, **{key: one[key] for key in ("index", "uuid", "pci_address")}, "display": not one["index"]}
        for one in answer["devices"]
    ]
    pair = {"first": 0, "second": 1, "read": "chipset-not-supported", "write": "chipset-not-supported", "nvlink": "not-supported"}
    return over(host, answers={"nvml": {**answer, "devices": devices, "p2p": [pair]}})


def old_lab_box() -> Recording:
    """Ubuntu 20.04, driver 535, a GTX 1080 Ti, torch 2.4.1 with CUDA 12.1."""
    host = system(
        ordinary("desktop-4090"),
        name="lab-old",
        kernel="5.15.0-139-generic",
        os_={"PRETTY_NAME": "Ubuntu 20.04.6 LTS", "NAME": "Ubuntu", "VERSION_ID": "20.04", "ID": "ubuntu", "ID_LIKE": "debian"},
    )
    host = gpus(
        host,
        ["pci0000:00/0000:00:01.0/0000:01:00.0"],
        ids="10de:1b06",
        nodes_=[-1],
        driver="535.230.02",
        name="NVIDIA GeForce GTX 1080 Ti",
        architecture="Pascal",
        compute_capability=[6, 1],
        memory_total_bytes=11_811_160_064,
        power_limit_mw=250_000,
        power_default_mw=250_000,
        pcie_gen=3,
        pcie_gen_max=3,
    )
    answer = host["answers"]["nvml"]
    line = [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.230.02  Tue Dec 17 18:04:25 UTC 2024",
        "GCC version:  gcc version 9.4.0",
    ]
    host = over(
        host,
        answers={"nvml": {**answer, "cuda_driver_version": "12.2"}, "glibc": "2.31"},
        files={"/proc/driver/nvidia/version": line},
    )
    host = interpreter(host, glibc="2.31")
    site = next(path for path in host["files"] if path.endswith("/torch/version.py")).removesuffix("/torch/version.py")
    host = cut(host, f"{site}/triton-", f"{site}/torchvision-")
    host = over(
        host,
        files={f"{site}/triton-3.0.0.dist-info/INSTALLER": "pip\n", f"{site}/torchvision-0.19.1.dist-info/INSTALLER": "pip\n"},
    )
    return torch(host, "2.4.1+cu121", cuda="12.1")


def optimus_laptop() -> Recording:
    """The GPU is in runtime suspend: asking it wakes it."""
    host = system(ordinary("desktop-4090"), name="laptop")
    gpu = "/sys/devices/pci0000:01/0000:00:01.0/0000:01:00.0"
    host = over(host, files={f"{gpu}/power/runtime_status": "suspended\n", f"{gpu}/power/control": "auto\n"})
    asked = {"error": "crashed", "detail": "the GPU was woken"}
    return over(host, links={"/sys/bus/pci/drivers/nvidia/0000:01:00.0": f"../../../..{gpu[4:]}"}, answers={"nvml": asked})


PLATFORMS: dict[str, Callable[[], Recording]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        gb200_tray,
        dgx_spark,
        jetson_orin,
        graviton,
        altra_a100,
        epyc_nps4,
        epyc_l3_as_numa,
        intel_snc4,
        mi300x_container,
        gaudi,
        intel_xpu,
        wsl2_docker_desktop,
        podman_rootless,
        kubernetes_static,
        apptainer,
        slurm_cgroup_v1,
        lxc,
        colab,
        github_runner,
        aws_p5,
        fedora_two_4090,
        old_lab_box,
        optimus_laptop,
    )
}


_BIG = {"dirty-limit-huge"}
_SWAP = {"swappiness-high"}
_NUMA = {"numa-balancing-enabled"}
_HEADERS = {"python-headers-missing"}

SAID: dict[str, dict[str, set[str]]] = {
    "gb200-tray": {"advice": _BIG},
    "dgx-spark": {},
    "jetson-orin": {"advice": {"cpu-governor-not-performance"}},
    "graviton": {},
    "altra-a100": {},
    "epyc-nps4": {"advice": _NUMA | _BIG},
    "epyc-l3-as-numa": {"advice": _NUMA | _BIG},
    "intel-snc4": {"advice": _NUMA | _BIG},
    "mi300x-container": {"advice": _SWAP | {"python-end-of-life"}},
    "gaudi": {"advice": _BIG},
    "intel-xpu": {"advice": _SWAP | _HEADERS},
    "wsl2-docker-desktop": {"advice": _SWAP | _HEADERS | {"host-small-for-gpu-training"}},
    "podman-rootless": {"advice": _SWAP | {"gpu-persistence-mode-off", "c-compiler-missing"}},
    "kubernetes-static": {
        "error": {"container-uid-without-passwd"},
        "warning": {"compile-cache-not-writable"},
        "advice": _NUMA,
    },
    "apptainer": {"advice": _SWAP | _NUMA | {"compile-cache-on-network"}},
    "slurm-cgroup-v1": {"advice": _SWAP | _NUMA | _HEADERS | {"bf16-emulated"}},
    "lxc": {"advice": _SWAP | _HEADERS},
    "colab": {
        "advice": _SWAP
        | {
            "c-compiler-missing",
            "bf16-emulated",
            "cpus-too-few-for-gpus",
            "host-memory-below-gpu-memory",
            "host-small-for-gpu-training",
        }
    },
    "github-runner": {},
    "aws-p5": {"advice": _NUMA | _BIG},
    "fedora-two-4090": {"advice": _HEADERS | {"gpu-persistence-mode-off"}},
    "old-lab-box": {"advice": _SWAP | _HEADERS | {"operating-system-end-of-life", "fp16-without-speed"}},
    "optimus-laptop": {"advice": _SWAP | _HEADERS},
}
"""Host → severity → all that is reported of it. Swap on compressed memory (Fedora) is what a high swappiness is for."""

HEADS = {
    "gb200-tray": ("4 x NVIDIA GB200", "2 x Arm Neoverse-V2, 144 CPUs, 2 NUMA nodes and 32 without CPUs"),
    "dgx-spark": ("1 x NVIDIA GB10, driver 580", "Arm Cortex-A725 + Arm Cortex-X925, 20 CPUs, 122 GiB memory, bare metal"),
    "jetson-orin": ("1 x Orin (nvgpu), driver 540.4.0", "Linux 5.15.148-tegra aarch64, Arm Cortex-A78AE, 12 CPUs"),
    "graviton": ("none on the PCI bus", "aarch64, Arm Neoverse-V1, 64 CPUs, 123 GiB memory, virtual machine (amazon)"),
    "altra-a100": ("2 x NVIDIA A100 80GB PCIe", "Arm Neoverse-N1, 80 CPUs"),
    "epyc-nps4": ("8 x NVIDIA H100", "2 x AMD EPYC 7763 64-Core Processor, 256 CPUs, 8 NUMA nodes"),
    "epyc-l3-as-numa": ("8 x NVIDIA H100", "256 CPUs, 16 NUMA nodes"),
    "intel-snc4": ("8 x NVIDIA H100", "2 x Intel(R) Xeon(R) Platinum 8480C, 224 CPUs, 8 NUMA nodes"),
    "mi300x-container": ("8 x AMD Instinct MI300X, kernel driver amdgpu", "in a container (docker)"),
    "gaudi": ("8 x Intel Gaudi 2, kernel driver habanalabs", "bare metal"),
    "intel-xpu": ("1 x Intel GPU, kernel driver xe", "bare metal"),
    "wsl2-docker-desktop": ("1 x NVIDIA GeForce RTX 3080 (10 GiB), driver 581.42", "in a container (docker), WSL2"),
    "podman-rootless": ("2 x NVIDIA GeForce RTX 4090", "in a container (podman)"),
    "kubernetes-static": ("1 x NVIDIA H100", "16 of 64 CPUs usable"),
    "apptainer": ("4 x NVIDIA A100-SXM4-80GB", "in a container (apptainer)"),
    "slurm-cgroup-v1": ("1 x Tesla V100-SXM2-32GB", "12 of 48 CPUs usable, 2 NUMA nodes, 200 GiB of 376 GiB memory allowed"),
    "lxc": ("1 x NVIDIA GeForce RTX 4090", "in a container (lxc)"),
    "colab": ("1 x Tesla T4 (15 GiB)", "2 CPUs, 13 GiB memory, in a container (docker), virtual machine (google)"),
    "github-runner": ("none on the PCI bus", "4 CPUs, 16 GiB memory, virtual machine (microsoft)"),
    "aws-p5": ("8 x NVIDIA H100 80GB HBM3", "192 CPUs, 2 NUMA nodes, 2.0 TiB memory, virtual machine (amazon)"),
    "fedora-two-4090": ("2 x NVIDIA GeForce RTX 4090", "Fedora Linux 43"),
    "old-lab-box": ("1 x NVIDIA GeForce GTX 1080 Ti (11 GiB), driver 535.230.02 (proprietary module)", "Ubuntu 20.04.6 LTS"),
    "optimus-laptop": ("1 on the PCI bus (0000:01:00.0), not asked: NVML: 0000:01:00.0 is suspended", "bare metal"),
}
"""How the report's first lines begin (GPUs), and what they hold (the machine)."""
