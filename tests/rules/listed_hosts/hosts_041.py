"""Builders of the hosts 41 to 81 of hosts.csv."""

from __future__ import annotations

from typing import Any

from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_variables

from machines import Recording, card, environment, nodes, over, status, text
from platforms_troubled import of_gpu

_USER = "/sys/fs/cgroup/user.slice/user-1000.slice"
_SCOPE = f"{_USER}/session-3.scope"


def _all_gpus(host: Recording, **facts: Any) -> Recording:
    for index in range(len(host["answers"]["nvml"]["devices"])):
        host = of_gpu(host, index, **facts)
    return host


def _loaded() -> Recording:
    """All GPUs work at their highest clock."""
    return _all_gpus(dgx(), utilization_pct=100, clock_event_reasons=0, clock_sm_mhz=1980, clock_sm_max_mhz=1980)


@made(41, _loaded)
def locked_below_the_others() -> Recording:
    return of_gpu(_loaded(), 2, clock_sm_mhz=1200)


def _laptop() -> Recording:
    name = "NVIDIA GeForce RTX 4090 Laptop GPU"
    return of_gpu(desktop(), 0, name=name, power_limit_mw=150_000, power_default_mw=150_000, utilization_pct=99)


@made(42, _laptop)
def laptop_below_its_power() -> Recording:
    return of_gpu(_laptop(), 0, power_limit_mw=80_000, power_default_mw=80_000, power_max_mw=150_000, clock_event_reasons=4)


