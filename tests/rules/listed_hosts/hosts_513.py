"""Builders of the hosts 513 to 555 of hosts.csv: logs, other makers' GPUs, networks, limits."""

from __future__ import annotations

from hosts_082 import _mounted, _site
from hosts_141 import slurm
from hosts_206 import _FILE, azure
from hosts_306 import _nobody
from hosts_384 import radeon
from hosts_424 import gh200
from hosts_478 import _toolkit
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import Recording, environment, function, over, torch
from platforms import aws_p5, intel_xpu
from platforms_arm import jetson_orin
from platforms_contained import podman_rootless
from platforms_more import oci_h100
from platforms_owners import gaming_laptop, proprietary
from platforms_troubled import logged

HOSTS[513] = (
    lambda: logged(
        _nobody(desktop()),
        "NVRM: Can't find an IRQ for your NVIDIA card!",
        "NVRM: Please check your BIOS settings.",
        "NVRM: [Plug & Play OS] should be set to NO",
        "nvidia: probe of 0000:01:00.0 failed with error -1",
    ),
    desktop,
)
with_log(
    514,
    desktop,
    "traps: Missing ENDBR: _portMemAllocatorAllocNonPagedWrapper+0x0/0x10 [nvidia]",
    "------------[ cut here ]------------",
    "kernel BUG at arch/x86/kernel/traps.c:255!",
    "invalid opcode: 0000 [#1] PREEMPT SMP NOPTI",
    "CPU: 1 PID: 658 Comm: (udev-worker) Tainted: G           OE      6.14.0-33-generic",
)
with_log(515, dgx, "NVRM: Xid (PCI:0000:b7:00): 62, pid='<unknown>', name=<unknown>, 32a3(1ce0) 00000000 00000000")
with_log(516, dgx, "NVRM: Xid (PCI:0000:d1:00): 95, pid=4711, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No")
with_log(552, dgx, "NVRM: Xid (PCI:0000:18:00): 45, pid=4711, name=python3, Ch 00000008")
_TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"


def _described(**variables: str) -> Recording:
    host = over(azure(), files={_TOPOLOGY: '<system version="1"></system>\n'}, stats={_TOPOLOGY: {**_FILE, "size": 9000}})
    return environment(host, **variables)


HOSTS[517] = (lambda: _described(), lambda: _described(NCCL_TOPO_FILE=_TOPOLOGY))
HOSTS[555] = (lambda: _described(NCCL_TOPO_FILE=_TOPOLOGY), azure)
_STORE = "/opt/dlami/nvme"


def _kept(device: str) -> Recording:
    host = _mounted(aws_p5(), _STORE, f"- ext4 {device} rw")
    model = "Amazon EC2 NVMe Instance Storage" if "nvme1" in device else "Amazon Elastic Block Store"
    name = device.rpartition("/")[2]
    disk = f"/sys/devices/pci0000:00/0000:00:1e.0/nvme/{name[:5]}/{name}"
    files = {f"{disk}/device/model": f"{model}\n", f"{disk}/dev": "0:60\n", f"{disk}/queue/rotational": "0\n"}
    links = {"/sys/dev/block/0:60": f"../..{disk[4:]}", f"/sys/block/{name}": f"..{disk[4:]}"}
    return over(host, files=files, links=links, intent={"checkpoints": [_STORE]})


HOSTS[518] = (lambda: _kept("/dev/nvme1n1"), lambda: _kept("/dev/nvme2n1"))


def _with_ryzen(**variables: str) -> Recording:
    """The processor's own graphics (Raphael, gfx1036), driven by the same module."""
    host = function(radeon(), "pci0000:00/0000:00:08.1/0000:12:00.0", "1002:164e", "30000", "amdgpu", -1)
    return environment(host, **variables)


