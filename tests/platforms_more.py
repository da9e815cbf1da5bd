"""More platforms: clouds with many cards, pods for rent, POWER9, and the same hosts with something wrong."""

from __future__ import annotations

from collections.abc import Callable

from machines import (
    H100_SXM,
    Recording,
    arm,
    card,
    cpus,
    cut,
    environment,
    function,
    gpus,
    made_by,
    memory,
    moved,
    nodes,
    ordinary,
    over,
    rdma,
    status,
    system,
    torch,
    without_cards,
    without_gpus,
    x86,
)
from platforms import PLATFORMS
from platforms_arm import dgx_spark, gb200_tray


def gb200_cdmm() -> Recording:
    """Coherent driver-based memory management: the GPUs' memory is no node of the kernel (the default with Kubernetes)."""
    host = system(gb200_tray(), name="nvl72-t08")
    return nodes(host, {0: ("0-71", 502_000_000), 1: ("72-143", 502_000_000)}, [[10, 40], [40, 10]])


def power9_ac922() -> Recording:
    """Two POWER9 with four V100 on NVLink: the nodes 252 to 255 are the GPUs' memory; torch is a build of its own."""
    host = cut(
        system(ordinary("rocky8-v100"), name="ac922-01", kernel="4.18.0-477.10.1.el8_8.ppc64le", machine="ppc64le"),
        "/sys/class/dmi",
        "/sys/fs/cgroup/cpuset",
    )
    threads = [f"{first}-{first + 3}" for first in range(0, 128, 4)]
    power = [
        "cpu\t\t: POWER9, altivec supported",
        "clock\t\t: 3800.000000MHz",
        "revision\t: 2.3 (pvr 004e 1203)",
        "platform\t: PowerNV",
    ]
    host = cpus(host, packages=["0-63", "64-127"], info=[power], threads=threads, driver="powernv-cpufreq")
    rows = {0: ("0-63", 267_000_000), 8: ("64-127", 267_000_000), **dict.fromkeys((252, 253, 254, 255), ("", 16_515_072))}
    near = [10, 40, 80, 80, 80, 80]
    host = nodes(host, rows, [[10 if one == two else near[max(one, two)] for two in range(6)] for one in range(6)])
    places = [
        "pci0004:00/0004:00:00.0/0004:04:00.0",
        "pci0004:00/0004:00:01.0/0004:05:00.0",
        "pci0035:00/0035:00:00.0/0035:03:00.0",
        "pci0035:00/0035:00:01.0/0035:04:00.0",
    ]
    host = gpus(host, places, ids="10de:1db5", nodes_=[0, 0, 8, 8], driver="535.183.01")
    answer = {**host["answers"]["nvml"], "cuda_driver_version": "12.2"}
    status_of = {
        f"/proc/driver/nvidia/gpus/{place[-12:]}/numa_status": f"Node: {255 - number}\nStatus: online\n"
        for number, place in enumerate(places)
    }
    site = next(path for path in host["files"] if path.endswith("/torch/version.py")).removesuffix("/torch/version.py")
    host = cut(host, f"{site}/numpy-", f"{site}/triton-", f"{site}/nvidia_")
    status_of[f"{site}/numpy-1.26.4.dist-info/INSTALLER"] = "conda\n"
    return torch(over(host, files=status_of, answers={"nvml": answer}), "2.1.2", cuda="12.2", arch="ppc64le")


def vast_pod() -> Recording:
    """Docker under cgroup v1 with a slice of a big host: 384 CPUs to be seen, a quota of 46, 11776 tasks (vast-ai/base-image#214)."""
    host = cut(system(ordinary("docker-workstation"), name="b7c2d1e0f9a8"), "/sys/fs/cgroup")
    threads = [f"{core},{core + 192}" for core in range(192)]
    model = x86("AMD EPYC 9654 96-Core Processor", "AuthenticAMD", "fpu sse4_2 avx avx2 avx512f")
    host = cpus(host, packages=["0-95,192-287", "96-191,288-383"], info=[model], threads=threads)
    host = memory(
        nodes(host, {0: ("0-95,192-287", 792_000_000), 1: ("96-191,288-383", 792_000_000)}, [[10, 32], [32, 10]]), 1_584_000_000
    )
    host = moved(cut(host, "/sys/fs/cgroup"), {"01": 0, "03": 0})
    kinds = ("cpu,cpuacct", "cpuset", "memory", "pids")
    mounts = [line for line in host["files"]["/proc/self/mountinfo"] if "cgroup" not in line]
    mounts += [
        f"{60 + n} 24 0:{60 + n} /docker/4f1c /sys/fs/cgroup/{name} ro - cgroup cgroup rw,{name}" for n, name in enumerate(kinds)
    ]
    return over(
        host,
        files={
            "/proc/self/cgroup": [*(f"{12 - n}:{name}:/docker/4f1c" for n, name in enumerate(kinds)), "0::/docker/4f1c"],
            "/proc/self/mountinfo": mounts,
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "4608000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/cpuset/cpuset.cpus": "0-383\n",
            "/sys/fs/cgroup/cpuset/cpuset.mems": "0-1\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{190 << 30}\n",
            "/sys/fs/cgroup/pids/pids.max": "11776\n",
            "/sys/fs/cgroup/pids/pids.current": "41\n",
        },
    )


