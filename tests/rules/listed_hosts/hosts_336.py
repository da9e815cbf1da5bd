"""Builders of the hosts 336 to 383 of hosts.csv, by how often users meet them."""

from __future__ import annotations

from hosts_082 import _site
from hosts_141 import pod, slurm
from hosts_206 import _FILE, _without_devices, conda
from hosts_280 import _GONE
from hosts_306 import _instead
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import (
    Recording,
    cpus,
    cut,
    environment,
    function,
    interpreter,
    nodes,
    over,
    system,
    text,
    torch,
    without_gpus,
    x86,
)
from platforms import epyc_nps4, fedora_two_4090, intel_xpu
from platforms_arm import dgx_spark, gb200_tray
from platforms_more import aws_p5_efa, kvm_guest, ryzen_laptop
from platforms_owners import l40s_server, regions, told, without_modules
from platforms_troubled import logged, of_gpu

HOSTS[336] = (lambda: of_gpu(dgx(), 4, ecc_uncorrected_volatile=3), dgx)
HOSTS[337] = (lambda: of_gpu(dgx(), 1, rows_remap_failed=True), dgx)


with_log(338, dgx, "NVRM: Xid (PCI:0000:d1:00): 94, pid=4711, name=python3, Contained: FBHUB (0x0,0x0). RST: No, D-RST: No")
with_log(
    339,
    gb200_tray,
    "NVRM: Xid (PCI:0018:06:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
)


def _working() -> Recording:
    return told(dgx(), utilization_pct=100, clock_event_reasons=0, temperature_c=64, clock_sm_mhz=1980, clock_sm_max_mhz=1980)


@made(340, _working)
def a_fan_failed() -> Recording:
    host = _working()
    for index in range(4):
        host = of_gpu(host, index, clock_event_reasons=0x20, temperature_c=87, clock_sm_mhz=1215)
    return host


def _governed(name: str) -> Recording:
    host = epyc_nps4()
    files = {path: f"{name}\n" for path in host["files"] if path.endswith("/scaling_governor")}
    return over(host, files=files)


HOSTS[341] = (lambda: _governed("powersave"), epyc_nps4)
_CE = (
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC i10nm MC3: HANDLING MCE MEMORY ERROR",
    "EDAC MC3: 1 CE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 "
    "(channel:0 slot:0 page:0x1c2f3d1 offset:0x840 grain:32 syndrome:0x0 -  err_code:0x0101:0x0090)",
)
with_log(342, dgx, *_CE * 200)
with_log(381, dgx, *_CE)
with_log(
    343,
    dgx,
    "nvme nvme2: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting req_op:READ(0) size:131072",
    "nvme nvme2: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 5 timeout, reset controller",
    "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
)
_ORPHAN = {"pid": 31337, "user": "eve", "name": "python3", "used_bytes": 71 << 30}
HOSTS[344] = (lambda: of_gpu(dgx(), 0, memory_used_bytes=71 << 30, processes=[_ORPHAN]), dgx)
HOSTS[345] = (lambda: of_gpu(dgx(), 3, compute_mode="prohibited"), dgx)


def _units(*names: str) -> Recording:
    return over(two_dgx(), dirs={"/sys/fs/cgroup/system.slice": ["systemd-journald.service", "sshd.service", *names]})


HOSTS[346] = (lambda: _units(), lambda: _units("chronyd.service"))
HOSTS[347] = (lambda: cut(told(l40s_server(), persistence=False, display=False), "/run/nvidia-persistenced"), l40s_server)
HOSTS[348] = (lambda: torch(mi300x(), "2.11.0", cuda="13.0"), mi300x)


def _amd_desktop(ids: str, version: str, hip: str) -> Recording:
    """One Radeon in a desktop, driven by the kernel's amdgpu, and torch for ROCm."""
    host = without_gpus(desktop())
    host = function(host, "pci0000:00/0000:00:01.0/0000:03:00.0", ids, "30000", "amdgpu", -1)
    modules = text(host, "/proc/modules")
    node = {"mode": 8624, "uid": 0, "gid": 992, "size": 0}
    host = over(
        host,
        files={"/proc/modules": [*modules, "amdgpu 20000000 20 - Live 0x0"], "/sys/module/amdgpu/initstate": "live\n"},
        stats={"/dev/kfd": {**node, "special": "234:0"}, "/dev/dri/renderD128": {**node, "special": "226:128"}},
        answers={
            "uid": {**host["answers"]["uid"], "groups": [44, 992, 1000]},
            **{f"access:{path}": {"read": True, "write": True} for path in ("/dev/kfd", "/dev/dri/renderD128")},
        },
    )
    return torch(host, version, hip=hip)