HOSTS[519] = (lambda: _with_ryzen(), lambda: _with_ryzen(HIP_VISIBLE_DEVICES="0"))
HOSTS[548] = (lambda: _with_ryzen(HIP_VISIBLE_DEVICES="0"), radeon)
with_log(
    520,
    radeon,
    "amdgpu 0000:03:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    "amdgpu 0000:03:00.0: amdgpu: failed to remove hardware queue from MES, doorbell=0x1002",
    "amdgpu 0000:03:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset",
    "amdgpu 0000:03:00.0: amdgpu: Failed to evict queue 1",
    "amdgpu: Failed to evict process queues",
)
with_log(
    521,
    radeon,
    "amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32778)",
    "amdgpu 0000:03:00.0: amdgpu:  Process python3 pid 4711 thread python3 pid 4711",
    "amdgpu 0000:03:00.0: amdgpu:   in page starting at address 0x00007f2c00000000 from client 10",
    "amdgpu 0000:03:00.0: amdgpu: GCVM_L2_PROTECTION_FAULT_STATUS:0x00801031",
    "amdgpu 0000:03:00.0: amdgpu: \t Faulty UTCL2 client ID: TCP (0x8)",
)


def _two_tritons(*also: str) -> Recording:
    host = torch(mi300x(), "2.10.0+rocm7.0", hip="7.0.51831")
    names = ("pytorch_triton_rocm-3.5.1", *also)
    return over(host, files={f"{_site(host)}/{name}.dist-info/INSTALLER": "pip\n" for name in names})


HOSTS[522] = (lambda: _two_tritons("triton-3.6.0"), lambda: _two_tritons())
with_log(523, radeon, *["amdgpu: SVM mapping failed, exceeds resident system memory limit"] * 40)
_STOPPED = (
    "xe 0000:03:00.0: [drm] Tile0: GT0: Engine reset: engine_class={0}, logical_mask: 0x1, guc_id=2, state=0x3",
    "xe 0000:03:00.0: [drm] Tile0: GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0 in {1}",
)
with_log(524, intel_xpu, *[line.format("ccs", "python3 [4711]") for line in _STOPPED] * 6)
with_log(550, intel_xpu, *[line.format("rcs", "firefox [2211]") for line in _STOPPED])
with_variables(525, intel_xpu, ZE_AFFINITY_MASK="2")
with_variables(526, intel_xpu, ONEAPI_DEVICE_SELECTOR="opencl:cpu")
with_variables(549, intel_xpu, ZE_AFFINITY_MASK="0", ONEAPI_DEVICE_SELECTOR="level_zero:gpu")


@made(527, jetson_orin)
def without_cusparselt() -> Recording:
    host = torch(jetson_orin(), "2.5.0a0+872d972e41.nv24.8", cuda="12.6", arch="aarch64")
    name = next(name for name in host["answers"] if name.startswith("interpreter:"))
    gone = "ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory"
    return over(host, answers={name.replace("interpreter:", "live-torch:"): {"import_error": gone}}, intent={"live": True})


HOSTS[528] = (
    lambda: logged(
        _nobody(proprietary(gh200())),
        "NVRM: The NVIDIA GPU 0009:01:00.0 (PCI ID: 10de:2342)",
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        "NVRM: GPU 0009:01:00.0: RmInitAdapter failed! (0x22:0x56:897)",
    ),
    gh200,
)


def _cabled(mbit: int) -> Recording:
    """Two hosts by a cable."""
    host = over(desktop(), intent={"nodes": 2})
    own = [{"family": "inet", "address": "10.0.0.12", "prefix_length": 24}]
    listed = [
        {**one, "addresses": own, "flags": 69699, "operstate": "up"} if one["name"] == "enp6s0" else one
        for one in host["answers"]["interfaces"]
    ]
    route = [line.replace("wlp4s0", "enp6s0") for line in str(host["files"]["/proc/net/route"]).splitlines()]
    files = {"/proc/net/route": route, "/sys/class/net/enp6s0/speed": f"{mbit}\n", "/sys/class/net/enp6s0/operstate": "up\n"}
    return over(host, files=files, answers={"interfaces": listed})


HOSTS[529] = (lambda: _cabled(100), lambda: _cabled(10_000))
with_log(
    530,
    desktop,
    "igc 0000:05:00.0 enp6s0: PCIe link lost, device now detached",
    "igc: Failed to read reg 0x0!",
)


