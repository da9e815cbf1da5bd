"""Builders of the hosts 384 to 423 of hosts.csv, by how often users meet them and by areas."""

from __future__ import annotations

from hosts_082 import _mounted, _site, wsl2
from hosts_141 import pod, slurm
from hosts_206 import _FILE, _library_first, conda
from hosts_306 import _instead, _nobody, rtx_5090
from hosts_336 import _amd_desktop
from hosts_table import HOSTS, desktop, dgx, made, two_dgx, with_log, with_variables

from machines import Recording, cut, interpreter, ordinary, over, text, with_driver
from platforms_troubled import logged


def gcp_a2() -> Recording:
    return ordinary("gcp-a2")


def rocky() -> Recording:
    return ordinary("rocky8-v100")


def _driven(host: Recording, version: str, cuda: str) -> Recording:
    host = with_driver(host, host["answers"]["nvml"]["driver_version"], version)
    return over(host, answers={"nvml": {**host["answers"]["nvml"], "driver_version": version, "cuda_driver_version": cuda}})


HOSTS[384] = (lambda: _driven(desktop(), "550.163.01", "12.4"), desktop)


def _without_torch(host: Recording) -> Recording:
    site = _site(host)
    host = cut(host, f"{site}/torch", f"{site}/nvidia_", f"{site}/triton-")
    return {**host, "dirs": {path: names for path, names in host["dirs"].items() if not path.startswith(f"{site}/torch")}}


def _bare_python(version: str) -> Recording:
    host = _without_torch(desktop())
    place = "/home/mia/train/.venv/lib/python3.12"
    short = ".".join(version.split(".")[:2])
    files = {path.replace(place, f"/home/mia/train/.venv/lib/python{short}"): text_ for path, text_ in host["files"].items()}
    there = [f"/usr/lib/python{short}", f"/home/mia/train/.venv/lib/python{short}/site-packages"]
    return interpreter({**host, "files": files}, version=version, path=there)


HOSTS[385] = (lambda: _bare_python("3.8.18"), lambda: _bare_python("3.12.3"))
_HERE = "module-files:/home/mia/train"
HOSTS[386] = (
    lambda: over(desktop(), answers={_HERE: ["random.py"]}),
    lambda: over(desktop(), answers={_HERE: []}),
)


@made(387, desktop)
def interrupted_pip() -> Recording:
    site = _site(desktop())
    return over(desktop(), files={f"{site}/~orch-2.10.0.dist-info/METADATA": "Name: torch\n", f"{site}/~orch/_C.so": ""})


def _checkpoints(free: int) -> Recording:
    place = "/home/mia/train"
    space = {**desktop()["spaces"][place], "size": 2 << 40, "free": free}
    return over(desktop(), spaces={place: space}, intent={"checkpoints": [place], "ranks": 1})


HOSTS[388] = (lambda: _checkpoints(300 << 20), lambda: _checkpoints(500 << 30))
HOSTS[389] = (
    lambda: _instead(desktop(), "torchaudio", "2.8.0"),
    lambda: _instead(desktop(), "torchaudio", "2.11.0"),
)


def _cublas(version: str) -> Recording:
    names = {"libcublas.so.12": version, "libcublasLt.so.12": version}
    host = _library_first(slurm(), "/opt/site/cuda/lib64", names)
    return _instead(host, "nvidia_cublas_cu12", "12.6.4.1")


HOSTS[390] = (lambda: _cublas("12.2.5.6"), lambda: _cublas("12.6.4.1"))


@made(391, dgx)
def one_fell_off_the_bus() -> Recording:
    nvml = dgx()["answers"]["nvml"]
    left = [one for one in nvml["devices"] if "43:00" not in one["pci_address"].lower()]
    assert len(left) == len(nvml["devices"]) - 1
    host = over(dgx(), answers={"nvml": {**nvml, "devices": left}})
    return logged(
        host,
        "NVRM: GPU at PCI:0000:43:00: GPU-5c0ffee0-0000-4000-8000-000000000001",
        "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.",
    )


