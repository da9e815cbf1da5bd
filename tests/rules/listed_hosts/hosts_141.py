"""Builders of the hosts 141 to 187 of hosts.csv."""

from __future__ import annotations

from hosts_082 import _FILE, _mounted, _site, wsl2
from hosts_table import HOSTS, Build, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import Recording, environment, function, nodes, ordinary, over, text
from platforms import gaudi, intel_xpu
from platforms_arm import gb200_tray
from platforms_contained import podman_rootless, slurm_cgroup_v1
from platforms_troubled import logged, of_gpu

_REFUSED = {"read": False, "write": False}


def _asked(like: Build, **intent: int | str | list[str]) -> Build:
    return lambda: over(like(), intent=intent)


def pod() -> Recording:
    return ordinary("k8s-h100")


def slurm() -> Recording:
    return ordinary("slurm-a100")


def _without_libcuda(host: Recording) -> Recording:
    """No libcuda.so in any form."""
    kept = {
        s: {path: value for path, value in host.get(s, {}).items() if "/libcuda.so" not in path}
        for s in ("files", "links", "stats")
    }
    return {**host, **kept}


HOSTS[141] = (lambda: environment(_without_libcuda(pod()), NVIDIA_DRIVER_CAPABILITIES="utility"), pod)
with_variables(142, NCCL_PROTO="LL")
with_variables(143, two_dgx, NCCL_NET_GDR_LEVEL="LOC")
with_variables(144, two_dgx, NCCL_NET_PLUGIN="/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so")
_STEP = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0"}


def _step_of_a_task() -> Recording:
    return environment(dgx(), **_STEP)


with_variables(145, _step_of_a_task, LOCAL_RANK="3", RANK="3", WORLD_SIZE="8")
with_variables(146, _asked(dgx, ranks=8), OMP_NUM_THREADS="224")
with_variables(147, _asked(dgx, ranks=8), OMP_PROC_BIND="close", OMP_PLACES="cores")
with_variables(148, mi300x, HSA_ENABLE_SDMA="0")
with_variables(149, mi300x, HIP_LAUNCH_BLOCKING="1")


def _amd_gpus(host: Recording) -> list[str]:
    """Their directories below /sys/devices."""
    return [
        path.removesuffix("/uevent")
        for path in host["files"]
        if path.endswith("/uevent") and "amdgpu" in str(host["files"][path])
    ]


def _partitioned(*modes: str) -> Recording:
    host = mi300x()
    files = {f"{place}/current_compute_partition": f"{mode}\n" for place, mode in zip(_amd_gpus(host), modes, strict=True)}
    return over(host, files=files)


HOSTS[150] = (lambda: _partitioned("SPX", "SPX", "SPX", "CPX", *("SPX",) * 4), lambda: _partitioned(*("SPX",) * 8))
with_log(151, mi300x, "kfd kfd: amdgpu: skipped device 1002:74a1, PCI rejects atomics 730<0")


def _habana(plugin: str) -> Recording:
    host = gaudi()
    files = {
        f"{_site(host)}/habana_torch_plugin-{plugin}.dist-info/INSTALLER": "pip\n",
        f"{_site(host)}/habana_torch_plugin-{plugin}.dist-info/METADATA": ["Name: habana-torch-plugin", f"Version: {plugin}", ""],
        "/sys/module/habanalabs/version": "1.15.1-62f612b\n",
    }
    return over(host, files=files)


HOSTS[152] = (lambda: _habana("1.18.0.524"), lambda: _habana("1.15.1.15"))


@made(153, intel_xpu)
def gpu_of_intel_without_driver() -> Recording:
    host = intel_xpu()
    place = next(path for path in host["files"] if path.endswith("0000:03:00.0/uevent"))
    links = {path: target for path, target in host["links"].items() if not target.endswith("drivers/xe")}
    lines = [line for line in text(host, place) if line != "DRIVER=xe"]
    files = {place: lines, "/etc/modprobe.d/no-i915.conf": "blacklist i915\n", "/proc/modules": ["nvme 1 0 - Live 0x0"]}
    return over({**host, "links": links}, files=files)


