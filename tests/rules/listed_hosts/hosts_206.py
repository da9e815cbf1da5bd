"""Builders of the hosts 206 to 241 of hosts.csv, as users report them."""

from __future__ import annotations

from hosts_082 import _limited, _mounted, _site, wsl2
from hosts_141 import _asked, pod, slurm
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import Recording, card, cut, environment, function, ordinary, over, text, torch
from platforms import fedora_two_4090, intel_xpu
from platforms_arm import dgx_spark, jetson_orin
from platforms_contained import podman_rootless
from platforms_more import aws_p5_efa, oci_h100
from platforms_troubled import logged, mi300x_without_driver, of_gpu

_FILE = {"mode": 33188, "uid": 0, "gid": 0, "size": 1_500_000}
_OPEN = {"read": True, "write": True}


def _translated(host: Recording, kind: str = "DMA-FQ") -> Recording:
    """The IOMMU's groups of all functions with a group of their own."""
    groups = {path: f"/sys/kernel/iommu_groups/{number}" for number, path in enumerate(_groups(host))}
    files = {f"{group}/type": f"{kind}\n" for group in groups.values()}
    return over(host, files=files, links=groups)


def _groups(host: Recording) -> list[str]:
    return [path for path in host["links"] if path.endswith("/iommu_group")]


@made(206, mi300x)
def pass_through_mistyped() -> Recording:
    line = text(mi300x(), "/proc/cmdline")[0].replace("amd_iommu=on iommu=pt", "amd_iommu=pt")
    host = _translated(over(mi300x(), files={"/proc/cmdline": f"{line}\n"}))
    return logged(host, "AMD-Vi: Unknown option - 'pt'") if "kernel-log" in host["answers"] else host


def _pair(*acs: str) -> Recording:
    """Two workstation cards below root ports of their own, with peer access."""
    host = fedora_two_4090()
    for index in (0, 1):
        host = of_gpu(host, index, name="NVIDIA RTX 5880 Ada Generation")
    port = {"port_type": "root-port", "max_payload_bytes": 256, "max_read_request_bytes": 512, "relaxed_ordering": True}
    for number in ("00:01.0", "00:01.1"):
        host = function(host, f"pci0000:00/0000:{number}", "1022:1483", "60400", "pcieport", -1)
        host = over(host, answers={f"pci-config:0000:{number}": {**port, "acs": list(acs)}})
    pair = {"first": 0, "second": 1, "read": "ok", "write": "ok", "nvlink": "not-supported"}
    nvml = {**host["answers"]["nvml"], "p2p": [pair]}
    links = {
        f"/sys/devices/pci0000:00/0000:00:01.{n}/0000:0{n + 1}:00.0/iommu_group": f"/sys/kernel/iommu_groups/{20 + n}"
        for n in (0, 1)
    }
    groups = {f"{group}/type": "DMA-FQ\n" for group in links.values()}
    return over(host, answers={"nvml": nvml}, links=links, files=groups, intent={"ranks": 2})


