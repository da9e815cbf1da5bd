"""Builders of the hosts 82 to 125 of hosts.csv."""

from __future__ import annotations

import json

from hosts_table import HOSTS, Build, desktop, dgx, made, mi300x, two_dgx, with_variables

from machines import Recording, cut, environment, interpreter, ordinary, over, status, system, text, torch
from platforms import intel_xpu, optimus_laptop
from platforms_arm import jetson_orin
from platforms_contained import apptainer
from platforms_more import aws_p5_efa
from platforms_troubled import logged

_NVIDIA = "580.95.05"
_SLICE = "/sys/fs/cgroup/user.slice/user-1000.slice"
_SUPPLIES = "/sys/class/power_supply"
_FILE = {"mode": 33188, "uid": 0, "gid": 0, "size": 1_500_000}


def _files(number: int, like: Build = dgx, **files: str) -> None:
    """Enter a host that differs by files below /proc/sys."""
    changed = {f"/proc/sys/{name.replace('__', '/')}": f"{value}\n" for name, value in files.items()}
    HOSTS[number] = (lambda: over(like(), files=changed), like)


def _site(host: Recording) -> str:
    version: str = next(path for path in host["files"] if path.endswith("/torch/version.py"))
    return version.removesuffix("/torch/version.py")


def _cdi(version: str) -> list[str]:
    names = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    paths = [f"/usr/lib64/{name}.so.{version}" for name in names]
    return ["cdiVersion: 0.5.0", "containerEdits:", "  mounts:", *(f"  - containerPath: {path}" for path in paths)]


HOSTS[82] = (lambda: over(dgx(), files={"/etc/cdi/nvidia.yaml": _cdi("570.133.20")}), dgx)


@made(83, optimus_laptop)
def prime_select_intel() -> Recording:
    host = optimus_laptop()
    links = {path: target for path, target in host["links"].items() if not target.endswith("drivers/nvidia")}
    files: Recording = {
        path: [line for line in text(host, path) if line != "DRIVER=nvidia"] for path in host["files"] if path.endswith("/uevent")
    }
    host = cut({**host, "links": links}, "/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidia", "/run/nvidia")
    lines = ["# Do not modify", "blacklist nvidia", "blacklist nvidia-drm", "alias nvidia off", "alias nvidia-drm off"]
    files |= {"/lib/modprobe.d/blacklist-nvidia.conf": lines, "/proc/modules": ["i915 1 0 - Live 0x0"]}
    files["/lib/modules/6.14.0-33-generic/modules.dep"] = "updates/dkms/nvidia.ko.zst:\n"
    nobody = {"$missing": "not-supported", "source": "NVML", "detail": "driver not loaded"}
    return over(host, files=files, answers={"nvml": {"error": "DRIVER_NOT_LOADED", "devices": nobody}})


HOSTS[84] = (lambda: torch(intel_xpu(), "2.11.0+cpu"), intel_xpu)


_CARD = "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"


def _xpu_with_nodes() -> Recording:
    node = {"mode": 0o20660, "uid": 0, "gid": 992, "size": 0, "special": "226:128"}
    host = over(intel_xpu(), stats={"/dev/dri/renderD128": node}, dirs={f"{_CARD}/drm": ["card0", "renderD128"]})
    return over(host, answers={"access:/dev/dri/renderD128": {"read": True, "write": True}})


@made(85, _xpu_with_nodes)
def not_in_the_group_of_the_intel_gpu() -> Recording:
    return over(_xpu_with_nodes(), answers={"access:/dev/dri/renderD128": {"read": False, "write": False}})


with_variables(86, mi300x, HSA_OVERRIDE_GFX_VERSION="10.3.0")
with_variables(87, mi300x, AMD_SERIALIZE_KERNEL="3", AMD_LOG_LEVEL="4")


def _rocm_container() -> Recording:
    return over(mi300x(), files={"/.dockerenv": "", "/proc/1/comm": "bash\n"})


HOSTS[88] = (lambda: over(cut(_rocm_container(), "/dev/kfd"), answers={"access:/dev/kfd": None}), _rocm_container)


@made(89)
def nccl_below_the_pin() -> Recording:
    host = dgx()
    host = cut(host, f"{_site(host)}/nvidia_nccl_cu13-")
    return over(host, files={f"{_site(host)}/nvidia_nccl_cu13-2.26.2.post1.dist-info/INSTALLER": "pip\n"})


