"""Builders of the hosts 242 to 277 of hosts.csv."""

from __future__ import annotations

from hosts_082 import _limited, _site, wsl2
from hosts_141 import _asked, pod, slurm
from hosts_206 import _FILE, _OPEN, _killed, _library_first, conda
from hosts_table import HOSTS, desktop, dgx, made, two_dgx, with_log, with_variables

from machines import Recording, cut, environment, function, interpreter, ordinary, over, system, text
from platforms import intel_xpu
from platforms_arm import dgx_spark, jetson_orin
from platforms_contained import lxc
from platforms_more import aws_p5_efa, gcp_a3_mega
from platforms_troubled import logged, of_gpu

_ROS = ("/opt/ros/humble/lib/python3.10/site-packages", "/opt/ros/humble/local/lib/python3.10/dist-packages")


def rocky() -> Recording:
    return environment(over(ordinary("rocky8-v100"), intent={"ranks": 4, "workers": 8, "threads": 28}), OMP_NUM_THREADS="28")


def _used(tasks: int) -> Recording:
    return over(_limited(rocky, nproc=[4096, 24625000], nofile=[65536, 262144]), answers={"user-tasks": tasks})


HOSTS[241] = (lambda: _used(3700), lambda: _used(1200))


@made(242, desktop)
def ros_is_sourced() -> Recording:
    host = environment(desktop(), PYTHONPATH=":".join(_ROS), ROS_DISTRO="humble")
    name = next(name for name in host["answers"] if name.startswith("interpreter:"))
    path = host["answers"][name]["path"]
    files = {f"{_ROS[0]}/rclpy/__init__.py": "", f"{_ROS[1]}/cv_bridge/__init__.py": ""}
    host = over(host, files=files, dirs={_ROS[0]: ["rclpy", "ament_index_python"], _ROS[1]: ["cv_bridge", "launch"]})
    return interpreter(host, path=[*_ROS, *path])


@made(243, slurm)
def older_nvjitlink_first() -> Recording:
    return _library_first(slurm(), "/apps/cuda/12.2/lib64", {"libnvJitLink.so.12": "12.2.140"})


_LOADED = _asked(dgx, ranks=8, workers=8)
HOSTS[244] = (lambda: _limited(_LOADED, nofile=[1024, 1024]), _LOADED)


def _way(address: str, own: str) -> Recording:
    way = {"addresses": [address], "refused": [""], "own": [own]}
    return over(environment(two_dgx(), MASTER_ADDR="node-head", MASTER_PORT="29500"), answers={"way-to:node-head": way})


HOSTS[245] = (lambda: _way("172.17.0.1", "172.17.0.1"), lambda: _way("10.33.0.12", "10.33.0.13"))


def _blocked(port: int, peer: str, ends: str = "RES=0x00 SYN URGP=0") -> str:
    to = "MAC=a0:88:c2:00:00:01:a0:88:c2:00:00:02:08:00"
    return (
        f"[UFW BLOCK] IN=eno3 OUT= {to} SRC={peer} DST=10.33.0.13 LEN=60 TOS=0x00 PREC=0x00 TTL=64 ID=54321 DF "
        f"PROTO=TCP SPT=41234 DPT={port} WINDOW=64240 {ends}"
    )


def _served() -> Recording:
    return environment(two_dgx(), MASTER_ADDR="10.33.0.13", MASTER_PORT="29500")


HOSTS[246] = (lambda: logged(_served(), *(_blocked(29500, "10.33.0.12"),) * 4), _served)
HOSTS[264] = (
    lambda: logged(dgx(), _blocked(23, "203.0.113.9"), _blocked(5353, "10.33.0.50").replace("10.33.0.13", "224.0.0.251")),
    dgx,
)


def _ufw(host: Recording, on: str) -> Recording:
    conf = ["# Set to yes to start on boot.", f"ENABLED={on}", "LOGLEVEL=low"]
    defaults = ['IPV6=yes\nDEFAULT_INPUT_POLICY="DROP"', 'DEFAULT_OUTPUT_POLICY="ACCEPT"', 'DEFAULT_FORWARD_POLICY="DROP"']
    rules = {"error": "denied", "source": "/etc/ufw/user.rules"}
    return over(host, files={"/etc/ufw/ufw.conf": conf, "/etc/default/ufw": defaults, "/etc/ufw/user.rules": rules})