HOSTS[207] = (lambda: _pair("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), lambda: _pair("SrcValid"))
HOSTS[279] = (lambda: _pair("SrcValid"), _pair)
_ADAPTERS = ",".join(f"mlx5_{number}" for number in range(7))
HOSTS[208] = (
    lambda: environment(two_dgx(), NCCL_IB_HCA=f"{_ADAPTERS},mlxl5_7"),
    lambda: environment(two_dgx(), NCCL_IB_HCA=f"{_ADAPTERS},mlx5_7"),
)
with_variables(209, two_dgx, CCL_NET_GDR_LEVEL="PHB")
with_variables(210, two_dgx, NCCL_IB_TIMEOUT="2")
with_variables(211, NCCL_NTHREADS="64")


def conda() -> Recording:
    """conda's Python in a container, torch of the package index."""
    return ordinary("docker-workstation")


@made(212, conda)
def library_without_its_link() -> Recording:
    site = _site(conda())
    error = (
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found "
        f"(required by {site}/torch/lib/libtorch_python.so)"
    )
    answers = {"live-torch:/opt/conda/bin/python3": {"import_error": error}}
    return over(conda(), answers=answers, intent={"live": True})


def _two_records(size: int) -> Recording:
    """Both packages list libnccl.so.2; its size tells whose it is."""
    host, site = slurm(), _site(slurm())
    names = ("nccl_cu11-2.14.3", "cudnn_cu11-8.5.0.96", "cublas_cu11-11.10.3.66")
    files: Recording = {f"{site}/nvidia_{name}.dist-info/INSTALLER": "pip\n" for name in names}
    for name, octets in (("nccl_cu11-2.14.3", 177_000_000), ("nccl_cu12-2.27.5", 344_000_000)):
        files[f"{site}/nvidia_{name}.dist-info/RECORD"] = [f"nvidia/nccl/lib/libnccl.so.2,sha256=x,{octets}"]
    return over(host, files=files, stats={f"{site}/nvidia/nccl/lib/libnccl.so.2": {**_FILE, "size": size}})


HOSTS[214] = (lambda: _two_records(177_000_000), lambda: _two_records(344_000_000))


def _library_first(host: Recording, folder: str, libraries: dict[str, str]) -> Recording:
    """A folder at the front of LD_LIBRARY_PATH: soname → version at its file's end."""
    files = {f"{folder}/{name.rpartition('.')[0]}.{version}": "" for name, version in libraries.items()}
    return over(
        environment(host, LD_LIBRARY_PATH=f"{folder}:{host['env'].get('LD_LIBRARY_PATH', '')}".rstrip(":")),
        files=files,
        stats=dict.fromkeys(files, _FILE),
        links={f"{folder}/{name}": f"{name.rpartition('.')[0]}.{version}" for name, version in libraries.items()},
        answers={f"dynamic:{folder}/{name}": {"kind": "64:62", "soname": name} for name in libraries},
    )


HOSTS[215] = (
    lambda: _library_first(slurm(), "/apps/cudnn/9.1.0/lib", {"libcudnn.so.9": "9.1.0", "libcudnn_graph.so.9": "9.1.0"}),
    slurm,
)


def _without_devices() -> Recording:
    """NVML works and lists none: "No devices were found"."""
    nvml = desktop()["answers"]["nvml"]
    return over(desktop(), answers={"nvml": {**nvml, "devices": [], "p2p": []}})


with_log(
    216,
    _without_devices,
    "NVRM: gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
    "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 94.02.59.00.05",
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
    "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
)
with_log(
    217,
    _without_devices,
    "nvidia 0000:01:00.0: loading /lib/firmware/nvidia/580.95.05/gsp_ga10x.bin failed with error -4",
    "nvidia 0000:01:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -4",
    "NVRM: RmFetchGspRmImages: No firmware image found",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x61:0x56:1697)",
    "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
)
_NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
with_log(218, dgx_spark, *(_NO_MEMORY,) * 6)


def _spark(mhz: int) -> Recording:
    facts = {"utilization_pct": 96, "clock_sm_mhz": mhz, "clock_sm_max_mhz": 3003, "clock_event_reasons": 0}
    return of_gpu(dgx_spark(), 0, **facts)


HOSTS[219] = (lambda: _spark(507), lambda: _spark(2418))


def _clocked(mhz: list[int], busy: list[int], level: str) -> Recording:
    """What amdgpu tells of each GPU's clock in sysfs."""
    host = mi300x()
    places = [
        path.removesuffix("/uevent")
        for path, value in host["files"].items()
        if path.endswith("/uevent") and "amdgpu" in str(value)
    ]
    files: Recording = {}
    for place, at, work in zip(places, mhz, busy, strict=True):
        files[f"{place}/pp_dpm_sclk"] = (
            ["0: 132Mhz", f"1: {at}Mhz *", "2: 2100Mhz"] if at != 132 else ["0: 132Mhz *", "1: 2100Mhz"]
        )
        files |= {f"{place}/gpu_busy_percent": f"{work}\n", f"{place}/power_dpm_force_performance_level": f"{level}\n"}
    return over(host, files=files)


_FULL, _BUSY = [2100] * 8, [100] * 8
HOSTS[220] = (lambda: _clocked([2100, 2100, 61, *_FULL[3:]], _BUSY, "auto"), lambda: _clocked(_FULL, _BUSY, "auto"))
HOSTS[221] = (lambda: _clocked([132] * 8, [0] * 8, "low"), lambda: _clocked([132] * 8, [0] * 8, "auto"))
HOSTS[278] = (lambda: _clocked([132] * 8, [0] * 8, "auto"), mi300x)


def _grouped(access: bool) -> Recording:
    """The nodes are the group video's, which has no number in the namespace."""
    host = podman_rootless()
    places = [path for path in host["stats"] if path.startswith("/dev/nvidia")]
    who = {"uid": 0, "gid": 0, "groups": [0, 65534] if access else [0], "user": "root", "home": "/root"}
    answers: Recording = {f"access:{path}": {"read": access, "write": access} for path in places}
    nobody = {"$missing": "not-supported", "source": "NVML", "detail": "Insufficient Permissions"}
    if not access:
        answers["nvml"] = {"error": "NO_PERMISSION", "devices": nobody}
    nodes = {path: {**host["stats"][path], "mode": 0o20660, "uid": 65534, "gid": 65534} for path in places}
    return over(host, stats=nodes, answers={**answers, "uid": who})


HOSTS[222] = (lambda: _grouped(False), lambda: _grouped(True))
HOSTS[269] = (lambda: _grouped(True), podman_rootless)


@made(223, conda)
def lost_after_daemon_reload() -> Recording:
    nobody = {"$missing": "failed", "source": "nvmlInit", "detail": "UNKNOWN"}
    return over(conda(), answers={"nvml": {"error": "UNKNOWN", "devices": nobody}})


def _two_of_four(visible: str) -> Recording:
    host = cut(slurm(), "/dev/nvidia0", "/dev/nvidia1")
    nvml = host["answers"]["nvml"]
    devices = [{**one, "index": number} for number, one in enumerate(nvml["devices"][2:4])]
    host = over(host, answers={"nvml": {**nvml, "devices": devices, "p2p": []}})
    return environment(host, CUDA_VISIBLE_DEVICES=visible, SLURM_GPUS_ON_NODE="2", SLURM_NTASKS_PER_NODE="2", SLURM_NTASKS="8")


HOSTS[224] = (lambda: _two_of_four("2,3"), lambda: _two_of_four("0,1"))


def _with_vpn(interface: str) -> Recording:
    host = card(
        desktop(),
        "eno1",
        "pci0000:00/0000:00:1f.6",
        ids="8086:15fb",
        driver="ixgbe",
        address="10.0.0.12/24",
        node=-1,
        mbit=10_000,
    )
    own = next(one for one in host["answers"]["interfaces"] if one["name"] == "eno1")
    tunnel = [{"family": "inet", "address": "100.72.221.35", "prefix_length": 32}]
    more = {
        **own,
        "name": "tailscale0",
        "index": 30,
        "type": 65534,
        "flags": 69841,
        "mtu": 1280,
        "kind": "tun",
        "addresses": tunnel,
    }
    plain = {"mtu": "1280", "type": "65534", "flags": "0x1090", "operstate": "unknown"}
    files = {f"/sys/class/net/tailscale0/{name}": f"{value}\n" for name, value in plain.items()}
    host = over(host, files=files, answers={"interfaces": [*host["answers"]["interfaces"], more]}, intent={"nodes": 2})
    return environment(host, NCCL_SOCKET_IFNAME=interface, GLOO_SOCKET_IFNAME=interface)


HOSTS[225] = (lambda: _with_vpn("tailscale0"), lambda: _with_vpn("eno1"))


def azure() -> Recording:
    return over(ordinary("azure-nd-h100"), intent={"nodes": 2})


def _partition(first: str, second: str) -> Recording:
    ports = {path.rpartition("/")[0] for path in azure()["files"] if path.endswith("/ports/1/state")}
    keys = {f"{port}/pkeys/{number}": f"{key}\n" for port in ports for number, key in enumerate((first, second))}
    return over(azure(), files=keys)


HOSTS[226] = (lambda: _partition("0x7fff", "0x8123"), lambda: _partition("0x8123", "0x7fff"))


def _pod_of_two(*libraries: str) -> Recording:
    host = _limited(pod, memlock=[None, None])
    folder = "/usr/lib/x86_64-linux-gnu"
    stats = {f"{folder}/{name}": _FILE for name in libraries}
    listed = [name for name in host.get("dirs", {}).get(folder, []) if "ibverbs" not in name]
    return over(
        host,
        stats=stats,
        dirs={folder: [*listed, *libraries], "/dev/infiniband": ["uverbs0", "uverbs1"]},
        answers={"loader-cache:libibverbs.so.1": []},
        intent={"nodes": 2},
    )


HOSTS[227] = (_pod_of_two, lambda: _pod_of_two("libibverbs.so.1", "libmlx5.so.1", "librdmacm.so.1"))


def _two_p5() -> Recording:
    return over(aws_p5_efa(), intent={"nodes": 2})


HOSTS[228] = (lambda: _limited(_two_p5, memlock=[65536, 65536]), lambda: _limited(_two_p5, memlock=[None, None]))


@made(229)
def temporary_files_on_nfs() -> Recording:
    nfs = "- nfs4 nfs01:/export/scratch rw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,nconnect=8"
    return environment(_mounted(dgx(), "/nfs/tmp", nfs), TMPDIR="/nfs/tmp")


@made(230)
def data_in_a_bucket() -> Recording:
    what = "- fuse.gcsfuse my-bucket rw,user_id=0,group_id=0,default_permissions,allow_other"
    return over(_mounted(dgx(), "/gcs/data", what), intent={"data": ["/gcs/data"]})


def _roce(mtu: int) -> Recording:
    host = over(oci_h100(), intent={"nodes": 2})
    names = [f"rdma{number}" for number in range(16)]
    listed = [{**one, "mtu": mtu} if one["name"] in names else one for one in host["answers"]["interfaces"]]
    files = {f"/sys/class/net/{name}/mtu": f"{mtu}\n" for name in names}
    return over(host, files=files, answers={"interfaces": listed})


HOSTS[231] = (lambda: _roce(1500), lambda: _roce(4220))


def _gids(**variables: str) -> Recording:
    """Four entries a port: link-local and IPv4, each for both versions of RoCE."""
    host = _roce(4220)
    files: Recording = {}
    for number in range(16):
        port = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        own = host["files"][f"{port}/gids/0"]
        local = f"fe80:0000:0000:0000:a288:c2ff:fe00:00{number:02x}"
        for index, gid in enumerate((local, local, own, own)):
            kind = "RoCE v2" if index % 2 else "IB/RoCE v1"
            files |= {f"{port}/gids/{index}": gid, f"{port}/gid_attrs/types/{index}": kind}
            files[f"{port}/gid_attrs/ndevs/{index}"] = f"rdma{number}"
    return environment(over(host, files=files), **variables)


HOSTS[232] = (lambda: _gids(NCCL_IB_GID_INDEX="0"), lambda: _gids(NCCL_IB_GID_INDEX="3"))
HOSTS[268] = (
    lambda: _gids(NCCL_IB_GID_INDEX="3", NCCL_IB_TC="41", NCCL_IB_SL="0", NCCL_IB_TIMEOUT="16"),
    _gids,
)


def _balanced(value: int) -> Recording:
    line = text(mi300x(), "/proc/cmdline")[0].replace(" numa_balancing=disable", "")
    return over(mi300x(), files={"/proc/sys/kernel/numa_balancing": f"{value}\n", "/proc/cmdline": f"{line}\n"})


HOSTS[233] = (lambda: _balanced(1), lambda: _balanced(0))


def _barred(host: Recording) -> Recording:
    line = text(host, "/proc/cmdline")[0] + " modprobe.blacklist=amdgpu"
    return over(host, files={"/proc/cmdline": f"{line}\n"})


HOSTS[234] = (lambda: _barred(mi300x_without_driver()), mi300x)
HOSTS[265] = (lambda: _barred(mi300x()), mi300x)
HOSTS[235] = (lambda: torch(intel_xpu(), "2.11.0+cu130", cuda="13.0"), intel_xpu)
_ZE = "/usr/lib/x86_64-linux-gnu"


def _level_zero(*libraries: str) -> Recording:
    listed: Recording = {"loader-cache:libze_intel_gpu.so.1": []}
    host = over(intel_xpu(), stats={f"{_ZE}/{name}": _FILE for name in libraries}, answers=listed)
    return over(host, answers={f"dynamic:{_ZE}/{name}": {"kind": "64:62", "soname": name} for name in libraries})


HOSTS[236] = (_level_zero, lambda: _level_zero("libze_loader.so.1", "libze_intel_gpu.so.1"))


def _killed(task: str) -> tuple[str, str]:
    where = f"task_memcg={task},task=python3,pid=4711,uid=1000"
    return (
        f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,{where}",
        "Out of memory: Killed process 4711 (python3) total-vm:38291204kB, anon-rss:7123412kB, file-rss:71232kB, shmem-rss:0kB, "
        "UID:1000 pgtables:15432kB oom_score_adj:0",
    )


with_log(238, wsl2, *_killed("/"))


@made(239, jetson_orin)
def container_without_its_runtime() -> Recording:
    host = over(jetson_orin(), files={"/.dockerenv": "", "/proc/1/comm": "bash\n"}, answers={"loader-cache": []})
    return cut(host, "/usr/lib/aarch64-linux-gnu/nvidia", "/usr/local/cuda")


def _shared(size: int, host: Recording) -> Recording:
    return over(host, spaces={"/dev/shm": {**host["spaces"]["/dev/shm"], "size": size, "free": size - 4096}})


_WORKING = _asked(conda, ranks=2, workers=4)
HOSTS[240] = (lambda: _shared(64 << 20, _WORKING()), lambda: _shared(16 << 30, _WORKING()))