@made(154, wsl2)
def loader_without_the_libraries_of_wsl() -> Recording:
    host = wsl2()
    files = {path: value for path, value in host["files"].items() if path != "/etc/ld.so.conf.d/ld.wsl.conf"}
    config = "[boot]\nsystemd=true\n[automount]\nldconfig=false\n"
    return over({**host, "files": files}, files={"/etc/wsl.conf": config}, answers={"loader-cache": []})


@made(155)
def kernel_checks_its_memory() -> Recording:
    line = text(dgx(), "/proc/cmdline")[0] + " slub_debug=FZPU page_poison=1 init_on_free=1"
    return over(dgx(), files={"/proc/cmdline": f"{line}\n"})


_JOB = "/sys/fs/cgroup/memory/slurm/uid_1000/job_4242"


@made(156, _asked(slurm_cgroup_v1, ranks=8))
def little_memory_for_the_job() -> Recording:
    return over(slurm_cgroup_v1(), files={f"{_JOB}/memory.limit_in_bytes": f"{16 << 30}\n"}, intent={"ranks": 8})


@made(157)
def no_inode_in_shared_memory() -> Recording:
    host = dgx()
    return over(host, spaces={"/dev/shm": {**host["spaces"]["/dev/shm"], "inodes_free": 0}})


def _settings(number: int, **values: str) -> None:
    files = {f"/proc/sys/{name.replace('__', '/')}": f"{value}\n" for name, value in values.items()}
    HOSTS[number] = (lambda: over(dgx(), files=files), dgx)


_settings(158, vm__overcommit_memory="2", vm__overcommit_ratio="0", vm__overcommit_kbytes="67108864")
_settings(159, vm__dirty_bytes="1048576", vm__dirty_ratio="0")


@made(160, two_dgx)
def name_of_the_master_unknown() -> Recording:
    nobody = {"error": "absent", "source": "getaddrinfo(node-head)", "detail": "Name or service not known"}
    return over(environment(two_dgx(), MASTER_ADDR="node-head", MASTER_PORT="29500"), answers={"way-to:node-head": nobody})


