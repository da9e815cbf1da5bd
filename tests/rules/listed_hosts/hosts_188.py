"""Builders of the hosts 188 to 205 of hosts.csv, odd but healthy."""

from __future__ import annotations

from hosts_082 import _limited, wsl2
from hosts_141 import _FIRST, _STEP, _asked, _noexec, _settings, _sliced, pod, slurm
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import Recording, environment, interpreter, over, text
from platforms import optimus_laptop
from platforms_more import kvm_guest

with_variables(188, desktop, LANG="C")
_PROXY = "http://proxy.site.example:3128"
with_variables(189, two_dgx, http_proxy=_PROXY, https_proxy=_PROXY, no_proxy="localhost,127.0.0.1")


@made(190)
def hardened() -> Recording:
    values = {"yama/ptrace_scope": "2", "dmesg_restrict": "1", "kptr_restrict": "2", "unprivileged_bpf_disabled": "2"}
    mounts = [line.replace("proc proc rw", "proc proc rw,hidepid=invisible") for line in text(dgx(), "/proc/self/mountinfo")]
    files = {f"/proc/sys/kernel/{name}": f"{value}\n" for name, value in values.items()}
    return over(dgx(), files={**files, "/proc/self/mountinfo": mounts})


with_log(
    191,
    dgx,
    "workqueue: blk_mq_timeout_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
    "mlx5_core 0000:40:00.0: Port module event: module 0, Cable plugged",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eno3: link becomes ready",
    "EXT4-fs (nvme1n1): mounted filesystem 5f1c2d3e-0000-4000-8000-000000000001 r/w with ordered data mode. Quota mode: none.",
    "TCP: eno3: Driver has suspect GRO implementation, TCP performance may be compromised.",
)
HOSTS[192] = (lambda: environment(slurm(), **{**_STEP, "SLURM_NTASKS": "4"}), slurm)


@made(193, pod)
def one_gpu_by_uuid() -> Recording:
    uuid = pod()["answers"]["nvml"]["devices"][0]["uuid"]
    return environment(pod(), NVIDIA_VISIBLE_DEVICES=uuid, NVIDIA_DRIVER_CAPABILITIES="compute,utility")