with_log(
    392,
    dgx,
    "NVRM: Xid (PCI:0000:52:00): 48, pid=8123, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer "
    "at physical address 0x1f2c3400",
    "NVRM: Xid (PCI:0000:52:00): 63, pid=8123, name=python3, Row Remapper: New row (0x000000001f2c3400) marked for remapping, reset gpu to activate.",
)
with_log(
    393,
    dgx,
    "NVRM: Xid (PCI:0000:61:00): 74, pid=8123, name=python3, NVLink: fatal error detected on link 9(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
)
with_log(
    394,
    dgx,
    *[
        "NVRM: Xid (PCI:0000:9d:00): 31, pid=8123, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_2 faulted "
        f"@ 0x7f2c_0000{number}000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        for number in range(5)
    ],
)
with_log(
    395,
    desktop,
    "NVRM: Xid (PCI:0000:01:00): 109, pid=9123, name=python3, Ch 00000018, errorString CTX SWITCH TIMEOUT, Info 0x3c046",
)


def _conda_with_log() -> Recording:
    log = desktop()["answers"]["kernel-log"]
    return over(conda(), answers={"kernel-log": {**log, "lines": log["lines"][:1]}})


with_log(
    396,
    _conda_with_log,
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-4f1c.scope,mems_allowed=0,oom_memcg=/system.slice/docker-4f1c.scope,"
    "task_memcg=/system.slice/docker-4f1c.scope,task=python3,pid=4711,uid=0",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:98123456kB, anon-rss:33123456kB, file-rss:81234kB, shmem-rss:0kB, UID:0 "
    "pgtables:71234kB oom_score_adj:0",
)


def _data_on(place: str, device: str, folder: str, rotational: int, transport: str = "") -> Recording:
    """The data on a disk of its own: ``folder`` is the disk's, below /sys/devices."""
    host = desktop()
    name = folder.rpartition("/")[2]
    mount = f"60 30 {device} / {place} rw,noatime shared:50 - ext4 /dev/{name} rw"
    disk = f"/sys/devices/{folder}"
    files = {
        "/proc/self/mountinfo": [*text(host, "/proc/self/mountinfo"), mount],
        f"{disk}/size": "15628053168\n",
        f"{disk}/dev": f"{device}\n",
        f"{disk}/queue/rotational": f"{rotational}\n",
        f"{disk}/queue/scheduler": "none [mq-deadline]\n",
        f"{disk}/queue/read_ahead_kb": "4096\n",
        f"{disk}/device/model": "ST8000VN004\n",
    }
    return over(
        host,
        files=files,
        links={f"/sys/dev/block/{device}": f"../../devices/{folder}", f"/sys/block/{name}": f"../devices/{folder}"},
        dirs={place: []},
        spaces={place: {**host["spaces"]["/"], "read_only": False}},
        answers={f"access:{place}": {"read": True, "write": True}},
        intent={"data": [place], "workers": 8},
    )


_SATA = "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
_USB = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc"
HOSTS[397] = (lambda: _data_on("/data", "8:0", _SATA, 1), lambda: _data_on("/data", "8:0", _SATA, 0))
HOSTS[398] = (lambda: _data_on("/media/jdoe/ext", "8:32", _USB, 0), lambda: _data_on("/media/jdoe/ext", "8:0", _SATA, 0))


def _windows_data(place: str) -> Recording:
    what = "- 9p C:\\134 rw,aname=drvfs;path=C:\\134;uid=1000;gid=1000;symlinkroot=/mnt/,cache=5,access=client,msize=65536,trans=fd,rfd=5,wfd=5"
    host = wsl2()
    if not any(" /mnt/c " in line for line in text(host, "/proc/self/mountinfo")):
        host = _mounted(host, "/mnt/c", what)
    space = host["spaces"]["/"]
    return over(
        host, dirs={place: []}, spaces={place: space}, answers={f"access:{place}": {"read": True}}, intent={"data": [place]}
    )


HOSTS[399] = (lambda: _windows_data("/mnt/c/Users/jdoe/data"), lambda: _windows_data("/home/jdoe/data"))


def _open_files(soft: int, hard: int) -> Recording:
    limits = {**dgx()["answers"]["rlimits"], "nofile": [soft, hard]}
    return over(dgx(), answers={"rlimits": limits}, intent={"ranks": 8, "workers": 16})


