"""
Builders of the hosts 478 to 512 of hosts.csv: packages, variables, places, containers, and a driver that is missing or refuses.

The sealed third was drawn before any recipe was tried, by ``random.Random("ninth list of hosts, 30 November 2026")``: first
``sample(range(60), 20)`` of the faults, then ``sample(range(20), 7)`` of the healthy ones, in the list's order.
"""

from __future__ import annotations

from hosts_082 import _mounted, _site, wsl2
from hosts_206 import _FILE, conda
from hosts_306 import _instead, _nobody
from hosts_336 import _added
from hosts_384 import _driven, rocky
from hosts_table import HOSTS, desktop, made, two_dgx, with_variables

from machines import Recording, cut, environment, interpreter, over, system, torch
from platforms import fedora_two_4090, old_lab_box
from platforms_contained import colab
from platforms_more import runpod
from platforms_troubled import logged, of_gpu

_NEEDS = {
    "filelock": "",
    "typing-extensions": ">=4.10.0",
    "sympy": ">=1.13.3",
    "networkx": ">=2.5.1",
    "jinja2": "",
    "fsspec": ">=0.8.5",
}


def _needs(**versions: str) -> Recording:
    """torch with its own list of needs, and what is installed of them."""
    host, site = desktop(), _site(desktop())
    wanted = [f"Requires-Dist: {name}{bound}" for name, bound in _NEEDS.items()]
    metadata = ["Metadata-Version: 2.4", "Name: torch", "Version: 2.11.0", *wanted, "", ""]
    there = {
        "filelock": "3.20.0",
        "typing_extensions": "4.15.0",
        "sympy": "1.14.0",
        "networkx": "3.5",
        "jinja2": "3.1.6",
        "fsspec": "2025.9.0",
        **versions,
    }
    host = cut(host, *(f"{site}/{name}-" for name in there))
    files = {f"{site}/{name}-{version}.dist-info/INSTALLER": "pip\n" for name, version in there.items()}
    return over(host, files={**files, f"{site}/torch-2.11.0.dist-info/METADATA": metadata})


HOSTS[478] = (lambda: _needs(typing_extensions="4.7.1"), lambda: _needs())
HOSTS[538] = (lambda: _needs(), desktop)
_BUILDS = "/home/mia/.cache/torch_extensions"


def _building(age_s: int | None) -> Recording:
    """A build of an extension of deepspeed; its lock was made so long ago."""
    host = _added(desktop(), "deepspeed-0.18.2")
    place = f"{_BUILDS}/py312_cu130/fused_adam"
    names = ["build.ninja", ".ninja_log", *([] if age_s is None else ["lock"])]
    dirs = {_BUILDS: ["py312_cu130"], f"{_BUILDS}/py312_cu130": ["fused_adam"], place: names}
    if age_s is None:
        return over(host, dirs=dirs)
    now = host["answers"]["kernel-log"].get("wall_s", 1_795_262_400)
    lock = {**_FILE, "size": 0, "uid": 1000, "gid": 1000, "mtime": now - age_s}
    return over(host, dirs=dirs, files={f"{place}/lock": ""}, stats={f"{place}/lock": lock})


HOSTS[479] = (lambda: _building(3 * 86_400), lambda: _building(None))
HOSTS[539] = (lambda: _building(60), lambda: _building(None))


def _of_conda(version: str, build: str, mkl: str) -> Recording:
    host, site = conda(), _site(conda())
    host = cut(host, f"{site}/torch-", f"{site}/nvidia_", f"{site}/triton-")
    lines = [f"__version__ = {version!r}", "debug = False", "cuda: Optional[str] = '12.1'", "hip: Optional[str] = None"]
    names = [f"pytorch-{version}-{build}.json", f"mkl-{mkl}-ha957f24_663.json", "pytorch-cuda-12.1-ha16c6d3_5.json"]
    return over(host, files={f"{site}/torch/version.py": lines}, dirs={"/opt/conda/conda-meta": names})


