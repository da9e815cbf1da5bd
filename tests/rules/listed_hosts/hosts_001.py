"""Builders of the hosts 1 to 40 of hosts.csv."""

from __future__ import annotations

from typing import Any

from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_variables

from machines import Recording, cut, environment, interpreter, ordinary, over, rdma, status, system, text, torch
from machines_libraries import with_libraries
from platforms_arm import altra_a100, gb200_tray, jetson_orin
from platforms_more import aws_p5_efa, oci_h100
from platforms_troubled import logged, of_gpu

_LIBRARY = {"mode": 33188, "uid": 0, "gid": 0, "size": 95928112}
_DEBIAN, _DRIVER = "/usr/lib/x86_64-linux-gnu", "580.95.05"
_SECURE_BOOT = {"/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\x06\x00\x00\x00\x01"}
_KERNEL_OF_DESKTOP = "/lib/modules/6.14.0-33-generic"


def _pod() -> Recording:
    return ordinary("k8s-h100")


def _site(host: Recording) -> str:
    version: str = next(path for path in host["files"] if path.endswith("/torch/version.py"))
    return version.removesuffix("/torch/version.py")


def _wheels(host: Recording, **versions: str) -> Recording:
    names = {f"{_site(host)}/{name}-{version}.dist-info/INSTALLER": "pip\n" for name, version in versions.items()}
    return over(host, files=names)


def _without(host: Recording, section: str) -> Recording:
    return {**host, section: {path: value for path, value in host[section].items() if value is not None}}


@made(1)
def libcuda_newer_than_the_module() -> Recording:
    stats = {f"/usr/lib64/libcuda.so.{_DRIVER}": None, "/usr/lib64/libcuda.so.580.105.08": _LIBRARY}
    return over(dgx(), links={"/usr/lib64/libcuda.so.1": "libcuda.so.580.105.08"}, stats=stats)


@made(2, desktop)
def nouveau_until_the_next_boot() -> Recording:
    names = ("libcuda.so", "libnvidia-ml.so")
    files = {
        "/etc/modprobe.d/nvidia-graphics-drivers.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
        f"{_KERNEL_OF_DESKTOP}/modules.dep": "updates/dkms/nvidia.ko.zst:\nkernel/drivers/gpu/drm/nouveau/nouveau.ko.zst:\n",
    }
    return over(
        ordinary("desktop-4090.nouveau-loaded"),
        files=files,
        links={f"{_DEBIAN}/{name}.1": f"{name}.{_DRIVER}" for name in names},
        stats={f"{_DEBIAN}/{name}.{_DRIVER}": _LIBRARY for name in names},
    )


@made(3)
def fabric_manager_of_another_version() -> Recording:
    line = (
        "[Nov 20 2026 08:11:02] [ERROR] [tid 2203] fabric manager NVIDIA GPU driver interface version 580.82.07 don't match with "
        "driver version 580.95.05. Please update with matching NVIDIA driver package."
    )
    host = over(dgx(), files={"/run/nvidia-fabricmanager/nv-fabricmanager.pid": None, "/var/log/fabricmanager.log": [line]})
    for index in range(8):
        host = of_gpu(host, index, fabric_state="in-progress", fabric_status="success")
    return host


@made(4)
def half_the_lanes() -> Recording:
    host = of_gpu(dgx(), 3, pcie_width=8)
    address = host["answers"]["nvml"]["devices"][3]["pci_address"]
    width = next(path for path in host["files"] if path.endswith(f"{address}/current_link_width"))
    return over(host, files={width: "8\n"})


HOSTS[5] = (lambda: of_gpu(dgx(), 5, mig=True, mig_instances=0), dgx)
HOSTS[6] = (lambda: of_gpu(dgx(), 2, rows_remap_pending=True, recovery_action="reset"), dgx)
HOSTS[7] = (
    lambda: over(two_dgx(), files={"/etc/nccl.conf": "NCCL_SOCKET_IFNAME==ens1f0np0\nNCCL_DEBUG=WARN\n"}),
    two_dgx,
)
HOSTS[8] = (lambda: environment(two_dgx(), NCCL_IB_HCA="=rocep26s0:1,rocep60s0:1"), two_dgx)


@made(9, _pod)
def pod_with_little_locked_memory() -> Recording:
    place = "pci0000:a0/0000:a0:00.0"
    host = rdma(_pod(), "mlx5_0", place, layer="InfiniBand", rate="400 Gb/sec (4X NDR)", kind="MT4129")
    return over(host, intent={"nodes": 2})


HOSTS[10] = (lambda: over(_pod(), files={"/sys/fs/cgroup/cpu.max": "400000 100000\n"}, intent={"ranks": 8}), _pod)