HOSTS[349] = (
    lambda: _amd_desktop("1002:73df", "2.9.1+rocm6.4", "6.4.43484-123eb5128"),
    lambda: _amd_desktop("1002:73bf", "2.9.1+rocm6.4", "6.4.43484-123eb5128"),
)


def strix_halo(gtt: int) -> Recording:
    host = system(ryzen_laptop(), name="strix", kernel="6.17.0-8-generic")
    host = cpus(
        host,
        packages=["0-31"],
        info=[x86("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "AuthenticAMD", "fpu sse4_2 avx avx2 avx512f")],
        threads=[f"{n},{n + 16}" for n in range(16)],
    )
    host = nodes(host, {0: ("0-31", 131_000_000)})
    place = "pci0000:00/0000:00:08.1/0000:c1:00.0"
    host = function(host, place, "1002:1586", "30000", "amdgpu", -1)
    files = {
        f"/sys/devices/{place}/mem_info_vram_total": f"{512 << 20}\n",
        f"/sys/devices/{place}/mem_info_gtt_total": f"{gtt}\n",
        "/sys/module/ttm/parameters/pages_limit": f"{gtt >> 12}\n",
    }
    return torch(over(host, files=files), "2.9.1+rocm7.0", hip="7.0.51831")


HOSTS[350] = (lambda: strix_halo(31 << 30), lambda: strix_halo(110 << 30))
_ARC = "pci0000:00/0000:00:01.0/0000:03:00.0"


def _arc(second: int) -> Recording:
    return regions(intel_xpu(), _ARC, 16 << 20, 0, second)


HOSTS[351] = (lambda: logged(_arc(256 << 20), "xe 0000:03:00.0: [drm] Small BAR device"), lambda: _arc(16 << 30))


def _contiguous(kernel: str, kib: int) -> Recording:
    host = system(over(dgx_spark(), intent={"nodes": 2}), kernel=kernel)
    return over(
        host, files={"/proc/meminfo": [*text(host, "/proc/meminfo"), f"CmaTotal:       {kib} kB", f"CmaFree:       {kib} kB"]}
    )


HOSTS[352] = (lambda: _contiguous("7.0.0-1019-nvidia", 0), lambda: _contiguous("6.17.0-1031-nvidia", 131_072))


def _user_site(there: bool) -> Recording:
    host = conda()
    path = next(answer["path"] for name, answer in host["answers"].items() if name.startswith("interpreter:"))
    version = path[-1].partition("python3")[2].partition("/")[0]
    home = f"/root/.local/lib/python3{version}/site-packages"
    files = {
        f"{home}/torch/version.py": [
            "__version__ = '2.3.1+cu121'",
            "debug = False",
            "cuda: Optional[str] = '12.1'",
            "hip = None",
        ],
        f"{home}/torch-2.3.1.dist-info/INSTALLER": "pip\n",
        f"{home}/torch-2.3.1.dist-info/METADATA": ["Metadata-Version: 2.1", "Name: torch", "Version: 2.3.1", "", ""],
    }
    host = interpreter(host, path=[path[0], home, *path[1:]], user_site=home)
    return over(host, files=files) if there else host


HOSTS[353] = (lambda: _user_site(True), lambda: _user_site(False))


def _added(host: Recording, *packages: str) -> Recording:
    site = _site(host)
    return over(host, files={f"{site}/{name}.dist-info/INSTALLER": "pip\n" for name in packages})


_PINS = [
    "Metadata-Version: 2.1",
    "Name: xformers",
    "Version: 0.0.28.post3",
    "Requires-Dist: numpy",
    "Requires-Dist: torch==2.5.1",
    "",
    "",
]


@made(354, desktop)
def extension_of_another_torch() -> Recording:
    host = _added(desktop(), "xformers-0.0.28.post3")
    return over(host, files={f"{_site(host)}/xformers-0.0.28.post3.dist-info/METADATA": _PINS})


HOSTS[355] = (lambda: _instead(desktop(), "torchvision", "0.26.0+cpu"), desktop)


def _quantised(*versions: str) -> Recording:
    site = _site(desktop())
    libraries = {f"{site}/bitsandbytes/libbitsandbytes_cuda{version}.so": "" for version in versions}
    return over(_added(desktop(), "bitsandbytes-0.45.0"), files=libraries, stats=dict.fromkeys(libraries, _FILE))


HOSTS[356] = (lambda: _quantised("118", "121", "124", "126"), lambda: _quantised("118", "121", "124", "126", "130"))
HOSTS[357] = (lambda: _instead(desktop(), "nvidia_cudnn_cu13", "9.10.1.4"), desktop)


def _compilers(gcc: int) -> Recording:
    home = "/usr/local/cuda-12.4"
    limit = "#if __GNUC__ > 13\n\n#error -- unsupported GNU version! gcc versions later than 13 are not supported!\n"
    files = {
        f"{home}/bin/nvcc": "",
        f"{home}/version.json": '{"cuda": {"version": "12.4.1"}, "cuda_nvcc": {"version": "12.4.131"}}',
        f"{home}/include/crt/host_config.h": limit,
        f"/usr/bin/x86_64-linux-gnu-gcc-{gcc}": "",
        f"{_site(desktop())}/deepspeed-0.18.2.dist-info/INSTALLER": "pip\n",
    }
    host = over(
        environment(torch(desktop(), "2.6.0+cu124", cuda="12.4"), CUDA_HOME=home),
        files=files,
        stats={f"{home}/bin/nvcc": {**_FILE, "mode": 33261}, f"/usr/bin/x86_64-linux-gnu-gcc-{gcc}": {**_FILE, "mode": 33261}},
        links={"/usr/bin/gcc": f"x86_64-linux-gnu-gcc-{gcc}"},
    )
    return {**host, "files": {path: value for path, value in host["files"].items() if path != "/usr/bin/gcc"}}


HOSTS[358] = (lambda: _compilers(14), lambda: _compilers(13))


def _listened(*owners: int) -> Recording:
    """The master's port on the first host."""
    host = environment(two_dgx(), MASTER_ADDR="10.33.0.13", MASTER_PORT="29500", RANK="0", LOCAL_RANK="0", WORLD_SIZE="16")
    way = {"addresses": ["10.33.0.13"], "refused": [""], "own": ["10.33.0.13"]}
    return over(host, answers={"way-to:10.33.0.13": way, "port-listeners:29500": list(owners)})


HOSTS[359] = (lambda: _listened(1000), lambda: _listened())


def _bridged(address: str, node: int) -> Recording:
    host = over(conda(), intent={"nodes": 2})
    one = next(one for one in host["answers"]["interfaces"] if one["name"] != "lo")
    addresses = [{"family": "inet", "address": address, "prefix_length": node}]
    rest = [other for other in host["answers"]["interfaces"] if other["name"] == "lo"]
    return over(host, answers={"interfaces": [*rest, {**one, "addresses": addresses}], "hostname-addresses": [address]})


HOSTS[360] = (lambda: _bridged("172.17.0.2", 16), lambda: _bridged("10.33.0.21", 22))
with_variables(361, fedora_two_4090, CUDA_VISIBLE_DEVICES="2,3")
with_variables(382, fedora_two_4090, CUDA_VISIBLE_DEVICES="1,0")
_PORT, _GPU = "pci0000:01/0000:00:01.0", "pci0000:01/0000:00:01.0/0000:01:00.0"


def _in_slot(lanes: int, **facts: object) -> Recording:
    """The card below a port of sixteen lanes."""
    host = function(desktop(), _PORT, "8086:a70d", "60400", "pcieport", -1, max_link_width="16", current_link_width=f"{lanes}")
    host = of_gpu(host, 0, pcie_width=lanes, **facts)
    return over(host, files={f"/sys/devices/{_GPU}/current_link_width": f"{lanes}"})


HOSTS[362] = (lambda: _in_slot(4), lambda: _in_slot(16))
_BUSY = {"utilization_pct": 99, "clock_event_reasons": 0, "clock_sm_mhz": 2700, "clock_sm_max_mhz": 3105}


def _at(generation: int, speed: str) -> Recording:
    host = of_gpu(_in_slot(16), 0, pcie_gen=generation, **_BUSY)
    ports = {f"/sys/devices/{place}/current_link_speed": f"{speed} PCIe" for place in (_PORT, _GPU)}
    return over(host, files={**ports, f"/sys/devices/{_PORT}/max_link_speed": "16.0 GT/s PCIe"})


HOSTS[363] = (lambda: _at(1, "2.5 GT/s"), lambda: _at(4, "16.0 GT/s"))


def _4060_ti() -> Recording:
    host = _in_slot(8, name="NVIDIA GeForce RTX 4060 Ti", pcie_width_max=8, memory_total_bytes=17_175_674_880)
    files = {
        path: [line.replace("10DE:2684", "10DE:2805") for line in text(host, path)]
        for path in host["files"]
        if path.endswith("0000:01:00.0/uevent")
    }
    return over(host, files={**files, f"/sys/devices/{_GPU}/max_link_width": "8"})


HOSTS[378] = (_4060_ti, desktop)
with_log(
    364,
    _without_devices,
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)",
    "nvidia: probe of 0000:01:00.0 failed with error -1",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    "NVRM: None of the NVIDIA devices were initialized.",
)


@made(365, lambda: over(aws_p5_efa(), intent={"nodes": 2}))
def without_the_driver_of_efa() -> Recording:
    host = over(aws_p5_efa(), intent={"nodes": 2})
    files = {
        path: [line for line in text(host, path) if line != "DRIVER=efa"]
        for path in host["files"]
        if path.endswith("/uevent") and "DRIVER=efa" in str(host["files"][path])
    }
    host = without_modules(over(cut(host, "/sys/class/infiniband", "/sys/module/efa"), files=files), "efa", "ib_")
    return {**host, "dirs": {path: names for path, names in host["dirs"].items() if path != "/dev/infiniband"}}


@made(366, kvm_guest)
def processor_of_a_default_guest() -> Recording:
    model = x86("QEMU Virtual CPU version 2.5+", flags="fpu hypervisor sse sse2 pni cx16")
    return cpus(kvm_guest(), packages=[f"{n}" for n in range(16)], info=[model])


with_log(
    367,
    slurm,
    "nfs: server nfs01 not responding, still trying",
    "INFO: task python3:4711 blocked for more than 122 seconds.",
    "      Not tainted 5.14.0-570.17.1.el9_6.x86_64 #1",
    "nfs: server nfs01 not responding, still trying",
)


@made(368, desktop)
def module_of_another_kernel() -> Recording:
    host = without_modules(cut(desktop(), "/dev/nvidia", "/proc/driver/nvidia", "/sys/module/nvidia"), "nvidia")
    gpu = next(path for path in host["files"] if path.endswith("/uevent") and "DRIVER=nvidia" in str(host["files"][path]))
    links = {path: target for path, target in host["links"].items() if not target.endswith("/drivers/nvidia")}
    nvml = {"error": "DRIVER_NOT_LOADED", **dict.fromkeys(("driver_version", "library_version", "devices"), _GONE)}
    files = {
        gpu: [line for line in text(host, gpu) if not line.startswith("DRIVER=")],
        "/lib/modules/6.14.0-33-generic/modules.dep": "updates/dkms/nvidia.ko.zst:\n",
    }
    host = over({**host, "links": links, "answers": {**host["answers"], "nvml": {}}}, files=files, answers={"nvml": nvml})
    words = "SMP preempt mod_unload modversions "
    return logged(host, f"nvidia: version magic '6.14.0-29-generic {words}' should be '6.14.0-33-generic {words}'")


@made(369, desktop)
def disk_became_read_only() -> Recording:
    host = desktop()
    mounts = [line.replace(" / / rw,", " / / ro,") for line in text(host, "/proc/self/mountinfo")]
    spaces = {path: {**space, "read_only": True} for path, space in host["spaces"].items() if path != "/dev/shm"}
    closed = {
        name: {"read": True, "write": False} for name in host["answers"] if name.startswith("access:/") and "shm" not in name
    }
    host = over(host, files={"/proc/self/mountinfo": mounts}, spaces=spaces, answers=closed)
    return logged(
        host,
        "EXT4-fs error (device nvme0n1p2): ext4_journal_check_start:84: comm systemd-journal: Detected aborted journal",
        "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
    )


def _by_wireless(alone: bool) -> Recording:
    host = over(desktop(), intent={"nodes": 2})
    if alone:
        return host
    wired = {"addresses": [{"family": "inet", "address": "10.0.0.12", "prefix_length": 24}], "flags": 69699, "operstate": "up"}
    listed = [{**one, **wired} if one["name"] == "enp6s0" else one for one in host["answers"]["interfaces"]]
    route = [line.replace("wlp4s0", "enp6s0") for line in text(host, "/proc/net/route")]
    files = {"/proc/net/route": route, "/sys/class/net/enp6s0/speed": "10000\n", "/sys/class/net/enp6s0/operstate": "up\n"}
    return over(host, files=files, answers={"interfaces": listed})


HOSTS[370] = (lambda: _by_wireless(True), lambda: _by_wireless(False))


def _ranks() -> Recording:
    return over(dgx(), intent={"ranks": 8, "workers": 8})


with_variables(371, _ranks, OMP_NUM_THREADS="1")
_NVIDIA = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
with_variables(372, conda, NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DISABLE_REQUIRE="1", LD_LIBRARY_PATH=_NVIDIA)


def _by_number(groups: list[int]) -> Recording:
    host = mi300x()
    return over(host, answers={"uid": {**host["answers"]["uid"], "groups": groups}})


HOSTS[377] = (lambda: _by_number([109, 1000]), mi300x)
with_variables(380, lambda: over(pod(), intent={"nodes": 2}), NCCL_SOCKET_IFNAME="eth")