def runpod() -> Recording:
    """Docker with cgroup v2 and a namespace of its own: the container's limits lie at the root of what it sees."""
    host = cut(system(ordinary("docker-workstation"), name="a1b2c3d4e5f6"), "/sys/fs/cgroup")
    return over(
        host,
        files={
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            "/sys/fs/cgroup/cpuset.cpus.effective": "0-23\n",
            "/sys/fs/cgroup/cpuset.mems.effective": "0\n",
            "/sys/fs/cgroup/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/memory.max": f"{100 << 30}\n",
            "/sys/fs/cgroup/pids.max": "max\n",
        },
        env={"RUNPOD_POD_ID": "abc123", "RUNPOD_CPU_COUNT": "24"},
    )


def slurm_gres() -> Recording:
    """cgroup v2: two of the node's four A100 granted, CPUs of one socket."""
    host = ordinary("slurm-a100")
    nvml = host["answers"]["nvml"]
    step = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_812345/step_0/user/task_0"
    host = over(
        host,
        files={f"{step}/cpuset.cpus.effective": "0-63\n", "/sys/fs/cgroup/cpuset.cpus.effective": "0-127\n"},
        answers={"affinity": "0-63", "nvml": {**nvml, "devices": nvml["devices"][:2], "p2p": nvml["p2p"][:1]}},
        env={"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "8"},
    )
    return status(host, Cpus_allowed_list="0-63")


def aws_p5_efa() -> Recording:
    """The whole p5: 32 EFA, four at each GPU."""
    host = PLATFORMS["aws-p5"]()
    host = without_cards(host, "ens32")
    for bus in range(32):
        place = f"pci0000:{bus + 16:02x}/0000:{bus + 16:02x}:1b.0"
        host = over(
            host,
            files={
                f"/sys/devices/{place}/uevent": [
                    "DRIVER=efa",
                    "PCI_CLASS=20000",
                    "PCI_ID=1D0F:EFA1",
                    f"PCI_SLOT_NAME={place[-12:]}",
                ],
                f"/sys/devices/{place}/numa_node": str(bus // 16),
            },
            links={f"/sys/bus/pci/devices/{place[-12:]}": f"../../../devices/{place}"},
        )
        host = rdma(host, f"rdmap{bus + 16}s27", place, layer="Unspecified", rate="100 Gb/sec (4X EDR)", kind="0xefa1")
    return host


def gcp_a3_mega() -> Recording:
    """a3-megagpu-8g: nine gVNIC, Google's plug-in with variables of its own (docs.cloud.google.com, a3-mega-enable-gpudirect-tcpxo)."""
    host = made_by(system(ordinary("gcp-a2"), name="a3mega-0"), "Google", "Google Compute Engine", "Google")
    threads = [f"{core},{core + 104}" for core in range(104)]
    model = x86("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", flags="fpu hypervisor sse4_2 avx avx2 avx512f")
    host = cpus(host, packages=["0-51,104-155", "52-103,156-207"], info=[model], threads=threads)
    host = nodes(host, {0: ("0-51,104-155", 965_000_000), 1: ("52-103,156-207", 965_000_000)}, [[10, 20], [20, 10]])
    buses = ("04", "05", "0a", "0b", "84", "85", "8a", "8b")
    host = gpus(
        host,
        [f"pci0000:{bus}/0000:{bus}:00.0" for bus in buses],
        ids="10de:2330",
        nodes_=[0, 0, 0, 0, 1, 1, 1, 1],
        **H100_SXM,
    )
    for number in range(8):
        bus = f"{6 + number % 4 * 8 + 128 * (number // 4):02x}"
        host = card(
            host,
            f"eth{number + 1}",
            f"pci0000:{bus}/0000:{bus}:00.0",
            ids="1ae0:0042",
            driver="gve",
            address=f"192.168.{number + 1}.5/24",
            node=number // 4,
            mtu=8244,
        )
    return environment(
        host,
        NCCL_FASTRAK_CTRL_DEV="eth0",
        NCCL_FASTRAK_IFNAME="eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8",
        NCCL_FASTRAK_NUM_FLOWS="2",
        NCCL_SOCKET_IFNAME="eth0",
        NCCL_CROSS_NIC="0",
        NCCL_NET_GDR_LEVEL="PIX",
        LD_LIBRARY_PATH="/var/lib/tcpxo/lib64",
    )


def oci_h100() -> Recording:
    """BM.GPU.H100.8: sixteen RoCE ports of 200 Gb/s, each in a subnet of its own, and a card for all else."""
    host = without_cards(
        made_by(
            system(ordinary("dgx-h100"), name="inst-h100"),
            "Oracle Corporation",
            "ORACLE SERVER H100",
            "American Megatrends International, LLC.",
        ),
        "eno3",
    )
    host = environment(host, NCCL_IB_HCA=None, NCCL_SOCKET_IFNAME=None)
    for number in range(16):
        bus = f"{('0c', '2a', '41', '58', '86', 'a5', 'bd', 'd5')[number // 2]}"
        place = f"pci0000:{bus}/0000:{bus}:00.{number % 2}"
        octet = 10 + number
        host = card(
            host,
            f"rdma{number}",
            place,
            ids="15b3:1021",
            driver="mlx5_core",
            address=f"10.224.{octet}.7/24",
            node=number // 8,
            mtu=4220,
            mbit=200_000,
        )
        gid = f"0000:0000:0000:0000:0000:ffff:0ae0:{octet:02x}07"
        host = rdma(
            host,
            f"mlx5_{number}",
            place,
            layer="Ethernet",
            rate="200 Gb/sec (2X NDR)",
            kind="MT4129",
            gid=gid,
            interface=f"rdma{number}",
        )
    return host


def ryzen_laptop() -> Recording:
    """Graphics of a Ryzen processor (amdgpu), which torch does not train on, and the package index's CPU wheel."""
    host = system(ordinary("laptop-cpu"), name="ryzen")
    host = cpus(
        host,
        packages=["0-15"],
        info=[x86("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", "AuthenticAMD", "fpu sse4_2 avx avx2 avx512f")],
        threads=[f"{2 * n},{2 * n + 1}" for n in range(8)],
    )
    host = nodes(host, {0: ("0-15", 31_000_000)})
    return function(host, "pci0000:00/0000:00:08.1/0000:c1:00.0", "1002:15bf", "30000", "amdgpu", -1)


def ryzen_laptop_cuda_wheel() -> Recording:
    """The same with the index's default wheel for Linux, which is a CUDA build and trains on the processor."""
    return torch(ryzen_laptop(), "2.11.0+cu130", cuda="13.0")


def hybrid_desktop() -> Recording:
    """A GeForce beside the graphics of a Ryzen processor."""
    host = system(ordinary("desktop-4090"), name="hybrid")
    return function(host, "pci0000:00/0000:00:08.1/0000:0f:00.0", "1002:164e", "30000", "amdgpu", -1)


def kvm_guest() -> Recording:
    """OpenStack: two L40S handed to a guest whose firmware names no node."""
    host = made_by(system(ordinary("aws-g5"), name="vm-7"), "OpenStack Foundation", "OpenStack Nova", "SeaBIOS")
    host = cpus(
        host,
        packages=[f"{n}" for n in range(16)],
        info=[x86("Intel Xeon Processor (SapphireRapids)", flags="fpu hypervisor sse4_2 avx avx2 avx512f")],
    )
    host = nodes(host, {0: ("0-15", 131_000_000)})
    return gpus(
        host,
        ["pci0000:00/0000:00:05.0", "pci0000:00/0000:00:06.0"],
        ids="10de:26b9",
        nodes_=[-1, -1],
        name="NVIDIA L40S",
        architecture="Ada Lovelace",
        compute_capability=[8, 9],
        memory_total_bytes=48_305_799_168,
        power_limit_mw=350_000,
        power_default_mw=350_000,
        pcie_gen=4,
        pcie_gen_max=4,
        virtualization="passthrough",
        display=False,
    )


def vfio_host() -> Recording:
    """A hypervisor whose two GPUs are handed to guests."""
    host = ordinary("desktop-4090")
    host = without_gpus(host)
    for number in (1, 2):
        host = function(host, f"pci0000:00/0000:00:0{number}.0/0000:0{number}:00.0", "10de:2684", "30000", "vfio-pci", -1)
    return host


def jetson_thor() -> Recording:
    """JetPack 7: the driver of servers (580), a GPU of the SoC on a PCI bus of its own, compute capability 11.0."""
    host = dgx_spark()
    host = system(host, name="thor", kernel="6.8.12-tegra")
    host = cpus(host, packages=["0-13"], info=[arm("0xd83")], driver="cppc_cpufreq")
    host = nodes(host, {0: ("0-13", 128_800_000)})
    nvml = host["answers"]["nvml"]
    one = {**nvml["devices"][0], "name": "NVIDIA Thor", "compute_capability": [11, 0]}
    return over(
        host, answers={"nvml": {**nvml, "devices": [one]}}, files={"/etc/nv_tegra_release": "# R38 (release), REVISION: 2.0\n"}
    )


MORE: dict[str, Callable[[], Recording]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        gb200_cdmm,
        power9_ac922,
        vast_pod,
        runpod,
        slurm_gres,
        aws_p5_efa,
        gcp_a3_mega,
        oci_h100,
        ryzen_laptop,
        ryzen_laptop_cuda_wheel,
        hybrid_desktop,
        kvm_guest,
        vfio_host,
        jetson_thor,
    )
}

_BIG = {"dirty-limit-huge"}
_SWAP = {"swappiness-high"}
_NUMA = {"numa-balancing-enabled"}
_IMAGE = {"gpu-persistence-mode-off", "c-compiler-missing"}

SAID: dict[str, dict[str, set[str]]] = {
    "gb200-cdmm": {"advice": _BIG},
    "power9-ac922": {"advice": _SWAP | _NUMA | {"bf16-emulated", "python-headers-missing"}},
    "vast-pod": {"warning": {"cpu-quota-ignored-by-torch"}, "advice": _IMAGE | _SWAP | _NUMA | {"cgroup-memory-far-below-host"}},
    "runpod": {"advice": _IMAGE | _SWAP},
    "slurm-gres": {"advice": _SWAP | _NUMA | _BIG | {"compile-cache-on-network"}},
    "aws-p5-efa": {"advice": _NUMA | _BIG},
    "gcp-a3-mega": {"advice": _NUMA | _BIG | {"python-end-of-life"}},
    "oci-h100": {"advice": _NUMA | _BIG},
    "ryzen-laptop": {},
    "ryzen-laptop-cuda-wheel": {},
    "hybrid-desktop": {"advice": _SWAP | {"python-headers-missing"}},
    "kvm-guest": {},
    "vfio-host": {"advice": _SWAP | {"python-headers-missing"}},
    "jetson-thor": {"warning": {"triton-ptxas-older-than-gpu"}},
}

HEADS = {
    "gb200-cdmm": ("4 x NVIDIA GB200 (185 GiB)", "144 CPUs, 2 NUMA nodes, 957 GiB memory"),
    "power9-ac922": ("4 x Tesla V100-SXM2-32GB", "ppc64le, 2 x POWER9, 128 CPUs, 2 NUMA nodes and 4 without CPUs"),
    "vast-pod": ("2 x NVIDIA GeForce RTX 4090", "46.08 of 384 CPUs usable, 2 NUMA nodes, 190 GiB of 1.5 TiB memory allowed"),
    "runpod": ("2 x NVIDIA GeForce RTX 4090", "24 CPUs, 100 GiB of 125 GiB memory allowed, in a container (docker)"),
    "slurm-gres": ("2 x NVIDIA A100-SXM4-80GB", "64 of 128 CPUs usable"),
    "aws-p5-efa": ("8 x NVIDIA H100", "virtual machine (amazon)"),
    "gcp-a3-mega": ("8 x NVIDIA H100", "208 CPUs, 2 NUMA nodes, 1.8 TiB memory, virtual machine (google)"),
    "ryzen-laptop": ("none on the PCI bus", "AMD Ryzen 7 7840U w/ Radeon 780M Graphics, 16 CPUs"),
    "ryzen-laptop-cuda-wheel": ("none on the PCI bus", "16 CPUs"),
    "hybrid-desktop": ("1 x NVIDIA GeForce RTX 4090 (24 GiB), driver", "bare metal"),
    "kvm-guest": ("2 x NVIDIA L40S", "Linux 6.8.0-1040-aws x86_64, Intel Xeon Processor (SapphireRapids), 16 CPUs"),
    "vfio-host": ("2 on the PCI bus", "bare metal"),
    "jetson-thor": ("1 x NVIDIA Thor, driver 580", "Arm Neoverse-V3AE, 14 CPUs"),
    "oci-h100": ("8 x NVIDIA H100", "2.0 TiB memory, bare metal"),
}