def _slurm(allowed: str, env: dict[str, str], **intent: int) -> Recording:
    task = "system.slice/slurmstepd.scope/job_9/step_0/user/task_0"
    files = {
        "/proc/self/cgroup": f"0::/{task}\n",
        f"/sys/fs/cgroup/{task}/cpuset.cpus.effective": f"{allowed}\n",
        f"/sys/fs/cgroup/{task}/cgroup.procs": "4711\n",
    }
    job = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", **env}
    host = over(dgx(), files=files, env=job, answers={"affinity": allowed}, intent=intent)
    return status(host, Cpus_allowed_list=allowed)


@made(11)
def one_core_by_slurm() -> Recording:
    job = {"SLURM_NTASKS": "1", "SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    return _slurm("0,112", job, workers=4, ranks=1)


@made(12)
def older_nccl_in_the_path() -> Recording:
    place = "/opt/nccl/lib/libnccl.so.2"
    dynamic = {"kind": "64:62", "soname": "libnccl.so.2"}
    return over(
        environment(dgx(), LD_LIBRARY_PATH="/opt/nccl/lib"),
        files={place: "", f"{place}.27.3": ""},
        links={place: "libnccl.so.2.27.3"},
        stats={f"{place}.27.3": _LIBRARY},
        answers={f"dynamic:{place}": dynamic, f"dynamic:{place}.27.3": dynamic},
    )


@made(13)
def packages_of_another_environment() -> Recording:
    host, other = dgx(), "/home/ops/old/.venv/lib/python3.12/site-packages"
    told = next(answer for name, answer in host["answers"].items() if name.startswith("interpreter:"))
    key = "sys_path" if "sys_path" in told else "path"
    info = f"{other}/torch-2.6.0.dist-info"
    files = {
        f"{other}/torch/version.py": ["__version__ = '2.6.0+cu124'", "debug = False", "cuda: Optional[str] = '12.4'"],
        f"{other}/torch/__init__.py": "",
        f"{info}/METADATA": ["Metadata-Version: 2.4", "Name: torch", "Version: 2.6.0", "", ""],
        f"{info}/INSTALLER": "pip\n",
        f"{info}/WHEEL": ["Tag: cp312-cp312-manylinux_2_28_x86_64"],
    }
    path = [entry for entry in told[key] if entry]
    return interpreter(over(environment(host, PYTHONPATH=other), files=files), **{key: [*told[key][: -len(path)], other, *path]})


@made(14)
def wheels_of_two_toolkits() -> Recording:
    old = {"nvidia_cublas_cu12": "12.8.4.1", "nvidia_cuda_nvrtc_cu12": "12.8.93", "nvidia_cudnn_cu12": "9.19.0.56"}
    host = _wheels(dgx(), nvidia_cublas="13.1.0.3", nvidia_cuda_nvrtc="13.0.88", nvidia_nccl_cu12="2.28.9", **old)
    site, library = _site(host), "nvidia/nccl/lib/libnccl.so.2"
    files = {
        f"{site}/nvidia_nccl_cu13-2.28.9.dist-info/RECORD": f"{library},sha256=x,5000\n",
        f"{site}/nvidia_nccl_cu12-2.28.9.dist-info/RECORD": f"{library},sha256=y,4000\n",
        f"{site}/{library}": "",
    }
    return over(host, files=files, stats={f"{site}/{library}": {**_LIBRARY, "size": 4000}})


@made(15, mi300x)
def not_in_the_group_render() -> Recording:
    who = {"uid": 1000, "gid": 1000, "groups": [27, 44, 1000], "user": "amd"}
    return over(mi300x(), answers={"uid": who, "access:/dev/kfd": {"read": False, "write": False}})


@made(16)
def translated_by_the_iommu() -> Recording:
    host = dgx()
    files: Recording = {"/proc/cmdline": text(host, "/proc/cmdline")[0].replace("iommu=pt", "intel_iommu=on")}
    links = {}
    for index, gpu in enumerate(host["answers"]["nvml"]["devices"]):
        files[f"/sys/kernel/iommu_groups/{index}/type"] = "DMA-FQ\n"
        device = next(path for path in host["files"] if path.endswith(f"{gpu['pci_address']}/uevent")).rpartition("/")[0]
        links[f"{device}/iommu_group"] = f"/sys/kernel/iommu_groups/{index}"
    return over(host, files=files, links=links)


@made(17, desktop)
def no_inode_left() -> Recording:
    host = desktop()
    return over(host, spaces={path: {**space, "inodes_free": 0} for path, space in host["spaces"].items() if path != "/dev/shm"})


@made(18, lambda: ordinary("wsl2-3080"))
def linux_driver_in_wsl() -> Recording:
    host = over(
        ordinary("wsl2-3080"),
        files={"/etc/ld.so.conf.d/x86_64-linux-gnu.conf": ["/usr/local/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", _DEBIAN]},
        links={f"{_DEBIAN}/libcuda.so.1": f"libcuda.so.{_DRIVER}"},
        stats={f"{_DEBIAN}/libcuda.so.{_DRIVER}": _LIBRARY},
    )
    first = {"name": "libcuda.so.1", "path": f"{_DEBIAN}/libcuda.so.1", "flags": 0x303}
    cached = [entry for entry in with_libraries(host)["answers"]["loader-cache"] if entry["path"] != first["path"]]
    return over(host, answers={"loader-cache": [first, *cached]})


HOSTS[19] = (lambda: torch(jetson_orin(), "2.9.1+cu130", cuda="13.0"), jetson_orin)


def _toolkit(place: str, version: str, nvcc: str, path: bool) -> Recording:
    host = dgx()
    paths = {"PATH": f"{host['env']['PATH']}:{place}/bin"} if path else {"LD_LIBRARY_PATH": f"{place}/lib64"}
    told = f'{{"cuda": {{"version": "{version}"}}, "cuda_nvcc": {{"version": "{nvcc}"}}}}'
    files = {f"{place}/bin/nvcc": "", f"{place}/version.json": told}
    program = {f"{place}/bin/nvcc": {"mode": 33261, "uid": 0, "gid": 0, "size": 100}}
    return over(environment(host, CUDA_HOME=place, **paths), files=files, stats=program if path else {})


HOSTS[20] = (lambda: _toolkit("/usr/local/cuda-11.8", "11.8.20220929", "11.8.89", path=True), dgx)


@made(21, desktop)
def module_refused_by_secure_boot() -> Recording:
    host = desktop()
    links = {path: target for path, target in host["links"].items() if not target.endswith("drivers/nvidia")}
    files: Recording = {
        path: [line for line in text(host, path) if line != "DRIVER=nvidia"] for path in host["files"] if path.endswith("/uevent")
    }
    host = cut({**host, "links": links}, "/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidia", "/run/nvidia")
    files |= {"/proc/modules": ["xfs 1 0 - Live 0x0"], f"{_KERNEL_OF_DESKTOP}/modules.dep": "updates/dkms/nvidia.ko.zst:\n"}
    nobody = {"$missing": "not-supported", "source": "NVML", "detail": "driver not loaded"}
    host = over(host, files={**files, **_SECURE_BOOT}, answers={"nvml": {"error": "DRIVER_NOT_LOADED", "devices": nobody}})
    refused = "nvidia: module verification failed: Key was rejected by service"
    return logged(host, "Loading of module with unavailable key is rejected", refused)


with_variables(22, TMPDIR="/scratch/slurm/job_123")
with_variables(23, CUDA_VISIBLE_DEVICES="GPU-deadbeef-0000-4000-8000-000000000003")
HOSTS[24] = (lambda: torch(altra_a100(), "2.6.0+cpu"), altra_a100)


def _each_gpu(**facts: Any) -> Recording:
    host = dgx()
    for index in range(8):
        host = of_gpu(host, index, **facts)
    return host


_LOCKED = {"utilization_pct": 98, "clock_event_reasons": 2, "clock_application_mhz": 1980, "clock_sm_max_mhz": 1980}
HOSTS[25] = (lambda: _each_gpu(**_LOCKED, clock_sm_mhz=345), dgx)
HOSTS[26] = (
    lambda: environment(of_gpu(dgx(), 7, mig=True, mig_instances=7), CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6"),
    dgx,
)
HOSTS[27] = (lambda: system(gb200_tray(), kernel="6.8.0-1021-nvidia-64k"), gb200_tray)
HOSTS[28] = (lambda: _each_gpu(pcie_gen=1, clock_event_reasons=1), dgx)
with_variables(29, two_dgx, NCCL_SOCKET_IFNAME="^docker,lo,veth", NCCL_IB_HCA="^mlx5_bond")


@made(30, _pod)
def pod_without_limits() -> Recording:
    host = _pod()
    limits = {**host["answers"]["rlimits"], "memlock": [None, None]}
    return cut(over(host, answers={"rlimits": limits}), "/etc/machine-id")


@made(31)
def two_gpus_by_slurm() -> Recording:
    job = {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    return _slurm("0-15", {**job, "OMP_NUM_THREADS": "2"}, ranks=2, workers=6)


@made(32, desktop)
def nixos() -> Recording:
    new, names = "/run/opengl-driver/lib", ("libcuda.so", "libnvidia-ml.so")
    release = ["ID=nixos", "NAME=NixOS", 'VERSION_ID="25.11"', 'PRETTY_NAME="NixOS 25.11 (Xantusia)"']
    host = over(
        desktop(),
        links={
            **{f"{_DEBIAN}/{name}.1": None for name in names},
            **{f"{new}/{name}.1": f"{name}.{_DRIVER}" for name in names},
            f"{new}/libcuda.so": "libcuda.so.1",
        },
        stats={
            **{f"{_DEBIAN}/{name}.{_DRIVER}": None for name in names},
            **{f"{new}/{name}.{_DRIVER}": _LIBRARY for name in names},
        },
        files={"/etc/os-release": release, "/etc/NIXOS": ""},
        env={"LD_LIBRARY_PATH": new},
    )
    return _without(_without(host, "links"), "stats")


@made(33, oci_h100)
def adapters_without_cable() -> Recording:
    host = oci_h100()
    for number in (0, 1):
        name, place = f"mlx5_{98 + number}", f"pci0000:f{number}/0000:f{number}:00.0"
        host = rdma(host, name, place, layer="Ethernet", rate="40 Gb/sec (4X QDR)", kind="MT4127")
        port = f"/sys/class/infiniband/{name}/ports/1"
        host = over(host, files={f"{port}/state": "1: DOWN\n", f"{port}/phys_state": "3: Disabled\n"})
    return host


@made(34, mi300x)
def amdgpu_of_the_kernel() -> Recording:
    return cut(torch(mi300x(), "2.9.1+rocm6.4", hip="6.4.43484-123eb5128"), "/var/lib/dkms")


@made(35, desktop)
def signed_and_saving() -> Recording:
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
    files = {
        "/proc/swaps": [head, "/swap.img                               file\t\t8388604\t\t0\t\t-2"],
        "/sys/devices/system/cpu/intel_pstate/status": "active\n",
        **_SECURE_BOOT,
    }
    host = desktop()
    for policy in [path.rpartition("/")[0] for path in host["files"] if path.endswith("scaling_governor")]:
        files |= {f"{policy}/scaling_driver": "intel_pstate\n", f"{policy}/scaling_governor": "powersave\n"}
        files[f"{policy}/energy_performance_preference"] = "balance_performance\n"
    return over(host, files=files)


HOSTS[36] = (lambda: cut(dgx(), "/run/nvidia-persistenced"), dgx)


@made(37, desktop)
def held_packages() -> Recording:
    of_driver = {"version": "580.95.05-0ubuntu0.24.04.1", "held": True, "origin": "ubuntu.com"}
    packages = [
        {"name": "nvidia-driver-580-open", **of_driver},
        {"name": "libnvidia-compute-580", **of_driver},
        {"name": "unattended-upgrades", "version": "2.9", "held": False, "origin": "ubuntu.com"},
    ]
    upgrades = {"/var/lib/dpkg/status": "", "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n'}
    return over(desktop(), files=upgrades, answers={"packages": packages})


_TUNER = "/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so"
HOSTS[38] = (
    lambda: environment(
        over(aws_p5_efa(), files={_TUNER: ""}), FI_PROVIDER="efa", FI_EFA_USE_DEVICE_RDMA="1", NCCL_TUNER_PLUGIN=_TUNER
    ),
    aws_p5_efa,
)


@made(39)
def user_of_sssd() -> Recording:
    host, home = dgx(), "/nfs/home/ops"
    options = "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,nconnect=8,timeo=600,retrans=2,sec=sys"
    mount = f"60 30 0:60 / /nfs/home rw,relatime shared:50 - nfs4 nfs01:/export/home {options},local_lock=none,addr=10.33.0.2"
    mounts = [*text(host, "/proc/self/mountinfo"), mount]
    who = {"uid": 820441, "gid": 820441, "groups": [820441], "user": "ops"}
    return over(
        host,
        files={"/proc/self/mountinfo": mounts, "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"},
        env={"HOME": home},
        dirs={home: []},
        spaces={home: host["spaces"]["/home/ops"]},
        answers={"uid": who, f"access:{home}": {"read": True, "write": True}},
    )


@made(40)
def toolkit_of_the_build() -> Recording:
    place = "/usr/local/cuda-13.0"
    libraries = [f"{place}/lib64/{name}" for name in ("libcudart.so.13", "libcublas.so.13", "libnvJitLink.so.13")]
    dynamic = {f"dynamic:{path}": {"kind": "64:62", "soname": path.rpartition("/")[2]} for path in libraries}
    return over(_toolkit(place, "13.0.20250801", "13.0.88", path=False), files=dict.fromkeys(libraries, ""), answers=dynamic)