HOSTS[400] = (lambda: _open_files(1024, 1024), lambda: _open_files(1024, 1_048_576))


def _with_docker() -> Recording:
    bridge = next(one for one in desktop()["answers"]["interfaces"] if one["name"] == "docker0")
    listed = [one for one in two_dgx()["answers"]["interfaces"] if one["name"] != "docker0"]
    return over(two_dgx(), answers={"interfaces": [*listed, {**bridge, "index": 90}]})


with_variables(401, _with_docker, NCCL_SOCKET_IFNAME="docker0")
with_variables(402, lambda: over(gcp_a2(), intent={"nodes": 2}), NCCL_NET="IB")
HOSTS[403] = (lambda: _nobody(_driven(rtx_5090(), "565.57.01", "12.7")), rtx_5090)


def _swapped(used_kib: int, available: int) -> Recording:
    swaps = ["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority", f"/swap.img file\t67108860\t{used_kib}\t-2"]
    lines = [line for line in text(dgx(), "/proc/meminfo") if not line.startswith(("MemAvailable", "Swap"))]
    total = int(next(line.split()[1] for line in lines if line.startswith("MemTotal")))
    amounts = [
        f"MemAvailable: {total * available // 100} kB",
        "SwapTotal: 67108860 kB",
        f"SwapFree: {67_108_860 - used_kib} kB",
    ]
    return over(dgx(), files={"/proc/swaps": swaps, "/proc/meminfo": [*lines, *amounts]})


HOSTS[404] = (lambda: _swapped(62_914_560, 2), lambda: _swapped(0, 90))


def _limited_pod(limit: int) -> Recording:
    return over(pod(), files={"/sys/fs/cgroup/memory.max": f"{limit}\n"}, intent={"ranks": 1, "workers": 8})


HOSTS[405] = (lambda: _limited_pod(16 << 30), lambda: _limited_pod(400 << 30))


def _few_tasks(limit: str) -> Recording:
    files = {"/sys/fs/cgroup/pids.max": f"{limit}\n", "/sys/fs/cgroup/pids.current": "12\n"}
    return over(conda(), files=files, intent={"ranks": 1, "workers": 8})


HOSTS[406] = (lambda: _few_tasks("100"), lambda: _few_tasks("max"))


@made(408, desktop)
def packages_of_python_3_11() -> Recording:
    wheel = next(path for path in desktop()["files"] if path.endswith("/WHEEL") and "/torch-" in path)
    return over(desktop(), files={wheel: ["Wheel-Version: 1.0", "Tag: cp311-cp311-manylinux_2_28_x86_64"]})


@made(409, desktop)
def started_with_sudo() -> Recording:
    who = {"uid": 0, "gid": 0, "groups": [0], "user": "root"}
    host = over(desktop(), answers={"uid": who, "access:/root": {"read": True, "write": True}}, dirs={"/root": []})
    return over(host, env={"SUDO_USER": "jdoe", "USER": "root", "LOGNAME": "root", "HOME": "/root"})


def _nice(value: int) -> Recording:
    stat = f"4711 (python3) R 4700 4711 4700 34817 4711 4194304 900 0 0 0 9 2 0 0 {20 + value} {value} 1 0 918230 30000000 2400"
    tail = "18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    return over(dgx(), files={"/proc/self/stat": f"{stat} {tail}"})


HOSTS[410] = (lambda: _nice(19), lambda: _nice(0))
with_variables(411, desktop, RANK="3", WORLD_SIZE="8", MASTER_ADDR="10.1.2.3")


def _packaged() -> Recording:
    of_driver = {"version": "580.95.05-0ubuntu0.24.04.1", "held": True, "origin": "ubuntu.com"}
    packages = [{"name": name, **of_driver} for name in ("nvidia-driver-580-open", "libnvidia-compute-580")]
    return over(desktop(), files={"/var/lib/dpkg/status": ""}, answers={"packages": packages})


