"""Builders of the hosts 424 to 455 of hosts.csv: faults by areas."""

from __future__ import annotations

from hosts_082 import _mounted, _site
from hosts_141 import pod, slurm
from hosts_206 import _FILE, conda
from hosts_306 import _instead, _without_gpus
from hosts_384 import gcp_a2, radeon, rocky
from hosts_table import HOSTS, desktop, dgx, made, mi300x, with_log, with_variables

from machines import Recording, cut, environment, function, ordinary, over, system, text, torch
from platforms import aws_p5, fedora_two_4090, gaudi, intel_xpu
from platforms_contained import apptainer
from platforms_more import jetson_thor, kvm_guest
from platforms_owners import gaming_laptop, told, without_modules
from platforms_troubled import logged, of_gpu


def gh200() -> Recording:
    return ordinary("gh200")


def aws_g5() -> Recording:
    return ordinary("aws-g5")


def rhel_login() -> Recording:
    return ordinary("login-node")


def _slice(licensed: bool) -> Recording:
    return told(kvm_guest(), name="NVIDIA L40S-48C", virtualization="vgpu", licensed=licensed)


HOSTS[424] = (lambda: _slice(False), lambda: _slice(True))
_STORE = "/opt/dlami/nvme/data"


def _stored(there: bool) -> Recording:
    host = over(aws_p5(), intent={"data": [_STORE]})
    return over(host, dirs={_STORE: ["a"]}, answers={f"access:{_STORE}": {"read": True, "write": True}}) if there else host


HOSTS[425] = (lambda: _stored(False), lambda: _stored(True))
with_log(
    426,
    gcp_a2,
    "gve 0000:00:04.0 eth0: Timeout on tx queue 3",
    "NETDEV WATCHDOG: eth0 (gve): transmit queue 3 timed out 5120 ms",
    "gve 0000:00:04.0: Performing reset",
)
with_log(
    427,
    aws_g5,
    "ena 0000:00:05.0 ens5: The number of lost tx completions is above the threshold (129 > 128). Reset the device",
    "ena 0000:00:05.0 ens5: Trigger reset is on",
    "ena 0000:00:05.0: Device reset completed successfully",
)


def _stolen(ticks: int) -> Recording:
    return over(kvm_guest(), files={"/proc/stat": [f"cpu  5000000 0 400000 9000000 0 0 0 {ticks} 0 0", "btime 1760000000"]})


HOSTS[428] = (lambda: _stolen(3_310_000), lambda: _stolen(1_000))
with_log(429, kvm_guest, "watchdog: BUG: soft lockup - CPU#3 stuck for 41s! [python3:4711]")


def _as_1000(closed: bool) -> Recording:
    who = {"uid": 1000, "gid": 1000, "groups": [1000], "user": None}
    may = {"read": not closed, "write": not closed}
    return over(conda(), answers={"uid": who, "access:/root": may})


HOSTS[430] = (lambda: _as_1000(True), lambda: _as_1000(False))


@made(431, conda)
def read_only_container() -> Recording:
    host = conda()
    mounts = [line.replace(" / / rw,", " / / ro,") for line in text(host, "/proc/self/mountinfo") if " /workspace " not in line]
    closed = {
        f"access:{path}": {"read": True, "write": False} for path in ("/", "/tmp", "/var/tmp", "/usr/tmp", "/workspace", "/root")
    }
    spaces = {path: {**space, "read_only": path != "/dev/shm"} for path, space in host["spaces"].items()}
    return over(host, files={"/proc/self/mountinfo": mounts}, answers=closed, spaces=spaces)


@made(432, apptainer)
def temporary_files_of_apptainer() -> Recording:
    host = _mounted(apptainer(), "/tmp", "- tmpfs tmpfs rw,nosuid,nodev,relatime,size=65536k")
    return over(host, spaces={"/tmp": {**host["spaces"]["/tmp"], "size": 64 << 20, "free": 63 << 20}})


@made(433, pod)
def gvisor() -> Recording:
    host = system(_without_gpus(pod()), kernel="4.4.0")
    host = cut(host, "/sys/bus/pci", "/sys/devices/pci", "/proc/driver/nvidia", "/sys/module/nvidia", "/proc/modules")
    lines = ["[    0.000000] Starting gVisor...", "[    0.354495] Daemonizing children...", "[    2.051] Ready!"]
    return over(host, answers={"kernel-log": {"source": "/dev/kmsg", "lines": lines, "now_s": 900.0}})


with_log(
    434,
    mi300x,
    "amdgpu 0000:0c:00.0: amdgpu: ring sdma0 timeout, signaled seq=812, emitted seq=814",
    "amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:0c:00.0: amdgpu: GPU reset(1) succeeded!",
)
with_log(
    435,
    mi300x,
    "amdgpu 0000:22:00.0: amdgpu: socket: 2, die: 0 3 uncorrectable hardware errors detected in total in umc block",
    "amdgpu 0000:22:00.0: amdgpu: 3 uncorrectable hardware errors detected in umc block",
)


