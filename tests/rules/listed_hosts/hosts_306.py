"""Builders of the hosts 306 to 335 of hosts.csv, by how often users meet them."""

from __future__ import annotations

from hosts_082 import _mounted, _site, wsl2
from hosts_141 import pod, slurm
from hosts_206 import _FILE, conda
from hosts_table import HOSTS, desktop, dgx, made, two_dgx, with_variables

from machines import (
    Recording,
    cut,
    environment,
    function,
    interpreter,
    made_by,
    ordinary,
    over,
    text,
    torch,
    with_driver,
    without_gpus,
)
from platforms_arm import dgx_spark
from platforms_more import oci_h100
from platforms_owners import gaming_laptop, proprietary, told, without_modules
from platforms_troubled import logged

_LIB = "/usr/lib/x86_64-linux-gnu"
_REPLACED = "580.126.09"


@made(306, desktop)
def libraries_of_a_newer_driver() -> Recording:
    host = desktop()
    kept = {path: host["files"][path] for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")}
    nvml = {
        "error": "LIB_RM_VERSION_MISMATCH",
        "library_version": f"13.{_REPLACED}",
        "devices": _gone("driver/library version mismatch"),
    }
    return over(with_driver(host, "580.95.05", _REPLACED), files=kept, answers={"nvml": {**host["answers"]["nvml"], **nvml}})


def _gone(detail: str) -> Recording:
    return {"$missing": "failed", "source": "nvmlInit", "detail": detail}


def _bare() -> Recording:
    """The GPU on the bus, and nothing of NVIDIA's driver."""
    host = without_gpus(desktop())
    host = cut(host, f"{_LIB}/libcuda", f"{_LIB}/libnvidia", "/run/nvidia-persistenced")
    absent = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    host = function(host, "pci0000:01/0000:00:01.0/0000:01:00.0", "10de:2684", "30000", "", -1)
    nothing = {"error": "LIBRARY_NOT_FOUND", **dict.fromkeys(("driver_version", "library_version", "devices"), absent)}
    return over(host, answers={"nvml": nothing, "loader-cache:libcuda.so.1": []})


HOSTS[307] = (_bare, desktop)
_B200 = {"name": "NVIDIA B200", "architecture": "Blackwell", "compute_capability": [10, 0], "memory_total_bytes": 191_514_017_792}


def b200() -> Recording:
    return told(made_by(dgx(), "NVIDIA", "DGXB200", "American Megatrends International, LLC."), **_B200)


HOSTS[308] = (lambda: told(b200(), fabric_state="in-progress", fabric_status="not-started"), b200)
_5090 = {"name": "NVIDIA GeForce RTX 5090", "architecture": "Blackwell", "compute_capability": [12, 0]}


def rtx_5090() -> Recording:
    host = told(desktop(), **_5090, memory_total_bytes=34_190_917_632, power_limit_mw=575_000, power_default_mw=575_000)
    files = {
        path: [line.replace("10DE:2684", "10DE:2B85") for line in text(host, path)]
        for path in host["files"]
        if path.endswith("0000:01:00.0/uevent")
    }
    return over(host, files=files)


def _nobody(host: Recording) -> Recording:
    return over(host, answers={"nvml": {**host["answers"]["nvml"], "devices": [], "p2p": []}})


HOSTS[309] = (
    lambda: logged(
        _nobody(proprietary(rtx_5090())),
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)",
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:897)",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
    ),
    rtx_5090,
)


def v100() -> Recording:
    return ordinary("rocky8-v100")


HOSTS[310] = (
    lambda: torch(with_driver(v100(), v100()["answers"]["nvml"]["driver_version"], "580.95.05"), "2.11.0", cuda="13.0"),
    v100,
)
HOSTS[311] = (lambda: torch(rtx_5090(), "2.6.0+cu124", cuda="12.4"), rtx_5090)


def _without_gpus(host: Recording) -> Recording:
    """In a container that was not given the GPUs."""
    host = cut(host, "/dev/nvidia", f"{_LIB}/libcuda", f"{_LIB}/libnvidia")
    absent = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    nothing = {"error": "LIBRARY_NOT_FOUND", **dict.fromkeys(("driver_version", "library_version", "devices"), absent)}
    return over(host, answers={"nvml": nothing, "loader-cache:libcuda.so.1": []})


HOSTS[312] = (lambda: _without_gpus(conda()), conda)
HOSTS[313] = (lambda: environment(_without_gpus(pod()), NVIDIA_VISIBLE_DEVICES="void"), pod)