with_variables(161, desktop, LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")


def _labelled() -> Recording:
    nodes_ = [path for path in podman_rootless()["stats"] if path.startswith("/dev/nvidia")]
    return over(podman_rootless(), answers={f"access:{path}": {"read": True, "write": True} for path in nodes_})


@made(162, _labelled)
def kept_out_by_selinux() -> Recording:
    host = podman_rootless()
    nobody = {"$missing": "not-supported", "source": "NVML", "detail": "Insufficient Permissions"}
    answers = {f"access:{path}": _REFUSED for path in host["stats"] if path.startswith("/dev/nvidia")}
    files = {"/sys/fs/selinux/enforce": "1", "/proc/self/attr/current": "system_u:system_r:container_t:s0:c12,c345"}
    return over(host, files=files, answers={**answers, "nvml": {"error": "NO_PERMISSION", "devices": nobody}})


HOSTS[163] = (lambda: over(pod(), files={"/sys/fs/cgroup/memory.max": f"{32 << 30}\n"}), pod)


def _data_on_nfs(options: str) -> Build:
    what = f"- nfs4 nfs01:/export/data rw,vers=4.2,rsize=1048576,wsize=1048576,{options},proto=tcp,nconnect=8"
    return lambda: over(_mounted(dgx(), "/nfs/data", what), intent={"data": ["/nfs/data"]})


HOSTS[164] = (_data_on_nfs("soft,timeo=30,retrans=1"), _data_on_nfs("hard,timeo=600,retrans=2"))


def _hub_on_lustre(options: str) -> Build:
    what = f"- lustre 10.1.1.1@o2ib:/scratch rw,checksum{options},user_xattr,lruresize,lazystatfs"
    return lambda: environment(_mounted(dgx(), "/scratch", what), HF_HOME="/scratch/hf")


HOSTS[165] = (_hub_on_lustre(""), _hub_on_lustre(",flock"))


def _disk_of_the_data(width: int) -> Recording:
    port = "pci0000:00/0000:00:03.0"
    host = function(dgx(), port, "8086:352a", "60400", "pcieport", max_link_width="4", current_link_width=str(width))
    host = function(host, f"{port}/0000:02:00.0", "144d:a824", "10802", "nvme", max_link_width="4", current_link_width=str(width))
    return over(host, spaces={"/raid": host["spaces"]["/"]}, dirs={"/raid": []}, intent={"data": ["/raid"]})


HOSTS[166] = (lambda: _disk_of_the_data(1), lambda: _disk_of_the_data(4))
with_log(
    167,
    dgx,
    "device-mapper: thin: 253:4: reached low water mark for data device: sending event.",
    "device-mapper: thin: 253:4: switching pool to out-of-data-space (queue IO) mode",
)
with_log(168, dgx, "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.")
with_log(
    169,
    dgx,
    "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
)
with_log(170, dgx, "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")


@made(171)
def nvlink_switched_off() -> Recording:
    host = dgx()
    for index in range(8):
        host = of_gpu(host, index, nvlinks_down=list(range(18)), fabric_state="not-supported")
    params = [*text(host, "/proc/driver/nvidia/params"), "NvLinkDisable: 1"]
    option = {"/etc/modprobe.d/nvlink.conf": "options nvidia NVreg_NvLinkDisable=1\n"}
    return over(host, files={"/proc/driver/nvidia/params": params, **option})


@made(172)
def nodes_of_the_group_video() -> Recording:
    host = dgx()
    params = ["ModifyDeviceFiles: 1", "DeviceFileUID: 0", "DeviceFileGID: 44", "DeviceFileMode: 432"]
    nodes_ = [path for path in host["stats"] if path.startswith("/dev/nvidia")]
    nobody = {"$missing": "not-supported", "source": "NVML", "detail": "Insufficient Permissions"}
    return over(
        host,
        files={"/proc/driver/nvidia/params": params},
        stats={path: {**host["stats"][path], "mode": 0o20660, "gid": 44} for path in nodes_},
        answers={**{f"access:{path}": _REFUSED for path in nodes_}, "nvml": {"error": "NO_PERMISSION", "devices": nobody}},
    )


def _sliced(*variables: str) -> Recording:
    host = of_gpu(dgx(), 7, mig=True, mig_instances=2)
    return environment(over(host, intent={"ranks": len(variables)}), CUDA_VISIBLE_DEVICES=",".join(variables))


_FIRST, _SECOND = "MIG-5c0ffee0-0000-5000-8000-000000000071", "MIG-5c0ffee0-0000-5000-8000-000000000072"
HOSTS[173] = (lambda: _sliced(_FIRST, _SECOND), lambda: _sliced(_FIRST))
HOSTS[174] = (
    lambda: of_gpu(dgx(), 4, clock_event_reasons=0x88, utilization_pct=99, clock_sm_mhz=345, clock_sm_max_mhz=1980),
    dgx,
)


@made(175, desktop)
def stuck_at_the_lowest_clock() -> Recording:
    policy = "/sys/devices/system/cpu/cpufreq/policy0"
    files = {
        f"{policy}/scaling_cur_freq": "400000\n",
        f"{policy}/cpuinfo_min_freq": "800000\n",
        "/proc/loadavg": "33.10 32.90 31.00 33/900 4711\n",
    }
    return over(desktop(), files=files)


@made(176)
def numa_hidden() -> Recording:
    host = dgx()
    line = text(host, "/proc/cmdline")[0] + " numa=off"
    total = sum(int(text(host, f"/sys/devices/system/node/node{n}/meminfo")[0].split()[-2]) for n in (0, 1))
    host = nodes(host, {0: ("0-223", total)})
    gone = {path: "-1\n" for path in host["files"] if path.endswith("/numa_node")}
    return over(host, files={**gone, "/proc/cmdline": f"{line}\n"})


with_variables(177, desktop, PYTHONWARNINGS="error")
with_variables(178, desktop, PYTHONTRACEMALLOC="25")
with_variables(179, TORCH_COMPILE_DEBUG="1")
with_variables(180, _asked(gb200_tray, nodes=2), NCCL_MNNVL_ENABLE="0")
with_variables(181, slurm, CUDA_VISIBLE_DEVICES="NoDevFiles", SLURM_JOB_ID="9")


def _not_executable(place: str) -> Recording:
    return _mounted(desktop(), place, "- ext4 /dev/nvme0n1p5 rw").copy()


def _noexec(place: str) -> Recording:
    host = _mounted(desktop(), place, "- ext4 /dev/nvme0n1p5 rw")
    lines = [
        line.replace("rw,relatime shared:50", "rw,nosuid,nodev,noexec,relatime shared:50")
        for line in text(host, "/proc/self/mountinfo")
    ]
    return over(host, files={"/proc/self/mountinfo": lines})


HOSTS[182] = (lambda: _noexec("/tmp"), lambda: _not_executable("/tmp"))
HOSTS[183] = (lambda: _noexec("/home"), lambda: _not_executable("/home"))


@made(184)
def compat_older_than_the_driver() -> Recording:
    folder, names = "/usr/local/cuda/compat", ("libcuda.so.1", "libcuda.so.550.54.15")
    dynamic = {f"dynamic:{folder}/{name}": {"kind": "64:62", "soname": "libcuda.so.1"} for name in names}
    return over(
        environment(dgx(), LD_LIBRARY_PATH=folder),
        files={f"{folder}/{name}": "" for name in names},
        links={f"{folder}/libcuda.so.1": "libcuda.so.550.54.15"},
        stats={f"{folder}/libcuda.so.550.54.15": _FILE},
        answers=dynamic,
    )


@made(185, desktop)
def two_records_of_torch() -> Recording:
    info = f"{_site(desktop())}/torch-2.10.0.dist-info"
    files = {
        f"{info}/INSTALLER": "pip\n",
        f"{info}/METADATA": ["Metadata-Version: 2.4", "Name: torch", "Version: 2.10.0", "", ""],
    }
    return over(desktop(), files=files)


@made(186, two_dgx)
def port_in_the_other_mode() -> Recording:
    port = "/sys/class/infiniband/mlx5_3/ports/1"
    return over(
        two_dgx(), files={f"{port}/link_layer": "Ethernet\n", f"{port}/gids/0": "fe80:0000:0000:0000:a288:c2ff:fe00:0003\n"}
    )


@made(187, two_dgx)
def an_adapter_did_not_start() -> Recording:
    host, place = two_dgx(), "/sys/devices/pci0000:9a/0000:9a:00.0"
    name = next(
        path.rpartition("/")[0]
        for path, target in host["links"].items()
        if path.endswith("/device") and target == place and "infiniband" in path
    )
    net = host["dirs"][f"{place}/net"][0]
    listed = [one for one in host["answers"]["interfaces"] if one["name"] != net]
    cut_ = (name, f"/sys/class/net/{net}/", f"{place}/driver", f"{place}/net")
    kept = {s: {path: value for path, value in host[s].items() if not path.startswith(cut_)} for s in ("files", "links", "dirs")}
    lines = [line for line in text(host, f"{place}/uevent") if not line.startswith("DRIVER=")]
    host = over({**host, **kept}, files={f"{place}/uevent": lines}, answers={"interfaces": listed})
    return logged(host, "mlx5_core 0000:9a:00.0: probe_one:1949:(pid 1): mlx5_init_one failed with error code -110")