@made(43)
def a_share_of_mps() -> Recording:
    pipe = {"/tmp/nvidia-mps/control": {"mode": 49590, "uid": 1000, "gid": 1000, "size": 0}}
    host = environment(dgx(), CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
    names = {"/tmp/nvidia-mps": ["control", "control_lock"], "/tmp": ["nvidia-mps"]}
    return over(host, stats=pipe, dirs=names, answers={"bound-socket:/tmp/nvidia-mps/control": True})


with_variables(44, NVIDIA_TF32_OVERRIDE="0")
with_variables(45, CUDA_FORCE_PTX_JIT="1")
HOSTS[46] = (lambda: over(dgx(), files={"/etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"}), dgx)
with_variables(47, NCCL_MAX_NCHANNELS="1")
with_variables(48, two_dgx, NCCL_TOPO_FILE="/opt/microsoft/ndv4-topo.xml")
with_variables(49, TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0")
with_variables(50, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:16")
with_variables(51, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


@made(52)
def sanitizer_preloaded() -> Recording:
    library = "/usr/lib/x86_64-linux-gnu/libasan.so.8"
    return _with_library(environment(dgx(), LD_PRELOAD=library), library, "libasan.so.8")


def _with_library(host: Recording, path: str, soname: str) -> Recording:
    whole = {"mode": 33188, "uid": 0, "gid": 0, "size": 1_500_000}
    answers = {f"dynamic:{path}": {"kind": "64:62", "soname": soname}}
    return over(host, files={path: ""}, stats={path: whole}, answers=answers)


with_variables(53, desktop, CC="/usr/bin/gcc-11")


def _with_nvcc() -> Recording:
    place = "/usr/local/cuda-13.0"
    told = '{"cuda": {"version": "13.0.20250801"}, "cuda_nvcc": {"version": "13.0.88"}}'
    return over(environment(dgx(), CUDA_HOME=place), files={f"{place}/bin/nvcc": "", f"{place}/version.json": told})


with_variables(54, _with_nvcc, TORCH_CUDA_ARCH_LIST="8.0")
with_variables(55, mi300x, ROCR_VISIBLE_DEVICES="4,5,6,7", HIP_VISIBLE_DEVICES="4,5,6,7")


def _eight_ranks() -> Recording:
    return over(dgx(), intent={"ranks": 8})


with_variables(56, _eight_ranks, GOMP_CPU_AFFINITY="0-15")


def _eight_workers() -> Recording:
    return over(dgx(), intent={"ranks": 8, "workers": 8})


@made(57, _eight_workers)
def few_tasks_above() -> Recording:
    return over(_eight_workers(), files={f"{_USER}/pids.max": "600\n", f"{_USER}/pids.current": "540\n"})


@made(58)
def reclaimed_at_memory_high() -> Recording:
    place = "/sys/fs/cgroup/training.slice"
    files = {
        "/proc/self/cgroup": "0::/training.slice/train.service\n",
        f"{place}/memory.high": f"{64 << 30}\n",
        f"{place}/memory.max": "max\n",
        f"{place}/memory.current": f"{64 << 30}\n",
        f"{place}/memory.stat": ["anon 60000000000", "inactive_file 100000000"],
        f"{place}/memory.events": ["low 0", "high 812345", "max 0", "oom 0", "oom_kill 0"],
        f"{place}/train.service/memory.high": "max\n",
        f"{place}/train.service/memory.max": "max\n",
        f"{place}/train.service/cgroup.procs": "4711\n",
        f"{place}/train.service/memory.events": ["low 0", "high 0", "max 0", "oom 0", "oom_kill 0"],
    }
    return over(dgx(), files=files)


@made(59)
def memory_of_one_node() -> Recording:
    host = over(dgx(), files={f"{_SCOPE}/cpuset.mems.effective": "0\n", f"{_SCOPE}/cpuset.cpus.effective": "0-223\n"})
    return status(host, Mems_allowed_list="0")


def _hugepages(count: int, available_kib: int) -> Recording:
    host = dgx()
    changed = {
        "HugePages_Total": f"{count}",
        "HugePages_Free": f"{count}",
        "Hugetlb": f"{count * 2048} kB",
        "MemAvailable": f"{available_kib} kB",
        "MemFree": f"{available_kib // 2} kB",
    }
    kept = [line for line in text(host, "/proc/meminfo") if line.partition(":")[0] not in changed]
    return over(host, files={"/proc/meminfo": [*kept, *(f"{name}: {value}" for name, value in changed.items())]})


@made(60)
def hugepages_hold_most() -> Recording:
    return _hugepages(838_861, 209_715_200)


@made(61, _eight_ranks)
def isolated_cpus() -> Recording:
    host = _eight_ranks()
    line = text(host, "/proc/cmdline")[0]
    files = {
        "/proc/cmdline": f"{line} isolcpus=domain,managed_irq,8-223 nohz_full=8-223\n",
        "/sys/devices/system/cpu/isolated": "8-223\n",
        "/sys/devices/system/cpu/nohz_full": "8-223\n",
    }
    return status(over(host, files=files, answers={"affinity": "0-7"}), Cpus_allowed_list="0-7")


@made(62)
def capped_by_percent() -> Recording:
    pstate = "/sys/devices/system/cpu/intel_pstate"
    policy = "/sys/devices/system/cpu/cpufreq/policy0"
    return over(
        dgx(),
        files={f"{pstate}/max_perf_pct": "35\n", f"{pstate}/min_perf_pct": "21\n", f"{policy}/scaling_max_freq": "3800000\n"},
    )


@made(63)
def uneven_nodes() -> Recording:
    rows = {0: ("0-55,112-167", 1_055_000_000), 1: ("56-111,168-223", 67_108_864)}
    return nodes(dgx(), rows, [[10, 21], [21, 10]])


def _array(degraded: int, lines: list[str]) -> Recording:
    mounts = text(dgx(), "/proc/self/mountinfo")
    mounts = [line.replace("259:8 / /raid", "9:0 / /raid").replace("/dev/nvme1n1", "/dev/md0") for line in mounts]
    block = "/sys/devices/virtual/block/md0"
    files: Recording = {"/proc/self/mountinfo": mounts, "/proc/mdstat": lines}
    files |= {f"{block}/md/level": "raid5", f"{block}/md/degraded": f"{degraded}", f"{block}/size": "46881284096"}
    links = {
        "/sys/block/md0": "../devices/virtual/block/md0",
        "/sys/class/block/md0": "../../devices/virtual/block/md0",
        "/sys/dev/block/9:0": "../../devices/virtual/block/md0",
    }
    names = [f"nvme{number}n1" for number in range(1, 5)]
    for number, name in enumerate(names, 1):
        disk = f"/sys/devices/pci0000:0{number}/0000:0{number}:00.0/nvme/nvme{number}/{name}"
        files |= {f"{disk}/size": "15627095040", f"{disk}/queue/rotational": "0", f"{disk}/queue/scheduler": "[none] mq-deadline"}
        links |= {f"/sys/block/{name}": disk, f"/sys/class/block/{name}": disk, f"/sys/dev/block/259:{7 + number}": disk}
    space = {"size": 24_000_000_000_000, "free": 12_000_000_000_000, "inodes": 10**9, "inodes_free": 10**9, "read_only": False}
    return over(
        dgx(),
        files=files,
        links=links,
        dirs={f"{block}/slaves": names, "/raid": []},
        spaces={"/raid": space},
        answers={"access:/raid": {"read": True, "write": True}},
        intent={"data": ["/raid"]},
    )


_WHOLE = "md0 : active raid5 nvme4n1[4] nvme3n1[2] nvme2n1[1] nvme1n1[0]"


@made(64, lambda: _array(0, ["Personalities : [raid6] [raid5] [raid4]", _WHOLE, "      [4/4] [UUUU]", "unused devices: <none>"]))
def array_rebuilding() -> Recording:
    progress = "      [==>..................]  recovery = 12.6% (985000000/7813547520) finish=911.2min speed=124880K/sec"
    return _array(
        1, ["Personalities : [raid6] [raid5] [raid4]", _WHOLE, "      [4/3] [UUU_]", progress, "unused devices: <none>"]
    )


def _scratch(options: str) -> Recording:
    mounts = [*text(dgx(), "/proc/self/mountinfo"), f"60 30 259:9 / /scratch {options} shared:50 - ext4 /dev/nvme2n1 {options}"]
    space = {"size": 7_000_000_000_000, "free": 6_000_000_000_000, "inodes": 10**9, "inodes_free": 10**9, "read_only": False}
    return over(
        dgx(),
        files={"/proc/self/mountinfo": mounts},
        dirs={"/scratch": []},
        spaces={"/scratch": space},
        answers={"access:/scratch": {"read": True, "write": True}},
        intent={"checkpoints": ["/scratch"]},
    )


@made(65, lambda: _scratch("rw,relatime"))
def synchronous_scratch() -> Recording:
    return _scratch("rw,sync,dirsync,relatime")


def _rails(count: int, subnets: bool, rp_filter: int) -> Recording:
    host = two_dgx()
    for number in range(count):
        address = f"10.10.{number if subnets else 0}.{13 if subnets else 13 + number}/24"
        place = f"pci0000:e{number}/0000:e{number}:00.0"
        host = card(host, f"rail{number}", place, ids="15b3:1021", driver="mlx5_core", address=address, mtu=9000, mbit=200_000)
    names = [*(f"rail{number}" for number in range(count)), "all", "default"]
    return over(host, files={f"/proc/sys/net/ipv4/conf/{name}/rp_filter": f"{rp_filter}\n" for name in names})


@made(66, two_dgx)
def rails_in_one_subnet() -> Recording:
    return _rails(4, subnets=False, rp_filter=1)


@made(67)
def port_without_manager() -> Recording:
    return over(dgx(), files={"/sys/class/infiniband/mlx5_9/ports/1/state": "2: INIT"})


with_variables(68, two_dgx, GLOO_SOCKET_IFNAME="eth0")
HOSTS[69] = (lambda: of_gpu(dgx(), 6, ecc=False, ecc_pending=False), dgx)

_power = {"utilization_pct": 100, "clock_event_reasons": 4, "clock_sm_mhz": 1755, "clock_sm_max_mhz": 1980}
HOSTS[70] = (lambda: _all_gpus(dgx(), **_power, power_max_mw=700_000), dgx)
with_variables(
    71,
    CUDA_DEVICE_MAX_CONNECTIONS="1",
    NCCL_NVLS_ENABLE="1",
    NVTE_FUSED_ATTN="1",
    TORCH_NCCL_AVOID_RECORD_STREAMS="1",
    PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
)


@made(72)
def tcmalloc_preloaded() -> Recording:
    library = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    return _with_library(environment(dgx(), LD_PRELOAD=library), library, "libtcmalloc_minimal.so.4")


def _own_uuids() -> Recording:
    host = dgx()
    for index in range(8):
        host = of_gpu(host, index, uuid=f"GPU-{index}c0ffee{index}-0000-4000-8000-{index:012d}")
    return host


with_variables(73, _own_uuids, CUDA_VISIBLE_DEVICES=",".join(f"GPU-{index}c0ffee{index}" for index in range(4)))


def _four_ranks() -> Recording:
    return over(dgx(), intent={"ranks": 4})


with_variables(74, _four_ranks, CUDA_VISIBLE_DEVICES="3,2,1,0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
with_variables(75, mi300x, ROCR_VISIBLE_DEVICES="4,5,6,7", HIP_VISIBLE_DEVICES="0,1,2,3")


def _zram(used_kib: int) -> Recording:
    host = desktop()
    swap = {
        "SwapTotal": "8388604 kB",
        "SwapFree": f"{8_388_604 - used_kib} kB",
        "MemTotal": "131072000 kB",
        "MemAvailable": "110000000 kB",
    }
    kept = [line for line in text(host, "/proc/meminfo") if line.partition(":")[0] not in swap]
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
    files = {
        "/proc/meminfo": [*kept, *(f"{name}: {value}" for name, value in swap.items())],
        "/proc/swaps": [head, f"/dev/zram0                              partition\t8388604\t\t{used_kib}\t\t100"],
        "/sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs": "812\n",
        "/proc/sys/vm/swappiness": "60\n",
    }
    return over(host, files=files)


HOSTS[76] = (lambda: _zram(20_480), desktop)
HOSTS[77] = (lambda: _hugepages(1024, 1_890_000_000), dgx)


@made(78, _eight_workers)
def tasks_as_systemd_has_it() -> Recording:
    files = {f"{_USER}/pids.max": "2549760\n", f"{_USER}/pids.current": "2210\n", f"{_USER}/memory.high": "max\n"}
    return over(_eight_workers(), files=files)


HOSTS[79] = (lambda: _rails(8, subnets=True, rp_filter=2), two_dgx)


@made(80, _four_ranks)
def bound_to_its_node() -> Recording:
    near = "0-55,112-167"
    files = {f"{_SCOPE}/cpuset.mems.effective": "0\n", f"{_SCOPE}/cpuset.cpus.effective": f"{near}\n"}
    host = over(environment(_four_ranks(), CUDA_VISIBLE_DEVICES="0,1,2,3"), files=files, answers={"affinity": near})
    return status(host, Cpus_allowed_list=near, Mems_allowed_list="0")


@made(81, desktop)
def idle_with_aspm() -> Recording:
    policy = {"/sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave\n"}
    return over(of_gpu(desktop(), 0, pcie_gen=1, clock_event_reasons=1), files=policy)