@made(314, wsl2)
def windows_driver_without_wsl() -> Recording:
    host = cut(wsl2(), "/usr/lib/wsl")
    package = "nv_dispi.inf_amd64_7e5fd280efaa5445"
    host = over(host, dirs={"/usr/lib/wsl/drivers": [package]}, files={f"/usr/lib/wsl/drivers/{package}/nvlddmkm.sys": ""})
    absent = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    nothing = {"error": "LIBRARY_NOT_FOUND", **dict.fromkeys(("driver_version", "library_version", "devices"), absent)}
    return over(host, dirs={"/usr/lib/wsl/lib": []}, answers={"nvml": nothing, "loader-cache:libcuda.so.1": []})


HOSTS[315] = (
    lambda: logged(
        _nobody(gaming_laptop()),
        "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
    ),
    gaming_laptop,
)


def _one_of_slurm(limit: int) -> Recording:
    task = next(path for path in slurm()["files"] if path.endswith("task_0/memory.max"))
    job = f"{task.partition('/job_')[0]}/job_812345/memory.max"
    return over(slurm(), files={task: f"{limit}\n", job: f"{limit}\n"}, intent={"ranks": 1, "workers": 4})


HOSTS[316] = (lambda: _one_of_slurm(4 << 30), lambda: _one_of_slurm(256 << 30))
with_variables(317, desktop, CUDA_VISIBLE_DEVICES="")


def _from_conda(build: str, *more: str) -> Recording:
    host = conda()
    site = _site(host)
    host = cut(host, f"{site}/torch-", f"{site}/nvidia_", f"{site}/triton-")
    cuda = "12.6" if build.startswith("cuda") else None
    version = ["__version__ = '2.7.1'", "debug = False", f"cuda: Optional[str] = {cuda!r}", "hip: Optional[str] = None"]
    names = [f"pytorch-2.7.1-{build}.json", f"libtorch-2.7.1-{build.replace('py312', 'h')}.json", *more]
    return over(host, files={f"{site}/torch/version.py": version}, dirs={"/opt/conda/conda-meta": names})


_ONE_OPENMP = "llvm-openmp-20.1.8-h4922eb0_1.json"
HOSTS[318] = (
    lambda: _from_conda("cpu_generic_py312_h1234567_0", _ONE_OPENMP),
    lambda: _from_conda("cuda126_generic_py312_h1234567_0"),
)
HOSTS[383] = (
    lambda: _from_conda("cuda126_generic_py312_h1234567_0", _ONE_OPENMP),
    lambda: _from_conda("cuda126_generic_py312_h1234567_0"),
)


def _instead(host: Recording, package: str, version: str) -> Recording:
    """Another version of a package, by pip."""
    site = _site(host)
    return over(cut(host, f"{site}/{package}-"), files={f"{site}/{package}-{version}.dist-info/INSTALLER": "pip\n"})


def _torch_2_1() -> Recording:
    host = torch(desktop(), "2.1.2+cu121", cuda="12.1")
    return _instead(_instead(host, "triton", "2.1.0"), "torchvision", "0.16.2")


HOSTS[319] = (_torch_2_1, lambda: _instead(_torch_2_1(), "numpy", "1.26.4"))
HOSTS[375] = (lambda: _instead(desktop(), "numpy", "1.26.4"), desktop)
HOSTS[320] = (lambda: _instead(desktop(), "triton", "3.2.0"), desktop)


def _with_gcc() -> Recording:
    return over(conda(), files={"/usr/bin/gcc": ""}, stats={"/usr/bin/gcc": {**_FILE, "mode": 33261}})


@made(321, _with_gcc)
def without_a_compiler() -> Recording:
    return cut(conda(), "/usr/bin/gcc", "/usr/bin/cc", "/usr/bin/clang", "/opt/conda/bin/gcc", "/opt/conda/bin/x86_64")


def _headers(there: bool) -> Recording:
    host = interpreter(desktop(), base_prefix="/usr")
    return over(host, files={"/usr/include/python3.12/Python.h": "" if there else None})


HOSTS[322] = (lambda: _headers(False), lambda: _headers(True))


def _ptxas(version: str) -> Recording:
    place = f"/usr/local/cuda-{version}"
    told_ = f'{{"cuda": {{"version": "{version}.1"}}, "cuda_nvcc": {{"version": "{version}.131"}}}}'
    files = {f"{place}/bin/ptxas": "", f"{place}/version.json": told_}
    host = over(
        _instead(torch(dgx_spark(), "2.9.1", cuda="13.0", arch="aarch64"), "triton", "3.5.1"),
        files=files,
        stats={f"{place}/bin/ptxas": {**_FILE, "mode": 33261}},
    )
    return environment(host, TRITON_PTXAS_PATH=f"{place}/bin/ptxas")