@made(436, radeon)
def firmware_of_a_radeon_is_missing() -> Recording:
    host = cut(radeon(), "/dev/kfd", "/dev/dri")
    uevent = next(path for path in host["files"] if path.endswith("0000:03:00.0/uevent"))
    links = {path: target for path, target in host["links"].items() if not target.endswith("drivers/amdgpu")}
    host = over({**host, "links": links}, files={uevent: [line for line in text(host, uevent) if line != "DRIVER=amdgpu"]})
    return logged(
        host,
        "amdgpu 0000:03:00.0: Direct firmware load for amdgpu/gc_12_0_1_pfp.bin failed with error -2",
        "amdgpu 0000:03:00.0: [drm:amdgpu_device_init.cold] *ERROR* early_init of IP block <gfx_v12_0> failed -19",
        "amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init",
        "amdgpu: probe of 0000:03:00.0 failed with error -19",
    )


with_log(
    437,
    intel_xpu,
    "xe 0000:03:00.0: [drm] *ERROR* Tile0: GT0: GuC load failed: status = 0x400000A0, time = 203ms, freq = 2850MHz (req 2850MHz), done = -1",
    "xe 0000:03:00.0: [drm] *ERROR* Tile0: GT0: GuC load failed: status: Reset = 0, BootROM = 0x50, UKernel = 0x00, MIA = 0x00, Auth = 0x01",
    "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.",
)
with_log(
    438,
    gaudi,
    "habanalabs 0000:50:00.0: Device heartbeat failed! PCI link is broken",
    "habanalabs 0000:50:00.0: Going to reset device",
    "habanalabs 0000:50:00.0: Failed to reset device, device is not usable",
)


@made(439, mi300x)
def old_driver_of_amd() -> Recording:
    host = over(mi300x(), files={"/sys/module/amdgpu/version": "5.18.13\n", "/.dockerenv": "", "/proc/1/comm": "bash\n"})
    return torch(host, "2.8.0+rocm6.4", hip="6.4.43482-0f2d60242")


@made(440, conda)
def torch_of_conda_and_of_pip() -> Recording:
    return over(conda(), dirs={"/opt/conda/conda-meta": ["pytorch-2.7.1-cuda126_generic_py311_h1234567_0.json"]})


def _pixi(place: str) -> Recording:
    """slurm's environment at another place."""
    host, old = slurm(), "/home/jdoe/envs/train"

    def moved(value: object) -> object:
        if isinstance(value, str):
            return value.replace(old, place)
        if isinstance(value, list):
            return [moved(one) for one in value]
        if isinstance(value, dict):
            return {str(moved(key)): moved(one) for key, one in value.items()}
        return value

    made_: Recording = {name: moved(section) for name, section in host.items()}
    return over(made_, intent={"nodes": 2})


HOSTS[441] = (lambda: _pixi("/home/jdoe/project/.pixi/envs/default"), lambda: _pixi("/opt/envs/default"))


def _cudnn(size: int) -> Recording:
    site = _site(desktop())
    name = "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9"
    record = [f"{name},sha256=abc,500000000", "nvidia_cudnn_cu13-9.19.0.56.dist-info/RECORD,,"]
    return over(
        desktop(),
        files={f"{site}/nvidia_cudnn_cu13-9.19.0.56.dist-info/RECORD": record},
        stats={f"{site}/{name}": {**_FILE, "size": size}},
    )


HOSTS[442] = (lambda: _cudnn(100_000_000), lambda: _cudnn(500_000_000))


def _own_master(node: int, rank: int) -> Recording:
    name = slurm()["answers"]["uname"]["nodename"]
    host = environment(slurm(), SLURM_NNODES="2", SLURM_JOB_NUM_NODES="2", SLURM_NTASKS="8", SLURM_NODEID=str(node))
    host = environment(
        host, RANK=str(rank), SLURM_PROCID=str(rank), WORLD_SIZE="8", LOCAL_RANK="0", MASTER_ADDR=name, MASTER_PORT="29500"
    )
    own = ["10.10.0.7"]
    way = {"addresses": own, "refused": [""], "own": own}
    return over(host, intent={"nodes": 2}, answers={f"way-to:{name}": way, "hostname-addresses": own})


HOSTS[443] = (lambda: _own_master(1, 4), lambda: _own_master(0, 0))
HOSTS[444] = (lambda: over(rhel_login(), files={"/etc/systemd/logind.conf": ["[Login]", "KillUserProcesses=yes"]}), rhel_login)
with_variables(445, lambda: over(dgx(), intent={"ranks": 8}), CUDA_VISIBLE_DEVICES="0")