@made(412, _packaged)
def installer_over_packages() -> Recording:
    stats = {"/usr/bin/nvidia-uninstall": {**_FILE, "mode": 33261}, "/usr/lib/libcuda.so.570.133.07": _FILE}
    return over(_packaged(), stats=stats, files={"/usr/lib/libcuda.so.570.133.07": ""})


HOSTS[413] = (lambda: interpreter(over(rocky(), answers={"glibc": "2.17"}), glibc="2.17"), rocky)


@made(414, conda)
def alpine() -> Recording:
    absent = {"error": "absent", "detail": "this C library is not glibc"}
    os_ = ['ID="alpine"', 'NAME="Alpine Linux"', 'PRETTY_NAME="Alpine Linux v3.22"', 'VERSION_ID="3.22.1"']
    host = over(_without_torch(conda()), files={"/etc/os-release": os_}, answers={"glibc": absent})
    return interpreter(host, glibc=None)


_NEEDS = ["nvidia-cublas==13.1.0.3", "nvidia-cudnn-cu13==9.19.0.56", "nvidia-nccl-cu13==2.28.9", "triton==3.6.0"]


def _required(*gone: str) -> Recording:
    """torch with what its metadata asks for, all but ``gone`` installed."""
    site = _site(desktop())
    metadata = [
        "Metadata-Version: 2.4",
        "Name: torch",
        "Version: 2.11.0",
        *(f'Requires-Dist: {need}; platform_system == "Linux"' for need in _NEEDS),
        "",
        "",
    ]
    host = over(desktop(), files={f"{site}/torch-2.11.0.dist-info/METADATA": metadata})
    if "nvidia-cublas" not in gone:
        host = over(host, files={f"{site}/nvidia_cublas-13.1.0.3.dist-info/INSTALLER": "pip\n"})
    return host


HOSTS[407] = (lambda: cut(_required(), f"{_site(desktop())}/triton-"), lambda: _required())
HOSTS[415] = (lambda: _required("nvidia-cublas"), lambda: _required())
with_log(
    416,
    dgx,
    "BTRFS warning (device nvme1n1): csum failed root 5 ino 257 off 1048576 csum 0x8941f998 expected csum 0x1a2b3c4d mirror 1",
    "BTRFS error (device nvme1n1): bdev /dev/nvme1n1 errs: wr 0, rd 12, flush 0, corrupt 4, gen 0",
)
with_log(
    417,
    dgx,
    *["ceph: mds0 hung", "libceph: osd12 (1)10.0.0.5:6801 socket closed (con state OPEN)"] * 8,
)
with_log(
    418,
    slurm,
    "NFS: nfs4_reclaim_open_state: Lock reclaim failed!",
    "NFS: state manager: lease expired failed on NFSv4 server nfs01 with error 13",
)
with_log(
    419,
    dgx,
    "EXT4-fs warning (device nvme1n1): ext4_dx_add_entry:2516: Directory (ino: 12) index full, reach max htree level :2",
    "EXT4-fs warning (device nvme1n1): ext4_dx_add_entry:2520: Large directory feature is not enabled on this filesystem",
)
with_log(
    420,
    dgx,
    "nvme1n1: I/O Cmd(0x2) @ LBA 812736, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE DNR ",
    "critical medium error, dev nvme1n1, sector 812736 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
)
with_log(
    421,
    dgx,
    "md/raid1:md127: Disk failure on nvme1n1p1, disabling device.",
    "md/raid1:md127: Operation continuing on 1 devices.",
)
with_log(
    422,
    dgx,
    *["beegfs: helperd(4711): Receive timed out from storage01", "beegfs: Retrying communication with storage node: storage01"]
    * 5,
)
with_log(
    423,
    desktop,
    "BTRFS info (device nvme0n1p2): space_info METADATA (sub-group id 0) has 0 free, is full",
    "BTRFS: Transaction aborted (error -28)",
    "BTRFS: error (device nvme0n1p2) in btrfs_run_delayed_refs:2158: errno=-28 No space left",
    "BTRFS info (device nvme0n1p2: state EA): forced readonly",
)


def radeon() -> Recording:
    return _amd_desktop("1002:7550", "2.9.1+rocm7.0", "7.0.51831")