HOSTS[480] = (
    lambda: _of_conda("2.2.2", "py3.11_cuda12.1_cudnn8.9.2_0", "2024.1.0"),
    lambda: _of_conda("2.2.2", "py3.11_cuda12.1_cudnn8.9.2_0", "2023.1.0"),
)
HOSTS[540] = (lambda: _of_conda("2.7.1", "cuda126_mkl_py311_h30b5a27_300", "2024.2.2"), conda)
HOSTS[481] = (lambda: _added(desktop(), "torch_scatter-2.1.2+pt25cu124"), desktop)
HOSTS[541] = (lambda: _added(desktop(), "torch_scatter-2.1.2+pt211cu130"), desktop)
HOSTS[482] = (lambda: _added(desktop(), "transformer_engine-2.9.0", "transformer_engine_cu12-2.9.0"), desktop)
HOSTS[483] = (lambda: _added(desktop(), "torchcodec-0.2.1"), desktop)
HOSTS[484] = (lambda: _added(desktop(), "torchtext-0.18.0"), desktop)


def _torch_2_3() -> Recording:
    host = torch(desktop(), "2.3.1+cu121", cuda="12.1")
    return _instead(_instead(_instead(host, "triton", "2.3.1"), "torchvision", "0.18.1"), "numpy", "1.26.4")


HOSTS[485] = (lambda: _added(_torch_2_3(), "transformers-5.1.0"), _torch_2_3)
HOSTS[486] = (_torch_2_3, desktop)
_GCC = {"/usr/bin/gcc": "", "/usr/bin/x86_64-redhat-linux-gcc-8": ""}


def _with_gcc_8(*packages: str) -> Recording:
    host = over(_added(rocky(), *packages), files=_GCC, stats={path: {**_FILE, "mode": 33261} for path in _GCC})
    return over(host, dirs={"/usr/lib/gcc/x86_64-redhat-linux": ["8"]})


HOSTS[487] = (lambda: _with_gcc_8("deepspeed-0.18.2"), rocky)
_SET = "/opt/rh/gcc-toolset-13/root/usr/bin"


@made(543, rocky)
def newer_compilers_beside() -> Recording:
    tools = [f"{_SET}/gcc", f"{_SET}/g++"]
    host = over(_with_gcc_8(), files=dict.fromkeys(tools, ""), stats={path: {**_FILE, "mode": 33261} for path in tools})
    return environment(host, CC=tools[0], CXX=tools[1])


def _without_operators(*tools: str) -> Recording:
    host, site = _added(desktop(), "deepspeed-0.18.2"), _site(desktop())
    built = ["version='0.18.2'", "installed_ops={'async_io': False, 'fused_adam': False}"]
    files = {f"{site}/deepspeed/git_version_info_installed.py": built, **dict.fromkeys(tools, "")}
    return over(host, files=files, stats={path: {**_FILE, "mode": 33261} for path in tools})


HOSTS[488] = (lambda: _without_operators(), lambda: _without_operators("/usr/local/cuda/bin/nvcc"))


def _compiled(*modules: str) -> Recording:
    """A Python that its user compiled: the standard library's modules in C."""
    root = "/home/mia/.pyenv/versions/3.12.9"
    host = interpreter(desktop(), base_prefix=root, not_found=[] if "_ctypes" in modules else ["_ctypes"])
    names = [f"{name}.cpython-312-x86_64-linux-gnu.so" for name in ("_bz2", "_hashlib", "_json", "_socket", "math", *modules)]
    return over(host, dirs={f"{root}/lib/python3.12/lib-dynload": names})


HOSTS[489] = (lambda: _compiled(), lambda: _compiled("_ctypes", "_lzma"))
with_variables(490, desktop, CUDA_VISIBLE_DEVICES='"0"')
with_variables(491, two_dgx, NCCL_SOCKET_IFNAME='"eno3"')
with_variables(492, two_dgx, NCCL_SOCKET_IFNAME="10.33.0.13")
with_variables(493, two_dgx, NCCL_SOCKET_IFNAME="lo")
with_variables(494, desktop, OMP_NUM_THREADS="auto")
with_variables(545, desktop, OMP_NUM_THREADS="8,2")
with_variables(544, lambda: _six(two_dgx()), NCCL_SOCKET_FAMILY="AF_INET6")


def _six(host: Recording) -> Recording:
    """An IPv6 address beside each other one."""
    listed = []
    for number, one in enumerate(host["answers"]["interfaces"]):
        own = {"family": "inet6", "address": f"2001:db8:0:{number}::17", "prefix_length": 64}
        listed.append({**one, "addresses": [*one["addresses"], own]} if one["addresses"] and one["name"] != "lo" else one)
    return over(host, answers={"interfaces": listed})