def _bonded(second: str) -> Recording:
    host = two_dgx()
    own = next(one for one in host["answers"]["interfaces"] if one["name"] == "ens0np0")
    number = max(one["index"] for one in host["answers"]["interfaces"]) + 1
    ports = ("ens0np0", "ens1np0")
    kept = [{**one, "master": "bond0", "addresses": []} if one["name"] in ports else one for one in host["answers"]["interfaces"]]
    if second == "down":  # without IFF_RUNNING and IFF_LOWER_UP
        kept = [{**one, "flags": 6147, "operstate": "down"} if one["name"] == "ens1np0" else one for one in kept]
    bond = {**own, "name": "bond0", "index": number, "kind": "bond", "flags": 5187}
    facts = {"mtu": own["mtu"], "type": 1, "flags": "0x1443", "operstate": "up", "bonding/mode": "802.3ad 4"}
    facts |= {"speed": 400_000 if second == "up" else 200_000, "bonding/slaves": " ".join(ports)}
    files = {f"/sys/class/net/bond0/{name}": f"{value}\n" for name, value in facts.items()}
    states = dict(zip(ports, ("up", second), strict=True))
    slaves = [f"Slave Interface: {name}\nMII Status: {state}\nSpeed: 200000 Mbps" for name, state in states.items()]
    files["/proc/net/bonding/bond0"] = "\n".join(
        ["Bonding Mode: IEEE 802.3ad Dynamic link aggregation", "MII Status: up", *slaves]
    )
    files["/sys/class/net/ens1np0/operstate"] = f"{second}\n"
    files["/sys/class/net/ens1np0/bonding_slave/mii_status"] = f"{second}\n"
    files |= {f"/proc/sys/net/ipv4/conf/bond0/{name}": "0\n" for name in ("rp_filter", "arp_ignore", "arp_announce")}
    return over(host, files=files, answers={"interfaces": [*kept, bond]})


HOSTS[531] = (lambda: _bonded("down"), lambda: _bonded("up"))
with_log(532, dgx, "mlx5_core 0000:9a:00.0: Port module event[error]: module 0, Cable error, High Temperature")


def _tables(host: Recording, value: str) -> Recording:
    paths = [path for path in host["files"] if "/infiniband/" in path and "/gids/" in path]
    return over(host, files=dict.fromkeys(paths, f"{value}\n"))


@made(533, lambda: over(oci_h100(), intent={"nodes": 2}))
def table_of_zeros() -> Recording:
    contained = {"/.dockerenv": "", "/proc/1/comm": "bash\n"}
    host = _tables(over(oci_h100(), intent={"nodes": 2}), "0000:0000:0000:0000:0000:0000:0000:0000")
    return environment(over(host, files=contained), KUBERNETES_SERVICE_HOST="10.96.0.1")


def _addresses(limit: int | None) -> Recording:
    return over(desktop(), answers={"rlimits": {**desktop()["answers"]["rlimits"], "as": [limit, limit]}})


HOSTS[534] = (lambda: _addresses(32 << 30), lambda: _addresses(None))


def _requests(used: int) -> Recording:
    files = {"/proc/sys/fs/aio-nr": f"{used}\n", "/proc/sys/fs/aio-max-nr": "65536\n"}
    site = _site(dgx())
    return over(dgx(), files={**files, f"{site}/deepspeed-0.18.2.dist-info/INSTALLER": "pip\n"})


HOSTS[535] = (lambda: _requests(65_536), lambda: _requests(2_048))
HOSTS[554] = (lambda: _requests(2_048), dgx)


def _removes(value: str) -> Recording:
    return over(slurm(), files={"/etc/systemd/logind.conf": ["[Login]", f"RemoveIPC={value}"]})


HOSTS[536] = (lambda: _removes("yes"), lambda: _removes("no"))
with_log(
    537,
    dgx,
    *[
        "python3: page allocation failure: order:9, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset=/,mems_allowed=0-1",
        "SLUB: Unable to allocate memory on node -1, gfp=0xcc0(GFP_KERNEL)",
    ]
    * 150,
)
with_log(
    542,
    gaming_laptop,
    *["PM: suspend entry (s2idle)", "Freezing user space processes", "PM: suspend exit"] * 3,
)
HOSTS[551] = (lambda: _toolkit(podman_rootless(), "true"), podman_rootless)
_JEMALLOC = "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"


@made(553, gh200)
def allocator_of_ubuntu() -> Recording:
    return environment(over(gh200(), files={_JEMALLOC: ""}, stats={_JEMALLOC: _FILE}), LD_PRELOAD=_JEMALLOC)