HOSTS[323] = (lambda: _ptxas("12.4"), dgx_spark)
HOSTS[374] = (lambda: _ptxas("13.0"), dgx_spark)


def _space(host: Recording, place: str, **facts: int | bool) -> Recording:
    return over(host, spaces={place: {**host["spaces"][place], **facts}})


HOSTS[324] = (lambda: _space(slurm(), "/home/jdoe", free=0), slurm)
HOSTS[376] = (lambda: _space(slurm(), "/home/jdoe", size=30 << 40, free=900 << 30), slurm)


@made(325, desktop)
def temporary_files_fill_memory() -> Recording:
    host = _mounted(desktop(), "/tmp", "- tmpfs tmpfs rw,size=2097152k,nr_inodes=1048576,inode64")
    return _space(host, "/tmp", size=2 << 30, free=0)


@made(326, two_dgx)
def name_of_a_cloned_image() -> Recording:
    name = two_dgx()["answers"]["uname"]["nodename"]
    hosts = ["127.0.0.1 localhost", f"10.10.0.99 {name}"]
    return over(two_dgx(), files={"/etc/hosts": hosts}, answers={"hostname-addresses": ["10.10.0.99"]})


with_variables(327, two_dgx, NCCL_SOCKET_IFNAME="eth0")
with_variables(328, two_dgx, NCCL_IB_DISABLE="1")
with_variables(329, dgx, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
with_variables(330, dgx, CUDA_LAUNCH_BLOCKING="1")
with_variables(379, two_dgx, NCCL_IB_DISABLE="0", NCCL_P2P_DISABLE="0", CUDA_LAUNCH_BLOCKING="0")


@made(331, lambda: proprietary(two_dgx()))
def without_peer_memory() -> Recording:
    return without_modules(proprietary(two_dgx()), "nvidia_peermem")


def _counted(host: Recording, *devices: str, **counters: int) -> Recording:
    """Counters of the ports, in the directories where the kernel has them."""
    files: Recording = {}
    for device in devices:
        for name, value in counters.items():
            folder = "hw_counters" if name in _HARDWARE else "counters"
            files[f"/sys/class/infiniband/{device}/ports/1/{folder}/{name}"] = f"{value}\n"
    return over(host, files=files)


_HARDWARE = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_adp_retrans")
_QUIET = dict.fromkeys(("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"), 0)
_ROCE = tuple(f"mlx5_{number}" for number in range(16))


def _roce() -> Recording:
    return _counted(over(oci_h100(), intent={"nodes": 2}), *_ROCE, **_QUIET, **dict.fromkeys(_HARDWARE, 0))


_LOST = {"out_of_sequence": 8_123_456, "packet_seq_err": 91_234, "local_ack_timeout_err": 5_123, "roce_adp_retrans": 71_000}
HOSTS[332] = (lambda: _counted(_roce(), *_ROCE[:4], **_LOST), _roce)


def _ports(host: Recording) -> list[str]:
    return sorted({path.split("/")[4] for path in host["files"] if path.startswith("/sys/class/infiniband/")})


def _compute_ports() -> list[str]:
    """Those of 400 Gb/s."""
    host = two_dgx()
    return [one for one in _ports(host) if "400" in str(host["files"].get(f"/sys/class/infiniband/{one}/ports/1/rate"))]


def _of_port(number: int, **files: str) -> Recording:
    place = f"/sys/class/infiniband/{_compute_ports()[number]}"
    return over(two_dgx(), files={f"{place}/{name.replace('__', '/')}": f"{value}\n" for name, value in files.items()})


HOSTS[333] = (lambda: _of_port(2, ports__1__rate="200 Gb/sec (2X NDR)"), two_dgx)
HOSTS[335] = (lambda: _of_port(1, fw_ver="28.36.1010"), two_dgx)


def _counting() -> Recording:
    return _counted(two_dgx(), *_ports(two_dgx()), **_QUIET)


_FLAPS = {"symbol_error": 120_000, "link_downed": 57, "link_error_recovery": 41}
HOSTS[334] = (lambda: _counted(_counting(), _compute_ports()[4], **_FLAPS), _counting)
HOSTS[373] = (lambda: _counted(_counting(), *_ports(two_dgx()), symbol_error=3, link_downed=1), _counting)