def _mkl() -> Recording:
    names = ["numpy-2.1.3-py311h08b1b3b_0.json", "mkl-2023.1.0-h213fc3f_46344.json", "blas-1.0-mkl.json"]
    return over(conda(), dirs={"/opt/conda/conda-meta": names})


HOSTS[495] = (lambda: environment(_mkl(), MKL_THREADING_LAYER="INTEL"), _mkl)
with_variables(496, desktop, ACCELERATE_USE_CPU="true")


@made(497, desktop)
def cache_of_root() -> Recording:
    node = {"mode": 0o40755, "uid": 0, "gid": 0, "size": 4096}
    return over(
        desktop(),
        dirs={"/home/mia/.triton": ["cache"], "/home/mia/.triton/cache": []},
        stats={"/home/mia/.triton": node, "/home/mia/.triton/cache": node},
        answers={f"access:/home/mia/.triton{more}": {"read": True, "write": False} for more in ("", "/cache")},
    )


_SMALLER = {
    "name": "NVIDIA GeForce RTX 3060",
    "architecture": "Ampere",
    "compute_capability": [8, 6],
    "memory_total_bytes": 12_884_901_888,
    "power_limit_mw": 170_000,
    "power_default_mw": 170_000,
}


def _unlike(**variables: str) -> Recording:
    """The smaller card on the lower bus: CUDA counts the faster one first, nvidia-smi the lower."""
    return environment(of_gpu(fedora_two_4090(), 0, **_SMALLER), **variables)