with_variables(90, two_dgx, MASTER_ADDR="localhost", MASTER_PORT="29500")
HOSTS[91] = (
    lambda: over(system(two_dgx(), name="localhost.localdomain"), answers={"hostname-addresses": ["127.0.0.1"]}),
    two_dgx,
)


def _debian_hosts(like: Build) -> Recording:
    host = like()
    name = host["answers"]["uname"]["nodename"]
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]
    return over(host, files={"/etc/hosts": lines}, answers={"hostname-addresses": ["127.0.1.1"]})


HOSTS[92] = (lambda: _debian_hosts(two_dgx), two_dgx)
with_variables(93, TORCH_DISTRIBUTED_DEBUG="DETAIL", NCCL_DEBUG="TRACE", NCCL_DEBUG_SUBSYS="ALL")
with_variables(94, PYTHONMALLOC="debug", MALLOC_PERTURB_="165")
with_variables(95, desktop, TRITON_INTERPRET="1")
with_variables(96, desktop, TORCHDYNAMO_DISABLE="1")
_NFS = "- nfs4 nfs01:/export/home"


def _mounted(host: Recording, place: str, what: str) -> Recording:
    """With one more mount, whose space is that of the system's disk."""
    mount = f"60 30 0:60 / {place} rw,relatime shared:50 {what}"
    space = {**host["spaces"]["/"], "read_only": False}
    return over(
        host,
        files={"/proc/self/mountinfo": [*text(host, "/proc/self/mountinfo"), mount]},
        dirs={place: []},
        spaces={place: space},
        answers={f"access:{place}": {"read": True, "write": True}},
    )


@made(97)
def compiler_cache_on_nfs() -> Recording:
    host = _mounted(dgx(), "/nfs/ops", f"{_NFS} rw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,nconnect=8")
    return environment(over(host, intent={"ranks": 8}), TRITON_CACHE_DIR="/nfs/ops")


def _data_on_raid() -> Recording:
    host = dgx()
    place = {"/raid": host["spaces"]["/"]}
    return over(host, spaces=place, dirs={"/raid": []}, intent={"data": ["/raid"]})


@made(98, _data_on_raid)
def reading_is_limited() -> Recording:
    disk = next(one for one in text(_data_on_raid(), "/proc/self/mountinfo") if " /raid " in one).split()[2]
    limit = f"{disk.partition(':')[0]}:4 rbps=52428800 wbps=max riops=max wiops=max"
    return over(_data_on_raid(), files={f"{_SLICE}/io.max": f"{limit}\n"})


HOSTS[99] = (lambda: over(dgx(), files={f"{_SLICE}/session-3.scope/cpu.idle": "1\n"}), dgx)


def _limited(like: Build, **limits: list[int | None]) -> Recording:
    host = like()
    return over(host, answers={"rlimits": {**host["answers"]["rlimits"], **limits}})


def login_node() -> Recording:
    return ordinary("login-node")


HOSTS[100] = (lambda: _limited(dgx, fsize=[2 << 30, 2 << 30]), dgx)
HOSTS[101] = (lambda: _limited(login_node, cpu=[3600, 3600]), login_node)
_files(102, two_dgx, net__ipv4__ip_local_port_range="60000\t60099")
_files(103, net__netfilter__nf_conntrack_max="65536", net__netfilter__nf_conntrack_count="65480")
_files(104, vm__min_free_kbytes=str(512 << 20))


@made(105)
def file_system_shut_down() -> Recording:
    return logged(
        dgx(),
        "XFS (nvme1n1): log I/O error -5",
        "XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).",
        "XFS (nvme1n1): Please unmount the filesystem and rectify the problem(s).",
    )


def _checkpoints_on_nfs(options: str) -> Recording:
    host = _mounted(dgx(), "/nfs/ckpt", f"{_NFS} rw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,{options}")
    return over(host, intent={"checkpoints": ["/nfs/ckpt"]})


HOSTS[106] = (
    lambda: _checkpoints_on_nfs("sync,noac,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0"),
    lambda: _checkpoints_on_nfs("nconnect=8"),
)


def _temporary(number: int, like: Build, place: str) -> None:
    def build() -> Recording:
        host = like()
        return over(
            environment(host, TMPDIR=place),
            dirs={place: []},
            spaces={place: host["spaces"]["/tmp"]},
            answers={f"access:{place}": {"read": True, "write": True}},
        )

    HOSTS[number] = (build, like)