@made(194, desktop)
def other_places_for_compiled_code() -> Recording:
    places = {"TMPDIR": "tmp", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    host = environment(_noexec("/tmp"), **{name: f"/home/mia/{place}" for name, place in places.items()})
    paths = [f"/home/mia/{place}" for place in places.values()]
    open_ = {f"access:{path}": {"read": True, "write": True} for path in paths}
    space = dict.fromkeys(paths, host["spaces"]["/home/mia"])
    return over(host, dirs={path: [] for path in paths}, spaces=space, answers=open_)


with_variables(
    195,
    CUDA_MODULE_LOADING="LAZY",
    CUDA_CACHE_MAXSIZE="4294967296",
    CUBLAS_WORKSPACE_CONFIG=":4096:8",
    PYTORCH_NVML_BASED_CUDA_CHECK="1",
    PYTHONHASHSEED="0",
    TOKENIZERS_PARALLELISM="false",
    PYTHONFAULTHANDLER="1",
)
HOSTS[196] = (
    lambda: environment(_limited(_asked(dgx, ranks=8), stack=[None, None]), OMP_NUM_THREADS="14"),
    _asked(dgx, ranks=8),
)
_settings(197, vm__overcommit_memory="1", vm__swappiness="1", vm__dirty_background_ratio="5", vm__dirty_ratio="20")
HOSTS[198] = (lambda: _sliced(_FIRST), dgx)


@made(199, optimus_laptop)
def power_of_a_laptop() -> Recording:
    options = "options nvidia NVreg_DynamicPowerManagement=0x02 NVreg_PreserveVideoMemoryAllocations=1\n"
    params = [
        *text(optimus_laptop(), "/proc/driver/nvidia/params"),
        "DynamicPowerManagement: 2",
        "PreserveVideoMemoryAllocations: 1",
    ]
    return over(optimus_laptop(), files={"/etc/modprobe.d/nvidia-pm.conf": options, "/proc/driver/nvidia/params": params})


@made(200, wsl2)
def mirrored_network() -> Recording:
    host = wsl2()
    own = next(one for one in host["answers"]["interfaces"] if one["name"] != "lo")
    more = {**own, "name": "loopback0", "index": 9, "addresses": [{"family": "inet", "address": "127.0.0.1", "prefix_length": 8}]}
    listed = [*host["answers"]["interfaces"], more]
    plain = {"mtu": "1500", "type": "1", "flags": "0x1003", "operstate": "up", "speed": "10000"}
    files = {f"/sys/class/net/loopback0/{name}": value for name, value in plain.items()}
    return over(host, files={**files, "/etc/wsl.conf": "[boot]\nsystemd=true\n"}, answers={"interfaces": listed})


@made(201, kvm_guest)
def guest_with_its_clock() -> Recording:
    source = "/sys/devices/system/clocksource/clocksource0"
    modules = [*text(kvm_guest(), "/proc/modules"), "virtio_balloon 24576 0 - Live 0x0"]
    clock = {f"{source}/current_clocksource": "kvm-clock\n", f"{source}/available_clocksource": "kvm-clock tsc acpi_pm\n"}
    return over(kvm_guest(), files={**clock, "/proc/modules": modules})


@made(202, desktop)
def user_site_left_out() -> Recording:
    user = "/home/mia/.local/lib/python3.12/site-packages"
    files = {
        f"{user}/torch/version.py": ["__version__ = '2.6.0+cu124'", "debug = False", "cuda: Optional[str] = '12.4'"],
        f"{user}/torch/__init__.py": "",
        f"{user}/torch-2.6.0.dist-info/INSTALLER": "pip\n",
        f"{user}/torch-2.6.0.dist-info/METADATA": ["Name: torch", "Version: 2.6.0", ""],
    }
    return over(interpreter(environment(desktop(), PYTHONNOUSERSITE="1"), user_site=user), files=files)


@made(203, two_dgx)
def bond_for_storage() -> Recording:
    host = two_dgx()
    own = next(one for one in host["answers"]["interfaces"] if one["name"] == "ens0np0")
    number = max(one["index"] for one in host["answers"]["interfaces"]) + 1
    kept = [
        {**one, "master": "bond0", "addresses": []} if one["name"] in ("ens0np0", "ens1np0") else one
        for one in host["answers"]["interfaces"]
    ]
    bond = {**own, "name": "bond0", "index": number, "kind": "bond", "flags": 5187}
    plain = {
        "mtu": str(own["mtu"]),
        "type": "1",
        "flags": "0x1443",
        "operstate": "up",
        "speed": "400000",
        "bonding/mode": "802.3ad 4",
    }
    files = {f"/sys/class/net/bond0/{name}": f"{value}\n" for name, value in plain.items()}
    slaves = [f"Slave Interface: {name}\nMII Status: up\nSpeed: 200000 Mbps" for name in ("ens0np0", "ens1np0")]
    files["/proc/net/bonding/bond0"] = "\n".join(
        ["Bonding Mode: IEEE 802.3ad Dynamic link aggregation", "MII Status: up", *slaves]
    )
    files |= {f"/proc/sys/net/ipv4/conf/bond0/{name}": "0\n" for name in ("rp_filter", "arp_ignore", "arp_announce")}
    return over(host, files=files, answers={"interfaces": [*kept, bond]})


HOSTS[204] = (
    lambda: environment(_asked(mi300x, ranks=2)(), HIP_VISIBLE_DEVICES="0,1", NCCL_DEBUG="WARN", HSA_ENABLE_SDMA="1"),
    _asked(mi300x, ranks=2),
)


@made(205)
def arguments_of_an_administrator() -> Recording:
    more = " nosmt iommu=pt pcie_aspm=off pci=noaer mitigations=auto transparent_hugepage=madvise"
    return over(dgx(), files={"/proc/cmdline": text(dgx(), "/proc/cmdline")[0] + more + "\n"})