HOSTS[247] = (lambda: _ufw(two_dgx(), "yes"), lambda: _ufw(two_dgx(), "no"))
HOSTS[275] = (lambda: _ufw(dgx(), "yes"), dgx)
_AER = (
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:00:01.0",
    "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:00:01.0:   device [8086:6f08] error status/mask=00001000/00002000",
    "pcieport 0000:00:01.0:    [12] Timeout               ",
)
with_log(248, desktop, *_AER * 40)
with_log(276, desktop, *_AER)


@made(249)
def firmware_does_not_answer() -> Recording:
    bus = dgx()["answers"]["nvml"]["devices"][7]["pci_address"].rpartition(".")[0]
    what = "Timeout after 6s of waiting for RPC response from GPU7 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8)."
    return logged(dgx(), f"NVRM: Xid (PCI:{bus}): 119, pid=1237, name=nvidia-smi, {what}")


HOSTS[251] = (lambda: of_gpu(desktop(), 0, power_limit_mw=250_000, power_default_mw=450_000), desktop)


def _boost(off: int) -> Recording:
    return over(dgx(), files={"/sys/devices/system/cpu/intel_pstate/no_turbo": f"{off}\n"})


HOSTS[252] = (lambda: _boost(1), lambda: _boost(0))


@made(253)
def kept_for_passthrough() -> Recording:
    host = dgx()
    nvml = host["answers"]["nvml"]
    address = nvml["devices"][3]["pci_address"]
    place = next(path.removesuffix("/uevent") for path in host["files"] if path.endswith(f"{address}/uevent"))
    left = [{**one, "index": number} for number, one in enumerate(one for one in nvml["devices"] if one["index"] != 3)]
    lines = [line.replace("DRIVER=nvidia", "DRIVER=vfio-pci") for line in text(host, f"{place}/uevent")]
    links = {f"{place}/driver": "../../../bus/pci/drivers/vfio-pci"}
    host = cut(host, "/dev/nvidia7")
    return over(host, files={f"{place}/uevent": lines}, links=links, answers={"nvml": {**nvml, "devices": left}})


@made(254, desktop)
def uvm_is_gone() -> Recording:
    modules = [line for line in text(desktop(), "/proc/modules") if not line.startswith("nvidia_uvm")]
    modules = [line.replace("nvidia_uvm,", "") for line in modules]
    return over(cut(desktop(), "/dev/nvidia-uvm"), files={"/proc/modules": modules})


@made(255, desktop)
def torchvision_of_another_torch() -> Recording:
    site = _site(desktop())
    told = ["Name: torchvision", "Version: 0.24.1", "Requires-Dist: numpy", "Requires-Dist: torch (==2.9.1)", ""]
    info = f"{site}/torchvision-0.24.1.dist-info"
    return over(cut(desktop(), f"{site}/torchvision-"), files={f"{info}/INSTALLER": "pip\n", f"{info}/METADATA": told})


def _flash(of: str) -> Recording:
    site, info = _site(dgx()), f"{_site(dgx())}/flash_attn-2.7.4.post1.dist-info"
    wheel = f"flash_attn-2.7.4.post1+cu12torch{of}cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"
    place = f"https://github.com/Dao-AILab/flash-attention/releases/download/v2.7.4.post1/{wheel}"
    library = f"{site}/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so"
    files = {
        f"{info}/INSTALLER": "pip\n",
        f"{info}/METADATA": ["Name: flash-attn", "Version: 2.7.4.post1", "Requires-Dist: torch", "Requires-Dist: einops", ""],
        f"{info}/direct_url.json": f'{{"archive_info": {{}}, "url": "{place}"}}',
        f"{info}/RECORD": ["flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so,sha256=0d71028bf8b6,412345678"],
        library: "",
    }
    return over(dgx(), files=files, stats={library: {**_FILE, "size": 412_345_678}})


HOSTS[256] = (lambda: _flash("2.6"), lambda: _flash("2.11"))
HOSTS[257] = (lambda: over(cut(lxc(), "/dev/nvidia-uvm"), answers={"access:/dev/nvidia-uvm": None}), lxc)


def _instance(**variables: str) -> Recording:
    host = pod()
    nvml = host["answers"]["nvml"]
    one = {**nvml["devices"][0], "mig": True, "mig_instances": 1}
    host = over(host, answers={"nvml": {**nvml, "devices": [one], "p2p": []}})
    kept = {path for path in host["stats"] if path.startswith("/dev/nvidia") and path[11:].isdigit() and path != "/dev/nvidia0"}
    return environment(cut(host, *kept), NVIDIA_VISIBLE_DEVICES="MIG-5c0ffee0-0000-5000-8000-000000000071", **variables)


HOSTS[258] = (lambda: _instance(CUDA_VISIBLE_DEVICES="1"), lambda: _instance(CUDA_VISIBLE_DEVICES="0"))