_temporary(
    107,
    desktop,
    "/home/mia/.nextflow/step/7d/" + "a1b2c3d4e5f60718293a4b5c6d7e8f" + "/tmp/task-execution-directory-of-step-0001-train",
)


def _named_in_pod() -> Recording:
    who = {"uid": 1000650000, "gid": 0, "groups": [0], "user": "default", "home": "/workspace"}
    return over(environment(ordinary("k8s-h100"), HOME="/workspace"), answers={"uid": who})


@made(108, _named_in_pod)
def number_without_name() -> Recording:
    who = {"uid": 12345, "gid": 12345, "groups": [12345], "user": None, "home": None}
    closed = {"read": True, "write": False}
    return over(environment(_named_in_pod(), HOME="/"), answers={"uid": who, "access:/": closed})


@made(109, apptainer)
def apptainer_without_nv() -> Recording:
    nobody = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    host = environment(cut(apptainer(), "/.singularity.d/libs"), LD_LIBRARY_PATH=None)
    return over(host, answers={"nvml": {"error": "LIBRARY_NOT_FOUND", "devices": nobody}})


def _library(host: Recording, folder: str, name: str, target: str) -> Recording:
    dynamic = {"kind": "64:62", "soname": name}
    return over(
        environment(host, LD_LIBRARY_PATH=folder),
        files={f"{folder}/{name}": "", f"{folder}/{target}": ""},
        links={f"{folder}/{name}": target} if target != name else {},
        stats={f"{folder}/{target}": _FILE},
        answers={f"dynamic:{folder}/{name}": dynamic, f"dynamic:{folder}/{target}": dynamic},
    )


HOSTS[110] = (lambda: _library(desktop(), "/usr/local/cuda/compat", "libcuda.so.1", "libcuda.so.590.44.01"), desktop)
HOSTS[111] = (lambda: _library(desktop(), "/usr/local/cuda/lib64/stubs", "libcuda.so.1", "libcuda.so.1"), desktop)


@made(112)
def accesses_refused_by_the_iommu() -> Recording:
    gpu = dgx()["answers"]["nvml"]["devices"][2]["pci_address"]
    fault = f"DMAR: [DMA Read NO_PASID] Request device [{gpu[5:]}] fault addr 0x7f3b2a000000 [fault reason 0x06] PTE Read access is not set"
    return logged(dgx(), "DMAR: DRHD: handling fault status reg 2", fault, fault)