def _balanced(value: int) -> Recording:
    gpu = gh200()["answers"]["nvml"]["devices"][0]["pci_address"]
    files = {f"/proc/driver/nvidia/gpus/{gpu}/numa_status": "Node: 1\nStatus: online\n"}
    return over(gh200(), files={**files, "/proc/sys/kernel/numa_balancing": f"{value}\n"})


HOSTS[446] = (lambda: _balanced(1), lambda: _balanced(0))


def _thor(triton: str) -> Recording:
    return _instead(torch(jetson_thor(), "2.9.1", cuda="13.0", arch="aarch64"), "triton", triton)


HOSTS[447] = (lambda: _thor("3.5.1"), lambda: _thor("3.7.0"))


def _second_slot(lanes: int) -> Recording:
    host = of_gpu(fedora_two_4090(), 1, pcie_width=lanes)
    second = host["answers"]["nvml"]["devices"][1]["pci_address"].lower()
    place = next(path.rpartition("/")[0] for path in host["files"] if path.endswith(f"{second}/uevent"))
    port = place.rpartition("/")[0].removeprefix("/sys/devices/")
    host = function(host, port, "1022:14db", "60400", "pcieport", -1, max_link_width=f"{lanes}", current_link_width=f"{lanes}")
    return over(host, files={f"{place}/current_link_width": f"{lanes}\n"})


HOSTS[448] = (lambda: _second_slot(4), lambda: _second_slot(16))
_3060 = {
    "name": "NVIDIA GeForce RTX 3060",
    "architecture": "Ampere",
    "compute_capability": [8, 6],
    "memory_total_bytes": 12_884_901_888,
    "power_limit_mw": 170_000,
    "power_default_mw": 170_000,
}
HOSTS[449] = (
    lambda: over(of_gpu(fedora_two_4090(), 1, **_3060), intent={"ranks": 2}),
    lambda: over(fedora_two_4090(), intent={"ranks": 2}),
)
with_log(
    450,
    gaming_laptop,
    "pcieport 0000:00:07.0: pciehp: Slot(3): Link Down",
    "pcieport 0000:00:07.0: pciehp: Slot(3): Card not present",
    "NVRM: Xid (PCI:0000:0a:00): 79, pid=4711, name=python3, GPU has fallen off the bus.",
    "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.",
)
with_log(
    451,
    desktop,
    *[
        f"mce: CPU12: Package temperature is above threshold, cpu clock is throttled (total events = {1_300 * (n + 1)})"
        for n in range(60)
    ],
)
_RAPL = "/sys/class/powercap/intel-rapl:0"


def _capped(host: Recording, watts: int, most: int) -> Recording:
    files = {
        f"{_RAPL}/name": "package-0\n",
        f"{_RAPL}/enabled": "1\n",
        f"{_RAPL}/constraint_0_name": "long_term\n",
        f"{_RAPL}/constraint_0_power_limit_uw": f"{watts * 1_000_000}\n",
        f"{_RAPL}/constraint_0_max_power_uw": f"{most * 1_000_000}\n",
        f"{_RAPL}/constraint_1_name": "short_term\n",
        f"{_RAPL}/constraint_1_power_limit_uw": f"{max(watts, 253) * 1_000_000}\n",
    }
    names = {"/sys/class/powercap": ["intel-rapl", "intel-rapl:0", "intel-rapl:0:0"]}
    return over(host, files=files, dirs=names)


HOSTS[452] = (lambda: _capped(dgx(), 60, 350), lambda: _capped(dgx(), 350, 350))
_DENIED = 'audit: type=1400 audit(1760000000.123:91): apparmor="DENIED" operation="open" class="file" profile="{}" name="{}" pid=4711 comm="{}" '
_WR = 'requested_mask="wr" denied_mask="wr" fsuid=1000 ouid=0'
with_log(453, desktop, _DENIED.format("snap.code.code", "/dev/nvidiactl", "python3") + _WR)


@made(454, dgx)
def modules_are_disabled() -> Recording:
    host = without_modules(dgx(), "nvidia_uvm")
    host = cut(host, "/dev/nvidia-uvm", "/sys/module/nvidia_uvm")
    return over(host, files={"/proc/sys/kernel/modules_disabled": "1\n"})


@made(455, rocky)
def selinux_refuses_code() -> Recording:
    host = over(
        rocky(), answers={"refusals": {"code": "Permission denied", "netlink": ""}}, files={"/sys/fs/selinux/enforce": "1"}
    )
    return logged(
        host,
        'audit: type=1400 audit(1760000000.123:91): avc:  denied  { execmem } for  pid=4711 comm="python3" '
        "scontext=unconfined_u:unconfined_r:unconfined_t:s0 tcontext=unconfined_u:unconfined_r:unconfined_t:s0 tclass=process permissive=0",
    )