def _huge_pages(free: int) -> Recording:
    host = over(aws_p5_efa(), intent={"nodes": 2, "workers": 4})
    lines = [line for line in text(host, "/proc/meminfo") if not line.startswith("Huge")]
    counts = (
        "HugePages_Total:    5128",
        f"HugePages_Free:     {free}",
        "HugePages_Rsvd:        0",
        "Hugepagesize:       2048 kB",
    )
    return _limited(lambda: over(host, files={"/proc/meminfo": [*lines, *counts]}), memlock=[None, None])


HOSTS[259] = (lambda: _huge_pages(0), lambda: _huge_pages(5000))
with_log(260, desktop, *_killed("/user.slice/user-1000.slice/session-3.scope"))


def _peer(registered: bool) -> Recording:
    host = system(over(two_dgx(), intent={"nodes": 2}), kernel="5.4.0-216-generic")
    version = [line.replace("Open Kernel Module", "Kernel Module") for line in text(host, "/proc/driver/nvidia/version")]
    memory = {"/sys/kernel/mm/memory_peers/nv_mem/version": "580.95.05\n"} if registered else {}
    names = {"/sys/kernel/mm/memory_peers": ["nv_mem"]} if registered else {}
    return over(host, files={"/proc/driver/nvidia/version": version, **memory}, dirs=names)


HOSTS[261] = (lambda: _peer(False), lambda: _peer(True))
_OLD = {"libcublas.so.11": "11.11.3.6", "libcudart.so.11.0": "11.8.89", "libcudnn.so.8": "8.9.7"}
HOSTS[262] = (lambda: _library_first(slurm(), "/usr/local/cuda-11.8/lib64", _OLD), slurm)
with_variables(263, wsl2, LD_LIBRARY_PATH="/usr/lib/wsl/lib")
with_variables(
    266,
    lambda: over(gcp_a3_mega(), intent={"nodes": 2}),
    NCCL_ALGO="Ring,Tree",
    NCCL_PROTO="Simple,LL128",
    NCCL_BUFFSIZE="8388608",
    NCCL_MIN_NCHANNELS="4",
    NCCL_FASTRAK_USE_SNAP="1",
    NCCL_NVLS_ENABLE="0",
)
HOSTS[267] = (dgx_spark, lambda: ordinary("gh200"))


def _one_of_eight() -> Recording:
    host = cut(conda(), "/dev/nvidia0", "/dev/nvidia1")
    nvml = host["answers"]["nvml"]
    node = {"/dev/nvidia3": {"mode": 0o20666, "uid": 0, "gid": 0, "size": 0, "special": "195:3"}}
    answers = {"nvml": {**nvml, "devices": nvml["devices"][:1], "p2p": []}, "access:/dev/nvidia3": _OPEN}
    return environment(over(host, stats=node, answers=answers), NVIDIA_VISIBLE_DEVICES="3")


HOSTS[270] = (_one_of_eight, conda)
HOSTS[271] = (
    lambda: environment(
        _library_first(conda(), "/opt/conda/lib", {"libstdc++.so.6": "6.0.34"}),
        CONDA_PREFIX="/opt/conda",
        CONDA_DEFAULT_ENV="base",
    ),
    conda,
)
with_log(
    272,
    dgx,
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
    "nvidia 0000:1b:00.0: enabling device (0140 -> 0142)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-AM02-24-3)",
    "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.95.05  Release Build",
    "nvidia-uvm: Loaded the UVM driver, major device number 508.",
    "NVRM: GPU at PCI:0000:1b:00: GPU-5c0ffee0-0000-4000-8000-000000000000",
    "nvidia-modeset: Unloading",
    "nvidia-uvm: Unloaded the UVM driver.",
)


@made(273, intel_xpu)
def graphics_beside_the_card() -> Recording:
    return function(intel_xpu(), "pci0000:00/0000:00:02.0", "8086:a780", "30000", "i915", -1)


@made(274, jetson_orin)
def clocks_of_a_board_fixed() -> Recording:
    policies = [path for path in jetson_orin()["files"] if path.endswith("/scaling_governor")]
    return over(jetson_orin(), files={**dict.fromkeys(policies, "performance\n"), "/var/lib/nvpmodel/status": "pmode:0000\n"})


def _all_idle(host: Recording) -> Recording:
    for index in range(8):
        host = of_gpu(host, index, clock_event_reasons=0x5, utilization_pct=0)
    return host


HOSTS[277] = (lambda: _all_idle(dgx()), dgx)