@made(113, two_dgx)
def adapter_hangs() -> Recording:
    return logged(
        two_dgx(),
        "NETDEV WATCHDOG: ens0np0 (mlx5_core): transmit queue 5 timed out",
        "mlx5_core 0000:29:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    )


_SOURCE = "/sys/devices/system/clocksource/clocksource0"


def _clocked(source: str) -> Recording:
    files = {f"{_SOURCE}/current_clocksource": f"{source}\n", f"{_SOURCE}/available_clocksource": "tsc hpet acpi_pm\n"}
    return over(dgx(), files=files)


HOSTS[114] = (lambda: _clocked("hpet"), lambda: _clocked("tsc"))


@made(115)
def a_core_is_offline() -> Recording:
    cpus, kept = "/sys/devices/system/cpu", "0-4,6-116,118-223"
    host = over(dgx(), files={f"{cpus}/online": f"{kept}\n", f"{cpus}/offline": "5,117\n"}, answers={"affinity": kept})
    return over(status(host, Cpus_allowed_list=kept), files={"/sys/fs/cgroup/cpuset.cpus.effective": f"{kept}\n"})


@made(116, jetson_orin)
def board_in_15_watts() -> Recording:
    cpus = "/sys/devices/system/cpu"
    files = {"/var/lib/nvpmodel/status": "pmode:0002\n", f"{cpus}/online": "0-3\n", f"{cpus}/offline": "4-11\n"}
    return status(over(jetson_orin(), files=files, answers={"affinity": "0-3"}), Cpus_allowed_list="0-3")


@made(117, jetson_orin)
def not_in_the_group_video() -> Recording:
    node = {"mode": 0o20660, "uid": 0, "gid": 44, "size": 0, "special": "505:1"}
    refused = {"read": False, "write": False}
    answers = {"access:/dev/nvhost-gpu": refused, "access:/dev/nvmap": refused}
    return over(jetson_orin(), stats={"/dev/nvhost-gpu": node, "/dev/nvmap": {**node, "special": "10:80"}}, answers=answers)


def wsl2() -> Recording:
    return ordinary("wsl2-3080")


@made(118, wsl2)
def first_generation_of_wsl() -> Recording:
    nobody = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    host = system(cut(wsl2(), "/dev/dxg", "/usr/lib/wsl"), kernel="4.4.0-22621-Microsoft")
    return over(host, answers={"nvml": {"error": "LIBRARY_NOT_FOUND", "devices": nobody}})


with_variables(119, lambda: over(aws_p5_efa(), intent={"nodes": 2}), FI_PROVIDER="tcp")


def _laptop(online: int, battery: str, **more: str) -> Recording:
    supply = {
        "AC/type": "Mains",
        "AC/online": str(online),
        "BAT0/type": "Battery",
        "BAT0/status": battery,
        "BAT0/scope": "System",
        "BAT0/capacity": "80",
    }
    host = over(desktop(), files={f"{_SUPPLIES}/{name}": f"{value}\n" for name, value in supply.items()})
    more = {"/sys/class/dmi/id/chassis_type": "10", **more}
    return over(host, files={path: f"{value}\n" for path, value in more.items()}, dirs={_SUPPLIES: ["AC", "BAT0"]})


HOSTS[120] = (
    lambda: _laptop(0, "Discharging", **{"/sys/firmware/acpi/platform_profile": "low-power"}),
    lambda: _laptop(1, "Full"),
)
_ASPM = "/sys/module/pcie_aspm/parameters/policy"
HOSTS[121] = (lambda: over(desktop(), files={_ASPM: "default performance powersave [powersupersave]\n"}), desktop)


def _extension(size: int) -> Recording:
    host = dgx()
    site = _site(host)
    place = f"{site}/gsplat_cuda.cpython-312-x86_64-linux-gnu.so"
    whole = "gsplat_cuda.cpython-312-x86_64-linux-gnu.so,sha256=0d71028bf8b6accdc4ac5b5255582e16bd8290c3c7829746f86eb0389a2,133"
    pointer = ["version https://git-lfs.github.com/spec/v1", "oid sha256:0d71028bf8b6", "size 19332096"]
    return over(
        host,
        files={
            place: pointer if size < 1000 else "",
            f"{site}/gsplat-1.5.3.dist-info/RECORD": [whole if size < 1000 else whole.replace(",133", f",{size}")],
            f"{site}/gsplat-1.5.3.dist-info/METADATA": ["Name: gsplat", "Version: 1.5.3", "Requires-Dist: torch", ""],
            f"{site}/gsplat-1.5.3.dist-info/INSTALLER": "pip\n",
        },
        stats={place: {**_FILE, "size": size}},
    )


HOSTS[122] = (lambda: _extension(133), lambda: _extension(19_332_096))


@made(123, desktop)
def environment_without_python() -> Recording:
    host = desktop()
    venv = host["env"]["VIRTUAL_ENV"]
    gone = "/home/mia/.local/share/uv/python/cpython-3.12.9-linux-x86_64-gnu/bin/python3.12"
    name = next(name for name in host["answers"] if name.startswith("interpreter:"))
    refused = {"$missing": "absent", "source": name.partition(":")[2], "detail": "No such file or directory"}
    home = [f"home = {gone.rpartition('/')[0]}", "implementation = CPython", "uv = 0.9.5", "version_info = 3.12.9"]
    links = {f"{venv}/bin/python3": "python", f"{venv}/bin/python": gone}
    host = over(host, files={f"{venv}/pyvenv.cfg": home}, links=links, answers={name: refused})
    return cut(host, "/usr/bin/python3")


@made(124, desktop)
def home_of_another_python() -> Recording:
    """Python 3.14, to which pyvenv.cfg says nothing then; earlier ones find their environment all the same (tried with 3.11)."""
    newer: Recording = json.loads(json.dumps(desktop()).replace("python3.12", "python3.14"))
    host = interpreter(environment(newer, PYTHONHOME="/usr"), version="3.14.0", prefix="/usr", base_prefix="/usr")
    return interpreter(host, path=["/usr/lib/python3.14", "/usr/lib/python3/dist-packages"])


HOSTS[125] = (
    lambda: over(dgx(), files={"/etc/cdi/nvidia.yaml": _cdi(_NVIDIA), "/run/cdi/nvidia.yaml": _cdi(_NVIDIA)}),
    dgx,
)