HOSTS[498] = (lambda: _unlike(CUDA_VISIBLE_DEVICES="0"), fedora_two_4090)
HOSTS[556] = (lambda: _unlike(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID"), lambda: _unlike())


def _drive(data: str) -> Recording:
    what = "- fuse.drive drive rw,user_id=0,group_id=0,default_permissions,allow_other"
    host = _mounted(colab(), "/content/drive", what)
    space = host["spaces"]["/"]
    may = {f"access:{data}": {"read": True, "write": True}}
    return over(host, dirs={data: []}, spaces={data: space}, answers=may, intent={"data": [data]})


HOSTS[499] = (lambda: _drive("/content/drive/MyDrive/data"), lambda: _drive("/content/data"))
HOSTS[547] = (lambda: _drive("/content/data"), colab)


def _data_at(place: str, what: str) -> Recording:
    return over(_mounted(desktop(), place, what), intent={"data": [place], "workers": 8})


_DISK = "- ext4 /dev/nvme0n1p3 rw"
_SMB = "- cifs //nas01/data rw,vers=3.1.1,cache=strict,username=mia,uid=1000,gid=1000,rsize=4194304,wsize=4194304"
_NTFS = "- fuseblk /dev/nvme0n1p4 rw,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096"
HOSTS[500] = (lambda: _data_at("/mnt/nas", _SMB), lambda: _data_at("/mnt/nas", _DISK))
HOSTS[501] = (lambda: _data_at("/home/mia/train", _NTFS), lambda: _data_at("/home/mia/train", _DISK))


def _volume(what: str) -> Recording:
    """RunPod's volume holds the environment."""
    host = runpod()
    old, new = "/opt/conda", "/workspace/env"

    def moved(value: object) -> object:
        if isinstance(value, str):
            return value.replace(old, new)
        if isinstance(value, list):
            return [moved(one) for one in value]
        if isinstance(value, dict):
            return {str(moved(key)): moved(one) for key, one in value.items()}
        return value

    there: Recording = {name: moved(section) for name, section in host.items()}
    return over(_mounted(there, "/workspace", what), intent={"nodes": 2})


HOSTS[502] = (
    lambda: _volume("- fuse mfs#eu-se-1.runpod.net:9421 rw,user_id=0,group_id=0,allow_other"),
    lambda: _volume("- ext4 /dev/nvme1n1 rw"),
)


def _reached(address: str, bits: int) -> Recording:
    host = over(wsl2(), intent={"nodes": 2})
    own = [{"family": "inet", "address": address, "prefix_length": bits}]
    listed = [one if one["name"] == "lo" else {**one, "addresses": own} for one in host["answers"]["interfaces"]]
    return over(host, answers={"interfaces": listed, "hostname-addresses": ["127.0.1.1"]})


HOSTS[503] = (lambda: _reached("172.24.93.7", 20), lambda: _reached("192.168.1.23", 24))
HOSTS[546] = (lambda: _reached("192.168.1.23", 24), lambda: over(wsl2(), intent={"nodes": 2}))


def _packaged(**versions: str) -> Recording:
    listed = [
        {"name": name.replace("_", "-"), "version": version, "held": False, "origin": "ubuntu.com"}
        for name, version in {"nvidia_driver_580_open": "580.95.05-0ubuntu0.24.04.1", **versions}.items()
    ]
    return over(desktop(), files={"/var/lib/dpkg/status": ""}, answers={"packages": listed})


_TOOLKIT = {"nvidia_container_toolkit": "1.18.1-1"}
HOSTS[504] = (
    lambda: _packaged(docker_ce="5:20.10.7~3-0~ubuntu-focal", **_TOOLKIT),
    lambda: _packaged(docker_ce="5:28.5.1-1~ubuntu.24.04~noble", **_TOOLKIT),
)
HOSTS[505] = (lambda: over(wsl2(), answers={"today": "2024-11-03"}), wsl2)


@made(506, desktop)
def userland_of_32_bits() -> Recording:
    host = system(cut(desktop(), "/proc/driver/nvidia", "/dev/nvidia", "/sys/module/nvidia"), kernel="6.12.47+rpt-rpi-v8")
    host = interpreter(_packaged_none(host), machine="armv7l", executable=None, version="3.11.2")
    return over(host, answers={"uname": {**host["answers"]["uname"], "machine": "aarch64"}})


def _packaged_none(host: Recording) -> Recording:
    """No torch, no NVIDIA."""
    site = _site(host)
    return cut(host, f"{site}/torch", f"{site}/nvidia_", f"{site}/triton-")


_SLEEP = (
    "PM: suspend entry (deep)",
    "Freezing user space processes",
    "ACPI: PM: Waking up from system sleep state S3",
    "PM: suspend exit",
)
HOSTS[507] = (lambda: logged(desktop(), *_SLEEP), desktop)


@made(508, lambda: _packaged(docker_ce="5:28.5.1-1~ubuntu.24.04~noble", **_TOOLKIT))
def docker_of_snap() -> Recording:
    host = over(_packaged(**_TOOLKIT), dirs={"/snap/docker": ["3265", "current"], "/var/snap/docker": ["3265", "common"]})
    return over(host, files={"/snap/bin/docker": ""}, links={"/snap/docker/current": "3265"})


def _toolkit(host: Recording, value: str) -> Recording:
    lines = [
        "disable-require = false",
        "[nvidia-container-cli]",
        "environment = []",
        "load-kmods = true",
        f"no-cgroups = {value}",
    ]
    return over(host, files={"/etc/nvidia-container-runtime/config.toml": lines})


def _docker() -> Recording:
    return _packaged(docker_ce="5:28.5.1-1~ubuntu.24.04~noble", **_TOOLKIT)


HOSTS[509] = (lambda: _toolkit(_docker(), "true"), lambda: _toolkit(_docker(), "false"))


def _pascal(version: str) -> Recording:
    return _driven(old_lab_box(), version, "13.0" if version > "580" else "12.2")


HOSTS[510] = (
    lambda: logged(
        _nobody(_pascal("580.95.05")),
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b06)",
        "NVRM: installed in this system is not supported by open",
        "NVRM: nvidia.ko because it does not include the required GPU",
        "NVRM: System Processor (GSP).",
        "nvidia: probe of 0000:01:00.0 failed with error -1",
    ),
    old_lab_box,
)
HOSTS[511] = (
    lambda: logged(
        _nobody(_pascal("590.44.01")),
        "NVRM: The NVIDIA GeForce GTX 1080 Ti GPU installed in this system is",
        "NVRM: supported through the NVIDIA 580.xx Legacy drivers. Please",
        "NVRM: visit http://www.nvidia.com/object/unix.html for more information.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ),
    old_lab_box,
)


@made(557, old_lab_box)
def pascal_with_code_for_it() -> Recording:
    host = _instead(_instead(_pascal("580.95.05"), "triton", "3.3.1"), "torchvision", "0.22.1+cu118")
    return torch(host, "2.7.1+cu118", cuda="11.8")


HOSTS[512] = (
    lambda: logged(
        _nobody(desktop()),
        "NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.",
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0x1c:1436)",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
    ),
    desktop,
)
